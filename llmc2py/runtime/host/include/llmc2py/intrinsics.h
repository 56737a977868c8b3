// Per-thread intrinsics: bits, loads and stores with cache hints, fast mathematics (exact here), min and max.
#pragma once

namespace llmc2py {
// Stands for a statement of inline PTX; a compiler says so where the call is one that a kernel makes.
[[gnu::error("inline PTX (asm) runs on CUDA alone; write C++ for the CPU between #ifdef LLMC2PY_CPU and #else")]]
void inline_ptx();
}

#define LLMC2PY_LOAD(NAME)                             \
    template <class T>                                 \
    inline T NAME(const T *address) { return *address; }
#define LLMC2PY_STORE(NAME)                                                 \
    template <class T>                                                      \
    inline void NAME(T *address, std::remove_cv_t<T> value) { *address = value; }
LLMC2PY_LOAD(__ldg)
LLMC2PY_LOAD(__ldca)
LLMC2PY_LOAD(__ldcg)
LLMC2PY_LOAD(__ldcs)
LLMC2PY_LOAD(__ldcv)
LLMC2PY_LOAD(__ldlu)
LLMC2PY_STORE(__stwb)
LLMC2PY_STORE(__stcg)
LLMC2PY_STORE(__stcs)
LLMC2PY_STORE(__stwt)
#undef LLMC2PY_LOAD
#undef LLMC2PY_STORE

inline unsigned int __float_as_uint(float v) { return llmc2py::bit_cast<unsigned int>(v); }
inline int __float_as_int(float v) { return llmc2py::bit_cast<int>(v); }
inline float __uint_as_float(unsigned int v) { return llmc2py::bit_cast<float>(v); }
inline float __int_as_float(int v) { return llmc2py::bit_cast<float>(v); }
inline long long __double_as_longlong(double v) { return llmc2py::bit_cast<long long>(v); }
inline double __longlong_as_double(long long v) { return llmc2py::bit_cast<double>(v); }

