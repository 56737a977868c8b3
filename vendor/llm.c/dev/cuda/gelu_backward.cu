/*
GeLU, backward, tanh approximation.

nvcc -O3 -std=c++17 gelu_backward.cu -o gelu_backward
./gelu_backward [kernel number]

1  one element to a thread
2  one packet of 128 bits to a thread
*/
#define ENABLE_BF16
#include "common.h"

// sqrt(2/pi)
#define GELU_SCALING_FACTOR 0.7978845608028654f

// ---------------------------------------------------------------------------------------------------------------
// reference

void gelu_backward_cpu(float* dinp, const float* inp, const float* dout, const int N) {
    int i;
    for (i = 0; i < N; i++) {
        float x = inp[i];
        float th = tanhf(GELU_SCALING_FACTOR * (x + 0.044715f * x * x * x));
        float du = GELU_SCALING_FACTOR * (1.0f + 0.134145f * x * x);
        float slope = 0.5f * (1.0f + th);
        /* where tanh has saturated its own slope is 0, and du may be infinite */
        if (th > -1.0f && th < 1.0f) {
            slope += 0.5f * x * (1.0f - th * th) * du;
        }
        dinp[i] = slope * dout[i];
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// -2 sqrt(2/pi) log2(e): the exponential is taken to base 2, which is what the hardware has
#define GELU_EXPONENT_FACTOR (-2.0f * GELU_SCALING_FACTOR * 1.4426950408889634f)

// With the logistic function s of 2u, y = x s and dy/dx = s + 2 x s (1 - s) du/dx.
__device__ inline float gelu_slope(float x) {
    // From 12 on the slope is 1, from -12 down it is 0, and x^3 stays far from overflow. Not-a-number passes.
    const float t = fabsf(x) > 12.0f ? copysignf(12.0f, x) : x;
    const float square = t * t;
    const float e = exp2f(GELU_EXPONENT_FACTOR * t * (1.0f + 0.044715f * square));
    const float s = __fdividef(1.0f, 1.0f + e);
    return s + t * (s - s * s) * (2.0f * GELU_SCALING_FACTOR + 2.0f * GELU_SCALING_FACTOR * 0.134145f * square);
}

__global__ void gelu_backward1(floatX* dinp, const floatX* inp, const floatX* dout, int N) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= N) return;
    dinp[at] = (floatX)(gelu_slope((float)inp[at]) * (float)dout[at]);
}

// The last packet may be short: N need not be a multiple of anything.
__global__ void gelu_backward2(floatX* dinp, const floatX* inp, const floatX* dout, const int N) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (first >= N) return;
    const x128 x = load_packet(inp + first, N - first);
    x128 gradient = load_packet(dout + first, N - first);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        gradient[i] = (floatX)(gelu_slope((float)x[i]) * (float)gradient[i]);
    }
    store_packet(dinp + first, gradient, N - first);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void gelu_backward1(floatX* dinp, const floatX* inp, const floatX* dout, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size);
    gelu_backward1<<<blocks, block_size>>>(dinp, inp, dout, N);
    cudaCheck(cudaGetLastError());
}

void gelu_backward2(floatX* dinp, const floatX* inp, const floatX* dout, int N, const int block_size) {
    const int blocks = ceil_div(N, block_size * x128::size);
    gelu_backward2<<<blocks, block_size>>>(dinp, inp, dout, N);
    cudaCheck(cudaGetLastError());
}

void gelu_backward(int kernel_num, floatX* dinp, const floatX* inp, const floatX* dout, int B, int T, int C, int block_size) {
    switch (kernel_num) {
        case 1: gelu_backward1(dinp, inp, dout, B * T * C, block_size); break;
        case 2: gelu_backward2(dinp, inp, dout, B * T * C, block_size); break;
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

    float* inp = make_random_float(N);
    float* dout = make_random_float(N);
    for (int i = 0; i < N; ++i) {
        inp[i] = (float)(floatX)(4.0f * inp[i]);
        dout[i] = (float)(floatX)dout[i];
    }
    inp[0] = (float)(floatX)30000.0f;
    inp[1] = -inp[0];
    float* wanted = make_zeros_float(N);
    gelu_backward_cpu(wanted, inp, dout, N);
    floatX* d_inp = make_device_array<floatX>(N, inp);
    floatX* d_dout = make_device_array<floatX>(N, dout);
    floatX* d_dinp = make_device_array<floatX>(N);

    const int block_sizes[] = {32, 64, 128, 256, 512, 1024};
    for (int block_size : block_sizes) {
        // All bits set are not a number in every precision, so what is left out shows.
        cudaCheck(cudaMemset(d_dinp, 0xff, N * sizeof(floatX)));
        gelu_backward(kernel_num, d_dinp, d_inp, d_dout, B, T, C, block_size);
        validate_result(d_dinp, wanted, "dinp", N, 1e-5f);
    }
    for (int block_size : block_sizes) {
        const float ms = benchmark_kernel(100, gelu_backward, kernel_num, d_dinp, d_inp, d_dout, B, T, C, block_size);
        const double moved = 3.0 * N * sizeof(floatX);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, moved / ms * 1e-6);
    }

    free(inp);
    free(dout);
    free(wanted);
    cudaCheck(cudaFree(d_inp));
    cudaCheck(cudaFree(d_dout));
    cudaCheck(cudaFree(d_dinp));
    return 0;
}
