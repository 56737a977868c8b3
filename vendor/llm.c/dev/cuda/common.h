/*
What the standalone kernel files of this folder share. Each of those is one program: plain C reference, kernels from the
simplest to the fastest, their launchers, and a main that checks them all and times them over a range of block sizes.
*/
#ifndef DEV_CUDA_COMMON_H
#define DEV_CUDA_COMMON_H

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>
#include <utility>
#include <vector>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// A file that multiplies matrices defines WITH_CUBLAS before it includes this one; the others build without the library.
#if defined(WITH_CUBLAS)
#include <cublas_v2.h>
#include <cublasLt.h>
#endif

#define WARP_SIZE 32

// A reduction over one warp, to be carried on by blockReduce.
using reduction_func_t = float (*)(float);

// The least whole number of divisors that cover the dividend.
template<class T>
__host__ __device__ T ceil_div(T dividend, T divisor) {
    const T whole = dividend / divisor;
    return whole * divisor < dividend ? whole + 1 : whole;
}

// Blocks of 1024 threads that one multiprocessor can hold: those of the data-centre chips hold 2048 threads.
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ != 700 && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000)
#define MAX_1024_THREADS_BLOCKS 1
#else
#define MAX_1024_THREADS_BLOCKS 2
#endif

// ---------------------------------------------------------------------------------------------------------------
// errors

inline void cuda_check(cudaError_t error, const char *file, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s:%d: %s (%s)\n", file, line, cudaGetErrorString(error), cudaGetErrorName(error));
    exit(EXIT_FAILURE);
}
#define cudaCheck(err) (cuda_check((err), __FILE__, __LINE__))

// ---------------------------------------------------------------------------------------------------------------
// precision: floatX is float, unless the file says otherwise before it includes this. CUBLAS_LOWP is what cuBLAS calls
// the type, CUBLAS_LOWP_COMPUTE the precision in which it is to add up products.

#define CUBLAS_LOWP_COMPUTE CUBLAS_COMPUTE_32F
#if defined(ENABLE_BF16)
#define CUBLAS_LOWP CUDA_R_16BF
typedef __nv_bfloat16 floatX;
#elif defined(ENABLE_FP16)
#define CUBLAS_LOWP CUDA_R_16F
typedef half floatX;
#else
#define CUBLAS_LOWP CUDA_R_32F
typedef float floatX;
#endif

// Toolkits before 12 have no streaming loads and stores of bfloat16. A bfloat16 is 16 bits, so a short's will do.
#if defined(ENABLE_BF16) && defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 12
__device__ floatX __ldcs(const floatX* address) {
    return __ushort_as_bfloat16(__ldcs((const unsigned short*)address));
}
__device__ void __stcs(floatX* address, floatX value) {
    __stcs((unsigned short*)address, __bfloat16_as_ushort(value));
}
#endif

#if defined(WITH_CUBLAS)
inline void cublasCheck(cublasStatus_t status, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "%s:%d: cuBLAS status %d\n", file, line, (int)status);
    exit(EXIT_FAILURE);
}
#define cublasCheck(status) (cublasCheck((status), __FILE__, __LINE__))
#endif

// ---------------------------------------------------------------------------------------------------------------
// reductions

// The sum over a whole warp, known to each of its lanes.
__device__ float warpReduceSum(float val) {
    for (int distance = 1; distance < WARP_SIZE; distance <<= 1) {
        val += __shfl_xor_sync(0xffffffffu, val, distance);
    }
    return val;
}

// The largest value in a whole warp, known to each of its lanes.
__device__ inline float warpReduceMax(float val) {
    for (int distance = 1; distance < WARP_SIZE; distance <<= 1) {
        val = fmaxf(val, __shfl_xor_sync(0xffffffffu, val, distance));
    }
    return val;
}

