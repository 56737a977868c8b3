/*
Causal attention, forward, for NH heads of HS = C / NH elements:
preatt = q k^T / sqrt(HS), att = softmax(preatt) over the positions up to one's own, out = att v.
inp is (B, T, 3, NH, HS) with q, k and v in this order, preatt and att are (B, NH, T, T), out is (B, T, NH, HS).

nvcc -O3 -std=c++17 attention_forward.cu -lcublas -o attention_forward
./attention_forward [kernel number]

1  one thread to an element of preatt, or to a row of att and out
2  tiles in shared memory, softmax on the way; att is never stored
3  cuBLAS for the products, one block to a row of att
4  cuBLAS for the products, one warp to a row of att, scaled and masked on the way
5  as 4, in 16 bits
6  as 5, without the permutations in front of and behind it: once first_run_validation is false, qkvr is taken as it is,
   and the result stays in vaccum
7  one kernel, one warp to a row
*/
#define ENABLE_BF16
#define WITH_CUBLAS
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

static cublasHandle_t cublas_handle;
// Whether results are going to be looked at, so that nothing may be skipped.
static bool first_run_validation = true;

// ---------------------------------------------------------------------------------------------------------------
// reference

void attention_forward_cpu(float* out, float* preatt, float* att, const float* inp, int B, int T, int C, int NH) {
    int b, h, t, u, s;
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    for (b = 0; b < B; b++) {
        for (h = 0; h < NH; h++) {
            const float* queries = inp + (size_t)b * T * 3 * C + h * HS;
            const float* keys = queries + C;
            const float* values = keys + C;
            for (t = 0; t < T; t++) {
                size_t row = ((size_t)b * NH + h) * T + t;
                float* score = preatt + row * T;
                float* weight = att + row * T;
                float* y = out + ((size_t)b * T + t) * C + h * HS;
                float top = -INFINITY;
                float total = 0.0f;
                for (u = 0; u <= t; u++) {
                    float dot = 0.0f;
                    for (s = 0; s < HS; s++) dot += queries[(size_t)t * 3 * C + s] * keys[(size_t)u * 3 * C + s];
                    score[u] = dot * scale;
                    if (score[u] > top) top = score[u];
                }
                for (u = 0; u <= t; u++) {
                    weight[u] = expf(score[u] - top);
                    total += weight[u];
                }
                for (s = 0; s < HS; s++) y[s] = 0.0f;
                for (u = 0; u <= t; u++) {
                    weight[u] /= total;
                    for (s = 0; s < HS; s++) y[s] += weight[u] * values[(size_t)u * 3 * C + s];
                }
                for (u = t + 1; u < T; u++) {
                    score[u] = -INFINITY;
                    weight[u] = 0.0f;
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// One thread to an element of preatt.
__global__ void attention_query_key_kernel1(float* preatt, const float* inp, int B, int T, int C, int NH) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * NH * T * T) return;
    const int HS = C / NH;
    const int u = (int)(at % T);
    const int t = (int)(at / T % T);
    const size_t head = at / T / T;
    if (u > t) {
        preatt[at] = -INFINITY;
        return;
    }
    const float* first = inp + head / NH * T * 3 * C + head % NH * HS;
    const float* query = first + (size_t)t * 3 * C;
    const float* key = first + (size_t)u * 3 * C + C;
    float dot = 0.0f;
    for (int s = 0; s < HS; ++s) dot += query[s] * key[s];
    preatt[at] = dot * rsqrtf((float)HS);
}

// One thread to a row.
__global__ void attention_softmax_kernel1(float* att, const float* preatt, int B, int T, int NH) {
    const size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= (size_t)B * NH * T) return;
    const int own = (int)(row % T);
    const float* score = preatt + row * T;
    float* weight = att + row * T;
    float top = score[0], total = 0.0f;
    for (int u = 1; u <= own; ++u) top = fmaxf(top, score[u]);
    for (int u = 0; u <= own; ++u) total += expf(score[u] - top);
    for (int u = 0; u < T; ++u) weight[u] = u <= own ? expf(score[u] - top) / total : 0.0f;
}

// One block of whole warps to a row. Minus infinity becomes zero.
__global__ void softmax_forward_kernel4(float* out, const float* inp, int N, int C) {
    const int row = blockIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float* p = out + (size_t)row * C;
    float top = -INFINITY;
    for (int c = threadIdx.x; c < C; c += blockDim.x) top = fmaxf(top, x[c]);
    top = blockReduce<warpReduceMax>(top, false, -INFINITY);
    float total = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) total += expf(x[c] - top);
    total = blockReduce<warpReduceSum>(total);
    for (int c = threadIdx.x; c < C; c += blockDim.x) p[c] = expf(x[c] - top) / total;
}

// The components of a vector by number.
__device__ float& vec_at(float4& vec, int index) {
    return (&vec.x)[index];
}

__device__ float vec_at(const float4& vec, int index) {
    return (&vec.x)[index];
}

// Four scores from any address. Those behind the first left become minus infinity.
__device__ inline float4 load_scores(const float* address, int left) {
    if (left >= 4 && is_aligned128(address)) return *reinterpret_cast<const float4*>(address);
    float4 scores = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < left) vec_at(scores, i) = address[i];
    }
    return scores;
}

