/*
The embedding: every token's row of wte (vocabulary x C) plus the row of wpe (T x C) of its place.

Backward, dwpe[t] gathers over the batch, which a thread can do by itself. dwte[v] gathers over all places where token v
stands, anywhere. To do that without atomics the host sorts the places by token first: a bucket is a token together with
a group of columns, and one block works on one bucket. So the result has the same bits in every run.
*/
#ifndef ENCODER_CUH
#define ENCODER_CUH

#include <assert.h>
#include <stdint.h>
#include <algorithm>
#include <unordered_map>
#include <vector>
#include "cuda_common.h"
#include "cuda_utils.cuh"

// Adds to an element of a gradient, with a rounding that is right in the mean.
__device__ inline void add_rounded(floatX* gradient, float addend, unsigned int seed) {
    stochastic_rounding((float)*gradient + addend, gradient, seed);
}

// ---------------------------------------------------------------------------------------------------------------
// forward

__device__ inline x128 embed(const x128& token, const x128& place) {
    x128 sum;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) sum[i] = (floatX)((float)token[i] + (float)place[i]);
    return sum;
}

// Packets of a row that a lane asks for before it waits for the first of them.
#define EMBEDDED_UNDER_WAY 3

// A warp takes one row at a time, so that nobody divides; any grid will do. Whole says that all packets are full and aligned:
// then the sums, which nobody reads soon, leave the cache to the rows of wte.
template<bool Whole>
__device__ inline void embed_rows(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C) {
    const size_t rows = (size_t)B * T;
    const size_t warps = (size_t)gridDim.x * blockDim.x / WARP_SIZE;
    const int step = WARP_SIZE * x128::size;
    const int first = threadIdx.x % WARP_SIZE * x128::size;
    for (size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE; row < rows; row += warps) {
        const floatX* const of_token = wte + (size_t)inp[row] * C;
        const floatX* const of_place = wpe + row % T * C;
        for (int start = first; start < C; start += EMBEDDED_UNDER_WAY * step) {
            int4 place[EMBEDDED_UNDER_WAY], token[EMBEDDED_UNDER_WAY];
            #pragma unroll
            for (int k = 0; k < EMBEDDED_UNDER_WAY; ++k) {
                const int c = start + k * step;
                if (c < C) place[k] = load_packet<Whole>(of_place + c, C - c).get_bits();
                if (c < C) token[k] = load_packet<Whole>(of_token + c, C - c).get_bits();
            }
            #pragma unroll
            for (int k = 0; k < EMBEDDED_UNDER_WAY; ++k) {
                const int c = start + k * step;
                if (c >= C) break;
                const x128 sum = embed(x128(token[k]), x128(place[k]));
                if (Whole) store128cs(out + row * C + c, sum);
                else store_packet(out + row * C + c, sum, C - c);
            }
        }
    }
}

__global__ void encoder_forward_kernel3(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C) {
    const bool whole = C % x128::size == 0 && is_aligned128(out) && is_aligned128(wte) && is_aligned128(wpe);
    if (whole) embed_rows<true>(out, inp, wte, wpe, B, T, C);
    else embed_rows<false>(out, inp, wte, wpe, B, T, C);
}

// ---------------------------------------------------------------------------------------------------------------
// backward

// Buckets of so many places or fewer, most of those of a large vocabulary, are left to one warp of their block.
#define FEW_PLACES 4
// Rows of gradients that a thread asks for at once.
#define AT_ONCE 4

// Adds a lane's packets of the rows of gradients that stand at places first, first + step … below count.
template<bool Whole>
__device__ inline void add_rows(float (&sum)[x128::size], const int* places, int first, int step, int count, const floatX* dout, int left, int C) {
    for (int i = first; i < count; i += AT_ONCE * step) {
        x128 gradients[AT_ONCE];
        #pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            gradients[k] = i + k * step < count ? load_packet<Whole>(dout + (size_t)places[i + k * step] * C, left) : x128::zeros();
        }
        #pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            #pragma unroll
            for (int e = 0; e < x128::size; ++e) sum[e] += (float)gradients[k][e];
        }
    }
}

