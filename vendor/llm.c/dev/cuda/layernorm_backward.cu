/*
LayerNorm, backward. With n = (x - mean) rstd, g = dL/dy and h = g weight, for each row of C elements:
    dinp += rstd (h - avg(h) - n avg(h n)),   dweight += sum over rows of g n,   dbias += sum over rows of g.

nvcc -O3 -std=c++17 layernorm_backward.cu -o layernorm_backward
./layernorm_backward [kernel number]

1   one thread to a row, global atomics (float alone: compile with ENABLE_BF16 below taken out)
2   one warp to a row, cooperative groups, global atomics on a float copy of the parameter gradients
3   warps that stay for many rows and gather parameter gradients in shared memory, then atomics of the parameters' type
4   as 3, with a compare-and-swap in place of those atomics
5   as 3, with float atomics on scratch memory; the last block to finish converts
6   one block to a row, threads that own columns, partial sums of the blocks in scratch memory: same bits in every run
7   as 6, packets of 128 bits
8   one warp to a row, packets, shared atomics, partial sums in scratch memory
9   rows first, columns after: no shared memory at all
10  groups of warps to a row, parameter gradients in registers

Shared memory in 3 to 8 is two floats for each column: up to C = 6144 without further ado.
*/
#define ENABLE_BF16
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

// ---------------------------------------------------------------------------------------------------------------
// reference

void layernorm_forward_cpu(float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int B, int T, int C) {
    int row, c;
    for (row = 0; row < B * T; row++) {
        const float* x = inp + (size_t)row * C;
        float* y = out + (size_t)row * C;
        float total = 0.0f;
        float squares = 0.0f;
        float center, scale;
        for (c = 0; c < C; c++) total += x[c];
        center = total / C;
        for (c = 0; c < C; c++) squares += (x[c] - center) * (x[c] - center);
        scale = 1.0f / sqrtf(squares / C + 1e-5f);
        for (c = 0; c < C; c++) y[c] = (x[c] - center) * scale * weight[c] + bias[c];
        mean[row] = center;
        rstd[row] = scale;
    }
}

