/*
Softmax, forward, for each of N rows of C elements: p = exp(x - max x) / sum exp(x - max x).

nvcc -O3 -std=c++17 softmax_forward.cu -o softmax_forward
./softmax_forward [kernel number]

1  one thread to a row, three passes
2  one block to a row, folds in shared memory
3  one warp to a row, blocks of one warp
4  one block of several warps to a row
5  one thread to a row, maximum and sum in one pass (online)
6  one warp to a row, online, cooperative groups
7  one block to a row, packets of 128 bits, the row in shared memory
8  one warp to a row, online, packets of 128 bits, blocks that stay for many rows
*/
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

// ---------------------------------------------------------------------------------------------------------------
// references

void softmax_forward_cpu(float* out, const float* inp, int N, int C) {
    int row, c;
    for (row = 0; row < N; row++) {
        const float* x = inp + (size_t)row * C;
        float* p = out + (size_t)row * C;
        float top = x[0];
        double total = 0.0;
        for (c = 1; c < C; c++) top = x[c] > top ? x[c] : top;
        for (c = 0; c < C; c++) {
            p[c] = expf(x[c] - top);
            total += p[c];
        }
        for (c = 0; c < C; c++) p[c] = (float)(p[c] / total);
    }
}

/* One pass for maximum and sum: what has been summed is scaled down when a larger element comes. */
void softmax_forward_online_cpu(float* out, const float* inp, int N, int C) {
    int row, c;
    for (row = 0; row < N; row++) {
        const float* x = inp + (size_t)row * C;
        float* p = out + (size_t)row * C;
        float top = x[0];
        float total = 1.0f;
        for (c = 1; c < C; c++) {
            if (x[c] > top) {
                total = total * expf(top - x[c]) + 1.0f;
                top = x[c];
            } else {
                total += x[c] == top ? 1.0f : expf(x[c] - top);
            }
        }
        for (c = 0; c < C; c++) p[c] = expf(x[c] - top) / total;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

__global__ void softmax_forward_kernel1(float* out, const float* inp, int N, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float* p = out + (size_t)row * C;
    float top = -INFINITY, total = 0.0f;
    for (int c = 0; c < C; ++c) top = fmaxf(top, x[c]);
    for (int c = 0; c < C; ++c) total += expf(x[c] - top);
    const float scale = 1.0f / total;
    for (int c = 0; c < C; ++c) p[c] = expf(x[c] - top) * scale;
}

// As many floats of shared memory as threads; their number need not be a power of two.
__global__ void softmax_forward_kernel2(float* out, const float* inp, int N, int C) {
    extern __shared__ __align__(16) float folded[];
    const int row = blockIdx.x;
    if (row >= N) return;
    const int me = threadIdx.x, threads = blockDim.x;
    const float* x = inp + (size_t)row * C;
    float* p = out + (size_t)row * C;

    float value = -INFINITY;
    for (int c = me; c < C; c += threads) value = fmaxf(value, x[c]);
    folded[me] = value;
    for (int alive = threads; alive > 1; alive = (alive + 1) / 2) {
        const int upper = (alive + 1) / 2 + me;
        __syncthreads();
        if (upper < alive) folded[me] = fmaxf(folded[me], folded[upper]);
    }
    __syncthreads();
    const float top = folded[0];
    __syncthreads(); // all have read the maximum before its place is used again

    value = 0.0f;
    for (int c = me; c < C; c += threads) value += expf(x[c] - top);
    folded[me] = value;
    for (int alive = threads; alive > 1; alive = (alive + 1) / 2) {
        const int upper = (alive + 1) / 2 + me;
        __syncthreads();
        if (upper < alive) folded[me] += folded[upper];
    }
    __syncthreads();
    const float scale = 1.0f / folded[0];
    for (int c = me; c < C; c += threads) p[c] = expf(x[c] - top) * scale;
}

// Packets that a lane of the kernel below keeps: 32 lanes have a row of up to 1024 floats among them.
#define PACKETS_OF_LANE 8

// A row of whole packets that a warp can keep, so that it is read once. Aligned says that they move in one piece each: what
// is computed does not depend on it, to the last bit.
template<bool Aligned>
__device__ inline void softmax_of_kept_row(float* p, const float* x, int C) {
    f128 row[PACKETS_OF_LANE];
    #pragma unroll
    for (int i = 0; i < PACKETS_OF_LANE; ++i) {
        const int c = (i * WARP_SIZE + threadIdx.x) * f128::size;
        if (c < C) row[i] = load_packet<Aligned>(x + c, C - c);
        else row[i] = f128::constant(-INFINITY);
    }
    float top = -INFINITY, total = 0.0f;
    #pragma unroll
    for (int i = 0; i < PACKETS_OF_LANE; ++i) {
        #pragma unroll
        for (int k = 0; k < f128::size; ++k) top = fmaxf(top, row[i][k]);
    }
    top = warpReduceMax(top);
    #pragma unroll
    for (int i = 0; i < PACKETS_OF_LANE; ++i) {
        #pragma unroll
        for (int k = 0; k < f128::size; ++k) {
            row[i][k] = expf(row[i][k] - top);
            total += row[i][k];
        }
    }
    const float scale = 1.0f / warpReduceSum(total);
    #pragma unroll
    for (int i = 0; i < PACKETS_OF_LANE; ++i) {
        const int c = (i * WARP_SIZE + threadIdx.x) * f128::size;
        #pragma unroll
        for (int k = 0; k < f128::size; ++k) row[i][k] *= scale;
        if (c < C) store_packet<Aligned>(p + c, row[i], C - c);
    }
}

// blockDim.x = 32.
__global__ void softmax_forward_kernel3(float* out, const float* inp, int N, int C) {
    if (blockIdx.x >= (unsigned int)N) return;
    const size_t begin = blockIdx.x * (size_t)C, end = begin + C;
    if (C % f128::size == 0 && C <= PACKETS_OF_LANE * WARP_SIZE * f128::size) {
        const bool aligned = is_aligned128(inp) && is_aligned128(out);
        if (aligned) softmax_of_kept_row<true>(out + begin, inp + begin, C);
        else softmax_of_kept_row<false>(out + begin, inp + begin, C);
        return;
    }
    float top = -INFINITY, total = 0.0f;
    for (size_t at = begin + threadIdx.x; at < end; at += WARP_SIZE) top = fmaxf(top, inp[at]);
    top = warpReduceMax(top);
    for (size_t at = begin + threadIdx.x; at < end; at += WARP_SIZE) total += expf(inp[at] - top);
    const float scale = 1.0f / warpReduceSum(total);
    for (size_t at = begin + threadIdx.x; at < end; at += WARP_SIZE) out[at] = expf(inp[at] - top) * scale;
}

// Two floats of shared memory for each warp: its maximum and its sum.
__global__ void softmax_forward_kernel4(float* out, const float* inp, int N, int C) {
    extern __shared__ __align__(16) float of_warp[];
    if (blockIdx.x >= (unsigned int)N) return; // the whole block leaves together
    const int warps = blockDim.x / WARP_SIZE;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    float* sums = of_warp + warps;
    const float* x = inp + blockIdx.x * (size_t)C;
    float* p = out + blockIdx.x * (size_t)C;

    float mine = -INFINITY;
    for (int c = threadIdx.x; c < C; c += blockDim.x) mine = fmaxf(mine, x[c]);
    mine = warpReduceMax(mine);
    if (lane == 0) of_warp[warp] = mine;
    __syncthreads();
    const float top = warpReduceMax(of_warp[lane < warps ? lane : 0]);

    float part = 0.0f;
    for (int c = threadIdx.x; c < C; c += blockDim.x) part += expf(x[c] - top);
    part = warpReduceSum(part);
    if (lane == 0) sums[warp] = part;
    __syncthreads();
    const float total = warpReduceSum(lane < warps ? sums[lane] : 0.0f);
    for (int c = threadIdx.x; c < C; c += blockDim.x) p[c] = expf(x[c] - top) / total;
}

__global__ void softmax_forward_online_kernel1(float* out, const float* inp, int N, int C) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float top = -INFINITY, total = 0.0f;
    for (int c = 0; c < C; ++c) {
        const float before = top;
        top = fmaxf(top, x[c]);
        // A row may begin with minus infinity, and the difference of two of them is not a number.
        if (before != top) total *= expf(before - top);
        total += x[c] == top ? 1.0f : expf(x[c] - top);
    }
    for (int c = 0; c < C; ++c) out[(size_t)row * C + c] = expf(x[c] - top) / total;
}

// A set of numbers, as softmax sees it: the largest, and the sum of exp(number - largest).
struct __align__(8) SumMax {
    float total;
    float top;
};

// The union of two sets. Equal maxima need no scale, also where both are minus infinity.
__device__ __forceinline__ SumMax reduce_sum_max_op(SumMax a, SumMax b) {
    const float top = fmaxf(a.top, b.top);
    const float of_a = a.top == top ? a.total : a.total * expf(a.top - top);
    const float of_b = b.top == top ? b.total : b.total * expf(b.top - top);
    return SumMax{of_a + of_b, top};
}

__global__ void softmax_forward_online_kernel2(float* out, const float* inp, int N, int C) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= N) return; // the whole warp leaves together
    const float* x = inp + (size_t)row * C;
    float* p = out + (size_t)row * C;
    SumMax mine = {0.0f, -INFINITY};
    for (int c = warp.thread_rank(); c < C; c += warp.size()) mine = reduce_sum_max_op(mine, SumMax{1.0f, x[c]});
    // A function object, which is known where it is called, can be inlined; a pointer to a function perhaps not.
    const SumMax all = cg::reduce(warp, mine, [](SumMax a, SumMax b) { return reduce_sum_max_op(a, b); });
    for (int c = warp.thread_rank(); c < C; c += warp.size()) __stcs(p + c, expf(__ldcs(x + c) - all.top) / all.total);
}

