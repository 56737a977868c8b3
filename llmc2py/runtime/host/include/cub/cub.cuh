// The parts of CUB that are most called: reductions of a warp and of a block, scans of a block. All else of cub:: does
// not compile.
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

// The result is that of the first lane of each logical warp alone.
template <typename T, int Lanes = 32>
class WarpReduce {
    static_assert(Lanes >= 1 && Lanes <= 32 && (Lanes & (Lanes - 1)) == 0,
                  "the CPU backend has cub::WarpReduce for 1, 2, 4, 8, 16 and 32 threads");

public:
    struct TempStorage {};

    explicit WarpReduce(TempStorage &) {}

    T Sum(T value) { return Reduce(value, cub::Sum(), Lanes); }
    T Sum(T value, int valid) { return Reduce(value, cub::Sum(), valid); }
    template <typename Operation> T Reduce(T value, Operation operation) { return Reduce(value, operation, Lanes); }

    template <typename Operation> T Reduce(T value, Operation operation, int valid)
    {
        const int lane = static_cast<int>(llmc2py::lane()) & (Lanes - 1);
        const unsigned int mask = (Lanes == 32 ? 0xffffffffu : (1u << (Lanes % 32)) - 1u)
                                  << (llmc2py::lane() - static_cast<unsigned int>(lane));
        for (int step = 1; step < Lanes; step *= 2) {
            const T other = __shfl_down_sync(mask, value, static_cast<unsigned int>(step), Lanes);
            if (lane + step < (valid < Lanes ? valid : Lanes)) {
                value = operation(value, other);
            }
        }
        return value;
    }
};

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

// Thread 0 goes through all values in their order; the storage may be used again after a barrier.
template <typename T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
public:
    struct TempStorage {
        T values[X * Y * Z];
    };

    explicit BlockScan(TempStorage &storage) : storage_(storage) {}

    void ExclusiveSum(T value, T &result) { ExclusiveScan(value, result, T(), cub::Sum()); }
    void ExclusiveSum(T value, T &result, T &all) { ExclusiveScan(value, result, T(), cub::Sum(), all); }
    void InclusiveSum(T value, T &result) { InclusiveScan(value, result, cub::Sum()); }
    void InclusiveSum(T value, T &result, T &all) { InclusiveScan(value, result, cub::Sum(), all); }
    template <int Items> void ExclusiveSum(T (&values)[Items], T (&results)[Items])
    {
        ExclusiveScan(values, results, T(), cub::Sum());
    }
    template <int Items> void ExclusiveSum(T (&values)[Items], T (&results)[Items], T &all)
    {
        ExclusiveScan(values, results, T(), cub::Sum(), all);
    }
    template <int Items> void InclusiveSum(T (&values)[Items], T (&results)[Items])
    {
        InclusiveScan(values, results, cub::Sum());
    }
    template <int Items> void InclusiveSum(T (&values)[Items], T (&results)[Items], T &all)
    {
        InclusiveScan(values, results, cub::Sum(), all);
    }

    template <typename Operation> void ExclusiveScan(T value, T &result, T initial, Operation operation)
    {
        T all;
        ExclusiveScan(value, result, initial, operation, all);
    }
    // As in CUB the aggregate is without the initial value.
    template <typename Operation> void ExclusiveScan(T value, T &result, T initial, Operation operation, T &all)
    {
        const T before = scanned(value, operation, all);
        result = thread() == 0 ? initial : operation(initial, before);
    }
    template <typename Operation> void InclusiveScan(T value, T &result, Operation operation)
    {
        T all;
        InclusiveScan(value, result, operation, all);
    }
    template <typename Operation> void InclusiveScan(T value, T &result, Operation operation, T &all)
    {
        const T before = scanned(value, operation, all);
        result = thread() == 0 ? value : operation(before, value);
    }

    template <int Items, typename Operation>
    void ExclusiveScan(T (&values)[Items], T (&results)[Items], T initial, Operation operation)
    {
        T all;
        ExclusiveScan(values, results, initial, operation, all);
    }
    template <int Items, typename Operation>
    void ExclusiveScan(T (&values)[Items], T (&results)[Items], T initial, Operation operation, T &all)
    {
        T present;
        ExclusiveScan(reduced(values, operation), present, initial, operation, all);
        for (int item = 0; item < Items; ++item) {
            const T value = values[item];
            results[item] = present;
            present = operation(present, value);
        }
    }
    template <int Items, typename Operation>
    void InclusiveScan(T (&values)[Items], T (&results)[Items], Operation operation)
    {
        T all;
        InclusiveScan(values, results, operation, all);
    }
    template <int Items, typename Operation>
    void InclusiveScan(T (&values)[Items], T (&results)[Items], Operation operation, T &all)
    {
        const T before = scanned(reduced(values, operation), operation, all);
        T present = thread() == 0 ? values[0] : operation(before, values[0]);
        results[0] = present;
        for (int item = 1; item < Items; ++item) {
            present = operation(present, values[item]);
            results[item] = present;
        }
    }

private:
    static constexpr int count = X * Y * Z;

    static int thread() { return static_cast<int>(threadIdx.x + X * (threadIdx.y + Y * threadIdx.z)); }

    template <int Items, typename Operation> static T reduced(const T (&values)[Items], Operation operation)
    {
        T result = values[0];
        for (int item = 1; item < Items; ++item) {
            result = operation(result, values[item]);
        }
        return result;
    }

    // Returns what the threads before this one give together; for thread 0, its own value.
    template <typename Operation> T scanned(T value, Operation operation, T &all)
    {
        storage_.values[thread()] = value;
        __syncthreads();
        if (thread() == 0) {
            for (int number = 1; number < count; ++number) {
                storage_.values[number] = operation(storage_.values[number - 1], storage_.values[number]);
            }
        }
        __syncthreads();
        all = storage_.values[count - 1];
        return storage_.values[thread() == 0 ? 0 : thread() - 1];
    }

    TempStorage &storage_;
};

}  // namespace cub
