"""CASES B1: scalars have the C type of their parameter, and arrays its dtype."""

from __future__ import annotations

import numpy as np
import pytest

SOURCE = """\
__global__ void scale(float* o, const float* x, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) o[i] = x[i] * s;
}
void run(float* o, const float* x, float s, int n) { scale<<<(n + 127) / 128, 128>>>(o, x, s, n); }
__global__ void mixed(double* o, char a, short b, unsigned c, long long d, double e, bool f, float g) {
    o[0] = a; o[1] = b; o[2] = c; o[3] = d; o[4] = e; o[5] = f; o[6] = g;
}
"""


@pytest.fixture
def module(case):
    return case({"scale.cu": SOURCE})["scale"]


@pytest.mark.parametrize("factor", [2.0, 2, np.float64(2), np.float32(2), np.int64(2), True + 1])
def test_a_python_number_is_a_float(module, xp, factor):
    x, out = xp.arange(300, dtype=np.float32), xp.full(300, np.nan, np.float32)
    module.run(out, x, factor, 300)
    xp.testing.assert_array_equal(out, 2 * x)
    out[...] = np.nan
    module.scale[3, 128](out, x, factor, np.int32(300))
    xp.testing.assert_array_equal(out, 2 * x)


def test_a_float_is_rounded_as_c_rounds_it(module, xp):
    x, out = xp.ones(3, np.float32), xp.full(3, np.nan, np.float32)
    module.run(out, x, 0.1, 3)
    xp.testing.assert_array_equal(out, xp.full(3, 0.1, np.float32))


def test_parameters_of_every_width_lie_where_the_kernel_reads_them(module, xp):
    out = xp.full(7, np.nan, np.float64)
    module.mixed[1, 1](out, -5, -30000, 2**32 - 1, -(2**40), 0.1, True, 0.5)
    xp.testing.assert_array_equal(out, xp.asarray([-5, -30000, 2**32 - 1, -(2**40), 0.1, 1, 0.5]))


def test_a_float64_array_into_a_float_pointer_is_refused(module, xp):
    x, out = xp.ones(3), xp.ones(3, np.float32)
    message = r"run: `x` is float64, but const float\* takes float32; convert it with `\.astype\(numpy\.float32\)`"
    with pytest.raises(TypeError, match=message):
        module.run(out, x, 2.0, 3)
    with pytest.raises(TypeError, match="scale: `x` is float64"):
        module.scale[1, 128](out, x, 2.0, 3)
    module.run(out, x.astype(np.float32), 2.0, 3)
    xp.testing.assert_array_equal(out, xp.full(3, 2, np.float32))


@pytest.mark.parametrize(
    ("factor", "size", "error", "message"),
    [
        (2.0, 2**31, OverflowError, "run: `n` is 2147483648, out of the range of int"),
        (1e39, 3, OverflowError, r"run: `s` is 1e\+39, out of the range of float"),
        (2.0, 3.0, TypeError, "run: `n` is 3.0, a float; int takes an integer"),
        ("2", 3, TypeError, "run: `s` is '2', a str; float takes a number"),
        (2.0, None, TypeError, "run: `n` is None, a NoneType; int takes an integer"),
    ],
)
def test_what_the_type_does_not_hold_is_refused(module, xp, factor, size, error, message):
    x, out = xp.ones(3, np.float32), xp.zeros(3, np.float32)
    with pytest.raises(error, match=message):
        module.run(out, x, factor, size)
    xp.testing.assert_array_equal(out, xp.zeros(3, np.float32))


@pytest.mark.parametrize(("position", "value"), [(1, 128), (2, 2**15), (3, -1), (4, 2**63)])
def test_ranges_of_the_narrow_and_the_wide_types(module, xp, position, value):
    arguments = [xp.zeros(7), 1, 1, 1, 1, 1.0, True, 1.0]
    arguments[position] = value
    with pytest.raises(OverflowError, match=f"mixed: `{'oabcd'[position]}` is {value}, out of the range"):
        module.mixed[1, 1](*arguments)
