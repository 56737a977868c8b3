"""Kernels of every shape give on the CPU what NumPy gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

AXPY = """
__global__ void __cluster_dims__(1, 1, 1) __maxnreg__(64) axpy(float* out, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = a * x[i] + out[i]; }
}
"""

BLOCK_SUM = """
__device__ float warp_sum(float v) {
    for (int k = 16; k > 0; k /= 2) { v += __shfl_xor_sync(0xFFFFFFFF, v, k); }
    return v;
}
__global__ void block_sum(float* out, const float* x, int n) {
    __shared__ float partial[32];
    float v = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) { v += x[blockIdx.x * n + i]; }
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) { partial[threadIdx.x / 32] = v; }
    __syncthreads();
    v = threadIdx.x < (blockDim.x + 31) / 32 ? partial[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32) { v = warp_sum(v); }
    if (threadIdx.x == 0) { out[blockIdx.x] = v; }
}
"""

GROUP_SUM = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void group_sum(float* sums, float* maxima, int* ranks, const float* x) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    auto quad = cg::tiled_partition<4>(warp);
    float v = x[block.thread_rank()];
    float sum = cg::reduce(warp, v, cg::plus<float>{});
    float top = cg::reduce(quad, v, cg::greater<float>{});
    if (warp.thread_rank() == 0) { sums[warp.meta_group_rank()] = sum; }
    if (quad.thread_rank() == 0) { maxima[block.thread_rank() / 4] = top; }
    ranks[block.thread_rank()] = quad.meta_group_rank() * 100 + quad.thread_rank();
}
"""


def test_elementwise_kernel_with_bounds_check(run, random):
    n = 1000
    x, out = random.standard_normal(n).astype(np.float32), random.standard_normal(n).astype(np.float32)
    expected = np.float32(1.5) * x + out
    run(AXPY, "axpy", out, x, 1.5, n, grid=4, block=256)
    np.testing.assert_array_equal(out, expected)


def test_three_dimensional_indices(run):
    text = """
    __global__ void where(unsigned* out) {
        unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
        out[i] = threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y
               + 100000 * blockIdx.z;
    }"""
    out = np.zeros(2 * 3 * 2 * 4 * 3 * 2, np.uint32)
    run(text, "where", out, grid=(2, 3, 2), block=(4, 3, 2))
    axes = np.meshgrid(*(np.arange(n) for n in (2, 3, 2, 2, 3, 4)), indexing="ij")
    expected = sum(factor * axis for factor, axis in zip((100000, 10000, 1000, 100, 10, 1), axes, strict=True))
    np.testing.assert_array_equal(out, expected.ravel())


@pytest.mark.parametrize(("n", "block"), [(1, 32), (33, 64), (1000, 256), (777, 1024), (50, 96)])
def test_block_reduction_with_shuffles_and_shared_memory(run, random, n, block):
    rows = 7
    x = random.integers(-50, 50, (rows, n)).astype(np.float32)
    out = np.full(rows, np.nan, np.float32)
    run(BLOCK_SUM, "block_sum", out, x, n, grid=rows, block=block)
    np.testing.assert_array_equal(out, x.sum(axis=1))


