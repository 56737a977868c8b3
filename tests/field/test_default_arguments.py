"""Default arguments of kernels and launchers: kept for calls from Python, filled in where launches leave them out."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.defaults import literal_default, trailing_defaults
from llmc2py.ir.library import Parameter
from llmc2py.ir.types import CType

SOURCE = """\
constexpr int MANY = 6;
__global__ void fill(float* a, int n = 4, float value = 1.5f) { if (threadIdx.x < n) a[threadIdx.x] = value; }
void fill_default(float* a) { fill<<<1, 32>>>(a); }
void fill_two(float* a) { fill<<<1, 32>>>(a, 2); }
__global__ void either(float* a, const float* b = nullptr, int n = 0x8);
__global__ void either(float* a, const float* b, int n) {
    if (threadIdx.x < n) a[threadIdx.x] = b ? b[threadIdx.x] : 7;
}
void declared(float* a) { either<<<1, 32>>>(a); }
__global__ void named(float* a, int n = MANY) { if (threadIdx.x < n) a[threadIdx.x] = 2; }
void constant(float* a) { named<<<1, 32>>>(a); }
void given(float* a, int n = 3, float value = .25f);
void given(float* a, int n, float value) { fill<<<1, 32>>>(a, n, value); }
void calls(float* a) { given(a); }
__global__ void computed(float* a, int n = 2 * sizeof(float)) { if (threadIdx.x < n) a[threadIdx.x] = 1; }
void not_plain(float* a) { computed<<<1, 32>>>(a); }
void too_few(float* a) { fill<<<1, 32>>>(); }
void too_many(float* a) { fill<<<1, 32>>>(a, 1, 2.f, 3); }
void calls_too_few(float* a) { given(); }
"""


@pytest.fixture
def built(case):
    return case({"a.cu": SOURCE})


def _filled(count, value):
    return [float(value)] * count + [0.0] * (8 - count)


def test_what_is_left_out_is_the_default(built, xp):
    module = built["a"]
    for call, expected in (
        (module.fill_default, _filled(4, 1.5)),
        (module.fill_two, _filled(2, 1.5)),
        (module.declared, _filled(8, 7)),
        (module.constant, _filled(6, 2)),
        (module.given, _filled(3, 0.25)),
        (module.calls, _filled(3, 0.25)),
        (module.fill[1, 32], _filled(4, 1.5)),
        (module.either[1, 32], _filled(8, 7)),
        (lambda a: module.fill[1, 32](a, value=3.0), _filled(4, 3)),
        (lambda a: module.fill[1, 32](a, 1), _filled(1, 1.5)),
        (lambda a: module.named[1, 32](a, n=5), _filled(5, 2)),
    ):
        a = xp.zeros(8, np.float32)
        call(a)
        assert a.tolist() == expected, call


def test_signatures_have_the_defaults(built):
    module = built["a"]
    assert [one.default for one in inspect.signature(module.fill).parameters.values()][1:] == [4, 1.5]
    assert "float value = 1.5" in repr(module.fill)
    # What is no plain value has to be given.
    with pytest.raises(TypeError, match="missing a required argument: 'n'"):
        module.computed[1, 32](np.zeros(8, np.float32))


def test_a_wrong_number_of_arguments_is_told_at_its_place(case):
    built = case({"a.cu": SOURCE})
    refused = {item.launcher.name: f"{item.span}: {item.reason}" for item in built.not_lowered}
    assert refused == {
        "not_plain": "a.cu:16:28: n of computed is left to its default, 2 * sizeof(float), which is no plain value",
        "too_few": "a.cu:17:26: fill takes 3 arguments, 1 at least, but 0 are given",
        "too_many": "a.cu:18:27: fill takes 3 arguments, 1 at least, but 4 are given",
        "calls_too_few": "a.cu:19:32: given takes 3 arguments, 1 at least, but 0 are given",
    }


@pytest.mark.parametrize(
    ("text", "ctype", "value"),
    [
        ("4", "int", "4"),
        ("-1", "long", "-1"),
        ("0x1F", "int", "31"),
        ("017", "int", "15"),
        ("0b101", "int", "5"),
        ("1'000'000ull", "unsigned long", "1000000"),
        (".5f", "float", ".5"),
        ("1.f", "float", "1."),
        ("-1e-5", "double", "-1e-5"),
        ("true", "bool", "True"),
        ("nullptr", "float*", "None"),
        ("1.5", "int", None),
        ("N", "int", None),
        ("8", "float*", None),
        ("2 * 3", "int", None),
    ],
)
def test_plain_values(text, ctype, value):
    base, stars = ctype.rstrip("*"), ctype.count("*")
    assert literal_default(_parameter(base, stars, text)) == value


def test_a_default_before_one_that_is_no_plain_value_has_to_be_given():
    plain, odd, without = _parameter("int", 0, "1"), _parameter("int", 0, "N"), _parameter("int", 0, None)
    assert trailing_defaults([without, plain, odd, plain]) == [None, None, None, "1"]


def _parameter(base: str, stars: int, default: str | None) -> Parameter:
    return Parameter("p", CType(base, stars), SourceSpan("a.cu", 1), default)
