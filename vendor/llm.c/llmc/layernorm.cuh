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

// One warp to a row, no shared memory: the row is read twice, the second time mostly from cache.
__global__ void layernorm_forward_kernel3(floatX* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const floatX* __restrict__ inp, const floatX* __restrict__ weight, const floatX* __restrict__ bias, int N, int C) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int row = blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= N) return; // the whole warp leaves together

    const floatX* x = inp + (size_t)row * C;
    floatX* y = out + (size_t)row * C;
    Moments moments = {0.0f, 0.0f, 0.0f};
    for (int c = lane * x128::size; c < C; c += WARP_SIZE * x128::size) {
        moments = join_moments(moments, packet_moments(load_packet(x + c, C - c), C - c));
    }
    moments = warp_moments(moments);
    const float m = moments.mean;
    const float s = rsqrtf(moments.deviation / C + LAYERNORM_EPSILON);

    for (int c = lane * x128::size; c < C; c += WARP_SIZE * x128::size) {
        const x128 w = load_packet(weight + c, C - c);
        const x128 b = load_packet(bias + c, C - c);
        store_packet(y + c, scale_and_shift(load_packet(x + c, C - c), m, s, w, b), C - c);
    }
    if (lane == 0 && mean != nullptr) mean[row] = m;
    if (lane == 0 && rstd != nullptr) rstd[row] = s;
}

// Puts an array of C elements into shared memory as packets, by all threads of a block of WARP_SIZE columns.
__device__ inline void stage_packets(int4* staged, const floatX* array, int C) {
    const int thread = threadIdx.y * WARP_SIZE + threadIdx.x;
    for (int p = thread; p * x128::size < C; p += blockDim.y * WARP_SIZE) {
        staged[p] = load_packet(array + p * x128::size, C - p * x128::size).get_bits();
    }
}

// Mean and 1 / standard deviation of a staged row, whose lanes have each added up to sum what they staged themselves.
__device__ inline float2 staged_row_statistics(const int4* staged, float sum, int C) {
    const float mean = warpReduceSum(sum) / C;
    float deviation = 0.0f;
    for (int p = threadIdx.x; p * x128::size < C; p += WARP_SIZE) {
        const x128 x(staged[p]);
        const int left = C - p * x128::size;
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            const float d = (float)x[i] - mean;
            deviation += i < left ? d * d : 0.0f;
        }
    }
    return make_float2(mean, rsqrtf(warpReduceSum(deviation) / C + LAYERNORM_EPSILON));
}

// Normalises a staged row. Each lane reads what it staged itself, so the row needs no barrier; weight and bias do.
__device__ inline void write_normed_row(floatX* y, const int4* staged, const int4* weight, const int4* bias, float2 statistics, int C) {
    for (int p = threadIdx.x; p * x128::size < C; p += WARP_SIZE) {
        const x128 normed = scale_and_shift(x128(staged[p]), statistics.x, statistics.y, x128(weight[p]), x128(bias[p]));
        store_packet(y + p * x128::size, normed, C - p * x128::size);
    }
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
    stage_packets(shared_weight, weight, C);
    stage_packets(shared_bias, bias, C);
    __syncthreads();

    for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < N; row += gridDim.x * blockDim.y) {
        const floatX* x = inp + (size_t)row * C;
        float sum = 0.0f;
        for (int p = threadIdx.x; p < per_row; p += WARP_SIZE) {
            const x128 packet = load_packet(x + p * x128::size, C - p * x128::size);
            shared_row[p] = packet.get_bits();
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) sum += (float)packet[i];
        }
        const float2 statistics = staged_row_statistics(shared_row, sum, C);
        write_normed_row(out + (size_t)row * C, shared_row, shared_weight, shared_bias, statistics, C);
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
    stage_packets(shared_weight, weight, C);
    stage_packets(shared_bias, bias, C);
    __syncthreads();

    for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < N; row += gridDim.x * blockDim.y) {
        const size_t begin = (size_t)row * C;
        float sum = 0.0f;
        for (int p = threadIdx.x; p < per_row; p += WARP_SIZE) {
            const size_t at = begin + p * x128::size;
            const int left = C - p * x128::size;
            const x128 a = load_packet(inp1 + at, left);
            const x128 b = load_packet(inp2 + at, left);
            x128 total;
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                total[i] = (floatX)((float)a[i] + (float)b[i]);
                // What is normed is the sum as it is stored, rounding included.
                sum += (float)total[i];
            }
            store_packet(residual + at, total, left);
            shared_row[p] = total.get_bits();
        }
        const float2 statistics = staged_row_statistics(shared_row, sum, C);
        write_normed_row(normed + begin, shared_row, shared_weight, shared_bias, statistics, C);
        if (threadIdx.x == 0 && mean != nullptr) mean[row] = statistics.x;
        if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = statistics.y;
    }
}

__device__ inline x128 add_packets(const x128& a, const x128& b) {
    x128 total;
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) total[i] = (floatX)((float)a[i] + (float)b[i]);
    return total;
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

// Columns that one thread keeps the weight and bias gradients of, in registers.
#define LAYERNORM_COLUMNS_PER_THREAD 8
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

// Adds up column c of count partial gradients that lie step floats apart, always in the same order.
__device__ inline float sum_partials(const float* partials, int count, size_t step) {
    float sum = 0.0f;
    #pragma unroll 4
    for (int i = 0; i < count; ++i) sum += __ldcg(partials + i * step);
    return sum;
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
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) {
        __stcg(of_family + c, sum_partials(of_family + c, members, families * width));
    }
    if (!is_last_to_arrive(counters, families)) return;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        dweight[c] = (floatX)((float)dweight[c] + sum_partials(partials + c, families, width));
        dbias[c] = (floatX)((float)dbias[c] + sum_partials(partials + C + c, families, width));
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

