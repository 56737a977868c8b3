// cuBLAS and cuBLASLt for launchers that are compiled as C++: each product becomes one line of the record.
#pragma once

#include "launch_oracle.h"

typedef struct cublasContext *cublasHandle_t;
typedef struct cublasLtContext *cublasLtHandle_t;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TF32_TENSOR_OP_MATH = 3 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
typedef cudaDataType_t cudaDataType;
enum cublasComputeType_t {
    CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75, CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_RELU_BIAS = 6,
    CUBLASLT_EPILOGUE_GELU = 32, CUBLASLT_EPILOGUE_GELU_BIAS = 36, CUBLASLT_EPILOGUE_GELU_AUX = 160,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164, CUBLASLT_EPILOGUE_DGELU = 192, CUBLASLT_EPILOGUE_DGELU_BGRAD = 208,
    CUBLASLT_EPILOGUE_BGRADA = 256, CUBLASLT_EPILOGUE_BGRADB = 512
};
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE
};
enum cublasLtMatrixLayoutAttribute_t { CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET };
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

namespace llmc2py_oracle {

inline std::string name_of(cudaDataType_t type)
{
    switch (type) {
        case CUDA_R_32F: return "CUDA_R_32F";
        case CUDA_R_64F: return "CUDA_R_64F";
        case CUDA_R_16F: return "CUDA_R_16F";
        case CUDA_R_16BF: return "CUDA_R_16BF";
    }
    return "?";
}
inline std::string name_of(cublasComputeType_t type)
{
    switch (type) {
        case CUBLAS_COMPUTE_16F: return "CUBLAS_COMPUTE_16F";
        case CUBLAS_COMPUTE_32F: return "CUBLAS_COMPUTE_32F";
        case CUBLAS_COMPUTE_64F: return "CUBLAS_COMPUTE_64F";
        case CUBLAS_COMPUTE_32F_FAST_16F: return "CUBLAS_COMPUTE_32F_FAST_16F";
        case CUBLAS_COMPUTE_32F_FAST_16BF: return "CUBLAS_COMPUTE_32F_FAST_16BF";
        case CUBLAS_COMPUTE_32F_FAST_TF32: return "CUBLAS_COMPUTE_32F_FAST_TF32";
    }
    return "?";
}
inline std::string name_of(cublasLtEpilogue_t epilogue)
{
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return "DEFAULT";
        case CUBLASLT_EPILOGUE_RELU: return "RELU";
        case CUBLASLT_EPILOGUE_BIAS: return "BIAS";
        case CUBLASLT_EPILOGUE_RELU_BIAS: return "RELU_BIAS";
        case CUBLASLT_EPILOGUE_GELU: return "GELU";
        case CUBLASLT_EPILOGUE_GELU_BIAS: return "GELU_BIAS";
        case CUBLASLT_EPILOGUE_GELU_AUX: return "GELU_AUX";
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return "GELU_AUX_BIAS";
        case CUBLASLT_EPILOGUE_DGELU: return "DGELU";
        case CUBLASLT_EPILOGUE_DGELU_BGRAD: return "DGELU_BGRAD";
        case CUBLASLT_EPILOGUE_BGRADA: return "BGRADA";
        case CUBLASLT_EPILOGUE_BGRADB: return "BGRADB";
    }
    return "?";
}

struct Matrix {
    const void *start;
    cudaDataType_t type;
    long long rows, cols, ld, stride;
};
inline std::string shown(const Matrix &one)
{
    std::string text = place(one.start) + "," + name_of(one.type);
    for (long long value : {one.rows, one.cols, one.ld, one.stride}) text += "," + std::to_string(value);
    return text;
}

struct Epilogue {
    cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
    std::string bias, aux;
};

