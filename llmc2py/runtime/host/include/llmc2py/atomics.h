// Atomic functions: one compare-and-swap loop serves every operation and type of 2, 4 or 8 bytes.
#pragma once

namespace llmc2py {

template <unsigned int Size>
struct Word;
template <>
struct Word<2> {
    using type = std::uint16_t;
};
template <>
struct Word<4> {
    using type = std::uint32_t;
};
template <>
struct Word<8> {
    using type = std::uint64_t;
};

// A loop of atomics may wait for another thread: now and then let the others run.
inline void atomic_pause()
{
    if ((++llmc2py_atomics & 0xfffu) == 0u) {
        llmc2py_yield();
    }
}

// The checking mode is told of atomics by a call of ours; the sanitizer's own calls for them would have no receiver.
#if defined(__clang__)
#define LLMC2PY_UNCHECKED __attribute__((disable_sanitizer_instrumentation))
#else
#define LLMC2PY_UNCHECKED __attribute__((no_sanitize("thread")))
#endif

template <class T, class Update>
LLMC2PY_UNCHECKED inline T atomic_update(T *address, Update update)
{
    using W = typename Word<sizeof(T)>::type;
#ifdef LLMC2PY_CHECK
    llmc2py_check_atomic(address, sizeof(T));
#endif
    atomic_pause();
    W *word = reinterpret_cast<W *>(address);
    W seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    for (;;) {
        const T old = bit_cast<T>(seen);
        const W wanted = bit_cast<W>(static_cast<T>(update(old)));
        if (__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            return old;
        }
    }
}

// The value's type does not take part in deduction: atomicAdd(&float_variable, 1) adds 1.0f.
template <class T>
struct identity {
    using type = T;
};
template <class T>
using same = typename identity<T>::type;

}  // namespace llmc2py

#define LLMC2PY_ATOMIC(NAME, EXPRESSION)                                                             \
    template <class T>                                                                               \
    inline T NAME(T *address, llmc2py::same<T> value)                                                \
    {                                                                                                \
        return llmc2py::atomic_update(address, [value](T old) { return static_cast<T>(EXPRESSION); }); \
    }                                                                                                \
    template <class T>                                                                               \
    inline T NAME##_block(T *address, llmc2py::same<T> value) { return NAME(address, value); }       \
    template <class T>                                                                               \
    inline T NAME##_system(T *address, llmc2py::same<T> value) { return NAME(address, value); }
LLMC2PY_ATOMIC(atomicAdd, old + value)
LLMC2PY_ATOMIC(atomicSub, old - value)
LLMC2PY_ATOMIC(atomicMax, old < value ? value : old)
LLMC2PY_ATOMIC(atomicMin, value < old ? value : old)
LLMC2PY_ATOMIC(atomicExch, (static_cast<void>(old), value))
LLMC2PY_ATOMIC(atomicAnd, old &value)
LLMC2PY_ATOMIC(atomicOr, old | value)
LLMC2PY_ATOMIC(atomicXor, old ^ value)
LLMC2PY_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
LLMC2PY_ATOMIC(atomicDec, (old == 0 || old > value) ? value : old - 1)
#undef LLMC2PY_ATOMIC

#define LLMC2PY_ATOMIC_CAS(NAME)                                                                            \
    template <class T>                                                                                      \
    inline T NAME(T *address, llmc2py::same<T> compare, llmc2py::same<T> value)                             \
    {                                                                                                       \
        return llmc2py::atomic_update(address, [compare, value](T old) { return old == compare ? value : old; }); \
    }
LLMC2PY_ATOMIC_CAS(atomicCAS)
LLMC2PY_ATOMIC_CAS(atomicCAS_block)
LLMC2PY_ATOMIC_CAS(atomicCAS_system)
#undef LLMC2PY_ATOMIC_CAS

// Vectors of float are atomic by element, as on the device.
inline float2 atomicAdd(float2 *address, float2 value)
{
    return float2{atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}
inline float4 atomicAdd(float4 *address, float4 value)
{
    return float4{atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y), atomicAdd(&address->z, value.z),
                  atomicAdd(&address->w, value.w)};
}
