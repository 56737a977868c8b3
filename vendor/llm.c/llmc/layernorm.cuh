/*
LayerNorm, the residual addition, and both in one.

Forward, for each row x of C elements: y = n w + b with n = (x - mean) rstd and rstd = 1 / sqrt(var + 1e-5).
Backward, with g = dL/dy and h = g w:
    dL/dx += rstd (h - avg(h) - n avg(h n)),   dL/dw += sum over rows of g n,   dL/db += sum over rows of g.

Any C will do. Rows whose address is a multiple of 16 bytes move in packets of 128 bits, others element by element.
*/
#ifndef LAYERNORM_CUH
#define LAYERNORM_CUH

#include <assert.h>
#include <algorithm>
#include "cuda_common.h"
#include "cuda_utils.cuh"

#define LAYERNORM_EPSILON 1e-5f

// ---------------------------------------------------------------------------------------------------------------
// moments, gathered in one pass

// How many values were seen, their mean, and the sum of their squared deviations from it.
struct Moments {
    float count;
    float mean;
    float deviation;
};

// The moments of two sets taken together (Chan, Golub and LeVeque). Nothing large is subtracted from anything large, so
// a mean far from zero does no harm.
__device__ inline Moments join_moments(Moments a, Moments b) {
    const float count = a.count + b.count;
    const float share = b.count / fmaxf(count, 1.0f);
    const float gap = b.mean - a.mean;
    return Moments{count, a.mean + gap * share, a.deviation + b.deviation + gap * gap * share * a.count};
}

// The moments of the first left elements of a packet.
__device__ inline Moments packet_moments(const x128& packet, int left) {
    const int count = left < x128::size ? left : x128::size;
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) sum += i < count ? (float)packet[i] : 0.0f;
    const float mean = sum / (float)count;
    float deviation = 0.0f;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float d = (float)packet[i] - mean;
        deviation += i < count ? d * d : 0.0f;
    }
    return Moments{(float)count, mean, deviation};
}

// Joins the moments of all lanes. Lane 0's result goes to all, since the order of joining shows in the last bit.
__device__ inline Moments warp_moments(Moments mine) {
    #pragma unroll
    for (int distance = 1; distance < WARP_SIZE; distance <<= 1) {
        Moments theirs;
        theirs.count = __shfl_xor_sync(0xffffffffu, mine.count, distance);
        theirs.mean = __shfl_xor_sync(0xffffffffu, mine.mean, distance);
        theirs.deviation = __shfl_xor_sync(0xffffffffu, mine.deviation, distance);
        mine = join_moments(mine, theirs);
    }
    mine.mean = __shfl_sync(0xffffffffu, mine.mean, 0);
    mine.deviation = __shfl_sync(0xffffffffu, mine.deviation, 0);
    return mine;
}

// ---------------------------------------------------------------------------------------------------------------
// forward

__device__ inline x128 scale_and_shift(const x128& x, float mean, float rstd, const x128& weight, const x128& bias) {
    x128 y;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float n = ((float)x[i] - mean) * rstd;
        y[i] = (floatX)(n * (float)weight[i] + (float)bias[i]);
    }
    return y;
}

// Whether rows of C elements consist of full packets, provided that the arrays begin at a multiple of 16 bytes.
__device__ inline bool has_whole_packets(int C, const floatX* array1, const floatX* array2, const floatX* weight, const floatX* bias) {
    return C % x128::size == 0 && is_aligned128(array1) && is_aligned128(array2) && is_aligned128(weight) && is_aligned128(bias);
}

