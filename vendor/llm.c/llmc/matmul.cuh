/*
Matrix products by cuBLASLt, and the gradient of a linear layer.

Forward: out = inp weight^T + bias, with inp (B*T, C), weight (OC, C), bias (OC).
Backward: dinp = dout weight,   dweight += dout^T inp,   dbias += the sum of dout's rows.

cuBLASLt counts in columns: what is a row-major (rows, columns) matrix here is a (columns, rows) matrix there. So the
products below stand the other way round, out^T = weight inp^T, and nothing has to be copied.
*/
#ifndef MATMUL_CUH
#define MATMUL_CUH

#include <assert.h>
#include <stdint.h>
#include <algorithm>
#include <type_traits>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "cuda_common.h"
#include "cuda_utils.cuh"
#include "cublas_common.h"
#include "gelu.cuh"

// ---------------------------------------------------------------------------------------------------------------
// the gradient of the bias

// Lanes of a warp that look at the same columns, each at other rows.
#define BIAS_ROW_LANES 4
// Warps of a block at most
#define BIAS_MAX_WARPS 32

// blockDim = (BIAS_ROW_LANES, WARP_SIZE / BIAS_ROW_LANES, warps). A block adds up blockDim.y packets of columns, over the
// rows that it shares with the other blocks of its gridDim.y. If there are others, the sum goes to line blockIdx.y of
// dbias, which then is a buffer of gridDim.y lines of OC floats; if not, it is added to dbias itself.
template<typename OutFloat, bool UseAuxBuffer>
__global__ void matmul_backward_bias_kernel9(OutFloat* dbias, const floatX* dout, int B, int T, int OC, std::bool_constant<UseAuxBuffer>) {
    namespace cg = cooperative_groups;
    constexpr int COLUMNS = WARP_SIZE / BIAS_ROW_LANES * x128::size;
    __shared__ float of_warp[BIAS_MAX_WARPS][COLUMNS];
    const cg::thread_block block = cg::this_thread_block();
    const cg::thread_block_tile<BIAS_ROW_LANES> row_lanes = cg::tiled_partition<BIAS_ROW_LANES>(block);
    const int origin = blockIdx.x * COLUMNS;
    const int column = threadIdx.y * x128::size;
    const int left = OC - origin - column;

    float sum[x128::size] = {};
    const int stride = gridDim.y * blockDim.z * BIAS_ROW_LANES;
    #pragma unroll 4
    for (int row = (blockIdx.y * blockDim.z + threadIdx.z) * BIAS_ROW_LANES + threadIdx.x; row < B * T; row += stride) {
        const x128 gradient = load_packet(dout + (size_t)row * OC + origin + column, left);
        #pragma unroll
        for (int k = 0; k < x128::size; ++k) sum[k] += (float)gradient[k];
    }
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) {
        const float joined = cg::reduce(row_lanes, sum[k], cg::plus<float>());
        if (row_lanes.thread_rank() == 0) of_warp[threadIdx.z][column + k] = joined;
    }
    block.sync();

    // Neighbouring threads finish neighbouring columns.
    const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    for (int c = rank; c < COLUMNS && origin + c < OC; c += threads) {
        float total = 0.0f;
        for (int warp = 0; warp < blockDim.z; ++warp) total += of_warp[warp][c];
        if constexpr (UseAuxBuffer) {
            dbias[(size_t)blockIdx.y * OC + origin + c] = (OutFloat)total;
        } else {
            dbias[origin + c] = (OutFloat)((float)dbias[origin + c] + total);
        }
    }
}

// Adds m lines of n floats to dst, always in the same order.
__global__ void reduce_add_sum_kernel(floatX* dst, const float* src, size_t n, size_t m) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float sum = (float)dst[i];
        #pragma unroll 8
        for (size_t line = 0; line < m; ++line) sum += src[line * n + i];
        dst[i] = (floatX)sum;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// d = op(a) op(b) + bias, counted in columns: op(a) is m by k, op(b) k by n, d m by n, bias has m elements or is null.
