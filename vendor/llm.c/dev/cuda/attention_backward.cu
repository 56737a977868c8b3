/*
Causal attention, backward. With the gradient dout of out = att v:
datt = dout v^T, dv = att^T dout, ds = att * (datt - (row sums of att * datt)), dq = ds k / sqrt(HS), dk = ds^T q / sqrt(HS).
Layouts are those of attention_forward.cu. The products are cuBLAS's; what differs between the kernels is ds.

The reference's dpreatt is ds. That of the kernels has the factor 1 / sqrt(HS) in it, so that no product needs it. They
write the whole square of T x T, with zeros above the diagonal, and do not care what datt holds there.

nvcc -O3 -std=c++17 attention_backward.cu -lcublas -o attention_backward
./attention_backward [kernel number]

1  one thread to an element
2  one thread to a row
3  one warp to a row, cooperative groups
4  one warp to a row, packets of 128 bits
5  one block to a row
6  one block to two rows, a short and a long one, so that all blocks have the same to do
7  one block to a row, which stays in registers; the long rows first
8  one warp to a row, packets of 128 bits, streamed; the long rows first
*/
#define WITH_CUBLAS
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

static cublasHandle_t cublas_handle;

// ---------------------------------------------------------------------------------------------------------------
// references

void attention_forward_cpu(float* out, float* preatt, float* att, float* inp, int B, int T, int C, int NH) {
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

/* Adds to dinp, dpreatt and datt. */
void attention_backward_cpu(float* dinp, float* dpreatt, float* datt, float* dout, float* inp, float* att, int B, int T, int C, int NH) {
    int b, h, t, u, s;
    int HS = C / NH;
    float scale = 1.0f / sqrtf((float)HS);
    for (b = 0; b < B; b++) {
        for (h = 0; h < NH; h++) {
            for (t = 0; t < T; t++) {
                size_t row = ((size_t)b * NH + h) * T + t;
                size_t query = ((size_t)b * T + t) * 3 * C + h * HS;
                const float* dy = dout + ((size_t)b * T + t) * C + h * HS;
                const float* weight = att + row * T;
                float dot = 0.0f;
                for (u = 0; u <= t; u++) {
                    size_t value = ((size_t)b * T + u) * 3 * C + 2 * C + h * HS;
                    for (s = 0; s < HS; s++) {
                        datt[row * T + u] += dy[s] * inp[value + s];
                        dinp[value + s] += dy[s] * weight[u];
                    }
                    dot += weight[u] * datt[row * T + u];
                }
                for (u = 0; u <= t; u++) {
                    size_t key = ((size_t)b * T + u) * 3 * C + C + h * HS;
                    float slope = weight[u] * (datt[row * T + u] - dot);
                    dpreatt[row * T + u] += slope;
                    for (s = 0; s < HS; s++) {
                        dinp[query + s] += slope * scale * inp[key + s];
                        dinp[key + s] += slope * scale * inp[query + s];
                    }
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// permutations, one thread to an element

// Where an element of (B, NH, N, d) stands in (B, N, parts, NH, d): the first of its parts.
__device__ inline size_t packed_position(size_t at, int N, int NH, int d, int parts) {
    const size_t s = at % d, line = at / d;
    const size_t n = line % N, h = line / N % NH, b = line / N / NH;
    return ((b * N + n) * parts * NH + h) * d + s;
}

__global__ void permute_kernel(float* q, float* k, float* v, const float* inp, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    const float* packed = inp + packed_position(at, N, NH, d, 3);
    q[at] = packed[0];
    k[at] = packed[NH * d];
    v[at] = packed[2 * NH * d];
}

__global__ void permute_kernel_backward(float* dinp, const float* dq, const float* dk, const float* dv, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * N * NH * d) return;
    float* packed = dinp + packed_position(at, N, NH, d, 3);
    packed[0] = dq[at];
    packed[NH * d] = dk[at];
    packed[2 * NH * d] = dv[at];
}

__global__ void unpermute_kernel(const float* inp, float *out, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < (size_t)B * N * NH * d) out[packed_position(at, N, NH, d, 1)] = inp[at];
}

__global__ void unpermute_kernel_backward(float* dinp, const float *dout, int B, int N, int NH, int d) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < (size_t)B * N * NH * d) dinp[at] = dout[packed_position(at, N, NH, d, 1)];
}

// ---------------------------------------------------------------------------------------------------------------
// softmax, forward

// The components of a vector by number.
__device__ float& vec_at(float4& vec, int index) {
    return (&vec.x)[index];
}

__device__ float vec_at(const float4& vec, int index) {
    return (&vec.x)[index];
}

// Softmax of inv_temperature * inp over N squares of T x T, of which row t counts up to column t; zeros stand behind. One
// warp to a row. Where rows begin at multiples of 16 bytes they are read in vectors, but for their last elements.
__global__ void softmax_forward_kernel5(float* out, float inv_temperature, const float* inp, int N, int T) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const size_t idx = (size_t)blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= (size_t)N * T) return; // the whole warp leaves together
    const int lane = warp.thread_rank();
    const int count = (int)(idx % T) + 1;
    const float* x = inp + idx * T;
    float* p = out + idx * T;
    const int in_vectors = is_aligned128(x) ? count / 4 * 4 : 0;

    float top = -INFINITY;
    for (int u = 4 * lane; u < in_vectors; u += 128) {
        const float4 scores = *reinterpret_cast<const float4*>(x + u);
        for (int i = 0; i < 4; ++i) top = fmaxf(top, vec_at(scores, i));
    }
    for (int u = in_vectors + lane; u < count; u += 32) top = fmaxf(top, x[u]);
    top = cg::reduce(warp, top, cg::greater<float>{});

    float total = 0.0f;
    for (int u = 4 * lane; u < in_vectors; u += 128) {
        float4 scores = *reinterpret_cast<const float4*>(x + u);
        for (int i = 0; i < 4; ++i) total += expf(inv_temperature * (vec_at(scores, i) - top));
    }
    for (int u = in_vectors + lane; u < count; u += 32) total += expf(inv_temperature * (x[u] - top));
    const float scale = 1.0f / cg::reduce(warp, total, cg::plus<float>{});

    for (int u = lane; u < T; u += 32) __stcs(p + u, u < count ? expf(inv_temperature * (x[u] - top)) * scale : 0.0f);
}