// Normalises a row by one warp, without shared memory: the row is read twice, the second time mostly from cache.
template<bool Whole>
__device__ inline float2 norm_row(floatX* __restrict__ y, const floatX* __restrict__ x, const floatX* __restrict__ weight, const floatX* __restrict__ bias, int C) {
    const int first = threadIdx.x % WARP_SIZE * x128::size;
    const int step = WARP_SIZE * x128::size;
    Moments moments = {0.0f, 0.0f, 0.0f};
    #pragma unroll 4
    for (int c = first; c < C; c += step) {
        const int left = Whole ? x128::size : C - c;
        moments = join_moments(moments, packet_moments(load_packet<Whole>(x + c, left), left));
    }
    moments = warp_moments(moments);
    const float2 statistics = make_float2(moments.mean, rsqrtf(moments.deviation / C + LAYERNORM_EPSILON));
    #pragma unroll 4
    for (int c = first; c < C; c += step) {
        const x128 w = load_packet<Whole>(weight + c, C - c);
        const x128 b = load_packet<Whole>(bias + c, C - c);
        store_packet<Whole>(y + c, scale_and_shift(load_packet<Whole>(x + c, C - c), statistics.x, statistics.y, w, b), C - c);
    }
    return statistics;
}

// One warp to a row.
__global__ void layernorm_forward_kernel3(floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const floatX* __restrict__ inp, const floatX* __restrict__ weight, const floatX* __restrict__ bias, int N, int C) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int row = blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= N) return; // the whole warp leaves together

    const floatX* x = inp + (size_t)row * C;
    floatX* y = out + (size_t)row * C;
    const bool whole = has_whole_packets(C, out, inp, weight, bias);
    const float2 statistics = whole ? norm_row<true>(y, x, weight, bias, C) : norm_row<false>(y, x, weight, bias, C);
    if (lane == 0 && mean != nullptr) mean[row] = statistics.x;
    if (lane == 0 && rstd != nullptr) rstd[row] = statistics.y;
}

__device__ inline x128 add_packets(const x128& a, const x128& b) {
    x128 total;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) total[i] = (floatX)((float)a[i] + (float)b[i]);
    return total;
}

// Puts an array of C elements into shared memory as packets, by all threads of a block of WARP_SIZE columns.
__device__ inline void stage_packets(int4* staged, const floatX* array, int C) {
    const int thread = threadIdx.y * WARP_SIZE + threadIdx.x;
    for (int p = thread; p * x128::size < C; p += blockDim.y * WARP_SIZE) {
        staged[p] = load_packet(array + p * x128::size, C - p * x128::size).get_bits();
    }
}

// Packets of a row that a lane asks for before it waits for the first of them.
#define PACKETS_UNDER_WAY 4

// Puts a row into shared memory, each lane its own packets. The row is x or, where there is an addend, their sum, which
// is then also stored in total. Returns the sum of the lane's elements.
template<bool Whole, bool HasAddend>
__device__ inline float stage_row(int4* staged, floatX* __restrict__ total, const floatX* __restrict__ x, const floatX* __restrict__ addend, int C) {
    const int step = WARP_SIZE * x128::size;
    float sum = 0.0f;
    for (int start = threadIdx.x * x128::size; start < C; start += PACKETS_UNDER_WAY * step) {
        // As bits, in four registers a packet: elements apart would take eight.
        int4 row[PACKETS_UNDER_WAY];
        int4 more[PACKETS_UNDER_WAY];
        #pragma unroll
        for (int i = 0; i < PACKETS_UNDER_WAY; ++i) {
            const int c = start + i * step;
            if (c < C) row[i] = load_packet<Whole>(x + c, C - c).get_bits();
            if (HasAddend && c < C) more[i] = load_packet<Whole>(addend + c, C - c).get_bits();
        }
        #pragma unroll
        for (int i = 0; i < PACKETS_UNDER_WAY; ++i) {
            const int c = start + i * step;
            if (c >= C) break;
            // What is normed is the sum as it is stored, rounding included.
            const x128 value = HasAddend ? add_packets(x128(row[i]), x128(more[i])) : x128(row[i]);
            if (HasAddend) store_packet<Whole>(total + c, value, C - c);
            staged[c / x128::size] = value.get_bits();
            #pragma unroll
            for (int k = 0; k < x128::size; ++k) sum += (float)value[k];
        }
    }
    return sum;
}

