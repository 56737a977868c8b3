/*
The triangular matrix product in front of causal attention: out[b][h][i][j] = q_i . k_j / sqrt(HS) for j <= i, with q and
k packed in inp as (B, T, 3, NH, HS). What stands above the diagonal is not part of the result: kernels 1 to 4 leave it
as it was, cuBLAS fills it with products that nobody asked for.

nvcc -O3 -std=c++17 trimat_forward.cu -lcublas -o trimat_forward
./trimat_forward [kernel number]

0  cuBLAS, the whole square
1  tiles on and below the diagonal, one dot product after the other
2  64 dot products of a thread at a time, in registers
3  as 2, loads and stores of 128 bits
4  as 3, slices of q and k in shared memory
*/
#define WITH_CUBLAS
#include <assert.h>
#include "common.h"

static cublasHandle_t cublas_handle;

// A block of 16 x 16 threads makes a tile of 128 x 128 results, 8 x 8 a thread.
#define TRI_TILE 128
#define TRI_THREADS 16
#define TRI_EACH 8
// Elements of q and k that kernel 4 stages at a time, and the pitch of a staged line: a whole number of packets, and not
// of banks.
#define TRI_SLICE 32
#define TRI_PITCH (TRI_TILE + 4)

// ---------------------------------------------------------------------------------------------------------------
// reference

