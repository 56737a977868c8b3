/*
Device-side tools that the kernels share: 128-bit packets, reductions, casts, sums, random bits.
*/
#ifndef CUDA_UTILS_CUH
#define CUDA_UTILS_CUH

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "cuda_common.h"

// A reduction over one warp, to be carried on by blockReduce.
using reduction_func_t = float (*)(float);

// ---------------------------------------------------------------------------------------------------------------
// 128-bit packets

// As many elements as the widest memory instruction of a thread moves. The addresses given to the load and store
// functions below must be multiples of 16 bytes; load_packet and store_packet take any address.
template<class ElementType>
struct alignas(16) Packed128 {
    static constexpr int size = 16 / (int)sizeof(ElementType);

    ElementType lanes[size];

    Packed128() = default;
    __device__ explicit Packed128(int4 bits) {
        memcpy(lanes, &bits, 16);
    }
    __device__ static Packed128 constant(ElementType value) {
        Packed128 filled;
        #pragma unroll
        for (int i = 0; i < size; ++i) filled.lanes[i] = value;
        return filled;
    }
    __device__ static Packed128 zeros() {
        return Packed128(make_int4(0, 0, 0, 0));
    }
    __device__ static Packed128 ones() {
        return constant((ElementType)1.0f);
    }
    __device__ ElementType& operator[](int i) { return lanes[i]; }
    __device__ const ElementType& operator[](int i) const { return lanes[i]; }
    __device__ int4 get_bits() const {
        int4 raw;
        memcpy(&raw, lanes, 16);
        return raw;
    }
};

typedef Packed128<float> f128;
typedef Packed128<floatX> x128;

template<class ElementType>
__device__ Packed128<ElementType> load128(const ElementType* address) {
    const int4* from = reinterpret_cast<const int4*>(address);
    return Packed128<ElementType>(*from);
}

// For what is read once: the line is the first to leave the cache.
template<class ElementType>
__device__ Packed128<ElementType> load128cs(const ElementType* address) {
    const int4* from = reinterpret_cast<const int4*>(address);
    return Packed128<ElementType>(__ldcs(from));
}

template<class ElementType>
__device__ void store128(ElementType* target, Packed128<ElementType> value) {
    int4* to = reinterpret_cast<int4*>(target);
    *to = value.get_bits();
}

// For what is not read again soon.
template<class ElementType>
__device__ void store128cs(ElementType* target, Packed128<ElementType> value) {
    int4* to = reinterpret_cast<int4*>(target);
    __stcs(to, value.get_bits());
}

// For what other blocks read: it passes by the first-level cache.
template<class ElementType>
__device__ void store128cg(ElementType* target, Packed128<ElementType> value) {
    int4* to = reinterpret_cast<int4*>(target);
    __stcg(to, value.get_bits());
}

template<class ElementType>
__device__ inline bool is_aligned128(const ElementType* address) {
    return (reinterpret_cast<size_t>(address) & 15) == 0;
}

// The first left elements from any address, one by one; the others become zero.
template<class ElementType>
__device__ inline Packed128<ElementType> load_elements(const ElementType* address, int left) {
    Packed128<ElementType> packet = Packed128<ElementType>::zeros();
    #pragma unroll
    for (int i = 0; i < Packed128<ElementType>::size; ++i) {
        if (i < left) packet[i] = address[i];
    }
    return packet;
}

template<class ElementType>
__device__ inline void store_elements(ElementType* target, const Packed128<ElementType>& packet, int left) {
    #pragma unroll
    for (int i = 0; i < Packed128<ElementType>::size; ++i) {
        if (i < left) target[i] = packet[i];
    }
}

// A packet from any address, of which only the first left elements may be touched. Rows of odd length, or arrays that
// begin in the middle of another, are read element by element. A caller that knows its packets to be full and aligned
// says so by Whole: without the choice the compiler can have many loads under way at once.
template<bool Whole = false, class ElementType>
__device__ inline Packed128<ElementType> load_packet(const ElementType* address, int left) {
    const bool one_piece = Whole || (left >= Packed128<ElementType>::size && is_aligned128(address));
    return one_piece ? load128(address) : load_elements(address, left);
}

// The other way round: writes the first left elements of a packet to any address.
template<bool Whole = false, class ElementType>
__device__ inline void store_packet(ElementType* target, const Packed128<ElementType>& packet, int left) {
    const bool one_piece = Whole || (left >= Packed128<ElementType>::size && is_aligned128(target));
    if (one_piece) store128(target, packet);
    else store_elements(target, packet, left);
}

// ---------------------------------------------------------------------------------------------------------------
// element types

enum class DType : uint8_t { FP32, FP16, BF16 };

inline size_t sizeof_dtype(DType type) {
    return type == DType::FP32 ? sizeof(float) : sizeof(uint16_t);
}

// Which DType an array has, told from the type of a pointer to it.
inline DType dtype_of(float* f) { (void)f; return DType::FP32; }
inline DType dtype_of(nv_bfloat16 * f) { (void)f; return DType::BF16; }
inline DType dtype_of(half * f) { (void)f; return DType::FP16; }

// Any of the three element types to any other, by way of float: the 16-bit types have no direct conversion.
template<typename Td, typename Ts>
__device__ inline Td cast_value(Ts value) {
    return (Td)(float)value;
}