// ---------------------------------------------------------------------------------------------------------------
// softmax, backward

__global__ void softmax_autoregressive_backward_kernel1(float* dpreatt, const float* datt, const float* att, int B, int T, int C, int NH) {
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)B * NH * T * T) return;
    const int own = (int)(at / T % T), u = (int)(at % T);
    const size_t begin = at - u;
    if (u > own) {
        dpreatt[at] = 0.0f;
        return;
    }
    float dot = 0.0f;
    for (int w = 0; w <= own; ++w) dot += att[begin + w] * datt[begin + w];
    dpreatt[at] = rsqrtf((float)(C / NH)) * att[at] * (datt[at] - dot);
}

__global__ void softmax_autoregressive_backward_kernel2(float* dpreatt, const float* datt, const float* att, int B, int T, int C, int NH) {
    const size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= (size_t)B * NH * T) return;
    const size_t begin = row * T, past = begin + row % T + 1;
    const float scale = rsqrtf((float)(C / NH));
    float dot = 0.0f;
    for (size_t at = begin; at < past; ++at) dot += att[at] * datt[at];
    for (size_t at = begin; at < past; ++at) dpreatt[at] = scale * att[at] * (datt[at] - dot);
    for (size_t at = past; at < begin + T; ++at) dpreatt[at] = 0.0f;
}

__global__ void softmax_autoregressive_backward_kernel3(float* dpreatt, const float* datt, const float* att, int B, int T, int C, int NH) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const size_t row = (size_t)blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= (size_t)B * NH * T) return; // the whole warp leaves together
    const int own = (int)(row % T);
    const float scale = rsqrtf((float)(C / NH));
    const float* weight = att + row * T;
    const float* gradient = datt + row * T;
    float dot = 0.0f;
    for (int u = warp.thread_rank(); u <= own; u += warp.size()) dot += weight[u] * gradient[u];
    dot = cg::reduce(warp, dot, cg::plus<float>{});
    for (int u = warp.thread_rank(); u < T; u += warp.size()) {
        dpreatt[row * T + u] = u <= own ? scale * weight[u] * (gradient[u] - dot) : 0.0f;
    }
}

