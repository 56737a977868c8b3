// The parts of CUB that kernels here call: reductions of a block. What else a kernel takes of cub:: does not compile.
#pragma once
#include "cuda_host.h"

namespace cub {

struct Sum {
    template <typename T> T operator()(const T &a, const T &b) const { return a + b; }
};
struct Max {
    template <typename T> T operator()(const T &a, const T &b) const { return a < b ? b : a; }
};
struct Min {
    template <typename T> T operator()(const T &a, const T &b) const { return b < a ? b : a; }
};

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
    BLOCK_REDUCE_RAKING,
    BLOCK_REDUCE_WARP_REDUCTIONS
};

// As in CUB the result is that of thread 0 alone, and the storage may be used again after a barrier.
template <typename T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
public:
    struct TempStorage {
        T values[X * Y * Z];
    };

    explicit BlockReduce(TempStorage &storage) : storage_(storage) {}

    T Sum(T value) { return Reduce(value, cub::Sum(), count); }
    T Sum(T value, int valid) { return Reduce(value, cub::Sum(), valid); }
    template <typename Operation> T Reduce(T value, Operation operation) { return Reduce(value, operation, count); }

    template <typename Operation> T Reduce(T value, Operation operation, int valid)
    {
        const int thread = threadIdx.x + X * (threadIdx.y + Y * threadIdx.z);
        storage_.values[thread] = value;
        __syncthreads();
        if (thread != 0 || valid <= 0) {
            return value;
        }
        valid = valid < count ? valid : count;
        T result = reduced_warp(0, operation, valid);
        for (int first = 32; first < valid; first += 32) {
            result = operation(result, reduced_warp(first, operation, valid));
        }
        return result;
    }

private:
    static constexpr int count = X * Y * Z;

    // In the order of shuffles by 1, 2, 4, 8 and 16 lanes, so that floats are summed as on a GPU.
    template <typename Operation> T reduced_warp(int first, Operation operation, int valid)
    {
        const int lanes = valid - first < 32 ? valid - first : 32;
        T *lane = storage_.values + first;
        for (int step = 1; step < lanes; step *= 2) {
            for (int number = 0; number + step < lanes; ++number) {
                lane[number] = operation(lane[number], lane[number + step]);
            }
        }
        return lane[0];
    }

    TempStorage &storage_;
};

}  // namespace cub
