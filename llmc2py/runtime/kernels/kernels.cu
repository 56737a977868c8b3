// Kernels of the runtime's own, for what a recipe needs and llm.c has no kernel for. Each is selected by -DSLICE_<kernel>.
//
// Whole says that every row consists of full packets of 128 bits and that the arrays begin at a multiple of 16 bytes; else
// elements are moved one by one. Arithmetic is in float.

#ifdef ENABLE_FP32
using floatX = float;
#endif
#ifdef ENABLE_FP16
#include <cuda_fp16.h>
using floatX = half;
#endif
#ifdef ENABLE_BF16
#include <cuda_bf16.h>
using floatX = __nv_bfloat16;
#endif
#include <string.h>

// Neighbouring elements. They are kept as bits: unpacked, those of 16 bits would take twice the registers.
template<class Element, int Count = 16 / (int)sizeof(Element)>
struct Packet {
    static constexpr int size = Count;
    static constexpr int parts = Count * (int)sizeof(Element) / 16;
    int4 bits[parts];

    __device__ float get(int i) const {
        Element element;
        memcpy(&element, reinterpret_cast<const char*>(bits) + i * sizeof(Element), sizeof(Element));
        return (float)element;
    }
    __device__ void set(int i, float value) {
        const Element element = (Element)value;
        memcpy(reinterpret_cast<char*>(bits) + i * sizeof(Element), &element, sizeof(Element));
    }
};

// The first `left` elements from an address, if those are fewer; the others are zero.
template<bool Whole, class P, class Element>
__device__ inline P load(const Element* address, long long left) {
    P packet;
    if constexpr (Whole) {
        #pragma unroll
        for (int i = 0; i < P::parts; ++i) packet.bits[i] = reinterpret_cast<const int4*>(address)[i];
    } else {
        #pragma unroll
        for (int i = 0; i < P::size; ++i) packet.set(i, i < left ? (float)address[i] : 0.0f);
    }
    return packet;
}

template<bool Whole, class P, class Element>
__device__ inline void store(Element* address, const P& packet, long long left) {
    if constexpr (Whole) {
        #pragma unroll
        for (int i = 0; i < P::parts; ++i) reinterpret_cast<int4*>(address)[i] = packet.bits[i];
    } else {
        #pragma unroll
        for (int i = 0; i < P::size; ++i) {
            if (i < left) address[i] = (Element)packet.get(i);
        }
    }
}

struct Sum {
    __device__ static float neutral() { return 0.0f; }
    __device__ static float join(float a, float b) { return a + b; }
};

struct Max {
    __device__ static float neutral() { return -3.402823466e+38f; }
    __device__ static float join(float a, float b) { return fmaxf(a, b); }
};

template<class Operation>
__device__ inline float reduce_warp(float value) {
    #pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value = Operation::join(value, __shfl_xor_sync(~0u, value, apart));
    return value;
}

// Joins the values of all threads of a block of whole warps; each thread gets the result.
template<class Operation>
__device__ inline float reduce_block(float value) {
    __shared__ float of_warp[32];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = reduce_warp<Operation>(value);
    if (warps == 1) return value;
    if (lane == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = reduce_warp<Operation>(lane < warps ? of_warp[lane] : Operation::neutral());
    __syncthreads(); // the next reduction writes where this one reads
    return value;
}

typedef Packet<floatX> Row;
// Packets of a row that a thread keeps in registers; those of a longer row are read again for each pass.
#define KEPT 4
// Threads of a block that keeps a row: with more, two rows' packets would not fit into the registers.
#define MOST_THREADS 512

// The part of a row of C elements that a thread works on: packets as many apart as the block has threads.
template<bool Whole>
struct Share {
    const floatX* row;
    int C;
    Row kept[KEPT];

    __device__ Share(const floatX* row, int C) : row(row), C(C) {
        #pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            if (column(k) < C) kept[k] = at(column(k));
        }
    }
    // Of a thread's packet number k, its first column.
    __device__ static long long column(int k) {
        return ((long long)k * blockDim.x + threadIdx.x) * Row::size;
    }
    __device__ Row at(long long column) const {
        return load<Whole, Row>(row + column, C - column);
    }
    // Calls visit(packet, its first column) for the packets that are kept, for the others, or for all.
    template<class Visit>
    __device__ void each_kept(Visit visit) const {
        #pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            if (column(k) < C) visit(kept[k], column(k));
        }
    }
    template<class Visit>
    __device__ void each_other(Visit visit) const {
        for (int k = KEPT; column(k) < C; ++k) visit(at(column(k)), column(k));
    }
    template<class Visit>
    __device__ void each(Visit visit) const {
        each_kept(visit);
        each_other(visit);
    }
    // The same for two rows of one length: calls visit(packet, packet of the other, their first column).
    template<class Visit>
    __device__ void each_with(const Share& other, Visit visit) const {
        #pragma unroll
        for (int k = 0; k < KEPT; ++k) {
            if (column(k) < C) visit(kept[k], other.kept[k], column(k));
        }
        for (int k = KEPT; column(k) < C; ++k) visit(at(column(k)), other.at(column(k)), column(k));
    }
};