// One row, to be done by a warp. Whole says that the row is made of whole packets at multiples of 16 bytes. Of packets on
// the diagonal, what is above it may be read, and does not count.
template<bool Whole>
__device__ inline void row_of_packets(float* slope, const float* gradient, const float* weight, int own, int T, float scale) {
    const int first = threadIdx.x % WARP_SIZE * f128::size, step = WARP_SIZE * f128::size;
    float dot = 0.0f;
    for (int u = first; u <= own; u += step) {
        const f128 a = load_packet<Whole>(weight + u, own + 1 - u);
        const f128 g = load_packet<Whole>(gradient + u, own + 1 - u);
        #pragma unroll
        for (int i = 0; i < f128::size; ++i) dot += u + i <= own ? a[i] * g[i] : 0.0f;
    }
    dot = warpReduceSum(dot);
    for (int u = first; u < T; u += step) {
        f128 result = f128::zeros();
        if (u <= own) {
            const f128 a = load_packet<Whole>(weight + u, own + 1 - u);
            const f128 g = load_packet<Whole>(gradient + u, own + 1 - u);
            #pragma unroll
            for (int i = 0; i < f128::size; ++i) result[i] = u + i <= own ? scale * a[i] * (g[i] - dot) : 0.0f;
        }
        if constexpr (Whole) store128cs(slope + u, result);
        else store_packet(slope + u, result, T - u);
    }
}

__global__ void softmax_autoregressive_backward_kernel4(float* __restrict__ dpreatt, const float* __restrict__ datt, const float* __restrict__ att, int B, int T, int C, int NH) {
    const size_t row = (size_t)blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= (size_t)B * NH * T) return; // the whole warp leaves together
    const float scale = rsqrtf((float)(C / NH));
    row_of_packets<false>(dpreatt + row * T, datt + row * T, att + row * T, (int)(row % T), T, scale);
}

__global__ void softmax_autoregressive_backward_kernel5(float* __restrict__ dpreatt, const float* __restrict__ datt, const float* __restrict__ att, int B, int T, int C, int NH) {
    const size_t row = blockIdx.x;
    if (row >= (size_t)B * NH * T) return; // the whole block leaves together
    const int own = (int)(row % T);
    const float scale = rsqrtf((float)(C / NH));
    const float* weight = att + row * T;
    const float* gradient = datt + row * T;
    float dot = 0.0f;
    for (int u = threadIdx.x; u <= own; u += blockDim.x) dot += weight[u] * gradient[u];
    dot = blockReduce<warpReduceSum>(dot);
    float* slope = dpreatt + row * T;
    for (int u = threadIdx.x; u <= own; u += blockDim.x) slope[u] = scale * weight[u] * (gradient[u] - dot);
    for (int u = own + 1 + threadIdx.x; u < T; u += blockDim.x) slope[u] = 0.0f;
}

// gridDim = (half of T, rounded up; B * NH). Of a square's rows, a block takes the one that is as far from the first as
// the other is from the last.
template<int BlockSize>
__global__ void __launch_bounds__(BlockSize) softmax_autoregressive_backward_kernel6(float* dpreatt, const float* datt, const float* att, int B, int T, int C, int NH) {
    const int ends[2] = {(int)blockIdx.x, T - 1 - (int)blockIdx.x};
    const int rows = ends[0] == ends[1] ? 1 : 2; // T may be odd
    if (ends[0] > ends[1]) return;
    const size_t square = (size_t)blockIdx.y * T * T;
    const float scale = rsqrtf((float)(C / NH));
    float dots[2] = {};
    #pragma unroll
    for (int n = 0; n < 2; ++n) {
        const size_t begin = square + (size_t)ends[n] * T;
        for (int u = threadIdx.x; u <= ends[n]; u += BlockSize) dots[n] += att[begin + u] * datt[begin + u];
        dots[n] = blockReduce<warpReduceSum>(dots[n], true, 0.0f);
    }
    for (int n = 0; n < rows; ++n) {
        const size_t begin = square + (size_t)ends[n] * T;
        for (int u = threadIdx.x; u < T; u += BlockSize) {
            dpreatt[begin + u] = u <= ends[n] ? scale * att[begin + u] * (datt[begin + u] - dots[n]) : 0.0f;
        }
    }
}

