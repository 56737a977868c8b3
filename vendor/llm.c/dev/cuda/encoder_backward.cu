/*
Encoder, backward: the gradient at each position is added to the row of dwte that belongs to the token there and to the row
of dwpe that belongs to the position. A token that comes several times gathers several gradients.

nvcc -O3 -std=c++17 encoder_backward.cu -o encoder_backward
./encoder_backward [kernel number]

1  one thread to an element, atomics
2  one thread to a column, no atomics: slow, but the same bits in every run
*/
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void encoder_backward_cpu(float* dwte, float* dwpe, float* dout, int* inp, int B, int T, int C) {
    int row, c;
    for (row = 0; row < B * T; row++) {
        float* token = dwte + (size_t)inp[row] * C;
        float* place = dwpe + (size_t)(row % T) * C;
        for (c = 0; c < C; c++) {
            float g = dout[(size_t)row * C + c];
            token[c] += g;
            place[c] += g;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void encoder_backward_kernel1(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * T * C) return;
    const size_t row = at / C;
    const size_t c = at - row * C;
    atomicAdd(dwte + (size_t)inp[row] * C + c, dout[at]);
    atomicAdd(dwpe + row % T * C + c, dout[at]);
}

// Column c of either table is this thread's alone. The B gradients of a position are added up before dwpe is touched.
__global__ void encoder_backward_kernel2(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    for (int t = 0; t < T; ++t) {
        float of_place = 0.0f;
        for (int b = 0; b < B; ++b) {
            const size_t row = (size_t)b * T + t;
            const float g = dout[row * C + c];
            dwte[(size_t)inp[row] * C + c] += g;
            of_place += g;
        }
        dwpe[(size_t)t * C + c] += of_place;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void encoder_backward1(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C, const int block_size) {
    const size_t elements = (size_t)B * T * C;
    const size_t blocks = ceil_div(elements, (size_t)block_size);
    encoder_backward_kernel1<<<blocks, block_size>>>(dwte, dwpe, dout, inp, B, T, C);
    cudaCheck(cudaGetLastError());
}

void encoder_backward2(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C, const int block_size) {
    const int blocks = ceil_div(C, block_size);
    encoder_backward_kernel2<<<blocks, block_size>>>(dwte, dwpe, dout, inp, B, T, C);
    cudaCheck(cudaGetLastError());
}

void encoder_backward(int kernel_num, float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T, int C, const int block_size) {
    switch (kernel_num) {
        case 1: encoder_backward1(dwte, dwpe, dout, inp, B, T, C, block_size); break;
        case 2: encoder_backward2(dwte, dwpe, dout, inp, B, T, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    setup_main();
    const int B = 8, T = 1024, C = 768, V = 50257;
    const int N = B * T;
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 1;
    printf("kernel %d\n", kernel_num);

    float* dout = make_random_float((size_t)N * C);
    int* inp = make_random_int(N, V);
    // Half of the positions hold one of ten tokens, so that gradients meet.
    for (int i = 0; i < N; i += 2) inp[i] %= 10;
    float* ones = make_ones_float((size_t)V * C);
    float* wanted_dwte = make_ones_float((size_t)V * C);
    float* wanted_dwpe = make_ones_float((size_t)T * C);
    encoder_backward_cpu(wanted_dwte, wanted_dwpe, dout, inp, B, T, C);
    float* d_dout = make_device_array<float>((size_t)N * C, dout);
    float* d_dwte = make_device_array<float>((size_t)V * C);
    float* d_dwpe = make_device_array<float>((size_t)T * C);
    int* d_inp = make_device_array<int>(N);
    cudaCheck(cudaMemcpy(d_inp, inp, N * sizeof(int), cudaMemcpyHostToDevice));

    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        // The gradients start at one, since the kernels are to add to what is there.
        cudaCheck(memcpy_convert(d_dwte, ones, (size_t)V * C));
        cudaCheck(memcpy_convert(d_dwpe, ones, (size_t)T * C));
        encoder_backward(kernel_num, d_dwte, d_dwpe, d_dout, d_inp, B, T, C, block_size);
        validate_result(d_dwte, wanted_dwte, "dwte", (size_t)V * C, 1e-3f);
        validate_result(d_dwpe, wanted_dwpe, "dwpe", (size_t)T * C, 1e-5f);
        const float ms = benchmark_kernel(20, encoder_backward, kernel_num, d_dwte, d_dwpe, d_dout, d_inp, B, T, C, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 4.0 * N * C * sizeof(float) / ms * 1e-6);
    }

    for (float* array : {d_dout, d_dwte, d_dwpe}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(d_inp));
    for (float* array : {dout, ones, wanted_dwte, wanted_dwpe}) free(array);
    free(inp);
    return 0;
}
