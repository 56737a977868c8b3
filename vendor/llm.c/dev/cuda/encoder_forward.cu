/*
Encoder, forward: the vector of C elements at position t of each sequence is the embedding of the token there, a row of wte,
plus the embedding of the position, row t of wpe.

nvcc -O3 -std=c++17 encoder_forward.cu -o encoder_forward
./encoder_forward [kernel number]

1  one thread to a position
2  one thread to an element
3  one packet of 128 bits to a thread
*/
#define ENABLE_BF16
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void encoder_forward_cpu(float* out, const int* inp, const float* wte, const float* wpe, int B, int T, int C) {
    int row, c;
    for (row = 0; row < B * T; row++) {
        const float* token = wte + (size_t)inp[row] * C;
        const float* place = wpe + (size_t)(row % T) * C;
        for (c = 0; c < C; c++) out[(size_t)row * C + c] = token[c] + place[c];
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void encoder_forward_kernel1(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= B * T) return;
    floatX* y = out + (size_t)row * C;
    const floatX* token = wte + (size_t)inp[row] * C;
    const floatX* place = wpe + (size_t)(row % T) * C;
    for (int c = 0; c < C; ++c) y[c] = (floatX)((float)token[c] + (float)place[c]);
}

// Neighbouring threads have neighbouring elements, so that a warp reads and writes whole lines.
__global__ void encoder_forward_kernel2(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * T * C) return;
    const size_t row = at / C;
    const size_t c = at - row * C;
    const float token = (float)wte[(size_t)inp[row] * C + c];
    out[at] = (floatX)(token + (float)wpe[row % T * C + c]);
}

// Each row is cut into packets, of which the last may be short, and a thread has one of them.
__global__ void encoder_forward_kernel3(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C) {
    const size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int packets = ceil_div(C, x128::size);
    const size_t row = number / packets;
    if (row >= (size_t)B * T) return;
    const int c = (int)(number - row * packets) * x128::size;
    const int left = C - c;
    x128 sum = load_packet(wte + (size_t)inp[row] * C + c, left);
    const x128 place = load_packet(wpe + row % T * C + c, left);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) sum[i] = (floatX)((float)sum[i] + (float)place[i]);
    store_packet(out + row * C + c, sum, left);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void encoder_forward1(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C, const int block_size) {
    const int blocks = ceil_div(B * T, block_size);
    encoder_forward_kernel1<<<blocks, block_size>>>(out, inp, wte, wpe, B, T, C);
    cudaCheck(cudaGetLastError());
}

void encoder_forward2(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C, const int block_size) {
    const size_t elements = (size_t)B * T * C;
    const size_t blocks = ceil_div(elements, (size_t)block_size);
    encoder_forward_kernel2<<<blocks, block_size>>>(out, inp, wte, wpe, B, T, C);
    cudaCheck(cudaGetLastError());
}

void encoder_forward3(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C, const int block_size) {
    const size_t packets = (size_t)B * T * ceil_div(C, x128::size);
    const size_t blocks = ceil_div(packets, (size_t)block_size);
    encoder_forward_kernel3<<<blocks, block_size>>>(out, inp, wte, wpe, B, T, C);
    cudaCheck(cudaGetLastError());
}

void encoder_forward(int kernel_num, floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C, const int block_size) {
    switch (kernel_num) {
        case 1: encoder_forward1(out, inp, wte, wpe, B, T, C, block_size); break;
        case 2: encoder_forward2(out, inp, wte, wpe, B, T, C, block_size); break;
        case 3: encoder_forward3(out, inp, wte, wpe, B, T, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with all block sizes against the reference; large ones are timed as well.
static void check_shape(int kernel_num, int B, int T, int C, int V) {
    const int N = B * T;
    int* inp = make_random_int(N, V);
    float* wte = make_random_float((size_t)V * C);
    float* wpe = make_random_float((size_t)T * C);
    for (int i = 0; i < V * C; ++i) wte[i] = (float)(floatX)wte[i];
    for (int i = 0; i < T * C; ++i) wpe[i] = (float)(floatX)wpe[i];
    float* wanted = make_zeros_float((size_t)N * C);
    encoder_forward_cpu(wanted, inp, wte, wpe, B, T, C);
    int* d_inp = make_device_array<int>(N);
    cudaCheck(cudaMemcpy(d_inp, inp, N * sizeof(int), cudaMemcpyHostToDevice));
    floatX* d_wte = make_device_array<floatX>((size_t)V * C, wte);
    floatX* d_wpe = make_device_array<floatX>((size_t)T * C, wpe);
    floatX* d_out = make_device_array<floatX>((size_t)N * C);

    printf("B=%d T=%d C=%d\n", B, T, C);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        // All bits set are not a number in every precision, so what is left out shows.
        cudaCheck(cudaMemset(d_out, 0xff, (size_t)N * C * sizeof(floatX)));
        encoder_forward(kernel_num, d_out, d_inp, d_wte, d_wpe, B, T, C, block_size);
        validate_result(d_out, wanted, "out", (size_t)N * C, 1e-5f);
        if (C < 256) continue;
        const float ms = benchmark_kernel(100, encoder_forward, kernel_num, d_out, d_inp, d_wte, d_wpe, B, T, C, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 3.0 * N * C * sizeof(floatX) / ms * 1e-6);
    }

    for (floatX* array : {d_wte, d_wpe, d_out}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(d_inp));
    for (float* array : {wte, wpe, wanted}) free(array);
    free(inp);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 3;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 3, 7, 67, 101); // rows that begin anywhere
    check_shape(kernel_num, 8, 1024, 768, 50257);
    return 0;
}
