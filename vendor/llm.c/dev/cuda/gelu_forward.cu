/*
GeLU, forward, tanh approximation.

nvcc -O3 -std=c++17 gelu_forward.cu -o gelu_forward
./gelu_forward [kernel number]

1  one element to a thread
2  one packet of 128 bits to a thread
*/
#define ENABLE_BF16
#include "common.h"

// sqrt(2/pi)
#define GELU_SCALING_FACTOR 0.7978845608028654f

// ---------------------------------------------------------------------------------------------------------------
// reference

void gelu_forward_cpu(float* out, const float* inp, int N) {
    int i;
    for (i = 0; i < N; i++) {
        float x = inp[i];
        float u = GELU_SCALING_FACTOR * x * (1.0f + 0.044715f * x * x);
        out[i] = 0.5f * x * (1.0f + tanhf(u));
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// x (1 + tanh(u)) / 2 is x / (1 + exp(-2u)).
__device__ inline float gelu_of(float x) {
    const float minus_2u = -2.0f * GELU_SCALING_FACTOR * x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + expf(minus_2u));
}

__global__ void gelu_forward_kernel1(floatX* out, const floatX* inp, int N) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= N) return;
    out[at] = (floatX)gelu_of((float)inp[at]);
}

// The last packet may be short: N need not be a multiple of anything.
__global__ void gelu_forward_kernel2(floatX* out, const floatX* inp, int N) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (first >= N) return;
    x128 packet = load_packet(inp + first, N - first);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) packet[i] = (floatX)gelu_of((float)packet[i]);
    store_packet(out + first, packet, N - first);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void gelu_forward1(floatX* out, const floatX* inp, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size);
    gelu_forward_kernel1<<<blocks, block_size>>>(out, inp, N);
    cudaCheck(cudaGetLastError());
}

void gelu_forward2(floatX* out, const floatX* inp, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size * x128::size);
    gelu_forward_kernel2<<<blocks, block_size>>>(out, inp, N);
    cudaCheck(cudaGetLastError());
}

void gelu_forward(int kernel_num, floatX* out, const floatX* inp, int B, int T, int C, int block_size) {
    switch (kernel_num) {
        case 1: gelu_forward1(out, inp, B * T * C, block_size); break;
        case 2: gelu_forward2(out, inp, B * T * C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, const char **argv) {
    setup_main();
    const int B = 8, T = 1024, C = 768;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 2;
    const int N = B * T * C;
    printf("kernel %d\n", kernel_num);

    float* inp = make_random_float(N);
    for (int i = 0; i < N; ++i) inp[i] = (float)(floatX)(4.0f * inp[i]);
    float* wanted = make_zeros_float(N);
    gelu_forward_cpu(wanted, inp, N);
    floatX* d_inp = make_device_array<floatX>(N, inp);
    floatX* d_out = make_device_array<floatX>(N);

    const int block_sizes[] = {32, 64, 128, 256, 512, 1024};
    for (int block_size : block_sizes) {
        // All bits set are not a number in every precision, so what is left out shows.
        cudaCheck(cudaMemset(d_out, 0xff, N * sizeof(floatX)));
        gelu_forward(kernel_num, d_out, d_inp, B, T, C, block_size);
        validate_result(d_out, wanted, "out", N, 1e-5f);
    }
    for (int block_size : block_sizes) {
        const float ms = benchmark_kernel(100, gelu_forward, kernel_num, d_out, d_inp, B, T, C, block_size);
        const double moved = 2.0 * N * sizeof(floatX);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, moved / ms * 1e-6);
    }

    free(inp);
    free(wanted);
    cudaCheck(cudaFree(d_inp));
    cudaCheck(cudaFree(d_out));
    return 0;
}