def test_cooperative_groups(run, random):
    x = random.integers(-50, 50, 128).astype(np.float32)
    sums, maxima, ranks = np.zeros(4, np.float32), np.zeros(32, np.float32), np.zeros(128, np.int32)
    run(GROUP_SUM, "group_sum", sums, maxima, ranks, x, block=128)
    np.testing.assert_array_equal(sums, x.reshape(4, 32).sum(axis=1))
    np.testing.assert_array_equal(maxima, x.reshape(32, 4).max(axis=1))
    lanes = np.arange(128) % 32
    np.testing.assert_array_equal(ranks, lanes // 4 * 100 + lanes % 4)


def test_tile_shuffles_votes_and_coalesced_groups(run):
    text = """
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void tiles(int* down, int* up, int* one, unsigned* votes, int* group) {
        auto tile = cg::tiled_partition<8>(cg::this_thread_block());
        int t = threadIdx.x;
        down[t] = tile.shfl_down(t, 3);
        up[t] = tile.shfl_up(t, 2);
        one[t] = tile.shfl(t, 5);
        votes[t] = tile.ballot(t % 3 == 0) | (tile.any(t == 9) << 16) | (tile.all(t < 16) << 17);
        group[t] = -1;
        if (t % 4 == 1) {
            cg::coalesced_group active = cg::coalesced_threads();
            group[t] = active.size() * 100 + active.thread_rank();
        }
    }"""
    arrays = [np.zeros(32, dtype) for dtype in (np.int32, np.int32, np.int32, np.uint32, np.int32)]
    run(text, "tiles", *arrays, block=32)
    down, up, one, votes, group = arrays
    t = np.arange(32)
    np.testing.assert_array_equal(down, np.where(t % 8 + 3 < 8, t + 3, t))
    np.testing.assert_array_equal(up, np.where(t % 8 >= 2, t - 2, t))
    np.testing.assert_array_equal(one, t // 8 * 8 + 5)
    expected = [
        sum(((first + k) % 3 == 0) << k for k in range(8)) | (first == 8) << 16 | (first < 16) << 17
        for first in t // 8 * 8
    ]
    np.testing.assert_array_equal(votes, np.array(expected))
    np.testing.assert_array_equal(group, np.where(t % 4 == 1, 800 + t // 4, -1))


def test_shuffles_with_width_and_warp_intrinsics(run):
    text = """
    __global__ void warp(int* a, int* b, int* c, unsigned* d) {
        int t = threadIdx.x;
        a[t] = __shfl_down_sync(~0u, t, 4, 16);
        b[t] = __shfl_xor_sync(~0u, t, 1);
        c[t] = __shfl_sync(~0u, t, 3, 8);
        unsigned odd = __ballot_sync(~0u, t & 1);
        d[t] = __popc(odd) + 100 * __reduce_add_sync(~0u, 1u) + 10000 * __reduce_max_sync(~0u, (unsigned)t)
             + 1000000 * (__ffs(8) + __clz(1) + (__brev(1u) == 0x80000000u));
    }"""
    a, b, c, d = (np.zeros(32, np.int32) for _ in range(4))
    run(text, "warp", a, b, c, d, block=32)
    t = np.arange(32)
    np.testing.assert_array_equal(a, np.where(t % 16 + 4 < 16, t + 4, t))
    np.testing.assert_array_equal(b, t ^ 1)
    np.testing.assert_array_equal(c, t // 8 * 8 + 3)
    np.testing.assert_array_equal(d, 16 + 3200 + 310000 + 36_000000)


@pytest.mark.parametrize("declaration", ["float", "x128", "char*", "__align__"])
def test_dynamic_shared_memory_in_its_canonical_spellings(run, declaration):
    if declaration == "char*":
        text = """
        __global__ void reverse(float* out) {
            extern __shared__ __align__(16) char* slots[];
            slots[threadIdx.x] = reinterpret_cast<char*>(out + threadIdx.x);
            __syncthreads();
            *reinterpret_cast<float*>(slots[blockDim.x - 1 - threadIdx.x]) = threadIdx.x;
        }"""
    else:
        element = {"x128": "x128"}.get(declaration, "float")
        text = """
        struct alignas(16) x128 { float v; float pad[3]; operator float() const { return v; } };
        __global__ void reverse(float* out) {
            extern __shared__ __align__(16) ELEMENT slots[];
            slots[threadIdx.x] = ELEMENT{(float)threadIdx.x};
            __syncthreads();
            out[threadIdx.x] = slots[blockDim.x - 1 - threadIdx.x];
        }""".replace("ELEMENT", element)
    out = np.zeros(64, np.float32)
    run(text, "reverse", out, block=64, shared=64 * 16)
    np.testing.assert_array_equal(out, np.arange(64)[::-1])


def test_shared_memory_at_namespace_scope_and_in_templates(run):
    text = """
    extern __shared__ __align__(16) float pool[];
    template <typename T, int Scale> __global__ void reverse(T* out) {
        static __shared__ T fixed[32];
        fixed[threadIdx.x] = threadIdx.x * Scale;
        pool[threadIdx.x] = 1.0f;
        __syncthreads();
        out[threadIdx.x] = fixed[31 - threadIdx.x] + pool[threadIdx.x ^ 1];
    }"""
    out = np.zeros(32, np.float32)
    run(text, "reverse<float, 3>", out, block=32, shared=128)
    np.testing.assert_array_equal(out, 3 * np.arange(32)[::-1] + 1)


SHARED_VECTORS = """
struct alignas(64) Line { float v[16]; };
template <typename T> __global__ void addresses(T* out) {
    __shared__ T odd[3];
    __shared__ char one;
    __shared__ T turned[4][5];
    __shared__ __align__(32) T wide[2];
    __shared__ Line line;
    extern __shared__ __align__(16) Line lines[];
    const uintptr_t places[] = {(uintptr_t)odd % 16, (uintptr_t)turned % 16, (uintptr_t)wide % 32,
                                (uintptr_t)&line % 64, (uintptr_t)lines % 64};
    one = 1;
    for (int i = 0; i < 5; ++i) { out[i] = (T)places[i]; }
}
__global__ void through_vectors(float4* out, const float* x) {
    __shared__ float first[3];
    __shared__ float held[128];
    for (int k = 0; k < 4; ++k) { held[4 * threadIdx.x + k] = x[4 * threadIdx.x + k]; }
    if (threadIdx.x < 3) { first[threadIdx.x] = 1.0f; }
    __syncthreads();
    float4 v = reinterpret_cast<const float4*>(held)[31 - threadIdx.x];
    out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x + first[threadIdx.x % 3]);
}
"""


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("addresses<float>", np.float32), ("addresses<unsigned char>", np.uint8)]
)
def test_shared_memory_is_aligned_for_vectors_and_as_its_type_asks(run, kernel, dtype):
    out = np.full(5, 99, dtype)
    run(SHARED_VECTORS, kernel, out, shared=64)
    np.testing.assert_array_equal(out, np.zeros(5))


def test_shared_floats_are_read_as_vectors(run, random):
    x, out = random.standard_normal(128).astype(np.float32), np.zeros(128, np.float32)
    expected = x[::-1].copy()
    expected[3::4] += 1
    run(SHARED_VECTORS, "through_vectors", out, x, block=32)
    np.testing.assert_array_equal(out, expected)


def test_shared_memory_starts_as_nan_in_every_block(run):
    text = """
    __global__ void peek(float* out) {
        extern __shared__ __align__(16) float dynamic[];
        __shared__ float fixed[4];
        out[blockIdx.x * 2] = dynamic[threadIdx.x];
        out[blockIdx.x * 2 + 1] = fixed[threadIdx.x];
        dynamic[threadIdx.x] = fixed[threadIdx.x] = 1.0f;
    }"""
    out = np.zeros(8, np.float32)
    run(text, "peek", out, grid=4, block=1, shared=16)
    assert np.isnan(out).all()


def test_atomics_over_many_blocks(run):
    text = """
    __global__ void count(int* ints, unsigned* wraps, float* floats, double* doubles, unsigned long long* longs,
                          int* largest, int* smallest, unsigned* bits, int* lock) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(ints, 1);
        atomicInc(wraps, 9);
        atomicAdd(floats, 1);
        atomicAdd(doubles, 0.5);
        atomicAdd(longs, 1ull << 33);
        atomicMax(largest, i);
        atomicMin(smallest, -i);
        atomicOr(bits, 1u << (i % 32));
        atomicCAS(lock, 0, 7);
    }"""
    blocks, threads = 64, 128
    n = blocks * threads
    dtypes = (np.int32, np.uint32, np.float32, np.float64, np.uint64, np.int32, np.int32, np.uint32, np.int32)
    arrays = [np.zeros(1, dtype) for dtype in dtypes]
    run(text, "count", *arrays, grid=blocks, block=threads)
    got = [array[0] for array in arrays]
    assert got == [n, n % 10, n, n / 2, n << 33, n - 1, 1 - n, 2**32 - 1, 7]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16), ("float32", np.float32)]
)
def test_sixteen_byte_loads_of_every_precision(run, random, precision, dtype):
    text = """
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    #if defined(ENABLE_FP32)
    typedef float floatX;
    #elif defined(ENABLE_FP16)
    typedef half floatX;
    #else
    typedef __nv_bfloat16 floatX;
    #endif
    struct __align__(16) Packed { floatX v[16 / sizeof(floatX)]; };
    __global__ void triple(floatX* out, const floatX* x) {
        const int lanes = 16 / sizeof(floatX);
        int i = (blockIdx.x * blockDim.x + threadIdx.x) * lanes;
        int4 raw = __ldcs(reinterpret_cast<const int4*>(x + i));
        Packed packed;
        memcpy(&packed, &raw, sizeof(raw));
        for (int k = 0; k < lanes; ++k) { packed.v[k] = (floatX)(3.0f * (float)packed.v[k]); }
        memcpy(&raw, &packed, sizeof(raw));
        __stcs(reinterpret_cast<int4*>(out + i), raw);
    }"""
    x = random.standard_normal(64 * 8).astype(dtype)
    out = np.zeros_like(x)
    lanes = 16 // x.itemsize
    run(text, "triple", out, x, grid=1, block=x.size // lanes, precision=precision)
    np.testing.assert_array_equal(out, (np.float32(3) * x.astype(np.float32)).astype(dtype))


def test_vector_types_mathematics_and_names_without_includes(run):
    text = """
    __global__ void names(float* out) {
        float4 v = make_float4(1.f, 2.f, 3.f, 4.f);
        uint3 u = make_uint3(1, 2, 3);
        dim3 d(4);
        ptrdiff_t p = -5; uint32_t w = 6u; uint q = 7u;
        out[0] = v.x + v.w + u.z + d.x + d.y + p + w + q;
        out[1] = -INFINITY; out[2] = FLT_MAX; out[3] = (float)M_PI;
        out[4] = max(1, 2u) + min(3.5f, 4) + std::min(8, 9) + fmaxf(1.f, 2.f);
        out[5] = rsqrtf(4.f) + __expf(0.f) + __fdividef(1.f, 4.f) + __saturatef(2.f) + __frcp_rn(2.f);
        out[6] = __uint_as_float(__float_as_uint(-2.5f));
        out[6] += std::is_same<std::bool_constant<true>, std::true_type>::value;
        out[7] = __byte_perm(0x44332211, 0x88776655, 0x7410) == 0x88552211u;
    }"""
    out = np.zeros(8, np.float32)
    run(text, "names", out)
    expected = [
        1 + 4 + 3 + 4 + 1 - 5 + 6 + 7,
        -np.inf,
        np.finfo(np.float32).max,
        np.float32(np.pi),
        15.5,
        3.25,
        -1.5,
        1,
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))