void layernorm_backward_cpu(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight, const float* mean, const float* rstd, int B, int T, int C) {
    int row, c;
    for (row = 0; row < B * T; row++) {
        const float* g = dout + (size_t)row * C;
        const float* x = inp + (size_t)row * C;
        float* dx = dinp + (size_t)row * C;
        float avg_h = 0.0f;
        float avg_hn = 0.0f;
        for (c = 0; c < C; c++) {
            avg_h += g[c] * weight[c];
            avg_hn += g[c] * weight[c] * (x[c] - mean[row]) * rstd[row];
        }
        avg_h = avg_h / C;
        avg_hn = avg_hn / C;
        for (c = 0; c < C; c++) {
            float n = (x[c] - mean[row]) * rstd[row];
            dx[c] += rstd[row] * (g[c] * weight[c] - avg_h - n * avg_hn);
            dweight[c] += g[c] * n;
            dbias[c] += g[c];
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// parts of the kernels

// An addition that other threads cannot get in between, for each type that parameters have.
__device__ void atomicAddX(__nv_bfloat16* addr, __nv_bfloat16 val) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    unsigned short* word = reinterpret_cast<unsigned short*>(addr);
    unsigned short seen = *word;
    for (;;) {
        const float sum = __bfloat162float(__ushort_as_bfloat16(seen)) + __bfloat162float(val);
        const unsigned short found = atomicCAS(word, seen, __bfloat16_as_ushort(__float2bfloat16_rn(sum)));
        if (found == seen) break;
        seen = found;
    }
#else
    atomicAdd(addr, val);
#endif
}
__device__ void atomicAddX(half* addr, half val) {
    atomicAdd(addr, val);
}
__device__ void atomicAddX(float* addr, float val) {
    atomicAdd(addr, val);
}

// *target += value, rounded once, by exchange: the word is written only where it still is what the sum was made from.
__device__ inline void add_by_exchange(float* target, float value) {
    unsigned int* word = reinterpret_cast<unsigned int*>(target);
    unsigned int seen = *word;
    for (;;) {
        const unsigned int found = atomicCAS(word, seen, __float_as_uint(__uint_as_float(seen) + value));
        if (found == seen) return;
        seen = found;
    }
}

// The averages over a row of h and of h n, found by one warp and known to all its lanes.
template<class Tdout, class Trest, class Tparams>
__device__ inline float2 warp_averages(const Tdout* g, const Trest* x, const Tparams* weight, float m, float s, int C) {
    float2 sums = make_float2(0.0f, 0.0f);
    for (int c = threadIdx.x % WARP_SIZE; c < C; c += WARP_SIZE) {
        const float h = (float)g[c] * (float)weight[c];
        sums.x += h;
        sums.y += h * ((float)x[c] - m) * s;
    }
    return make_float2(warpReduceSum(sums.x) / C, warpReduceSum(sums.y) / C);
}

// One column of a row: adds to *dx, and returns what the row has to give to dweight and dbias there.
template<class Tdinp>
__device__ inline float2 column_gradients(Tdinp* dx, float g, float x, float weight, float m, float s, float2 average) {
    const float n = (x - m) * s;
    *dx = (Tdinp)((float)*dx + s * (g * weight - average.x - n * average.y));
    return make_float2(g * n, g);
}

// The warps of the grid share the rows. gathered, in shared memory, receives what the block has to give: C floats for
// dweight, then C for dbias. Ends with a barrier.
template<class Tdinp, class Tparams, class Tdout, class Trest>
__device__ inline void gather_rows(float* gathered, Tdinp* dinp, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int N, int C) {
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) gathered[c] = 0.0f;
    __syncthreads();
    const int warps = blockDim.x / WARP_SIZE;
    for (int row = blockIdx.x * warps + threadIdx.x / WARP_SIZE; row < N; row += gridDim.x * warps) {
        const size_t begin = (size_t)row * C;
        const float m = (float)mean[row], s = (float)rstd[row];
        const float2 average = warp_averages(dout + begin, inp + begin, weight, m, s, C);
        for (int c = threadIdx.x % WARP_SIZE; c < C; c += WARP_SIZE) {
            const float2 given = column_gradients(dinp + begin + c, (float)dout[begin + c], (float)inp[begin + c], (float)weight[c], m, s, average);
            atomicAdd(gathered + c, given.x);
            atomicAdd(gathered + C + c, given.y);
        }
    }
    __syncthreads();
}

// Where the blocks' partial gradients begin in scratch; what is before holds counters.
#define SCRATCH_HEADER 32
// The partial gradients are added in two steps, first within families of blocks, so that many blocks take part.
#define FAMILIES 16

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
template<class Tparams>
__device__ inline void add_to_parameter_gradient(Tparams* dweight, Tparams* dbias, int c, float value, int C) {
    if (c < C) dweight[c] = (Tparams)((float)dweight[c] + value);
    else dbias[c - C] = (Tparams)((float)dbias[c - C] + value);
}

// Turns the partial gradients that all blocks have left in scratch, 2 C floats each, into dweight and dbias.
template<class Tparams>
__device__ inline void finish_parameter_gradients(Tparams* dweight, Tparams* dbias, float* scratch, int C) {
    unsigned int* counters = reinterpret_cast<unsigned int*>(scratch);
    float* partials = scratch + SCRATCH_HEADER;
    const size_t width = 2 * (size_t)C;
    const int blocks = gridDim.x;
    const int families = blocks < FAMILIES ? blocks : FAMILIES;
    const int family = blockIdx.x % families;
    const int members = ceil_div(blocks - family, families);

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

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void layernorm_backward_kernel1(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight, const float* mean, const float* rstd, int B, int T, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= B * T) return;
    const float* g = dout + (size_t)row * C;
    const float* x = inp + (size_t)row * C;
    float* dx = dinp + (size_t)row * C;
    const float m = mean[row], s = rstd[row];
    float2 average = make_float2(0.0f, 0.0f);
    for (int c = 0; c < C; ++c) {
        average.x += g[c] * weight[c] / C;
        average.y += g[c] * weight[c] * (x[c] - m) * s / C;
    }
    for (int c = 0; c < C; ++c) {
        const float2 given = column_gradients(dx + c, g[c], x[c], weight[c], m, s, average);
        atomicAdd(dweight + c, given.x);
        atomicAdd(dbias + c, given.y);
    }
}

// dweight and dbias are left as they are: what belongs there goes to the float arrays dweight_tmp and dbias_tmp.
template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
__global__ void layernorm_backward_kernel2(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, float* dweight_tmp, float* dbias_tmp) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= B * T) return; // the whole warp leaves together
    const int lane = warp.thread_rank();
    const size_t begin = (size_t)row * C;
    const float m = (float)mean[row], s = (float)rstd[row];
    float h = 0.0f, hn = 0.0f;
    for (int c = lane; c < C; c += 32) {
        const float term = (float)dout[begin + c] * (float)weight[c];
        h += term;
        hn += term * ((float)inp[begin + c] - m) * s;
    }
    const float2 average = make_float2(cg::reduce(warp, h, cg::plus<float>{}) / C, cg::reduce(warp, hn, cg::plus<float>{}) / C);
    for (int c = lane; c < C; c += 32) {
        const float2 given = column_gradients(dinp + begin + c, (float)dout[begin + c], (float)inp[begin + c], (float)weight[c], m, s, average);
        atomicAdd(dweight_tmp + c, given.x);
        atomicAdd(dbias_tmp + c, given.y);
    }
}

