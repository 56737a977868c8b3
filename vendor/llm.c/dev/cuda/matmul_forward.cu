/*
Matrix product, forward: out = inp weight^T + bias, with inp of B T rows of C elements, weight of OC rows of C elements and
out of B T rows of OC elements. bias holds OC elements or is null.

nvcc -O3 -std=c++17 matmul_forward.cu -o matmul_forward -lcublas -lcublasLt
./matmul_forward [kernel number]

1  one thread to an element
2  cuBLAS, and a kernel that adds the bias
3  cuBLASLt, which adds the bias before it stores
4  blocks of 256 threads, 8 x 8 elements to a thread, both factors staged in shared memory
*/
#define WITH_CUBLAS
#include <assert.h>
#include "common.h"

// What cuBLASLt is to be given as scratch memory; the newest devices make use of 32 MiB.
#define CUBLASLT_WORKSPACE_BYTES (32 * 1024 * 1024)

static cublasHandle_t cublas_handle;
static cublasLtHandle_t cublaslt_handle;
static void* cublaslt_workspace;
static cublasComputeType_t cublas_compute_type = CUBLAS_COMPUTE_32F;

// ---------------------------------------------------------------------------------------------------------------
// reference

void matmul_forward_cpu(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC) {
    int row, o, c;
    for (row = 0; row < B * T; row++) {
        const float* x = inp + (size_t)row * C;
        float* y = out + (size_t)row * OC;
        for (o = 0; o < OC; o++) {
            const float* w = weight + (size_t)o * C;
            float dot = bias != NULL ? bias[o] : 0.0f;
            for (c = 0; c < C; c++) dot += x[c] * w[c];
            y[o] = dot;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// blockIdx.x and threadIdx.x count rows, blockIdx.y and threadIdx.y columns of out.
__global__ void matmul_forward_kernel1(float* out, const float* inp, const float* weight, const float* bias, int BT, int C, int OC) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const int o = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= BT || o >= OC) return;
    const float* x = inp + (size_t)row * C;
    const float* w = weight + (size_t)o * C;
    float dot = 0.0f;
    for (int c = 0; c < C; ++c) dot = fmaf(x[c], w[c], dot);
    out[(size_t)row * OC + o] = bias == nullptr ? dot : dot + bias[o];
}

// However many blocks there are, they share the elements of out.
__global__ void add_bias(float* out, const float* bias, int B, int T, int OC) {
    const size_t elements = (size_t)B * T * OC;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += threads) {
        out[i] += bias[i % OC];
    }
}

// Four floats at once, from and to addresses that are multiples of 16 bytes.
__device__ float4 ld_vec(const float* address) {
    const float4* quad = reinterpret_cast<const float4*>(address);
    return quad[0];
}

__device__ void st_vec(float* address, float4 val) {
    float4* quad = reinterpret_cast<float4*>(address);
    quad[0] = val;
}

// A block's part of out is SIDE rows by SIDE columns, a thread's is PATCH by PATCH. DEPTH columns of both factors are in
// shared memory at a time.
#define SIDE 128
#define PATCH 8
#define DEPTH 16

// Copies DEPTH columns of SIDE rows to shared memory, column by column, so that what a thread needs at one depth lies
// side by side there. Rows and columns beyond the matrix become zero, which adds nothing to a product.
__device__ inline void stage_columns(float (*staged)[SIDE], const float* matrix, int rows, int first, int C) {
    const int thread = threadIdx.y * 16 + threadIdx.x;
    const int row = thread % SIDE;
    for (int k = thread / SIDE * 4; k < DEPTH; k += 256 / SIDE * 4) {
        const float* from = matrix + (size_t)row * C + first + k;
        const int left = row < rows ? C - first - k : 0;
        float4 quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (left >= 4 && is_aligned128(from)) {
            quad = ld_vec(from);
        } else {
            if (left > 0) quad.x = from[0];
            if (left > 1) quad.y = from[1];
            if (left > 2) quad.z = from[2];
            if (left > 3) quad.w = from[3];
        }
        staged[k][row] = quad.x;
        staged[k + 1][row] = quad.y;
        staged[k + 2][row] = quad.z;
        staged[k + 3][row] = quad.w;
    }
}