// Softmax of inv_temperature * inp over N squares of T x T, of which row t counts up to column t; zeros stand behind. One
// warp to a row, which finds maximum and sum in one pass.
__global__ void softmax_forward_kernel5(float* out, float inv_temperature, const float* inp, int N, int T) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const size_t idx = (size_t)blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= (size_t)N * T) return; // the whole warp leaves together
    const int count = (int)(idx % T) + 1;
    const float* x = inp + idx * T;
    float* p = out + idx * T;

    float top = -INFINITY, total = 0.0f;
    for (int u = 4 * warp.thread_rank(); u < count; u += 4 * warp.size()) {
        const float4 scores = load_scores(x + u, count - u);
        const float before = top;
        top = fmaxf(fmaxf(fmaxf(scores.x, scores.y), fmaxf(scores.z, scores.w)), before);
        if (top == -INFINITY) continue; // nothing has been seen that counts
        total *= expf(inv_temperature * (before - top));
        #pragma unroll
        for (int i = 0; i < 4; ++i) total += expf(inv_temperature * (vec_at(scores, i) - top));
    }
    const float top_of_row = cg::reduce(warp, top, cg::greater<float>{});
    const float scale = 1.0f / cg::reduce(warp, total * expf(inv_temperature * (top - top_of_row)), cg::plus<float>{});

    for (int u = 4 * warp.thread_rank(); u < T; u += 4 * warp.size()) {
        float4 scores = load_scores(x + u, count - u);
        #pragma unroll
        for (int i = 0; i < 4; ++i) vec_at(scores, i) = expf(inv_temperature * (vec_at(scores, i) - top_of_row)) * scale;
        if (u + 4 <= T && is_aligned128(p + u)) {
            *reinterpret_cast<float4*>(p + u) = scores;
        } else {
            for (int i = 0; i < 4 && u + i < T; ++i) p[u + i] = vec_at(scores, i);
        }
    }
}

// One thread to one head's row of out.
__global__ void attention_value_kernel1(float* out, const float* att, const float* inp, int B, int T, int C, int NH) {
    const size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; // of att
    if (row >= (size_t)B * NH * T) return;
    const int HS = C / NH;
    const int t = (int)(row % T);
    const int h = (int)(row / T % NH);
    const size_t b = row / T / NH;
    const float* weight = att + row * T;
    const float* values = inp + b * T * 3 * C + 2 * C + h * HS;
    float* y = out + (b * T + t) * C + h * HS;
    for (int s = 0; s < HS; ++s) {
        float total = 0.0f;
        for (int u = 0; u <= t; ++u) total += weight[u] * values[(size_t)u * 3 * C + s];
        y[s] = total;
    }
}

// Floats of shared memory that attention_forward_kernel2 wants for tiles of Br queries and Bc keys. Lines have a float
// more than they need, so that a column of them lies in different banks.
__host__ __device__ inline int flash_shared_floats(int d, int Bc, int Br) {
    return (2 * Br + 2 * Bc) * (d + 1) + Br * (Bc + 1) + 3 * Br;
}