// The largest element of a row, and exp(element - largest) for one of its packets, 0 behind the end. By a whole block.
template<bool Whole>
__device__ inline float largest_of(const Share<Whole>& share) {
    float top = Max::neutral();
    share.each([&](const Row& x, long long c) {
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) top = Whole || c + i < share.C ? fmaxf(top, x.get(i)) : top;
    });
    return reduce_block<Max>(top);
}

template<bool Whole>
__device__ inline float power_of(const Share<Whole>& share, const Row& x, int i, long long c, float top) {
    return Whole || c + i < share.C ? expf(x.get(i) - top) : 0.0f;
}

#if defined(SLICE_convert_kernel)
// Each thread converts 8 elements.
template<typename To, typename From>
__global__ void convert_kernel(To* out, const From* inp, long long count) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 8, left = count - at;
    if (left <= 0) return;
    typedef Packet<From, 8> Froms;
    const Froms from = left >= 8 ? load<true, Froms>(inp + at, left) : load<false, Froms>(inp + at, left);
    Packet<To, 8> to;
    #pragma unroll
    for (int i = 0; i < 8; ++i) to.set(i, from.get(i));
    if (left >= 8) store<true>(out + at, to, left);
    else store<false>(out + at, to, left);
}
#endif

#if defined(SLICE_scale_kernel)
// array *= factor, a number on the device. Each thread has one packet.
__global__ void scale_kernel(floatX* array, const float* factor, long long count) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * Row::size, left = count - at;
    if (left <= 0) return;
    Row packet = left >= Row::size ? load<true, Row>(array + at, left) : load<false, Row>(array + at, left);
    #pragma unroll
    for (int i = 0; i < Row::size; ++i) packet.set(i, packet.get(i) * *factor);
    if (left >= Row::size) store<true>(array + at, packet, left);
    else store<false>(array + at, packet, left);
}
#endif

#if defined(SLICE_softmax_kernel)
// One block to a row: out = exp(inp - max) / sum(exp(inp - max)).
template<bool Whole>
__global__ void __launch_bounds__(MOST_THREADS) softmax_kernel(floatX* out, const floatX* inp, int C) {
    floatX* const result = out + (long long)blockIdx.x * C;
    const Share<Whole> share(inp + (long long)blockIdx.x * C, C);
    const float top = largest_of(share);
    // An exponential costs more than a register. Those of packets that are not kept are computed again.
    float powers[KEPT][Row::size], total = 0.0f;
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) {
            powers[k][i] = share.column(k) < C ? power_of(share, share.kept[k], i, share.column(k), top) : 0.0f;
            total += powers[k][i];
        }
    }
    share.each_other([&](const Row& x, long long c) {
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) total += power_of(share, x, i, c, top);
    });
    const float scale = 1.0f / reduce_block<Sum>(total);
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const long long c = share.column(k);
        if (c >= C) break;
        Row p;
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) p.set(i, powers[k][i] * scale);
        store<Whole>(result + c, p, C - c);
    }
    share.each_other([&](const Row& x, long long c) {
        Row p;
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) p.set(i, power_of(share, x, i, c, top) * scale);
        store<Whole>(result + c, p, C - c);
    });
}
#endif