// Adds the float arrays to the gradients proper.
template <typename Tparams>
__global__ void copy_to_dweight_dbias(int C, Tparams* dbias, Tparams* dweight, float* dbias_tmp, float* dweight_tmp) {
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < C; c += gridDim.x * blockDim.x) {
        dbias[c] = (Tparams)((float)dbias[c] + dbias_tmp[c]);
        dweight[c] = (Tparams)((float)dweight[c] + dweight_tmp[c]);
    }
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
__global__ void layernorm_backward_kernel3(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    gather_rows(gathered, dinp, dout, inp, weight, mean, rstd, B * T, C);
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        atomicAddX(dweight + c, (Tparams)gathered[c]);
        atomicAddX(dbias + c, (Tparams)gathered[C + c]);
    }
}

// The same for a 16-bit type, which has 16-bit words to exchange.
template<class Half>
__device__ inline void add_by_exchange(Half* target, float value) {
    static_assert(sizeof(Half) == sizeof(unsigned short), "a type of 16 bits");
    unsigned short* word = reinterpret_cast<unsigned short*>(target);
    unsigned short seen = *word;
    for (;;) {
        Half sum;
        memcpy(&sum, &seen, sizeof(sum));
        sum = (Half)((float)sum + value);
        unsigned short wanted;
        memcpy(&wanted, &sum, sizeof(wanted));
        const unsigned short found = atomicCAS(word, seen, wanted);
        if (found == seen) return;
        seen = found;
    }
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
__global__ void layernorm_backward_kernel4(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    gather_rows(gathered, dinp, dout, inp, weight, mean, rstd, B * T, C);
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        add_by_exchange(dweight + c, gathered[c]);
        add_by_exchange(dbias + c, gathered[C + c]);
    }
}

// scratch: a counter and 2 C sums behind the header, all zero at the start.
template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
__global__ void layernorm_backward_kernel5(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    gather_rows(gathered, dinp, dout, inp, weight, mean, rstd, B * T, C);
    float* sums = scratch + SCRATCH_HEADER;
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) atomicAdd(sums + c, gathered[c]);
    if (!is_last_to_arrive(reinterpret_cast<unsigned int*>(scratch), gridDim.x)) return;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        dweight[c] = (Tparams)((float)dweight[c] + __ldcg(sums + c));
        dbias[c] = (Tparams)((float)dbias[c] + __ldcg(sums + C + c));
    }
}

