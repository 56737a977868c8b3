/*
Softmax, cross entropy and the gradient of the logits in one kernel, so that the probabilities of a vocabulary need not be
stored. For each of the B T rows of V logits, which lie P elements apart, with p = softmax(row) and the target i:
    loss = -log(p[i]),   dlogits[v] = (p[v] - (v == i)) dloss.
dloss is 1 / (B T) where dlosses is null. What is between V and P in a row stays as it is. dlogits may be logits.

nvcc -O3 -std=c++17 classifier_fused.cu -o classifier_fused
./classifier_fused [kernel number]

1  one warp to a row, cooperative groups
2  one block to a row, four logits at once
3  as 2, one logit at a time, which any P allows without ado
4  one block to a row, packets of 128 bits, blockReduce
5  as 4, the row read from its end, so that the beginning is in the cache when the gradient is computed; what is to be
   written is chosen when the kernel is compiled
*/
#include <assert.h>
#include <stdint.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

// ---------------------------------------------------------------------------------------------------------------
// reference

void softmax_forward_cpu(float* out, const float* inp, int N, int C) {
    int row, c;
    for (row = 0; row < N; row++) {
        const float* x = inp + (size_t)row * C;
        float* y = out + (size_t)row * C;
        float largest = x[0];
        double total = 0.0;
        for (c = 1; c < C; c++) largest = x[c] > largest ? x[c] : largest;
        for (c = 0; c < C; c++) total += expf(x[c] - largest);
        for (c = 0; c < C; c++) y[c] = (float)(expf(x[c] - largest) / total);
    }
}

void crossentropy_forward_cpu(float* losses, const float* probs, const int* targets, int B, int T, int V) {
    int position;
    for (position = 0; position < B * T; position++) {
        losses[position] = -logf(probs[(size_t)position * V + targets[position]]);
    }
}

void crossentropy_softmax_backward_cpu(float* dlogits, const float* dlosses, const float* probs, const int* targets, int B, int T, int V) {
    int position, v;
    for (position = 0; position < B * T; position++) {
        const float* p = probs + (size_t)position * V;
        float* d = dlogits + (size_t)position * V;
        for (v = 0; v < V; v++) d[v] = dlosses[position] * p[v];
        d[targets[position]] -= dlosses[position];
    }
}

// ---------------------------------------------------------------------------------------------------------------
// parts of the kernels

// What the softmax of a row needs besides the logits: p = exp(logit - largest) inverse_sum.
struct SoftmaxParams {
    float largest;
    float inverse_sum;
};

// Below every logit but -infinity, and unlike that, fit for being subtracted from itself.
#define NO_LOGIT (-FLT_MAX)

// A maximum and the sum of exp(logit - maximum) over some logits. One pass over the row does for both: when a larger logit
// comes, the sum so far is scaled down.
__device__ inline void take_logit(SoftmaxParams& seen, float& sum, float logit) {
    if (logit > seen.largest) {
        sum *= expf(seen.largest - logit);
        seen.largest = logit;
    }
    sum += expf(logit - seen.largest);
}

// The same of two parts of a row.
__device__ inline void merge_parts(SoftmaxParams& seen, float& sum, float other_largest, float other_sum) {
    const float largest = fmaxf(seen.largest, other_largest);
    sum = sum * expf(seen.largest - largest) + other_sum * expf(other_largest - largest);
    seen.largest = largest;
}

// Merges what all threads of a block have seen; each of them gets the result.
__device__ inline SoftmaxParams merge_block(cg::thread_block_tile<32>& warp, SoftmaxParams seen, float sum) {
    __shared__ float of_warps[2][WARP_SIZE];
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other_largest = warp.shfl_xor(seen.largest, distance);
        const float other_sum = warp.shfl_xor(sum, distance);
        merge_parts(seen, sum, other_largest, other_sum);
    }
    if (warp.thread_rank() == 0) {
        of_warps[0][warp.meta_group_rank()] = seen.largest;
        of_warps[1][warp.meta_group_rank()] = sum;
    }
    __syncthreads();
    seen.largest = of_warps[0][0];
    sum = of_warps[1][0];
    for (int i = 1; i < (int)warp.meta_group_size(); ++i) merge_parts(seen, sum, of_warps[0][i], of_warps[1][i]);
    seen.inverse_sum = 1.0f / sum;
    return seen;
}

