/*
AdamW: the update of all parameters of a model, stretched out in one array, from their gradients. With running means m of the
gradient and v of its square, both corrected for having begun at zero,
    parameter -= learning_rate (m / (sqrt(v) + eps) + weight_decay parameter).

nvcc -O3 -std=c++17 adamw.cu -o adamw
./adamw [kernel number]

1  one thread to a parameter
2  one packet of four parameters to a thread
*/
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void adamw_cpu(float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, int t, long num_parameters, float learning_rate=1e-3, float beta1=0.9, float beta2=0.999, float eps=1e-8, float weight_decay=0.0) {
    long i;
    float unbias1 = 1.0f / (1.0f - powf(beta1, t));
    float unbias2 = 1.0f / (1.0f - powf(beta2, t));
    for (i = 0; i < num_parameters; i++) {
        float g = grads_memory[i];
        float p = params_memory[i];
        float step;
        m_memory[i] = beta1 * m_memory[i] + (1.0f - beta1) * g;
        v_memory[i] = beta2 * v_memory[i] + (1.0f - beta2) * g * g;
        step = m_memory[i] * unbias1 / (sqrtf(v_memory[i] * unbias2) + eps);
        params_memory[i] = p - learning_rate * (step + weight_decay * p);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// From start (weight 0) to end (weight 1). Written as a difference times a weight it would lose digits where the two are
// of different size, as a squared gradient and its running mean are.
__device__ inline float lerp(float start, float end, float weight) {
    return fmaf(weight, end, (1.0f - weight) * start);
}

// What is taken off a parameter, per unit of the learning rate.
__device__ inline float adamw_direction(float param, float m, float v, float beta1_correction, float beta2_correction, float eps, float weight_decay) {
    const float scale = sqrtf(v / beta2_correction) + eps;
    return fmaf(weight_decay, param, m / beta1_correction / scale);
}

__global__ void adamw_kernel1(float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, long num_parameters, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay) {
    const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= num_parameters) return;
    const float g = grads_memory[i];
    const float m = lerp(g, m_memory[i], beta1);
    const float v = lerp(g * g, v_memory[i], beta2);
    m_memory[i] = m;
    v_memory[i] = v;
    params_memory[i] -= learning_rate * adamw_direction(params_memory[i], m, v, beta1_correction, beta2_correction, eps, weight_decay);
}

// The last packet may be short, and parts of a model may begin anywhere in its array.
__global__ void adamw_kernel2(float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, long num_parameters, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay) {
    const long first = ((long)blockIdx.x * blockDim.x + threadIdx.x) * f128::size;
    if (first >= num_parameters) return;
    const int left = num_parameters - first < f128::size ? (int)(num_parameters - first) : f128::size;
    const f128 g = load_packet(grads_memory + first, left);
    f128 p = load_packet(params_memory + first, left);
    f128 m = load_packet(m_memory + first, left);
    f128 v = load_packet(v_memory + first, left);
    #pragma unroll
    for (int k = 0; k < f128::size; ++k) {
        m[k] = lerp(g[k], m[k], beta1);
        v[k] = lerp(g[k] * g[k], v[k], beta2);
        p[k] -= learning_rate * adamw_direction(p[k], m[k], v[k], beta1_correction, beta2_correction, eps, weight_decay);
    }
    store_packet(m_memory + first, m, left);
    store_packet(v_memory + first, v, left);
    store_packet(params_memory + first, p, left);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void adamw_dispatch1(float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, long num_parameters, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay) {
    const long threads = 512;
    const long blocks = ceil_div(num_parameters, threads);
    adamw_kernel1<<<blocks, threads>>>(params_memory, grads_memory, m_memory, v_memory, num_parameters, learning_rate, beta1, beta2, beta1_correction, beta2_correction, eps, weight_decay);
    cudaCheck(cudaGetLastError());
}

void adamw_dispatch2(float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, long num_parameters, float learning_rate, float beta1, float beta2, float beta1_correction, float beta2_correction, float eps, float weight_decay) {
    const long threads = 256;
    const long blocks = ceil_div(num_parameters, threads * f128::size);
    adamw_kernel2<<<blocks, threads>>>(params_memory, grads_memory, m_memory, v_memory, num_parameters, learning_rate, beta1, beta2, beta1_correction, beta2_correction, eps, weight_decay);
    cudaCheck(cudaGetLastError());
}

// t counts the updates from 1 on.
void adamw(int kernel_num, float* params_memory, const float* grads_memory, float* m_memory, float* v_memory, int t, long num_parameters, float learning_rate=1e-3, float beta1=0.9, float beta2=0.999, float eps=1e-8, float weight_decay=0.0) {
    // How much of a running mean is not yet the zero that it began with.
    const float filled1 = 1.0f - powf(beta1, t);
    const float filled2 = 1.0f - powf(beta2, t);
    switch (kernel_num) {
        case 1: adamw_dispatch1(params_memory, grads_memory, m_memory, v_memory, num_parameters, learning_rate, beta1, beta2, filled1, filled2, eps, weight_decay); break;
        case 2: adamw_dispatch2(params_memory, grads_memory, m_memory, v_memory, num_parameters, learning_rate, beta1, beta2, filled1, filled2, eps, weight_decay); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    setup_main();
    const long count = 1048577; // one more than whole blocks
    const int t = 10;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 2;
    printf("kernel %d\n", kernel_num);

    float* params = make_random_float(count);
    float* grads = make_random_float(count);
    float* m = make_random_float(count);
    float* v = make_random_float_01(count);
    float* d_params = make_device_array<float>(count, params);
    float* d_grads = make_device_array<float>(count, grads);
    float* d_m = make_device_array<float>(count, m);
    float* d_v = make_device_array<float>(count, v);

    adamw(kernel_num, d_params, d_grads, d_m, d_v, t, count, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f);
    adamw_cpu(params, grads, m, v, t, count, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f);
    validate_result(d_params, params, "params", count, 1e-6f);
    validate_result(d_m, m, "m", count, 1e-6f);
    validate_result(d_v, v, "v", count, 1e-6f);

    const float ms = benchmark_kernel(1000, adamw, kernel_num, d_params, d_grads, d_m, d_v, t, count, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f);
    printf("%.4f ms, %.0f GB/s\n", ms, 7.0 * count * sizeof(float) / ms * 1e-6);

    for (float* array : {d_params, d_grads, d_m, d_v}) cudaCheck(cudaFree(array));
    for (float* array : {params, grads, m, v}) free(array);
    return 0;
}