// The threads of a block form groups of whole warps. A group has a row at a time, of which each thread holds up to
// LAYERNORM_COLUMNS_PER_THREAD columns, always the same ones, whose weight and bias gradients it gathers in registers.
// At the end the groups add theirs up in a fixed order, then the blocks do: the result has the same bits in every run.
// Rows too wide for a block are done in stripes of columns; each stripe reads the whole row for its two sums.
__global__ void __launch_bounds__(512, 2) layernorm_backward_kernel10(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int B, int T, int C) {
    constexpr int KEPT = LAYERNORM_COLUMNS_PER_THREAD / x128::size; // packets of a thread
    constexpr int ACCUMULATORS = 2 * LAYERNORM_COLUMNS_PER_THREAD;
    __shared__ float2 sums_of_warp[2][WARP_SIZE];
    // Groups add up only where there are at least two, of at most 256 threads each.
    __shared__ float combined[ACCUMULATORS * 256];
    assert(blockDim.x <= 512 && blockDim.x % WARP_SIZE == 0);

    const int N = B * T;
    const int threads_wanted = CEIL_DIV(CEIL_DIV(C, LAYERNORM_COLUMNS_PER_THREAD), WARP_SIZE) * WARP_SIZE;
    const int span = threads_wanted < (int)blockDim.x ? threads_wanted : (int)blockDim.x; // threads of a group
    const int groups = blockDim.x / span;
    const int group = threadIdx.x / span; // where span does not divide the block, the last threads have no group
    const int member = threadIdx.x % span;
    const int stripe = span * LAYERNORM_COLUMNS_PER_THREAD;
    const int first_warp = group * (span / WARP_SIZE);
    float* partial = scratch + LAYERNORM_SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;

    for (int origin = 0; origin < C; origin += stripe) {
        float dw[LAYERNORM_COLUMNS_PER_THREAD] = {};
        float db[LAYERNORM_COLUMNS_PER_THREAD] = {};
        int turn = 0;
        for (int first_row = blockIdx.x * groups; first_row < N; first_row += gridDim.x * groups) {
            const int row = first_row + group;
            const bool active = group < groups && row < N;
            const size_t begin = (size_t)row * C;
            const float m = active ? mean[row] : 0.0f;
            const float s = active ? rstd[row] : 0.0f;
            x128 g[KEPT], x[KEPT], w[KEPT], d[KEPT];
            float2 sums = make_float2(0.0f, 0.0f);
            #pragma unroll
            for (int k = 0; k < KEPT; ++k) {
                const int c = origin + (k * span + member) * x128::size;
                const int left = active ? C - c : 0;
                g[k] = load_packet(dout + begin + c, left);
                x[k] = load_packet(inp + begin + c, left);
                d[k] = load_packet(dinp + begin + c, left);
                w[k] = load_packet(weight + c, left);
            }
            #pragma unroll
            for (int k = 0; k < KEPT; ++k) sums = row_sums(sums, g[k], x[k], w[k], m, s);
            // The other stripes of a row that is wider than the block.
            for (int c = member * x128::size; active && stripe < C && c < C; c += span * x128::size) {
                if (c / stripe * stripe == origin) continue;
                sums = row_sums(sums, load_packet(dout + begin + c, C - c), load_packet(inp + begin + c, C - c), load_packet(weight + c, C - c), m, s);
            }
            sums.x = warpReduceSum(sums.x);
            sums.y = warpReduceSum(sums.y);
            // Two sets of sums take turns, so that one barrier a row is enough.
            turn ^= 1;
            if (threadIdx.x % WARP_SIZE == 0) sums_of_warp[turn][threadIdx.x / WARP_SIZE] = sums;
            __syncthreads();
            if (!active) continue;
            float2 average = make_float2(0.0f, 0.0f);
            for (int i = 0; i < span / WARP_SIZE; ++i) {
                average.x += sums_of_warp[turn][first_warp + i].x;
                average.y += sums_of_warp[turn][first_warp + i].y;
            }
            average.x /= C;
            average.y /= C;

            #pragma unroll
            for (int k = 0; k < KEPT; ++k) {
                const int c = origin + (k * span + member) * x128::size;
                #pragma unroll
                for (int i = 0; i < x128::size; ++i) {
                    const float n = ((float)x[k][i] - m) * s;
                    const float slope = (float)g[k][i] * (float)w[k][i] - average.x - n * average.y;
                    d[k][i] = (floatX)((float)d[k][i] + slope * s);
                    dw[k * x128::size + i] += (float)g[k][i] * n;
                    db[k * x128::size + i] += (float)g[k][i];
                }
                store_packet(dinp + begin + c, d[k], C - c);
            }
        }

        // Group after group adds to what the ones behind it have gathered; group 0 has the last word and the result.
        for (int adder = groups - 1; adder >= 0; --adder) {
            __syncthreads();
            if (group != adder) continue;
            #pragma unroll
            for (int i = 0; i < LAYERNORM_COLUMNS_PER_THREAD; ++i) {
                float* dw_slot = combined + 2 * i * span + member;
                float* db_slot = dw_slot + span;
                if (adder < groups - 1) dw[i] += *dw_slot;
                if (adder < groups - 1) db[i] += *db_slot;
                if (adder > 0) *dw_slot = dw[i];
                if (adder > 0) *db_slot = db[i];
            }
        }
        if (group != 0) continue;
        #pragma unroll
        for (int i = 0; i < LAYERNORM_COLUMNS_PER_THREAD; ++i) {
            const int c = origin + (i / x128::size * span + member) * x128::size + i % x128::size;
            if (c < C) __stcg(partial + c, dw[i]);
            if (c < C) __stcg(partial + C + c, db[i]);
        }
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
