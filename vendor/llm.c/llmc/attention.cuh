/*
Causal self-attention with the scores in memory.

For each head, with q, k, v of (T, HS): att = softmax(q k^T / sqrt(HS)) over the places up to one's own, y = att v.
Backward: datt = dy v^T,  dv = att^T dy,  ds = att (datt - sum over the row of att datt),  dq = ds k / sqrt(HS),
dk = ds^T q / sqrt(HS).

Activations come as (B, T, 3, NH, HS), all heads of a token together; products want the tokens of a head together,
(B, NH, T, HS). The kernels below carry packets from one order to the other.
*/
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include <assert.h>
#include <float.h>
#include <math.h>
#include "cuda_common.h"
#include "cuda_utils.cuh"
#include "cublas_common.h"
#include "matmul.cuh"

// ---------------------------------------------------------------------------------------------------------------
// from tokens to heads and back

// A packet of one head of one token.
struct HeadPacket {
    size_t token;   // b * N + n
    int column;     // h * d + c, its place among the NH * d columns of a token
    size_t by_head; // where it is in (B, NH, N, d)
    int left;       // elements from here to the end of the head's row
};

__device__ inline unsigned int count_head_packets(int B, int N, int NH, int d) {
    return (unsigned int)(B * N * NH) * CEIL_DIV(d, x128::size);
}

// Packets are numbered as they lie in (B, N, NH, d), whose rows of NH * d are the longer ones.
__device__ inline HeadPacket find_head_packet(unsigned int number, int N, int NH, int d) {
    const unsigned int per_head = CEIL_DIV(d, x128::size);
    const int c = number % per_head * x128::size;
    const unsigned int pair = number / per_head;
    const int h = pair % NH;
    const unsigned int token = pair / NH;
    const size_t row = ((size_t)(token / N) * NH + h) * N + token % N;
    return HeadPacket{token, h * d + c, row * d + c, d - c};
}

// q, k, v (B, NH, N, d) from inp (B, N, 3, NH, d)
__global__ void permute_kernel(floatX* q, floatX* k, floatX* v, const floatX* inp, int B, int N, int NH, int d) {
    const unsigned int packets = count_head_packets(B, N, NH, d);
    for (unsigned int number = blockIdx.x * blockDim.x + threadIdx.x; number < packets; number += gridDim.x * blockDim.x) {
        const HeadPacket at = find_head_packet(number, N, NH, d);
        const floatX* const of_query = inp + at.token * 3 * NH * d + at.column;
        store_packet(q + at.by_head, load_packet(of_query, at.left), at.left);
        store_packet(k + at.by_head, load_packet(of_query + NH * d, at.left), at.left);
        store_packet(v + at.by_head, load_packet(of_query + 2 * NH * d, at.left), at.left);
    }
}

// dinp (B, N, 3, NH, d) from dq, dk, dv (B, NH, N, d)
__global__ void permute_kernel_backward(floatX* dinp, const floatX* dq, const floatX* dk, const floatX* dv, int B, int N, int NH, int d) {
    const unsigned int packets = count_head_packets(B, N, NH, d);
    for (unsigned int number = blockIdx.x * blockDim.x + threadIdx.x; number < packets; number += gridDim.x * blockDim.x) {
        const HeadPacket at = find_head_packet(number, N, NH, d);
        floatX* const to_query = dinp + at.token * 3 * NH * d + at.column;
        store_packet(to_query, load_packet(dq + at.by_head, at.left), at.left);
        store_packet(to_query + NH * d, load_packet(dk + at.by_head, at.left), at.left);
        store_packet(to_query + 2 * NH * d, load_packet(dv + at.by_head, at.left), at.left);
    }
}

// out (B, N, NH, d) from inp (B, NH, N, d)
__global__ void unpermute_kernel(floatX* inp, floatX *out, int B, int N, int NH, int d) {
    const unsigned int packets = count_head_packets(B, N, NH, d);
    for (unsigned int number = blockIdx.x * blockDim.x + threadIdx.x; number < packets; number += gridDim.x * blockDim.x) {
        const HeadPacket at = find_head_packet(number, N, NH, d);
        store_packet(out + at.token * NH * d + at.column, load_packet(inp + at.by_head, at.left), at.left);
    }
}