// Shared memory for the row, rounded up to whole packets. The block is of whole warps.
__global__ void softmax_forward_kernel7(float* out, const float* inp, int N, int C) {
    extern __shared__ __align__(16) float staged[];
    const int row = blockIdx.x;
    if (row >= N) return;
    const float* x = inp + (size_t)row * C;
    float* p = out + (size_t)row * C;
    const int first = threadIdx.x * f128::size, step = blockDim.x * f128::size;

    float top = -INFINITY;
    #pragma unroll 4
    for (int c = first; c < C; c += step) {
        const f128 packet = load_packet(x + c, C - c);
        store128(staged + c, packet);
        for (int i = 0; i < f128::size; ++i) top = c + i < C ? fmaxf(top, packet[i]) : top;
    }
    top = blockReduce<warpReduceMax>(top, false, -INFINITY);

    // Each thread reads back what it staged itself.
    float part = 0.0f;
    for (int c = first; c < C; c += step) {
        f128 packet = load128(staged + c);
        for (int i = 0; i < f128::size; ++i) {
            packet[i] = c + i < C ? expf(packet[i] - top) : 0.0f;
            part += packet[i];
        }
        store128(staged + c, packet);
    }
    const float scale = 1.0f / blockReduce<warpReduceSum>(part);
    for (int c = first; c < C; c += step) {
        f128 packet = load128(staged + c);
        for (int i = 0; i < f128::size; ++i) packet[i] *= scale;
        store_packet(p + c, packet, C - c);
    }
}