// With accumulate the product is added to d. With a batch_count there are that many products, whose matrices begin the
// strides apart. With pre_gelu, forward stores the sum there and its GeLU in d, and backward multiplies the product by the
// slope of the GeLU at pre_gelu.
void matmul_cublaslt(floatX* d, const floatX* a, const floatX* b, const floatX* bias, int m, int n, int k, cudaStream_t stream=0, bool transA=true, bool transB=false, int batch_count=0, size_t strideA=0, size_t strideB=0, size_t strideOut=0, bool accumulate=false, floatX* pre_gelu=NULL, bool backward=false) {
    NVTX_RANGE_FN();
    assert(bias == NULL || !backward);
    assert(pre_gelu == NULL || m % 8 == 0); // what the library demands of such an epilogue

    const cublasOperation_t op_a = transA ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = transB ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t product;
    cublasCheck(cublasLtMatmulDescCreate(&product, cublas_compute, CUDA_R_32F));
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a)));
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b)));

    // What happens to the product on its way to memory.
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (pre_gelu != NULL) {
        const int64_t pre_gelu_ld = m;
        cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pre_gelu, sizeof(pre_gelu)));
        cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &pre_gelu_ld, sizeof(pre_gelu_ld)));
        if (backward) {
            epilogue = CUBLASLT_EPILOGUE_DGELU;
        } else {
            epilogue = bias != NULL ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        }
    } else if (bias != NULL) {
        epilogue = CUBLASLT_EPILOGUE_BIAS;
    }
    if (bias != NULL) {
        const cudaDataType_t bias_type = CUBLAS_LOWP;
        cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type)));
        cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    }
    cublasCheck(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));

    // The matrices as they lie in memory, before they are transposed.
    cublasLtMatrixLayout_t layout_a, layout_b, layout_d;
    cublasCheck(cublasLtMatrixLayoutCreate(&layout_a, CUBLAS_LOWP, transA ? k : m, transA ? m : k, transA ? k : m));
    cublasCheck(cublasLtMatrixLayoutCreate(&layout_b, CUBLAS_LOWP, transB ? n : k, transB ? k : n, transB ? n : k));
    cublasCheck(cublasLtMatrixLayoutCreate(&layout_d, CUBLAS_LOWP, m, n, m));
    if (batch_count > 0) {
        const int64_t step_a = strideA, step_b = strideB, step_d = strideOut;
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_count, sizeof(batch_count)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_a, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step_a, sizeof(step_a)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_b, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_count, sizeof(batch_count)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_b, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step_b, sizeof(step_b)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_count, sizeof(batch_count)));
        cublasCheck(cublasLtMatrixLayoutSetAttribute(layout_d, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step_d, sizeof(step_d)));
    }

    cublasLtMatmulPreference_t preference;
    cublasCheck(cublasLtMatmulPreferenceCreate(&preference));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &cublaslt_workspace_size, sizeof(cublaslt_workspace_size)));
    // The heuristic does not look at the addresses. Unless told, it takes them to be good for the widest loads, which a
    // matrix that begins in the middle of an array may not be.
    const uint32_t align_a = (uintptr_t)a % 16 == 0 ? 16 : sizeof(floatX);
    const uint32_t align_b = (uintptr_t)b % 16 == 0 ? 16 : sizeof(floatX);
    const uint32_t align_d = (uintptr_t)d % 16 == 0 ? 16 : sizeof(floatX);
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof(align_a)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof(align_b)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof(align_d)));
    cublasCheck(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof(align_d)));
    cublasLtMatmulHeuristicResult_t choice;
    int choices = 0;
    cublasLtMatmulAlgoGetHeuristic(cublaslt_handle, product, layout_a, layout_b, layout_d, layout_d, preference, 1, &choice, &choices);
    if (choices == 0) {
        fprintf(stderr, "cuBLASLt has no algorithm for m = %d, n = %d, k = %d, epilogue %d\n", m, n, k, (int)epilogue);
        exit(EXIT_FAILURE);
    }

    // d is read as well as written, and where beta is zero only written.
    const float alpha = 1.0f;
    const float beta = accumulate ? 1.0f : 0.0f;
    cublasCheck(cublasLtMatmul(cublaslt_handle, product, &alpha, a, layout_a, b, layout_b, &beta, d, layout_d, d, layout_d,
                               &choice.algo, cublaslt_workspace, cublaslt_workspace_size, stream));

    cublasCheck(cublasLtMatmulPreferenceDestroy(preference));
    cublasCheck(cublasLtMatrixLayoutDestroy(layout_d));
    cublasCheck(cublasLtMatrixLayoutDestroy(layout_b));
    cublasCheck(cublasLtMatrixLayoutDestroy(layout_a));
    cublasCheck(cublasLtMatmulDescDestroy(product));
    cudaCheck(cudaGetLastError());
}