// What a lane does for a bucket that is one warp's: its packet of columns, straight from dout to the token's row.
template<bool Whole>
__device__ inline void add_to_row(floatX* row, const int* places, int count, const floatX* dout, unsigned int seed, int left, int C) {
    // Asked for first: it takes as long as the gradients, and needs none of them.
    x128 updated = load_packet<Whole>(row, left);
    float sum[x128::size] = {};
    add_rows<Whole>(sum, places, 0, 1, count, dout, left, C);
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) add_rounded(&updated[k], sum[k], seed + k);
    store_packet<Whole>(row, updated, left);
}

// Block b adds up bucket b: x is where its places begin in workload_indices, y how many there are, z the token, w the
// group of WARP_SIZE * x128::size columns. The warps share the places, a lane has one packet of columns.
template <int BLOCK_SIZE=256>
__global__ void wte_backward_kernel(floatX* dwte, const int4* bucket_info, const int* workload_indices, const floatX* dout, const int* inp, unsigned int seed, int B, int T, int C) {
    constexpr int WARPS = BLOCK_SIZE / WARP_SIZE;
    constexpr int COLUMNS = WARP_SIZE * x128::size;
    // Element i of all lanes' packets lies in line i. The lines' length keeps both sides below free of bank conflicts.
    constexpr int LINE = WARP_SIZE + WARP_SIZE / x128::size;
    __shared__ float partial[WARPS][x128::size * LINE];
    const int4 bucket = bucket_info[blockIdx.x];
    const int* places = workload_indices + bucket.x;
    const int warp = threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    const int origin = bucket.w * COLUMNS;
    const int c = origin + lane * x128::size;
    floatX* const row = dwte + (size_t)bucket.z * C;
    const bool whole = C % x128::size == 0 && is_aligned128(dout) && is_aligned128(dwte);
    if (WARPS == 1 || bucket.y <= FEW_PLACES) { // the whole block agrees
        if (warp > 0 || c >= C) return;
        if (whole) add_to_row<true>(row + c, places, bucket.y, dout + c, seed, C - c, C);
        else add_to_row<false>(row + c, places, bucket.y, dout + c, seed, C - c, C);
        return;
    }

    float sum[x128::size] = {};
    if (c < C) {
        if (whole) add_rows<true>(sum, places, warp, WARPS, bucket.y, dout + c, C - c, C);
        else add_rows<false>(sum, places, warp, WARPS, bucket.y, dout + c, C - c, C);
    }
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) partial[warp][k * LINE + lane] = sum[k];
    __syncthreads();

    for (int column = threadIdx.x; column < COLUMNS && origin + column < C; column += BLOCK_SIZE) {
        const int slot = column % x128::size * LINE + column / x128::size;
        float total = 0.0f;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) total += partial[w][slot];
        add_rounded(row + origin + column, total, seed + column / BLOCK_SIZE);
    }
}

// A thread takes one packet of a row of wpe at a time; any grid will do.
template<bool Whole>
__device__ inline void add_places(floatX* dwpe, const floatX* dout, int B, int T, int C, unsigned int seed) {
    const size_t per_row = CEIL_DIV(C, x128::size);
    const size_t packets = per_row * T;
    for (size_t p = (size_t)blockIdx.x * blockDim.x + threadIdx.x; p < packets; p += (size_t)gridDim.x * blockDim.x) {
        const size_t t = p / per_row;
        const int c = (int)(p % per_row) * x128::size;
        float sum[x128::size] = {};
        #pragma unroll 8
        for (int b = 0; b < B; ++b) {
            const x128 gradient = load_packet<Whole>(dout + ((size_t)b * T + t) * C + c, C - c);
            #pragma unroll
            for (int k = 0; k < x128::size; ++k) sum[k] += (float)gradient[k];
        }
        floatX* const at = dwpe + t * C + c;
        x128 updated = load_packet<Whole>(at, C - c);
        #pragma unroll
        for (int k = 0; k < x128::size; ++k) add_rounded(&updated[k], sum[k], seed + (unsigned int)p * x128::size + k);
        store_packet<Whole>(at, updated, C - c);
    }
}

