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
