/*
AdamW: Adam with weight decay that does not pass through the moments.

With g the gradient times grad_scale, for every parameter p:
    m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2,
    p <- p - learning_rate (m' / (sqrt(v') + eps) + weight_decay p) with m' = m / (1 - beta1^t), v' = v / (1 - beta2^t).

Parameters of 16 bits would lose small steps, so a copy in float (the master) may be kept: it takes the steps, and the
parameters are rounded from it, up or down at random so that the mean is right.

A tensor may come in slices that lie some way apart, one for each blockIdx.y: the strides, in elements, are those of
weights (w), gradients (g) and optimizer state (s: the moments and the master).
*/
#ifndef ADAMW_CUH
#define ADAMW_CUH

#include <math.h>
#include <stddef.h>
#include "cuda_common.h"
#include "cuda_utils.cuh"

// The point that lies weight of the way from start to end. Neither term is a difference of the two, so that what is small
// beside the other keeps its digits, as a second moment does beside one large squared gradient.
__device__ inline float lerp(float start, float end, float weight) {
    return fmaf(weight, end, (1.0f - weight) * start);
}

// One step of num_parameters parameters, shared out among the threads of all blocks along x.
template<typename Tp, typename Tg>
__device__ void adamw_update(Tp* params_memory, float* master_params_memory, Tg* grads_memory, float* m_memory, float* v_memory, size_t num_parameters, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay, float grad_scale, unsigned int seed) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < num_parameters; i += threads) {
        const float gradient = grad_scale * (float)grads_memory[i];
        const float momentum = lerp(gradient, m_memory[i], beta1);
        const float variance = lerp(gradient * gradient, v_memory[i], beta2);
        const float before = master_params_memory == nullptr ? (float)params_memory[i] : master_params_memory[i];
        const float direction = momentum / beta1_correction / (sqrtf(variance / beta2_correction) + eps);
        const float after = before - learning_rate * (direction + weight_decay * before);
        m_memory[i] = momentum;
        v_memory[i] = variance;
        if (master_params_memory != nullptr) master_params_memory[i] = after;
        stochastic_rounding(after, params_memory + i, seed + (unsigned int)(i / threads));
    }
}

template<typename Tp, typename Tg>
__global__ void adamw_kernel3(Tp* params_memory, float* master_params_memory, Tg* grads_memory, float* m_memory, float* v_memory, size_t num_parameters, ptrdiff_t w_stride, ptrdiff_t g_stride, ptrdiff_t s_stride, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay, float grad_scale, unsigned int seed) {
    const ptrdiff_t slice = blockIdx.y;
    float* const master = master_params_memory == nullptr ? nullptr : master_params_memory + slice * s_stride;
    adamw_update(params_memory + slice * w_stride, master, grads_memory + slice * g_stride, m_memory + slice * s_stride, v_memory + slice * s_stride,
                 num_parameters, learning_rate, beta1, beta2, beta1_correction, beta2_correction, eps, weight_decay, grad_scale, seed);
}

// Rounds the parameters from their master.
template<typename Tp>
__global__ void init_from_master_kernel(Tp* params_memory, float* master_params_memory, size_t num_parameters, ptrdiff_t w_stride, ptrdiff_t s_stride, unsigned int seed) {
    Tp* const rounded = params_memory + (ptrdiff_t)blockIdx.y * w_stride;
    const float* const master = master_params_memory + (ptrdiff_t)blockIdx.y * s_stride;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < num_parameters; i += threads) {
        stochastic_rounding(master[i], rounded + i, seed + (unsigned int)(i / threads));
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Step number t, from 1 on, of num_slices slices of num_parameters each. master_params_memory may be null.
template<typename Tp, typename Tg>
void adamw_update(Tp* params_memory, float* master_params_memory, Tg* grads_memory, float* m_memory, float* v_memory, size_t num_parameters, ptrdiff_t w_stride, ptrdiff_t g_stride, ptrdiff_t s_stride, int num_slices, float learning_rate, float beta1, float beta2, int t, float eps, float weight_decay, float grad_scale, unsigned int seed, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int threads = 256;
    const dim3 grid((unsigned int)CEIL_DIV(num_parameters, threads), num_slices);
    // The moments start at zero; after t steps they hold only this share of what they average.
    const float beta1_correction = 1.0f - powf(beta1, (float)t);
    const float beta2_correction = 1.0f - powf(beta2, (float)t);
    adamw_kernel3<<<grid, threads, 0, stream>>>(params_memory, master_params_memory, grads_memory, m_memory, v_memory, num_parameters,
                                                w_stride, g_stride, s_stride, learning_rate, beta1, beta2, beta1_correction, beta2_correction,
                                                eps, weight_decay, grad_scale, seed);
    cudaCheck(cudaGetLastError());
}

// Fills num_slices slices of parameters from their master.
template<typename Tp>
void init_from_master(Tp* params_memory, float* master_params_memory, size_t num_parameters, ptrdiff_t w_stride, ptrdiff_t s_stride, int num_slices, unsigned int seed, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int threads = 256;
    const dim3 grid((unsigned int)CEIL_DIV(num_parameters, threads), num_slices);
    init_from_master_kernel<<<grid, threads, 0, stream>>>(params_memory, master_params_memory, num_parameters, w_stride, s_stride, seed);
    cudaCheck(cudaGetLastError());
}

#endif // ADAMW_CUH
