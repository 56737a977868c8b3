/*
LayerNorm, forward: y = (x - mean) rstd weight + bias for each row x of C elements, rstd = 1 / sqrt(var + 1e-5).

nvcc -O3 -std=c++17 layernorm_forward.cu -o layernorm_forward
./layernorm_forward [kernel number]

1  one thread to a row
2  three kernels: means, standard deviations, and the rest
3  one warp to a row, cooperative groups, two passes for the statistics
4  as 3, one pass for the statistics
5  one block to a row
6  one warp to a row, packets of 128 bits, row and parameters in shared memory
*/
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

#define LAYERNORM_EPSILON 1e-5f

// ---------------------------------------------------------------------------------------------------------------
// reference

void layernorm_forward_cpu(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C) {
    int row, c;
    for (row = 0; row < B * T; row++) {
        const float* x = inp + (size_t)row * C;
        float* y = out + (size_t)row * C;
        float total = 0.0f;
        float squares = 0.0f;
        float center, scale;
        for (c = 0; c < C; c++) total += x[c];
        center = total / C;
        for (c = 0; c < C; c++) squares += (x[c] - center) * (x[c] - center);
        scale = 1.0f / sqrtf(squares / C + 1e-5f);
        for (c = 0; c < C; c++) y[c] = (x[c] - center) * scale * weight[c] + bias[c];
        mean[row] = center;
        rstd[row] = scale;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// Welford's recurrence finds mean and variance in one pass without cancellation.
__global__ void layernorm_forward_kernel1(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int N, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float* y = out + (size_t)row * C;
    float m = 0.0f, squares = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float before = x[c] - m;
        m += before / (c + 1);
        squares += before * (x[c] - m);
    }
    const float s = rsqrtf(squares / C + LAYERNORM_EPSILON);
    for (int c = 0; c < C; ++c) y[c] = (x[c] - m) * s * weight[c] + bias[c];
    if (mean != nullptr) mean[row] = m;
    if (rstd != nullptr) rstd[row] = s;
}

// Folds values[0..count) of shared memory onto values[0], the upper half on the lower; count need not be a power of two.
__device__ inline void fold_shared(float* values, int count) {
    for (int alive = count; alive > 1;) {
        const int kept = (alive + 1) / 2;
        __syncthreads();
        if ((int)threadIdx.x < alive - kept) values[threadIdx.x] += values[threadIdx.x + kept];
        alive = kept;
    }
    __syncthreads();
}

// One block to a row, as many floats of shared memory as threads.
__global__ void mean_kernel(float* mean, const float* inp, int N, int C, int block_size) {
    extern __shared__ __align__(16) float folded[];
    const int row = blockIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float mine = 0.0f;
    for (int c = threadIdx.x; c < C; c += block_size) mine += x[c];
    folded[threadIdx.x] = mine;
    fold_shared(folded, block_size);
    if (threadIdx.x == 0) mean[row] = folded[0] / C;
}

__global__ void rstd_kernel(float* rstd, const float* inp, const float* mean, int N, int C, int block_size) {
    extern __shared__ __align__(16) float folded[];
    const int row = blockIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    const float m = mean[row];
    float mine = 0.0f;
    for (int c = threadIdx.x; c < C; c += block_size) mine += (x[c] - m) * (x[c] - m);
    folded[threadIdx.x] = mine;
    fold_shared(folded, block_size);
    if (threadIdx.x == 0) rstd[row] = rsqrtf(folded[0] / C + LAYERNORM_EPSILON);
}

// One thread to an element.
__global__ void normalization_kernel(float* out, const float* inp, float* mean, float* rstd, const float* weight, const float* bias, int B, int T, int C) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * T * C) return;
    const size_t row = at / C;
    const int c = (int)(at - row * C);
    out[at] = (inp[at] - mean[row]) * rstd[row] * weight[c] + bias[c];
}

__global__ void layernorm_forward_kernel3(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const float* __restrict__ inp, const float* __restrict__ weight, const float* __restrict__ bias, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) return; // the whole warp leaves together
    const int lane = warp.thread_rank();
    const float* x = inp + (size_t)row * C;
    float* y = out + (size_t)row * C;

    float part = 0.0f;
    for (int c = lane; c < C; c += 32) part += x[c];
    const float m = cg::reduce(warp, part, cg::plus<float>{}) / C;
    part = 0.0f;
    for (int c = lane; c < C; c += 32) part += (x[c] - m) * (x[c] - m);
    const float s = rsqrtf(cg::reduce(warp, part, cg::plus<float>{}) / C + LAYERNORM_EPSILON);

    // The row is not read again soon, the parameters are.
    for (int c = lane; c < C; c += 32) __stcs(y + c, (__ldcs(x + c) - m) * s * weight[c] + bias[c]);
    if (lane == 0 && mean != nullptr) __stcs(mean + row, m);
    if (lane == 0 && rstd != nullptr) __stcs(rstd + row, s);
}

