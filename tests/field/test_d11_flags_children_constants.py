"""CASES D11: a block that waits for the flag of the one before, a child launch in a kernel, constant memory."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import host

SCAN = """\
__global__ void scan_kernel(float* out, const float* x, float* sums, int* flags, int* counter, int n) {
    extern __shared__ float s[];
    __shared__ float before;
    __shared__ int block;
    int t = threadIdx.x;
    if (t == 0) block = atomicAdd(counter, 1);
    __syncthreads();
    int i = block * blockDim.x + t;
    s[t] = i < n ? x[i] : 0;
    for (int step = 1; step < (int)blockDim.x; step *= 2) {
        __syncthreads();
        float left = t >= step ? s[t - step] : 0;
        __syncthreads();
        s[t] += left;
    }
    __syncthreads();
    if (t == 0) {
        before = 0;
        if (block > 0) {
            while (atomicAdd(&flags[block - 1], 0) == 0) { }
            before = sums[block - 1];
        }
        sums[block] = before + s[blockDim.x - 1];
        __threadfence();
        atomicExch(&flags[block], 1);
    }
    __syncthreads();
    if (i < n) out[i] = before + s[t];
}
void scan(float* out, const float* x, float* sums, int* flags, int* counter, int n) {
    cudaMemset(flags, 0, (n + 63) / 64 * sizeof(int));
    cudaMemset(counter, 0, sizeof(int));
    scan_kernel<<<(n + 63) / 64, 64, 64 * sizeof(float)>>>(out, x, sums, flags, counter, n);
}
"""
CHILDREN = """\
__global__ void child(float* x, int n) { if ((int)threadIdx.x < n) x[threadIdx.x] = 1; }
template <int N> __global__ void sized(float* x) { if (threadIdx.x < N) x[threadIdx.x] = N; }
// not a launch: child<<<1, 32>>>(x, n)
__global__ void parent(float* x, int n) {
    if (threadIdx.x == 0) child<<<1, 32>>>(x, n);
}
__device__ void through(float* x) { sized<4><<<1, 32>>>(x); }
__global__ void grandparent(float* x) { through(x); }
void run_child(float* x, int n) { child<<<1, 32>>>(x, n); }
void run_parent(float* x, int n) { parent<<<1, 32>>>(x, n); }
"""
CONSTANTS = """\
__constant__ float taps[(2 * 1 + 1)];
__constant__ float fixed[3] = {1.0f, 2.0f, 3.0f};
__device__ float tap(int k) { return taps[k]; }
__global__ void filter(float* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 2 < n) out[i] = tap(0) * x[i] + tap(1) * x[i + 1] + taps[2] * x[i + 2];
}
__global__ void fixed_filter(float* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 2 < n) out[i] = fixed[0] * x[i] + fixed[1] * x[i + 1] + fixed[2] * x[i + 2];
}
void run(float* out, const float* x, const float* host_taps, int n) {
    cudaMemcpyToSymbol(taps, host_taps, sizeof(taps));
    filter<<<(n + 63) / 64, 64>>>(out, x, n);
}
void run_fixed(float* out, const float* x, int n) { fixed_filter<<<(n + 63) / 64, 64>>>(out, x, n); }
"""


def test_blocks_that_wait_for_the_one_before_come_to_an_end(case, xp):
    built = case({"scan.cu": SCAN})
    assert built.diagnostics == []
    n, blocks = 5000, 79
    x = np.random.default_rng(11).integers(-9, 9, size=n).astype("f4")
    out, sums = xp.full(n, np.nan, "f4"), xp.full(blocks, np.nan, "f4")
    flags, counter = xp.ones(blocks, "i4"), xp.ones(1, "i4")
    built["scan"].scan(out, xp.asarray(x), sums, flags, counter, n)
    xp.testing.assert_array_equal(out, np.cumsum(x))
    assert int(counter[0]) == blocks
    assert bool((flags == 1).all())


def test_a_kernel_that_launches_another_is_left_out_and_named(case, xp):
    built = case({"family.cu": CHILDREN})
    why = "which is not supported: launch it from host code"
    assert built.diagnostics == [
        f"family.cu:5:27: error: kernel parent launches kernel child, {why}",
        f"family.cu:7:37: error: kernel grandparent launches kernel sized, {why}",
    ]
    module = built["family"]
    assert module.__all__ == ["child", "run_child", "sized"]
    x = xp.zeros(4, "f4")
    module.run_child(x, 3)
    xp.testing.assert_array_equal(x, xp.asarray([1, 1, 1, 0], dtype="f4"))


def test_constant_memory_that_only_host_code_fills_is_refused_not_taken_for_noughts(case, xp):
    built = case({"filter.cu": CONSTANTS})
    why = "which only host code can fill: pass it as a parameter or give it its values where it is defined"
    assert sorted(built.diagnostics) == [
        f"filter.cu:3:38: error: kernel filter reads __constant__ taps (defined at filter.cu:1), {why}",
        f"filter.cu:6:65: error: kernel filter reads __constant__ taps (defined at filter.cu:1), {why}",
    ]
    module = built["filter"]
    assert module.__all__ == ["fixed_filter", "run_fixed"]
    x, out = xp.arange(100, dtype="f4"), xp.zeros(100, "f4")
    module.run_fixed(out, x, 100)
    xp.testing.assert_array_equal(out[:98], x[:98] + 2 * x[1:99] + 3 * x[2:])


def test_the_checker_finds_a_total_that_is_read_without_a_barrier(case):
    head = "    if (t == 0) {\n        before"
    assert SCAN.count(f"    __syncthreads();\n{head}") == 1
    module = case({"scan.cu": SCAN.replace(f"    __syncthreads();\n{head}", f"\n{head}")})["scan"]
    arrays = [np.zeros(200, "f4"), np.ones(200, "f4"), np.zeros(4, "f4"), np.zeros(4, "i4"), np.zeros(1, "i4")]
    said = r"scan\.cu:14: race: kernel scan_kernel: write of byte 252 .* shared memory s .*read at scan\.cu:23 by"
    with pytest.raises(host.CheckError, match=said), host.checking():
        module.scan(*arrays, 200)