#if defined(SLICE_softmax_gradient_kernel)
// One block to a row: dinp = out (dout - sum(out dout)).
template<bool Whole>
__global__ void __launch_bounds__(MOST_THREADS) softmax_gradient_kernel(floatX* dinp, const floatX* out, const floatX* dout, int C) {
    floatX* const result = dinp + (long long)blockIdx.x * C;
    const Share<Whole> outs(out + (long long)blockIdx.x * C, C), slopes(dout + (long long)blockIdx.x * C, C);
    float sum = 0.0f;
    outs.each_with(slopes, [&](const Row& p, const Row& slope, long long) {
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) sum += p.get(i) * slope.get(i);
    });
    sum = reduce_block<Sum>(sum);
    outs.each_with(slopes, [&](const Row& p, const Row& slope, long long c) {
        Row gradient;
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) gradient.set(i, p.get(i) * (slope.get(i) - sum));
        store<Whole>(result + c, gradient, C - c);
    });
}
#endif

// A loss from here on, or one that is no number, is not exact enough, as the logarithm of a number near the smallest of its
// type.
#define LARGEST_LOSS 64.0f

#if defined(SLICE_mend_losses_kernel)
// Computes losses that are not exact enough anew, from rows of V of P logits: log(sum(exp(logit - largest))) - (logit of the
// target - largest). Each thread looks at one loss; the threads of a warp share a row that is summed up.
__global__ void mend_losses_kernel(float* losses, const floatX* logits, const int* targets, int N, int V, int P) {
    const long long mine = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x % 32;
    unsigned int inexact = __ballot_sync(~0u, mine < N && !(losses[mine] < LARGEST_LOSS));
    for (; inexact != 0; inexact &= inexact - 1) {
        const int whose = __ffs(inexact) - 1;
        const floatX* const row = logits + (mine - lane + whose) * P;
        float top = Max::neutral(), total = 0.0f;
        for (int c = lane; c < V; c += 32) top = fmaxf(top, (float)row[c]);
        top = reduce_warp<Max>(top);
        for (int c = lane; c < V; c += 32) total += expf((float)row[c] - top);
        total = reduce_warp<Sum>(total);
        if (lane == whose) losses[mine] = logf(total) - ((float)row[targets[mine]] - top);
    }
}
#endif

#if defined(SLICE_crossentropy_gradient_kernel)
// The largest of V elements, and the logarithm of the sum of exp(element - largest). By a whole block.
__device__ inline float2 sums_of_row(const floatX* row, int V) {
    float top = Max::neutral(), total = 0.0f;
    for (int c = threadIdx.x; c < V; c += blockDim.x) top = fmaxf(top, (float)row[c]);
    top = reduce_block<Max>(top);
    for (int c = threadIdx.x; c < V; c += blockDim.x) total += expf((float)row[c] - top);
    return make_float2(top, logf(reduce_block<Sum>(total)));
}

// dlogits = (softmax(logits) - [column is the target]) dlosses share in the first V of P columns, 0 in the others.
//
// The loss of a row is -log(softmax(logits)[target]), so that the probability of a column is exp(logit - logit of the
// target - loss): no sum over the row is needed, and blocks (row, stripe of columns) share it out. dlosses has one
// element for each row, or one for all.
template<bool Whole>
__global__ void crossentropy_gradient_kernel(floatX* dlogits, const floatX* logits, const float* losses, const int* targets, const float* dlosses, int dloss_step, float share, int V, int P) {
    const long long row = blockIdx.x;
    const long long origin = (long long)blockIdx.y * KEPT * blockDim.x * Row::size;
    const floatX* const x = logits + row * P;
    Row kept[KEPT];
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const long long c = origin + Share<Whole>::column(k);
        if (c < P) kept[k] = load<Whole, Row>(x + c, P - c);
    }
    const int target = targets[row];
    const float slope = dlosses[row * dloss_step] * share;
    float offset = (float)x[target], shift = losses[row];
    if (!(shift < LARGEST_LOSS)) { // the same for all threads of the block
        const float2 sums = sums_of_row(x, V);
        offset = sums.x;
        shift = sums.y;
    }
    #pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const long long c = origin + Share<Whole>::column(k);
        if (c >= P) break;
        Row gradient;
        #pragma unroll
        for (int i = 0; i < Row::size; ++i) {
            const float p = expf(kept[k].get(i) - offset - shift);
            gradient.set(i, c + i < V ? (p - (c + i == target ? 1.0f : 0.0f)) * slope : 0.0f);
        }
        store<Whole>(dlogits + row * P + c, gradient, P - c);
    }
}
#endif
