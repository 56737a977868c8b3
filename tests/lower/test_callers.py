"""What launchers ask of their callers, helpers that look at the device, casts of null, declarations in parentheses."""

import importlib
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
typedef void (*operation)(float*, int);
__device__ void add_one(float* x, int i) { x[i] += 1; }
__global__ void set(float* x, int n, float value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = value;
}
__device__ float first(const float* x) { return x == nullptr ? 7.0f : x[0]; }
__global__ void set_first(float* x, const float* maybe) { x[0] = first(maybe); }
template <operation apply>
__global__ void each(float* x, int n) { if (threadIdx.x < n) apply(x, threadIdx.x); }

extern cudaDeviceProp deviceProp;
static float* buffer = NULL;
static int threshold;
int blocks(int n) { int most = deviceProp.multiProcessorCount; return n < most ? n : most; }

void spread(float* x, int n) { const int count = blocks(n); set<<<count, 32>>>(x, n, 3.0f); }
void inner(float* x, int n) { if (n > threshold) { set<<<1, 32>>>(buffer, n, 1.0f); set<<<1, 32>>>(x, n, 2.0f); } }
void outer(int which, float* x, int n) { switch (which) { case 1: inner(x, n); break; default: exit(1); } }
void perhaps(float* x, const void* maybe) { set_first<<<1, 1>>>(x, (const float*)maybe); }
void tiles(float* x, int n, int B, int NH) { const dim3 grid(n, B * NH); set<<<grid, 32>>>(x, n, 5.0f); }
template <operation apply> void map(float* x, int n) { each<apply><<<1, 32>>>(x, n); }
void increment(float* x, int n) { map<add_one>(x, n); }
template <class Launch> void dispatch(Launch&& launch, int size) {
    if (size == 64) return launch(std::integral_constant<int, 64>());
    launch(std::integral_constant<int, 32>{});
}
void sized(float* x, int n, int size) {
    auto launch = [&](auto threads) { set<<<1, threads.value>>>(x, n, (float)threads.value); };
    dispatch(launch, size);
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("callers")
    (folder / "source").mkdir()
    (folder / "source" / "callers.cu").write_text(SOURCE)
    generated = generate(pathlib.Path(folder / "source"))
    assert [one.launcher.name for one in generated.plan.not_lowered] == []
    assert generated.diagnostics == ()
    write_package(folder / "callers_package", generated.files)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("callers_package.callers")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def x() -> np.ndarray:
    return np.zeros(4, np.float32)


def test_a_helper_may_look_at_the_device(module: Any, x: np.ndarray) -> None:
    module.spread(x, 4)
    assert x.tolist() == [3, 3, 3, 3]
    (launch,) = module.spread.plan(np.zeros(1000, np.float32), 1000).operations
    assert launch.grid == (4, 1, 1)


def test_what_a_launcher_asks_for_its_callers_ask_for_too(module: Any, x: np.ndarray) -> None:
    assert list(module.outer.signature.parameters) == ["which", "x", "n", "threshold", "buffer"]
    buffer = np.zeros(4, np.float32)
    module.outer(1, x, 4, threshold=3, buffer=buffer)
    assert (x.tolist(), buffer.tolist()) == ([2] * 4, [1] * 4)
    module.outer(1, x, 4, threshold=9, buffer=np.zeros(4, np.float32))
    assert x.tolist() == [2] * 4


def test_a_cast_of_null_is_null(module: Any, x: np.ndarray) -> None:
    module.perhaps(x, None)
    assert x[0] == 7
    module.perhaps(x, np.array([5], np.float32))
    assert x[0] == 5


def test_a_declaration_in_parentheses_is_no_prototype(module: Any, x: np.ndarray) -> None:
    (launch,) = module.tiles.plan(x, 4, 2, 3).operations
    assert launch.grid == (4, 6, 1)


def test_template_arguments_that_are_functions_are_passed_on(module: Any, x: np.ndarray) -> None:
    module.increment(x, 4)
    module.map["add_one"](x, 3)
    assert x.tolist() == [2, 2, 2, 1]


@pytest.mark.parametrize(("size", "threads"), [(64, 64), (17, 32)])
def test_a_local_function_is_passed_to_a_launcher(module: Any, x: np.ndarray, size: int, threads: int) -> None:
    module.sized(x, 4, size)
    assert x.tolist() == [threads] * 4
