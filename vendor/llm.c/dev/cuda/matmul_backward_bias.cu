/*
Matrix product, backward for the bias: dbias += sum over the B T rows of dout, which has OC columns.

nvcc -O3 -std=c++17 matmul_backward_bias.cu -o matmul_backward_bias
./matmul_backward_bias [kernel number]

1  one block to a column, sums folded in shared memory
2  one warp to a column, cooperative groups
3  one block to a column, cooperative groups
4  one block to 32 columns, whose rows its warps share: a warp reads neighbours
5  one thread to a column of some of the rows, atomics of the gradient's type
7  packets of 128 bits, a warp side by side, atomics on a float buffer
8  packets, four rows by eight packets to a warp; the buffer only where blocks share columns
9  as 8, with sums of blocks to memory and no atomics: same bits in every run on the same device
(There is no kernel 6.)
*/
#define ENABLE_BF16
#include <assert.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <type_traits>
#include "common.h"

namespace cg = cooperative_groups;

__host__ __device__ bool isPowerOfTwo(int n) {
    return n > 0 && (n & -n) == n;
}

__host__ __device__ int largestPowerOfTwoLessOrEqual(int n) {
    int power = 1;
    while (power <= n / 2) power *= 2;
    return power;
}

// ---------------------------------------------------------------------------------------------------------------
// reference

void matmul_backward_bias_cpu(float* dinp, float* dweight, float* dbias, float* dout, float* inp, float* weight, int B, int T, int C, int OC) {
    int row, o;
    for (o = 0; o < OC; o++) {
        double column = 0.0;
        for (row = 0; row < B * T; row++) column += dout[(size_t)row * OC + o];
        dbias[o] += (float)column;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// parts of the kernels

// *target += value, rounded once, where this thread is the only one to touch it.
__device__ inline void add_to(floatX* target, float value) {
    *target = (floatX)((float)*target + value);
}

// The same where other threads may come in between.
__device__ inline void add_atomically(float* target, float value) {
    atomicAdd(target, value);
}
// Not every device adds 16-bit numbers in one step, but all exchange 16-bit words.
template<class Half>
__device__ inline void add_atomically(Half* target, float value) {
    unsigned short* word = reinterpret_cast<unsigned short*>(target);
    // The exchange of zero for zero changes nothing, and reads what another thread may be writing.
    unsigned short seen = atomicCAS(word, (unsigned short)0, (unsigned short)0), before;
    do {
        before = seen;
        Half sum;
        memcpy(&sum, &before, sizeof(sum));
        sum = (Half)((float)sum + value);
        unsigned short wanted;
        memcpy(&wanted, &sum, sizeof(wanted));
        seen = atomicCAS(word, before, wanted);
    } while (seen != before);
}

// ---------------------------------------------------------------------------------------------------------------
// kernels

// blockDim.x is a power of two; shared memory holds as many floats.
__global__ void matmul_backward_bias_kernel1(floatX* dbias, const floatX* dout, int B, int T, int OC) {
    extern __shared__ __align__(16) float folded[];
    const int o = blockIdx.x;
    if (o >= OC) return; // the whole block leaves together
    float mine = 0.0f;
    for (int row = threadIdx.x; row < B * T; row += blockDim.x) mine += (float)dout[(size_t)row * OC + o];
    folded[threadIdx.x] = mine;
    for (int half_width = blockDim.x / 2; half_width > 0; half_width /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half_width) folded[threadIdx.x] += folded[threadIdx.x + half_width];
    }
    if (threadIdx.x == 0) add_to(dbias + o, folded[0]);
}

__global__ void matmul_backward_bias_kernel2(floatX* dbias, const floatX* dout, int B, int T, int OC) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int o = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (o >= OC) return; // the whole warp leaves together
    float mine = 0.0f;
    for (int row = warp.thread_rank(); row < B * T; row += warp.size()) mine += (float)dout[(size_t)row * OC + o];
    const float column = cg::reduce(warp, mine, cg::plus<float>{});
    if (warp.thread_rank() == 0) add_to(dbias + o, column);
}