// Q, K, V and O are (B, NH, N, d). gridDim = (B, NH, tiles of queries at a time). A block goes through the Tr tiles of Br
// queries; for each of those through the Tc tiles of Bc keys, as far as they are in the past. What has been summed of O is
// scaled down when a larger score comes. m and l are the maximum of a row of scores and the sum of exp(score - maximum).
__global__ void attention_forward_kernel2(const float* Q, const float* K, const float* V, const int N, const int d, const int Tc, const int Tr, const int Bc, const int Br, const float softmax_scale, float* l, float* m, float* O) {
    extern __shared__ __align__(16) float tiles[];
    const int pitch = d + 1, score_pitch = Bc + 1;
    float* query = tiles;
    float* sums = query + Br * pitch; // of the rows of O
    float* key = sums + Br * pitch;
    float* value = key + Bc * pitch;
    float* score = value + Bc * pitch;
    float* top = score + Br * score_pitch;
    float* total = top + Br;
    float* shrink = total + Br; // what the last tile did to the scale of a row
    const size_t head = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
    const size_t begin = head * N * d;

    for (int i = blockIdx.z; i < Tr; i += gridDim.z) {
        const int t0 = i * Br;
        const int rows = min(Br, N - t0);
        for (int e = threadIdx.x; e < rows * d; e += blockDim.x) {
            query[e / d * pitch + e % d] = Q[begin + (size_t)t0 * d + e] * softmax_scale;
            sums[e / d * pitch + e % d] = 0.0f;
        }
        for (int r = threadIdx.x; r < rows; r += blockDim.x) {
            top[r] = -INFINITY;
            total[r] = 0.0f;
        }
        for (int j = 0; j < Tc && j * Bc < t0 + rows; ++j) {
            const int u0 = j * Bc;
            const int columns = min(Bc, N - u0);
            for (int e = threadIdx.x; e < columns * d; e += blockDim.x) {
                key[e / d * pitch + e % d] = K[begin + (size_t)u0 * d + e];
                value[e / d * pitch + e % d] = V[begin + (size_t)u0 * d + e];
            }
            __syncthreads();
            for (int e = threadIdx.x; e < rows * columns; e += blockDim.x) {
                const int r = e / columns, c = e % columns;
                float dot = 0.0f;
                for (int s = 0; s < d; ++s) dot += query[r * pitch + s] * key[c * pitch + s];
                score[r * score_pitch + c] = u0 + c <= t0 + r ? dot : -INFINITY;
            }
            __syncthreads();
            for (int r = threadIdx.x; r < rows; r += blockDim.x) {
                // The first tile has a score for every row, so that the maximum is a number from then on.
                float largest = top[r], part = 0.0f;
                for (int c = 0; c < columns; ++c) largest = fmaxf(largest, score[r * score_pitch + c]);
                for (int c = 0; c < columns; ++c) {
                    const float p = expf(score[r * score_pitch + c] - largest);
                    score[r * score_pitch + c] = p;
                    part += p;
                }
                shrink[r] = expf(top[r] - largest);
                total[r] = total[r] * shrink[r] + part;
                top[r] = largest;
            }
            __syncthreads();
            for (int e = threadIdx.x; e < rows * d; e += blockDim.x) {
                const int r = e / d, s = e % d;
                float sum = sums[r * pitch + s] * shrink[r];
                for (int c = 0; c < columns; ++c) sum += score[r * score_pitch + c] * value[c * pitch + s];
                sums[r * pitch + s] = sum;
            }
            __syncthreads(); // the next tile of keys takes the place of this one
        }
        for (int e = threadIdx.x; e < rows * d; e += blockDim.x) {
            O[begin + (size_t)t0 * d + e] = sums[e / d * pitch + e % d] / total[e / d];
        }
        for (int r = threadIdx.x; r < rows; r += blockDim.x) {
            m[head * N + t0 + r] = top[r];
            l[head * N + t0 + r] = total[r];
        }
        __syncthreads(); // and so does the next tile of queries
    }
}

// (B, N, 3, NH, d) to three times (B, NH, N, d), one thread to an element of each.
__global__ void permute_kernel(float* q, float* k, float* v, const float* inp, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    const size_t line = at / d;
    const size_t b = line / N / NH, h = line / N % NH, n = line % N;
    const size_t from = ((b * N + n) * 3 * NH + h) * d + at % d;
    const size_t next = (size_t)NH * d;
    q[at] = __ldcs(inp + from);
    k[at] = __ldcs(inp + from + next);
    v[at] = __ldcs(inp + from + 2 * next);
}

// (B, NH, N, d) to (B, N, NH, d), one thread to an element of the input.
__global__ void unpermute_kernel(const float* inp, float *out, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    const size_t line = at / d;
    const size_t b = line / N / NH, h = line / N % NH, n = line % N;
    out[((b * N + n) * NH + h) * d + at % d] = __ldcs(inp + at);
}

