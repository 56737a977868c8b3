"""CASES B3: strided, broadcast and misaligned arrays give what their contiguous copies give, forward and backward.

The layers of llm.c's kernels are put to the same test in tests/layers; this is a user's own kernel with float4 loads.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor

KERNELS = """\
__global__ void double_forward(float* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(out)[i] = make_float4(v.x * v.x, v.y * v.y, v.z * v.z, v.w * v.w);
}
__global__ void double_backward(float* dx, const float* x, const float* dout, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    float4 v = reinterpret_cast<const float4*>(x)[i];
    float4 g = reinterpret_cast<const float4*>(dout)[i];
    reinterpret_cast<float4*>(dx)[i] = make_float4(2 * v.x * g.x, 2 * v.y * g.y, 2 * v.z * g.z, 2 * v.w * g.w);
}
void forward(float* out, const float* x, int n) { double_forward<<<(n / 4 + 63) / 64, 64>>>(out, x, n); }
"""
ENTRY = '''\
name = "square"
layer = "Square"
summary = "Square."
source = "square.cu"
kernels = ["double_forward", "double_backward"]
[inputs]
inp = { shape = "*", doc = "any shape; the number of elements is a multiple of four" }
[outputs]
out = { shape = "*", doc = "the shape of `inp`" }
[forward]
saves = ["inp"]
recipe = """
out = empty_like(inp)
double_forward[ceil_div(N, 256), 64](out, inp, N)
"""
[backward]
gradients = { inp = "dinp" }
recipe = """
dinp = empty_like(dout)
double_backward[ceil_div(N, 256), 64](dinp, inp, dout, N)
"""
[reference]
forward = "out = inp * inp"
backward = "dinp = 2 * inp * dout"
'''

VIEWS = {
    "transposed": lambda xp: xp.arange(96, dtype=np.float32).reshape(8, 12).T,
    "columns": lambda xp: xp.arange(96, dtype=np.float32).reshape(8, 12)[:, :4],
    "every_other": lambda xp: xp.arange(192, dtype=np.float32)[::2],
    "backwards": lambda xp: xp.arange(96, dtype=np.float32)[::-1],
    "broadcast": lambda xp: xp.broadcast_to(xp.arange(8, dtype=np.float32), (12, 8)),
    "from_the_second": lambda xp: xp.arange(97, dtype=np.float32)[1:],
}


@pytest.fixture
def built(case):
    return case({"square.cu": KERNELS, "square.toml": ENTRY})


@pytest.mark.parametrize("view", VIEWS)
def test_inputs_and_gradients_of_layers(built, xp, view):
    x = VIEWS[view](xp)
    layer, leaf = built["layers"].Square(), Tensor(x)
    before = x.copy()
    out = layer(leaf)
    gradient = VIEWS[view](xp)
    out.backward(gradient)
    xp.testing.assert_array_equal(out.data, before**2)
    xp.testing.assert_array_equal(leaf.grad, 2 * before * gradient)
    xp.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("view", VIEWS)
def test_inputs_of_launchers_and_kernels(built, xp, view):
    x = VIEWS[view](xp)
    for call in (built["square_cu"].forward, built["square"].double_forward[2, 64]):
        out = xp.full(x.shape, np.nan, np.float32)
        call(out, x, x.size)
        xp.testing.assert_array_equal(out, x**2)


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "broadcast"])
def test_outputs_are_copied_back(built, xp, view):
    x = xp.arange(VIEWS[view](xp).size, dtype=np.float32)
    out = VIEWS[view](xp)
    built["square_cu"].forward(out, x, x.size)
    xp.testing.assert_array_equal(out, (x**2).reshape(out.shape))


def test_what_lies_between_the_elements_of_an_output_stays(built, xp):
    backing = xp.full(17, -1, np.float32)
    built["square_cu"].forward(backing[1::2], xp.full(8, 3, np.float32), 8)
    xp.testing.assert_array_equal(backing, xp.asarray([-1, 9] * 8 + [-1], dtype=np.float32))


def test_an_output_whose_elements_share_memory_is_refused(built, xp):
    x = xp.arange(96, dtype=np.float32)
    with pytest.raises(ValueError, match=r"`out` is written, but .*pass a copy"):
        built["square_cu"].forward(VIEWS["broadcast"](xp), x, 96)