inline int __popc(unsigned int v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned int>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline unsigned int __brev(unsigned int v)
{
    unsigned int reversed = 0;
    for (int bit = 0; bit < 32; ++bit) {
        reversed |= ((v >> bit) & 1u) << (31 - bit);
    }
    return reversed;
}
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<long long>(a) * b) >> 32); }
inline unsigned int __umulhi(unsigned int a, unsigned int b)
{
    return static_cast<unsigned int>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline long long __mul64hi(long long a, long long b)
{
    return static_cast<long long>((static_cast<__int128>(a) * b) >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned int __umul24(unsigned int a, unsigned int b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __mul24(int a, int b)
{
    // Eight bits to the left and back again extend the sign of the lower 24.
    const unsigned int left = static_cast<unsigned int>(static_cast<int>(static_cast<unsigned int>(a) << 8) >> 8);
    const unsigned int right = static_cast<unsigned int>(static_cast<int>(static_cast<unsigned int>(b) << 8) >> 8);
    return static_cast<int>(left * right);
}
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector)
{
    const unsigned long long both = (static_cast<unsigned long long>(b) << 32) | a;
    unsigned int result = 0;
    for (int byte = 0; byte < 4; ++byte) {
        const unsigned int index = (selector >> (4 * byte)) & 7u;
        result |= static_cast<unsigned int>((both >> (8 * index)) & 0xffu) << (8 * byte);
    }
    return result;
}

namespace llmc2py {
inline unsigned long long funnel(unsigned int low, unsigned int high)
{
    return (static_cast<unsigned long long>(high) << 32) | low;
}
inline unsigned int at_most_32(unsigned int shift) { return shift < 32u ? shift : 32u; }
// The sum of products, and of a number; what overflows wraps around.
template <class A, class B>
inline unsigned int dot(const A *a, const B *b, int count, unsigned int sum)
{
    for (int i = 0; i < count; ++i) {
        sum += static_cast<unsigned int>(static_cast<long long>(a[i]) * b[i]);
    }
    return sum;
}
template <class T>
struct Parts {
    T part[4 / sizeof(T)];
};
}  // namespace llmc2py

inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>((llmc2py::funnel(low, high) << (shift & 31u)) >> 32);
}
inline unsigned int __funnelshift_lc(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>((llmc2py::funnel(low, high) << llmc2py::at_most_32(shift)) >> 32);
}
inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>(llmc2py::funnel(low, high) >> (shift & 31u));
}
inline unsigned int __funnelshift_rc(unsigned int low, unsigned int high, unsigned int shift)
{
    return static_cast<unsigned int>(llmc2py::funnel(low, high) >> llmc2py::at_most_32(shift));
}

#define LLMC2PY_DOT(NAME, COUNT, FIRST, T, WORD_A, A, WORD_B, B)                                                  \
    inline T NAME(WORD_A a, WORD_B b, T sum)                                                                     \
    {                                                                                                            \
        const auto left = llmc2py::bit_cast<llmc2py::Parts<A>>(a);                                               \
        const auto right = llmc2py::bit_cast<llmc2py::Parts<B>>(b);                                              \
        return static_cast<T>(llmc2py::dot(left.part, right.part + FIRST, COUNT, static_cast<unsigned int>(sum))); \
    }
#define LLMC2PY_DOTS(T, WORD, SIGN_, PREFIX)                                              \
    LLMC2PY_DOT(__dp4a, 4, 0, T, WORD, SIGN_ char, WORD, SIGN_ char)                      \
    LLMC2PY_DOT(__dp4a, 4, 0, T, PREFIX##char4, SIGN_ char, PREFIX##char4, SIGN_ char)    \
    LLMC2PY_DOT(__dp2a_lo, 2, 0, T, WORD, SIGN_ short, WORD, SIGN_ char)                  \
    LLMC2PY_DOT(__dp2a_lo, 2, 0, T, PREFIX##short2, SIGN_ short, PREFIX##char4, SIGN_ char) \
    LLMC2PY_DOT(__dp2a_hi, 2, 2, T, WORD, SIGN_ short, WORD, SIGN_ char)                  \
    LLMC2PY_DOT(__dp2a_hi, 2, 2, T, PREFIX##short2, SIGN_ short, PREFIX##char4, SIGN_ char)
LLMC2PY_DOTS(int, int, signed, )
LLMC2PY_DOTS(unsigned int, unsigned int, unsigned, u)
#undef LLMC2PY_DOTS
#undef LLMC2PY_DOT

inline unsigned int __sad(int a, int b, unsigned int sum)
{
    return sum + (a < b ? static_cast<unsigned int>(b) - static_cast<unsigned int>(a)
                        : static_cast<unsigned int>(a) - static_cast<unsigned int>(b));
}
inline unsigned int __usad(unsigned int a, unsigned int b, unsigned int sum) { return sum + (a < b ? b - a : a - b); }
// Means, rounded down or up; the sum has a bit more than its terms.
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned int __uhadd(unsigned int a, unsigned int b)
{
    return static_cast<unsigned int>((static_cast<unsigned long long>(a) + b) >> 1);
}
inline unsigned int __urhadd(unsigned int a, unsigned int b)
{
    return static_cast<unsigned int>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}

// Whether the C library is GNU's, of this version at least: it has some of CUDA's functions by the same names.
#if defined(__GLIBC__)
#define LLMC2PY_GLIBC(MAJOR, MINOR) __GLIBC_PREREQ(MAJOR, MINOR)
#else
#define LLMC2PY_GLIBC(MAJOR, MINOR) 0
#endif

#if !LLMC2PY_GLIBC(2, 42)
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
#endif
inline float rsqrt(float v) { return rsqrtf(v); }
inline float rcbrtf(float v) { return 1.0f / std::cbrt(v); }
inline double rcbrt(double v) { return 1.0 / std::cbrt(v); }

namespace llmc2py {
// sin(pi r) for r from -1 to 1: half a turn from either side is where nothing is lost.
inline double sine_of_turn(double r)
{
    constexpr double pi = 3.141592653589793238;
    const double folded = r > 0.5 ? 1.0 - r : r < -0.5 ? -1.0 - r : r;
    return std::sin(pi * folded);
}
}  // namespace llmc2py

// The remainder is exact, and infinity has none.
#if !LLMC2PY_GLIBC(2, 41)
inline double sinpi(double v) { return llmc2py::sine_of_turn(std::remainder(v, 2.0)); }
inline double cospi(double v) { return llmc2py::sine_of_turn(0.5 - std::fabs(std::remainder(v, 2.0))); }
inline float sinpif(float v) { return static_cast<float>(sinpi(static_cast<double>(v))); }
inline float cospif(float v) { return static_cast<float>(cospi(static_cast<double>(v))); }
#endif
inline void sincospi(double v, double *s, double *c)
{
    *s = sinpi(v);
    *c = cospi(v);
}
inline void sincospif(float v, float *s, float *c)
{
    *s = sinpif(v);
    *c = cospif(v);
}
// By hypot(), which neither overflows nor is NaN where a side is infinite.
inline double rhypot(double a, double b) { return 1.0 / std::hypot(a, b); }
inline double norm3d(double a, double b, double c) { return std::hypot(std::hypot(a, b), c); }
inline double norm4d(double a, double b, double c, double d) { return std::hypot(std::hypot(a, b), std::hypot(c, d)); }
inline double rnorm3d(double a, double b, double c) { return 1.0 / norm3d(a, b, c); }
inline double rnorm4d(double a, double b, double c, double d) { return 1.0 / norm4d(a, b, c, d); }
inline float rhypotf(float a, float b) { return static_cast<float>(rhypot(a, b)); }
inline float norm3df(float a, float b, float c) { return static_cast<float>(norm3d(a, b, c)); }
inline float norm4df(float a, float b, float c, float d) { return static_cast<float>(norm4d(a, b, c, d)); }
inline float rnorm3df(float a, float b, float c) { return static_cast<float>(rnorm3d(a, b, c)); }
inline float rnorm4df(float a, float b, float c, float d) { return static_cast<float>(rnorm4d(a, b, c, d)); }
inline double normcdf(double v) { return 0.5 * std::erfc(-v * 0.70710678118654752440); }
inline float __expf(float v) { return std::exp(v); }
inline float __exp10f(float v) { return std::pow(10.0f, v); }
inline float __logf(float v) { return std::log(v); }
inline float __log2f(float v) { return std::log2(v); }
inline float __log10f(float v) { return std::log10(v); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float v) { return std::sin(v); }
inline float __cosf(float v) { return std::cos(v); }
inline float __tanf(float v) { return std::tan(v); }
inline void __sincosf(float v, float *s, float *c)
{
    *s = std::sin(v);
    *c = std::cos(v);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline float __frsqrt_rn(float v) { return rsqrtf(v); }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
inline float normcdff(float v) { return 0.5f * std::erfc(-v * 0.70710678118654752f); }
inline int __float2int_rn(float v) { return static_cast<int>(std::nearbyint(v)); }
inline int __float2int_rz(float v) { return static_cast<int>(v); }
inline int __float2int_rd(float v) { return static_cast<int>(std::floor(v)); }
inline int __float2int_ru(float v) { return static_cast<int>(std::ceil(v)); }
inline unsigned int __float2uint_rn(float v) { return static_cast<unsigned int>(std::nearbyint(v)); }
inline unsigned int __float2uint_rz(float v) { return static_cast<unsigned int>(v); }
inline float __int2float_rn(int v) { return static_cast<float>(v); }
inline float __uint2float_rn(unsigned int v) { return static_cast<float>(v); }
inline float __double2float_rn(double v) { return static_cast<float>(v); }
#if !defined(__GLIBC__)
inline float exp10f(float v) { return std::pow(10.0f, v); }
inline double exp10(double v) { return std::pow(10.0, v); }
#endif

template <class A, class B>
using llmc2py_numbers =
    std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, std::common_type_t<A, B>>;
// Like the device functions: a NaN gives way to the other operand, integers of two types meet in their common type.
template <class A, class B>
inline llmc2py_numbers<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) {
        return std::fmax(static_cast<T>(a), static_cast<T>(b));
    } else {
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
    }
}
template <class A, class B>
inline llmc2py_numbers<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) {
        return std::fmin(static_cast<T>(a), static_cast<T>(b));
    } else {
        return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
    }
}
inline unsigned int umin(unsigned int a, unsigned int b) { return a < b ? a : b; }
inline unsigned int umax(unsigned int a, unsigned int b) { return a > b ? a : b; }

inline long long clock64()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<long long>(now.tv_sec) * 1000000000ll + now.tv_nsec;
}
inline void __nanosleep(unsigned int) { llmc2py_yield(); }
inline void __threadfence() { llmc2py_fence(); }
inline void __threadfence_block() { llmc2py_fence(); }
inline void __threadfence_system() { llmc2py_fence(); }
[[noreturn]] inline void __trap(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    llmc2py_fault("__trap()", llmc2py::Site{file, line});
}