// Scales squares of scores in place, and puts minus infinity above their diagonals.
__global__ void scale_kernel(float* inp, float scale, int B, int NH, int T) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * NH * T * T) return;
    const bool ahead = at % T > at / T % T;
    inp[at] = ahead ? -INFINITY : scale * inp[at];
}

// One warp to a row, all in one kernel. A lane makes the scores of every 32nd position, then every 32nd element of out.
__global__ void attention_forward_fused1(float* out, float* preatt, float* att, const float* inp, int B, int T, int C, int NH) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const size_t row = (size_t)blockIdx.x * warp.meta_group_size() + warp.meta_group_rank(); // of att
    if (row >= (size_t)B * NH * T) return; // the whole warp leaves together
    const int lane = warp.thread_rank();
    const int HS = C / NH;
    const int t = (int)(row % T);
    const int h = (int)(row / T % NH);
    const size_t b = row / T / NH;
    const float* first = inp + b * T * 3 * C + h * HS;
    const float* query = first + (size_t)t * 3 * C;
    const float scale = rsqrtf((float)HS);
    float* score = preatt + row * T;
    float* weight = att + row * T;

    float top = -INFINITY;
    for (int u = lane; u < T; u += 32) {
        float dot = -INFINITY;
        if (u <= t) {
            const float* key = first + (size_t)u * 3 * C + C;
            dot = 0.0f;
            for (int s = 0; s < HS; ++s) dot += query[s] * key[s];
        }
        score[u] = dot * scale;
        top = fmaxf(top, dot * scale);
    }
    top = cg::reduce(warp, top, cg::greater<float>{});
    float total = 0.0f;
    for (int u = lane; u <= t; u += 32) total += expf(score[u] - top);
    total = cg::reduce(warp, total, cg::plus<float>{});
    for (int u = lane; u < T; u += 32) weight[u] = u <= t ? expf(score[u] - top) / total : 0.0f;

    warp.sync(); // from here on a lane reads what others wrote
    for (int s = lane; s < HS; s += 32) {
        float sum = 0.0f;
        for (int u = 0; u <= t; ++u) sum += weight[u] * first[(size_t)u * 3 * C + 2 * C + s];
        out[(b * T + t) * C + h * HS + s] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32 from attention_forward3 on

void attention_forward1(float* out, float* preatt, float* att, const float* inp, int B, int T, int C, int NH, const int block_size) {
    assert(C % NH == 0);
    const int rows = B * NH * T;
    attention_query_key_kernel1<<<ceil_div(rows * T, block_size), block_size>>>(preatt, inp, B, T, C, NH);
    cudaCheck(cudaGetLastError());
    attention_softmax_kernel1<<<ceil_div(rows, block_size), block_size>>>(att, preatt, B, T, NH);
    cudaCheck(cudaGetLastError());
    attention_value_kernel1<<<ceil_div(rows, block_size), block_size>>>(out, att, inp, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

void attention_forward2(float* out, const float* inp, int B, int T, int C, int NH, const int block_size) {
    assert(C % NH == 0);
    const int HS = C / NH;
    const int count = B * T * C;
    // Wide heads take small tiles, for what shared memory there is.
    const int tile = HS > 128 ? 8 : 32;
    const int tiles = ceil_div(T, tile);
    const int smem = flash_shared_floats(HS, tile, tile) * (int)sizeof(float);
    cudaCheck(cudaFuncSetAttribute(attention_forward_kernel2, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));

    float* heads; // q, k, v and the result, each (B, NH, T, HS)
    float* statistics; // two for each row
    cudaCheck(cudaMalloc(&heads, 4 * count * sizeof(float)));
    cudaCheck(cudaMalloc(&statistics, 2 * B * NH * T * sizeof(float)));
    float* q = heads;
    float* k = q + count;
    float* v = k + count;
    float* o = v + count;
    permute_kernel<<<ceil_div(count, block_size), block_size>>>(q, k, v, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
    const dim3 grid(B, NH, tiles < 1024 ? tiles : 1024);
    attention_forward_kernel2<<<grid, block_size, smem>>>(q, k, v, T, HS, tiles, tiles, tile, tile, 1.0f / sqrtf((float)HS), statistics, statistics + B * NH * T, o);
    cudaCheck(cudaGetLastError());
    unpermute_kernel<<<ceil_div(count, block_size), block_size>>>(o, out, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaFree(heads));
    cudaCheck(cudaFree(statistics));
}

// qkvr holds 3 * B * T * C floats, vaccum B * T * C. cuBLAS counts columns first, so that it sees every matrix transposed:
// preatt^T = k q^T, and (att v)^T = v^T att^T.
void attention_forward3(float* out, float* vaccum, float* qkvr, float* preatt, float* att, const float* inp, int B, int T, int C, int NH, const int block_size) {
    assert(C % NH == 0 && block_size % 32 == 0);
    const int HS = C / NH;
    const int count = B * T * C;
    const float* q = qkvr;
    const float* k = qkvr + count;
    const float* v = qkvr + 2 * count;
    permute_kernel<<<ceil_div(count, block_size), block_size>>>(qkvr, qkvr + count, qkvr + 2 * count, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());

    const float one = 1.0f;
    const float zero = 0.0f;
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &one, k, HS, T * HS, q, HS, T * HS, &zero, preatt, T, T * T, B * NH));
    scale_kernel<<<ceil_div(B * NH * T * T, block_size), block_size>>>(preatt, 1.0f / sqrtf((float)HS), B, NH, T);
    cudaCheck(cudaGetLastError());
    softmax_forward_kernel4<<<B * NH * T, block_size>>>(att, preatt, B * NH * T, T);
    cudaCheck(cudaGetLastError());
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, HS, T, T, &one, v, HS, T * HS, att, T, T * T, &zero, vaccum, HS, T * HS, B * NH));
    unpermute_kernel<<<ceil_div(count, block_size), block_size>>>(vaccum, out, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

// As attention_forward3; preatt is neither scaled nor masked.
void attention_forward4(float* out, float* vaccum, float* qkvr, float* preatt, float* att, const float* inp, int B, int T, int C, int NH, const int block_size) {
    assert(C % NH == 0 && block_size % 32 == 0);
    const int HS = C / NH, heads = B * NH;
    const int elements = heads * T * HS;
    float* q = qkvr;
    float* k = q + elements;
    float* v = k + elements;
    permute_kernel<<<ceil_div(elements, block_size), block_size>>>(q, k, v, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());

    const float one = 1.0f;
    const float zero = 0.0f;
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &one, k, HS, T * HS, q, HS, T * HS, &zero, preatt, T, T * T, heads));
    const int rows_per_block = block_size / 32;
    softmax_forward_kernel5<<<ceil_div(heads * T, rows_per_block), block_size>>>(att, 1.0f / sqrtf((float)HS), preatt, heads, T);
    cudaCheck(cudaGetLastError());
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, HS, T, T, &one, v, HS, T * HS, att, T, T * T, &zero, vaccum, HS, T * HS, heads));
    unpermute_kernel<<<ceil_div(elements, block_size), block_size>>>(vaccum, out, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

// ---------------------------------------------------------------------------------------------------------------
// 16 bits

// As softmax_forward_kernel5; packets of eight.
__global__ void softmax_forward_kernel5_lowp(floatX* out, float inv_temperature, const floatX* inp, int N, int T) {
    const int lane = threadIdx.x % WARP_SIZE;
    const size_t idx = (size_t)blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (idx >= (size_t)N * T) return; // the whole warp leaves together
    const int count = (int)(idx % T) + 1;
    const floatX* x = inp + idx * T;
    const int first = lane * x128::size, step = WARP_SIZE * x128::size;

    float top = -INFINITY, total = 0.0f;
    for (int u = first; u < count; u += step) {
        const x128 scores = load_packet(x + u, count - u);
        const float before = top;
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            if (u + i < count) top = fmaxf(top, (float)scores[i]);
        }
        if (top == -INFINITY) continue; // nothing has been seen that counts
        total *= expf(inv_temperature * (before - top));
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            if (u + i < count) total += expf(inv_temperature * ((float)scores[i] - top));
        }
    }
    const float top_of_row = warpReduceMax(top);
    const float scale = 1.0f / warpReduceSum(total * expf(inv_temperature * (top - top_of_row)));

    for (int u = first; u < T; u += step) {
        const x128 scores = load_packet(x + u, count - u > 0 ? count - u : 0);
        x128 weights = x128::zeros();
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            if (u + i < count) weights[i] = (floatX)(expf(inv_temperature * ((float)scores[i] - top_of_row)) * scale);
        }
        store_packet(out + idx * T + u, weights, T - u);
    }
}

