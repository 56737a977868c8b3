/*
Cross entropy, forward: the loss at each of the B T positions is the negative logarithm of the probability that the model
gave to the token that really came.

nvcc -O3 -std=c++17 crossentropy_forward.cu -o crossentropy_forward
./crossentropy_forward [kernel number]

1  one thread to a position
*/
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void crossentropy_forward_cpu(float* losses, const float* probs, const int* targets, int B, int T, int V) {
    int position;
    for (position = 0; position < B * T; position++) {
        losses[position] = -logf(probs[(size_t)position * V + targets[position]]);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// Of each row of V probabilities a single element is read, so there is nothing to share between threads.
__global__ void crossentropy_forward_kernel1(float* losses, const float* probs, const int* targets, int B, int T, int V) {
    const int position = blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= B * T) return;
    const float* row = probs + (size_t)position * V;
    losses[position] = -logf(row[targets[position]]);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void crossentropy_forward1(float* losses, const float* probs, const int* targets, int B, int T, int V, const int block_size) {
    const int blocks = ceil_div(B * T, block_size);
    crossentropy_forward_kernel1<<<blocks, block_size>>>(losses, probs, targets, B, T, V);
    cudaCheck(cudaGetLastError());
}

void crossentropy_forward(int kernel_num, float* losses, const float* probs, const int* targets, int B, int T, int V, const int block_size) {
    switch (kernel_num) {
        case 1: crossentropy_forward1(losses, probs, targets, B, T, V, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    setup_main();
    const int B = 8, T = 1023, V = 50257;
    const int N = B * T;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 1;
    printf("kernel %d\n", kernel_num);

    float* probs = make_random_float_01((size_t)N * V);
    for (size_t i = 0; i < (size_t)N * V; ++i) probs[i] = 0.5f * (probs[i] + 1e-3f);
    int* targets = make_random_int(N, V);
    float* wanted = make_zeros_float(N);
    crossentropy_forward_cpu(wanted, probs, targets, B, T, V);
    float* d_probs = make_device_array<float>((size_t)N * V, probs);
    float* d_losses = make_device_array<float>(N);
    int* d_targets = make_device_array<int>(N);
    cudaCheck(cudaMemcpy(d_targets, targets, N * sizeof(int), cudaMemcpyHostToDevice));

    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        // All bits set are not a number, so what is left out shows.
        cudaCheck(cudaMemset(d_losses, 0xff, N * sizeof(float)));
        crossentropy_forward(kernel_num, d_losses, d_probs, d_targets, B, T, V, block_size);
        validate_result(d_losses, wanted, "losses", N, 1e-5f);
        const float ms = benchmark_kernel(100, crossentropy_forward, kernel_num, d_losses, d_probs, d_targets, B, T, V, block_size);
        printf("block %4d: %.4f ms, %.1f positions per ns\n", block_size, ms, N / ms * 1e-6);
    }

    for (float* array : {d_probs, d_losses}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(d_targets));
    for (float* array : {probs, wanted}) free(array);
    free(targets);
    return 0;
}
