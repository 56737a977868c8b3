"""The whole generator: reproducible, and honest in its lock about what it read and wrote."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

from llmc2py import __version__
from llmc2py.diagnostics import UsageError
from llmc2py.emit.lock import LOCK_NAME, emit_lock
from llmc2py.pipeline import generate

VENDOR = pathlib.Path(__file__).resolve().parent.parent / "vendor" / "llm.c"
DIGESTS = """
import hashlib, json, pathlib, sys
from llmc2py.pipeline import generate
made = generate(pathlib.Path(sys.argv[1]))
print(json.dumps({name: hashlib.sha256(text.encode()).hexdigest() for name, text in made.files.items()}))
print(json.dumps([str(one) for one in made.diagnostics]))
"""


def test_runs_do_not_depend_on_the_order_of_sets(tmp_path):
    def run(seed: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", DIGESTS, VENDOR], env=environment, cwd=tmp_path, capture_output=True, check=True
        ).stdout

    first = run("1")
    assert len(json.loads(first.splitlines()[0])) > 10
    assert run("2") == first


def test_the_place_of_the_source_does_not_matter(tmp_path):
    kernel = "__global__ void k(float* o) { o[0] = 1; }\nvoid go(float* o) { k<<<1, 1>>>(o); }\n"
    for place in ("one", "an other/place"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "k.cu").write_text(kernel)
    one, other = generate(tmp_path / "one"), generate(tmp_path / "an other" / "place")
    assert one.files == other.files
    assert str(tmp_path) not in "".join(one.files.values())


def test_the_lock_says_what_was_read_and_written(tmp_path):
    (tmp_path / "k.cu").write_text('#include "h.cuh"\n__global__ void k(float* o) { o[0] = f(); }\n')
    (tmp_path / "h.cuh").write_text("__device__ float f() { return 1; }\n")
    files = generate(tmp_path).files
    lock = json.loads(files[LOCK_NAME])
    assert lock["generator"] == f"llmc2py {__version__}"
    assert sorted(lock["sources"]) == ["h.cuh", "k.cu"]
    assert lock["sources"]["h.cuh"] == hashlib.sha256((tmp_path / "h.cuh").read_bytes()).hexdigest()
    assert lock["files"] == {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items() if name != LOCK_NAME
    }
    (tmp_path / "h.cuh").write_text("__device__ float f() { return 2; }\n")
    changed = json.loads(generate(tmp_path).files[LOCK_NAME])
    assert changed["sources"]["h.cuh"] != lock["sources"]["h.cuh"]
    assert changed["sources"]["k.cu"] == lock["sources"]["k.cu"]


def test_the_lock_is_in_order():
    one = emit_lock("1", {"b": "2", "a": "1"}, {}, {"z.py": "", "a.py": ""})
    assert one == emit_lock("1", {"a": "1", "b": "2"}, {}, {"a.py": "", "z.py": ""})


def test_only_takes_along_what_is_launched_and_called_in_other_files(tmp_path):
    (tmp_path / "k.cuh").write_text(
        "#pragma once\ntemplate <int B> __global__ void fill(float* a) { a[threadIdx.x] = B; }\n"
        "__global__ void zero(float* a) { a[threadIdx.x] = 0; }\n__global__ void other(float* a) { a[0] = 3; }\n"
        "inline void zeros(float* a, int n) { zero<<<1, n>>>(a); }\n"
        "inline void others(float* a, int n) { other<<<1, n>>>(a); }\n"
    )
    (tmp_path / "run.cu").write_text(
        '#include "k.cuh"\nvoid run(float* a, int n) { fill<64><<<1, 64>>>(a); zeros(a, n); }\n'
    )
    made = generate(tmp_path, only=["run.cu"])
    assert [kernel.name for kernel in made.library.kernels] == ["fill", "zero"]
    assert [launcher.name for launcher in made.library.launchers] == ["zeros", "run"]
    assert not made.plan.not_lowered
    assert {module.path: module.imports for module in made.plan.modules}["run"] == {"k": ("fill", "zeros")}


def test_only_selects_kernels_and_files_and_refuses_slips(tmp_path):
    (tmp_path / "a.cu").write_text("__global__ void ka(float* o) { o[0] = 1; }\n")
    (tmp_path / "b.cu").write_text("__global__ void kb(float* o) { o[0] = 1; }\n__global__ void kc(float* o) {}\n")
    assert set(generate(tmp_path, only=["a.cu"]).files) == {"__init__.py", "a.py", "a.cu", LOCK_NAME}
    assert [kernel.name for kernel in generate(tmp_path, only=["kc"]).library.kernels] == ["kc"]
    with pytest.raises(UsageError, match="--only kx"):
        generate(tmp_path, only=["kx"])
