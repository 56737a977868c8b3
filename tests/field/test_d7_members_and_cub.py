"""CASES D7: members of structs in launches, a global constant as block size, pointers that are one of several."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime.errors import CompileError

SOURCE = """\
typedef struct { int heads; int width; } Shape;
typedef struct { float* q; float* k; } State;
const int threads = 128;
int blocks_of(int a, int b) { return (a - 1) / b + 1; }
__global__ void turn_kernel(int pos, float* q, float* k, int kv_dim, int head_size) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    float angle = pos / powf(100.0f, (i % head_size) / (float)head_size);
    for (int v = 0; v < (i < kv_dim ? 2 : 1); ++v) {
        float* turned = v == 0 ? q : k;
        float a = turned[i], b = turned[i + 1];
        turned[i] = a * cosf(angle) - b * sinf(angle);
        turned[i + 1] = a * sinf(angle) + b * cosf(angle);
    }
}
__global__ void add_kernel(float* a, float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += b[i];
}
__global__ void route_kernel(float* low, float* high, const float* x, const float* y, int n) {
    const float* in;
    float* out;
    if ((int)threadIdx.x < n) { in = x + threadIdx.x; out = low + threadIdx.x; }
    else { in = y + threadIdx.x - n; out = high + threadIdx.x - n; }
    *out = 2 * *in;
}
void turn(int pos, State* s, int dim, int kv_dim, int head_size) {
    turn_kernel<<<1, dim / 2>>>(pos, s->q, s->k, kv_dim, head_size);
}
void turn_heads(int pos, State* s, Shape* p) { turn_kernel<<<p->heads, p->width / 2>>>(pos, s->q, s->k, 0, p->width); }
void add(float* a, float* b, int n) { add_kernel<<<blocks_of(n, threads), threads>>>(a, b, n); }
void route(float* low, float* high, const float* x, const float* y, int n) {
    route_kernel<<<1, 2 * n>>>(low, high, x, y, n);
}
"""
REDUCTIONS = """\
#include <cub/cub.cuh>
const int threads = 96;
__global__ void norm_kernel(float* out, float* x, float* weight, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += threads) sum += x[i] * x[i];
    using BlockReduce = cub::BlockReduce<float, threads>;
    __shared__ typename BlockReduce::TempStorage temp;
    __shared__ float shared;
    sum = BlockReduce(temp).Sum(sum);
    if (threadIdx.x == 0) shared = 1.0f / sqrtf(sum / n + 1e-5f);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += threads) out[i] = weight[i] * shared * x[i];
}
struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
__global__ void largest_kernel(float* out, const float* x, int n) {
    using BlockReduce = cub::BlockReduce<float, 32>;
    __shared__ BlockReduce::TempStorage temp;
    float most = BlockReduce(temp).Reduce((int)threadIdx.x < n ? x[threadIdx.x] : 0.0f, Larger(), n);
    if (threadIdx.x == 0) out[0] = most;
}
__global__ void sort_kernel(int* out) {
    using BlockRadixSort = cub::BlockRadixSort<int, 32, 1>;
    __shared__ BlockRadixSort::TempStorage temp;
    int keys[1] = {out[threadIdx.x]};
    BlockRadixSort(temp).Sort(keys);
    out[threadIdx.x] = keys[0];
}
void norm(float* out, float* x, float* weight, int n) { norm_kernel<<<1, threads>>>(out, x, weight, n); }
"""


@pytest.fixture
def module(case):
    built = case({"model.cu": SOURCE})
    assert built.diagnostics == []
    return built["model"]


def turned(x, pos, head_size):
    pairs = x.reshape(-1, 2).astype("f8")
    angle = pos / 100.0 ** (2 * np.arange(len(pairs)) % head_size / head_size)
    a, b = pairs[:, 0], pairs[:, 1]
    return np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=1).ravel()


def test_a_global_constant_is_the_block_size(module, xp):
    a, b = xp.arange(300, dtype="f4"), xp.ones(300, "f4")
    (launch,) = module.add.plan(a, b, 300).operations
    assert (launch.grid, launch.block) == ((3, 1, 1), (128, 1, 1))
    module.add(a, b, 300)
    xp.testing.assert_array_equal(a, np.arange(300, dtype="f4") + 1)


def test_members_are_asked_for_with_the_types_that_kernels_take(module, xp):
    random = np.random.default_rng(7)
    q, k = random.normal(size=16).astype("f4"), random.normal(size=8).astype("f4")
    q_given, k_given = xp.array(q), xp.array(k)
    module.turn(3, None, 16, 8, 4, s_q=q_given, s_k=k_given)
    xp.testing.assert_allclose(q_given, turned(q, 3, 4), rtol=1e-5, atol=1e-6)
    xp.testing.assert_allclose(k_given, turned(k, 3, 4), rtol=1e-5, atol=1e-6)


def test_a_member_that_is_not_given_is_named(module, xp):
    with pytest.raises(TypeError, match="s_k"):
        module.turn(3, None, 16, 8, 4, s_q=xp.zeros(16, "f4"))
    with pytest.raises(TypeError, match="`s_q` is a int; a NumPy array"):
        module.turn(3, None, 16, 8, 4, s_q=1, s_k=xp.zeros(8, "f4"))


def test_members_give_the_grid(module, xp):
    q = np.random.default_rng(8).normal(size=24).astype("f4")
    given = xp.array(q)
    module.turn_heads(2, None, None, s_q=given, s_k=xp.zeros(1, "f4"), p_heads=3, p_width=8)
    xp.testing.assert_allclose(given, turned(q, 2, 8), rtol=1e-5, atol=1e-6)


def test_a_pointer_that_is_one_of_several_counts_for_each(module, xp):
    kinds = {
        kernel: [one.intent for one in getattr(module, kernel).params] for kernel in module.__all__ if "_k" in kernel
    }
    assert kinds["turn_kernel"] == [None, "inout", "inout", None, None]
    assert kinds["route_kernel"] == ["out", "out", "in", "in", None]
    backing = xp.full(8, -1, "f4")
    low, x, y = xp.zeros(4, "f4"), xp.arange(4, dtype="f4"), xp.arange(4, 8, dtype="f4")
    module.route(low, backing[::2], x, y, 4)
    xp.testing.assert_array_equal(low, 2 * x)
    xp.testing.assert_array_equal(backing, xp.asarray([8, -1, 10, -1, 12, -1, 14, -1], dtype="f4"))


@pytest.mark.parametrize("n", [1, 95, 1000])
def test_reductions_of_a_block_by_cub(case, xp, n):
    module = case({"norm.cu": REDUCTIONS})["norm"]
    random = np.random.default_rng(n)
    x, weight = random.normal(size=n).astype("f4"), random.normal(size=n).astype("f4")
    out = xp.full(n, np.nan, "f4")
    module.norm(out, xp.asarray(x), xp.asarray(weight), n)
    xp.testing.assert_allclose(out, weight * x / np.sqrt((x.astype("f8") ** 2).mean() + 1e-5), rtol=1e-5)


@pytest.mark.parametrize("n", [1, 7, 32])
def test_a_reduction_of_some_threads_leaves_out_the_others(case, xp, n):
    module = case({"norm.cu": REDUCTIONS})["norm"]
    x, out = -1 - xp.arange(n, dtype="f4")[::-1], xp.full(1, np.nan, "f4")
    module.largest_kernel[1, 32](out, x, n)
    assert float(out[0]) == -1.0


def test_what_the_cpu_has_not_of_cub_is_named(case):
    module = case({"norm.cu": REDUCTIONS})["norm"]
    with pytest.raises(CompileError, match=r"sort_kernel .*\nnorm\.cu:22:\d+: error: .*BlockRadixSort"):
        module.sort_kernel[1, 32](np.zeros(32, "i4"))