// Copies rows of n elements and converts them. blockIdx.y counts rows, which lie stride_dst and stride_src elements
// apart; the blocks of one row share its elements, however many blocks there are.
template<typename Td, typename Ts>
__global__ void copy_and_cast_kernel(Td* dst, const Ts* src, size_t n, ptrdiff_t stride_dst, ptrdiff_t stride_src) {
    Td* to = dst + (ptrdiff_t)blockIdx.y * stride_dst;
    const Ts* from = src + (ptrdiff_t)blockIdx.y * stride_src;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        to[i] = cast_value<Td>(from[i]);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// reductions

// The sum over a whole warp, known to each of its lanes.
__device__ inline float warpReduceSum(float val) {
    #pragma unroll
    for (int distance = 1; distance < WARP_SIZE; distance <<= 1) {
        val += __shfl_xor_sync(0xffffffffu, val, distance);
    }
    return val;
}

// The largest value in a whole warp, known to each of its lanes.
__device__ inline float warpReduceMax(float val) {
    #pragma unroll
    for (int distance = 1; distance < WARP_SIZE; distance <<= 1) {
        val = fmaxf(val, __shfl_xor_sync(0xffffffffu, val, distance));
    }
    return val;
}

// A warp reduction carried on over a block of whole warps, along threadIdx.x; every thread gets the result. Neutral to
// the reduction must be out_of_bounds. A second call with the same reduction needs final_sync on the first, since
// both use one shared array.
template<reduction_func_t warp_reduction>
__device__ inline float blockReduce(float val, bool final_sync=false, float out_of_bounds=0.0f) {
    __shared__ float of_warp[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE;
    const int warps = blockDim.x / WARP_SIZE;

    const float partial = warp_reduction(val);
    if (lane == 0) of_warp[threadIdx.x / WARP_SIZE] = partial;
    __syncthreads();
    // Each warp finishes the job for itself, which spares a broadcast and a barrier.
    const float total = warp_reduction(lane < warps ? of_warp[lane] : out_of_bounds);
    if (final_sync) __syncthreads();
    return total;
}

// For one block: result[0] becomes the sum of count values, added in an order that depends on the block size alone.
template<class Float>
__global__ void global_sum_single_block_kernel(float* result, const Float* values, size_t count) {
    float mine = 0.0f;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) mine += (float)values[i];
    const float total = blockReduce<warpReduceSum>(mine);
    if (threadIdx.x == 0) *result = total;
}

// A sum that has the same bits in every run, since no atomics take part.
template<class Float>
void global_sum_deterministic(float* result, const Float* values, int count, cudaStream_t stream) {
    const int threads = 1024;
    global_sum_single_block_kernel<<<1, threads, 0, stream>>>(result, values, count);
    cudaCheck(cudaGetLastError());
}

// ---------------------------------------------------------------------------------------------------------------
// memory

// Device memory where there is enough, else managed memory that lives on the host, which is slow but works.
// Returns 1 in the second case, 0 in the first.
inline int cudaMallocConditionallyManaged(void** out, size_t bytes, const char *file, int line) {
    const cudaError_t outcome = cudaMalloc(out, bytes);
    if (outcome != cudaErrorMemoryAllocation) {
        cudaCheck_(outcome, file, line);
        return 0;
    }
    cudaGetLastError(); // takes the error away, or the next check would report it
    cudaCheck_(cudaMallocManaged(out, bytes), file, line);
#if CUDART_VERSION >= 13000
    cudaMemLocation host = {};
    host.type = cudaMemLocationTypeHost;
    cudaCheck_(cudaMemAdvise(*out, bytes, cudaMemAdviseSetPreferredLocation, host), file, line);
#else
    cudaCheck_(cudaMemAdvise(*out, bytes, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId), file, line);
#endif
    return 1;
}
#define cudaMallocConditionallyManaged(out, bytes) \
    (cudaMallocConditionallyManaged((void**)(out), (bytes), __FILE__, __LINE__))

// ---------------------------------------------------------------------------------------------------------------
// random bits

// A hash of a position and a seed: all 32 bits of the result look random, and need no state. The name is the one that
// callers know; the mixing (odd multipliers between folds of the high half on the low) is our own choice.
__device__ __host__ constexpr unsigned int SquirrelNoise5(unsigned int positionX, unsigned int seed) {
    unsigned int h = positionX * 0x9e3779b1u + (seed ^ 0x7f4a7c15u);
    h = (h ^ (h >> 16)) * 0x21f0aaadu;
    h = (h ^ (h >> 15)) * 0x735a2d97u;
    h = (h + seed) ^ (h >> 15);
    return h ^ (h >> 13);
}

__device__ __host__ constexpr unsigned int Get2dNoiseUint(int indexX, int indexY, unsigned int seed) {
    return SquirrelNoise5((unsigned int)indexX, SquirrelNoise5((unsigned int)indexY, seed));
}

// Rounds to one of the two neighbours in bfloat16, to the nearer one more often, so that the mean error is zero. To add
// random bits below the last kept one and then to cut them off does exactly this. Each thread of a launch draws its own.
__device__ __forceinline__ void stochastic_rounding(float in, __nv_bfloat16 *out, unsigned int seed) {
    unsigned int bits = __float_as_uint(in);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    if (finite) bits += Get2dNoiseUint(threadIdx.x, blockIdx.x * blockDim.x + blockIdx.y, seed) & 0xffffu;
    *out = finite ? __ushort_as_bfloat16((unsigned short)(bits >> 16)) : __float2bfloat16_rn(in);
}

// Half has bits enough to round to the nearest.
__device__ __forceinline__ void stochastic_rounding(float in, half *out, unsigned int random) {
    (void)random;
    *out = __float2half_rn(in);
}

__device__ __forceinline__ void stochastic_rounding(float in, float *out, unsigned int random) {
    (void)random;
    *out = in;
}

#endif // CUDA_UTILS_CUH