// The softmax of one row by one warp: first the maximum, then the sum.
__device__ SoftmaxParams prepare_softmax(cg::thread_block_tile<32>& warp, int64_t idx, const float* inp, int V, int P) {
    const float* row = inp + idx * P;
    float largest = NO_LOGIT;
    for (int v = warp.thread_rank(); v < V; v += warp.size()) largest = fmaxf(largest, row[v]);
    largest = cg::reduce(warp, largest, cg::greater<float>{});
    float sum = 0.0f;
    for (int v = warp.thread_rank(); v < V; v += warp.size()) sum += expf(row[v] - largest);
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    return SoftmaxParams{largest, 1.0f / sum};
}

__device__ inline float probability(SoftmaxParams softmax, float logit) {
    return expf(logit - softmax.largest) * softmax.inverse_sum;
}

// -log(p) from the logit itself, which stays finite where p is too small for a float.
__device__ inline float loss_of(SoftmaxParams softmax, float logit) {
    return softmax.largest - logit - logf(softmax.inverse_sum);
}

// ---------------------------------------------------------------------------------------------------------------
// kernels; what they need of the target's logit is read before a barrier, since its place may be overwritten behind it

__global__ void fused_classifier_kernel1(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int64_t idx = (int64_t)blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (idx >= (int64_t)B * T) return; // the whole warp leaves together
    const int target = targets[idx];
    const float target_logit = logits[idx * P + target];
    const SoftmaxParams softmax = prepare_softmax(warp, idx, logits, V, P);
    if (warp.thread_rank() == 0) losses[idx] = loss_of(softmax, target_logit);

    warp.sync();
    const float dloss = dlosses == nullptr ? 1.0f / (B * T) : (float)dlosses[idx];
    for (int v = warp.thread_rank(); v < V; v += warp.size()) {
        const float p = probability(softmax, logits[idx * P + v]);
        dlogits[idx * P + v] = dloss * (v == target ? p - 1.0f : p);
    }
}

// Element index, from 0 to 3.
__device__ float vec_at(const float4& vec, int index) {
    const float low = index == 0 ? vec.x : vec.y;
    const float high = index == 2 ? vec.z : vec.w;
    return index < 2 ? low : high;
}

// Four logits from v on. Those from V on count as none; rows that do not begin at multiples of 16 bytes are read one by one.
__device__ inline float4 load_logits(const float* row, int v, int V) {
    if (v + 4 <= V && is_aligned128(row + v)) return *reinterpret_cast<const float4*>(row + v);
    return make_float4(row[v], v + 1 < V ? row[v + 1] : NO_LOGIT, v + 2 < V ? row[v + 2] : NO_LOGIT, v + 3 < V ? row[v + 3] : NO_LOGIT);
}

__device__ SoftmaxParams prepare_softmax_blockwide(cg::thread_block_tile<32>& warp, int64_t idx, const float* inp, int V, int P) {
    const float* row = inp + idx * P;
    SoftmaxParams seen = {NO_LOGIT, 0.0f};
    float sum = 0.0f;
    for (int v = 4 * threadIdx.x; v < V; v += 4 * blockDim.x) {
        const float4 quad = load_logits(row, v, V);
        const int count = min(4, V - v);
        for (int k = 0; k < count; ++k) take_logit(seen, sum, vec_at(quad, k));
    }
    return merge_block(warp, seen, sum);
}

