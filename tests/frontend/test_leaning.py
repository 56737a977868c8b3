"""Headers whose kernels need what is included before them."""

import pathlib

import pytest

from llmc2py.diagnostics import Severity
from llmc2py.pipeline import generate

KERNELS = """#pragma once
__global__ void k(float* a) { a[threadIdx.x + blockIdx.x * WIDTH] = twice(3.0f); }
__global__ void whole(float* a) { a[threadIdx.x] = 1; }
"""


def made(folder: pathlib.Path, files: dict[str, str]) -> tuple[str, list[str]]:
    for name, text in files.items():
        (folder / name).write_text(text)
    generated = generate(folder)
    assert all(item.severity is Severity.WARNING for item in generated.diagnostics)
    return generated.files["k.cu"], [f"{item.span.origin}: {item.message}" for item in generated.diagnostics]


@pytest.mark.parametrize("width", ["const int WIDTH = 32;", "#define WIDTH 32"])
def test_they_come_from_the_unit_that_includes_them(tmp_path: pathlib.Path, width: str) -> None:
    base = f"#pragma once\n{width}\n__device__ inline float twice(float x) {{ return 2 * x; }}\n"
    run = '#include "base.cuh"\n#include "k.cuh"\nint after;\nvoid run(float* a) { k<<<2, 32>>>(a); }\n'
    text, said = made(tmp_path, {"base.cuh": base, "k.cuh": KERNELS, "run.cu": run})
    assert said == []
    assert "float twice(float x) { return 2 * x; }" in text
    assert "const int WIDTH = 32;" in text or "blockIdx.x * 32]" in text
    assert "int after" not in text


def test_includers_that_disagree_are_told(tmp_path: pathlib.Path) -> None:
    head = "__device__ inline float twice(float x) { return 2 * x; }\n"
    run = '#include "k.cuh"\nvoid run(float* a) { k<<<2, 32>>>(a); }\n'
    files = {
        f"{name}.cu": f"{head}const int WIDTH = {width};\n{run.replace('run', name)}"
        for name, width in (("eight", 8), ("nine", 9))
    }
    text, said = made(tmp_path, files | {"k.cuh": KERNELS})
    assert "const int WIDTH = 8;" in text
    assert said == [
        "k.cuh:2: kernel k uses WIDTH, twice, which this file does not include and nine.cu gives another meaning "
        "than eight.cu; that of eight.cu is taken"
    ]


def test_headers_that_are_whole_stay_as_they_are(tmp_path: pathlib.Path) -> None:
    header = "#pragma once\nconst int WIDTH = 4;\n__device__ float twice(float x) { return x; }\n" + KERNELS[13:]
    run = 'int first;\n#include "k.cuh"\nconst int threadIdx_x = 1;\nvoid run(float* a) { k<<<2, 32>>>(a); }\n'
    text, said = made(tmp_path, {"k.cuh": header, "run.cu": run})
    assert said == []
    assert "first" not in text
