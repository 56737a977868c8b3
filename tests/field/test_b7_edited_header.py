"""CASES B7: a constant in an included header is edited; the next process computes with the new value."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """\
#include "constants.h"
__global__ void fill(float* out, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = SCALE * (i + OFFSET);
}
void run(float* out, int n) { fill<<<1, THREADS>>>(out, n); }
"""
HEADER = """\
#define SCALE {scale}
constexpr int OFFSET = {offset};
const int THREADS = {threads};
"""
PROGRAM = """\
import json, sys
import {module} as xp
from package.fill import run
out = xp.zeros(4, "float32")
run(out, 4)
print(json.dumps([out.tolist(), run.plan(out, 4).operations[0].block[0]]))
"""


@pytest.mark.parametrize("module", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def test_the_new_value_counts(tmp_path: pathlib.Path, module: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "fill.cu").write_text(SOURCE)

    def result_with(scale: int, offset: int, threads: int) -> list[object]:
        (source / "constants.h").write_text(HEADER.format(scale=scale, offset=offset, threads=threads))
        write_package(tmp_path / "package", generate(source).files)
        command = [sys.executable, "-c", PROGRAM.format(module=module)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert result_with(3, 0, 32) == [[0, 3, 6, 9], 32]
    assert result_with(5, 0, 32) == [[0, 5, 10, 15], 32]
    assert result_with(5, 2, 64) == [[10, 15, 20, 25], 64]
    assert result_with(3, 0, 32) == [[0, 3, 6, 9], 32]


def test_the_lock_file_knows_the_header(tmp_path: pathlib.Path) -> None:
    (tmp_path / "fill.cu").write_text(SOURCE)
    locks = []
    for scale in (3, 5, 3):
        (tmp_path / "constants.h").write_text(HEADER.format(scale=scale, offset=0, threads=32))
        files = generate(tmp_path).files
        assert "constants.h" in files["llmc2py.lock"]
        locks.append(files["llmc2py.lock"])
    assert locks[0] != locks[1]
    assert locks[0] == locks[2]
