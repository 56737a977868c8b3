"""Kernels that take enumerators, pointers to functions or classes as template arguments."""

import importlib
import pathlib
import sys

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.runtime.cuda.nvrtc import supported_architectures
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.verify.compile_check import compile_check

SOURCE = """
namespace modes { enum class Mode { ADD = 3, MUL }; }
typedef enum { LOW, HIGH } Level;
namespace modes {
template <Mode M> __global__ void k(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = M == Mode::ADD ? 1 : 2; }
}
template <Level L> __global__ void level(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = L == HIGH ? 5 : 4; }
__device__ float square(float x) { return x * x; }
template <float (*F)(float)> __global__ void map(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = F(3); }
void add(float* a, int n) { modes::k<modes::Mode::ADD><<<1, 32>>>(a, n); }
void high(float* a, int n) { level<HIGH><<<1, 32>>>(a, n); }
void squares(float* a, int n) { map<square><<<1, 32>>>(a, n); }
"""
REFUSED = """
enum Mode { ADD, MUL };
struct Add { __device__ float operator()(float x) const { return x + 1; } };
template <Mode M> __global__ void k(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = M == ADD ? 1 : 2; }
template <typename F> __global__ void map(float* a, int n) { if (n) a[threadIdx.x] = F()(a[threadIdx.x]); }
template <auto N> __global__ void any(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = N; }
template <Mode M> void passes_on(float* a, int n) { k<M><<<1, 32>>>(a, n); }
template <Mode M> void counts(float* a, int n) { k<ADD><<<1, M == ADD ? 1 : 2>>>(a, n); }
void maps(float* a, int n) { map<Add><<<1, 32>>>(a, n); }
void anything(float* a, int n) { any<4><<<1, 32>>>(a, n); }
"""
DEFAULTS = """
constexpr int BLOCK = 64;
using index = int;
enum Mode { ADD, MUL };
template <int B = BLOCK> __global__ void named(float* a) { a[threadIdx.x] = B; }
template <Mode M = MUL> __global__ void enumerated(float* a) { a[threadIdx.x] = M; }
template <index N = -2> __global__ void aliased(float* a) { a[threadIdx.x] = N; }
template <int B = BLOCK * 2> __global__ void computed(float* a) { a[threadIdx.x] = B; }
void r1(float* a) { named<<<1, 64>>>(a); }
void r2(float* a) { enumerated<<<1, 64>>>(a); }
void r3(float* a) { aliased<<<1, 64>>>(a); }
void r4(float* a) { aliased<3><<<1, 64>>>(a); }
void r5(float* a) { computed<<<1, 64>>>(a); }
"""


def test_defaults_are_what_they_stand_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k.cu").write_text(DEFAULTS)
    made = generate(tmp_path)
    (refused,) = made.plan.not_lowered
    assert refused.reason == "template parameter B of computed is left to its default, BLOCK * 2, which is no number"
    for text in ('("B", "int", default=64)', '("M", "enum Mode", default=1)', '("N", "int", default=-2)'):
        assert f"TemplateParam{text}" in made.files["k.py"]
    assert "plan.launch(aliased, 1, 64, 0, a, template=(3,))" in made.files["k.py"]


def test_what_python_can_give_works(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "enums.cu").write_text(SOURCE)
    generated = generate(tmp_path / "source")
    assert not generated.diagnostics
    assert not generated.plan.not_lowered
    write_package(tmp_path / "enums_package", generated.files)
    sys.path.insert(0, str(tmp_path))
    try:
        module = importlib.import_module("enums_package.enums")
    finally:
        sys.path.remove(str(tmp_path))
    a = np.zeros(2, np.float32)
    for launch, value in ((module.add, 1), (module.high, 5), (module.squares, 9)):
        launch(a, 2)
        assert a.tolist() == [value, value]
    module.k.instantiate(4)[1, 32](a, 2)
    assert a.tolist() == [2, 2]
    with pytest.raises(TypeError, match="takes an integer"):
        module.k.instantiate("MUL")
    try:
        architecture = supported_architectures()[-1]
    except ToolMissingError as error:
        pytest.skip(str(error))
    rows = compile_check(str(tmp_path / "enums_package"), [architecture], cpu=False)
    assert [(row.kernel, row.ok) for row in rows] == [
        ("modes::k<(modes::Mode)3>", True), ("level<(Level)1>", True), ("map<square>", True),
    ]  # fmt: skip


def test_what_python_cannot_give_is_not_lowered(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k.cu").write_text(REFUSED)
    assert {one.launcher.name: one.reason for one in generate(tmp_path).plan.not_lowered} == {
        "passes_on": "M is a Mode, and launchers in Python have no template parameter of it",
        "counts": "the template parameter M is no number that Python could give",
        "maps": "template argument Add is no type that arrays have",
        "anything": "template parameter N is auto, and no number for Python",
    }