// gridDim = (T, B * NH). Rows of up to 8 * BlockSize elements are read once; what is longer is read again.
template<int BlockSize>
__global__ void softmax_autoregressive_backward_kernel7(float* dpreatt, const float* datt, const float* att, int B, int T, int C, float scale) {
    constexpr int kept = 8;
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int me = block.thread_rank();
    const int own = T - 1 - (int)blockIdx.x;
    if (own < 0) return; // the whole block leaves together
    const size_t begin = ((size_t)blockIdx.y * T + own) * T;
    float weight[kept], gradient[kept];
    float dot = 0.0f;
    #pragma unroll
    for (int n = 0; n < kept; ++n) {
        const int u = n * BlockSize + me;
        weight[n] = u <= own ? __ldcs(att + begin + u) : 0.0f;
        gradient[n] = u <= own ? __ldcs(datt + begin + u) : 0.0f;
        dot += weight[n] * gradient[n];
    }
    for (int u = kept * BlockSize + me; u <= own; u += BlockSize) dot += att[begin + u] * datt[begin + u];
    dot = cg::reduce(warp, dot, cg::plus<float>{});
    if constexpr (BlockSize > 32) {
        __shared__ float of_warp[BlockSize / 32];
        if (warp.thread_rank() == 0) of_warp[warp.meta_group_rank()] = dot;
        block.sync();
        dot = cg::reduce(warp, warp.thread_rank() < BlockSize / 32 ? of_warp[warp.thread_rank()] : 0.0f, cg::plus<float>{});
    }
    #pragma unroll
    for (int n = 0; n < kept; ++n) {
        const int u = n * BlockSize + me;
        if (u < T) __stcs(dpreatt + begin + u, u <= own ? scale * weight[n] * (gradient[n] - dot) : 0.0f);
    }
    for (int u = kept * BlockSize + me; u < T; u += BlockSize) {
        dpreatt[begin + u] = u <= own ? scale * att[begin + u] * (datt[begin + u] - dot) : 0.0f;
    }
}

