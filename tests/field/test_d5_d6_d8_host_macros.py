"""CASES D5, D6 and D8: launchers of torch tensors and of macros, a macro as a number, a block size set at run time."""

from __future__ import annotations

import numpy as np
import pytest

TORCH = """\
#include <torch/extension.h>
#include <torch/types.h>
#define STRINGIFY(x) #x
#define BIND(f) m.def(STRINGIFY(f), &f, STRINGIFY(f));
#define CHECK_DTYPE(T, type) if (((T).options().dtype() != (type))) { throw std::runtime_error("must be " #type); }
template <const int WIDTH = 32> __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int mask = WIDTH >> 1; mask >= 1; mask >>= 1) v += __shfl_xor_sync(0xffffffff, v, mask);
    return v;
}
template <const int THREADS = 256> __global__ void normalise(float* x, float* y, float g, int N, int K) {
    __shared__ float sums[THREADS / 32];
    int t = threadIdx.x, i = blockIdx.x * THREADS + t;
    float v = i < N * K ? x[i] : 0.0f;
    float sum = warp_sum<32>(v * v);
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < THREADS / 32; ++w) total += sums[w];
    if (i < N * K) y[i] = v * rsqrtf(total / (float)K + 1e-5f) * g;
}
#define LAUNCH(K) normalise<(K)><<<grid, block>>>(\\
    reinterpret_cast<float*>(x.data_ptr()), reinterpret_cast<float*>(y.data_ptr()), g, N, (K));
#define DISPATCH(N, K) \\
    dim3 block(K); dim3 grid(N); \\
    switch ((K)) { case 64: LAUNCH(64) break; case 128: LAUNCH(128) break; default: throw std::runtime_error("K"); }
void normalise_torch(torch::Tensor x, torch::Tensor y, float g) {
    CHECK_DTYPE(x, torch::kFloat32)
    CHECK_DTYPE(y, torch::kFloat32)
    const int N = x.size(0);
    const int K = x.size(1);
    DISPATCH(N, K)
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    BIND(normalise_torch)
}
"""
TURN = """\
#define theta 100.0f
#define PAIRS 4
__global__ void turn(float* x, float* out, int pairs) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[2 * i], b = x[2 * i + 1];
    float angle = (i / pairs) * (1.0f / powf(theta, (i % pairs) / (pairs * 2.0f)));
    out[2 * i] = a * cosf(angle) - b * sinf(angle);
    out[2 * i + 1] = a * sinf(angle) + b * cosf(angle);
}
void turn_rows(float* x, float* out, int rows) { turn<<<rows, PAIRS>>>(x, out, PAIRS); }
"""
RUN_TIME = """\
#define CUDA_CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s\\n", cudaGetErrorString(e)); \\
    exit(1); } } while (0)
#define STATIC_KERNEL(call) { call; }
static int warp_size = 0;
static int max_threads = 0;
extern "C" void set_device(int device) {
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaDeviceGetAttribute(&warp_size, cudaDevAttrWarpSize, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&max_threads, cudaDevAttrMaxThreadsPerBlock, device));
}
__global__ void rows_of(float* out, const float* x, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
__global__ void fill(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] += blockDim.x;
}
void row_sums(float* out, const float* x, int rows, int n, cudaStream_t stream) {
    STATIC_KERNEL((rows_of<<<rows, warp_size, 0, stream>>>(out, x, n)));
    CUDA_CHECK(cudaGetLastError());
}
void fills(float* out, int n) {
    float* zero;
    CUDA_CHECK(cudaMalloc(&zero, n * sizeof(float)));
    CUDA_CHECK(cudaMemset(zero, 0, n * sizeof(float)));
    CUDA_CHECK(cudaMemcpy(out, zero, n * sizeof(float), cudaMemcpyDeviceToDevice));
    int blocks = (n + max_threads - 1) / max_threads;
    STATIC_KERNEL((fill<<<blocks, max_threads>>>(out, n)));
    if (cudaFree(zero) != cudaSuccess) exit(1);
}
"""


def test_launchers_of_tensors_are_named_and_their_kernels_stay(case, xp):
    built = case({"rms.cu": TORCH})
    notes = [item for item in built.diagnostics if "is no header that kernels are given" in item]
    assert built.diagnostics == notes
    assert [item.split(":")[1] for item in notes] == ["1", "2"]
    (file,) = built.library.files
    assert [one.name for one in file.launchers] == ["normalise_torch"]
    module = built["rms"]
    assert module.__all__ == ["normalise"]
    x = np.random.default_rng(5).normal(size=(5, 128)).astype("f4")
    for width in (64, 128):
        given, y = xp.array(x[:, :width]), xp.full((5, width), np.nan, "f4")
        module.normalise.instantiate(width)[5, width](given, y, 1.5, 5, width)
        rms = np.sqrt((x[:, :width].astype("f8") ** 2).mean(axis=1, keepdims=True) + 1e-5)
        xp.testing.assert_allclose(y, 1.5 * x[:, :width] / rms, rtol=1e-5)
    assert [one.intent for one in module.normalise.params[:2]] == ["in", "out"]


def test_a_macro_is_a_number_and_an_input_need_not_be_const(case, xp):
    module = case({"turn.cu": TURN})["turn"]
    x = np.random.default_rng(6).normal(size=(6, 4, 2)).astype("f4")
    given, out = xp.array(x), xp.full(x.shape, np.nan, "f4")
    module.turn_rows(given, out, 6)
    angle = np.arange(6)[:, None] / 100.0 ** (np.arange(4) / 8)
    a, b = x[..., 0].astype("f8"), x[..., 1].astype("f8")
    expected = np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
    xp.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    xp.testing.assert_array_equal(given, x)


def test_a_block_size_that_is_set_at_run_time_is_never_nought(case, xp):
    built = case({"infer.cu": RUN_TIME})
    assert built.diagnostics == []
    module = built["infer"]
    x = np.random.default_rng(8).integers(-9, 9, size=(3, 100)).astype("f4")
    out = xp.full(3, np.nan, "f4")
    asked = {"warp_size": 32} if "warp_size" in module.row_sums.signature.parameters else {}
    (launch,) = module.row_sums.plan(out, xp.asarray(x), 3, 100, **asked).operations
    assert launch.block == (32, 1, 1)
    module.row_sums(out, xp.asarray(x), 3, 100, **asked)
    xp.testing.assert_array_equal(out, x.sum(axis=1))
    if asked:
        with pytest.raises(TypeError, match="warp_size"):
            module.row_sums(out, xp.asarray(x), 3, 100)


def test_checks_of_status_leave_what_they_check(case, xp):
    module = case({"infer.cu": RUN_TIME})["infer"]
    asked = {"max_threads": 64} if "max_threads" in module.fills.signature.parameters else {}
    out = xp.full(100, np.nan, "f4")
    kinds = [type(one).__name__ for one in module.fills.plan(out, 100, **asked).operations]
    assert kinds == ["Memset", "Memcpy", "Launch"]
    module.fills(out, 100, **asked)
    xp.testing.assert_array_equal(out, xp.full(100, asked.get("max_threads", 1024), "f4"))
