// Barriers of the block, and what the lanes of a warp do together.
#pragma once

#define LLMC2PY_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LLMC2PY_SITE)
{
    unsigned int present;
    llmc2py_barrier(0, &present, {file, line});
}
inline int __syncthreads_count(int predicate, LLMC2PY_SITE)
{
    unsigned int present;
    return static_cast<int>(llmc2py_barrier(predicate, &present, {file, line}));
}
inline int __syncthreads_or(int predicate, LLMC2PY_SITE)
{
    unsigned int present;
    return llmc2py_barrier(predicate, &present, {file, line}) != 0;
}
inline int __syncthreads_and(int predicate, LLMC2PY_SITE)
{
    unsigned int present;
    return llmc2py_barrier(predicate, &present, {file, line}) == present;
}

namespace llmc2py {

inline unsigned int linear_thread()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline unsigned int lane() { return linear_thread() & 31u; }

template <class T>
inline T shuffle(unsigned int mask, T value, int source, Site site)
{
    static_assert(sizeof(T) <= sizeof(Payload), "only values of up to 16 bytes can be shuffled");
    Payload payload{};
    // Through a register where it fits: whole words are stored, so that loading them again does not stall.
    if constexpr (sizeof(T) <= sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, &value, sizeof(T));
        payload.word[0] = word;
    } else {
        std::memcpy(&payload, &value, sizeof(T));
    }
    llmc2py_collective(Collective::shuffle, mask, source, &payload, site);
    std::memcpy(&value, &payload, sizeof(T));
    return value;
}

inline unsigned int ballot(unsigned int mask, bool predicate, Site site)
{
    Payload payload{{predicate, 0}};
    return llmc2py_collective(Collective::ballot, mask, 0, &payload, site);
}

}  // namespace llmc2py

inline void __syncwarp(unsigned int mask = 0xffffffffu, LLMC2PY_SITE)
{
    llmc2py::Payload payload{};
    llmc2py_collective(llmc2py::Collective::sync, mask, 0, &payload, {file, line});
}
template <class T>
inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32, LLMC2PY_SITE)
{
    const int first = static_cast<int>(llmc2py::lane()) & -width;
    return llmc2py::shuffle(mask, value, first + (source & (width - 1)), {file, line});
}
template <class T>
inline T __shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32, LLMC2PY_SITE)
{
    const int self = static_cast<int>(llmc2py::lane());
    const int source = self ^ lane_mask;
    // Lanes of a later sub-warp cannot be read, those of an earlier one can: CUDA's rule.
    return llmc2py::shuffle(mask, value, source > (self | (width - 1)) ? self : source, {file, line});
}
template <class T>
inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32, LLMC2PY_SITE)
{
    const int self = static_cast<int>(llmc2py::lane());
    const int source = self + static_cast<int>(delta);
    return llmc2py::shuffle(mask, value, source > (self | (width - 1)) ? self : source, {file, line});
}
template <class T>
inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32, LLMC2PY_SITE)
{
    const int self = static_cast<int>(llmc2py::lane());
    const int source = self - static_cast<int>(delta);
    return llmc2py::shuffle(mask, value, source < (self & -width) ? self : source, {file, line});
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate, LLMC2PY_SITE)
{
    return llmc2py::ballot(mask, predicate != 0, {file, line});
}
inline int __any_sync(unsigned int mask, int predicate, LLMC2PY_SITE)
{
    return llmc2py::ballot(mask, predicate != 0, {file, line}) != 0;
}
inline int __all_sync(unsigned int mask, int predicate, LLMC2PY_SITE)
{
    return llmc2py::ballot(mask, predicate == 0, {file, line}) == 0;
}
inline unsigned int __activemask(LLMC2PY_SITE)
{
    llmc2py::Payload payload{};
    return llmc2py_collective(llmc2py::Collective::active, 0xffffffffu, 0, &payload, {file, line});
}
template <class T>
inline unsigned int __match_any_sync(unsigned int mask, T value, LLMC2PY_SITE)
{
    llmc2py::Payload payload{};
    std::memcpy(&payload, &value, sizeof(T));
    return llmc2py_collective(llmc2py::Collective::match, mask, 0, &payload, {file, line});
}
inline unsigned int __lanemask_lt() { return (1u << llmc2py::lane()) - 1u; }

namespace llmc2py {

// Every lane of ``mask`` gets the fold of all their values, in the order of the lanes.
template <class T, class Op>
inline T fold_lanes(unsigned int mask, T value, Op op, Site site)
{
    const unsigned int present = ballot(mask, true, site);
    T result{};
    bool first = true;
    for (int source = 0; source < 32; ++source) {
        if ((present >> source) & 1u) {
            const T other = shuffle(mask, value, source, site);
            result = first ? other : op(result, other);
            first = false;
        }
    }
    return result;
}

}  // namespace llmc2py

#define LLMC2PY_REDUCE(NAME, EXPRESSION)                                                                        \
    template <class T>                                                                                          \
    inline T __reduce_##NAME##_sync(unsigned int mask, T value, LLMC2PY_SITE)                                   \
    {                                                                                                           \
        return llmc2py::fold_lanes(mask, value, [](T a, T b) { return static_cast<T>(EXPRESSION); }, {file, line}); \
    }
LLMC2PY_REDUCE(add, a + b)
LLMC2PY_REDUCE(min, a < b ? a : b)
LLMC2PY_REDUCE(max, a < b ? b : a)
LLMC2PY_REDUCE(and, a &b)
LLMC2PY_REDUCE(or, a | b)
LLMC2PY_REDUCE(xor, a ^ b)
#undef LLMC2PY_REDUCE