__global__ void fused_classifier_kernel2(float* dlogits, float* losses, float* probs, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int64_t idx = blockIdx.x;
    if (idx >= (int64_t)B * T) return; // the whole block leaves together
    const int target = targets[idx];
    const float target_logit = logits[idx * P + target];
    const SoftmaxParams softmax = prepare_softmax_blockwide(warp, idx, logits, V, P);
    if (threadIdx.x == 0) losses[idx] = loss_of(softmax, target_logit);

    const float dloss = dlosses == nullptr ? 1.0f / (B * T) : (float)dlosses[idx];
    const float* row = logits + idx * P;
    for (int v = 4 * threadIdx.x; v < V; v += 4 * blockDim.x) {
        const float4 quad = load_logits(row, v, V);
        const int count = min(4, V - v);
        f128 p, d;
        for (int k = 0; k < 4; ++k) {
            p[k] = probability(softmax, vec_at(quad, k));
            d[k] = dloss * (v + k == target ? p[k] - 1.0f : p[k]);
        }
        store_packet(dlogits + idx * P + v, d, count);
        if (probs != nullptr) store_packet(probs + idx * P + v, p, count);
    }
}

__device__ SoftmaxParams prepare_softmax_blockwide_nofloat4(cg::thread_block_tile<32>& warp, int64_t idx, const float* inp, int V, int P) {
    const float* row = inp + idx * P;
    SoftmaxParams seen = {NO_LOGIT, 0.0f};
    float sum = 0.0f;
    for (int v = threadIdx.x; v < V; v += blockDim.x) take_logit(seen, sum, row[v]);
    return merge_block(warp, seen, sum);
}

__global__ void fused_classifier_kernel3(float* dlogits, float* losses, float* probs, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int64_t idx = blockIdx.x;
    if (idx >= (int64_t)B * T) return; // the whole block leaves together
    const int target = targets[idx];
    const float target_logit = logits[idx * P + target];
    const SoftmaxParams softmax = prepare_softmax_blockwide_nofloat4(warp, idx, logits, V, P);
    if (threadIdx.x == 0) losses[idx] = loss_of(softmax, target_logit);

    const float dloss = dlosses == nullptr ? 1.0f / (B * T) : (float)dlosses[idx];
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
        const float p = probability(softmax, __ldcs(logits + idx * P + v));
        // Neither is read again soon.
        if (probs != nullptr) __stcs(probs + idx * P + v, p);
        __stcs(dlogits + idx * P + v, dloss * (v == target ? p - 1.0f : p));
    }
}

// Takes the first count logits of a packet.
__device__ inline void take_packet(SoftmaxParams& seen, float& sum, const x128& packet, int count) {
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) {
        if (k < count) take_logit(seen, sum, (float)packet[k]);
    }
}

__device__ SoftmaxParams prepare_softmax_blockwide2(int64_t idx, const floatX* inp, int V, int P) {
    const floatX* row = inp + idx * P;
    SoftmaxParams seen = {NO_LOGIT, 0.0f};
    float sum = 0.0f;
    for (int v = threadIdx.x * x128::size; v < V; v += blockDim.x * x128::size) {
        take_packet(seen, sum, load_packet(row + v, V - v), V - v);
    }
    const float largest = blockReduce<warpReduceMax>(seen.largest, false, NO_LOGIT);
    const float total = blockReduce<warpReduceSum>(sum * expf(seen.largest - largest));
    return SoftmaxParams{largest, 1.0f / total};
}

// The gradient, and the probability where it is asked for, of the packet that begins at v.
template <bool WriteLogits, bool WriteProbs>
__device__ inline void write_packet(floatX* dlogits, floatX* probs, const floatX* logits, SoftmaxParams softmax, float dloss, int target, int v, int V) {
    const x128 packet = load_packet(logits + v, V - v);
    x128 p, d;
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) {
        const float exact = probability(softmax, (float)packet[k]);
        p[k] = (floatX)exact;
        d[k] = (floatX)(dloss * (v + k == target ? exact - 1.0f : exact));
    }
    if constexpr (WriteLogits) store_packet(dlogits + v, d, V - v);
    if constexpr (WriteProbs) store_packet(probs + v, p, V - v);
}

