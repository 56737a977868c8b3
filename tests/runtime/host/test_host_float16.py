"""half and bfloat16 round as ml_dtypes and NumPy do, over all patterns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

KINDS = pytest.mark.parametrize(
    ("ctype", "name", "dtype"),
    [("__nv_bfloat16", "bfloat16", ml_dtypes.bfloat16), ("__half", "half", np.float16)],
)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal in every bit, but any NaN for a NaN."""
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    bits = np.uint16 if got.itemsize == 2 else np.uint32
    np.testing.assert_array_equal(got.view(bits)[~nan], expected.view(bits)[~nan])


@KINDS
def test_every_pattern_widens_exactly(run, ctype, name, dtype):
    text = (
        f"__global__ void widen(float* o, const {ctype}* x) {{ int i = blockIdx.x * 256 + threadIdx.x; o[i] = x[i]; }}"
    )
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    out = np.zeros(65536, np.float32)
    run(text, "widen", out, x, grid=256, block=256)
    same(out, x.astype(np.float32))


@KINDS
def test_rounding_of_floats_and_doubles(run, random, ctype, name, dtype):
    text = f"""__global__ void narrow({ctype}* a, {ctype}* b, const float* x, const double* y) {{
        int i = blockIdx.x * 256 + threadIdx.x;
        a[i] = __float2{name}_rn(x[i]);
        b[i] = ({ctype})y[i];
    }}"""
    count = 256 * 2000
    x = random.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    # Halfway points of the 16-bit formats, and their neighbours in float.
    every = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    with np.errstate(all="ignore"):
        halves = (every[:-1].astype(np.float64) + every[1:]) / 2
        ties = np.concatenate([np.nextafter(halves.astype(np.float32), np.float32(side)) for side in (-9e9, 9e9)])
        x[: ties.size] = ties
        x[ties.size : ties.size + halves.size] = halves.astype(np.float32)
        y = np.nextafter(x.astype(np.float64), np.where(random.random(count) < 0.5, -np.inf, np.inf))
        a, b = np.zeros(count, dtype), np.zeros(count, dtype)
        run(text, "narrow", a, b, x, y, grid=2000, block=256)
        same(a, x.astype(dtype))
        if dtype is np.float16:
            same(b, y.astype(dtype))  # ml_dtypes itself rounds doubles twice
        else:
            exact = np.abs(b.astype(np.float64) - y)
            other = np.abs(x.astype(dtype).astype(np.float64) - y)
            finite = np.isfinite(exact) & np.isfinite(other)
            assert (exact[finite] <= other[finite]).all()


@KINDS
@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
def test_arithmetic_rounds_once(run, random, ctype, name, dtype, operator):
    text = f"""__global__ void op({ctype}* o, const {ctype}* x, const {ctype}* y) {{
        int i = blockIdx.x * 256 + threadIdx.x;
        o[i] = x[i] {operator} y[i];
    }}"""
    x, y = (random.integers(0, 65536, 256 * 100).astype(np.uint16).view(dtype) for _ in range(2))
    out = np.zeros_like(x)
    run(text, "op", out, x, y, grid=100, block=256)
    with np.errstate(all="ignore"):
        wide = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[operator]
        same(out, wide(x.astype(np.float32), y.astype(np.float32)).astype(dtype))


@KINDS
def test_conversions_and_mixed_expressions(run, ctype, name, dtype):
    text = f"""
    #include <cuda_bf16.h>
    template <class T> __device__ T constant(T value) {{ return value; }}
    __global__ void mixed(float* o, {ctype}* n) {{
        {ctype} a = 1.5f, b = 2, c = 0.25, zero = {ctype}();
        float x = a;
        o[0] = 0.5f * x + (float)b;
        o[1] = (float)constant<{ctype}>(0.f) + (float)constant<{ctype}>(0) + (a < b) + (a == a) + (c != c);
        o[2] = 0.5f * (float)a;
        {ctype}2 pair = __halves2{name}2(a, b);
        float2 wide = __{name}22float2(pair);
        o[3] = __low2float(pair) + 10.f * __high2float(pair) + 100.f * wide.y;
        o[4] = __{name}2float(__hmax(a, b)) + __{name}2float(__hfma(a, b, c));
        o[5] = __{name}_as_ushort(__ushort_as_{name}(0x1234)) == 0x1234;
        o[6] = std::is_same<{ctype}, float>::value;
        a += b; a *= c; a = -a;
        n[0] = a;
        n[1] = (a ? b : c);
        n[2] = __floats2{name}2_rn(1.f, 7.f).y;
        n[3] = (int)b + 3;
        o[7] = (float)zero * 0.f;
    }}"""
    out, narrow = np.zeros(8, np.float32), np.zeros(4, dtype)
    run(text, "mixed", out, narrow)
    np.testing.assert_array_equal(out[:7], [2.75, 2, 0.75, 221.5, 5.25, 1, 0])
    np.testing.assert_array_equal(narrow.astype(np.float32), [-0.875, 2, 7, 5])


@KINDS
def test_atomic_addition_of_narrow_types(run, ctype, name, dtype):
    text = f"""__global__ void add({ctype}* one, {ctype}2* two) {{
        atomicAdd(one, ({ctype})1.0f);
        atomicAdd(two, __floats2{name}2_rn(1.0f, 2.0f));
    }}"""
    one, two = np.zeros(1, dtype), np.zeros(2, dtype)
    run(text, "add", one, two, grid=4, block=16)
    assert [float(v) for v in (*one, *two)] == [64, 64, 128]
