/*
A residual addition and the LayerNorm that follows it: residual = inp1 + inp2, normed = layernorm(residual).
What is normed is the sum as it is stored, so that all kernels agree with the two operations done one by one.

nvcc -O3 -std=c++17 fused_residual_forward.cu -o fused_residual_forward
./fused_residual_forward [kernel number]

1  two kernels, one after the other
2  one thread to a row
3  one warp to a row, element by element
4  one warp to a row, packets of 128 bits
5  as 4, row and parameters in shared memory
6  one block to a row, parameters in shared memory, blocks that stay for many rows
*/
#define ENABLE_BF16
#include <assert.h>
#include "common.h"

#define LAYERNORM_EPSILON 1e-5f

// ---------------------------------------------------------------------------------------------------------------
// reference

void residual_forward_cpu(float* out, const float* inp1, const float* inp2, int N) {
    int i;
    for (i = 0; i < N; i++)
        out[i] = inp1[i] + inp2[i];
}

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

__global__ void residual_forward_kernel1(floatX* out, const floatX* inp1, const floatX* inp2, int N) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= N) return;
    out[at] = (floatX)((float)inp1[at] + (float)inp2[at]);
}

// Mean and 1 / standard deviation of a row, found by one thread with Welford's recurrence.
__device__ inline float2 thread_statistics(const floatX* x, int C) {
    float m = 0.0f, squares = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float before = (float)x[c] - m;
        m += before / (c + 1);
        squares += before * ((float)x[c] - m);
    }
    return make_float2(m, rsqrtf(squares / C + LAYERNORM_EPSILON));
}

__global__ void layernorm_forward_kernel1(floatX* out, floatX* mean, floatX* rstd, const floatX* inp, const floatX* weight, const floatX* bias, int N, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const floatX* x = inp + (size_t)row * C;
    floatX* y = out + (size_t)row * C;
    const float2 statistics = thread_statistics(x, C);
    for (int c = 0; c < C; ++c) {
        y[c] = (floatX)(((float)x[c] - statistics.x) * statistics.y * (float)weight[c] + (float)bias[c]);
    }
    if (mean != nullptr) mean[row] = (floatX)statistics.x;
    if (rstd != nullptr) rstd[row] = (floatX)statistics.y;
}

__global__ void fused_residual_forward2(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const size_t begin = (size_t)row * C;
    for (size_t at = begin; at < begin + C; ++at) residual[at] = (floatX)((float)inp1[at] + (float)inp2[at]);
    const float2 statistics = thread_statistics(residual + begin, C);
    for (int c = 0; c < C; ++c) {
        const float n = ((float)residual[begin + c] - statistics.x) * statistics.y;
        normed[begin + c] = (floatX)(n * (float)weight[c] + (float)bias[c]);
    }
    if (mean != nullptr) mean[row] = (floatX)statistics.x;
    if (rstd != nullptr) rstd[row] = (floatX)statistics.y;
}

// blockDim = (32, rows at a time). Each lane reads back only what it wrote itself.
__global__ void fused_residual_forward3(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= N) return; // the whole warp leaves together
    const size_t begin = (size_t)row * C;

    float part = 0.0f;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) {
        const floatX total = (floatX)((float)inp1[begin + c] + (float)inp2[begin + c]);
        residual[begin + c] = total;
        part += (float)total;
    }
    const float m = warpReduceSum(part) / C;
    part = 0.0f;
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) {
        const float d = (float)residual[begin + c] - m;
        part += d * d;
    }
    const float s = rsqrtf(warpReduceSum(part) / C + LAYERNORM_EPSILON);
    for (int c = threadIdx.x; c < C; c += WARP_SIZE) {
        const float n = ((float)residual[begin + c] - m) * s;
        normed[begin + c] = (floatX)(n * (float)weight[c] + (float)bias[c]);
    }
    if (threadIdx.x == 0 && mean != nullptr) mean[row] = (floatX)m;
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = (floatX)s;
}

// ------ packets

__device__ inline x128 add_packets(const x128& a, const x128& b) {
    x128 total;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) total[i] = (floatX)((float)a[i] + (float)b[i]);
    return total;
}

