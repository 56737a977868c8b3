/*
Backward through softmax and cross entropy at once: with the probabilities p = softmax(logits) and the loss -log(p[target]),
the derivative of the loss by logit v is p[v], less 1 where v is the target. It is added to dlogits.

nvcc -O3 -std=c++17 crossentropy_softmax_backward.cu -o crossentropy_softmax_backward
./crossentropy_softmax_backward [kernel number]

1  one thread to an element
*/
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void crossentropy_softmax_backward_cpu(float* dlogits, const float* dlosses, const float* probs, const int* targets, int B, int T, int V) {
    int position, v;
    for (position = 0; position < B * T; position++) {
        const float* p = probs + (size_t)position * V;
        float* d = dlogits + (size_t)position * V;
        float upstream = dlosses[position];
        for (v = 0; v < V; v++) d[v] += upstream * p[v];
        d[targets[position]] -= upstream;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void crossentropy_softmax_backward_kernel1(float* dlogits, const float* dlosses, const float* probs, const int* targets, int B, int T, int V) {
    // N V may pass 2^31: 64 bits, though the division is slower.
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * T * V) return;
    const size_t position = at / V;
    const int v = (int)(at - position * V);
    const float hit = targets[position] == v ? 1.0f : 0.0f;
    dlogits[at] += dlosses[position] * (probs[at] - hit);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void crossentropy_softmax_backward1(float* dlogits, const float* dlosses, const float* probs, const int* targets, int B, int T, int V, const int block_size) {
    const size_t elements = (size_t)B * T * V;
    const size_t blocks = ceil_div(elements, (size_t)block_size);
    crossentropy_softmax_backward_kernel1<<<blocks, block_size>>>(dlogits, dlosses, probs, targets, B, T, V);
    cudaCheck(cudaGetLastError());
}

void crossentropy_softmax_backward(int kernel_num, float* dlogits, const float* dlosses, const float* probs, const int* targets, int B, int T, int V, const int block_size) {
    switch (kernel_num) {
        case 1: crossentropy_softmax_backward1(dlogits, dlosses, probs, targets, B, T, V, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    setup_main();
    const int B = 4, T = 511, V = 50257;
    const int N = B * T;
    const size_t elements = (size_t)N * V;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 1;
    printf("kernel %d\n", kernel_num);

    float* probs = make_random_float_01(elements);
    float* dlosses = make_random_float(N);
    int* targets = make_random_int(N, V);
    // The gradient starts at one, since the kernel is to add to what is there.
    float* ones = make_ones_float(elements);
    float* wanted = make_ones_float(elements);
    crossentropy_softmax_backward_cpu(wanted, dlosses, probs, targets, B, T, V);
    float* d_probs = make_device_array<float>(elements, probs);
    float* d_dlosses = make_device_array<float>(N, dlosses);
    float* d_dlogits = make_device_array<float>(elements);
    int* d_targets = make_device_array<int>(N);
    cudaCheck(cudaMemcpy(d_targets, targets, N * sizeof(int), cudaMemcpyHostToDevice));

    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        cudaCheck(memcpy_convert(d_dlogits, ones, elements));
        crossentropy_softmax_backward(kernel_num, d_dlogits, d_dlosses, d_probs, d_targets, B, T, V, block_size);
        validate_result(d_dlogits, wanted, "dlogits", elements, 1e-5f);
        const float ms = benchmark_kernel(20, crossentropy_softmax_backward, kernel_num, d_dlogits, d_dlosses, d_probs, d_targets, B, T, V, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 3.0 * elements * sizeof(float) / ms * 1e-6);
    }

    for (float* array : {d_probs, d_dlosses, d_dlogits}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(d_targets));
    for (float* array : {probs, dlosses, ones, wanted}) free(array);
    free(targets);
    return 0;
}
