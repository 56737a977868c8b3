"""CASES D10: kernels in ``extern "C"`` blocks without launchers, a ``bool*`` mask, and a kernel that calls cuBLASLt."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor

RELU = """\
extern "C" {

__global__ void relu_forward(float* out, const float* inp, bool* mask, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        mask[i] = inp[i] > 0;
        out[i] = mask[i] ? inp[i] : 0;
    }
}

__global__ void relu_backward(float* dinp, const float* dout, const bool* mask, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dinp[i] = mask[i] ? dout[i] : 0;
}

}
extern "C" __global__ void negate(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = -x[i];
}
"""
ENTRY = '''\
name = "relu"
layer = "ReLU"
summary = "max(x, 0)."
source = "relu.cu"
kernels = ["relu_forward", "relu_backward"]
[inputs]
inp = { shape = "*", doc = "any shape" }
[outputs]
out = { shape = "*", doc = "the shape of `inp`" }
[forward]
saves = ["mask"]
recipe = """
out = empty_like(inp)
mask = empty((N,), boolean)
relu_forward[ceil_div(N, 256), 256](out, inp, mask, N)
"""
[backward]
gradients = { inp = "dinp" }
recipe = """
dinp = empty_like(dout)
relu_backward[ceil_div(N, 256), 256](dinp, dout, mask, N)
"""
[reference]
forward = "out = np.maximum(inp, 0)"
backward = "dinp = np.where(inp > 0, dout, 0)"
'''
MATMUL = """\
#include <cublasLt.h>
extern "C" __global__ void matmul(float* out, const float* a, const float* b) {
    cublasLtHandle_t handle;
    cublasLtCreate(&handle);
    cublasLtMatmul(handle, 0, 0, a, 0, b, 0, 0, out, 0, out, 0, 0, 0, 0, 0);
}
extern "C" __global__ void fill(float* out, int n) {
    if ((int)threadIdx.x < n) out[threadIdx.x] = 1;
}
"""


def test_kernels_of_extern_c_blocks_run_with_a_mask(case, xp):
    built = case({"relu.cu": RELU})
    assert built.diagnostics == []
    module = built["relu"]
    x = xp.asarray(np.random.default_rng(10).normal(size=1021).astype(np.float32))
    out, mask = xp.full(1021, np.nan, np.float32), xp.zeros(1021, np.bool_)
    module.relu_forward[4, 256](out, x, mask, 1021)
    xp.testing.assert_array_equal(out, xp.maximum(x, 0))
    xp.testing.assert_array_equal(mask, x > 0)
    dinp, dout = xp.full(1021, np.nan, np.float32), xp.ones(1021, np.float32)
    module.relu_backward[4, 256](dinp, dout, mask, 1021)
    xp.testing.assert_array_equal(dinp, (x > 0).astype(np.float32))
    module.negate[4, 256](dinp, 1021)
    xp.testing.assert_array_equal(dinp, -(x > 0).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_a_mask_of_another_dtype_is_refused(case, xp, dtype):
    module = case({"relu.cu": RELU})["relu"]
    x, mask = xp.ones(4, np.float32), xp.zeros(4, dtype)
    with pytest.raises(TypeError, match=rf"relu_forward: `mask` is {np.dtype(dtype).name}, but bool\* takes bool"):
        module.relu_forward[1, 32](xp.zeros(4, np.float32), x, mask, 4)


def test_a_layer_keeps_the_mask_of_each_call(case, xp):
    layer = case({"relu.cu": RELU, "relu.toml": ENTRY})["layers"].ReLU()
    first = Tensor(xp.asarray(np.random.default_rng(1).normal(size=(7, 11)).astype(np.float32)))
    second = Tensor(-first.data)
    outputs = layer(first), layer(second)
    for leaf, output in zip((first, second), outputs, strict=True):
        output.backward(xp.full((7, 11), 3, np.float32))
        xp.testing.assert_array_equal(output.data, xp.maximum(leaf.data, 0))
        xp.testing.assert_array_equal(leaf.grad, 3 * (leaf.data > 0).astype(np.float32))


def test_a_kernel_that_calls_cublaslt_is_rejected_by_name(case, xp):
    built = case({"relu.cu": RELU, "kernels.cu": MATMUL})
    assert [said.partition(" error: ")[0] for said in built.diagnostics] == ["kernels.cu:4:5:", "kernels.cu:5:5:"]
    assert "kernel matmul calls host function cublasLtCreate" in built.diagnostics[0]
    assert "kernel matmul calls host function cublasLtMatmul" in built.diagnostics[1]
    assert built["kernels"].__all__ == ["fill"]
    out = xp.zeros(4, np.float32)
    built["kernels"].fill[1, 32](out, 3)
    xp.testing.assert_array_equal(out, xp.asarray([1, 1, 1, 0], dtype=np.float32))
    assert hasattr(built["relu"], "relu_forward")