// A warp reduction carried on over a block of whole warps, along threadIdx.x; every thread gets the result. Neutral to
// the reduction must be out_of_bounds. A second call with the same reduction needs final_sync on the first, since
// both use one shared array.
template<reduction_func_t warp_reduction>
__device__ inline float blockReduce(float val, bool final_sync, float out_of_bounds) {
    __shared__ float of_warp[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE;
    const int warps = blockDim.x / WARP_SIZE;
    const float partial = warp_reduction(val);
    if (lane == 0) of_warp[threadIdx.x / WARP_SIZE] = partial;
    __syncthreads();
    const float total = warp_reduction(lane < warps ? of_warp[lane] : out_of_bounds);
    if (final_sync) __syncthreads();
    return total;
}

// For kernels that reduce once, or whose reduction has zero as its neutral value.
template<reduction_func_t warp_reduction>
__device__ inline float blockReduce(float val) {
    const float neutral = 0.0f;
    return blockReduce<warp_reduction>(val, false, neutral);
}

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
// the device

static int cuda_arch_major = 0;
static int cuda_arch_minor = 0;
static int cuda_num_SMs = 0;
static int cuda_threads_per_SM = 0;

// Picks the device, fills in the variables above and fixes the random numbers. Every main begins with it.
inline void setup_main() {
    const int device = 0;
    cudaDeviceProp properties;
    cudaCheck(cudaSetDevice(device));
    cudaCheck(cudaGetDeviceProperties(&properties, device));
    cuda_arch_major = properties.major;
    cuda_arch_minor = properties.minor;
    cuda_num_SMs = properties.multiProcessorCount;
    cuda_threads_per_SM = properties.maxThreadsPerMultiProcessor;
    printf("%s, compute capability %d.%d, %d multiprocessors\n", properties.name, properties.major, properties.minor, cuda_num_SMs);
    srand(137);
}

// ---------------------------------------------------------------------------------------------------------------
// host arrays, to be released with free

template<class T, class Generator>
T* make_host_array(size_t N, Generator next) {
    T* array = static_cast<T*>(malloc(N * sizeof(T)));
    if (array == nullptr && N > 0) {
        fprintf(stderr, "no memory for %zu elements\n", N);
        exit(EXIT_FAILURE);
    }
    for (size_t i = 0; i < N; ++i) array[i] = next();
    return array;
}

inline float random_unit() {
    return rand() * (1.0f / RAND_MAX);
}

// Uniform in [0, 1].
inline float* make_random_float_01(size_t N) {
    return make_host_array<float>(N, random_unit);
}

// Uniform in [-1, 1].
inline float* make_random_float(size_t N) {
    return make_host_array<float>(N, [] { return 2.0f * random_unit() - 1.0f; });
}

// Uniform in 0, ..., V - 1.
inline int* make_random_int(size_t N, int V) {
    return make_host_array<int>(N, [V] { return rand() % V; });
}

inline float* make_zeros_float(size_t N) {
    return make_host_array<float>(N, [] { return 0.0f; });
}

inline float* make_ones_float(size_t N) {
    return make_host_array<float>(N, [] { return 1.0f; });
}

// Fills a device array from a host array of floats, rounding to the device's type.
template<class TargetType>
[[nodiscard]] cudaError_t memcpy_convert(TargetType* d_ptr, float* h_ptr, size_t count) {
    std::vector<TargetType> converted(count);
    for (size_t i = 0; i < count; ++i) converted[i] = (TargetType)h_ptr[i];
    return cudaMemcpy(d_ptr, converted.data(), count * sizeof(TargetType), cudaMemcpyHostToDevice);
}

// ---------------------------------------------------------------------------------------------------------------
// checking and timing

// Compares a device array with its reference and ends the program where they differ by more than tolerance, plus what
// the rounding to the device's type makes in a value of that size. Not-a-number fails too, unless both are.
template<class D, class T>
void validate_result(D* device_result, const T* cpu_reference, const char* name, std::size_t num_elements, T tolerance=1e-4) {
    const double rounding = sizeof(D) == sizeof(float) ? FLT_EPSILON : std::is_same<D, half>::value ? 1.0 / 1024 : 1.0 / 128;
    std::vector<D> result(num_elements);
    cudaCheck(cudaMemcpy(result.data(), device_result, num_elements * sizeof(D), cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    double largest = 0.0;
    for (size_t i = 0; i < num_elements; ++i) {
        const double wanted = (double)cpu_reference[i];
        const double got = (double)(float)result[i];
        const double error = fabs(wanted - got);
        if (isnan(wanted) && isnan(got)) continue;
        if (error <= (double)tolerance + rounding * fabs(wanted)) {
            if (error > largest) largest = error;
            continue;
        }
        if (++wrong <= 10) fprintf(stderr, "%s[%zu] is %.8g, not %.8g\n", name, i, got, wanted);
    }
    if (wrong > 0) {
        fprintf(stderr, "%s: %zu of %zu elements are wrong\n", name, wrong, num_elements);
        exit(EXIT_FAILURE);
    }
    printf("%s: %zu elements agree, largest error %.2e\n", name, num_elements, largest);
}

// Mean time in milliseconds of a call, from repeats calls, each with a second-level cache that holds nothing of use.
template<class Kernel, class... KernelArgs>
float benchmark_kernel(int repeats, Kernel kernel, KernelArgs&&... kernel_args) {
    int device = 0, cache_bytes = 0;
    cudaCheck(cudaGetDevice(&device));
    cudaCheck(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device));
    void* flush = nullptr;
    cudaEvent_t begin, end;
    cudaCheck(cudaMalloc(&flush, cache_bytes + 1));
    cudaCheck(cudaEventCreate(&begin));
    cudaCheck(cudaEventCreate(&end));
    double total = 0.0;
    // The first call is not counted: it loads the kernel.
    for (int i = -1; i < repeats; ++i) {
        cudaCheck(cudaMemsetAsync(flush, 0, cache_bytes, 0));
        cudaCheck(cudaEventRecord(begin, 0));
        kernel(std::forward<KernelArgs>(kernel_args)...);
        cudaCheck(cudaEventRecord(end, 0));
        cudaCheck(cudaEventSynchronize(end));
        float milliseconds = 0.0f;
        cudaCheck(cudaEventElapsedTime(&milliseconds, begin, end));
        if (i >= 0) total += milliseconds;
    }
    cudaCheck(cudaEventDestroy(begin));
    cudaCheck(cudaEventDestroy(end));
    cudaCheck(cudaFree(flush));
    return (float)(total / repeats);
}

// A device array of count elements, filled from a host array of floats where one is given.
template<class T>
T* make_device_array(size_t count, float* from=nullptr) {
    T* array = nullptr;
    cudaCheck(cudaMalloc((void**)&array, count * sizeof(T)));
    if (from != nullptr) cudaCheck(memcpy_convert(array, from, count));
    return array;
}

#endif // DEV_CUDA_COMMON_H