// dinp (B, NH, N, d) from dout (B, N, NH, d)
__global__ void unpermute_kernel_backward(floatX* dinp, const floatX *dout, int B, int N, int NH, int d) {
    const unsigned int packets = count_head_packets(B, N, NH, d);
    for (unsigned int number = blockIdx.x * blockDim.x + threadIdx.x; number < packets; number += gridDim.x * blockDim.x) {
        const HeadPacket at = find_head_packet(number, N, NH, d);
        store_packet(dinp + at.by_head, load_packet(dout + at.token * NH * d + at.column, at.left), at.left);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// softmax

// out = softmax(inp * inv_temperature) for N matrices of (T, T), row t of each over its first t + 1 elements; the others
// of inp are not read, those of out become zero. One warp to a row. The longest rows come first.
__global__ void softmax_forward_kernel5(floatX* out, float inv_temperature, const floatX* inp, int N, int T) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int64_t row = (int64_t)N * T - 1 - ((int64_t)blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE);
    if (row < 0) return; // the whole warp leaves together
    const int visible = (int)(row % T) + 1;
    const floatX* const x = inp + row * T;
    floatX* const y = out + row * T;
    // The hardware's exponential is to base 2.
    const float scale = inv_temperature * 1.4426950408889634f;

    float peak = -FLT_MAX;
    float sum = 0.0f;
    for (int c = lane * x128::size; c < visible; c += WARP_SIZE * x128::size) {
        const int left = visible - c;
        const x128 packet = load_packet(x + c, left);
        float higher = peak;
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) higher = i < left ? fmaxf(higher, (float)packet[i]) : higher;
        sum *= exp2f(scale * (peak - higher));
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) sum += i < left ? exp2f(scale * ((float)packet[i] - higher)) : 0.0f;
        peak = higher;
    }
    const float offset = warpReduceMax(peak);
    const float norm = 1.0f / warpReduceSum(sum * exp2f(scale * (peak - offset)));

    for (int c = lane * x128::size; c < T; c += WARP_SIZE * x128::size) {
        const x128 packet = load_packet(x + c, visible - c);
        x128 share = x128::zeros();
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            if (c + i < visible) share[i] = (floatX)(norm * exp2f(scale * ((float)packet[i] - offset)));
        }
        store_packet(y + c, share, T - c);
    }
}