// Elements that a short packet lacks are zero, so they do not count here.
__device__ inline float packet_sum(const x128& x) {
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) sum += (float)x[i];
    return sum;
}

// The sum of squared distances from m of the first left elements.
__device__ inline float packet_squares(const x128& x, float m, int left) {
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float d = (float)x[i] - m;
        sum += i < left ? d * d : 0.0f;
    }
    return sum;
}

__device__ inline x128 norm_packet(const x128& x, float m, float s, const x128& weight, const x128& bias) {
    x128 y;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) y[i] = (floatX)(((float)x[i] - m) * s * (float)weight[i] + (float)bias[i]);
    return y;
}

// blockDim = (32, rows at a time).
__global__ void fused_residual_forward_kernel4(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= N) return; // the whole warp leaves together
    const size_t begin = (size_t)row * C;
    const int first = threadIdx.x * x128::size, step = WARP_SIZE * x128::size;

    float part = 0.0f;
    for (int c = first; c < C; c += step) {
        const x128 total = add_packets(load_packet(inp1 + begin + c, C - c), load_packet(inp2 + begin + c, C - c));
        store_packet(residual + begin + c, total, C - c);
        part += packet_sum(total);
    }
    const float m = warpReduceSum(part) / C;
    part = 0.0f;
    for (int c = first; c < C; c += step) part += packet_squares(load_packet(residual + begin + c, C - c), m, C - c);
    const float s = rsqrtf(warpReduceSum(part) / C + LAYERNORM_EPSILON);
    for (int c = first; c < C; c += step) {
        const x128 w = load_packet(weight + c, C - c);
        const x128 b = load_packet(bias + c, C - c);
        store_packet(normed + begin + c, norm_packet(load_packet(residual + begin + c, C - c), m, s, w, b), C - c);
    }
    if (threadIdx.x == 0 && mean != nullptr) mean[row] = (floatX)m;
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = (floatX)s;
}

// blockDim = (32, rows at a time). Shared memory holds weight, bias and a row for each warp, in whole packets.
__global__ void fused_residual_forward_kernel5(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    extern __shared__ __align__(16) char staged[];
    assert(blockDim.x == WARP_SIZE);
    const int width = ceil_div(C, x128::size) * x128::size;
    floatX* w = (floatX*)staged;
    floatX* b = w + width;
    floatX* x = b + width + threadIdx.y * width;
    const int first = threadIdx.x * x128::size, step = WARP_SIZE * x128::size;
    for (int c = threadIdx.y * step + first; c < C; c += blockDim.y * step) {
        store128(w + c, load_packet(weight + c, C - c));
        store128(b + c, load_packet(bias + c, C - c));
    }
    __syncthreads();

    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= N) return; // the whole warp leaves together, and no barrier follows
    const size_t begin = (size_t)row * C;
    float part = 0.0f;
    for (int c = first; c < C; c += step) {
        const x128 total = add_packets(load_packet(inp1 + begin + c, C - c), load_packet(inp2 + begin + c, C - c));
        store_packet(residual + begin + c, total, C - c);
        store128(x + c, total);
        part += packet_sum(total);
    }
    const float m = warpReduceSum(part) / C;
    part = 0.0f;
    for (int c = first; c < C; c += step) part += packet_squares(load128(x + c), m, C - c);
    const float s = rsqrtf(warpReduceSum(part) / C + LAYERNORM_EPSILON);
    for (int c = first; c < C; c += step) {
        store_packet(normed + begin + c, norm_packet(load128(x + c), m, s, load128(w + c), load128(b + c)), C - c);
    }
    if (threadIdx.x == 0 && mean != nullptr) mean[row] = (floatX)m;
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = (floatX)s;
}

// The sum over a block of WARP_SIZE columns, known to all threads. Calls in succession must use different slots.
__device__ inline float sum_of_block(float part, float* slots) {
    const float of_warp = warpReduceSum(part);
    if (threadIdx.x == 0) slots[threadIdx.y] = of_warp;
    __syncthreads();
    return warpReduceSum(threadIdx.x < blockDim.y ? slots[threadIdx.x] : 0.0f);
}