// out (B*T, OC) = inp (B*T, C) weight^T + bias, weight (OC, C), bias (OC) or null. With pre_gelu, that is where the sum
// goes, and out becomes its GeLU; gelu_fusion 0 leaves this to a kernel of its own.
void matmul_forward_cublaslt(floatX* out, floatX* inp, floatX* weight, floatX* bias, int B, int T, int C, int OC, cudaStream_t stream, floatX* pre_gelu=NULL, int gelu_fusion=1) {
    const bool separate = pre_gelu != NULL && gelu_fusion == 0;
    floatX* const sums = separate ? pre_gelu : out;
    floatX* const fused = separate ? NULL : pre_gelu;
    matmul_cublaslt(sums, weight, inp, bias, OC, B * T, C, stream, true, false, 0, 0, 0, 0, false, fused);
    if (separate) gelu_forward(out, pre_gelu, B * T * OC, stream);
}

// dinp (B*T, C) is overwritten, dweight (OC, C) and dbias (OC, or null) are added to. dbias_buffer has room for OC floats
// for each of the blocks that share the rows; together these are no more than the device holds at a time, so that 64
// floats for every 512 threads of the device are enough. With pre_gelu, inp is its GeLU and dinp becomes pre_gelu's
// gradient; gelu_fusion below 2 leaves this to a kernel of its own.
void matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, floatX* dout, floatX* inp, floatX* weight, float* dbias_buffer, int B, int T, int C, int OC, cudaStream_t stream, floatX* pre_gelu=NULL, int gelu_fusion=1) {
    NVTX_RANGE_FN();
    if (dbias != NULL) {
        const int threads = 512;
        const dim3 block(BIAS_ROW_LANES, WARP_SIZE / BIAS_ROW_LANES, threads / WARP_SIZE);
        int resident = 0;
        cudaCheck(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, matmul_backward_bias_kernel9<float, true>, threads, 0));
        const int across = CEIL_DIV(OC, WARP_SIZE / BIAS_ROW_LANES * x128::size);
        const int down = std::min(resident * deviceProp.multiProcessorCount / across, CEIL_DIV(B * T, threads / WARP_SIZE * BIAS_ROW_LANES));
        if (down <= 1) {
            matmul_backward_bias_kernel9<<<dim3(across, 1), block, 0, stream>>>(dbias, dout, B, T, OC, std::bool_constant<false>{});
            cudaCheck(cudaGetLastError());
        } else {
            matmul_backward_bias_kernel9<<<dim3(across, down), block, 0, stream>>>(dbias_buffer, dout, B, T, OC, std::bool_constant<true>{});
            cudaCheck(cudaGetLastError());
            const int adders = 64;
            reduce_add_sum_kernel<<<CEIL_DIV(OC, adders), adders, 0, stream>>>(dbias, dbias_buffer, OC, down);
            cudaCheck(cudaGetLastError());
        }
    }
    floatX* const fused = gelu_fusion >= 2 ? pre_gelu : NULL;
    matmul_cublaslt(dinp, weight, dout, NULL, C, B * T, OC, stream, false, false, 0, 0, 0, 0, false, fused, true);
    if (pre_gelu != NULL && fused == NULL) gelu_backward_inplace(dinp, pre_gelu, B * T * C, stream);
    matmul_cublaslt(dweight, inp, dout, NULL, C, OC, B * T, stream, false, true, 0, 0, 0, 0, true, NULL, true);
}

#endif // MATMUL_CUH