// The sums of both parts over a block of whole warps. Calls in succession must use different slots.
__device__ inline float2 sum_of_block(float2 part, float2* slots) {
    const int lane = threadIdx.x % WARP_SIZE;
    const float2 of_warp = make_float2(warpReduceSum(part.x), warpReduceSum(part.y));
    if (lane == 0) slots[threadIdx.x / WARP_SIZE] = of_warp;
    __syncthreads();
    const bool used = lane < (int)blockDim.x / WARP_SIZE;
    return make_float2(warpReduceSum(used ? slots[lane].x : 0.0f), warpReduceSum(used ? slots[lane].y : 0.0f));
}

// Shared memory is private to columns, and each column to a thread, so that nothing there needs atomics or barriers.
template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
__global__ void layernorm_backward_kernel6(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    __shared__ float2 slots[2][WARP_SIZE];
    for (int c = threadIdx.x; c < C; c += blockDim.x) gathered[c] = gathered[C + c] = 0.0f;
    int turn = 0;
    for (int row = blockIdx.x; row < B * T; row += gridDim.x) {
        const size_t begin = (size_t)row * C;
        const float m = (float)mean[row], s = (float)rstd[row];
        float2 sums = make_float2(0.0f, 0.0f);
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const float h = (float)dout[begin + c] * (float)weight[c];
            sums.x += h;
            sums.y += h * ((float)inp[begin + c] - m) * s;
        }
        turn ^= 1;
        sums = sum_of_block(sums, slots[turn]);
        const float2 average = make_float2(sums.x / C, sums.y / C);
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const float2 given = column_gradients(dinp + begin + c, (float)dout[begin + c], (float)inp[begin + c], (float)weight[c], m, s, average);
            gathered[c] += given.x;
            gathered[C + c] += given.y;
        }
    }
    float* partial = scratch + SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        __stcg(partial + c, gathered[c]);
        __stcg(partial + C + c, gathered[C + c]);
    }
    finish_parameter_gradients(dweight, dbias, scratch, C);
}

// A packet of a row: adds to dinp, and to dw and db what the row has to give there.
__device__ inline void packet_gradients(floatX* dinp, float* dw, float* db, const x128& g, const x128& x, const x128& w, float m, float s, float2 average, int left) {
    x128 d = load_packet(dinp, left);
    #pragma unroll
    for (int i = 0; i < x128::size; ++i) {
        const float n = ((float)x[i] - m) * s;
        d[i] = (floatX)((float)d[i] + s * ((float)g[i] * (float)w[i] - average.x - n * average.y));
        dw[i] += (float)g[i] * n;
        db[i] += (float)g[i];
    }
    store_packet(dinp, d, left);
}

__global__ void layernorm_backward_kernel7(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    __shared__ float2 slots[2][WARP_SIZE];
    const int width = ceil_div(C, x128::size) * x128::size;
    const int first = threadIdx.x * x128::size, step = blockDim.x * x128::size;
    for (int c = first; c < C; c += step) {
        for (int i = 0; i < x128::size; ++i) gathered[c + i] = gathered[width + c + i] = 0.0f;
    }
    int turn = 0;
    for (int row = blockIdx.x; row < B * T; row += gridDim.x) {
        const size_t begin = (size_t)row * C;
        const float m = (float)mean[row], s = (float)rstd[row];
        float2 sums = make_float2(0.0f, 0.0f);
        for (int c = first; c < C; c += step) {
            sums = row_sums(sums, load_packet(dout + begin + c, C - c), load_packet(inp + begin + c, C - c), load_packet(weight + c, C - c), m, s);
        }
        turn ^= 1;
        sums = sum_of_block(sums, slots[turn]);
        const float2 average = make_float2(sums.x / C, sums.y / C);
        for (int c = first; c < C; c += step) {
            const x128 g = load_packet(dout + begin + c, C - c);
            const x128 x = load_packet(inp + begin + c, C - c);
            const x128 w = load_packet(weight + c, C - c);
            packet_gradients(dinp + begin + c, gathered + c, gathered + width + c, g, x, w, m, s, average, C - c);
        }
    }
    float* partial = scratch + SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
    for (int c = first; c < C; c += step) {
        for (int i = 0; i < x128::size && c + i < C; ++i) {
            __stcg(partial + c + i, gathered[c + i]);
            __stcg(partial + C + c + i, gathered[width + c + i]);
        }
    }
    finish_parameter_gradients(dweight, dbias, scratch, C);
}

