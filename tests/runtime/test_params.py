"""Parameters, template parameters and what they stand for in a call."""

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.params import Param, TemplateParam, bind, cpp_argument, element_size

FLOATX = [Param("out", "floatX*"), Param("inp", "const floatX*"), Param("N", "int")]
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def test_a_type_is_taken_apart() -> None:
    param = Param("inp", "const floatX*")
    assert (param.is_pointer, param.is_const, param.base, param.is_written) == (True, True, "floatX", False)
    assert param.dtype("bfloat16") == BFLOAT16
    scalar = Param("N", "unsigned int")
    assert (scalar.is_pointer, scalar.is_const, scalar.base, scalar.is_written) == (False, False, "unsigned int", False)
    assert Param("p", "T*").dtype("float32", {"T": "int"}) == np.int32
    assert Param("p", "void*").dtype("float32") is None
    assert Param("p", "float*", intent="in").is_written is False
    assert Param("p", "float*").is_written is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ctype": "float*", "intent": "inout?"}, "none of in, out"),
        ({"ctype": "float*", "align": 12}, "12 is none of"),
        ({"ctype": "float**"}, "no array is"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Param("p", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_precision_follows_from_the_arrays(precision: str) -> None:
    dtype = Param("p", "floatX*").dtype(precision)
    assert bind("f", FLOATX, [dtype, dtype, None]).precision == precision


def test_without_such_an_array_the_precision_is_given_or_float32() -> None:
    assert bind("f", FLOATX, [None, None, None]).precision == "float32"
    assert bind("f", FLOATX, [None, None, None], precision="bfloat16").precision == "bfloat16"


@pytest.mark.parametrize(
    ("dtypes", "precision"),
    [
        ((np.float32, np.float16), "float16"),
        ((ml_dtypes.bfloat16, ml_dtypes.bfloat16), "bfloat16"),
        ((np.float32, np.float32), "float32"),
        ((np.float16, ml_dtypes.bfloat16), "float32"),
        ((np.int16, np.float32), "float32"),
    ],
)
def test_without_such_an_array_a_16_bit_template_type_is_the_precision(
    dtypes: tuple[type, ...], precision: str
) -> None:
    params, template = [Param("a", "A*"), Param("b", "B*")], [TemplateParam("A"), TemplateParam("B")]
    arrays = [np.dtype(dtype) for dtype in dtypes]
    assert bind("f", params, arrays, template).precision == precision
    assert bind("f", params, arrays, template, precision="float16").precision == "float16"


def test_arrays_of_two_precisions_are_named() -> None:
    with pytest.raises(TypeError, match=r"f: `out` is float32 and `inp` is bfloat16.*one dtype"):
        bind("f", FLOATX, [FLOAT32, BFLOAT16, None])


@pytest.mark.parametrize("dtype", [np.float64, np.uint16, np.int32, ">f4"])
def test_a_dtype_that_is_no_precision_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"f: `out` is .*, but floatX\* takes one of float32, float16, bfloat16"):
        bind("f", FLOATX, [np.dtype(dtype), None, None])  # type: ignore[call-overload]


COPY = [Param("dst", "Td*"), Param("src", "const Ts*"), Param("n", "unsigned long")]
TYPES = [
    TemplateParam("Td"),
    TemplateParam("Ts"),
    TemplateParam("width", "int", 8),
    TemplateParam("cast", "bool", True),
]


def test_template_types_follow_from_the_arrays_and_the_rest_has_defaults() -> None:
    binding = bind("copy", COPY, [FLOAT32, BFLOAT16, None], TYPES)
    assert binding.template == ("float", "bfloat16", 8, True)
    assert [cpp_argument(value, "float32") for value in binding.template] == ["float", "__nv_bfloat16", "8", "true"]
    assert binding.ctype("const Ts*") == "bfloat16*"


def test_given_template_arguments_come_first() -> None:
    assert bind("copy", COPY, [None] * 3, TYPES, (np.float16, "int", 4, False)).template == ("half", "int", 4, False)
    assert cpp_argument("floatX", "bfloat16") == "__nv_bfloat16"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "template parameter Td follows from no array"),
        ((3,), "template parameter `Td` is 3; it takes a type"),
        (("float", "float", 8.0), "copy: `width` is 8.0, a float"),
        (("float", "float", 8, 7), "copy: `cast` is 7"),
        (("float",) * 5, "takes 4 template arguments, 5 are given"),
    ],
)
def test_wrong_template_arguments_are_type_errors(given: tuple[object, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        bind("copy", COPY, [None] * 3, TYPES, given)


def test_sizes_of_types() -> None:
    sizes = {"floatX": 2, "float4": 16, "x128": 16, "uint2": 8, "float3": 12, "void": 1, "int": 4, "float*": 8}
    assert {base: element_size(base, "bfloat16") for base in sizes} == sizes