__global__ void matmul_backward_bias_kernel3(floatX* dbias, const floatX* dout, int B, int T, int OC) {
    __shared__ float of_warps[WARP_SIZE];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const int o = blockIdx.x;
    if (o >= OC) return; // the whole block leaves together
    float mine = 0.0f;
    for (int row = block.thread_rank(); row < B * T; row += block.size()) mine += (float)dout[(size_t)row * OC + o];
    mine = cg::reduce(warp, mine, cg::plus<float>{});
    if (warp.thread_rank() == 0) of_warps[warp.meta_group_rank()] = mine;
    block.sync();
    const float part = warp.thread_rank() < warp.meta_group_size() ? of_warps[warp.thread_rank()] : 0.0f;
    const float column = cg::reduce(warp, part, cg::plus<float>{});
    if (threadIdx.x == 0) add_to(dbias + o, column);
}

// Shared memory holds a float for each thread, a row of 32 for each warp.
__global__ void matmul_backward_bias_kernel4(floatX* dbias, const floatX* dout, int B, int T, int OC) {
    extern __shared__ __align__(16) float of_warps[];
    const int warps = blockDim.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    const int o = blockIdx.x * WARP_SIZE + lane;
    float mine = 0.0f;
    if (o < OC) {
        for (int row = threadIdx.x / WARP_SIZE; row < B * T; row += warps) mine += (float)dout[(size_t)row * OC + o];
    }
    of_warps[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x >= WARP_SIZE || o >= OC) return;
    float column = 0.0f;
    for (int i = 0; i < warps; ++i) column += of_warps[i * WARP_SIZE + lane];
    add_to(dbias + o, column);
}

// The blocks along y share the rows.
__global__ void matmul_backward_bias_kernel5(floatX* dbias, const floatX* dout, int B, int T, int OC) {
    const int o = blockIdx.x * blockDim.x + threadIdx.x;
    if (o >= OC) return;
    float column = 0.0f;
    for (int row = blockIdx.y; row < B * T; row += gridDim.y) column += (float)dout[(size_t)row * OC + o];
    add_atomically(dbias + o, column);
}

__global__ void cast_and_add_kernel(floatX* dst, const float* src, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) add_to(dst + i, src[i]);
}

// blockDim = (32, block_size / 32). A warp has a packet of columns to a lane, and the warps of all blocks along y share the
// rows. Shared memory holds x128::size floats for each thread. dbias is zero at the start.
__global__ void matmul_backward_bias_kernel7(float* dbias, const floatX* dout, int B, int T, int OC, const int block_size) {
    extern __shared__ __align__(16) float of_warps[];
    const int width = WARP_SIZE * x128::size;
    const int warps = block_size / WARP_SIZE;
    const int o0 = blockIdx.x * width;
    const int o = o0 + threadIdx.x * x128::size;
    float sums[x128::size] = {};
    if (o < OC) {
        for (int row = blockIdx.y * warps + threadIdx.y; row < B * T; row += gridDim.y * warps) {
            const x128 packet = load_packet(dout + (size_t)row * OC + o, OC - o);
            for (int k = 0; k < x128::size; ++k) sums[k] += (float)packet[k];
        }
    }
    for (int k = 0; k < x128::size; ++k) of_warps[threadIdx.y * width + threadIdx.x * x128::size + k] = sums[k];
    __syncthreads();
    const int thread = threadIdx.y * WARP_SIZE + threadIdx.x;
    for (int c = thread; c < width && o0 + c < OC; c += block_size) {
        float column = 0.0f;
        for (int i = 0; i < warps; ++i) column += of_warps[i * width + c];
        atomicAdd(dbias + o0 + c, column);
    }
}

// A warp of kernels 8 and 9 has four rows by eight packets.
#define WARP_ROWS 4
#define WARP_PACKETS 8
#define TILE_COLUMNS (WARP_PACKETS * x128::size)