// Any number of blocks of whole warps: the warps share out the rows. A lane joins the elements of a packet first, so that
// one exponential of a correction serves four elements.
__global__ void softmax_forward_online_kernel8(float* out, const float* inp, int N, int C) {
    const int lane = threadIdx.x % WARP_SIZE;
    const int warps = blockDim.x / WARP_SIZE;
    for (size_t row = (size_t)blockIdx.x * warps + threadIdx.x / WARP_SIZE; row < (size_t)N; row += (size_t)gridDim.x * warps) {
        const float* x = inp + row * C;
        float* p = out + row * C;
        SumMax mine = {0.0f, -INFINITY};
        for (int c = lane * f128::size; c < C; c += WARP_SIZE * f128::size) {
            const f128 packet = load_packet(x + c, C - c);
            SumMax joined = {0.0f, -INFINITY};
            for (int i = 0; i < f128::size; ++i) joined.top = c + i < C ? fmaxf(joined.top, packet[i]) : joined.top;
            for (int i = 0; i < f128::size; ++i) {
                if (c + i < C) joined.total += packet[i] == joined.top ? 1.0f : expf(packet[i] - joined.top);
            }
            mine = reduce_sum_max_op(mine, joined);
        }
        for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
            SumMax other;
            other.total = __shfl_xor_sync(0xffffffffu, mine.total, distance);
            other.top = __shfl_xor_sync(0xffffffffu, mine.top, distance);
            mine = reduce_sum_max_op(mine, other);
        }
        const float scale = 1.0f / mine.total;
        for (int c = lane * f128::size; c < C; c += WARP_SIZE * f128::size) {
            f128 packet = load_packet(x + c, C - c);
            for (int i = 0; i < f128::size; ++i) packet[i] = expf(packet[i] - mine.top) * scale;
            store_packet(p + c, packet, C - c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32 where warps work together

void softmax_forward1(float* out, const float* inp, int N, int C, const int block_size) {
    softmax_forward_kernel1<<<ceil_div(N, block_size), block_size>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward2(float* out, const float* inp, int N, int C, const int block_size) {
    const size_t smem = block_size * sizeof(float);
    softmax_forward_kernel2<<<N, block_size, smem>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward3(float* out, const float* inp, int N, int C, int block_size) {
    block_size = WARP_SIZE; // what the kernel is written for, whatever was asked for
    softmax_forward_kernel3<<<N, block_size>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward4(float* out, const float* inp, int N, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int warps = block_size / 32;
    softmax_forward_kernel4<<<N, block_size, 2 * warps * sizeof(float)>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward_online1(float* out, const float* inp, int N, int C, int block_size) {
    softmax_forward_online_kernel1<<<ceil_div(N, block_size), block_size>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward_online2(float* out, const float* inp, int N, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int rows_per_block = block_size / 32;
    softmax_forward_online_kernel2<<<ceil_div(N, rows_per_block), block_size>>>(out, inp, N, C);
    cudaCheck(cudaGetLastError());
}

void softmax_forward7(float* out, const float* inp, int N, int C, int block_size) {
    assert(block_size % 32 == 0);
    const int smem = ceil_div(C, f128::size) * f128::size * (int)sizeof(float);
    const cudaError_t granted = cudaFuncSetAttribute(softmax_forward_kernel7, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (granted == cudaSuccess) {
        softmax_forward_kernel7<<<N, block_size, smem>>>(out, inp, N, C);
        cudaCheck(cudaGetLastError());
    } else {
        cudaGetLastError(); // the refusal is dealt with: the row is too wide for shared memory
        softmax_forward4(out, inp, N, C, block_size);
    }
}

void softmax_forward_online8(float* out, const float* inp, int N, int C, int block_size) {
    assert(block_size % 32 == 0);
    int resident = 0; // blocks that one multiprocessor holds at a time
    cudaCheck(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, softmax_forward_online_kernel8, block_size, 0));
    const int wanted = ceil_div(N, block_size / 32);
    const int blocks = std::min(wanted, resident * cuda_num_SMs);
    softmax_forward_online_kernel8<<<blocks, block_size>>>(out, inp, N, C);
    cudaCheck(cudaPeekAtLastError());
}

void softmax_forward(int kernel_num, float* out, const float* inp, int N, int C, const int block_size) {
    switch (kernel_num) {
        case 1: softmax_forward1(out, inp, N, C, block_size); break;
        case 2: softmax_forward2(out, inp, N, C, block_size); break;
        case 3: softmax_forward3(out, inp, N, C, block_size); break;
        case 4: softmax_forward4(out, inp, N, C, block_size); break;
        case 5: softmax_forward_online1(out, inp, N, C, block_size); break;
        case 6: softmax_forward_online2(out, inp, N, C, block_size); break;
        case 7: softmax_forward7(out, inp, N, C, block_size); break;
        case 8: softmax_forward_online8(out, inp, N, C, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with all block sizes; a spread of 1000 overflows exp where the maximum is not taken off.
static void check_shape(int kernel_num, int N, int C, float spread, bool timed) {
    const size_t count = (size_t)N * C;
    float* inp = make_random_float(count);
    for (size_t i = 0; i < count; ++i) inp[i] *= spread;
    float* wanted = make_zeros_float(count);
    float* online = make_zeros_float(count);
    softmax_forward_cpu(wanted, inp, N, C);
    softmax_forward_online_cpu(online, inp, N, C);
    float* d_inp = make_device_array<float>(count, inp);
    float* d_out = make_device_array<float>(count, online);
    validate_result(d_out, wanted, "online reference", count, 1e-5f);

    printf("N=%d C=%d\n", N, C);
    for (int block_size : {32, 64, 128, 256, 512, 1024}) {
        cudaCheck(cudaMemset(d_out, 0xff, count * sizeof(float)));
        softmax_forward(kernel_num, d_out, d_inp, N, C, block_size);
        validate_result(d_out, wanted, "out", count, 1e-5f);
        if (!timed) continue;
        const float ms = benchmark_kernel(100, softmax_forward, kernel_num, d_out, d_inp, N, C, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, 2.0 * count * sizeof(float) / ms * 1e-6);
    }
    for (float* array : {inp, wanted, online}) free(array);
    for (float* array : {d_inp, d_out}) cudaCheck(cudaFree(array));
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 8;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 37, 67, 5.0f, false);
    check_shape(kernel_num, 5, 1, 5.0f, false);
    check_shape(kernel_num, 3, 100003, 1000.0f, false); // does not fit into shared memory
    check_shape(kernel_num, 2048, 50257, 8.0f, true);
    return 0;
}
