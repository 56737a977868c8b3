// half and bfloat16: 16 bits of storage, arithmetic in float, one rounding to nearest even.
#pragma once

namespace llmc2py {

template <class To, class From>
inline To bit_cast(const From &from)
{
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

inline unsigned short bfloat16_bits(float value)
{
    std::uint32_t bits = bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float bfloat16_value(unsigned short bits) { return bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline unsigned short half_bits(float value)
{
    std::uint32_t bits = bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) {
        return 0x7fff;
    }
    if (bits >= 0x477ff000u) {  // 65520 and above round to infinity
        return static_cast<unsigned short>(sign | 0x7c00u);
    }
    if (bits < 0x38800000u) {  // subnormal halves are multiples of 2^-24, which is what 0.5f resolves
        const float shifted = bit_cast<float>(bits) + 0.5f;
        return static_cast<unsigned short>(sign | (bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return static_cast<unsigned short>(sign | ((bits - 0x38000000u) >> 13));
}

inline float half_value(unsigned short bits)
{
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
    }
    // The multiplication moves the exponent's bias and makes subnormal halves normal floats.
    const float scaled = bit_cast<float>(magnitude << 13) * 0x1p112f;
    return bit_cast<float>(bit_cast<std::uint32_t>(scaled) | sign);
}

// Rounds to odd, so that a second rounding to 16 bits gives what one rounding would have given.
inline float odd_float(double value)
{
    const float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || std::isnan(value) || std::isinf(nearest)) {
        return nearest;
    }
    std::uint32_t bits = bit_cast<std::uint32_t>(nearest);
    if ((bits & 1u) == 0u) {
        bits += std::fabs(static_cast<double>(nearest)) < std::fabs(value) ? 1u : -1u;
    }
    return bit_cast<float>(bits);
}

template <class T>
struct is_float16 : std::false_type {};

template <class T>
using if_number = std::enable_if_t<std::is_arithmetic<T>::value && !std::is_same<T, float>::value, int>;

}  // namespace llmc2py

#define LLMC2PY_FLOAT16(NAME, PREFIX)                                                                        \
    struct NAME##_raw {                                                                                      \
        unsigned short x;                                                                                    \
    };                                                                                                       \
    struct __attribute__((aligned(2))) NAME {                                                                \
        unsigned short __x;                                                                                  \
        NAME() = default;                                                                                    \
        NAME(NAME##_raw raw) : __x(raw.x) {}                                                                 \
        NAME(float value) : __x(llmc2py::PREFIX##_bits(value)) {}                                            \
        template <class T, llmc2py::if_number<T> = 0>                                                        \
        NAME(T value) : __x(llmc2py::PREFIX##_bits(llmc2py::odd_float(static_cast<double>(value)))) {}       \
        operator float() const { return llmc2py::PREFIX##_value(__x); }                                      \
        operator NAME##_raw() const { return NAME##_raw{__x}; }                                              \
        NAME &operator+=(NAME other) { return *this = NAME(float(*this) + float(other)); }                   \
        NAME &operator-=(NAME other) { return *this = NAME(float(*this) - float(other)); }                   \
        NAME &operator*=(NAME other) { return *this = NAME(float(*this) * float(other)); }                   \
        NAME &operator/=(NAME other) { return *this = NAME(float(*this) / float(other)); }                   \
        NAME &operator++() { return *this = NAME(float(*this) + 1.0f); }                                     \
        NAME &operator--() { return *this = NAME(float(*this) - 1.0f); }                                     \
        NAME operator+() const { return *this; }                                                             \
        NAME operator-() const { return NAME(NAME##_raw{static_cast<unsigned short>(__x ^ 0x8000u)}); }      \
    };                                                                                                       \
    template <>                                                                                              \
    struct llmc2py::is_float16<NAME> : std::true_type {};                                                    \
    struct __attribute__((aligned(4))) NAME##2 {                                                             \
        NAME x, y;                                                                                           \
        NAME##2() = default;                                                                                 \
        NAME##2(NAME a, NAME b) : x(a), y(b) {}                                                              \
    };                                                                                                       \
    inline NAME##2 operator+(NAME##2 a, NAME##2 b) { return NAME##2(a.x + b.x, a.y + b.y); }                 \
    inline NAME##2 operator-(NAME##2 a, NAME##2 b) { return NAME##2(a.x - b.x, a.y - b.y); }                 \
    inline NAME##2 operator*(NAME##2 a, NAME##2 b) { return NAME##2(a.x * b.x, a.y * b.y); }                 \
    inline NAME##2 operator/(NAME##2 a, NAME##2 b) { return NAME##2(a.x / b.x, a.y / b.y); }                 \
    inline NAME##2 operator-(NAME##2 a) { return NAME##2(-a.x, -a.y); }                                      \
    inline NAME##2 &operator+=(NAME##2 &a, NAME##2 b) { return a = a + b; }                                  \
    inline NAME##2 &operator-=(NAME##2 &a, NAME##2 b) { return a = a - b; }                                  \
    inline NAME##2 &operator*=(NAME##2 &a, NAME##2 b) { return a = a * b; }

// Templates on purpose: they take two operands of the same 16-bit type and leave mixed expressions to float.
#define LLMC2PY_FLOAT16_OPERATOR(OP)                                                         \
    template <class T, std::enable_if_t<llmc2py::is_float16<T>::value, int> = 0>            \
    inline T operator OP(const T &a, const T &b)                                             \
    {                                                                                        \
        return T(static_cast<float>(a) OP static_cast<float>(b));                            \
    }
#define LLMC2PY_FLOAT16_COMPARISON(OP)                                                       \
    template <class T, std::enable_if_t<llmc2py::is_float16<T>::value, int> = 0>            \
    inline bool operator OP(const T &a, const T &b)                                          \
    {                                                                                        \
        return static_cast<float>(a) OP static_cast<float>(b);                               \
    }
LLMC2PY_FLOAT16_OPERATOR(+)
LLMC2PY_FLOAT16_OPERATOR(-)
LLMC2PY_FLOAT16_OPERATOR(*)
LLMC2PY_FLOAT16_OPERATOR(/)
LLMC2PY_FLOAT16_COMPARISON(==)
LLMC2PY_FLOAT16_COMPARISON(!=)
LLMC2PY_FLOAT16_COMPARISON(<)
LLMC2PY_FLOAT16_COMPARISON(>)
LLMC2PY_FLOAT16_COMPARISON(<=)
LLMC2PY_FLOAT16_COMPARISON(>=)

LLMC2PY_FLOAT16(__nv_bfloat16, bfloat16)
LLMC2PY_FLOAT16(__half, half)

#undef LLMC2PY_FLOAT16
#undef LLMC2PY_FLOAT16_OPERATOR
#undef LLMC2PY_FLOAT16_COMPARISON

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
typedef __half half;
typedef __half2 half2;

#define LLMC2PY_CONVERSIONS(T, T2, NAME, NAME2)                                                              \
    inline T __float2##NAME(float v) { return T(v); }                                                        \
    inline T __float2##NAME##_rn(float v) { return T(v); }                                                   \
    inline T __double2##NAME(double v) { return T(v); }                                                      \
    inline T __int2##NAME##_rn(int v) { return T(v); }                                                       \
    inline T __uint2##NAME##_rn(unsigned int v) { return T(v); }                                             \
    inline float __##NAME##2float(T v) { return float(v); }                                                  \
    inline int __##NAME##2int_rn(T v) { return static_cast<int>(std::nearbyint(float(v))); }                 \
    inline int __##NAME##2int_rz(T v) { return static_cast<int>(float(v)); }                                 \
    inline T2 __float2##NAME2##_rn(float v) { return T2(T(v), T(v)); }                                       \
    inline T2 __floats2##NAME2##_rn(float a, float b) { return T2(T(a), T(b)); }                             \
    inline T2 __float22##NAME2##_rn(float2 v) { return T2(T(v.x), T(v.y)); }                                 \
    inline float2 __##NAME2##2float2(T2 v) { return float2{float(v.x), float(v.y)}; }                        \
    inline T2 __##NAME##2##NAME2(T v) { return T2(v, v); }                                                   \
    inline T __ushort_as_##NAME(unsigned short v) { return T(T##_raw{v}); }                                  \
    inline T __short_as_##NAME(short v) { return T(T##_raw{static_cast<unsigned short>(v)}); }               \
    inline unsigned short __##NAME##_as_ushort(T v) { return v.__x; }                                        \
    inline short __##NAME##_as_short(T v) { return static_cast<short>(v.__x); }                              \
    inline T2 __halves2##NAME2(T a, T b) { return T2(a, b); }                                                \
    inline float __low2float(T2 v) { return float(v.x); }                                                    \
    inline float __high2float(T2 v) { return float(v.y); }                                                   \
    inline T __low2##NAME(T2 v) { return v.x; }                                                              \
    inline T __high2##NAME(T2 v) { return v.y; }                                                             \
    inline T2 __low2##NAME2(T2 v) { return T2(v.x, v.x); }                                                   \
    inline T2 __high2##NAME2(T2 v) { return T2(v.y, v.y); }                                                  \
    inline T2 __lowhigh2highlow(T2 v) { return T2(v.y, v.x); }                                               \
    inline T __hfma(T a, T b, T c) { return T(std::fma(double(a), double(b), double(c))); }                  \
    inline T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }         \
    inline T2 make_##NAME2(T a, T b) { return T2(a, b); }
LLMC2PY_CONVERSIONS(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
LLMC2PY_CONVERSIONS(__half, __half2, half, half2)
#undef LLMC2PY_CONVERSIONS

template <class T>
using llmc2py_float16 = std::enable_if_t<llmc2py::is_float16<T>::value, T>;
template <class T>
inline llmc2py_float16<T> __hadd(T a, T b) { return a + b; }
template <class T>
inline llmc2py_float16<T> __hsub(T a, T b) { return a - b; }
template <class T>
inline llmc2py_float16<T> __hmul(T a, T b) { return a * b; }
template <class T>
inline llmc2py_float16<T> __hdiv(T a, T b) { return a / b; }
template <class T>
inline llmc2py_float16<T> __hneg(T a) { return -a; }
template <class T>
inline llmc2py_float16<T> __habs(T a) { return T(std::fabs(float(a))); }
template <class T>
inline llmc2py_float16<T> __hmax(T a, T b) { return T(std::fmax(float(a), float(b))); }
template <class T>
inline llmc2py_float16<T> __hmin(T a, T b) { return T(std::fmin(float(a), float(b))); }
template <class T, class = llmc2py_float16<T>>
inline bool __hgt(T a, T b) { return a > b; }
template <class T, class = llmc2py_float16<T>>
inline bool __hge(T a, T b) { return a >= b; }
template <class T, class = llmc2py_float16<T>>
inline bool __hlt(T a, T b) { return a < b; }
template <class T, class = llmc2py_float16<T>>
inline bool __hle(T a, T b) { return a <= b; }
template <class T, class = llmc2py_float16<T>>
inline bool __heq(T a, T b) { return a == b; }
template <class T, class = llmc2py_float16<T>>
inline bool __hne(T a, T b) { return a != b; }
template <class T, class = llmc2py_float16<T>>
inline bool __hisnan(T a) { return std::isnan(float(a)); }
template <class T>
inline T __hadd2(T a, T b) { return a + b; }
template <class T>
inline T __hsub2(T a, T b) { return a - b; }
template <class T>
inline T __hmul2(T a, T b) { return a * b; }
template <class T>
inline T __h2div(T a, T b) { return a / b; }
template <class T>
inline T __hneg2(T a) { return -a; }
template <class T>
inline T __hmax2(T a, T b) { return T(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
template <class T>
inline T __hmin2(T a, T b) { return T(__hmin(a.x, b.x), __hmin(a.y, b.y)); }

#define LLMC2PY_HALF_MATH(NAME)                                               \
    template <class T>                                                        \
    inline llmc2py_float16<T> h##NAME(T v) { return T(std::NAME(float(v))); }
LLMC2PY_HALF_MATH(exp)
LLMC2PY_HALF_MATH(exp2)
LLMC2PY_HALF_MATH(log)
LLMC2PY_HALF_MATH(log2)
LLMC2PY_HALF_MATH(log10)
LLMC2PY_HALF_MATH(sqrt)
LLMC2PY_HALF_MATH(sin)
LLMC2PY_HALF_MATH(cos)
LLMC2PY_HALF_MATH(floor)
LLMC2PY_HALF_MATH(ceil)
LLMC2PY_HALF_MATH(trunc)
#undef LLMC2PY_HALF_MATH
template <class T>
inline llmc2py_float16<T> hrsqrt(T v) { return T(1.0f / std::sqrt(float(v))); }
template <class T>
inline llmc2py_float16<T> hrcp(T v) { return T(1.0f / float(v)); }
template <class T>
inline llmc2py_float16<T> htanh(T v) { return T(std::tanh(float(v))); }
template <class T>
inline llmc2py_float16<T> hexp10(T v) { return T(std::pow(10.0f, float(v))); }
template <class T>
inline llmc2py_float16<T> hrint(T v) { return T(std::nearbyint(float(v))); }

template <class T>
using llmc2py_float16_pair = std::enable_if_t<
    std::is_same<T, __half2>::value || std::is_same<T, __nv_bfloat162>::value, T>;
#define LLMC2PY_PAIR(NAME, ONE)                                             \
    template <class T>                                                      \
    inline llmc2py_float16_pair<T> NAME(T v) { return T(ONE(v.x), ONE(v.y)); }
LLMC2PY_PAIR(__habs2, __habs)
LLMC2PY_PAIR(h2exp, hexp)
LLMC2PY_PAIR(h2exp2, hexp2)
LLMC2PY_PAIR(h2exp10, hexp10)
LLMC2PY_PAIR(h2log, hlog)
LLMC2PY_PAIR(h2log2, hlog2)
LLMC2PY_PAIR(h2log10, hlog10)
LLMC2PY_PAIR(h2sqrt, hsqrt)
LLMC2PY_PAIR(h2rsqrt, hrsqrt)
LLMC2PY_PAIR(h2rcp, hrcp)
LLMC2PY_PAIR(h2sin, hsin)
LLMC2PY_PAIR(h2cos, hcos)
LLMC2PY_PAIR(h2tanh, htanh)
LLMC2PY_PAIR(h2floor, hfloor)
LLMC2PY_PAIR(h2ceil, hceil)
LLMC2PY_PAIR(h2trunc, htrunc)
LLMC2PY_PAIR(h2rint, hrint)
#undef LLMC2PY_PAIR
// Each element is 1 or 0; with a b before the comparison, whether it holds for both.
#define LLMC2PY_PAIR(NAME)                                                                              \
    template <class T>                                                                                  \
    inline llmc2py_float16_pair<T> __h##NAME##2(T a, T b)                                               \
    {                                                                                                   \
        return T(__h##NAME(a.x, b.x) ? 1.0f : 0.0f, __h##NAME(a.y, b.y) ? 1.0f : 0.0f);                 \
    }                                                                                                   \
    template <class T, class = llmc2py_float16_pair<T>>                                                 \
    inline bool __hb##NAME##2(T a, T b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }
LLMC2PY_PAIR(eq)
LLMC2PY_PAIR(ne)
LLMC2PY_PAIR(le)
LLMC2PY_PAIR(ge)
LLMC2PY_PAIR(lt)
LLMC2PY_PAIR(gt)
#undef LLMC2PY_PAIR
