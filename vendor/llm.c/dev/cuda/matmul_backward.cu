/*
Matrix product, backward. With out = inp weight^T + bias and the gradient dout of out,
    dinp += dout weight,   dweight += dout^T inp,   dbias += sum over the B T rows of dout.
dbias may be null.

nvcc -O3 -std=c++17 matmul_backward.cu -o matmul_backward -lcublas -lcublasLt
./matmul_backward [kernel number]

1  cuBLAS for both products, a kernel for dbias
*/
#define WITH_CUBLAS
#include "common.h"

static cublasHandle_t cublas_handle;

// ---------------------------------------------------------------------------------------------------------------
// reference

void matmul_backward_cpu(float* dinp, float* dweight, float* dbias, float* dout, float* inp, float* weight, int B, int T, int C, int OC) {
    int row, o, c;
    for (row = 0; row < B * T; row++) {
        const float* x = inp + (size_t)row * C;
        float* dx = dinp + (size_t)row * C;
        for (o = 0; o < OC; o++) {
            const float* w = weight + (size_t)o * C;
            float* dw = dweight + (size_t)o * C;
            float g = dout[(size_t)row * OC + o];
            if (dbias != NULL) dbias[o] += g;
            for (c = 0; c < C; c++) {
                dx[c] += g * w[c];
                dw[c] += g * x[c];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// One thread to a column.
__global__ void matmul_backward_bias_kernel_naive(float* dbias, const float* dout, int B, int T, int OC) {
    const int o = blockIdx.x * blockDim.x + threadIdx.x;
    if (o >= OC) return;
    const float* column = dout + o;
    float sum = 0.0f;
    for (int left = B * T; left > 0; --left, column += OC) sum += *column;
    dbias[o] += sum;
}

// One block of whole warps to a column.
__global__ void matmul_backward_bias_kernel_faster(float* dbias, const float* dout, int B, int T, int OC) {
    const int o = blockIdx.x;
    if (o >= OC) return; // the whole block leaves together
    float mine = 0.0f;
    for (int row = threadIdx.x; row < B * T; row += blockDim.x) mine += dout[(size_t)row * OC + o];
    const float sum = blockReduce<warpReduceSum>(mine);
    if (threadIdx.x == 0) dbias[o] += sum;
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// cuBLAS counts by columns, so that it sees every one of our matrices transposed: dinp^T = weight^T dout^T and
// dweight^T = inp^T dout. ones is there for callers that have a vector of ones to sum columns with; here kernels do that.
void matmul_backward1(float* dinp, float* dweight, float* dbias, float* dout, float* inp, float* weight, float* ones, int B, int T, int C, int OC) {
    const int rows = B * T;
    const float one = 1.0f; // also what the old gradients are multiplied by: the new ones add to them
    cublasCheck(cublasSgemm(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, C, rows, OC, &one, weight, C, dout, OC, &one, dinp, C));
    cublasCheck(cublasSgemm(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_T, C, OC, rows, &one, inp, C, dout, OC, &one, dweight, C));
    if (dbias == nullptr) return;
    if (rows < 64) {
        const int block_size = 128;
        matmul_backward_bias_kernel_naive<<<ceil_div(OC, block_size), block_size>>>(dbias, dout, B, T, OC);
    } else {
        matmul_backward_bias_kernel_faster<<<OC, 512>>>(dbias, dout, B, T, OC);
    }
    cudaCheck(cudaGetLastError());
}

void matmul_backward(int kernel_num, float* dinp, float* dweight, float* dbias, float* dout, float* inp, float* weight, float* ones, int B, int T, int C, int OC) {
    switch (kernel_num) {
        case 1: matmul_backward1(dinp, dweight, dbias, dout, inp, weight, ones, B, T, C, OC); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

static void check_shape(int kernel_num, int B, int T, int C, int OC) {
    const size_t N = (size_t)B * T;
    const size_t of_inp = N * C, of_out = N * OC, of_weight = (size_t)OC * C;
    float* dout = make_random_float(of_out);
    float* inp = make_random_float(of_inp);
    float* weight = make_random_float(of_weight);
    // The gradients start at one, since they are to be added to what is there.
    float* dinp = make_ones_float(of_inp);
    float* dweight = make_ones_float(of_weight);
    float* dbias = make_ones_float(OC);
    float* ones = make_ones_float(N);
    float* d_dout = make_device_array<float>(of_out, dout);
    float* d_inp = make_device_array<float>(of_inp, inp);
    float* d_weight = make_device_array<float>(of_weight, weight);
    float* d_dinp = make_device_array<float>(of_inp, dinp);
    float* d_dweight = make_device_array<float>(of_weight, dweight);
    float* d_dbias = make_device_array<float>(OC, dbias);
    float* d_ones = make_device_array<float>(N, ones);

    printf("B=%d T=%d C=%d OC=%d\n", B, T, C, OC);
    matmul_backward(kernel_num, d_dinp, d_dweight, d_dbias, d_dout, d_inp, d_weight, d_ones, B, T, C, OC);
    matmul_backward_cpu(dinp, dweight, dbias, dout, inp, weight, B, T, C, OC);
    validate_result(d_dinp, dinp, "dinp", of_inp, 1e-3f);
    validate_result(d_dweight, dweight, "dweight", of_weight, 1e-3f);
    validate_result(d_dbias, dbias, "dbias", OC, 1e-3f);
    if (N > 64) {
        const float ms = benchmark_kernel(10, matmul_backward, kernel_num, d_dinp, d_dweight, d_dbias, d_dout, d_inp, d_weight, d_ones, B, T, C, OC);
        printf("%.4f ms, %.1f TFLOP/s\n", ms, 4.0 * N * C * OC / ms * 1e-9);
    }

    for (float* array : {d_dout, d_inp, d_weight, d_dinp, d_dweight, d_dbias, d_ones}) cudaCheck(cudaFree(array));
    for (float* array : {dout, inp, weight, dinp, dweight, dbias, ones}) free(array);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 1;
    printf("kernel %d\n", kernel_num);
    cublasCheck(cublasCreate(&cublas_handle));
    check_shape(kernel_num, 2, 11, 67, 35);
    check_shape(kernel_num, 4, 256, 768, 3072);
    cublasCheck(cublasDestroy(cublas_handle));
    return 0;
}
