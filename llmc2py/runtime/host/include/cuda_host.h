// CUDA for a C++17 host compiler: the prelude of every kernel that the CPU backend compiles.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

// Defined only after the system headers, whose own text must not see them.
#define __CUDACC__ 1
#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 4
#define CUDART_VERSION 12040
// For sources that have something else for the CPU than for a GPU.
#define LLMC2PY_CPU 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
// Kernels read shared arrays of small elements in pieces of 16 bytes; a stricter alignas, or type, still holds.
#define __shared__ static thread_local __attribute__((aligned(16)))
#define __forceinline__ inline
#define __inline__ inline
#define __launch_bounds__(...)
// How fast a kernel is, and what blocks of a cluster share: what reads that of other blocks does not compile here.
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __nv_pure__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

#include "assert.h"
#include "llmc2py/runtime.h"
#include "llmc2py/vectors.h"
#include "llmc2py/float16.h"
#include "llmc2py/intrinsics.h"
#include "llmc2py/warp.h"
#include "llmc2py/atomics.h"
#include "llmc2py/groups.h"
#include "llmc2py/entry.h"

// What a kernel calls by these names takes locks, and the runtime has to know of it.
namespace std {
using ::llmc2py_free;
using ::llmc2py_malloc;
using ::llmc2py_printf;
}  // namespace std
#ifdef LLMC2PY_CHECK
// The compiler instruments accesses, and leaves these to the sanitizer's own runtime.
extern "C" {
void *__tsan_memcpy(void *target, const void *source, std::size_t size);
void *__tsan_memmove(void *target, const void *source, std::size_t size);
void *__tsan_memset(void *target, int value, std::size_t size);
}
namespace std {
using ::__tsan_memcpy;
using ::__tsan_memmove;
using ::__tsan_memset;
}  // namespace std
#define memcpy(...) __tsan_memcpy(__VA_ARGS__)
#define memmove(...) __tsan_memmove(__VA_ARGS__)
#define memset(...) __tsan_memset(__VA_ARGS__)
#endif
#define printf(...) llmc2py_printf(__VA_ARGS__)
#define malloc(...) llmc2py_malloc(__VA_ARGS__)
#define free(...) llmc2py_free(__VA_ARGS__)