__global__ void __launch_bounds__(1024, MAX_1024_THREADS_BLOCKS) layernorm_backward_kernel8(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int B, int T, int C) {
    extern __shared__ __align__(16) float gathered[];
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) gathered[c] = 0.0f;
    __syncthreads();
    const int warps = blockDim.x / WARP_SIZE;
    const int first = threadIdx.x % WARP_SIZE * x128::size, step = WARP_SIZE * x128::size;
    for (int row = blockIdx.x * warps + threadIdx.x / WARP_SIZE; row < B * T; row += gridDim.x * warps) {
        const size_t begin = (size_t)row * C;
        const float m = (float)mean[row], s = (float)rstd[row];
        float2 sums = make_float2(0.0f, 0.0f);
        for (int c = first; c < C; c += step) {
            sums = row_sums(sums, load_packet(dout + begin + c, C - c), load_packet(inp + begin + c, C - c), load_packet(weight + c, C - c), m, s);
        }
        const float2 average = make_float2(warpReduceSum(sums.x) / C, warpReduceSum(sums.y) / C);
        for (int c = first; c < C; c += step) {
            float dw[x128::size] = {};
            float db[x128::size] = {};
            const x128 g = load_packet(dout + begin + c, C - c);
            const x128 x = load_packet(inp + begin + c, C - c);
            const x128 w = load_packet(weight + c, C - c);
            packet_gradients(dinp + begin + c, dw, db, g, x, w, m, s, average, C - c);
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                if (c + i < C) atomicAdd(gathered + c + i, dw[i]);
                if (c + i < C) atomicAdd(gathered + C + c + i, db[i]);
            }
        }
    }
    __syncthreads();
    float* partial = scratch + SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) __stcg(partial + c, gathered[c]);
    finish_parameter_gradients(dweight, dbias, scratch, C);
}

// dweight and dbias do not depend on the averages. So a block first has its warps do its rows, one each, then its threads
// do its columns, one packet each, for the same rows, which it finds in cache.
__global__ void layernorm_backward_kernel9(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int B, int T, int C) {
    const int N = B * T;
    const int warps = blockDim.x / WARP_SIZE;
    const int step = WARP_SIZE * x128::size;
    for (int row = blockIdx.x + threadIdx.x / WARP_SIZE * gridDim.x; row < N; row += warps * gridDim.x) {
        const size_t begin = (size_t)row * C;
        const float m = (float)mean[row], s = (float)rstd[row];
        float2 sums = make_float2(0.0f, 0.0f);
        for (int c = threadIdx.x % WARP_SIZE * x128::size; c < C; c += step) {
            sums = row_sums(sums, load_packet(dout + begin + c, C - c), load_packet(inp + begin + c, C - c), load_packet(weight + c, C - c), m, s);
        }
        const float2 average = make_float2(warpReduceSum(sums.x) / C, warpReduceSum(sums.y) / C);
        for (int c = threadIdx.x % WARP_SIZE * x128::size; c < C; c += step) {
            float unused[x128::size] = {};
            const x128 g = load_packet(dout + begin + c, C - c);
            const x128 x = load_packet(inp + begin + c, C - c);
            packet_gradients(dinp + begin + c, unused, unused, g, x, load_packet(weight + c, C - c), m, s, average, C - c);
        }
    }

    float* partial = scratch + SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
    for (int c = threadIdx.x * x128::size; c < C; c += blockDim.x * x128::size) {
        float dw[x128::size] = {};
        float db[x128::size] = {};
        #pragma unroll 4
        for (int row = blockIdx.x; row < N; row += gridDim.x) {
            const x128 g = load_packet(dout + (size_t)row * C + c, C - c);
            const x128 x = load_packet(inp + (size_t)row * C + c, C - c);
            const float m = (float)mean[row], s = (float)rstd[row];
            #pragma unroll
            for (int i = 0; i < x128::size; ++i) {
                dw[i] += (float)g[i] * ((float)x[i] - m) * s;
                db[i] += (float)g[i];
            }
        }
        #pragma unroll
        for (int i = 0; i < x128::size; ++i) {
            if (c + i < C) __stcg(partial + c + i, dw[i]);
            if (c + i < C) __stcg(partial + C + c + i, db[i]);
        }
    }
    finish_parameter_gradients(dweight, dbias, scratch, C);
}