inline cublasStatus_t product(Matrix a, Matrix b, Matrix c, Matrix d, bool ta, bool tb, double alpha, double beta, int batch,
                              cublasComputeType_t compute, const Epilogue &epilogue = {})
{
    if (d.rows < 0 || d.cols < 0 || batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (d.rows == 0 || d.cols == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
    std::string line = "gemm\t" + shown(a) + "\t" + shown(b) + "\t" + shown(c) + "\t" + shown(d);
    line += std::string("\t") + (ta ? "1" : "0") + "\t" + (tb ? "1" : "0") + "\t" + number(alpha) + "\t" + number(beta) + "\t";
    line += std::to_string(batch) + "\t" + name_of(compute) + "\t" + name_of(epilogue.kind) + "\t" + epilogue.bias + "\t" + epilogue.aux;
    state.log += line + "\n";
    const bool done = !state.runs || state.product == nullptr || state.product(line.c_str()) == 0;
    return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace llmc2py_oracle

struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    cublasOperation_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    std::int64_t aux_ld = -1;
    int bias_type = -1, aux_type = -1;
};
struct cublasLtMatrixLayoutOpaque {
    cudaDataType_t type;
    std::uint64_t rows, cols;
    std::int64_t ld, stride = 0;
    std::int32_t batch = 1;
};
typedef cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
    std::uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    std::size_t workspaceSize;
    cublasStatus_t state;
};

inline cublasStatus_t cublasCreate(cublasHandle_t *) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

inline cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k, const void *alpha, const void *a,
    cudaDataType_t ta, int lda, long long sa, const void *b, cudaDataType_t tb, int ldb, long long sb, const void *beta, void *c,
    cudaDataType_t tc, int ldc, long long sc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t)
{
    const bool at = opa != CUBLAS_OP_N, bt = opb != CUBLAS_OP_N;
    const llmc2py_oracle::Matrix result{c, tc, m, n, ldc, sc};
    return llmc2py_oracle::product({a, ta, at ? k : m, at ? m : k, lda, sa}, {b, tb, bt ? n : k, bt ? k : n, ldb, sb}, result,
                                   result, at, bt, *static_cast<const float *>(alpha), *static_cast<const float *>(beta), batch,
                                   compute);
}
inline cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,
                                   const void *alpha, const void *a, cudaDataType_t ta, int lda, const void *b,
                                   cudaDataType_t tb, int ldb, const void *beta, void *c, cudaDataType_t tc, int ldc,
                                   cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(handle, opa, opb, m, n, k, alpha, a, ta, lda, 0, b, tb, ldb, 0, beta, c, tc, ldc, 0, 1,
                                      compute, algo);
}
inline cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n,
                                                int k, const float *alpha, const float *a, int lda, long long sa, const float *b,
                                                int ldb, long long sb, const float *beta, float *c, int ldc, long long sc,
                                                int batch)
{
    return cublasGemmStridedBatchedEx(handle, opa, opb, m, n, k, alpha, a, CUDA_R_32F, lda, sa, b, CUDA_R_32F, ldb, sb, beta, c,
                                      CUDA_R_32F, ldc, sc, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
inline cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t opa, cublasOperation_t opb, int m, int n, int k,
                                  const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                                  float *c, int ldc)
{
    return cublasSgemmStridedBatched(handle, opa, opb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t)
{
    *desc = new cublasLtMatmulDescOpaque{compute};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                                     const void *value, std::size_t bytes)
{
    switch (which) {
        case CUBLASLT_MATMUL_DESC_TRANSA: std::memcpy(&desc->transa, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_TRANSB: std::memcpy(&desc->transb, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE: std::memcpy(&desc->epilogue, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: std::memcpy(&desc->bias, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: std::memcpy(&desc->bias_type, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: std::memcpy(&desc->aux, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: std::memcpy(&desc->aux_ld, value, bytes); break;
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: std::memcpy(&desc->aux_type, value, bytes); break;
    }
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, std::uint64_t rows,
                                                 std::uint64_t cols, std::int64_t ld)
{
    *layout = new cublasLtMatrixLayoutOpaque{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which,
                                                       const void *value, std::size_t bytes)
{
    void *target = which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? static_cast<void *>(&layout->batch) : &layout->stride;
    std::memcpy(target, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                           const void *, std::size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[],
                                                     int *found)
{
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                                     cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                                     const cublasLtMatmulAlgo_t *, void *, std::size_t, cudaStream_t)
{
    using namespace llmc2py_oracle;
    const auto matrix = [](const void *start, cublasLtMatrixLayout_t layout) {
        return Matrix{start, layout->type, (long long)layout->rows, (long long)layout->cols, layout->ld, layout->stride};
    };
    if (la->batch != lb->batch || la->batch != ld->batch || lc->batch != ld->batch) return CUBLAS_STATUS_INVALID_VALUE;
    Epilogue epilogue{desc->epilogue};
    const long long rows = ld->rows, cols = ld->cols;
    const int bits = desc->epilogue;
    if ((bits & CUBLASLT_EPILOGUE_BIAS) || (bits & 16) || (bits & 768)) {
        const auto type = desc->bias_type < 0 ? ld->type : (cudaDataType_t)desc->bias_type;
        const long long length = bits & CUBLASLT_EPILOGUE_BGRADB ? cols : rows;
        epilogue.bias = shown(Matrix{desc->bias, type, length, 1, length, 0});
    }
    if (bits & 128) {
        const auto type = desc->aux_type < 0 ? ld->type : (cudaDataType_t)desc->aux_type;
        epilogue.aux = shown(Matrix{desc->aux, type, rows, cols, desc->aux_ld < 0 ? rows : desc->aux_ld, 0});
    }
    return product(matrix(a, la), matrix(b, lb), matrix(c, lc), matrix(d, ld), desc->transa != CUBLAS_OP_N,
                   desc->transb != CUBLAS_OP_N, *static_cast<const float *>(alpha), *static_cast<const float *>(beta), la->batch,
                   desc->compute, epilogue);
}