__global__ void fused_classifier_kernel4(floatX* dlogits, floatX* losses, floatX* probs, const floatX* logits, const floatX* dlosses, const int* targets, int B, int T, int V, int P) {
    const int64_t idx = blockIdx.x;
    if (idx >= (int64_t)B * T) return; // the whole block leaves together
    const int64_t begin = idx * P;
    const int target = targets[idx];
    const float target_logit = (float)logits[begin + target];
    const SoftmaxParams softmax = prepare_softmax_blockwide2(idx, logits, V, P);
    if (threadIdx.x == 0) losses[idx] = (floatX)loss_of(softmax, target_logit);

    const float dloss = dlosses == nullptr ? 1.0f / (B * T) : (float)dlosses[idx];
    for (int v = threadIdx.x * x128::size; v < V; v += blockDim.x * x128::size) {
        if (probs == nullptr) write_packet<true, false>(dlogits + begin, nullptr, logits + begin, softmax, dloss, target, v, V);
        else write_packet<true, true>(dlogits + begin, probs + begin, logits + begin, softmax, dloss, target, v, V);
    }
}

// From the last packet, which may be short, to the first.
__device__ SoftmaxParams prepare_softmax_blockwide3(int64_t idx, const floatX* inp, int V, int P) {
    const floatX* row = inp + idx * P;
    SoftmaxParams seen = {NO_LOGIT, 0.0f};
    float sum = 0.0f;
    const int packets = ceil_div(V, x128::size);
    for (int i = packets - 1 - (int)threadIdx.x; i >= 0; i -= blockDim.x) {
        const int v = i * x128::size;
        take_packet(seen, sum, load_packet(row + v, V - v), V - v);
    }
    const float largest = blockReduce<warpReduceMax>(seen.largest, false, NO_LOGIT);
    const float total = blockReduce<warpReduceSum>(sum * expf(seen.largest - largest));
    return SoftmaxParams{largest, 1.0f / total};
}

