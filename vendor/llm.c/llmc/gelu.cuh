/*
GeLU, the tanh approximation: y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3).

Since (1 + tanh(u)) / 2 is the logistic function of 2u, the kernels compute y = x s with s = 1 / (1 + exp(-2u)): one
exponential and one division, and no cancellation where x is very negative.
*/
#ifndef GELU_CUH
#define GELU_CUH

#include <assert.h>
#include "cuda_common.h"
#include "cuda_utils.cuh"

// sqrt(2/pi)
#define GELU_SCALING_FACTOR 0.7978845608028654f
#define GELU_CUBIC_FACTOR 0.044715f
// -2 sqrt(2/pi) log2(e): the exponential is taken to base 2, which is what the hardware has
#define GELU_EXPONENT_FACTOR (-2.0f * GELU_SCALING_FACTOR * 1.4426950408889634f)

// The share s(x) of x that GeLU lets through, from 0 to 1.
__device__ inline float gelu_gate(float x) {
    const float e = exp2f(GELU_EXPONENT_FACTOR * x * (1.0f + GELU_CUBIC_FACTOR * x * x));
    return __fdividef(1.0f, 1.0f + e);
}

// dy/dx = s + x s (1 - s) 2 du/dx
__device__ inline float gelu_slope(float x) {
    // From 12 on the slope is 1, from -12 down it is 0, and x^3 stays far from overflow. Not-a-number passes.
    const float t = fabsf(x) > 12.0f ? copysignf(12.0f, x) : x;
    const float s = gelu_gate(t);
    const float du = GELU_SCALING_FACTOR * (1.0f + 3.0f * GELU_CUBIC_FACTOR * t * t);
    return s + 2.0f * du * t * (s - s * s);
}

// Each thread takes one packet; the grid covers the array exactly.
__global__ void gelu_forward_kernel2(floatX* out, const floatX* inp) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    x128 packet = load128cs(inp + first);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float x = (float)packet[i];
        packet[i] = (floatX)(x * gelu_gate(x));
    }
    // The next layer reads this at once, so it may stay in the cache.
    store128(out + first, packet);
}

// d_in_out holds dL/dy before and dL/dx after.
__global__ void gelu_backward_inplace_kernel(floatX* d_in_out, const floatX* inp) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    const x128 x = load128cs(inp + first);
    x128 gradient = load128(d_in_out + first);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        gradient[i] = (floatX)((float)gradient[i] * gelu_slope((float)x[i]));
    }
    store128(d_in_out + first, gradient);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// out = gelu(inp), N elements
void gelu_forward(floatX* out, const floatX* inp, int N, cudaStream_t stream) {
    const int block_size = 512;
    NVTX_RANGE_FN();
    assert(N % (block_size * x128::size) == 0);
    const int blocks = N / (block_size * x128::size);
    gelu_forward_kernel2<<<blocks, block_size, 0, stream>>>(out, inp);
    cudaCheck(cudaGetLastError());
}

// d_in_out *= gelu'(inp), N elements
void gelu_backward_inplace(floatX* d_in_out, const floatX* inp, const int N, cudaStream_t stream) {
    const int block_size = 256;
    NVTX_RANGE_FN();
    assert(N % (block_size * x128::size) == 0);
    const int blocks = N / (block_size * x128::size);
    gelu_backward_inplace_kernel<<<blocks, block_size, 0, stream>>>(d_in_out, inp);
    cudaCheck(cudaGetLastError());
}

#endif // GELU_CUH