// Normalises a staged row, of which each lane has staged what it reads here itself and has added it up to sum. So the row
// needs no barrier; weight and bias do. Returns mean and 1 / standard deviation.
template<bool Whole>
__device__ inline float2 norm_staged_row(floatX* __restrict__ y, const int4* staged, const int4* weight, const int4* bias, float sum, int C) {
    const float mean = warpReduceSum(sum) / C;
    float deviation = 0.0f;
    #pragma unroll 4
    for (int p = threadIdx.x; p * x128::size < C; p += WARP_SIZE) {
        const x128 x(staged[p]);
        const int left = Whole ? x128::size : C - p * x128::size;
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            const float d = (float)x[i] - mean;
            deviation += i < left ? d * d : 0.0f;
        }
    }
    const float rstd = rsqrtf(warpReduceSum(deviation) / C + LAYERNORM_EPSILON);
    #pragma unroll 4
    for (int p = threadIdx.x; p * x128::size < C; p += WARP_SIZE) {
        const x128 normed = scale_and_shift(x128(staged[p]), mean, rstd, x128(weight[p]), x128(bias[p]));
        store_packet<Whole>(y + p * x128::size, normed, C - p * x128::size);
    }
    return make_float2(mean, rstd);
}

// One warp to a row, blockDim = (WARP_SIZE, rows at a time). Weight, bias and the rows at hand lie in shared memory:
// (2 + blockDim.y) * CEIL_DIV(C, x128::size) packets.
__global__ void layernorm_forward_kernel6(floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const floatX* __restrict__ inp, const floatX* __restrict__ weight, const floatX* __restrict__ bias, int N, int C) {
    extern __shared__ __align__(16) int4 packets[];
    assert(blockDim.x == WARP_SIZE);
    const int per_row = CEIL_DIV(C, x128::size);
    int4* shared_weight = packets;
    int4* shared_bias = packets + per_row;
    int4* shared_row = packets + (2 + threadIdx.y) * per_row;
    const bool whole = has_whole_packets(C, out, inp, weight, bias);
    stage_packets(shared_weight, weight, C);
    stage_packets(shared_bias, bias, C);
    __syncthreads();

    for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < N; row += gridDim.x * blockDim.y) {
        const floatX* x = inp + (size_t)row * C;
        floatX* y = out + (size_t)row * C;
        float2 statistics;
        if (whole) {
            const float sum = stage_row<true, false>(shared_row, nullptr, x, nullptr, C);
            statistics = norm_staged_row<true>(y, shared_row, shared_weight, shared_bias, sum, C);
        } else {
            const float sum = stage_row<false, false>(shared_row, nullptr, x, nullptr, C);
            statistics = norm_staged_row<false>(y, shared_row, shared_weight, shared_bias, sum, C);
        }
        if (threadIdx.x == 0 && mean != nullptr) mean[row] = statistics.x;
        if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = statistics.y;
    }
}

// residual = inp1 + inp2 and normed = layernorm(residual), in one pass over memory. Laid out as the kernel above.
__global__ void fused_residual_forward_kernel5(floatX* residual, floatX* normed, float* mean, float* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C) {
    extern __shared__ __align__(16) int4 packets[];
    assert(blockDim.x == WARP_SIZE);
    const int per_row = CEIL_DIV(C, x128::size);
    int4* shared_weight = packets;
    int4* shared_bias = packets + per_row;
    int4* shared_row = packets + (2 + threadIdx.y) * per_row;
    const bool whole = has_whole_packets(C, inp1, inp2, weight, bias) && is_aligned128(residual) && is_aligned128(normed);
    stage_packets(shared_weight, weight, C);
    stage_packets(shared_bias, bias, C);
    __syncthreads();

    for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < N; row += gridDim.x * blockDim.y) {
        const size_t begin = (size_t)row * C;
        float2 statistics;
        if (whole) {
            const float sum = stage_row<true, true>(shared_row, residual + begin, inp1 + begin, inp2 + begin, C);
            statistics = norm_staged_row<true>(normed + begin, shared_row, shared_weight, shared_bias, sum, C);
        } else {
            const float sum = stage_row<false, true>(shared_row, residual + begin, inp1 + begin, inp2 + begin, C);
            statistics = norm_staged_row<false>(normed + begin, shared_row, shared_weight, shared_bias, sum, C);
        }
        if (threadIdx.x == 0 && mean != nullptr) mean[row] = statistics.x;
        if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = statistics.y;
    }
}

