// Cooperative groups: thread blocks, tiles of up to a warp, coalesced threads, reduce.
#pragma once

namespace cooperative_groups {

class grid_group {
public:
    unsigned long long size() const { return num_blocks() * (blockDim.x * blockDim.y * blockDim.z); }
    unsigned long long num_threads() const { return size(); }
    unsigned long long num_blocks() const { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
    unsigned long long block_rank() const
    {
        return blockIdx.x + 1ull * gridDim.x * (blockIdx.y + 1ull * gridDim.y * blockIdx.z);
    }
    unsigned long long thread_rank() const
    {
        return block_rank() * (blockDim.x * blockDim.y * blockDim.z) + llmc2py::linear_thread();
    }
    bool is_valid() const { return num_blocks() == 1; }
    void sync(LLMC2PY_SITE) const
    {
        if (num_blocks() != 1) {
            llmc2py_fault("a grid-wide barrier needs all blocks resident at once, which the CPU backend does not offer",
                          {file, line});
        }
        __syncthreads(file, line);
    }
};
inline grid_group this_grid() { return {}; }

class thread_block {
public:
    void sync(LLMC2PY_SITE) const { __syncthreads(file, line); }
    unsigned int size() const { return blockDim.x * blockDim.y * blockDim.z; }
    unsigned int num_threads() const { return size(); }
    unsigned int thread_rank() const { return llmc2py::linear_thread(); }
    dim3 group_index() const { return blockIdx; }
    dim3 thread_index() const { return threadIdx; }
    dim3 group_dim() const { return blockDim; }
    dim3 dim_threads() const { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

// Lanes of one warp, in the order of their ranks.
class lane_group {
public:
    explicit lane_group(unsigned int mask) : mask_(mask) {}
    unsigned int size() const { return static_cast<unsigned int>(__popc(mask_)); }
    unsigned int num_threads() const { return size(); }
    unsigned int thread_rank() const { return static_cast<unsigned int>(__popc(mask_ & __lanemask_lt())); }
    void sync(LLMC2PY_SITE) const { __syncwarp(mask_, file, line); }
    template <class T>
    T shfl(T value, int rank, LLMC2PY_SITE) const
    {
        return llmc2py::shuffle(mask_, value, lane_of(rank), {file, line});
    }
    template <class T>
    T shfl_down(T value, unsigned int delta, LLMC2PY_SITE) const
    {
        const unsigned int rank = thread_rank() + delta;
        return llmc2py::shuffle(mask_, value, lane_of(static_cast<int>(rank < size() ? rank : thread_rank())), {file, line});
    }
    template <class T>
    T shfl_up(T value, unsigned int delta, LLMC2PY_SITE) const
    {
        const unsigned int rank = thread_rank();
        return llmc2py::shuffle(mask_, value, lane_of(static_cast<int>(rank >= delta ? rank - delta : rank)), {file, line});
    }
    int any(int predicate, LLMC2PY_SITE) const { return __any_sync(mask_, predicate, file, line); }
    int all(int predicate, LLMC2PY_SITE) const { return __all_sync(mask_, predicate, file, line); }
    unsigned int ballot(int predicate, LLMC2PY_SITE) const
    {
        const unsigned int lanes = __ballot_sync(mask_, predicate, file, line);
        unsigned int ranks = 0;
        for (unsigned int rank = 0; rank < size(); ++rank) {
            ranks |= ((lanes >> lane_of(static_cast<int>(rank))) & 1u) << rank;
        }
        return ranks;
    }
    unsigned int llmc2py_mask() const { return mask_; }

protected:
    int lane_of(int rank) const
    {
        unsigned int mask = mask_;
        for (int skipped = 0; skipped < rank; ++skipped) {
            mask &= mask - 1u;
        }
        return __builtin_ctz(mask);
    }
    unsigned int mask_;
};

class coalesced_group : public lane_group {
public:
    using lane_group::lane_group;
    unsigned int meta_group_rank() const { return 0; }
    unsigned int meta_group_size() const { return 1; }
};
inline coalesced_group coalesced_threads(LLMC2PY_SITE) { return coalesced_group(__activemask(file, line)); }

template <unsigned int Size, class Parent = void>
class thread_block_tile : public lane_group {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");

public:
    thread_block_tile()
        : lane_group((Size == 32 ? 0xffffffffu : ((1u << (Size % 32)) - 1u)) << (llmc2py::lane() & ~(Size - 1u)))
    {
    }
    template <class Other>
    thread_block_tile(const thread_block_tile<Size, Other> &) : thread_block_tile()
    {
    }
    static constexpr unsigned int size() { return Size; }
    static constexpr unsigned int num_threads() { return Size; }
    unsigned int thread_rank() const { return llmc2py::linear_thread() & (Size - 1u); }
    unsigned int meta_group_rank() const { return llmc2py::linear_thread() / Size; }
    unsigned int meta_group_size() const { return (blockDim.x * blockDim.y * blockDim.z + Size - 1u) / Size; }
    template <class T>
    T shfl(T value, int rank, LLMC2PY_SITE) const
    {
        return __shfl_sync(mask_, value, rank, static_cast<int>(Size), file, line);
    }
    template <class T>
    T shfl_xor(T value, unsigned int lane_mask, LLMC2PY_SITE) const
    {
        return __shfl_xor_sync(mask_, value, static_cast<int>(lane_mask), static_cast<int>(Size), file, line);
    }
    template <class T>
    T shfl_down(T value, unsigned int delta, LLMC2PY_SITE) const
    {
        return __shfl_down_sync(mask_, value, delta, static_cast<int>(Size), file, line);
    }
    template <class T>
    T shfl_up(T value, unsigned int delta, LLMC2PY_SITE) const
    {
        return __shfl_up_sync(mask_, value, delta, static_cast<int>(Size), file, line);
    }
};

template <unsigned int Size>
inline thread_block_tile<Size, thread_block> tiled_partition(const thread_block &)
{
    return {};
}

// A tile of a tile counts its rank within the outer tile.
template <unsigned int Size, unsigned int Outer, class Parent>
class thread_block_tile<Size, thread_block_tile<Outer, Parent>> : public thread_block_tile<Size, void> {
public:
    unsigned int meta_group_rank() const { return (llmc2py::linear_thread() & (Outer - 1u)) / Size; }
    static constexpr unsigned int meta_group_size() { return Outer / Size; }
};

template <unsigned int Size, unsigned int Outer, class Parent>
inline thread_block_tile<Size, thread_block_tile<Outer, Parent>> tiled_partition(const thread_block_tile<Outer, Parent> &)
{
    static_assert(Size <= Outer, "a tile fits into its parent");
    return {};
}

// A block, the grid, or lanes of a warp: what all groups convert to.
class thread_group {
public:
    thread_group(const thread_block &) : kind_(Kind::block), lanes_(0u) {}
    thread_group(const grid_group &) : kind_(Kind::grid), lanes_(0u) {}
    thread_group(const lane_group &group) : kind_(Kind::lanes), lanes_(group) {}
    unsigned long long size() const
    {
        return kind_ == Kind::grid ? this_grid().size()
                                   : kind_ == Kind::block ? this_thread_block().size() : lanes_.size();
    }
    unsigned long long num_threads() const { return size(); }
    unsigned long long thread_rank() const
    {
        return kind_ == Kind::grid ? this_grid().thread_rank()
                                   : kind_ == Kind::block ? this_thread_block().thread_rank() : lanes_.thread_rank();
    }
    void sync(LLMC2PY_SITE) const
    {
        if (kind_ == Kind::grid) {
            this_grid().sync(file, line);
        } else if (kind_ == Kind::block) {
            __syncthreads(file, line);
        } else {
            lanes_.sync(file, line);
        }
    }
    // The lanes of this thread's warp that are in the group.
    unsigned int llmc2py_mask() const { return kind_ == Kind::lanes ? lanes_.llmc2py_mask() : 0xffffffffu; }

private:
    enum class Kind { block, grid, lanes };
    Kind kind_;
    lane_group lanes_;
};

// The lanes of a mask in groups of a size that is known at run time alone: the group that this thread is in.
inline coalesced_group llmc2py_tile(unsigned int mask, unsigned int size, llmc2py::Site site)
{
    if (size < 1u || size > 32u || (size & (size - 1u)) != 0u) {
        llmc2py_fault("tiled_partition: a tile has 1, 2, 4, 8, 16 or 32 threads", site);
    }
    const unsigned int first = static_cast<unsigned int>(__popc(mask & __lanemask_lt())) / size * size;
    unsigned int rank = 0;
    unsigned int tile = 0;
    for (int lane = 0; lane < 32; ++lane) {
        if ((mask >> lane) & 1u) {
            tile |= (rank >= first && rank < first + size ? 1u : 0u) << lane;
            ++rank;
        }
    }
    return coalesced_group(tile);
}
inline thread_group tiled_partition(const thread_group &group, unsigned int size, LLMC2PY_SITE)
{
    return llmc2py_tile(group.llmc2py_mask(), size, {file, line});
}
inline coalesced_group tiled_partition(const coalesced_group &group, unsigned int size, LLMC2PY_SITE)
{
    return llmc2py_tile(group.llmc2py_mask(), size, {file, line});
}

// The lanes of a group that give the same label as this thread.
template <class Label>
inline coalesced_group labeled_partition(const lane_group &group, Label label, LLMC2PY_SITE)
{
    return coalesced_group(__match_any_sync(group.llmc2py_mask(), label, file, line));
}
inline coalesced_group binary_partition(const lane_group &group, bool predicate, LLMC2PY_SITE)
{
    const unsigned int lanes = __ballot_sync(group.llmc2py_mask(), predicate, file, line);
    return coalesced_group(predicate ? lanes : group.llmc2py_mask() & ~lanes);
}

template <class T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};

template <unsigned int Size, class Parent, class T, class Op>
inline T reduce(const thread_block_tile<Size, Parent> &tile, T value, Op &&op, LLMC2PY_SITE)
{
    for (unsigned int offset = Size / 2; offset > 0; offset /= 2) {
        value = op(value, tile.shfl_xor(value, offset, file, line));
    }
    return value;
}
template <class T, class Op>
inline T reduce(const coalesced_group &group, T value, Op &&op, LLMC2PY_SITE)
{
    return llmc2py::fold_lanes(group.llmc2py_mask(), value, op, {file, line});
}

template <class Group>
inline void sync(const Group &group, LLMC2PY_SITE)
{
    group.sync(file, line);
}

}  // namespace cooperative_groups