// 16 x 16 threads; the grid covers the rows of out exactly, SIDE to a block, and its columns with what may be too much.
__global__ void __launch_bounds__(16*16) matmul_forward_kernel4(float* out, const float* inp, const float* weight, const float* bias, int C, int OC) {
    __shared__ __align__(16) float xs[DEPTH][SIDE];
    __shared__ __align__(16) float ws[DEPTH][SIDE];
    const size_t row0 = (size_t)blockIdx.x * SIDE;
    const int col0 = blockIdx.y * SIDE;
    float sums[PATCH][PATCH] = {};
    for (int first = 0; first < C; first += DEPTH) {
        stage_columns(xs, inp + row0 * C, SIDE, first, C);
        stage_columns(ws, weight + (size_t)col0 * C, OC - col0, first, C);
        __syncthreads();
        for (int k = 0; k < DEPTH; ++k) {
            float x[PATCH], w[PATCH];
            #pragma unroll
            for (int half_patch = 0; half_patch < PATCH; half_patch += 4) {
                const int apart = half_patch * 16;
                st_vec(x + half_patch, ld_vec(&xs[k][apart + threadIdx.y * 4]));
                st_vec(w + half_patch, ld_vec(&ws[k][apart + threadIdx.x * 4]));
            }
            #pragma unroll
            for (int i = 0; i < PATCH; ++i) {
                #pragma unroll
                for (int j = 0; j < PATCH; ++j) sums[i][j] = fmaf(x[i], w[j], sums[i][j]);
            }
        }
        __syncthreads();
    }

    // The patch is in four pieces of 4 x 4, 64 rows and columns apart, so that 16 threads write 64 floats in a row.
    #pragma unroll
    for (int i = 0; i < PATCH; ++i) {
        float* y = out + (row0 + i / 4 * 64 + threadIdx.y * 4 + i % 4) * OC;
        #pragma unroll
        for (int j = 0; j < PATCH; j += 4) {
            const int o = col0 + j * 16 + threadIdx.x * 4;
            f128 packet;
            for (int k = 0; k < 4; ++k) packet[k] = sums[i][j + k] + (bias != nullptr && o + k < OC ? bias[o + k] : 0.0f);
            store_packet(y + o, packet, OC - o);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

void matmul_forward1(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC, const int sqrt_block_size) {
    const dim3 block(sqrt_block_size, sqrt_block_size);
    const dim3 grid(ceil_div(B * T, sqrt_block_size), ceil_div(OC, sqrt_block_size));
    matmul_forward_kernel1<<<grid, block>>>(out, inp, weight, bias, B * T, C, OC);
    cudaCheck(cudaGetLastError());
}

// cuBLAS counts by columns, so that it sees every one of our matrices transposed: out^T = weight inp^T.
void matmul_forward2(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC, const int sqrt_block_size) {
    const float one = 1.0f, zero = 0.0f;
    cublasCheck(cublasSgemm(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, OC, B * T, C, &one, weight, C, inp, C, &zero, out, OC));
    if (bias == nullptr) return;
    const int block_size = sqrt_block_size * sqrt_block_size;
    const size_t elements = (size_t)B * T * OC;
    const size_t blocks = ceil_div(elements, (size_t)block_size);
    add_bias<<<blocks, block_size>>>(out, bias, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_forward3(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC) {
    // The library reads bias in packets.
    assert((uintptr_t)bias % 16 == 0);
    const float one = 1.0f, zero = 0.0f;
    const cublasOperation_t turned = CUBLAS_OP_T, straight = CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulDesc_t product;
    cublasCheck(cublasLtMatmulDescCreate(&product, cublas_compute_type, CUDA_R_32F));
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned)));
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &straight, sizeof(straight)));
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (bias != nullptr) {
        cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    }

    cublasLtMatrixLayout_t weight_layout, inp_layout, out_layout;
    cublasCheck(cublasLtMatrixLayoutCreate(&weight_layout, CUDA_R_32F, C, OC, C));
    cublasCheck(cublasLtMatrixLayoutCreate(&inp_layout, CUDA_R_32F, C, B * T, C));
    cublasCheck(cublasLtMatrixLayoutCreate(&out_layout, CUDA_R_32F, OC, B * T, OC));

    const size_t workspace_bytes = CUBLASLT_WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof(workspace_bytes)));
    int found = 0;
    cublasLtMatmulHeuristicResult_t best;
    cublasCheck(cublasLtMatmulAlgoGetHeuristic(cublaslt_handle, product, weight_layout, inp_layout, out_layout, out_layout, preference, 1, &best, &found));
    if (found == 0) {
        printf("cuBLASLt has no algorithm for B=%d T=%d C=%d OC=%d\n", B, T, C, OC);
        exit(EXIT_FAILURE);
    }
    cublasCheck(cublasLtMatmul(cublaslt_handle, product, &one, weight, weight_layout, inp, inp_layout, &zero, out, out_layout, out, out_layout, &best.algo, cublaslt_workspace, workspace_bytes, 0));

    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    cublasCheck(cublasLtMatrixLayoutDestroy(weight_layout));
    cublasCheck(cublasLtMatrixLayoutDestroy(inp_layout));
    cublasCheck(cublasLtMatrixLayoutDestroy(out_layout));
    cublasCheck(cublasLtMatmulDescDestroy(product));
}

