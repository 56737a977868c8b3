/*
Softmax, cross-entropy and its gradient in one kernel, in place.

For each of B*T rows of logits x, of which V are in use and P are in memory, with p = softmax(x) and y the target:
    losses -= log p[y],   x <- (p - [c = y]) dloss for c < V,   x <- 0 for V <= c < P.
*/
#ifndef FUSED_CLASSIFIER_CUH
#define FUSED_CLASSIFIER_CUH

#include <assert.h>
#include <float.h>
#include <stdint.h>
#include <type_traits>
#include "cuda_common.h"
#include "cuda_utils.cuh"

// Exponentials are powers of two here, which the hardware has: exp(x) = exp2(LOG2_E x).
#define LOG2_E 1.44269504f
// A sum of exponentials that grows beyond this is begun anew, relative to a larger value.
#define LARGEST_SUM 1e18f

// What softmax takes from a row: p = Scale exp(x - Offset).
struct SoftmaxParams { float Scale, Offset; };

// exp(x - offset). The difference comes first: of equals it is 0 however large they are (a product that is rounded would leave
// more of logits such as -1e10, which masks have, than exp2 has room for).
__device__ inline float power_of(float x, float offset) {
    return exp2f(LOG2_E * (x - offset));
}

// The exponentials of the first left elements of a packet (all, if Whole), added up. Of a row all packets but the last are
// full, and a comparison for each element would cost as much as the rest of its work.
template<bool Whole>
__device__ inline float sum_packet(const x128& packet, int left, float offset) {
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) sum += Whole || i < left ? power_of((float)packet[i], offset) : 0.0f;
    return sum;
}

// Takes a packet into a sum of exponentials. Nearly always the offset can stay, so nobody looks for the largest element.
template<bool Whole>
__device__ inline void take_packet(float& offset, float& sum, const x128& packet, int left) {
    const float added = sum_packet<Whole>(packet, left, offset);
    if (added < LARGEST_SUM) {
        sum += added;
        return;
    }
    float higher = offset;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) higher = Whole || i < left ? fmaxf(higher, (float)packet[i]) : higher;
    sum = sum * power_of(offset, higher) + sum_packet<Whole>(packet, left, higher);
    offset = higher;
}

// Packets of a row that a thread asks for before it waits for the first of them.
#define LOGITS_UNDER_WAY 2

// A thread's share of a row. Whole says that all packets lie at multiples of 16 bytes, with memory (though perhaps no element
// in use) up to their ends.
template<bool Whole>
__device__ inline void sum_share(float& offset, float& sum, const floatX* row, int V, int P) {
    const int step = blockDim.x * x128::size;
    int c = threadIdx.x * x128::size;
    for (; c + (LOGITS_UNDER_WAY - 1) * step + x128::size <= V; c += LOGITS_UNDER_WAY * step) {
        // As bits, in four registers a packet: elements apart would take eight.
        int4 packets[LOGITS_UNDER_WAY];
        #pragma unroll
        for (int k = 0; k < LOGITS_UNDER_WAY; ++k) packets[k] = load_packet<Whole>(row + c + k * step, V - c).get_bits();
        #pragma unroll
        for (int k = 0; k < LOGITS_UNDER_WAY; ++k) take_packet<true>(offset, sum, x128(packets[k]), x128::size);
    }
    for (; c + x128::size <= V; c += step) take_packet<true>(offset, sum, load_packet<Whole>(row + c, V - c), x128::size);
    if (c < V) take_packet<false>(offset, sum, load_packet<Whole>(row + c, P - c), V - c);
}

// A block reads row idx once. The threads' sums have offsets of their own.
__device__ SoftmaxParams prepare_softmax_blockwide3(int64_t idx, const floatX* inp, int V, int P) {
    float own = -FLT_MAX;
    float sum = 0.0f;
    if (P % x128::size == 0 && is_aligned128(inp)) sum_share<true>(own, sum, inp + idx * P, V, P);
    else sum_share<false>(own, sum, inp + idx * P, V, P);
    const float offset = blockReduce<warpReduceMax>(own, false, -FLT_MAX);
    // The two reductions have shared memory of their own each, so nothing has to be waited for in between.
    const float total = blockReduce<warpReduceSum>(sum * power_of(own, offset));
    return SoftmaxParams{1.0f / total, offset};
}

// The probabilities of a packet of logits from column c on, and their gradients. Plain says that the packet is full and
// without the target.
template<bool Plain>
__device__ inline void classify_packet(x128& probability, x128& gradient, const x128& x, SoftmaxParams softmax, float dloss, int target, int c, int V) {
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float p = Plain || c + i < V ? softmax.Scale * power_of((float)x[i], softmax.Offset) : 0.0f;
        probability[i] = (floatX)p;
        gradient[i] = (floatX)((p - (!Plain && c + i == target ? 1.0f : 0.0f)) * dloss);
    }
}

// One block to a row. The last rows come first: the product that made the logits has left those in the cache.
template<bool WriteDLogits = true, bool WriteProbs = false>
__global__ void __launch_bounds__(1024, MAX_1024_THREADS_BLOCKS)
    fused_classifier_kernel5(floatX* logits, float* losses, floatX* probs, const float dloss, const int* targets, int B, int T, int V, int P, std::bool_constant<WriteDLogits>) {
    const int64_t idx = (int64_t)B * T - 1 - blockIdx.x;
    if (idx < 0) return; // the whole block leaves together
    floatX* const row = logits + idx * P;
    const int target = targets[idx];
    // Read before the barriers of the reduction; after them other threads write gradients over the logits.
    const float of_target = (float)row[target];
    const SoftmaxParams softmax = prepare_softmax_blockwide3(idx, logits, V, P);
    if (threadIdx.x == 0) losses[idx] -= of_target - softmax.Offset + logf(softmax.Scale);

    if constexpr (WriteDLogits || WriteProbs) {
        // Backwards, since the end of the row is what was read last.
        const int step = blockDim.x * x128::size;
        for (int c = CEIL_DIV(P, step) * step - step + threadIdx.x * x128::size; c >= 0; c -= step) {
            if (c >= P) continue;
            const x128 x = load_packet(row + c, V - c);
            x128 probability, gradient;
            const bool plain = c + x128::size <= V && (target < c || target >= c + x128::size);
            if (plain) classify_packet<true>(probability, gradient, x, softmax, dloss, target, c, V);
            else classify_packet<false>(probability, gradient, x, softmax, dloss, target, c, V);
            if constexpr (WriteDLogits) store_packet(row + c, gradient, P - c);
            if constexpr (WriteProbs) store_packet(probs + idx * P + c, probability, P - c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// Takes the log-probabilities of the targets (B*T) from losses and, if the last argument's type says so, turns logits
// (B*T rows of P, V of them in use) into their gradient.
template<typename Type, bool WriteDLogits>
void fused_classifier(Type* logits, float* losses, const float dloss, const int* targets, int B, int T, int V, int P, std::bool_constant<WriteDLogits> write_dlogits, cudaStream_t stream) {
    NVTX_RANGE_FN();
    assert(V <= P);
    // Rows that are read twice are to stay in the cache, so few of them are at work; else small blocks hide each other's barriers.
    const int threads = WriteDLogits ? 1024 : 512;
    fused_classifier_kernel5<<<B * T, threads, 0, stream>>>(logits, losses, (floatX*)nullptr, dloss, targets, B, T, V, P, write_dlogits);
    cudaCheck(cudaGetLastError());
}

#endif // FUSED_CLASSIFIER_CUH
