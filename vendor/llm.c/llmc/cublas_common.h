/*
What files that call cuBLAS or cuBLASLt share: what the libraries call floatX, the handle and workspace, a check.

The program's main creates the handle (cublasLtCreate) and allocates the workspace (cudaMalloc) before the first product.
*/
#ifndef CUBLAS_COMMON_H
#define CUBLAS_COMMON_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cublas_v2.h>
#include <cublasLt.h>
#include "cuda_common.h"

// The libraries' name for the type of matrices.
#if !defined(ENABLE_FP32) && !defined(ENABLE_FP16)
#define CUBLAS_LOWP CUDA_R_16BF
#elif !defined(ENABLE_FP32)
#define CUBLAS_LOWP CUDA_R_16F
#else
#define CUBLAS_LOWP CUDA_R_32F
#endif

inline cublasLtHandle_t cublaslt_handle;

// Scratch for algorithms that split a sum between blocks. 32 MiB is what the largest of them ask for.
const size_t cublaslt_workspace_size = 32u << 20;
inline void* cublaslt_workspace = nullptr;

// How products are added up. A main may set it to CUBLAS_COMPUTE_32F_FAST_TF32, which float matrices gain speed by and
// lose digits.
inline cublasComputeType_t cublas_compute = CUBLAS_COMPUTE_32F;

// Ends the program with the place where a call of cuBLAS has failed.
void inline cublasCheck(cublasStatus_t status, const char *file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "%s:%d: cuBLAS gave status %d\n", file, line, (int)status);
        exit(EXIT_FAILURE);
    }
}
#define cublasCheck(status) (cublasCheck((status), __FILE__, __LINE__))

#endif // CUBLAS_COMMON_H