// The kernel is compiled for 16 x 16 threads. It is not told how many rows there are, so that those beyond the last whole
// tile go to the simplest kernel.
void matmul_forward4(float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC, int sqrt_block_size) {
    sqrt_block_size = 16;
    const dim3 block(sqrt_block_size, sqrt_block_size);
    const int tiles = B * T / SIDE;
    const int done = tiles * SIDE;
    if (tiles > 0) {
        matmul_forward_kernel4<<<dim3(tiles, ceil_div(OC, SIDE)), block>>>(out, inp, weight, bias, C, OC);
        cudaCheck(cudaGetLastError());
    }
    const int rest = B * T - done;
    if (rest > 0) {
        const dim3 grid(ceil_div(rest, sqrt_block_size), ceil_div(OC, sqrt_block_size));
        matmul_forward_kernel1<<<grid, block>>>(out + (size_t)done * OC, inp + (size_t)done * C, weight, bias, rest, C, OC);
        cudaCheck(cudaGetLastError());
    }
}

void matmul_forward(int kernel_num, float* out, const float* inp, const float* weight, const float* bias, int B, int T, int C, int OC, const int sqrt_block_size) {
    switch (kernel_num) {
        case 1: matmul_forward1(out, inp, weight, bias, B, T, C, OC, sqrt_block_size); break;
        case 2: matmul_forward2(out, inp, weight, bias, B, T, C, OC, sqrt_block_size); break;
        case 3: matmul_forward3(out, inp, weight, bias, B, T, C, OC); break;
        case 4: matmul_forward4(out, inp, weight, bias, B, T, C, OC, sqrt_block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with several block sizes against the reference; large ones are timed as well.
static void check_shape(int kernel_num, int B, int T, int C, int OC) {
    const size_t N = (size_t)B * T;
    float* inp = make_random_float(N * C);
    float* weight = make_random_float((size_t)OC * C);
    float* bias = make_random_float(OC);
    float* wanted = make_zeros_float(N * OC);
    matmul_forward_cpu(wanted, inp, weight, bias, B, T, C, OC);
    float* d_inp = make_device_array<float>(N * C, inp);
    float* d_weight = make_device_array<float>((size_t)OC * C, weight);
    float* d_bias = make_device_array<float>(OC, bias);
    float* d_out = make_device_array<float>(N * OC);

    printf("B=%d T=%d C=%d OC=%d\n", B, T, C, OC);
    // Where the library may take the shorter format for its factors, so much is lost.
    const float tolerance = cublas_compute_type == CUBLAS_COMPUTE_32F || kernel_num == 1 || kernel_num == 4 ? 1e-4f : 0.1f;
    for (int sqrt_block_size : {4, 8, 16, 32}) {
        cudaCheck(cudaMemset(d_out, 0xff, N * OC * sizeof(float)));
        matmul_forward(kernel_num, d_out, d_inp, d_weight, d_bias, B, T, C, OC, sqrt_block_size);
        validate_result(d_out, wanted, "out", N * OC, tolerance);
        if (C < 256) continue;
        const float ms = benchmark_kernel(10, matmul_forward, kernel_num, d_out, d_inp, d_weight, d_bias, B, T, C, OC, sqrt_block_size);
        printf("block %2d x %2d: %.4f ms, %.1f TFLOP/s\n", sqrt_block_size, sqrt_block_size, ms, 2.0 * N * C * OC / ms * 1e-9);
    }

    for (float* array : {d_inp, d_weight, d_bias, d_out}) cudaCheck(cudaFree(array));
    for (float* array : {inp, weight, bias, wanted}) free(array);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 4;
    printf("kernel %d\n", kernel_num);
    cublasCheck(cublasCreate(&cublas_handle));
    cublasCheck(cublasLtCreate(&cublaslt_handle));
    cudaCheck(cudaMalloc(&cublaslt_workspace, CUBLASLT_WORKSPACE_BYTES));
    // Tensor cores take a float of 19 bits, which Ampere was the first to have.
    const bool short_floats = cuda_arch_major >= 8;
    if (short_floats) cublas_compute_type = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasCheck(cublasSetMathMode(cublas_handle, short_floats ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));

    check_shape(kernel_num, 3, 47, 68, 132); // neither rows nor columns in whole tiles
    check_shape(kernel_num, 4, 256, 768, 3072);

    cudaCheck(cudaFree(cublaslt_workspace));
    cublasCheck(cublasLtDestroy(cublaslt_handle));
    cublasCheck(cublasDestroy(cublas_handle));
    return 0;
}