// E[(x - a)^2] - E[x - a]^2 is the variance for any a. With an element of the row as a, the two terms are of the
// variance's own size, so that little is lost where the mean is large.
__global__ void layernorm_forward_kernel4(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const float* __restrict__ inp, const float* __restrict__ weight, const float* __restrict__ bias, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) return; // the whole warp leaves together
    const int lane = warp.thread_rank();
    const float* x = inp + (size_t)row * C;
    float* y = out + (size_t)row * C;

    const float a = x[0];
    float first = 0.0f, second = 0.0f;
    for (int c = lane; c < C; c += 32) {
        const float d = x[c] - a;
        first += d;
        second += d * d;
    }
    first = cg::reduce(warp, first, cg::plus<float>{}) / C;
    second = cg::reduce(warp, second, cg::plus<float>{}) / C;
    const float m = a + first;
    const float s = rsqrtf(fmaxf(second - first * first, 0.0f) + LAYERNORM_EPSILON);

    for (int c = lane; c < C; c += 32) __stcs(y + c, (__ldcs(x + c) - m) * s * weight[c] + bias[c]);
    if (lane == 0 && mean != nullptr) __stcs(mean + row, m);
    if (lane == 0 && rstd != nullptr) __stcs(rstd + row, s);
}

// One block of whole warps to a row.
__global__ void layernorm_forward_kernel5(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const float* __restrict__ inp, const float* __restrict__ weight, const float* __restrict__ bias, int N, int C) {
    const int row = blockIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float* y = out + (size_t)row * C;

    float part = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) part += x[c];
    const float m = blockReduce<warpReduceSum>(part, true, 0.0f) / C;
    part = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) part += (x[c] - m) * (x[c] - m);
    const float s = rsqrtf(blockReduce<warpReduceSum>(part) / C + LAYERNORM_EPSILON);

    for (int c = threadIdx.x; c < C; c += blockDim.x) y[c] = (x[c] - m) * s * weight[c] + bias[c];
    if (threadIdx.x == 0 && mean != nullptr) mean[row] = m;
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = s;
}

// blockDim = (32, rows at a time). Shared memory holds weight, bias and one row for each warp, each rounded up to whole
// packets of four floats.
__global__ void layernorm_forward_kernel6(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const float* __restrict__ inp, const float* __restrict__ weight, const float* __restrict__ bias, int N, int C) {
    extern __shared__ __align__(16) float staged[];
    assert(blockDim.x == WARP_SIZE);
    const int width = ceil_div(C, f128::size) * f128::size;
    float* w = staged;
    float* b = staged + width;
    float* x = staged + (2 + threadIdx.y) * width;
    const int threads = WARP_SIZE * blockDim.y;
    for (int c = (threadIdx.y * WARP_SIZE + threadIdx.x) * f128::size; c < C; c += threads * f128::size) {
        store128(w + c, load_packet(weight + c, C - c));
        store128(b + c, load_packet(bias + c, C - c));
    }
    __syncthreads();

    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= N) return; // the whole warp leaves together, and no barrier follows
    const size_t begin = (size_t)row * C;
    float part = 0.0f;
    for (int c = threadIdx.x * f128::size; c < C; c += WARP_SIZE * f128::size) {
        const f128 packet = load_packet(inp + begin + c, C - c);
        store128(x + c, packet);
        for (int i = 0; i < f128::size; ++i) part += packet[i];
    }
    const float m = warpReduceSum(part) / C;
    part = 0.0f;
    for (int c = threadIdx.x * f128::size; c < C; c += WARP_SIZE * f128::size) {
        const f128 packet = load128(x + c);
        for (int i = 0; i < f128::size; ++i) part += c + i < C ? (packet[i] - m) * (packet[i] - m) : 0.0f;
    }
    const float s = rsqrtf(warpReduceSum(part) / C + LAYERNORM_EPSILON);

    for (int c = threadIdx.x * f128::size; c < C; c += WARP_SIZE * f128::size) {
        const f128 scale = load128(w + c);
        const f128 shift = load128(b + c);
        f128 packet = load128(x + c);
        for (int i = 0; i < f128::size; ++i) packet[i] = (packet[i] - m) * s * scale[i] + shift[i];
        store_packet(out + begin + c, packet, C - c);
    }
    if (threadIdx.x == 0 && mean != nullptr) mean[row] = m;
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = s;
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32 from kernel 3 on