// datt <- scale att (datt - sum over the row of att datt) for gridDim.y matrices of (T, T), row t over its first t + 1
// elements; the others become zero. One warp to a row; the blocks along x share the rows of a matrix.
__global__ void softmax_autoregressive_backward_inplace_kernel(floatX* datt, const floatX* att, int B, int T, int C, float scale) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int warps = blockDim.x / WARP_SIZE;
    const size_t matrix = (size_t)blockIdx.y * T * T;
    for (int t = blockIdx.x * warps + threadIdx.x / WARP_SIZE; t < T; t += gridDim.x * warps) {
        const floatX* const p = att + matrix + (size_t)t * T;
        floatX* const g = datt + matrix + (size_t)t * T;
        float dot = 0.0f;
        #pragma unroll 2
        for (int c = lane * x128::size; c <= t; c += WARP_SIZE * x128::size) {
            const x128 share = load_packet(p + c, t + 1 - c);
            const x128 gradient = load_packet(g + c, t + 1 - c);
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                if (c + i <= t) dot = fmaf((float)share[i], (float)gradient[i], dot);
            }
        }
        dot = warpReduceSum(dot);
        #pragma unroll 2
        for (int c = lane * x128::size; c < T; c += WARP_SIZE * x128::size) {
            const x128 share = load_packet(p + c, t + 1 - c);
            const x128 gradient = load_packet(g + c, t + 1 - c);
            x128 result = x128::zeros();
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                if (c + i <= t) result[i] = (floatX)(scale * (float)share[i] * ((float)gradient[i] - dot));
            }
            store_packet(g + c, result, T - c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Blocks of the kernels that carry packets.
inline int head_packet_blocks(int B, int T, int NH, int HS, int threads) {
    return CEIL_DIV(B * T * NH * CEIL_DIV(HS, x128::size), threads);
}

// out (B, T, C) from inp (B, T, 3, C). Kept for the backward pass: qkvr (3, B, NH, T, HS) and att (B, NH, T, T). inp is
// used as scratch, so it must have room for att's size too, and does not survive.
void attention_forward(floatX* out, floatX* qkvr, floatX* att, floatX* inp, int B, int T, int C, int NH, cudaStream_t stream) {
    NVTX_RANGE_FN();
    assert(C % NH == 0);
    const int threads = 256;
    const int HS = C / NH;
    const int heads = B * NH;
    const size_t third = (size_t)B * T * C;
    floatX* const q = qkvr;
    floatX* const k = qkvr + third;
    floatX* const v = qkvr + 2 * third;
    const int movers = head_packet_blocks(B, T, NH, HS, threads);
    permute_kernel<<<movers, threads, 0, stream>>>(q, k, v, inp, B, T, NH, HS);
    cudaCheck(cudaGetLastError());

    const size_t head_size = (size_t)T * HS;
    const size_t square = (size_t)T * T;
    floatX* const scores = inp;
    matmul_cublaslt(scores, k, q, NULL, T, T, HS, stream, true, false, heads, head_size, head_size, square);
    const float scale = 1.0f / sqrtf((float)HS);
    softmax_forward_kernel5<<<CEIL_DIV(heads * T, threads / WARP_SIZE), threads, 0, stream>>>(att, scale, scores, heads, T);
    cudaCheck(cudaGetLastError());

    floatX* const mixed = inp; // the scores are done with
    matmul_cublaslt(mixed, v, att, NULL, HS, T, T, stream, false, false, heads, head_size, square, head_size);
    unpermute_kernel<<<movers, threads, 0, stream>>>(mixed, out, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

// dinp (B, T, 3, C) from dout (B, T, C) and what the forward pass has kept. All of dqkvr (as qkvr), datt (as att), scratch
// (as dout) and dinp is overwritten.
void attention_backward(floatX* dinp, floatX* dqkvr, floatX* datt, floatX* scratch, const floatX* dout, const floatX* qkvr, const floatX* att, int B, int T, int C, int NH, cudaStream_t stream) {
    NVTX_RANGE_FN();
    assert(C % NH == 0);
    const int threads = 256;
    const int HS = C / NH;
    const int heads = B * NH;
    const size_t third = (size_t)B * T * C;
    const size_t head_size = (size_t)T * HS;
    const size_t square = (size_t)T * T;
    const int movers = head_packet_blocks(B, T, NH, HS, threads);
    unpermute_kernel_backward<<<movers, threads, 0, stream>>>(scratch, dout, B, T, NH, HS);
    cudaCheck(cudaGetLastError());

    const floatX* const q = qkvr;
    const floatX* const k = q + third;
    const floatX* const v = k + third;
    floatX* const dq = dqkvr;
    floatX* const dk = dq + third;
    floatX* const dv = dk + third;
    matmul_cublaslt(dv, scratch, att, NULL, HS, T, T, stream, false, true, heads, head_size, square, head_size);
    matmul_cublaslt(datt, v, scratch, NULL, T, T, HS, stream, true, false, heads, head_size, head_size, square);
    const float scale = 1.0f / sqrtf((float)HS);
    const dim3 rows(CEIL_DIV(T, threads / WARP_SIZE), heads);
    softmax_autoregressive_backward_inplace_kernel<<<rows, threads, 0, stream>>>(datt, att, B, T, C, scale);
    cudaCheck(cudaGetLastError());
    matmul_cublaslt(dq, k, datt, NULL, HS, T, T, stream, false, false, heads, head_size, square, head_size);
    matmul_cublaslt(dk, q, datt, NULL, HS, T, T, stream, false, true, heads, head_size, square, head_size);

    permute_kernel_backward<<<movers, threads, 0, stream>>>(dinp, dq, dk, dv, B, T, NH, HS);
    cudaCheck(cudaGetLastError());
}

#endif // ATTENTION_CUH