// Each thread takes one packet; the grid covers the array exactly.
__global__ void residual_forward_kernel(floatX* out, const floatX* inp1, const floatX* inp2) {
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    store128(out + first, add_packets(load128cs(inp1 + first), load128cs(inp2 + first)));
}

// The same for an array of any size, as N rows of C elements; the blocks stride over the rows.
__global__ void residual_rows_kernel(floatX* out, const floatX* inp1, const floatX* inp2, int N, int C) {
    for (int row = blockIdx.x; row < N; row += gridDim.x) {
        for (int c = threadIdx.x * x128::size; c < C; c += blockDim.x * x128::size) {
            const size_t at = (size_t)row * C + c;
            store_packet(out + at, add_packets(load_packet(inp1 + at, C - c), load_packet(inp2 + at, C - c)), C - c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// backward

// Where the blocks' partial gradients begin in scratch; what is before holds counters.
#define LAYERNORM_SCRATCH_HEADER 32
// The partial gradients are added in two steps, first within families of blocks, so that many blocks take part.
#define LAYERNORM_FAMILIES 16

// Tells all threads of a block whether theirs is the last of the given number of blocks to call this with counter. What
// the other blocks wrote before their call, the last one sees.
__device__ inline bool is_last_to_arrive(unsigned int* counter, unsigned int parties) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == parties - 1;
    __syncthreads();
    __threadfence();
    return last;
}

// Adds up count partial gradients of two neighbouring columns that lie step floats apart, always in the same order.
__device__ inline float2 sum_partials(const float* partials, int count, size_t step) {
    float2 sum = make_float2(0.0f, 0.0f);
    #pragma unroll 16
    for (int i = 0; i < count; ++i) {
        const float2 part = __ldcg(reinterpret_cast<const float2*>(partials + i * step));
        sum.x += part.x;
        sum.y += part.y;
    }
    return sum;
}

// Adds to element c of dweight and dbias laid end to end.
__device__ inline void add_to_parameter_gradient(floatX* dweight, floatX* dbias, int c, float value, int C) {
    if (c < C) dweight[c] = (floatX)((float)dweight[c] + value);
    else dbias[c - C] = (floatX)((float)dbias[c - C] + value);
}

// Turns the partial gradients that all blocks have left in scratch, 2 C floats each, into dweight and dbias.
__device__ inline void finish_parameter_gradients(floatX* dweight, floatX* dbias, float* scratch, int C) {
    unsigned int* counters = reinterpret_cast<unsigned int*>(scratch);
    float* partials = scratch + LAYERNORM_SCRATCH_HEADER;
    const size_t width = 2 * (size_t)C;
    const int blocks = gridDim.x;
    const int families = blocks < LAYERNORM_FAMILIES ? blocks : LAYERNORM_FAMILIES;
    const int family = blockIdx.x % families;
    const int members = CEIL_DIV(blocks - family, families);

    if (!is_last_to_arrive(counters + 1 + family, members)) return;
    float* of_family = partials + family * width;
    for (int c = 2 * threadIdx.x; c < 2 * C; c += 2 * blockDim.x) {
        const float2 sum = sum_partials(of_family + c, members, families * width);
        __stcg(reinterpret_cast<float2*>(of_family + c), sum);
    }
    if (!is_last_to_arrive(counters, families)) return;
    for (int c = 2 * threadIdx.x; c < 2 * C; c += 2 * blockDim.x) {
        const float2 sum = sum_partials(partials + c, families, width);
        add_to_parameter_gradient(dweight, dbias, c, sum.x, C);
        add_to_parameter_gradient(dweight, dbias, c + 1, sum.y, C);
    }
}

// The two sums over a row that its gradient needs, h and h n, as far as one packet goes.
__device__ inline float2 row_sums(float2 sums, const x128& dout, const x128& inp, const x128& weight, float mean, float rstd) {
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float h = (float)dout[i] * (float)weight[i];
        sums.x += h;
        sums.y += h * ((float)inp[i] - mean) * rstd;
    }
    return sums;
}

// How the threads of a block share the work on rows of C elements: in groups of whole warps, of which each has a row at a
// time and each thread one packet of it. Where a group's width does not divide the block, the last threads have no group.
// A row wider than the block is done in stripes of columns.
struct RowGroups {
    int width;  // threads of a group
    int count;  // groups
    int group;  // the thread's own, count or more if it has none
    int member; // the thread's place in its group
    int stripe; // columns that a group covers
};

__device__ inline RowGroups make_row_groups(int C) {
    RowGroups groups;
    const int wanted = CEIL_DIV(CEIL_DIV(C, x128::size), WARP_SIZE) * WARP_SIZE;
    groups.width = wanted < (int)blockDim.x ? wanted : (int)blockDim.x;
    groups.count = blockDim.x / groups.width;
    groups.group = threadIdx.x / groups.width;
    groups.member = threadIdx.x % groups.width;
    groups.stripe = groups.width * x128::size;
    return groups;
}

// What a thread gathers for its packet of columns, over all rows of its group.
struct ColumnGradients {
    float weight[x128::size];
    float bias[x128::size];
};

// All rows of a block, for the stripe of columns that begins at origin: adds to dinp and returns what the thread's
// columns have to give to dweight and dbias. Behind the barrier a row is read again, from the first-level cache: to keep
// it, unpacked as the compiler would, takes more registers than there are. Whole says that packets are whole and that
// there is one stripe.
template<bool Whole>
__device__ inline ColumnGradients row_gradients(const RowGroups& groups, int origin, floatX* dinp, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int N, int C) {
    __shared__ float2 sums_of_warp[2][WARP_SIZE];
    const int c = origin + groups.member * x128::size;
    const int left = groups.group < groups.count ? C - c : 0;
    const int warps = groups.width / WARP_SIZE;
    const float one_over_C = 1.0f / C;
    ColumnGradients gathered = {};
    int turn = 0;

    for (int first_row = blockIdx.x * groups.count; first_row < N; first_row += gridDim.x * groups.count) {
        const int row = first_row + groups.group;
        const bool active = row < N && left > 0;
        const size_t at = (size_t)row * C + c;
        float2 sums = make_float2(0.0f, 0.0f);
        // Asked for early, needed late.
        int4 old_bits = make_int4(0, 0, 0, 0);
        if (active) {
            const x128 slope = load_packet<Whole>(dout + at, left);
            const x128 value = load_packet<Whole>(inp + at, left);
            old_bits = load_packet<Whole>(dinp + at, left).get_bits();
            sums = row_sums(sums, slope, value, load_packet<Whole>(weight + c, left), mean[row], rstd[row]);
        }
        // The other stripes of a row that is wider than the block, which then is one group.
        for (int o = groups.member * x128::size; !Whole && groups.stripe < C && o < C; o += groups.stripe) {
            if (o == c) continue;
            const size_t there = (size_t)row * C + o;
            const x128 slope = load_packet(dout + there, C - o);
            const x128 value = load_packet(inp + there, C - o);
            sums = row_sums(sums, slope, value, load_packet(weight + o, C - o), mean[row], rstd[row]);
        }
        sums = make_float2(warpReduceSum(sums.x), warpReduceSum(sums.y));
        // Two sets of sums take turns, so that one barrier a row is enough.
        turn ^= 1;
        if (threadIdx.x % WARP_SIZE == 0) sums_of_warp[turn][threadIdx.x / WARP_SIZE] = sums;
        __syncthreads();
        if (!active) continue;

        float2 average = make_float2(0.0f, 0.0f);
        #pragma unroll 1 // to read ahead would cost registers
        for (int i = groups.group * warps; i < (groups.group + 1) * warps; ++i) {
            average.x += sums_of_warp[turn][i].x;
            average.y += sums_of_warp[turn][i].y;
        }
        average.x *= one_over_C;
        average.y *= one_over_C;
        const float m = mean[row], s = rstd[row];
        const x128 slope = load_packet<Whole>(dout + at, left);
        const x128 value = load_packet<Whole>(inp + at, left);
        const x128 w = load_packet<Whole>(weight + c, left);
        x128 sum(old_bits);
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            const float n = ((float)value[i] - m) * s;
            sum[i] = (floatX)((float)sum[i] + s * ((float)slope[i] * (float)w[i] - average.x - n * average.y));
            gathered.weight[i] += (float)slope[i] * n;
            gathered.bias[i] += (float)slope[i];
        }
        store_packet<Whole>(dinp + at, sum, left);
    }
    return gathered;
}

// The general case, apart, so that its registers are not taken from the fast one.
__device__ __noinline__ ColumnGradients row_gradients_in_pieces(const RowGroups& groups, int origin, floatX* dinp, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int N, int C) {
    return row_gradients<false>(groups, origin, dinp, dout, inp, weight, mean, rstd, N, C);
}

// Adds up what the groups of a block have gathered, one after the other, and puts it where the block's partial gradients
// belong. Neighbouring threads write neighbouring columns there, which is why all goes through shared memory: element i
// of a thread's packet lies in line i, and lines are four banks apart, so that neither side has conflicts.
__device__ inline void join_groups(const RowGroups& groups, int origin, const ColumnGradients& gathered, float* partial, int C) {
    constexpr int LINE = 512 + 4;
    __shared__ float of_weight[x128::size * LINE];
    __shared__ float of_bias[x128::size * LINE];
    for (int adder = groups.count - 1; adder >= 0; --adder) {
        if (groups.group == adder) {
            const bool first = adder == groups.count - 1;
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                const int slot = i * LINE + groups.member;
                of_weight[slot] = gathered.weight[i] + (first ? 0.0f : of_weight[slot]);
                of_bias[slot] = gathered.bias[i] + (first ? 0.0f : of_bias[slot]);
            }
        }
        __syncthreads();
    }
    const int columns = C - origin < groups.stripe ? C - origin : groups.stripe;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        const int slot = c % x128::size * LINE + c / x128::size;
        __stcg(partial + origin + c, of_weight[slot]);
        __stcg(partial + C + origin + c, of_bias[slot]);
    }
    __syncthreads(); // the next stripe uses the same memory
}