// gridDim = (T divided by the warps of a block, rounded up; B * NH).
template<int BlockSize>
__global__ void softmax_autoregressive_backward_kernel8(float* dpreatt, const float* datt, const float* att, int B, int T, int C, float scale) {
    constexpr int warps = BlockSize / WARP_SIZE;
    const int own = T - 1 - (int)(blockIdx.x * warps + threadIdx.x / WARP_SIZE);
    if (own < 0) return; // the whole warp leaves together
    const size_t begin = ((size_t)blockIdx.y * T + own) * T;
    float* slope = dpreatt + begin;
    const float* gradient = datt + begin;
    const float* weight = att + begin;
    if (T % f128::size == 0 && is_aligned128(slope) && is_aligned128(gradient) && is_aligned128(weight)) {
        row_of_packets<true>(slope, gradient, weight, own, T, scale);
    } else {
        row_of_packets<false>(slope, gradient, weight, own, T, scale);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32

// cuBLAS counts columns first, so that it sees every matrix transposed: preatt^T = k q^T, and (att v)^T = v^T att^T.
void attention_forward(float* out, float* vaccum, float* qkvr, float* preatt, float* att, const float* inp, int B, int T, int C, int NH, const int block_size) {
    assert(C % NH == 0 && block_size % 32 == 0);
    const int HS = C / NH;
    const int count = B * T * C;
    float* q = qkvr;
    float* k = q + count;
    float* v = k + count;
    const float one = 1.0f;
    const float zero = 0.0f;
    permute_kernel<<<ceil_div(count, block_size), block_size>>>(q, k, v, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &one, k, HS, T * HS, q, HS, T * HS, &zero, preatt, T, T * T, B * NH));
    softmax_forward_kernel5<<<ceil_div(B * NH * T, block_size / 32), block_size>>>(att, 1.0f / sqrtf((float)HS), preatt, B * NH, T);
    cudaCheck(cudaGetLastError());
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, HS, T, T, &one, v, HS, T * HS, att, T, T * T, &zero, vaccum, HS, T * HS, B * NH));
    unpermute_kernel<<<ceil_div(count, block_size), block_size>>>(vaccum, out, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_1(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    softmax_autoregressive_backward_kernel1<<<ceil_div(B * NH * T * T, block_size), block_size>>>(dpreatt, datt, att, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_2(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    softmax_autoregressive_backward_kernel2<<<ceil_div(B * NH * T, block_size), block_size>>>(dpreatt, datt, att, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_3(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    assert(block_size % 32 == 0);
    const int rows = B * NH * T;
    softmax_autoregressive_backward_kernel3<<<ceil_div(rows, block_size / 32), block_size>>>(dpreatt, datt, att, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_4(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    assert(block_size % 32 == 0);
    const int rows = B * NH * T;
    softmax_autoregressive_backward_kernel4<<<ceil_div(rows, block_size / 32), block_size>>>(dpreatt, datt, att, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_5(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    assert(block_size % 32 == 0);
    softmax_autoregressive_backward_kernel5<<<B * NH * T, block_size>>>(dpreatt, datt, att, B, T, C, NH);
    cudaCheck(cudaGetLastError());
}

// Calls launch with a block size that the compiler knows.
template<class Launcher>
void dispatch_launch(Launcher&& launch, int block_size) {
    assert(block_size % 32 == 0);
    switch (block_size) {
        case 1024: launch(std::integral_constant<int, 1024>{}); break;
        case 512: launch(std::integral_constant<int, 512>{}); break;
        case 256: launch(std::integral_constant<int, 256>{}); break;
        case 128: launch(std::integral_constant<int, 128>{}); break;
        case 64: launch(std::integral_constant<int, 64>{}); break;
        case 32: launch(std::integral_constant<int, 32>{}); break;
        default: assert(false && "block_size is a power of two from 32 to 1024");
    }
}

void launch_softmax_6(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    const dim3 grid(ceil_div(T, 2), B * NH);
    auto launch = [&](auto threads) {
        softmax_autoregressive_backward_kernel6<threads.value><<<grid, threads.value>>>(dpreatt, datt, att, B, T, C, NH);
    };
    dispatch_launch(launch, block_size);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_7(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    const float scale = 1.0f / sqrtf((float)(C / NH));
    auto launch = [&](auto threads) {
        softmax_autoregressive_backward_kernel7<threads.value><<<dim3(T, B * NH), threads.value>>>(dpreatt, datt, att, B, T, C, scale);
    };
    dispatch_launch(launch, block_size);
    cudaCheck(cudaGetLastError());
}

void launch_softmax_8(float* dpreatt, float* datt, const float* att, int B, int T, int C, int NH, int block_size) {
    const float scale = 1.0f / sqrtf((float)(C / NH));
    auto launch = [&](auto threads) {
        const dim3 grid(ceil_div(T, threads.value / 32), B * NH);
        softmax_autoregressive_backward_kernel8<threads.value><<<grid, threads.value>>>(dpreatt, datt, att, B, T, C, scale);
    };
    dispatch_launch(launch, block_size);
    cudaCheck(cudaGetLastError());
}

// Writes dinp and the scratch arrays dqkvr, dpreatt, datt and dvaccum; qkvr and att are what the forward pass left.
template<class SoftmaxKernel>
void attention_backward1(float* dinp, float* dqkvr, float* dpreatt, float* datt, float* dvaccum, const float* dout, const float* inp, const float* qkvr, const float* preatt, const float* att, const float* vaccum, int B, int T, int C, int NH, SoftmaxKernel softmax_autoregressive_backward, const int block_size) {
    assert(C % NH == 0);
    const int HS = C / NH, heads = B * NH;
    const int count = B * T * C;
    const float* q = qkvr;
    const float* k = qkvr + count;
    const float* v = qkvr + 2 * count;
    float* dq = dqkvr;
    float* dk = dqkvr + count;
    float* dv = dqkvr + 2 * count;
    const float one = 1.0f;
    const float zero = 0.0f;
    unpermute_kernel_backward<<<ceil_div(count, block_size), block_size>>>(dvaccum, dout, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
    // datt^T = v dvaccum^T, dv^T = dvaccum^T att
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &one, v, HS, T * HS, dvaccum, HS, T * HS, &zero, datt, T, T * T, heads));
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_T, HS, T, T, &one, dvaccum, HS, T * HS, att, T, T * T, &zero, dv, HS, T * HS, heads));
    softmax_autoregressive_backward(dpreatt, datt, att, B, T, C, NH, block_size);
    // dq^T = k^T dpreatt^T, dk^T = q^T dpreatt
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_N, HS, T, T, &one, k, HS, T * HS, dpreatt, T, T * T, &zero, dq, HS, T * HS, heads));
    cublasCheck(cublasSgemmStridedBatched(cublas_handle, CUBLAS_OP_N, CUBLAS_OP_T, HS, T, T, &one, q, HS, T * HS, dpreatt, T, T * T, &zero, dk, HS, T * HS, heads));
    permute_kernel_backward<<<ceil_div(count, block_size), block_size>>>(dinp, dq, dk, dv, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

void attention_backward(int kernel_num, float* dinp, float* dqkvr, float* dpreatt, float* datt, float* dvaccum, const float* dout, const float* inp, const float* qkvr, const float* preatt, const float* att, const float* vaccum, int B, int T, int C, int NH, const int block_size) {
    switch (kernel_num) {
        case 1: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_1, block_size); break;
        case 2: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_2, block_size); break;
        case 3: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_3, block_size); break;
        case 4: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_4, block_size); break;
        case 5: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_5, block_size); break;
        case 6: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_6, block_size); break;
        case 7: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_7, block_size); break;
        case 8: attention_backward1(dinp, dqkvr, dpreatt, datt, dvaccum, dout, inp, qkvr, preatt, att, vaccum, B, T, C, NH, launch_softmax_8, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

static void check_shape(int kernel_num, int B, int T, int C, int NH, bool timed) {
    const size_t outputs = (size_t)B * T * C, squares = (size_t)B * NH * T * T;
    float* inp = make_random_float(3 * outputs);
    float* dout = make_random_float(outputs);
    float* out = make_zeros_float(outputs);
    float* preatt = make_zeros_float(squares);
    float* att = make_zeros_float(squares);
    float* wanted = make_zeros_float(3 * outputs);
    float* wanted_dpreatt = make_zeros_float(squares);
    float* wanted_datt = make_zeros_float(squares);
    attention_forward_cpu(out, preatt, att, inp, B, T, C, NH);
    attention_backward_cpu(wanted, wanted_dpreatt, wanted_datt, dout, inp, att, B, T, C, NH);
    for (size_t i = 0; i < squares; ++i) wanted_dpreatt[i] *= 1.0f / sqrtf((float)(C / NH));
    float* d_inp = make_device_array<float>(3 * outputs, inp);
    float* d_dout = make_device_array<float>(outputs, dout);
    float* d_out = make_device_array<float>(outputs);
    float* d_vaccum = make_device_array<float>(outputs);
    float* d_qkvr = make_device_array<float>(3 * outputs);
    float* d_preatt = make_device_array<float>(squares);
    float* d_att = make_device_array<float>(squares);
    float* d_dinp = make_device_array<float>(3 * outputs);
    float* d_dqkvr = make_device_array<float>(3 * outputs);
    float* d_dvaccum = make_device_array<float>(outputs);
    float* d_dpreatt = make_device_array<float>(squares);
    float* d_datt = make_device_array<float>(squares);

    printf("B=%d T=%d C=%d NH=%d\n", B, T, C, NH);
    attention_forward(d_out, d_vaccum, d_qkvr, d_preatt, d_att, d_inp, B, T, C, NH, 256);
    validate_result(d_out, out, "out", outputs, 1e-4f);
    validate_result(d_att, att, "att", squares, 1e-4f);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        cudaCheck(cudaMemset(d_dinp, 0xff, 3 * outputs * sizeof(float)));
        for (float* array : {d_dpreatt, d_datt}) cudaCheck(cudaMemset(array, 0xff, squares * sizeof(float)));
        attention_backward(kernel_num, d_dinp, d_dqkvr, d_dpreatt, d_datt, d_dvaccum, d_dout, d_inp, d_qkvr, d_preatt, d_att, d_vaccum, B, T, C, NH, block_size);
        validate_result(d_dpreatt, wanted_dpreatt, "dpreatt", squares, 1e-4f);
        validate_result(d_dinp, wanted, "dinp", 3 * outputs, 1e-3f);
        if (!timed) continue;
        const float ms = benchmark_kernel(20, attention_backward, kernel_num, d_dinp, d_dqkvr, d_dpreatt, d_datt, d_dvaccum, d_dout, d_inp, d_qkvr, d_preatt, d_att, d_vaccum, B, T, C, NH, block_size);
        printf("block %4d: %.4f ms\n", block_size, ms);
    }
    for (float* array : {inp, dout, out, preatt, att, wanted, wanted_dpreatt, wanted_datt}) free(array);
    for (float* array : {d_inp, d_dout, d_out, d_vaccum, d_qkvr, d_preatt, d_att, d_dinp, d_dqkvr, d_dvaccum, d_dpreatt, d_datt}) cudaCheck(cudaFree(array));
}

int main(int argc, char **argv) {
    setup_main();
    cublasCheck(cublasCreate(&cublas_handle));
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 8;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 2, 37, 15, 3, false);
    check_shape(kernel_num, 1, 600, 8, 2, false);
    check_shape(kernel_num, 4, 1024, 768, 12, true);
    cublasCheck(cublasDestroy(cublas_handle));
    return 0;
}
