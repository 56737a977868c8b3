/*
Permutation of the four dimensions of an array: out_matrix[i4][i1][i3][i2] = matrix[i1][i2][i3][i4].

nvcc -O3 -std=c++17 permute.cu -o permute
./permute
*/
#include "common.h"

// ---------------------------------------------------------------------------------------------------------------
// reference

void permute_cpu(const float* matrix, float* out_matrix, int dim1, int dim2, int dim3, int dim4) {
    int i1, i2, i3, i4;
    for (i1 = 0; i1 < dim1; i1++) {
        for (i2 = 0; i2 < dim2; i2++) {
            for (i3 = 0; i3 < dim3; i3++) {
                const float* run = matrix + (((size_t)i1 * dim2 + i2) * dim3 + i3) * dim4;
                for (i4 = 0; i4 < dim4; i4++) out_matrix[(((size_t)i4 * dim1 + i1) * dim3 + i3) * dim2 + i2] = run[i4];
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernel

// One thread to an element of the output, so that the writes of a warp lie together; a grid that is too small goes round.
__global__ void permute_kernel(const float* matrix, float* out_matrix, int dim1, int dim2, int dim3, int dim4) {
    const size_t count = (size_t)dim1 * dim2 * dim3 * dim4;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += threads) {
        size_t rest = at;
        const size_t i2 = rest % dim2;
        rest /= dim2;
        const size_t i3 = rest % dim3;
        rest /= dim3;
        const size_t i1 = rest % dim1;
        const size_t i4 = rest / dim1;
        out_matrix[at] = matrix[((i1 * dim2 + i2) * dim3 + i3) * dim4 + i4];
    }
}

// ---------------------------------------------------------------------------------------------------------------

static void permute_on_device(const float* matrix, float* out_matrix, int dim1, int dim2, int dim3, int dim4, int block_size) {
    const int count = dim1 * dim2 * dim3 * dim4;
    permute_kernel<<<ceil_div(count, block_size), block_size>>>(matrix, out_matrix, dim1, dim2, dim3, dim4);
    cudaCheck(cudaGetLastError());
}

int main() {
    setup_main();
    const int shapes[][4] = {{1, 1, 1, 1}, {2, 3, 5, 7}, {24, 42, 20, 32}, {8, 1024, 12, 64}};
    for (const int* dims : shapes) {
        const size_t count = (size_t)dims[0] * dims[1] * dims[2] * dims[3];
        float* matrix = make_random_float(count);
        float* wanted = make_zeros_float(count);
        permute_cpu(matrix, wanted, dims[0], dims[1], dims[2], dims[3]);
        float* d_matrix = make_device_array<float>(count, matrix);
        float* d_out = make_device_array<float>(count);
        printf("%d x %d x %d x %d\n", dims[0], dims[1], dims[2], dims[3]);
        for (int block_size : {32, 64, 128, 256, 512, 1024}) {
            cudaCheck(cudaMemset(d_out, 0xff, count * sizeof(float)));
            permute_on_device(d_matrix, d_out, dims[0], dims[1], dims[2], dims[3], block_size);
            validate_result(d_out, wanted, "out_matrix", count, 0.0f);
            const float ms = benchmark_kernel(20, permute_on_device, d_matrix, d_out, dims[0], dims[1], dims[2], dims[3], block_size);
            printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 2.0 * count * sizeof(float) / ms * 1e-6);
        }
        free(matrix);
        free(wanted);
        cudaCheck(cudaFree(d_matrix));
        cudaCheck(cudaFree(d_out));
    }
    return 0;
}