// The parameter gradients are gathered in registers by the threads that own the columns, joined within a block, and then
// over all blocks, always in the same order: the result has the same bits in every run.
__global__ void __launch_bounds__(512, 2) layernorm_backward_kernel10(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int B, int T, int C) {
    assert(blockDim.x <= 512 && blockDim.x % WARP_SIZE == 0);
    const RowGroups groups = make_row_groups(C);
    const bool whole = has_whole_packets(C, dinp, dout, inp, weight) && groups.stripe >= C;
    float* partial = scratch + LAYERNORM_SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
    for (int origin = 0; origin < C; origin += groups.stripe) {
        ColumnGradients gathered;
        if (whole) {
            gathered = row_gradients<true>(groups, origin, dinp, dout, inp, weight, mean, rstd, B * T, C);
        } else {
            gathered = row_gradients_in_pieces(groups, origin, dinp, dout, inp, weight, mean, rstd, B * T, C);
        }
        join_groups(groups, origin, gathered, partial, C);
    }
    finish_parameter_gradients(dweight, dbias, scratch, C);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

// out, mean and rstd (B*T each, or null) from inp (B*T rows of C), weight and bias (C)
void layernorm_forward(floatX* out, float* mean, float* rstd, floatX* inp, const floatX* weight, const floatX* bias, int B, int T, int C, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int N = B * T;
    const int rows_per_block = 8;
    const int smem = (2 + rows_per_block) * CEIL_DIV(C, x128::size) * x128::size * (int)sizeof(floatX);
    const cudaError_t granted = cudaFuncSetAttribute(layernorm_forward_kernel6, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        // Enough blocks to keep the device busy; beyond that a block does better to use its copy of the weights again.
        const int blocks = std::min(CEIL_DIV(N, rows_per_block), 32 * deviceProp.multiProcessorCount);
        layernorm_forward_kernel6<<<blocks, dim3(WARP_SIZE, rows_per_block), smem, stream>>>(out, mean, rstd, inp, weight, bias, N, C);
    } else {
        cudaGetLastError(); // the refusal is dealt with: the rows are too wide for shared memory
        const int blocks = CEIL_DIV(N, rows_per_block);
        layernorm_forward_kernel3<<<blocks, rows_per_block * WARP_SIZE, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C);
    }
    cudaCheck(cudaGetLastError());
}

