"""Launchers that take another launcher, as a template parameter that they call."""

import importlib
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
__global__ void plus(float* x, float by, int n) { if (threadIdx.x < n) x[threadIdx.x] += by; }
__global__ void times(float* x, float by, int n) { if (threadIdx.x < n) x[threadIdx.x] *= by; }
void add(float* x, float by, int n) { plus<<<1, 32>>>(x, by, n); }
void scale(float* x, float by, int n) { times<<<1, 32>>>(x, by, n); }
template <class Step>
void twice(float* x, int n, Step step) { step(x, 2.0f, n); step(x, 3.0f, n); }
void choose(int which, float* x, int n) {
    switch (which) {
        case 1: twice(x, n, add); break;
        case 2: twice(x, n, scale); break;
        default: exit(1);
    }
}
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("launchers")
    (folder / "source").mkdir()
    (folder / "source" / "steps.cu").write_text(SOURCE)
    generated = generate(folder / "source")
    assert generated.diagnostics == ()
    assert generated.plan.not_lowered == ()
    write_package(folder / "launchers_package", generated.files)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("launchers_package.steps")
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize(("which", "expected"), [(1, [6.0, 7.0]), (2, [6.0, 12.0])])
def test_a_dispatcher_passes_a_launcher_on(steps: Any, which: int, expected: list[float]) -> None:
    x = np.array([1, 2], np.float32)
    steps.choose(which, x, 2)
    assert x.tolist() == expected


def test_a_launcher_is_an_argument_in_python_too(steps: Any) -> None:
    x = np.array([1, 2], np.float32)
    steps.twice(x, 2, steps.add)
    steps.twice(x, 2, steps.scale)
    assert x.tolist() == [36.0, 42.0]


def test_anything_else_is_refused(steps: Any) -> None:
    with pytest.raises(TypeError, match="`step` is 5; it takes a launcher"):
        steps.twice(np.zeros(2, np.float32), 2, 5)