void layernorm_forward1(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    const int blocks = ceil_div(B * T, block_size);
    layernorm_forward_kernel1<<<blocks, block_size>>>(out, mean, rstd, inp, weight, bias, B * T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_forward2(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    const int rows = B * T;
    const int smem = block_size * (int)sizeof(float);
    mean_kernel<<<rows, block_size, smem>>>(mean, inp, rows, C, block_size);
    cudaCheck(cudaGetLastError());
    rstd_kernel<<<rows, block_size, smem>>>(rstd, inp, mean, rows, C, block_size);
    cudaCheck(cudaGetLastError());
    normalization_kernel<<<ceil_div(rows * C, 256), 256>>>(out, inp, mean, rstd, weight, bias, B, T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_forward3(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int blocks = ceil_div(B * T, block_size / 32);
    layernorm_forward_kernel3<<<blocks, block_size>>>(out, mean, rstd, inp, weight, bias, B * T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_forward4(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int blocks = ceil_div(B * T, block_size / 32);
    layernorm_forward_kernel4<<<blocks, block_size>>>(out, mean, rstd, inp, weight, bias, B * T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_forward5(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    assert(block_size % 32 == 0);
    layernorm_forward_kernel5<<<B * T, block_size>>>(out, mean, rstd, inp, weight, bias, B * T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_forward6(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int rows_per_block = block_size / 32;
    const int smem = (2 + rows_per_block) * ceil_div(C, f128::size) * 16;
    const cudaError_t granted = cudaFuncSetAttribute(layernorm_forward_kernel6, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        const int blocks = ceil_div(B * T, rows_per_block);
        layernorm_forward_kernel6<<<blocks, dim3(32, rows_per_block), smem>>>(out, mean, rstd, inp, weight, bias, B * T, C);
        cudaCheck(cudaGetLastError());
    } else {
        cudaGetLastError(); // the refusal is dealt with: the rows are too wide for shared memory
        layernorm_forward3(out, mean, rstd, inp, weight, bias, B, T, C, block_size);
    }
}

void layernorm_forward(int kernel_num, float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C, const int block_size) {
    switch (kernel_num) {
        case 1: layernorm_forward1(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        case 2: layernorm_forward2(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        case 3: layernorm_forward3(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        case 4: layernorm_forward4(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        case 5: layernorm_forward5(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        case 6: layernorm_forward6(out, mean, rstd, inp, weight, bias, B, T, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with all block sizes against the reference.
static void check_shape(int kernel_num, int B, int T, int C) {
    const int N = B * T;
    float* inp = make_random_float((size_t)N * C);
    for (int i = 0; i < N * C; ++i) inp[i] = 3.0f + 2.0f * inp[i];
    float* weight = make_random_float(C);
    float* bias = make_random_float(C);
    float* wanted = make_zeros_float((size_t)N * C);
    float* wanted_mean = make_zeros_float(N);
    float* wanted_rstd = make_zeros_float(N);
    layernorm_forward_cpu(wanted, wanted_mean, wanted_rstd, inp, weight, bias, B, T, C);
    float* d_inp = make_device_array<float>((size_t)N * C, inp);
    float* d_weight = make_device_array<float>(C, weight);
    float* d_bias = make_device_array<float>(C, bias);
    float* d_out = make_device_array<float>((size_t)N * C);
    float* d_mean = make_device_array<float>(N);
    float* d_rstd = make_device_array<float>(N);

    printf("B=%d T=%d C=%d\n", B, T, C);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        cudaCheck(cudaMemset(d_out, 0xff, (size_t)N * C * sizeof(float)));
        layernorm_forward(kernel_num, d_out, d_mean, d_rstd, d_inp, d_weight, d_bias, B, T, C, block_size);
        validate_result(d_out, wanted, "out", (size_t)N * C, 2e-5f);
        validate_result(d_mean, wanted_mean, "mean", N, 1e-5f);
        validate_result(d_rstd, wanted_rstd, "rstd", N, 1e-5f);
    }
    if (C > 256) {
        for (int block_size : {32, 64, 128, 256, 512, 1024}) {
            const float ms = benchmark_kernel(100, layernorm_forward, kernel_num, d_out, d_mean, d_rstd, d_inp, d_weight, d_bias, B, T, C, block_size);
            printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 2.0 * N * C * sizeof(float) / ms * 1e-6);
        }
    }

    for (float* array : {d_inp, d_weight, d_bias, d_out, d_mean, d_rstd}) cudaCheck(cudaFree(array));
    for (float* array : {inp, weight, bias, wanted, wanted_mean, wanted_rstd}) free(array);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 6;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 1, 37, 67); // rows that begin anywhere
    check_shape(kernel_num, 8, 1024, 768);
    return 0;
}