__global__ void permute_kernel_lowp(floatX* q, floatX* k, floatX* v, const float* inp, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    const size_t line = at / d;
    const size_t b = line / N / NH, h = line / N % NH, n = line % N;
    const float* packed = inp + ((b * N + n) * 3 * NH + h) * d + at % d;
    q[at] = (floatX)__ldcs(packed);
    k[at] = (floatX)__ldcs(packed + NH * d);
    v[at] = (floatX)__ldcs(packed + 2 * NH * d);
}

__global__ void unpermute_kernel_lowp(const floatX* inp, float *out, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    const size_t line = at / d;
    const size_t b = line / N / NH, h = line / N % NH, n = line % N;
    out[((b * N + n) * NH + h) * d + at % d] = (float)inp[at];
}

void attention_forward5(float* out, floatX* vaccum, floatX* qkvr, floatX* preatt, floatX* att, const float* inp, int B, int T, int C, int NH, const int block_size, bool skip_permute=false) {
    assert(C % NH == 0 && block_size % 32 == 0);
    const int HS = C / NH, heads = B * NH;
    const int elements = heads * T * HS;
    const bool permuting = !skip_permute || first_run_validation;
    floatX* q = qkvr;
    floatX* k = q + elements;
    floatX* v = k + elements;
    if (permuting) {
        permute_kernel_lowp<<<ceil_div(elements, block_size), block_size>>>(q, k, v, inp, B, T, NH, HS);
        cudaCheck(cudaGetLastError());
    }

    const float one = 1.0f;
    const float zero = 0.0f;
    cublasCheck(cublasGemmStridedBatchedEx(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &one, k, CUBLAS_LOWP, HS, T * HS, q, CUBLAS_LOWP, HS, T * HS, &zero, preatt, CUBLAS_LOWP, T, T * T, heads, CUBLAS_LOWP_COMPUTE, CUBLAS_GEMM_DEFAULT));
    const int rows_per_block = block_size / 32;
    softmax_forward_kernel5_lowp<<<ceil_div(heads * T, rows_per_block), block_size>>>(att, 1.0f / sqrtf((float)HS), preatt, heads, T);
    cudaCheck(cudaGetLastError());
    cublasCheck(cublasGemmStridedBatchedEx(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, HS, T, T, &one, v, CUBLAS_LOWP, HS, T * HS, att, CUBLAS_LOWP, T, T * T, &zero, vaccum, CUBLAS_LOWP, HS, T * HS, heads, CUBLAS_LOWP_COMPUTE, CUBLAS_GEMM_DEFAULT));
    if (permuting) {
        unpermute_kernel_lowp<<<ceil_div(elements, block_size), block_size>>>(vaccum, out, B, T, NH, HS);
        cudaCheck(cudaGetLastError());
    }
}