// Whether rows of C elements consist of full packets, provided that the arrays begin at a multiple of 16 bytes.
__device__ inline bool has_whole_packets(int C, const floatX* array1, const floatX* array2, const floatX* weight, const floatX* bias) {
    return C % x128::size == 0 && is_aligned128(array1) && is_aligned128(array2) && is_aligned128(weight) && is_aligned128(bias);
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
    const int wanted = ceil_div(ceil_div(C, x128::size), WARP_SIZE) * WARP_SIZE;
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
__device__ inline ColumnGradients row_gradients(const RowGroups& groups, int origin, floatX* dinp, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int N, int C) {
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
            sums = row_sums(sums, slope, value, load_packet<Whole>(weight + c, left), (float)mean[row], (float)rstd[row]);
        }
        // The other stripes of a row that is wider than the block, which then is one group.
        for (int o = groups.member * x128::size; !Whole && groups.stripe < C && o < C; o += groups.stripe) {
            if (o == c) continue;
            const size_t there = (size_t)row * C + o;
            const x128 slope = load_packet(dout + there, C - o);
            const x128 value = load_packet(inp + there, C - o);
            sums = row_sums(sums, slope, value, load_packet(weight + o, C - o), (float)mean[row], (float)rstd[row]);
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
        const float m = (float)mean[row], s = (float)rstd[row];
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
__device__ __noinline__ ColumnGradients row_gradients_in_pieces(const RowGroups& groups, int origin, floatX* dinp, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int N, int C) {
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
__global__ void __launch_bounds__(512, 2) layernorm_backward_kernel10(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int B, int T, int C) {
    assert(blockDim.x <= 512 && blockDim.x % WARP_SIZE == 0);
    const RowGroups groups = make_row_groups(C);
    const bool whole = has_whole_packets(C, dinp, dout, inp, weight) && groups.stripe >= C;
    float* partial = scratch + SCRATCH_HEADER + blockIdx.x * 2 * (size_t)C;
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
// launchers. Block sizes are multiples of 32 from kernel 2 on. scratch holds 32 + 4 * C * cuda_num_SMs floats; what was
// in it does not matter.

void layernorm_backward1(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight, const float* mean, const float* rstd, int B, int T, int C, const int block_size) {
    const int blocks = ceil_div(B * T, block_size);
    layernorm_backward_kernel1<<<blocks, block_size>>>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward2(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    float* sums; // C floats for dweight, then C for dbias
    cudaCheck(cudaMalloc(&sums, 2 * C * sizeof(float)));
    cudaCheck(cudaMemset(sums, 0, 2 * C * sizeof(float)));
    layernorm_backward_kernel2<<<ceil_div(B * T, block_size / 32), block_size>>>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C, sums, sums + C);
    cudaCheck(cudaGetLastError());
    copy_to_dweight_dbias<<<ceil_div(C, 256), 256>>>(C, dbias, dweight, sums + C, sums);
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaFree(sums));
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward3(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * C * (int)sizeof(float);
    layernorm_backward_kernel3<<<grid, block_size, smem>>>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward4(Tdinp* dinp, Tparams* dweight, Tparams* dbias, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * C * (int)sizeof(float);
    layernorm_backward_kernel4<<<grid, block_size, smem>>>(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward5(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * C * (int)sizeof(float);
    cudaCheck(cudaMemset(scratch, 0, (SCRATCH_HEADER + 2 * C) * sizeof(float)));
    layernorm_backward_kernel5<<<grid, block_size, smem>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward6(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * C * (int)sizeof(float);
    cudaCheck(cudaMemset(scratch, 0, SCRATCH_HEADER * sizeof(float)));
    layernorm_backward_kernel6<<<grid, block_size, smem>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward7(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * ceil_div(C, x128::size) * x128::size * (int)sizeof(float);
    cudaCheck(cudaMemset(scratch, 0, SCRATCH_HEADER * sizeof(float)));
    layernorm_backward_kernel7<<<grid, block_size, smem>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward8(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    const int smem = 2 * C * (int)sizeof(float);
    cudaCheck(cudaMemset(scratch, 0, SCRATCH_HEADER * sizeof(float)));
    layernorm_backward_kernel8<<<grid, block_size, smem>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward9(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int grid = 2 * cuda_num_SMs;
    cudaCheck(cudaMemset(scratch, 0, SCRATCH_HEADER * sizeof(float)));
    layernorm_backward_kernel9<<<grid, block_size>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

template <typename Tdinp, typename Tparams, typename Tdout, typename Trest>
void layernorm_backward10(Tdinp* dinp, Tparams* dweight, Tparams* dbias, float* scratch, const Tdout* dout, const Trest* inp, const Tparams* weight, const Trest* mean, const Trest* rstd, int B, int T, int C, int block_size) {
    assert(block_size % 32 == 0);
    if (block_size > 512) block_size = 512; // what the kernel is compiled for
    const int grid = 2 * cuda_num_SMs;
    cudaCheck(cudaMemset(scratch, 0, SCRATCH_HEADER * sizeof(float)));
    layernorm_backward_kernel10<<<grid, block_size>>>(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C);
    cudaCheck(cudaGetLastError());
}

void layernorm_backward(int kernel_num, floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout, const floatX* inp, const floatX* weight, const floatX* mean, const floatX* rstd, int B, int T, int C, const int block_size) {
    switch (kernel_num) {
#if !defined(ENABLE_BF16) && !defined(ENABLE_FP16)
        case 1: layernorm_backward1(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
#endif
        case 2: layernorm_backward2(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 3: layernorm_backward3(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 4: layernorm_backward4(dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 5: layernorm_backward5(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 6: layernorm_backward6(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 7: layernorm_backward7(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 8: layernorm_backward8(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 9: layernorm_backward9(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        case 10: layernorm_backward10(dinp, dweight, dbias, scratch, dout, inp, weight, mean, rstd, B, T, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Arrays of one shape: random input, what the reference makes of it, and the device's copies.
struct Problem {
    int B, T, C;
    std::vector<float> inp, weight, dout, mean, rstd, dinp, dweight, dbias;
    floatX *d_inp, *d_weight, *d_dout, *d_mean, *d_rstd, *d_dinp, *d_dweight, *d_dbias;
    float* d_scratch;
};

static std::vector<float> random_values(size_t count, float center, float spread) {
    float* drawn = make_random_float(count);
    std::vector<float> values(drawn, drawn + count);
    free(drawn);
    for (float& value : values) value = (float)(floatX)(center + spread * value);
    return values;
}

static Problem make_problem(int B, int T, int C) {
    Problem p = {};
    p.B = B, p.T = T, p.C = C;
    const size_t N = (size_t)B * T, count = N * C;
    p.inp = random_values(count, 0.5f, 2.0f);
    p.weight = random_values(C, 1.0f, 0.5f);
    p.dout = random_values(count, 0.0f, 1.0f);
    std::vector<float> out(count), bias(C);
    p.mean.resize(N), p.rstd.resize(N);
    layernorm_forward_cpu(out.data(), p.mean.data(), p.rstd.data(), p.inp.data(), p.weight.data(), bias.data(), B, T, C);
    for (size_t i = 0; i < N; ++i) {
        p.mean[i] = (float)(floatX)p.mean[i];
        p.rstd[i] = (float)(floatX)p.rstd[i];
    }
    // The gradients start at one, since the kernels are to add to what is there.
    p.dinp.assign(count, 1.0f), p.dweight.assign(C, 1.0f), p.dbias.assign(C, 1.0f);
    layernorm_backward_cpu(p.dinp.data(), p.dweight.data(), p.dbias.data(), p.dout.data(), p.inp.data(), p.weight.data(), p.mean.data(), p.rstd.data(), B, T, C);
    p.d_inp = make_device_array<floatX>(count, p.inp.data());
    p.d_weight = make_device_array<floatX>(C, p.weight.data());
    p.d_dout = make_device_array<floatX>(count, p.dout.data());
    p.d_mean = make_device_array<floatX>(N, p.mean.data());
    p.d_rstd = make_device_array<floatX>(N, p.rstd.data());
    p.d_dinp = make_device_array<floatX>(count);
    p.d_dweight = make_device_array<floatX>(C);
    p.d_dbias = make_device_array<floatX>(C);
    p.d_scratch = make_device_array<float>(32 + 4 * (size_t)C * cuda_num_SMs);
    return p;
}

static void run(int kernel_num, const Problem& p, int block_size) {
    layernorm_backward(kernel_num, p.d_dinp, p.d_dweight, p.d_dbias, p.d_scratch, p.d_dout, p.d_inp, p.d_weight, p.d_mean, p.d_rstd, p.B, p.T, p.C, block_size);
}

static void check_problem(int kernel_num, Problem& p, int block_size) {
    const size_t count = (size_t)p.B * p.T * p.C;
    std::vector<float> ones(count, 1.0f);
    cudaCheck(memcpy_convert(p.d_dinp, ones.data(), count));
    cudaCheck(memcpy_convert(p.d_dweight, ones.data(), p.C));
    cudaCheck(memcpy_convert(p.d_dbias, ones.data(), p.C));
    cudaCheck(cudaMemset(p.d_scratch, 0xff, (32 + 4 * (size_t)p.C * cuda_num_SMs) * sizeof(float)));
    run(kernel_num, p, block_size);
    // Kernels 3 and 4 round the sum after each block's addition when the parameters are 16 bits wide.
    const bool rounds_often = sizeof(floatX) == 2 && (kernel_num == 3 || kernel_num == 4);
    const float of_sums = rounds_often ? 0.15f * sqrtf((float)p.B * p.T) + 0.5f : 2e-5f * sqrtf((float)p.B * p.T) + 1e-4f;
    validate_result(p.d_dinp, p.dinp.data(), "dinp", count, 2e-5f);
    validate_result(p.d_dweight, p.dweight.data(), "dweight", p.C, of_sums);
    validate_result(p.d_dbias, p.dbias.data(), "dbias", p.C, of_sums);
}

static void free_problem(Problem& p) {
    for (floatX* array : {p.d_inp, p.d_weight, p.d_dout, p.d_mean, p.d_rstd, p.d_dinp, p.d_dweight, p.d_dbias}) cudaCheck(cudaFree(array));
    cudaCheck(cudaFree(p.d_scratch));
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 10;
    printf("kernel %d\n", kernel_num);
    const int shapes[][3] = {{1, 37, 67}, {1, 5, 1}, {2, 100, 1600}, {1, 9, 4097}, {8, 1024, 768}};
    for (const int* shape : shapes) {
        printf("B=%d T=%d C=%d\n", shape[0], shape[1], shape[2]);
        Problem p = make_problem(shape[0], shape[1], shape[2]);
        for (int block_size : {32, 64, 128, 256, 512, 1024}) check_problem(kernel_num, p, block_size);
        for (int block_size : {32, 64, 128, 256, 512, 1024}) {
            if (shape[2] != 768) continue;
            const float ms = benchmark_kernel(100, run, kernel_num, p, block_size);
            printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 4.0 * p.inp.size() * sizeof(floatX) / ms * 1e-6);
        }
        free_problem(p);
    }
    return 0;
}
