"""CASES B14: a batch of no rows through a user's own layer with parameters: no launch, zero parameter gradients.

The layers of llm.c's kernels are put to the same test in tests/layers.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor, host
from llmc2py.runtime.cuda.device import CudaKernel

KERNELS = """\
__global__ void affine(float* out, const float* x, const float* w, int n, int c) {
    for (int i = threadIdx.x; i < n * c; i += blockDim.x) out[i] = x[i] * w[i % c];
}
// A block to a column whatever the number of rows, so that the grid is never empty.
__global__ void affine_backward(float* dx, float* dw, const float* dout, const float* x, const float* w, int n, int c) {
    if (threadIdx.x != 0) return;
    int i = blockIdx.x;
    for (int row = 0; row < n; ++row) {
        dx[row * c + i] = dout[row * c + i] * w[i];
        dw[i] += dout[row * c + i] * x[row * c + i];
    }
}
"""
ENTRY = '''\
name = "affine"
layer = "Affine"
summary = "Columns times weights."
source = "affine.cu"
kernels = ["affine", "affine_backward"]
[inputs]
inp = { shape = "* C", doc = "rows" }
[parameters]
weight = { shape = "C", init = "ones" }
[outputs]
out = { shape = "* C", doc = "the shape of `inp`" }
[forward]
saves = ["inp", "weight"]
recipe = """
out = empty_like(inp)
affine[1, 64](out, inp, weight, N, C)
"""
[backward]
gradients = { inp = "dinp", weight = "dweight" }
recipe = """
dinp = empty_like(inp)
dweight = accumulator(weight)
affine_backward[C, 32](dinp, dweight, dout, inp, weight, N, C)
"""
[reference]
forward = "out = inp * weight"
backward = """
dinp = dout * weight
dweight = (dout * inp).sum(axis=tuple(range(inp.ndim - 1)))
"""
'''


@pytest.fixture
def layer(case):
    return case({"affine.cu": KERNELS, "affine.toml": ENTRY})["layers"].Affine(5)


def backward_of(layer, xp, shape):
    x = Tensor(xp.full(shape, 2, np.float32))
    out = layer(x)
    out.backward(xp.full(shape, 3, np.float32))
    return x, out


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5)])
def test_empty_outputs_and_zero_gradients(layer, xp, shape, monkeypatch):
    launched = []
    for kind in (host.HostKernel, CudaKernel):
        monkeypatch.setattr(kind, "launch", lambda self, *args: launched.append(self.name))
    x, out = backward_of(layer, xp, shape)
    assert out.shape == x.grad.shape == shape
    xp.testing.assert_array_equal(layer.weight.grad, xp.zeros(5, np.float32))
    assert launched == []


def test_no_rows_leave_a_gradient_that_is_there_as_it_is(layer, xp):
    backward_of(layer, xp, (4, 5))
    xp.testing.assert_array_equal(layer.weight.grad, xp.full(5, 24, np.float32))
    backward_of(layer, xp, (0, 5))
    xp.testing.assert_array_equal(layer.weight.grad, xp.full(5, 24, np.float32))
    backward_of(layer, xp, (1, 5))
    xp.testing.assert_array_equal(layer.weight.grad, xp.full(5, 30, np.float32))