__global__ void wpe_backward_kernel(floatX* dwpe, const floatX* dout, const int* inp, int B, int T, int C, unsigned int seed) {
    const bool whole = C % x128::size == 0 && is_aligned128(dout) && is_aligned128(dwpe);
    if (whole) add_places<true>(dwpe, dout, B, T, C, seed);
    else add_places<false>(dwpe, dout, B, T, C, seed);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// out (B*T rows of C) from the tokens inp (B*T), wte and wpe
void encoder_forward(floatX* out, const int* inp, const floatX* wte, const floatX* wpe, int B, int T, int C, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int threads = 128;
    const int blocks = CEIL_DIV(B * T, threads / WARP_SIZE);
    encoder_forward_kernel3<<<blocks, threads, 0, stream>>>(out, inp, wte, wpe, B, T, C);
    cudaCheck(cudaGetLastError());
}

// Adds to dwte and dwpe. inputs_cpu holds the same tokens as inp, in host memory, where workload_indices (B*T) and
// bucket_info (B*T for each group of columns) are too; they must not be written until the stream is done with this.
// scratch takes both to the device, 16 bytes for each bucket and 4 for each place.
void encoder_backward(floatX* dwte, floatX* dwpe, floatX* scratch, int* workload_indices, int4* bucket_info, const floatX* dout, const int* inp, const int* inputs_cpu, int B, int T, int C, unsigned int seed, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int threads = 256;
    // This does not need the buckets: the device works on it while the host sorts.
    wpe_backward_kernel<<<CEIL_DIV(T * CEIL_DIV(C, x128::size), threads), threads, 0, stream>>>(dwpe, dout, inp, B, T, C, seed);
    cudaCheck(cudaGetLastError());

    const int N = B * T;
    std::unordered_map<int, std::vector<int>> places_of;
    for (int place = 0; place < N; ++place) places_of[inputs_cpu[place]].push_back(place);
    // The longest first: a block that begins late should have little to do. Ties go by token, since the order of a
    // hash table is nobody's promise.
    std::vector<int> tokens;
    for (const auto& entry : places_of) tokens.push_back(entry.first);
    std::sort(tokens.begin(), tokens.end(), [&places_of](int a, int b) {
        const size_t at_a = places_of.at(a).size(), at_b = places_of.at(b).size();
        return at_a != at_b ? at_a > at_b : a < b;
    });

    // All groups of columns of one token share its places.
    const int groups = CEIL_DIV(C, WARP_SIZE * x128::size);
    int filled = 0, buckets = 0;
    for (int token : tokens) {
        const std::vector<int>& places = places_of.at(token);
        for (int group = 0; group < groups; ++group) {
            bucket_info[buckets++] = make_int4(filled, (int)places.size(), token, group);
        }
        std::copy(places.begin(), places.end(), workload_indices + filled);
        filled += (int)places.size();
    }

    int4* const device_buckets = reinterpret_cast<int4*>(scratch);
    int* const device_places = reinterpret_cast<int*>(device_buckets + buckets);
    cudaCheck(cudaMemcpyAsync(device_buckets, bucket_info, buckets * sizeof(int4), cudaMemcpyHostToDevice, stream));
    cudaCheck(cudaMemcpyAsync(device_places, workload_indices, filled * sizeof(int), cudaMemcpyHostToDevice, stream));
    wte_backward_kernel<256><<<buckets, 256, 0, stream>>>(dwte, device_buckets, device_places, dout, inp, seed, B, T, C);
    cudaCheck(cudaGetLastError());
}

#endif // ENCODER_CUH