// These know no length: the grid has exactly one thread for each element.
__global__ void fp32_to_lowp_kernel(floatX* out, const float* inp) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    out[at] = (floatX)inp[at];
}

__global__ void lowp_to_fp32_kernel(const floatX* inp, float *out) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    out[at] = (float)inp[at];
}

// ---------------------------------------------------------------------------------------------------------------

// stats is what attention of a library would keep for its backward pass; none of these kernels does. Kernels 5 and 6 use
// the scratch arrays as arrays of 16-bit numbers.
void attention_forward(int kernel_num, float* out, float* stats, float* vaccum, float* qkvr, float* preatt, float* att, float* inp, int B, int T, int C, int NH, const int block_size) {
    switch (kernel_num) {
        case 1: attention_forward1(out, preatt, att, inp, B, T, C, NH, block_size); break;
        case 2: attention_forward2(out, inp, B, T, C, NH, block_size); break;
        case 3: attention_forward3(out, vaccum, qkvr, preatt, att, inp, B, T, C, NH, block_size); break;
        case 4: attention_forward4(out, vaccum, qkvr, preatt, att, inp, B, T, C, NH, block_size); break;
        case 5: attention_forward5(out, (floatX*)vaccum, (floatX*)qkvr, (floatX*)preatt, (floatX*)att, inp, B, T, C, NH, block_size, false); break;
        case 6: attention_forward5(out, (floatX*)vaccum, (floatX*)qkvr, (floatX*)preatt, (floatX*)att, inp, B, T, C, NH, block_size, true); break;
        case 7: {
            assert(C % NH == 0 && block_size % 32 == 0);
            attention_forward_fused1<<<ceil_div(B * NH * T, block_size / 32), block_size>>>(out, preatt, att, inp, B, T, C, NH);
            cudaCheck(cudaGetLastError());
            break;
        }
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// Whether a number is the same after the way to 16 bits and back, but for rounding.
static void check_conversions() {
    const int count = 1024;
    float* numbers = make_random_float(count);
    float* d_numbers = make_device_array<float>(count, numbers);
    floatX* d_short = make_device_array<floatX>(count);
    fp32_to_lowp_kernel<<<count / 128, 128>>>(d_short, d_numbers);
    cudaCheck(cudaGetLastError());
    validate_result(d_short, numbers, "16 bits", count, 1e-6f);
    for (int i = 0; i < count; ++i) numbers[i] = (float)(floatX)numbers[i];
    lowp_to_fp32_kernel<<<count / 128, 128>>>(d_short, d_numbers);
    cudaCheck(cudaGetLastError());
    validate_result(d_numbers, numbers, "32 bits", count, 0.0f);
    free(numbers);
    cudaCheck(cudaFree(d_numbers));
    cudaCheck(cudaFree(d_short));
}

static void check_shape(int kernel_num, int B, int T, int C, int NH, bool timed) {
    const size_t outputs = (size_t)B * T * C, squares = (size_t)B * NH * T * T;
    float* inp = make_random_float(3 * outputs);
    for (size_t i = 0; i < 3 * outputs; ++i) inp[i] = 0.5f + 2.0f * inp[i];
    float* wanted = make_zeros_float(outputs);
    float* wanted_preatt = make_zeros_float(squares);
    float* wanted_att = make_zeros_float(squares);
    attention_forward_cpu(wanted, wanted_preatt, wanted_att, inp, B, T, C, NH);
    float* d_inp = make_device_array<float>(3 * outputs, inp);
    float* d_out = make_device_array<float>(outputs);
    float* d_stats = make_device_array<float>((size_t)B * NH * T);
    float* d_vaccum = make_device_array<float>(outputs);
    float* d_qkvr = make_device_array<float>(3 * outputs);
    float* d_preatt = make_device_array<float>(squares);
    float* d_att = make_device_array<float>(squares);

    printf("B=%d T=%d C=%d NH=%d\n", B, T, C, NH);
    const bool short_floats = kernel_num == 5 || kernel_num == 6;
    first_run_validation = true;
    for (int block_size : {32, 64, 128, 256, 512}) {
        for (float* array : {d_out, d_vaccum}) cudaCheck(cudaMemset(array, 0xff, outputs * sizeof(float)));
        for (float* array : {d_preatt, d_att}) cudaCheck(cudaMemset(array, 0xff, squares * sizeof(float)));
        attention_forward(kernel_num, d_out, d_stats, d_vaccum, d_qkvr, d_preatt, d_att, d_inp, B, T, C, NH, block_size);
        validate_result(d_out, wanted, "out", outputs, short_floats ? 5e-2f : 1e-4f);
        if (short_floats) validate_result((floatX*)d_att, wanted_att, "att", squares, 5e-2f);
        else if (kernel_num != 2) validate_result(d_att, wanted_att, "att", squares, 1e-4f);
    }
    first_run_validation = false;
    for (int block_size : {32, 64, 128, 256, 512}) {
        if (!timed) break;
        const float ms = benchmark_kernel(20, attention_forward, kernel_num, d_out, d_stats, d_vaccum, d_qkvr, d_preatt, d_att, d_inp, B, T, C, NH, block_size);
        printf("block %4d: %.4f ms\n", block_size, ms);
    }

    for (float* array : {inp, wanted, wanted_preatt, wanted_att}) free(array);
    for (float* array : {d_inp, d_out, d_stats, d_vaccum, d_qkvr, d_preatt, d_att}) cudaCheck(cudaFree(array));
}

int main(int argc, char **argv) {
    setup_main();
    cublasCheck(cublasCreate(&cublas_handle));
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 4;
    printf("kernel %d\n", kernel_num);
    check_conversions();
    check_shape(kernel_num, 2, 37, 15, 3, false);
    check_shape(kernel_num, 1, 9, 400, 2, false);
    check_shape(kernel_num, 4, 1024, 768, 12, true);
    cublasCheck(cublasDestroy(cublas_handle));
    return 0;
}
