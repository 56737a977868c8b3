"""Names of the source as Python can use them."""

from __future__ import annotations

import keyword

from llmc2py.ir.blas import PRODUCT_CALLS

#: Names that generated modules import; what the source calls so gets an underscore.
RUNTIME_NAMES = frozenset(
    {
        "ceil_div", "idiv", "imod", "wrap", "c_cast", "elementwise", "launcher", "math", "LtMatmulDesc",
        "LtMatrixLayout", *(call.function for call in PRODUCT_CALLS.values()),
    }
)  # fmt: skip
#: Functions and dtypes of the runtime that a layer's passes use under these names.
OP_NAMES = frozenset(
    {
        "accumulator", "as_float32", "as_type", "assign", "bfloat16", "boolean", "cast", "clear", "contiguous",
        "copy", "cropped", "crossentropy_gradient", "cudnn", "device_of", "dtype", "empty", "empty_like", "fitted",
        "float16", "float32", "int32", "lead", "length", "next_seed", "ones", "part", "put", "require", "rows", "scale",
        "softmax_gradient", "softmax_of", "take", "take_indices", "take_like", "vector", "writable", "zeros",
        "zeros_like",
    }
)  # fmt: skip
_LOCAL = RUNTIME_NAMES | {"plan", "min", "max", "range"}
_GLOBAL = _LOCAL | {
    "Any", "Array", "Context", "DTYPES", "Function", "Kernel", "KernelSource", "Launcher", "Param", "Plan", "Pointer",
    "SOURCE", "TemplateParam", "Tensor", "bool", "float", "int", "replacements",
}  # fmt: skip


def is_name(value: object) -> bool:
    """Whether a value is a name that a person may give: no keyword, and not one of Python's own (``__x__``)."""
    if not isinstance(value, str) or not value.isidentifier() or value.startswith("__"):
        return False
    return not (keyword.iskeyword(value) or keyword.issoftkeyword(value))


def python_name(name: str) -> str:
    """Return the name of a C variable as Python can use it."""
    return f"{name}_" if keyword.iskeyword(name) or name in _LOCAL else name


def is_reserved(name: str) -> bool:
    """Whether a generated module cannot define this name: Python or the module itself needs it."""
    return keyword.iskeyword(name) or name in _GLOBAL
