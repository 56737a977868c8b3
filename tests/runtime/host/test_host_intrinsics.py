"""CUDA's less usual functions give on the CPU what Python and NumPy compute."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.runtime.errors import CompileError
from llmc2py.runtime.host import compiler, unit

COUNT = 256
MASK = 2**32 - 1
PAIRS = pytest.mark.parametrize(
    ("ctype", "dtype"), [("__half2", np.float16), ("__nv_bfloat162", ml_dtypes.bfloat16)], ids=["half", "bfloat16"]
)


@pytest.fixture
def words(random):
    """Three arrays of words, with the ends of the ranges among them."""
    made = [random.integers(0, 2**32, COUNT, dtype=np.uint64).astype(np.uint32) for _ in range(3)]
    ends = np.array([0, 1, 31, 32, 33, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, MASK], np.uint32)
    made[0][:121], made[1][:121] = np.repeat(ends, 11), np.tile(ends, 11)
    made[2][:121] %= 70
    return made


def signed(word, bits=32):
    word = int(word) & (2**bits - 1)
    return word - 2**bits if word >> (bits - 1) else word


def parts(word, bits, is_signed):
    cut = [int(word) >> shift & (2**bits - 1) for shift in range(0, 32, bits)]
    return [signed(one, bits) if is_signed else one for one in cut]


def funnel(a, b, shift, *, left):
    both = int(b) << 32 | int(a)
    return both << shift >> 32 if left else both >> shift


def dot(bits, first, count, is_signed):
    def of(a, b, c):
        left, right = parts(a, bits, is_signed), parts(b, 8, is_signed)[first:]
        return int(c) + sum(x * y for x, y in list(zip(left, right, strict=False))[:count])

    return of


def mean(to_int, up):
    return lambda a, b, c: (to_int(a) + to_int(b) + up) >> 1


# The expression of words a, b and c of type unsigned, and what it gives modulo 2^32.
INTEGERS = {
    "__umul24(a, b)": lambda a, b, c: (int(a) & 0xFFFFFF) * (int(b) & 0xFFFFFF),
    "__mul24((int)a, (int)b)": lambda a, b, c: signed(a, 24) * signed(b, 24),
    "__funnelshift_l(a, b, c)": lambda a, b, c: funnel(a, b, int(c) & 31, left=True),
    "__funnelshift_lc(a, b, c)": lambda a, b, c: funnel(a, b, min(int(c), 32), left=True),
    "__funnelshift_r(a, b, c)": lambda a, b, c: funnel(a, b, int(c) & 31, left=False),
    "__funnelshift_rc(a, b, c)": lambda a, b, c: funnel(a, b, min(int(c), 32), left=False),
    "__dp4a(a, b, c)": dot(8, 0, 4, False),
    "__dp4a((int)a, (int)b, (int)c)": dot(8, 0, 4, True),
    "__dp4a(as<char4>(a), as<char4>(b), (int)c)": dot(8, 0, 4, True),
    "__dp4a(as<uchar4>(a), as<uchar4>(b), c)": dot(8, 0, 4, False),
    "__dp2a_lo((int)a, (int)b, (int)c)": dot(16, 0, 2, True),
    "__dp2a_hi((int)a, (int)b, (int)c)": dot(16, 2, 2, True),
    "__dp2a_lo(a, b, c)": dot(16, 0, 2, False),
    "__dp2a_hi(as<ushort2>(a), as<uchar4>(b), c)": dot(16, 2, 2, False),
    "__sad((int)a, (int)b, c)": lambda a, b, c: abs(signed(a) - signed(b)) + int(c),
    "__usad(a, b, c)": lambda a, b, c: abs(int(a) - int(b)) + int(c),
    "__hadd((int)a, (int)b)": mean(signed, 0),
    "__rhadd((int)a, (int)b)": mean(signed, 1),
    "__uhadd(a, b)": mean(int, 0),
    "__urhadd(a, b)": mean(int, 1),
    "(unsigned)__umul64hi(a * 0x9E3779B97F4A7C15ull, b * 0x9E3779B97F4A7C15ull)": lambda a, b, c: (
        (int(a) * 0x9E3779B97F4A7C15 % 2**64) * (int(b) * 0x9E3779B97F4A7C15 % 2**64) >> 64
    ),
    "(unsigned)__mul64hi((long long)a - b, 1ll << 33)": lambda a, b, c: (int(a) - int(b)) * 2**33 >> 64,
}


def integer_results(run, words):
    """Return, by expression, what one kernel gives for all of them."""
    body = "".join(f"out[{row * COUNT} + i] = {text};\n" for row, text in enumerate(INTEGERS))
    text = f"""
    template <class T> __device__ T as(unsigned word) {{ T made; memcpy(&made, &word, 4); return made; }}
    __global__ void k(unsigned* out, const unsigned* x, const unsigned* y, const unsigned* z) {{
        int i = threadIdx.x; unsigned a = x[i], b = y[i], c = z[i];
        {body}
    }}"""
    out = np.zeros((len(INTEGERS), COUNT), np.uint32)
    run(text, "k", out, *words, block=COUNT)
    return dict(zip(INTEGERS, out, strict=True))


def test_integer_intrinsics(run, words):
    for text, got in integer_results(run, words).items():
        expected = [INTEGERS[text](a, b, c) & MASK for a, b, c in zip(*words, strict=True)]
        np.testing.assert_array_equal(got, np.array(expected, np.uint32), err_msg=text)


def turn(function, x):
    """A function of pi times x, of the exact remainder."""
    return function(math.pi * math.remainder(x, 2.0))


@pytest.mark.parametrize(("suffix", "ctype", "dtype"), [("f", "float", np.float32), ("", "double", np.float64)])
def test_functions_of_half_turns_and_reciprocals(run, random, suffix, ctype, dtype):
    names = [f"{name}{suffix}" for name in ("sinpi", "cospi", "rhypot", "norm3d", "norm4d", "rnorm3d", "rnorm4d")]
    arguments = ["x", "x", "x, y", "x, y, 3", "x, y, 3, 4", "x, y, 3", "x, y, 3, 4"]
    body = "".join(
        f"o[{row * 1024} + i] = {name}({given});\n"
        for row, (name, given) in enumerate(zip(names, arguments, strict=True))
    )
    text = f"""__global__ void k({ctype}* o, const {ctype}* a, const {ctype}* b) {{
        int i = threadIdx.x; {ctype} x = a[i], y = b[i]; {body}
        sincospi{suffix}(x, o + 7168 + i, o + 8192 + i);
        o[9216 + i] = rcbrt{suffix}(x); o[10240 + i] = normcdf{suffix}(y);
    }}"""
    x = (random.standard_normal(1024) * 1000).astype(dtype)
    x[:400] = np.arange(-200, 200) / 2
    y = (random.standard_normal(1024) * 2).astype(dtype)
    y[200] = 1  # beside a zero
    got = np.zeros((11, 1024), dtype)
    run(text, "k", got, x, y, block=1024)
    xs, ys = x.astype(np.float64), y.astype(np.float64)
    sine, cosine = (np.array([turn(function, value) for value in xs]) for function in (math.sin, math.cos))
    squares = xs**2 + ys**2
    cdf = [0.5 * math.erfc(-value / math.sqrt(2)) for value in ys]
    expected = [
        sine, cosine, squares**-0.5, np.sqrt(squares + 9), np.sqrt(squares + 25), (squares + 9) ** -0.5,
        (squares + 25) ** -0.5, sine, cosine, 1 / np.cbrt(np.where(xs, xs, np.nan)), np.array(cdf),
    ]  # fmt: skip
    step = np.finfo(dtype).eps
    for row, (one, wanted) in enumerate(zip(got, expected, strict=True)):
        known = ~np.isnan(wanted)
        np.testing.assert_allclose(one[known], wanted[known], rtol=4 * step, atol=2 * step, err_msg=str(row))
    # At whole and half turns they are exact.
    quarters = np.arange(-200, 200)
    np.testing.assert_array_equal(got[0, :400], np.array([0, 1, 0, -1])[quarters % 4])
    np.testing.assert_array_equal(got[1, :400], np.array([1, 0, -1, 0])[quarters % 4])
    assert math.isinf(got[9][xs == 0][0])


PAIR_FUNCTIONS = {
    "__habs2": np.abs, "h2exp": np.exp, "h2exp2": np.exp2, "h2exp10": lambda x: 10.0**x, "h2log": np.log,
    "h2log2": np.log2, "h2log10": np.log10, "h2sqrt": np.sqrt, "h2rsqrt": lambda x: 1 / np.sqrt(x),
    "h2rcp": lambda x: 1 / x, "h2sin": np.sin, "h2cos": np.cos, "h2tanh": np.tanh, "h2floor": np.floor,
    "h2ceil": np.ceil, "h2trunc": np.trunc, "h2rint": np.rint,
}  # fmt: skip


@PAIRS
def test_functions_of_pairs(run, random, ctype, dtype):
    body = "".join(f"o[{row * COUNT} + i] = {name}(x[i]);\n" for row, name in enumerate(PAIR_FUNCTIONS))
    text = f"__global__ void k({ctype}* o, const {ctype}* x) {{ int i = threadIdx.x; {body} }}"
    x = (np.abs(random.standard_normal((COUNT, 2))) + 0.01).astype(dtype)
    got = np.zeros((len(PAIR_FUNCTIONS), COUNT, 2), dtype)
    run(text, "k", got, x, block=COUNT)
    step = float(ml_dtypes.finfo(dtype).eps)
    for one, (name, function) in zip(got, PAIR_FUNCTIONS.items(), strict=True):
        wanted = function(x.astype(np.float64))
        # Rounded once, from a float32 that is right to its last places.
        np.testing.assert_allclose(one.astype(np.float64), wanted, rtol=0.51 * step, err_msg=name)


@PAIRS
def test_comparisons_of_pairs(run, random, ctype, dtype):
    names = ("eq", "ne", "le", "ge", "lt", "gt")
    body = "".join(
        f"o[{row * COUNT} + i] = __h{name}2(x[i], y[i]); both[{row * COUNT} + i] = __hb{name}2(x[i], y[i]);\n"
        for row, name in enumerate(names)
    )
    text = f"""__global__ void k({ctype}* o, int* both, const {ctype}* x, const {ctype}* y) {{
        int i = threadIdx.x; {body}
    }}"""
    x, y = (random.integers(-1, 2, (COUNT, 2)).astype(dtype) for _ in range(2))
    x[0, 0] = np.nan
    got, both = np.zeros((6, COUNT, 2), dtype), np.zeros((6, COUNT), np.int32)
    run(text, "k", got, both, x, y, block=COUNT)
    functions = (np.equal, np.not_equal, np.less_equal, np.greater_equal, np.less, np.greater)
    wanted = np.array([function(x.astype(np.float32), y.astype(np.float32)) for function in functions])
    # Only what is ordered holds; for "not equal", NumPy and CUDA say what C does.
    np.testing.assert_array_equal(got.astype(np.float32), wanted)
    np.testing.assert_array_equal(both, wanted.all(axis=2))


@pytest.mark.parametrize("scope", ["", "_block", "_system"])
def test_atomics_of_every_scope(run, scope):
    text = f"""__global__ void k(unsigned* o, unsigned long long* wide) {{
        unsigned seen = o[0], old;
        do {{ old = seen; seen = atomicCAS{scope}(o, old, old + threadIdx.x); }} while (seen != old);
        atomicAdd{scope}(o + 1, 2u); atomicSub{scope}(o + 2, 1u); atomicMax{scope}(o + 3, threadIdx.x);
        atomicMin{scope}(o + 4, threadIdx.x); atomicOr{scope}(o + 5, 1u << threadIdx.x % 32);
        atomicAnd{scope}(o + 6, ~(1u << threadIdx.x % 8)); atomicXor{scope}(o + 7, threadIdx.x);
        atomicInc{scope}(o + 8, 9u); atomicDec{scope}(o + 9, 9u);
        if (atomicExch{scope}(o + 10, 1u) == 0u) {{ atomicAdd{scope}(o + 11, 1u); }}
        atomicCAS{scope}(wide, 5ull, 1ull << 40);
    }}"""
    out, wide = np.zeros(12, np.uint32), np.array([5], np.uint64)
    out[[2, 4, 6]] = MASK
    run(text, "k", out, wide, block=64)
    every = range(64)
    expected = [sum(every), 128, MASK - 64, 63, 0, MASK, MASK & ~0xFF, np.bitwise_xor.reduce(list(every)), 4, 6, 1, 1]
    np.testing.assert_array_equal(out, np.array(expected, np.uint32))
    assert wide[0] == 2**40


def test_groups_of_any_kind(run):
    text = """
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __device__ int sum_of(cg::thread_group group, int* shared, int value) {
        int rank = group.thread_rank();
        for (int half = group.size() / 2; half > 0; half /= 2) {
            shared[rank] = value;
            group.sync();
            if (rank < half) { value += shared[rank + half]; }
            group.sync();
        }
        return value;
    }
    __global__ void k(int* o) {
        __shared__ int room[64];
        auto block = cg::this_thread_block();
        int t = threadIdx.x, whole = sum_of(block, room, t);
        cg::thread_group tile = cg::tiled_partition(block, 8);
        int part = sum_of(tile, room + t / 8 * 8, t);
        auto static_tile = cg::tiled_partition<4>(block);
        int few = sum_of(static_tile, room + t / 4 * 4, t);
        cg::thread_group inner = cg::tiled_partition(tile, 2);
        if (block.thread_rank() == 0) { o[0] = whole; }
        if (tile.thread_rank() == 0) { o[1 + t / 8] = part; }
        if (static_tile.thread_rank() == 0) { o[9 + t / 4] = few; }
        o[25 + t] = inner.size() * 100 + inner.thread_rank();
        o[89 + t] = (int)cg::thread_group(cg::this_grid()).thread_rank();
    }"""
    out = np.zeros(153, np.int32)
    run(text, "k", out, block=64)
    t = np.arange(64)
    assert out[0] == t.sum()
    np.testing.assert_array_equal(out[1:9], t.reshape(8, 8).sum(axis=1))
    np.testing.assert_array_equal(out[9:25], t.reshape(16, 4).sum(axis=1))
    np.testing.assert_array_equal(out[25:89], 200 + t % 2)
    np.testing.assert_array_equal(out[89:], t)


def test_a_tile_of_no_size_that_there_is(run):
    text = """
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void k(int n) { cg::tiled_partition(cg::this_thread_block(), n).sync(); }"""
    with pytest.raises(host.KernelError, match="tiled_partition: a tile has 1, 2, 4, 8, 16 or 32 threads"):
        run(text, "k", 3, block=32)


def test_partitions_by_label_and_by_predicate(run):
    text = """
    #include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    __global__ void k(int* labelled, int* two, int* of_few) {
        auto warp = cg::tiled_partition<32>(cg::this_thread_block());
        int t = threadIdx.x;
        cg::coalesced_group same = cg::labeled_partition(warp, t * t % 5);
        labelled[t] = cg::reduce(same, t, cg::plus<int>()) * 100 + same.thread_rank();
        cg::coalesced_group half = cg::binary_partition(warp, t % 3 == 0);
        two[t] = half.size() * 100 + half.thread_rank();
        of_few[t] = -1;
        if (t % 2 == 0) {
            cg::coalesced_group even = cg::coalesced_threads();
            of_few[t] = cg::labeled_partition(even, t < 8).size() * 100 + cg::tiled_partition(even, 4).thread_rank();
        }
    }"""
    labelled, two, of_few = (np.zeros(32, np.int32) for _ in range(3))
    run(text, "k", labelled, two, of_few, block=32)
    t = np.arange(32)

    def rank(keys):
        return np.array([np.sum(keys[:i] == keys[i]) for i in t])

    sums = [t[t * t % 5 == label].sum() for label in t * t % 5]
    np.testing.assert_array_equal(labelled, np.array(sums) * 100 + rank(t * t % 5))
    np.testing.assert_array_equal(two, np.where(t % 3 == 0, 1100, 2100) + rank(t % 3 == 0))
    np.testing.assert_array_equal(of_few, np.where(t % 2, -1, np.where(t < 8, 400, 1200) + t // 2 % 4))


@pytest.mark.parametrize("lanes", [4, 32])
def test_cub_reduces_a_warp(run, random, lanes):
    text = f"""
    #include <cub/cub.cuh>
    struct Larger {{ __device__ int operator()(int a, int b) const {{ return a < b ? b : a; }} }};
    __global__ void k(float* sums, int* tops, int* few, const float* x) {{
        using Sum = cub::WarpReduce<float, {lanes}>;
        using Top = cub::WarpReduce<int, {lanes}>;
        __shared__ typename Sum::TempStorage one[64 / {lanes}];
        __shared__ typename Top::TempStorage other[64 / {lanes}];
        int t = threadIdx.x, group = t / {lanes};
        float sum = Sum(one[group]).Sum(x[t]);
        int top = Top(other[group]).Reduce((int)x[t], Larger());
        int valid = Top(other[group]).Sum((int)x[t], 3);
        if (t % {lanes} == 0) {{ sums[group] = sum; tops[group] = top; few[group] = valid; }}
    }}"""
    x = random.integers(-50, 50, 64).astype(np.float32)
    sums, tops, few = np.zeros(64 // lanes, np.float32), *(np.zeros(64 // lanes, np.int32) for _ in range(2))
    run(text, "k", sums, tops, few, x, block=64)
    rows = x.reshape(-1, lanes)
    np.testing.assert_array_equal(sums, rows.sum(axis=1))
    np.testing.assert_array_equal(tops, rows.max(axis=1))
    np.testing.assert_array_equal(few, rows[:, :3].sum(axis=1))


def test_cub_scans_a_block(run, random):
    text = """
    #include <cub/block/block_scan.cuh>
    struct Larger { __device__ int operator()(int a, int b) const { return a < b ? b : a; } };
    struct Smaller { __device__ int operator()(int a, int b) const { return a < b ? a : b; } };
    __global__ void k(int* o, const int* x) {
        using Scan = cub::BlockScan<int, 16, cub::BLOCK_SCAN_WARP_SCANS, 3>;
        __shared__ typename Scan::TempStorage room;
        int t = threadIdx.x + 16 * threadIdx.y, all;
        Scan(room).ExclusiveSum(x[t], o[t], all); __syncthreads();
        Scan(room).InclusiveSum(x[t], o[48 + t]); __syncthreads();
        Scan(room).InclusiveScan(x[t], o[96 + t], Larger()); __syncthreads();
        Scan(room).ExclusiveScan(x[t], o[144 + t], 7, Smaller()); __syncthreads();
        int two[2] = {x[t], -2 * x[t]}, sums[2];
        Scan(room).InclusiveSum(two, sums);
        o[192 + 2 * t] = sums[0]; o[193 + 2 * t] = sums[1]; __syncthreads();
        Scan(room).ExclusiveSum(two, two);
        o[288 + 2 * t] = two[0]; o[289 + 2 * t] = two[1];
        o[384 + t] = all;
    }"""
    x = random.integers(-50, 50, 48).astype(np.int32)
    out = np.zeros(432, np.int32)
    run(text, "k", out, x, block=(16, 3))
    both = np.stack([x, -2 * x], axis=1).ravel()
    expected = [
        np.cumsum(x) - x, np.cumsum(x), np.maximum.accumulate(x), np.minimum.accumulate([7, *x])[:-1],
        np.cumsum(both), np.cumsum(both) - both, np.full(48, x.sum()),
    ]  # fmt: skip
    np.testing.assert_array_equal(out, np.concatenate(expected))


DYNAMIC_SHARED = [
    "float extern __shared__ s[];",
    "__shared__ extern float s[];",
    "extern float __shared__ s[];",
    "extern __shared__ __align__(16) float s[];",
    "__align__(16) extern __shared__ float s[];",
    "[[maybe_unused]] extern __shared__ float s[];",
    "/* of the block; */ extern __shared__\n float s[ ];",
    "\n#define N 3\nextern volatile __shared__ float s[];",
    "\n#define ROOM(T) extern __shared__ T s[];\nROOM(float)",
    "\n#define LONG(T) \\\n    extern __shared__ \\\n T s[];\nLONG(float)",
]


def test_dynamic_shared_memory_in_any_order_of_words(run):
    text = ""
    for number, one in enumerate(DYNAMIC_SHARED):
        for inside in (True, False):
            text += f"""
            namespace d{number}_{inside} {{
            {"" if inside else one}
            __device__ void turn(float* a) {{
                {one if inside else ""}
                s[threadIdx.x] = a[threadIdx.x]; __syncthreads();
                a[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x]; __syncthreads();
            }}
            }}"""
    calls = [f"d{number}_{inside}::turn(a + blockDim.x * {2 * number + inside});"
             for number in range(len(DYNAMIC_SHARED)) for inside in (True, False)]  # fmt: skip
    text += f"__global__ void k(float* a) {{ {' '.join(calls)}}}"
    values = np.arange(64 * len(calls), dtype=np.float32).reshape(-1, 64)
    wanted = values[:, ::-1].copy()
    run(text, "k", values, block=64, shared=256)
    np.testing.assert_array_equal(values, wanted)
    assert unit.host_text(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("o[0] = __vadd4(1, 2);", "not in the CPU backend: __vadd4; the kernel may run on CUDA"),
        ("cub::WarpScan<int> scan;", "not in the CPU backend: cub::WarpScan;"),
        ("cooperative_groups::memcpy_async(o, o, o, 4);", "not in the CPU backend: cooperative_groups::memcpy_async;"),
        ("o[0] = erfinvf(0.5f);", "not in the CPU backend: erfinvf;"),
        ("o[0] = tex1Dfetch<int>(o, 0);", "not in the CPU backend: tex1Dfetch;"),
        ("curandState state; curand_init(1, 2, 3, &state);", "not in the CPU backend: curandState, curand_init;"),
        ("cuda::atomic_ref<int> ref(*o);", "not in the CPU backend: cuda;"),
        ("\n#include <mma.h>\n", "not in the CPU backend: <mma.h>;"),
    ],
)
def test_what_is_missing_is_named(run, body, said):
    text = f"#include <cub/cub.cuh>\n__global__ void k(int* o) {{ {body} }}"
    with pytest.raises(CompileError) as caught:
        host.kernel(run.request(text, "k"), 0)
    assert said in str(caught.value)
    assert "#ifdef LLMC2PY_CPU" in str(caught.value)


@pytest.mark.parametrize("body", ['o = "text";', "o[0] = oops;", "o[0] = call(1);"])
def test_a_mistake_is_not_said_to_be_missing(run, body):
    with pytest.raises(CompileError) as caught:
        host.kernel(run.request(f"__global__ void k(int* o) {{ {body} }}", "k"), 0)
    assert "CPU backend" not in str(caught.value)


def test_c_that_calls_what_is_not_there_is_not_told_of_cuda():
    with pytest.raises(CompileError, match=r"C source f does not compile") as caught:
        compiler.compile_c("#include <nothing_here.h>\n", "f")
    assert "nothing_here.h" in str(caught.value)
    assert "CPU backend" not in str(caught.value)
