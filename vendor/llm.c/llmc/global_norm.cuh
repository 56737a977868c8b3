/*
The squared norm of all gradients, by which they are clipped.

Every block leaves its part of the sum in a place of its own, and the parts are added up at the end: no atomics, so the
result has the same bits in every run. Several tensors may add to the same places, one launch after the other.
*/
#ifndef GLOBAL_NORM_CUH
#define GLOBAL_NORM_CUH

#include <assert.h>
#include <stddef.h>
#include <algorithm>
#include "cuda_common.h"
#include "cuda_utils.cuh"

#define GLOBAL_NORM_THREADS 512

// The part of data's squared norm that falls to a block, the blocks along x sharing the work; all its threads get it.
template<class T>
__device__ float global_norm_squared_for_range(const T* data, size_t count) {
    const size_t width = Packed128<T>::size;
    const size_t step = width * gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (size_t begin = width * ((size_t)blockIdx.x * blockDim.x + threadIdx.x); begin < count; begin += step) {
        const int left = count - begin < width ? (int)(count - begin) : (int)width;
        const Packed128<T> packet = load_packet(data + begin, left);
        // What is beyond the end has come as zero.
        #pragma unroll
        for (int i = 0; i < Packed128<T>::size; ++i) sum = fmaf((float)packet[i], (float)packet[i], sum);
    }
    return blockReduce<warpReduceSum>(sum);
}

// Slice blockIdx.y begins stride elements after the one before it. Block (x, y) adds to out[y * gridDim.x + x].
template<class T>
__global__ void global_norm_squared_kernel(float* out, const T* data, size_t count, ptrdiff_t stride) {
    const float part = global_norm_squared_for_range(data + (ptrdiff_t)blockIdx.y * stride, count);
    if (threadIdx.x == 0) out[(size_t)blockIdx.y * gridDim.x + blockIdx.x] += part;
}

// For one block: out[0] becomes the sum of out[0], ..., out[grid_size - 1].
__global__ void global_norm_aggregate_kernel(float* out, size_t grid_size) {
    float mine = 0.0f;
    for (size_t i = threadIdx.x; i < grid_size; i += blockDim.x) mine += out[i];
    const float sum = blockReduce<warpReduceSum>(mine);
    if (threadIdx.x == 0) out[0] = sum;
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Blocks for each slice, so that all of them together fill the device once.
inline int global_norm_blocks_per_slice(int num_slices) {
    return CEIL_DIV(deviceProp.multiProcessorCount * (deviceProp.maxThreadsPerMultiProcessor / GLOBAL_NORM_THREADS), num_slices);
}

// How many floats the parts of any of numel tensors need, tensor i having num_slices_all[i] slices.
int get_max_num_block_sums(int* num_slices_all, int numel) {
    int most = 0;
    for (int* slices = num_slices_all; slices < num_slices_all + numel; ++slices) {
        most = std::max(most, *slices * global_norm_blocks_per_slice(*slices));
    }
    return most;
}

// Adds the squares of num_slices slices of count values to the max_num_block_sums places of out, which are set to zero
// before if reset is set. The sum of all places is then the squared norm.
template<typename T>
void global_norm_squared(float* out, const T* values, size_t count, ptrdiff_t stride, int num_slices, int max_num_block_sums, bool reset, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int blocks = global_norm_blocks_per_slice(num_slices);
    assert(blocks * num_slices <= max_num_block_sums);
    if (reset) cudaCheck(cudaMemsetAsync(out, 0, max_num_block_sums * sizeof(float), stream));
    global_norm_squared_kernel<<<dim3(blocks, num_slices), GLOBAL_NORM_THREADS, 0, stream>>>(out, values, count, stride);
    cudaCheck(cudaGetLastError());
}

#endif // GLOBAL_NORM_CUH