// out = inp1 + inp2, N elements
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, int N, cudaStream_t stream) {
    const int block_size = 256;
    NVTX_RANGE_FN();
    assert(N % (block_size * x128::size) == 0);
    const int blocks = N / (block_size * x128::size);
    residual_forward_kernel<<<blocks, block_size, 0, stream>>>(out, inp1, inp2);
    cudaCheck(cudaGetLastError());
}

// residual = inp1 + inp2 and normed = layernorm(residual), N rows of C elements
void fused_residual_forward5(floatX* residual, floatX* normed, float* mean, float* rstd, const floatX* inp1, const floatX* inp2, const floatX* weight, const floatX* bias, int N, int C, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int rows_per_block = 8;
    const int smem = (2 + rows_per_block) * CEIL_DIV(C, x128::size) * x128::size * (int)sizeof(floatX);
    const cudaError_t granted = cudaFuncSetAttribute(fused_residual_forward_kernel5, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        const int blocks = std::min(CEIL_DIV(N, rows_per_block), 32 * deviceProp.multiProcessorCount);
        fused_residual_forward_kernel5<<<blocks, dim3(WARP_SIZE, rows_per_block), smem, stream>>>(residual, normed, mean, rstd, inp1, inp2, weight, bias, N, C);
        cudaCheck(cudaGetLastError());
    } else {
        cudaGetLastError(); // the refusal is dealt with: the rows are too wide for shared memory
        residual_rows_kernel<<<N, 256, 0, stream>>>(residual, inp1, inp2, N, C);
        cudaCheck(cudaGetLastError());
        layernorm_forward(normed, mean, rstd, residual, weight, bias, N, 1, C, stream);
    }
}

// Adds to dinp (B*T rows of C), dweight and dbias (C). scratch holds 32 + 2*C*grid floats, where the grid is two blocks
// for each multiprocessor; what was in it does not matter.
void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int B, int T, int C, cudaStream_t stream) {
    NVTX_RANGE_FN();
    const int threads = 512;
    const int grid = 2 * deviceProp.multiProcessorCount;
    cudaCheck(cudaMemsetAsync(scratch, 0, LAYERNORM_SCRATCH_HEADER * sizeof(float), stream));
    layernorm_backward_kernel10<<<grid, threads, 0, stream>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

#endif // LAYERNORM_CUH
