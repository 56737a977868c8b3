"""CASES D2 and D3: a local that shadows a parameter, an input of width 2C; a forward pass that may be a copy."""

from __future__ import annotations

import numpy as np
import pytest

# A local `dout` of the loop's body shadows the parameter: neither is the parameter written nor is the local an array.
GATED = """\
__global__ void gated_forward_kernel(float* out, const float* inp, int rows, int C) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * C) return;
    const float* first = inp + (i / C) * 2 * C + i % C;
    const float* second = first + C;
    out[i] = *first * *second / (1.0f + expf(-*second));
}
__global__ void gated_backward_kernel(float* dinp, const float* dout, const float* inp, int rows, int C) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * C) return;
    const float* upstream = dout + i;
    const float* first = inp + (i / C) * 2 * C + i % C;
    float* dfirst = dinp + (i / C) * 2 * C + i % C;
    for (int k = 0; k < 1; ++k) {
        float dout = upstream[k];
        float gate = 1.0f / (1.0f + expf(-first[C]));
        dfirst[0] = dout * first[C] * gate;
        dfirst[C] = dout * first[0] * gate * (1.0f + first[C] * (1.0f - gate));
        dout = 0.0f;
    }
}
void gated_forward(float* out, const float* inp, int B, int T, int C) {
    gated_forward_kernel<<<(B * T * C + 127) / 128, 128>>>(out, inp, B * T, C);
}
void gated_backward(float* dinp, const float* dout, const float* inp, int B, int T, int C) {
    gated_backward_kernel<<<(B * T * C + 127) / 128, 128>>>(dinp, dout, inp, B * T, C);
}
"""

# Rows of H query heads and of G key heads each G of which serves H / G of them, each head of D numbers.
REPEATED = """\
__global__ void repeat_kernel(float* out, const float* inp, int rows, int H, int factor, int D) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * 2 * H * D) return;
    int d = i % D, head = i / D % H, part = i / D / H % 2, row = i / D / H / 2;
    int width = H + H / factor;
    out[i] = inp[(row * width + (part == 0 ? head : H + head / factor)) * D + d];
}
__global__ void sum_kernel(float* dinp, const float* dout, int rows, int H, int factor, int D) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int width = H + H / factor;
    if (i >= rows * width * D) return;
    int d = i % D, head = i / D % width, row = i / D / width;
    if (head < H) {
        dinp[i] = dout[(row * 2 * H + head) * D + d];
    } else {
        float sum = 0.0f;
        for (int k = 0; k < factor; ++k) sum += dout[(row * 2 * H + H + (head - H) * factor + k) * D + d];
        dinp[i] = sum;
    }
}
void repeat_forward(float* out, const float* inp, int rows, int H, int G, int D, cudaStream_t stream) {
    int total = rows * 2 * H * D;
    int factor = H / G;
    if (factor > 1) {
        repeat_kernel<<<(total + 63) / 64, 64, 0, stream>>>(out, inp, rows, H, factor, D);
    } else {
        cudaMemcpy(out, inp, total * sizeof(float), cudaMemcpyDeviceToDevice);
    }
}
void repeat_backward(float* dinp, const float* dout, int rows, int H, int G, int D, cudaStream_t stream) {
    sum_kernel<<<(rows * (H + G) * D + 63) / 64, 64, 0, stream>>>(dinp, dout, rows, H, H / G, D);
}
"""


def intents(kernel):
    return {one.name: one.intent for one in kernel.params if one.intent is not None}


def test_a_local_may_shadow_a_parameter(case, xp):
    module = case({"gated.cu": GATED})["gated"]
    assert intents(module.gated_backward_kernel) == {"dinp": "out", "dout": "in", "inp": "in"}
    random = np.random.default_rng(2)
    B, T, C = 2, 3, 37
    inp, dout = random.normal(size=(B, T, 2 * C)).astype("f4"), random.normal(size=(B, T, C)).astype("f4")
    given = xp.asarray(dout)
    out, dinp = xp.full((B, T, C), np.nan, "f4"), xp.full((B, T, 2 * C), np.nan, "f4")
    module.gated_forward(out, xp.asarray(inp), B, T, C)
    module.gated_backward(dinp, given, xp.asarray(inp), B, T, C)
    first, second = (half.astype("f8") for half in np.split(inp, 2, axis=-1))
    gate = 1 / (1 + np.exp(-second))
    xp.testing.assert_allclose(out, first * second * gate, rtol=1e-5, atol=1e-6)
    expected = np.concatenate([dout * second * gate, dout * first * gate * (1 + second * (1 - gate))], axis=-1)
    xp.testing.assert_allclose(dinp, expected, rtol=1e-5, atol=1e-6)
    xp.testing.assert_array_equal(given, dout)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_are_copied_where_there_is_nothing_to_repeat(case, xp, groups):
    module = case({"repeated.cu": REPEATED})["repeated"]
    rows, heads, size = 3, 4, 5
    random = np.random.default_rng(3)
    inp = random.normal(size=(rows, heads + groups, size)).astype("f4")
    dout = random.normal(size=(rows, 2 * heads, size)).astype("f4")
    out, dinp = xp.full(dout.shape, np.nan, "f4"), xp.full(inp.shape, np.nan, "f4")
    module.repeat_forward(out, xp.asarray(inp), rows, heads, groups, size)
    query, key = np.split(inp, [heads], axis=1)
    xp.testing.assert_array_equal(out, np.concatenate([query, key.repeat(heads // groups, axis=1)], axis=1))
    plan = module.repeat_forward.plan(out, xp.asarray(inp), rows, heads, groups, size)
    assert [type(one).__name__ for one in plan.operations] == ["Memcpy" if groups == heads else "Launch"]
    module.repeat_backward(dinp, xp.asarray(dout), rows, heads, groups, size)
    query, key = np.split(dout, 2, axis=1)
    summed = key.reshape(rows, groups, heads // groups, size).sum(axis=2)
    xp.testing.assert_allclose(dinp, np.concatenate([query, summed], axis=1), rtol=1e-6, atol=1e-6)