void trimul_cpu(float* out, const float* inp, int B, int T, int C, int NH) {
    int b, h, i, j, s;
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    for (b = 0; b < B; b++) {
        for (h = 0; h < NH; h++) {
            const float* heads = inp + (size_t)b * T * 3 * C + h * HS;
            float* square = out + ((size_t)b * NH + h) * T * T;
            for (i = 0; i < T; i++) {
                const float* query = heads + (size_t)i * 3 * C;
                for (j = 0; j <= i; j++) {
                    const float* key = heads + (size_t)j * 3 * C + C;
                    double dot = 0.0;
                    for (s = 0; s < HS; s++) dot += (double)query[s] * key[s];
                    square[(size_t)i * T + j] = (float)(dot * scale);
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// cuBLAS, which wants the matrices of a head in one piece: (B, T, 3, NH, HS) to three times (B, NH, T, HS)

__global__ void permute_kernel(float* q, float* k, float* v, const float* inp, int B, int T, int NH, int HS) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * NH * T * HS) return;
    const int s = (int)(at % HS);
    const size_t line = at / HS;
    const int t = (int)(line % T);
    const int h = (int)(line / T % NH);
    const size_t b = line / T / NH;
    const size_t C = (size_t)NH * HS;
    const float* packed = inp + (b * T + t) * 3 * C + h * HS + s;
    q[at] = packed[0];
    k[at] = packed[C];
    v[at] = packed[2 * C];
}

void trimul_cublas(float* preatt, const float* inp, int B, int T, int C, int NH) {
    assert(C % NH == 0);
    const int HS = C / NH;
    const int count = B * T * C;
    float* qkv; // q, k and v, one behind the other
    cudaCheck(cudaMalloc(&qkv, 3 * count * sizeof(float)));
    float* k = qkv + count;
    permute_kernel<<<ceil_div(count, 256), 256>>>(qkv, k, k + count, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
    // cuBLAS counts columns first, so that it sees k and q transposed, and so is the product.
    const float scale = 1.0f / sqrtf((float)HS);
    const float nothing = 0.0f;
    const int head = T * HS;
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &scale, k, HS, head, qkv, HS, head, &nothing, preatt, T, T * T, B * NH));
    cudaCheck(cudaFree(qkv));
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// What makes the block's tile of p = alpha q k^T from one head's first elements. A row of p, k or q is PS, KS or QS
// floats from the next.
typedef void (*matmul_fn_ptr)(float* p, int PS, const float* k, int KS, const float* q, int QS, int T, int HS, float alpha);

// One tile of one head to a block: blockIdx = (column of tiles, row of tiles, batch and head).
template<matmul_fn_ptr matmul_tri>
__global__ void __launch_bounds__(256, 2) trimul_global(float* out, const float* inp, int T, int C, int NH) {
    if (blockIdx.x > blockIdx.y) return; // above the diagonal; the whole block leaves together
    const int HS = C / NH;
    const int b = blockIdx.z / NH, h = blockIdx.z % NH;
    const float* q = inp + (size_t)b * T * 3 * C + h * HS;
    matmul_tri(out + (size_t)blockIdx.z * T * T, T, q + C, 3 * C, q, 3 * C, T, HS, 1.0f / sqrtf((float)HS));
}

template<matmul_fn_ptr matmul_tri>
void trimul_launcher(float* out, const float* inp, int B, int T, int C, int NH) {
    assert(C % NH == 0);
    const int tiles = ceil_div(T, TRI_TILE);
    trimul_global<matmul_tri><<<dim3(tiles, tiles, B * NH), dim3(TRI_THREADS, TRI_THREADS)>>>(out, inp, T, C, NH);
    cudaCheck(cudaGetLastError());
}

// Threads that lie together take columns that lie together.
__device__ void matmul_tri_naive(float* p, int PS, const float* k, int KS, const float* q, int QS, int T, int HS, float alpha) {
    const int row_end = min(T, (int)(blockIdx.y + 1) * TRI_TILE);
    const int column_end = min(T, (int)(blockIdx.x + 1) * TRI_TILE);
    for (int i = blockIdx.y * TRI_TILE + threadIdx.y; i < row_end; i += TRI_THREADS) {
        for (int j = blockIdx.x * TRI_TILE + threadIdx.x; j < column_end && j <= i; j += TRI_THREADS) {
            float dot = 0.0f;
            for (int s = 0; s < HS; ++s) dot += q[(size_t)i * QS + s] * k[(size_t)j * KS + s];
            p[(size_t)i * PS + j] = alpha * dot;
        }
    }
}

// Of 16 elements read, 64 products are made. Rows behind the last one are read as the last one, and not stored.
__device__ void matmul_tri_registers(float* p, int PS, const float* k, int KS, const float* q, int QS, int T, int HS, float alpha) {
    const int i0 = blockIdx.y * TRI_TILE + threadIdx.y;
    const int j0 = blockIdx.x * TRI_TILE + threadIdx.x;
    const float* queries[TRI_EACH];
    const float* keys[TRI_EACH];
    #pragma unroll
    for (int n = 0; n < TRI_EACH; ++n) {
        queries[n] = q + (size_t)min(T - 1, i0 + n * TRI_THREADS) * QS;
        keys[n] = k + (size_t)min(T - 1, j0 + n * TRI_THREADS) * KS;
    }
    float dots[TRI_EACH][TRI_EACH] = {};
    for (int s = 0; s < HS; ++s) {
        float right[TRI_EACH];
        #pragma unroll
        for (int c = 0; c < TRI_EACH; ++c) right[c] = keys[c][s];
        #pragma unroll
        for (int r = 0; r < TRI_EACH; ++r) {
            const float left = queries[r][s];
            #pragma unroll
            for (int c = 0; c < TRI_EACH; ++c) dots[r][c] += left * right[c];
        }
    }
    #pragma unroll
    for (int r = 0; r < TRI_EACH; ++r) {
        const int i = i0 + r * TRI_THREADS;
        #pragma unroll
        for (int c = 0; c < TRI_EACH; ++c) {
            const int j = j0 + c * TRI_THREADS;
            if (i < T && j <= i) p[(size_t)i * PS + j] = alpha * dots[r][c];
        }
    }
}

// Four floats at once; the address is a multiple of 16 bytes.
__device__ float4 ld_vec(const float* address) {
    const float4* from = reinterpret_cast<const float4*>(address);
    return from[0];
}

__device__ void st_vec(float* address, float4 val) {
    float4* to = reinterpret_cast<float4*>(address);
    to[0] = val;
}

// Stores four neighbours of row i from column j on, as far as they are on or below the diagonal.
__device__ inline void store_up_to_diagonal(float* p, int PS, int i, int j, int T, float4 val) {
    if (i >= T) return;
    float* target = p + (size_t)i * PS + j;
    if (j + 3 <= i && is_aligned128(target)) {
        st_vec(target, val);
        return;
    }
    if (j <= i) target[0] = val.x;
    if (j + 1 <= i) target[1] = val.y;
    if (j + 2 <= i) target[2] = val.z;
    if (j + 3 <= i) target[3] = val.w;
}

__device__ inline float4 times(float alpha, const float* four) {
    return make_float4(alpha * four[0], alpha * four[1], alpha * four[2], alpha * four[3]);
}

// 8 x 8 results that lie together. Elements are read four at a time, where the heads begin at multiples of 16 bytes.
__device__ void matmul_tri3(float* p, int PS, const float* k, int KS, const float* q, int QS, int T, int HS, float alpha) {
    if (HS % 4 != 0 || KS % 4 != 0 || QS % 4 != 0 || !is_aligned128(q) || !is_aligned128(k)) {
        matmul_tri_registers(p, PS, k, KS, q, QS, T, HS, alpha);
        return;
    }
    const int i0 = blockIdx.y * TRI_TILE + threadIdx.y * TRI_EACH;
    const int j0 = blockIdx.x * TRI_TILE + threadIdx.x * TRI_EACH;
    if (i0 >= T || j0 > i0 + TRI_EACH - 1) return; // no barrier follows
    float dots[TRI_EACH][TRI_EACH] = {};
    for (int s = 0; s < HS; s += 4) {
        float4 right[TRI_EACH];
        #pragma unroll
        for (int c = 0; c < TRI_EACH; ++c) right[c] = ld_vec(k + (size_t)min(T - 1, j0 + c) * KS + s);
        #pragma unroll
        for (int r = 0; r < TRI_EACH; ++r) {
            const float4 left = ld_vec(q + (size_t)min(T - 1, i0 + r) * QS + s);
            #pragma unroll
            for (int c = 0; c < TRI_EACH; ++c) {
                dots[r][c] += left.x * right[c].x + left.y * right[c].y + left.z * right[c].z + left.w * right[c].w;
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < TRI_EACH; ++r) {
        store_up_to_diagonal(p, PS, i0 + r, j0, T, times(alpha, dots[r]));
        store_up_to_diagonal(p, PS, i0 + r, j0 + 4, T, times(alpha, dots[r] + 4));
    }
}

// Puts elements [s0, s0 + TRI_SLICE) of 128 rows into shared memory, one line to an element, with zeros for what is not
// there.
__device__ inline void stage_slice(float (*staged)[TRI_PITCH], const float* from, int stride, int row0, int T, int s0, int HS) {
    const int thread = threadIdx.y * TRI_THREADS + threadIdx.x;
    const int packets = TRI_SLICE / f128::size; // in a row
    for (int n = thread; n < TRI_TILE * packets; n += TRI_THREADS * TRI_THREADS) {
        const int row = n / packets, s = n % packets * f128::size;
        const int left = row0 + row < T ? HS - (s0 + s) : 0;
        const f128 packet = left > 0 ? load_packet(from + (size_t)(row0 + row) * stride + s0 + s, left) : f128::zeros();
        #pragma unroll
        for (int i = 0; i < f128::size; ++i) staged[s + i][row] = packet[i];
    }
}

// A thread's 8 rows and 8 columns are two runs of four, 64 apart: neighbours then read neighbouring packets.
__device__ void matmul_tri4(float* p, int PS, const float* k, int KS, const float* q, int QS, int T, int HS, float alpha) {
    __shared__ __align__(16) float queries[TRI_SLICE][TRI_PITCH];
    __shared__ __align__(16) float keys[TRI_SLICE][TRI_PITCH];
    const int i0 = blockIdx.y * TRI_TILE, j0 = blockIdx.x * TRI_TILE;
    const int y = threadIdx.y * 4, x = threadIdx.x * 4;
    float dots[TRI_EACH][TRI_EACH] = {};
    for (int s0 = 0; s0 < HS; s0 += TRI_SLICE) {
        __syncthreads(); // the slice before has been used up
        stage_slice(queries, q, QS, i0, T, s0, HS);
        stage_slice(keys, k, KS, j0, T, s0, HS);
        __syncthreads();
        #pragma unroll 4
        for (int s = 0; s < TRI_SLICE; ++s) {
            float left[TRI_EACH], right[TRI_EACH];
            st_vec(left, ld_vec(&queries[s][y]));
            st_vec(left + 4, ld_vec(&queries[s][y + TRI_TILE / 2]));
            st_vec(right, ld_vec(&keys[s][x]));
            st_vec(right + 4, ld_vec(&keys[s][x + TRI_TILE / 2]));
            #pragma unroll
            for (int n = 0; n < TRI_EACH * TRI_EACH; ++n) dots[n / TRI_EACH][n % TRI_EACH] += left[n / TRI_EACH] * right[n % TRI_EACH];
        }
    }
    #pragma unroll
    for (int r = 0; r < TRI_EACH; ++r) {
        const int i = i0 + y + r % 4 + r / 4 * (TRI_TILE / 2);
        store_up_to_diagonal(p, PS, i, j0 + x, T, times(alpha, dots[r]));
        store_up_to_diagonal(p, PS, i, j0 + x + TRI_TILE / 2, T, times(alpha, dots[r] + 4));
    }
}

// ---------------------------------------------------------------------------------------------------------------

void trimul_gpu(int kernel_num, float* out, const float* inp, int B, int T, int C, int NH) {
    switch (kernel_num) {
        case 0: trimul_cublas(out, inp, B, T, C, NH); break;
        case 1: trimul_launcher<matmul_tri_naive>(out, inp, B, T, C, NH); break;
        case 2: trimul_launcher<matmul_tri_registers>(out, inp, B, T, C, NH); break;
        case 3: trimul_launcher<matmul_tri3>(out, inp, B, T, C, NH); break;
        case 4: trimul_launcher<matmul_tri4>(out, inp, B, T, C, NH); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// Sets what is above the diagonal to zero, on the host.
static void clear_above(std::vector<float>& squares, size_t T) {
    for (size_t at = 0; at < squares.size(); ++at) {
        if (at % T > at / T % T) squares[at] = 0.0f;
    }
}

static void check_shape(int kernel_num, int B, int T, int C, int NH, bool timed) {
    const size_t inputs = (size_t)B * T * 3 * C, outputs = (size_t)B * NH * T * T;
    float* inp = make_random_float(inputs);
    std::vector<float> wanted(outputs), got(outputs);
    trimul_cpu(wanted.data(), inp, B, T, C, NH);
    float* d_inp = make_device_array<float>(inputs, inp);
    float* d_out = make_device_array<float>(outputs);
    cudaCheck(cudaMemset(d_out, 0xff, outputs * sizeof(float)));
    printf("B=%d T=%d C=%d NH=%d\n", B, T, C, NH);
    trimul_gpu(kernel_num, d_out, d_inp, B, T, C, NH);
    cudaCheck(cudaMemcpy(got.data(), d_out, outputs * sizeof(float), cudaMemcpyDeviceToHost));
    clear_above(got, T);
    clear_above(wanted, T);
    cudaCheck(memcpy_convert(d_out, got.data(), outputs));
    validate_result(d_out, wanted.data(), "out", outputs, 1e-4f);
    if (timed) {
        const float ms = benchmark_kernel(100, trimul_gpu, kernel_num, d_out, d_inp, B, T, C, NH);
        printf("%.4f ms, %.2f TFLOP/s of the triangle\n", ms, (double)B * T * (T + 1) * C / ms * 1e-9);
    }
    free(inp);
    cudaCheck(cudaFree(d_inp));
    cudaCheck(cudaFree(d_out));
}

int main(int argc, char **argv) {
    setup_main();
    cublasCheck(cublasCreate(&cublas_handle));
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 4;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 2, 37, 15, 3, false);
    check_shape(kernel_num, 1, 131, 24, 2, false);
    check_shape(kernel_num, 4, 1024, 768, 12, true);
    cublasCheck(cublasDestroy(cublas_handle));
    return 0;
}