// blockDim = (4, 8, warps). Sums up the columns that belong to blockIdx.x over the rows that belong to blockIdx.y, and
// leaves the sums in columns, which is in shared memory, in the first of its rows. AtOnce is how many packets a thread
// has under way.
template<int AtOnce>
__device__ inline void sum_tile(float (*columns)[TILE_COLUMNS], const floatX* dout, int rows, int OC) {
    const int first = threadIdx.y * x128::size;
    const int o = blockIdx.x * TILE_COLUMNS + first;
    const int stride = gridDim.y * blockDim.z * WARP_ROWS;
    float sums[x128::size] = {};
    if (o < OC) {
        for (int row = (blockIdx.y * blockDim.z + threadIdx.z) * WARP_ROWS + threadIdx.x; row < rows; row += AtOnce * stride) {
            x128 packets[AtOnce];
            #pragma unroll
            for (int i = 0; i < AtOnce; ++i) {
                const int at = row + i * stride;
                packets[i] = at < rows ? load_packet(dout + (size_t)at * OC + o, OC - o) : x128::zeros();
            }
            #pragma unroll
            for (int i = 0; i < AtOnce; ++i) {
                for (int k = 0; k < x128::size; ++k) sums[k] += (float)packets[i][k];
            }
        }
    }
    // The four rows of a warp are neighbouring lanes.
    #pragma unroll
    for (int k = 0; k < x128::size; ++k) {
        sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], 1);
        sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], 2);
        if (threadIdx.x == 0) columns[threadIdx.z][first + k] = sums[k];
    }
    __syncthreads();
    const int thread = (threadIdx.z * WARP_PACKETS + threadIdx.y) * WARP_ROWS + threadIdx.x;
    for (int c = thread; c < TILE_COLUMNS; c += WARP_SIZE * blockDim.z) {
        for (int warp = 1; warp < (int)blockDim.z; ++warp) columns[0][c] += columns[warp][c];
    }
    __syncthreads();
}

// Atomic: dbias is shared by the blocks along y. Otherwise there is only one of them.
template<typename OutFloat, bool Atomic>
__global__ void matmul_backward_bias_kernel8(OutFloat* dbias, const floatX* dout, int B, int T, int OC, std::bool_constant<Atomic>) {
    __shared__ float columns[WARP_SIZE][TILE_COLUMNS];
    sum_tile<1>(columns, dout, B * T, OC);
    const int thread = (threadIdx.z * WARP_PACKETS + threadIdx.y) * WARP_ROWS + threadIdx.x;
    for (int c = thread; c < TILE_COLUMNS; c += WARP_SIZE * blockDim.z) {
        const int o = blockIdx.x * TILE_COLUMNS + c;
        if (o >= OC) return;
        if constexpr (Atomic) add_atomically(dbias + o, columns[0][c]);
        else dbias[o] = (OutFloat)((float)dbias[o] + columns[0][c]);
    }
}

// UseAuxBuffer: dbias has a row of OC sums for each of the blocks along y, to be written and not added to. Otherwise there
// is only one of them.
template<typename OutFloat, bool UseAuxBuffer>
__global__ void matmul_backward_bias_kernel9(OutFloat* dbias, const floatX* dout, int B, int T, int OC, std::bool_constant<UseAuxBuffer>) {
    __shared__ float columns[WARP_SIZE][TILE_COLUMNS];
    sum_tile<4>(columns, dout, B * T, OC);
    const int thread = (threadIdx.z * WARP_PACKETS + threadIdx.y) * WARP_ROWS + threadIdx.x;
    for (int c = thread; c < TILE_COLUMNS; c += WARP_SIZE * blockDim.z) {
        const int o = blockIdx.x * TILE_COLUMNS + c;
        if (o >= OC) return;
        if constexpr (UseAuxBuffer) dbias[(size_t)blockIdx.y * OC + o] = (OutFloat)columns[0][c];
        else dbias[o] = (OutFloat)((float)dbias[o] + columns[0][c]);
    }
}

// dst += the sum of the m rows of src, which have n elements each.
__global__ void reduce_add_sum_kernel(floatX* dst, const float* src, size_t n, size_t m) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float column = 0.0f;
    for (size_t row = 0; row < m; ++row) column += src[row * n + i];
    add_to(dst + i, column);
}

// ---------------------------------------------------------------------------------------------------------------
// launchers; block sizes are multiples of 32, but for kernels 1 and 5

