// What kernels take for granted and NVRTC lacks. Included before the first line of every kernel's source.
// Everything is a macro, a type alias or a device template, so that it costs next to nothing to compile.
#pragma once

// 64-bit types are spelt as NVIDIA's own headers spell them for NVRTC: with `long`, including both would be an error.
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using intptr_t = int64_t;
using uintptr_t = uint64_t;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

// The headers of cuda/std define these as well, with the same values in other words; hence --diag-suppress=47.
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)

#define FLT_MAX 3.40282346638528859811704183484516925e+38f
#define FLT_MIN 1.17549435082228750796873653722224568e-38f
#define FLT_EPSILON 1.19209289550781250000000000000000000e-7f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define DBL_MAX 1.79769313486231570814527423731704357e+308
#define DBL_MIN 2.22507385850720138309023271733240406e-308
#define DBL_EPSILON 2.22044604925031308084726333618164062e-16
#define DBL_DIG 15
#define DBL_MANT_DIG 53

#define CHAR_BIT 8
#define SCHAR_MIN (-SCHAR_MAX - 1)
#define SCHAR_MAX 0x7f
#define UCHAR_MAX 0xff
#define SHRT_MIN (-SHRT_MAX - 1)
#define SHRT_MAX 0x7fff
#define USHRT_MAX 0xffff
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffffU
#define LONG_MIN (-LONG_MAX - 1L)
#define LONG_MAX 0x7fffffffffffffffL
#define ULONG_MAX 0xffffffffffffffffUL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define LLONG_MAX 0x7fffffffffffffffLL
#define ULLONG_MAX 0xffffffffffffffffULL

#define INT8_MIN SCHAR_MIN
#define INT16_MIN SHRT_MIN
#define INT32_MIN INT_MIN
#define INT64_MIN LLONG_MIN
#define INT8_MAX SCHAR_MAX
#define INT16_MAX SHRT_MAX
#define INT32_MAX INT_MAX
#define INT64_MAX LLONG_MAX
#define UINT8_MAX UCHAR_MAX
#define UINT16_MAX USHRT_MAX
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX UINT64_MAX

#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000LL)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

namespace std {

using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::intptr_t;
using ::ptrdiff_t;
using ::size_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::uintptr_t;

using ::abs;
using ::ceil;
using ::cos;
using ::erf;
using ::exp;
using ::exp2;
using ::fabs;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::fmod;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::log;
using ::log2;
using ::memcpy;
using ::memset;
using ::pow;
using ::rint;
using ::round;
using ::sin;
using ::sqrt;
using ::tanh;
using ::trunc;

template <class T> __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> __device__ constexpr const T& clamp(const T& x, const T& low, const T& high) {
    return x < low ? low : high < x ? high : x;
}
template <class T> __device__ constexpr void swap(T& a, T& b) {
    T kept = a;
    a = b;
    b = kept;
}

template <class T, T Value> struct integral_constant {
    static constexpr T value = Value;
    using value_type = T;
    using type = integral_constant;
    __device__ constexpr operator T() const noexcept { return Value; }
    __device__ constexpr T operator()() const noexcept { return Value; }
};
template <bool Value> using bool_constant = integral_constant<bool, Value>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;

template <bool Condition, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool Condition, class T, class F> using conditional_t = typename conditional<Condition, T, F>::type;

template <bool Condition, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool Condition, class T = void> using enable_if_t = typename enable_if<Condition, T>::type;

template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> struct remove_cv { using type = remove_const_t<remove_volatile_t<T>>; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;

template <class T, class... Us> inline constexpr bool llmc2py_one_of = (is_same_v<remove_cv_t<T>, Us> || ...);
template <class T>
struct is_floating_point : bool_constant<llmc2py_one_of<T, float, double>> {};
template <class T>
struct is_integral
    : bool_constant<llmc2py_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned int,
                                   long, unsigned long, long long, unsigned long long>> {};
template <class T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> inline constexpr bool is_pointer_v = is_pointer<T>::value;

template <class T, bool Integer = is_integral<T>::value> struct numeric_limits;
template <class T> struct numeric_limits<T, true> {
    static constexpr bool is_signed = T(-1) < T(0);
    static constexpr int digits = int(sizeof(T) * 8) - int(is_signed);
    __device__ static constexpr T max() noexcept { return T(((1ULL << (digits - 1)) - 1) * 2 + 1); }
    __device__ static constexpr T min() noexcept { return is_signed ? T(-max() - T(1)) : T(0); }
    __device__ static constexpr T lowest() noexcept { return min(); }
};
template <> struct numeric_limits<float, false> {
    __device__ static constexpr float max() noexcept { return 3.40282346638528859811704183484516925e+38f; }
    __device__ static constexpr float min() noexcept { return 1.17549435082228750796873653722224568e-38f; }
    __device__ static constexpr float lowest() noexcept { return -max(); }
    __device__ static constexpr float epsilon() noexcept { return 1.19209289550781250000000000000000000e-7f; }
    __device__ static constexpr float infinity() noexcept { return HUGE_VALF; }
    __device__ static constexpr float quiet_NaN() noexcept { return __builtin_bit_cast(float, 0x7fc00000); }
};
template <> struct numeric_limits<double, false> {
    __device__ static constexpr double max() noexcept { return 1.79769313486231570814527423731704357e+308; }
    __device__ static constexpr double min() noexcept { return 2.22507385850720138309023271733240406e-308; }
    __device__ static constexpr double lowest() noexcept { return -max(); }
    __device__ static constexpr double epsilon() noexcept { return 2.22044604925031308084726333618164062e-16; }
    __device__ static constexpr double infinity() noexcept { return HUGE_VAL; }
    __device__ static constexpr double quiet_NaN() noexcept {
        return __builtin_bit_cast(double, 0x7ff8000000000000LL);
    }
};

}  // namespace std