def test_spread_blocks_and_thread_pool_give_the_same(run, random):
    n = 1 << 21
    x, out = random.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)
    for _ in range(2):
        run(AXPY, "axpy", out, x, 2.0, n, grid=n // 256, block=256)
    np.testing.assert_array_equal(out, 2 * x + 2 * x)


def test_nothing_runs_for_an_empty_grid(run):
    out = np.zeros(1, np.float32)
    run("__global__ void one(float* out) { out[0] = 1; }", "one", out, grid=0, block=32)
    assert out[0] == 0
    run("__global__ void one(float* out) { out[0] = 1; }", "one", out, grid=1, block=32)
    assert out[0] == 1


UNALIGNED = """
struct alignas(16) Packet { unsigned short lanes[8]; };
__device__ inline Packet load(const unsigned short* from) {
    Packet packet;
    if ((reinterpret_cast<size_t>(from) & 15) == 0) {
        const int4 bits = *reinterpret_cast<const int4*>(from);
        memcpy(packet.lanes, &bits, 16);
    } else {
        for (int i = 0; i < 8; ++i) packet.lanes[i] = from[i];
    }
    return packet;
}
__global__ void k(float* out, const unsigned short* inp) {
    int4 packets[2];
    for (int k = 0; k < 2; ++k) {
        const Packet packet = load(inp + 8 * k);
        memcpy(&packets[k], packet.lanes, 16);
    }
    float sum = 0.0f;
    for (int k = 0; k < 2; ++k) {
        Packet packet;
        memcpy(packet.lanes, &packets[k], 16);
        for (int i = 0; i < 8; ++i) sum += packet.lanes[i];
    }
    *out = sum;
}
"""


@pytest.mark.parametrize("first", range(8))
def test_loads_of_vectors_stay_behind_the_look_at_their_alignment(run, first):
    values, out = np.arange(64, dtype=np.uint16), np.zeros(1, np.float32)
    run(UNALIGNED, "k", out, values[first : first + 16])
    assert out[0] == values[first : first + 16].sum()