// blockDim = (32, up to 32), all of it at one row at a time. Shared memory holds weight, bias and the row.
__global__ void fused_residual_forward_kernel6(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    extern __shared__ __align__(16) char staged[];
    __shared__ float sums[WARP_SIZE];
    __shared__ float squares[WARP_SIZE];
    assert(blockDim.x == WARP_SIZE);
    const int width = ceil_div(C, x128::size) * x128::size;
    floatX* w = (floatX*)staged;
    floatX* b = w + width;
    floatX* x = b + width;
    const int step = WARP_SIZE * blockDim.y * x128::size;
    const int first = (threadIdx.y * WARP_SIZE + threadIdx.x) * x128::size;
    // Each thread stages what it reads itself, so that no barrier is needed for it.
    for (int c = first; c < C; c += step) {
        store128(w + c, load_packet(weight + c, C - c));
        store128(b + c, load_packet(bias + c, C - c));
    }

    for (int row = blockIdx.x; row < N; row += gridDim.x) {
        const size_t begin = (size_t)row * C;
        float part = 0.0f;
        for (int c = first; c < C; c += step) {
            const x128 total = add_packets(load_packet(inp1 + begin + c, C - c), load_packet(inp2 + begin + c, C - c));
            store_packet(residual + begin + c, total, C - c);
            store128(x + c, total);
            part += packet_sum(total);
        }
        const float m = sum_of_block(part, sums) / C;
        part = 0.0f;
        for (int c = first; c < C; c += step) part += packet_squares(load128(x + c), m, C - c);
        const float s = rsqrtf(sum_of_block(part, squares) / C + LAYERNORM_EPSILON);
        for (int c = first; c < C; c += step) {
            store_packet(normed + begin + c, norm_packet(load128(x + c), m, s, load128(w + c), load128(b + c)), C - c);
        }
        if (threadIdx.x == 0 && threadIdx.y == 0 && mean != nullptr) mean[row] = (floatX)m;
        if (threadIdx.x == 0 && threadIdx.y == 0 && rstd != nullptr) rstd[row] = (floatX)s;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32 from kernel 3 on

void fused_residual_forward1(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    residual_forward_kernel1<<<ceil_div(N * C, block_size), block_size>>>(residual, inp1, inp2, N * C);
    cudaCheck(cudaGetLastError());
    layernorm_forward_kernel1<<<ceil_div(N, block_size), block_size>>>(normed, mean, rstd, residual, weight, bias, N, C);
    cudaCheck(cudaGetLastError());
}

void fused_residual_forward2(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    const int blocks = ceil_div(N, block_size);
    fused_residual_forward2<<<blocks, block_size>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
    cudaCheck(cudaGetLastError());
}

void fused_residual_forward3(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int rows_per_block = block_size / 32;
    fused_residual_forward3<<<ceil_div(N, rows_per_block), dim3(32, rows_per_block)>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
    cudaCheck(cudaGetLastError());
}

void fused_residual_forward4(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int rows_per_block = block_size / 32;
    fused_residual_forward_kernel4<<<ceil_div(N, rows_per_block), dim3(32, rows_per_block)>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
    cudaCheck(cudaGetLastError());
}

void fused_residual_forward5(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int rows_per_block = block_size / 32;
    const int smem = (2 + rows_per_block) * ceil_div(C, x128::size) * 16;
    const cudaError_t granted = cudaFuncSetAttribute(fused_residual_forward_kernel5, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        fused_residual_forward_kernel5<<<ceil_div(N, rows_per_block), dim3(32, rows_per_block), smem>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
        cudaCheck(cudaGetLastError());
    } else {
        cudaGetLastError(); // the refusal is dealt with: the rows are too wide for shared memory
        fused_residual_forward4(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size);
    }
}

void fused_residual_forward6(floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    assert(block_size % 32 == 0);
    const int smem = 3 * ceil_div(C, x128::size) * 16;
    const cudaError_t granted = cudaFuncSetAttribute(fused_residual_forward_kernel6, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        const int blocks = cuda_num_SMs * ceil_div(cuda_threads_per_SM, block_size);
        fused_residual_forward_kernel6<<<blocks, dim3(32, block_size / 32), smem>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
        cudaCheck(cudaGetLastError());
    } else {
        cudaGetLastError(); // the refusal is dealt with: the rows are too wide for shared memory
        fused_residual_forward4(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size);
    }
}

void fused_residual_forward(int kernel_num, floatX* residual, floatX* normed, floatX* mean, floatX* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, const int block_size) {
    switch (kernel_num) {
        case 1: fused_residual_forward1(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        case 2: fused_residual_forward2(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        case 3: fused_residual_forward3(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        case 4: fused_residual_forward4(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        case 5: fused_residual_forward5(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        case 6: fused_residual_forward6(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with all block sizes against the reference.
static void check_shape(int kernel_num, int N, int C) {
    const size_t count = (size_t)N * C;
    float* inp1 = make_random_float(count);
    float* inp2 = make_random_float(count);
    float* weight = make_random_float(C);
    float* bias = make_random_float(C);
    float* wanted_residual = make_zeros_float(count);
    float* wanted_normed = make_zeros_float(count);
    float* wanted_mean = make_zeros_float(N);
    float* wanted_rstd = make_zeros_float(N);
    for (size_t i = 0; i < count; ++i) {
        inp1[i] = (float)(floatX)inp1[i];
        inp2[i] = (float)(floatX)(inp2[i] + 0.5f);
    }
    residual_forward_cpu(wanted_residual, inp1, inp2, N * C);
    // The kernels norm what they stored, so the reference does too.
    float* stored = make_zeros_float(count);
    for (size_t i = 0; i < count; ++i) stored[i] = (float)(floatX)wanted_residual[i];
    layernorm_forward_cpu(wanted_normed, wanted_mean, wanted_rstd, stored, weight, bias, N, 1, C);

    floatX* d_inp1 = make_device_array<floatX>(count, inp1);
    floatX* d_inp2 = make_device_array<floatX>(count, inp2);
    floatX* d_weight = make_device_array<floatX>(C, weight);
    floatX* d_bias = make_device_array<floatX>(C, bias);
    floatX* d_residual = make_device_array<floatX>(count);
    floatX* d_normed = make_device_array<floatX>(count);
    floatX* d_mean = make_device_array<floatX>(N);
    floatX* d_rstd = make_device_array<floatX>(N);

    printf("N=%d C=%d\n", N, C);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        cudaCheck(cudaMemset(d_residual, 0xff, count * sizeof(floatX)));
        cudaCheck(cudaMemset(d_normed, 0xff, count * sizeof(floatX)));
        fused_residual_forward(kernel_num, d_residual, d_normed, d_mean, d_rstd, d_inp1, d_inp2, d_weight, d_bias, N, C, block_size);
        validate_result(d_residual, wanted_residual, "residual", count, 1e-6f);
        // Weight and bias are rounded, which shows in the result as a part of its terms rather than of itself.
        validate_result(d_normed, wanted_normed, "normed", count, sizeof(floatX) == 4 ? 2e-5f : 3e-2f);
        validate_result(d_mean, wanted_mean, "mean", N, 1e-5f);
        validate_result(d_rstd, wanted_rstd, "rstd", N, 1e-5f);
    }
    if (C > 256) {
        for (int block_size : {32, 64, 128, 256, 512, 1024}) {
            const float ms = benchmark_kernel(100, fused_residual_forward, kernel_num, d_residual, d_normed, d_mean, d_rstd, d_inp1, d_inp2, d_weight, d_bias, N, C, block_size);
            printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 4.0 * count * sizeof(floatX) / ms * 1e-6);
        }
    }

    for (floatX* array : {d_inp1, d_inp2, d_weight, d_bias, d_residual, d_normed, d_mean, d_rstd}) cudaCheck(cudaFree(array));
    for (float* array : {inp1, inp2, weight, bias, wanted_residual, wanted_normed, wanted_mean, wanted_rstd, stored}) free(array);
}

int main(int argc, const char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 5;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 37, 67); // rows that begin anywhere
    check_shape(kernel_num, 8192, 768);
    return 0;
}