// How many blocks along y keep a device busy that holds so many threads, where there are blocks_x along x. More than there
// are rows would be idle.
static int blocks_along_rows(int device_threads, int blocks_x, int block_size, int rows) {
    const int wanted = device_threads / (block_size * blocks_x);
    return max(1, min(wanted, rows));
}

void matmul_backward_bias1(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    block_size = largestPowerOfTwoLessOrEqual(block_size);
    assert(isPowerOfTwo(block_size));
    const size_t smem = block_size * sizeof(float);
    matmul_backward_bias_kernel1<<<OC, block_size, smem>>>(dbias, dout, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias2(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks = ceil_div(OC, block_size / WARP_SIZE);
    matmul_backward_bias_kernel2<<<blocks, block_size>>>(dbias, dout, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias3(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    matmul_backward_bias_kernel3<<<OC, block_size>>>(dbias, dout, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias4(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks = ceil_div(OC, WARP_SIZE);
    matmul_backward_bias_kernel4<<<blocks, block_size, block_size * sizeof(float)>>>(dbias, dout, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias5(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    const int blocks_x = ceil_div(OC, block_size);
    const int blocks_y = blocks_along_rows(cuda_num_SMs * cuda_threads_per_SM, blocks_x, block_size, B * T);
    const dim3 grid(blocks_x, blocks_y);
    matmul_backward_bias_kernel5<<<grid, block_size>>>(dbias, dout, B, T, OC);
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias7(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    float* sums;
    cudaCheck(cudaMallocAsync((void**)&sums, OC * sizeof(float), 0));
    cudaCheck(cudaMemsetAsync(sums, 0, OC * sizeof(float), 0));
    const int blocks_x = ceil_div(OC, WARP_SIZE * x128::size);
    const int blocks_y = blocks_along_rows(cuda_num_SMs * cuda_threads_per_SM, blocks_x, block_size, B * T);
    const dim3 grid(blocks_x, blocks_y);
    const dim3 block(WARP_SIZE, block_size / WARP_SIZE);
    const size_t smem = block_size * x128::size * sizeof(float);
    matmul_backward_bias_kernel7<<<grid, block, smem>>>(sums, dout, B, T, OC, block_size);
    cudaCheck(cudaGetLastError());
    cast_and_add_kernel<<<ceil_div(OC, 256), 256>>>(dbias, sums, OC);
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaFreeAsync(sums, 0));
}

void matmul_backward_bias8(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const dim3 block(WARP_ROWS, WARP_PACKETS, block_size / WARP_SIZE);
    const int blocks_x = ceil_div(OC, TILE_COLUMNS);
    const int blocks_y = blocks_along_rows(cuda_num_SMs * cuda_threads_per_SM, blocks_x, block_size, ceil_div(B * T, block_size / WARP_PACKETS));
    if (blocks_y == 1) {
        matmul_backward_bias_kernel8<<<blocks_x, block>>>(dbias, dout, B, T, OC, std::bool_constant<false>{});
        cudaCheck(cudaGetLastError());
        return;
    }
    float* sums;
    cudaCheck(cudaMallocAsync((void**)&sums, OC * sizeof(float), 0));
    cudaCheck(cudaMemsetAsync(sums, 0, OC * sizeof(float), 0));
    matmul_backward_bias_kernel8<<<dim3(blocks_x, blocks_y), block>>>(sums, dout, B, T, OC, std::bool_constant<true>{});
    cudaCheck(cudaGetLastError());
    cast_and_add_kernel<<<ceil_div(OC, 256), 256>>>(dbias, sums, OC);
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaFreeAsync(sums, 0));
}

void matmul_backward_bias9(floatX* dbias, const floatX* dout, int B, int T, int OC, int block_size) {
    assert(block_size % WARP_SIZE == 0);
    const int blocks_x = ceil_div(OC, TILE_COLUMNS);
    const int blocks_y = blocks_along_rows(cuda_num_SMs * cuda_threads_per_SM, blocks_x, block_size, ceil_div(B * T, block_size / WARP_PACKETS));
    const dim3 grid(blocks_x, blocks_y);
    const dim3 block(WARP_ROWS, WARP_PACKETS, block_size / WARP_SIZE);
    if (blocks_y > 1) {
        float* of_blocks;
        cudaCheck(cudaMallocAsync((void**)&of_blocks, (size_t)blocks_y * OC * sizeof(float), 0));
        matmul_backward_bias_kernel9<<<grid, block>>>(of_blocks, dout, B, T, OC, std::bool_constant<true>{});
        cudaCheck(cudaGetLastError());
        reduce_add_sum_kernel<<<ceil_div(OC, 128), 128>>>(dbias, of_blocks, OC, blocks_y);
        cudaCheck(cudaFreeAsync(of_blocks, 0));
    } else {
        matmul_backward_bias_kernel9<<<grid, block>>>(dbias, dout, B, T, OC, std::bool_constant<false>{});
    }
    cudaCheck(cudaGetLastError());
}

void matmul_backward_bias(int kernel_num, floatX* dbias, floatX* dout, int B, int T, int OC, int block_size) {
    switch (kernel_num) {
        case 1: matmul_backward_bias1(dbias, dout, B, T, OC, block_size); break;
        case 2: matmul_backward_bias2(dbias, dout, B, T, OC, block_size); break;
        case 3: matmul_backward_bias3(dbias, dout, B, T, OC, block_size); break;
        case 4: matmul_backward_bias4(dbias, dout, B, T, OC, block_size); break;
        case 5: matmul_backward_bias5(dbias, dout, B, T, OC, block_size); break;
        case 7: matmul_backward_bias7(dbias, dout, B, T, OC, block_size); break;
        case 8: matmul_backward_bias8(dbias, dout, B, T, OC, block_size); break;
        case 9: matmul_backward_bias9(dbias, dout, B, T, OC, block_size); break;
        default: printf("there is no kernel %d\n", kernel_num); exit(EXIT_FAILURE);
    }
}

// ---------------------------------------------------------------------------------------------------------------

// Runs one shape with all block sizes against the reference; large ones are timed as well.
static void check_shape(int kernel_num, int B, int T, int OC) {
    const size_t elements = (size_t)B * T * OC;
    float* dout = make_random_float(elements);
    for (size_t i = 0; i < elements; ++i) dout[i] = (float)(floatX)dout[i];
    // The gradient starts at one, since the kernels are to add to what is there.
    float* ones = make_ones_float(OC);
    float* wanted = make_ones_float(OC);
    matmul_backward_bias_cpu(nullptr, nullptr, wanted, dout, nullptr, nullptr, B, T, 0, OC);
    floatX* d_dout = make_device_array<floatX>(elements, dout);
    floatX* d_dbias = make_device_array<floatX>(OC);

    printf("B=%d T=%d OC=%d\n", B, T, OC);
    // Kernel 5 rounds the sum after each block's addition when it is 16 bits wide.
    const float tolerance = kernel_num == 5 && sizeof(floatX) == 2 ? 0.2f * sqrtf((float)B * T) + 0.5f : 1e-3f;
    for (int block_size : {32, 64, 128, 256, 512, 768, 1024}) {
        cudaCheck(memcpy_convert(d_dbias, ones, OC));
        matmul_backward_bias(kernel_num, d_dbias, d_dout, B, T, OC, block_size);
        validate_result(d_dbias, wanted, "dbias", OC, tolerance);
        if (elements < 1000000) continue;
        const float ms = benchmark_kernel(200, matmul_backward_bias, kernel_num, d_dbias, d_dout, B, T, OC, block_size);
        printf("block %4d: %.4f ms, %.0f GB/s\n", block_size, ms, elements * sizeof(floatX) / ms * 1e-6);
    }

    for (floatX* array : {d_dout, d_dbias}) cudaCheck(cudaFree(array));
    for (float* array : {dout, ones, wanted}) free(array);
}

int main(int argc, char **argv) {
    setup_main();
    const int kernel_num = argc > 1 ? atoi(argv[1]) : 9;
    printf("kernel %d\n", kernel_num);
    check_shape(kernel_num, 1, 37, 67); // rows that begin anywhere
    check_shape(kernel_num, 8, 1024, 768);
    return 0;
}
