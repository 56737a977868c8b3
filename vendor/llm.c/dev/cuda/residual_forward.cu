/*
The sum of two arrays, as a residual connection takes it.

nvcc -O3 -std=c++17 residual_forward.cu -o residual_forward
./residual_forward [kernel number]

1  one element to a thread
2  one packet of 128 bits to a thread
*/
#define ENABLE_BF16
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void residual_forward_cpu(float* out, const float* inp1, const float* inp2, int N) {
    int i;
    for (i = 0; i < N; i++)
        out[i] = inp1[i] + inp2[i];
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void residual_forward_kernel1(floatX* out, const floatX* inp1, const floatX* inp2, int N) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= N) return;
    // Each element is used once, so none need stay in the cache.
    __stcs(out + at, (floatX)((float)__ldcs(inp1 + at) + (float)__ldcs(inp2 + at)));
}

// The last packet may be short: N need not be a multiple of anything.
__global__ void residual_forward_kernel2(floatX* out, const floatX* inp1, const floatX* inp2, int N) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (first >= N) return;
    x128 total = load_packet(inp1 + first, N - first);
    const x128 other = load_packet(inp2 + first, N - first);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) total[i] = (floatX)((float)total[i] + (float)other[i]);
    store_packet(out + first, total, N - first);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void residual_forward1(floatX* out, const floatX* inp1, const floatX* inp2, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size);
    residual_forward_kernel1<<<blocks, block_size>>>(out, inp1, inp2, N);
    cudaCheck(cudaGetLastError());
}

void residual_forward2(floatX* out, const floatX* inp1, const floatX* inp2, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size * x128::size);
    residual_forward_kernel2<<<blocks, block_size>>>(out, inp1, inp2, N);
    cudaCheck(cudaGetLastError());
}

void residual_forward(int kernel_num, floatX* out, const floatX* inp1, const floatX* inp2, int N, int block_size) {
    switch (kernel_num) {
        case 1: residual_forward1(out, inp1, inp2, N, block_size); break;
        case 2: residual_forward2(out, inp1, inp2, N, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    setup_main();
    const int B = 8, T = 1024, C = 768;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 2;
    const int N = B * T * C;
    printf("kernel %d\n", kernel_num);

    float* inp1 = make_random_float(N);
    float* inp2 = make_random_float(N);
    for (int i = 0; i < N; ++i) {
        inp1[i] = (float)(floatX)inp1[i];
        inp2[i] = (float)(floatX)inp2[i];
    }
    float* wanted = make_zeros_float(N);
    residual_forward_cpu(wanted, inp1, inp2, N);
    floatX* d_inp1 = make_device_array<floatX>(N, inp1);
    floatX* d_inp2 = make_device_array<floatX>(N, inp2);
    floatX* d_out = make_device_array<floatX>(N);

    const int block_sizes[] = {32, 64, 128, 256, 512, 1024};
    for (int block_size : block_sizes) {
        // All bits set are not a number in every precision, so what is left out shows.
        cudaCheck(cudaMemset(d_out, 0xff, N * sizeof(floatX)));
        residual_forward(kernel_num, d_out, d_inp1, d_inp2, N, block_size);
        validate_result(d_out, wanted, "out", N, 1e-6f);
    }
    for (int block_size : block_sizes) {
        const float ms = benchmark_kernel(100, residual_forward, kernel_num, d_out, d_inp1, d_inp2, N, block_size);
        const double moved = 3.0 * N * sizeof(floatX);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, moved / ms * 1e-6);
    }

    free(inp1);
    free(inp2);
    free(wanted);
    cudaCheck(cudaFree(d_inp1));
    cudaCheck(cudaFree(d_inp2));
    cudaCheck(cudaFree(d_out));
    return 0;
}
