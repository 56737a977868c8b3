"""Kernels that take a device function as a template argument."""

import importlib
import sys

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
using operation = float (*)(float);
__device__ float offset() { return 1; }
__device__ float successor(float x) { return x + offset(); }
__device__ float negative(float x) { return -x; }
template <operation apply>
__global__ void map(float* out, const float* x, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = apply(x[threadIdx.x]);
}
void next(float* out, const float* x, int n) { map<successor><<<1, 32>>>(out, x, n); }
"""


def test_the_function_is_part_of_the_slice(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "source").mkdir()
    (folder / "source" / "map.cu").write_text(SOURCE)
    generated = generate(folder / "source")
    assert generated.diagnostics == ()
    assert "offset()" in generated.files["map.cu"]
    assert "negative" not in generated.files["map.cu"]
    write_package(folder / "functions_package", generated.files)
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("functions_package.map")
    finally:
        sys.path.remove(str(folder))
    out, x = np.zeros(3, np.float32), np.array([1, 2, 3], np.float32)
    module.next(out, x, 3)
    assert out.tolist() == [2, 3, 4]
    module.map.instantiate("successor")[1, 32](x, out, 3)
    assert x.tolist() == [3, 4, 5]
    with pytest.raises(TypeError, match="takes a function's name"):
        module.map.instantiate("a b")
