// CUDA's vector types and their make_ functions.
#pragma once

#define LLMC2PY_VECTOR1(NAME, T)       \
    struct NAME##1 {                   \
        T x;                           \
    };                                 \
    inline NAME##1 make_##NAME##1(T x) \
    {                                  \
        return NAME##1{x};             \
    }
#define LLMC2PY_VECTOR2(NAME, T, ALIGN)                         \
    struct __attribute__((aligned(ALIGN))) NAME##2 { T x, y; }; \
    inline NAME##2 make_##NAME##2(T x, T y) { return NAME##2{x, y}; }
#define LLMC2PY_VECTOR3(NAME, T) \
    struct NAME##3 { T x, y, z; }; \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; }
#define LLMC2PY_VECTOR4(NAME, T, ALIGN)                               \
    struct __attribute__((aligned(ALIGN))) NAME##4 { T x, y, z, w; }; \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4{x, y, z, w}; }
#define LLMC2PY_VECTORS(NAME, T, ALIGN2, ALIGN4) \
    LLMC2PY_VECTOR1(NAME, T)                     \
    LLMC2PY_VECTOR2(NAME, T, ALIGN2)             \
    LLMC2PY_VECTOR3(NAME, T)                     \
    LLMC2PY_VECTOR4(NAME, T, ALIGN4)

LLMC2PY_VECTORS(char, signed char, 2, 4)
LLMC2PY_VECTORS(uchar, unsigned char, 2, 4)
LLMC2PY_VECTORS(short, short, 4, 8)
LLMC2PY_VECTORS(ushort, unsigned short, 4, 8)
LLMC2PY_VECTORS(int, int, 8, 16)
LLMC2PY_VECTORS(long, long, 16, 16)
LLMC2PY_VECTORS(ulong, unsigned long, 16, 16)
LLMC2PY_VECTORS(longlong, long long, 16, 16)
LLMC2PY_VECTORS(ulonglong, unsigned long long, 16, 16)
LLMC2PY_VECTORS(float, float, 8, 16)
LLMC2PY_VECTORS(double, double, 16, 16)
// uint3 stands in runtime.h, because threadIdx is one.
LLMC2PY_VECTOR1(uint, unsigned int)
LLMC2PY_VECTOR2(uint, unsigned int, 8)
LLMC2PY_VECTOR4(uint, unsigned int, 16)
inline uint3 make_uint3(unsigned int x, unsigned int y, unsigned int z) { return uint3{x, y, z}; }

#undef LLMC2PY_VECTORS
#undef LLMC2PY_VECTOR1
#undef LLMC2PY_VECTOR2
#undef LLMC2PY_VECTOR3
#undef LLMC2PY_VECTOR4

typedef unsigned int uint;
typedef unsigned short ushort;