template <bool WriteLogits = true, bool WriteProbs = false>
__global__ void __launch_bounds__(1024, MAX_1024_THREADS_BLOCKS) fused_classifier_kernel5(floatX* dlogits, floatX* losses, floatX* probs, const floatX* logits, const floatX* dlosses, const int* targets, int B, int T, int V, int P) {
    // The last rows first: the matrix product before this has left those in the cache.
    const int64_t idx = (int64_t)B * T - 1 - blockIdx.x;
    if (idx < 0) return; // the whole block leaves together
    const int64_t begin = idx * P;
    const int target = targets[idx];
    const float target_logit = (float)logits[begin + target];
    const SoftmaxParams softmax = prepare_softmax_blockwide3(idx, logits, V, P);
    if (threadIdx.x == 0) losses[idx] = (floatX)loss_of(softmax, target_logit);
    if constexpr (!WriteLogits && !WriteProbs) return;

    const float dloss = dlosses == nullptr ? 1.0f / (B * T) : (float)dlosses[idx];
    floatX* p = WriteProbs ? probs + begin : nullptr;
    for (int v = threadIdx.x * x128::size; v < V; v += blockDim.x * x128::size) {
        write_packet<WriteLogits, WriteProbs>(dlogits + begin, p, logits + begin, softmax, dloss, target, v, V);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32. Kernels 4 and 5 take arrays of floatX, which is float unless the program is
// compiled otherwise.

void fused_classifier1(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks = ceil_div(B * T, block_size / WARP_SIZE);
    fused_classifier_kernel1<<<blocks, block_size>>>(dlogits, losses, logits, dlosses, targets, B, T, V, P);
    cudaCheck(cudaGetLastError());
}

void fused_classifier2(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int rows = B * T;
    fused_classifier_kernel2<<<rows, block_size>>>(dlogits, losses, nullptr, logits, dlosses, targets, B, T, V, P);
    cudaCheck(cudaGetLastError());
}

void fused_classifier3(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int rows = B * T;
    fused_classifier_kernel3<<<rows, block_size>>>(dlogits, losses, nullptr, logits, dlosses, targets, B, T, V, P);
    cudaCheck(cudaGetLastError());
}

void fused_classifier4(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int rows = B * T;
    fused_classifier_kernel4<<<rows, block_size>>>((floatX*)dlogits, (floatX*)losses, nullptr, (const floatX*)logits, (const floatX*)dlosses, targets, B, T, V, P);
    cudaCheck(cudaGetLastError());
}

void fused_classifier5(float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int rows = B * T;
    fused_classifier_kernel5<true, false><<<rows, block_size>>>((floatX*)dlogits, (floatX*)losses, nullptr, (const floatX*)logits, (const floatX*)dlosses, targets, B, T, V, P);
    cudaCheck(cudaGetLastError());
}

void fused_classifier(int kernel_num, float* dlogits, float* losses, const float* logits, const float* dlosses, const int* targets, int B, int T, int V, int P, int block_size) {
    switch (kernel_num) {
        case 1: fused_classifier1(dlogits, losses, logits, dlosses, targets, B, T, V, P, block_size); break;
        case 2: fused_classifier2(dlogits, losses, logits, dlosses, targets, B, T, V, P, block_size); break;
        case 3: fused_classifier3(dlogits, losses, logits, dlosses, targets, B, T, V, P, block_size); break;
        case 4: fused_classifier4(dlogits, losses, logits, dlosses, targets, B, T, V, P, block_size); break;
        case 5: fused_classifier5(dlogits, losses, logits, dlosses, targets, B, T, V, P, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Copies rows of V elements that lie P apart to rows that lie V apart.
static std::vector<float> without_padding(const float* padded, int N, int V, int P) {
    std::vector<float> tight;
    for (int row = 0; row < N; ++row) tight.insert(tight.end(), padded + (size_t)row * P, padded + (size_t)row * P + V);
    return tight;
}

// Runs one shape with all block sizes against the reference; large ones are timed as well.
static void check_shape(int kernel_num, int B, int T, int V, int P) {
    const int N = B * T;
    const size_t padded = (size_t)N * P, tight = (size_t)N * V;
    float* logits = make_random_float(padded);
    // Some logits stand out, as those of a model that has learnt something do.
    for (size_t i = 0; i < padded; i += 61) logits[i] *= 12.0f;
    int* targets = make_random_int(N, V);
    float* dlosses = make_random_float(N);
    std::vector<float> unpadded = without_padding(logits, N, V, P), probs(tight), wanted(tight), wanted_losses(N);
    softmax_forward_cpu(probs.data(), unpadded.data(), N, V);
    crossentropy_forward_cpu(wanted_losses.data(), probs.data(), targets, B, T, V);
    crossentropy_softmax_backward_cpu(wanted.data(), dlosses, probs.data(), targets, B, T, V);
    float* d_logits = make_device_array<float>(padded, logits);
    float* d_dlogits = make_device_array<float>(padded);
    float* d_tight = make_device_array<float>(tight);
    float* d_losses = make_device_array<float>(N);
    float* d_dlosses = make_device_array<float>(N, dlosses);
    int* d_targets = make_device_array<int>(N);
    cudaCheck(cudaMemcpy(d_targets, targets, N * sizeof(int), cudaMemcpyHostToDevice));

    printf("B=%d T=%d V=%d P=%d\n", B, T, V, P);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        // All bits set are not a number, so what is left out shows.
        cudaCheck(cudaMemset(d_dlogits, 0xff, padded * sizeof(float)));
        cudaCheck(cudaMemset(d_losses, 0xff, N * sizeof(float)));
        fused_classifier(kernel_num, d_dlogits, d_losses, d_logits, d_dlosses, d_targets, B, T, V, P, block_size);
        cudaCheck(cudaMemcpy2D(d_tight, V * sizeof(float), d_dlogits, P * sizeof(float), V * sizeof(float), N, cudaMemcpyDeviceToDevice));
        validate_result(d_losses, wanted_losses.data(), "losses", N, 1e-4f);
        validate_result(d_tight, wanted.data(), "dlogits", tight, 1e-6f);
        if (V < 1000) continue;
        const float ms = benchmark_kernel(50, fused_classifier, kernel_num, d_dlogits, d_losses, d_logits, d_dlosses, d_targets, B, T, V, P, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 2.0 * tight * sizeof(float) / ms * 1e-6);
    }

    for (float* array : {d_logits, d_dlogits, d_tight, d_losses, d_dlosses}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(d_targets));
    for (float* array : {logits, dlosses}) free(array);
    free(targets);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 5;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 2, 19, 67, 71); // rows that begin anywhere
    check_shape(kernel_num, 8, 256, 50257, 50304);
    return 0;
}
