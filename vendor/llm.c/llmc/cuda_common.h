/*
What every CUDA file of this tree builds on: the precision switch (floatX), error checks, profiler ranges and
file transfers. Kernels need only floatX, WARP_SIZE, CEIL_DIV and the launch bound; the rest is for host code.
*/
#ifndef CUDA_COMMON_H
#define CUDA_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nvtx3/nvToolsExt.h>

// Threads that run in lockstep and may exchange registers by shuffles.
#define WARP_SIZE 32

// How many blocks are needed so that N of size each cover M. Both arguments are integers, N is positive.
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))

// The device that the program runs on; its owner (main) fills it in once with cudaGetDeviceProperties.
extern cudaDeviceProp deviceProp;

// Blocks of 1024 threads that one multiprocessor can hold: those of the data-centre chips hold 2048 threads.
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ != 700 && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000)
#define MAX_1024_THREADS_BLOCKS 1
#else
#define MAX_1024_THREADS_BLOCKS 2
#endif

// ---------------------------------------------------------------------------------------------------------------
// errors

// Ends the program with the place and the reason where a CUDA call has failed.
inline void cudaCheck_(cudaError_t error, const char *file, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s:%d: CUDA error %d (%s): %s\n", file, line, (int)error, cudaGetErrorName(error),
            cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}
#define cudaCheck(err) (cudaCheck_((err), __FILE__, __LINE__))

// Frees *ptr and forgets it, so that a second call does nothing.
template<class T>
inline void cudaFreeCheck(T** ptr, const char *file, int line) {
    cudaCheck_(cudaFree(*ptr), file, line);
    *ptr = nullptr;
}
#define cudaFreeCheck(ptr) (cudaFreeCheck((ptr), __FILE__, __LINE__))

// ---------------------------------------------------------------------------------------------------------------
// precision: floatX is the type of activations, parameters and gradients, chosen when the program is compiled

enum PrecisionMode { PRECISION_FP32 = 0, PRECISION_FP16 = 1, PRECISION_BF16 = 2 };

#if defined(ENABLE_FP32)
#define PRECISION_MODE PRECISION_FP32
typedef float floatX;
#elif defined(ENABLE_FP16)
#define PRECISION_MODE PRECISION_FP16
typedef half floatX;
#else
#define PRECISION_MODE PRECISION_BF16
typedef __nv_bfloat16 floatX;
#endif

// Toolkits before 12 have no streaming loads and stores of bfloat16. A bfloat16 is 16 bits, so a short's will do.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 12 && !defined(ENABLE_FP32) && !defined(ENABLE_FP16)
__device__ floatX __ldcs(const floatX* address) {
    return __ushort_as_bfloat16(__ldcs((const unsigned short*)address));
}
__device__ void __stcs(floatX* address, floatX value) {
    __stcs((unsigned short*)address, __bfloat16_as_ushort(value));
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// profiling: a range that ends with the scope it stands in

class NvtxRange {
public:
    NvtxRange(const char* s) { nvtxRangePushA(s); }
    NvtxRange(const std::string& base_str, int number) : NvtxRange((base_str + " " + std::to_string(number)).c_str()) {}
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;
    ~NvtxRange() { nvtxRangePop(); }
};
#define NVTX_RANGE_FN() NvtxRange nvtx_range_of_function(__FUNCTION__)

// ---------------------------------------------------------------------------------------------------------------
// device memory to and from files, through two pinned buffers that take turns: while one is on the bus, the other
// is at the disk

// Pinned halves of a transfer, each with an event that tells when the bus is done with it.
struct PinnedPair {
    char* half[2];
    cudaEvent_t done[2];
    explicit PinnedPair(size_t half_bytes) {
        for (int i = 0; i < 2; ++i) {
            cudaCheck(cudaMallocHost((void**)&half[i], half_bytes));
            cudaCheck(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
        }
    }
    ~PinnedPair() {
        for (int i = 0; i < 2; ++i) {
            cudaEventDestroy(done[i]);
            cudaFreeHost(half[i]);
        }
    }
};

inline void exit_on_short_transfer(size_t wanted, size_t got, const char* what) {
    if (wanted == got) return;
    fprintf(stderr, "%s: only %zu of %zu bytes\n", what, got, wanted);
    exit(EXIT_FAILURE);
}

// Appends num_bytes of device memory to dest. buffer_size is the size of each of the two pinned buffers.
inline void device_to_file(FILE* dest, void* src, size_t num_bytes, size_t buffer_size, cudaStream_t stream) {
    PinnedPair pinned(buffer_size);
    size_t fetched = 0, written = 0, length[2] = {0, 0};
    for (int turn = 0; written < num_bytes; turn ^= 1) {
        length[turn] = num_bytes - fetched < buffer_size ? num_bytes - fetched : buffer_size;
        if (length[turn] > 0) {
            cudaCheck(cudaMemcpyAsync(pinned.half[turn], (char*)src + fetched, length[turn], cudaMemcpyDeviceToHost, stream));
            cudaCheck(cudaEventRecord(pinned.done[turn], stream));
            fetched += length[turn];
        }
        const int other = turn ^ 1;
        if (length[other] > 0) {
            cudaCheck(cudaEventSynchronize(pinned.done[other]));
            exit_on_short_transfer(length[other], fwrite(pinned.half[other], 1, length[other], dest), "device_to_file");
            written += length[other];
            length[other] = 0;
        }
    }
}

// Reads num_bytes of src into device memory. Returns when all of it has arrived.
inline void file_to_device(void* dest, FILE* src, size_t num_bytes, size_t buffer_size, cudaStream_t stream) {
    PinnedPair pinned(buffer_size);
    int turn = 0;
    for (size_t sent = 0; sent < num_bytes; turn ^= 1) {
        const size_t length = num_bytes - sent < buffer_size ? num_bytes - sent : buffer_size;
        // An event that was never recorded counts as done, so the first two turns do not wait.
        cudaCheck(cudaEventSynchronize(pinned.done[turn]));
        exit_on_short_transfer(length, fread(pinned.half[turn], 1, length, src), "file_to_device");
        cudaCheck(cudaMemcpyAsync((char*)dest + sent, pinned.half[turn], length, cudaMemcpyHostToDevice, stream));
        cudaCheck(cudaEventRecord(pinned.done[turn], stream));
        sent += length;
    }
    cudaCheck(cudaStreamSynchronize(stream));
}

#endif // CUDA_COMMON_H
