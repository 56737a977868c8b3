"""C's integer and conversion rules."""

import ctypes
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmc2py.runtime import csemantics as c


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_division_truncates_and_the_remainder_has_the_dividends_sign(a: int, b: int) -> None:
    assume(b)
    assert c.idiv(a, b) == math.trunc(Fraction(a, b))
    assert c.idiv(a, b) * b + c.imod(a, b) == a
    assert c.imod(a, b) == math.fmod(a, b)


def test_division_by_zero_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        c.idiv(1, 0)


@pytest.mark.parametrize(("a", "b", "expected"), [(0, 5, 0), (1, 5, 1), (5, 5, 1), (6, 5, 2), (-7, 5, 0), (-9, 5, -1)])
def test_ceil_div_is_the_macro(a: int, b: int, expected: int) -> None:
    assert c.ceil_div(a, b) == expected


@given(st.integers(-(2**70), 2**70))
def test_wrap_is_twos_complement(value: int) -> None:
    assert c.wrap(value, "int") == ctypes.c_int32(value).value
    assert c.wrap(value, "unsigned int") == ctypes.c_uint32(value).value
    assert c.wrap(value, "unsigned long") == ctypes.c_uint64(value).value


def test_explicit_casts_truncate_wrap_and_round() -> None:
    assert c.c_cast(-2.9, "int") == -2
    assert c.c_cast(2**32 + 5, "int") == 5
    assert c.c_cast(0.1, "float") == float(np.float32(0.1))
    assert c.c_cast(0.1, "double") == 0.1
    assert c.c_cast(3, "bool") is True


@pytest.mark.parametrize("value", [7, True, np.int8(7), np.uint64(7), np.bool_(True)])
def test_integers_of_every_kind_are_taken(value: object) -> None:
    assert c.c_int(value, "int", "N") in (1, 7)
    assert type(c.c_int(value, "int", "N")) is int


@pytest.mark.parametrize("value", [2.0, np.float32(2), "2", None, [2]])
def test_no_integer_is_a_type_error_that_names_the_parameter(value: object) -> None:
    with pytest.raises(TypeError, match=r"f: `N` is .*int takes an integer"):
        c.c_int(value, "int", "N", "f")


@pytest.mark.parametrize(
    ("value", "ctype", "range_"),
    [
        (2**31, "int", "-2147483648 to 2147483647"),
        (-1, "unsigned int", "0 to 4294967295"),
        (2**64, "unsigned long", "0"),
    ],
)
def test_out_of_range_is_an_overflow_error_with_value_type_and_range(value: int, ctype: str, range_: str) -> None:
    with pytest.raises(OverflowError, match=rf"`N` is {value}, out of the range of {ctype}: {range_}"):
        c.c_int(value, ctype, "N")


def test_floats_are_rounded_to_the_c_type() -> None:
    assert c.c_float(2, "float", "s") == 2.0
    assert c.c_float(np.float64(0.1), "float", "s") == float(np.float32(0.1))
    assert c.c_float(0.1, "double", "s") == 0.1
    assert c.c_float(0.1, "bfloat16", "s") == float(ml_dtypes.bfloat16(0.1))
    assert c.c_float(0.1, "half", "s") == float(np.float16(0.1))
    assert math.isinf(c.c_float(math.inf, "half", "s"))
    assert math.isnan(c.c_float(math.nan, "float", "s"))


@pytest.mark.parametrize(("value", "ctype"), [(1e39, "float"), (7e4, "half")])
def test_a_float_beyond_its_type_is_an_overflow_error(value: float, ctype: str) -> None:
    with pytest.raises(OverflowError, match=f"`s` is .*, out of the range of {ctype}"):
        c.c_float(value, ctype, "s")


@pytest.mark.parametrize("value", ["1", None, [1.0], np.zeros(2), 1j])
def test_no_number_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="`s` is"):
        c.c_float(value, "float", "s")


def test_truth_values() -> None:
    assert c.c_bool(np.bool_(True), "w") is True
    assert c.c_scalar(0, "bool", "w") is False
    for wrong in (2, 1.0, None):
        with pytest.raises(TypeError, match="bool takes True or False"):
            c.c_bool(wrong, "w")


def test_the_bits_of_a_scalar_are_those_that_c_stores() -> None:
    assert c.scalar_bits(-1, "int") == 0xFFFFFFFF
    assert c.scalar_bits(1.0, "float") == 0x3F800000
    assert c.scalar_bits(1.0, "bfloat16") == 0x3F80
    assert c.scalar_bits(True, "bool") == 1
    assert c.scalar_bits(-1, "long long") == 2**64 - 1
