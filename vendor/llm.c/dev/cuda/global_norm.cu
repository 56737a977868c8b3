/*
The sum of the squares of all gradients, from which the norm follows that gradients are clipped by.

nvcc -O3 -std=c++17 global_norm.cu -o global_norm
./global_norm [kernel number]

1  sums of warps to shared memory, the first warp adds them up, one atomic for each block
2  one atomic for each warp, no shared memory
3  as 1, by blockReduce, with as many blocks as the device holds at a time
4  sums of blocks to memory, a second kernel adds them up: same bits in every run on the same device

Kernels 1 to 3 add to *out, which the caller sets to zero. Kernel 4 writes one float for each block to out, so out must
have room for 1024, and the result is the first of them.
*/
#define ENABLE_BF16
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

// As many sums as global_norm_aggregate_kernel takes: one to a thread.
#define MAX_PARTIAL_SUMS 1024

// ---------------------------------------------------------------------------------------------------------------
// reference

float global_norm_cpu(const float* data, size_t count) {
    size_t i;
    double squares = 0.0;
    for (i = 0; i < count; i++) squares += (double)data[i] * data[i];
    return (float)squares;
}

// ---------------------------------------------------------------------------------------------------------------
// kernels; whole warps, any number of blocks

// What a thread has to give to the sum: elements that lie a whole grid apart.
template<class T>
__device__ inline float sum_of_squares(const T* data, size_t count) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    float mine = 0.0f;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        const float x = (float)data[i];
        mine = fmaf(x, x, mine);
    }
    return mine;
}

template<class T>
__global__ void norm_kernel1(float* out, const T* data, size_t count) {
    __shared__ float of_warps[WARP_SIZE];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const float of_warp = cg::reduce(warp, sum_of_squares(data, count), cg::plus<float>{});
    if (warp.thread_rank() == 0) of_warps[warp.meta_group_rank()] = of_warp;
    block.sync();
    if (warp.meta_group_rank() > 0) return; // the whole warp leaves together, and no barrier follows
    const float given = warp.thread_rank() < warp.meta_group_size() ? of_warps[warp.thread_rank()] : 0.0f;
    const float of_block = cg::reduce(warp, given, cg::plus<float>{});
    if (warp.thread_rank() == 0) atomicAdd(out, of_block);
}

template<class T>
__global__ void norm_kernel2(float* out, const T* data, size_t count) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const float of_warp = cg::reduce(warp, sum_of_squares(data, count), cg::plus<float>{});
    if (warp.thread_rank() == 0) atomicAdd(out, of_warp);
}

template<class T>
__global__ void norm_kernel3(float* out, const T* data, size_t count) {
    const float of_block = blockReduce<warpReduceSum>(sum_of_squares(data, count));
    if (threadIdx.x == 0) atomicAdd(out, of_block);
}

template<class T>
__global__ void norm_kernel4(float* out, const T* data, size_t count) {
    const float of_block = blockReduce<warpReduceSum>(sum_of_squares(data, count));
    if (threadIdx.x == 0) out[blockIdx.x] = of_block;
}

// One block: out[0] becomes the sum of count values of out. Every value is read before the barrier in blockReduce, out[0]
// is written behind it.
__global__ void global_norm_aggregate_kernel(float* out, size_t count) {
    float mine = 0.0f;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) mine += out[i];
    const float total = blockReduce<warpReduceSum>(mine);
    if (threadIdx.x == 0) *out = total;
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32

template<typename T> void global_norm1(float* out, const T* values, size_t count, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks = cuda_num_SMs * cuda_threads_per_SM / block_size;
    norm_kernel1<<<blocks, block_size>>>(out, values, count);
    cudaCheck(cudaGetLastError());
}

template<typename T> void global_norm2(float* out, const T* values, size_t count, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks = cuda_num_SMs * cuda_threads_per_SM / block_size;
    norm_kernel2<T><<<blocks, block_size>>>(out, values, count);
    cudaCheck(cudaGetLastError());
}

template<typename T> void global_norm3(float* out, const T* values, size_t count, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    int resident = 0;
    cudaCheck(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, norm_kernel3<T>, block_size, 0));
    const int blocks = resident * cuda_num_SMs;
    norm_kernel3<T><<<blocks, block_size>>>(out, values, count);
    cudaCheck(cudaGetLastError());
}

template<typename T> void global_norm4(float* out, const T* values, size_t count, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    // Small blocks must stay longer, since there may not be more of them than the second kernel takes.
    const int blocks = min(MAX_PARTIAL_SUMS, cuda_num_SMs * cuda_threads_per_SM / block_size);
    norm_kernel4<<<blocks, block_size>>>(out, values, count);
    cudaCheck(cudaGetLastError());
    global_norm_aggregate_kernel<<<1, MAX_PARTIAL_SUMS>>>(out, blocks);
    cudaCheck(cudaGetLastError());
}
static_assert(MAX_PARTIAL_SUMS % WARP_SIZE == 0, "the second kernel runs in whole warps");

void global_norm(int kernel_num, float* out, const floatX* values, size_t count, int block_size) {
    switch (kernel_num) {
        case 1: global_norm1(out, values, count, block_size); break;
        case 2: global_norm2(out, values, count, block_size); break;
        case 3: global_norm3(out, values, count, block_size); break;
        case 4: global_norm4(out, values, count, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, const char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 4;
    printf("kernel %d\n", kernel_num);
    const size_t counts[] = {1, 1000003, 768 * 768 * 64};
    for (size_t count : counts) {
        printf("%zu elements\n", count);
        float* values = make_random_float(count);
        for (size_t i = 0; i < count; ++i) values[i] = (float)(floatX)values[i];
        float wanted = global_norm_cpu(values, count);
        floatX* d_values = make_device_array<floatX>(count, values);
        float* d_out = make_device_array<float>(MAX_PARTIAL_SUMS);
        for (int block_size : {32, 64, 128, 256, 512, 1024}) {
            cudaCheck(cudaMemset(d_out, 0, sizeof(float)));
            global_norm(kernel_num, d_out, d_values, count, block_size);
            validate_result(d_out, &wanted, "sum", 1, 1e-5f * wanted);
            const float ms = benchmark_kernel(100, global_norm, kernel_num, d_out, d_values, count, block_size);
            printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, count * sizeof(floatX) / ms * 1e-6);
        }
        cudaCheck(cudaFree(d_values));
        cudaCheck(cudaFree(d_out));
        free(values);
    }
    return 0;
}
