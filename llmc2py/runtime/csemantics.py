"""C's integer and conversion rules, for launchers that were lowered from C++ to Python."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from llmc2py.runtime.dtypes import C_DTYPES

_INTEGER_RANGES = {
    ctype: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for ctype, dtype in C_DTYPES.items()
    if dtype.kind in "iu"
}


def idiv(a: int, b: int) -> int:
    """Return ``a / b`` as C divides integers: truncated towards zero. Raises ZeroDivisionError for ``b == 0``."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def imod(a: int, b: int) -> int:
    """Return ``a % b`` as C does: the sign is that of ``a``. Raises ZeroDivisionError for ``b == 0``."""
    return a - b * idiv(a, b)


def ceil_div(a: int, b: int) -> int:
    """Return ``(a + b - 1) / b`` in C's arithmetic."""
    return idiv(a + b - 1, b)


def wrap(value: int, ctype: str) -> int:
    """Return an integer reduced to the range of a C integer type, as two's complement arithmetic leaves it."""
    low, high = _INTEGER_RANGES[ctype]
    return (value - low) % (high - low + 1) + low


def c_cast(value: Any, ctype: str) -> Any:
    """Return ``(ctype)value`` for an explicit C cast: floats are truncated to integers, integers wrap, floats round."""
    if ctype == "bool":
        return bool(value)
    if ctype in _INTEGER_RANGES:
        return wrap(int(value), ctype)
    return float(value) if ctype == "double" else float(C_DTYPES[ctype].type(value))


def c_int(value: Any, ctype: str, name: str, callee: str = "") -> int:
    """Return ``value`` as an ``int`` that the C type holds.

    Raises TypeError for what is no integer (``2.0`` too) and OverflowError for what is out of range, naming ``name``
    and ``callee``.
    """
    try:
        result = int(value) if isinstance(value, np.bool_) else operator.index(value)
    except TypeError:
        raise TypeError(
            f"{_label(name, callee)} is {value!r}, a {type(value).__name__}; {ctype} takes an integer"
        ) from None
    low, high = _INTEGER_RANGES[ctype]
    if not low <= result <= high:
        raise OverflowError(f"{_label(name, callee)} is {result}, out of the range of {ctype}: {low} to {high}")
    return result


def c_float(value: Any, ctype: str, name: str, callee: str = "") -> float:
    """Return a number rounded to the C floating point type, as a Python float.

    Raises TypeError for what is no real number and OverflowError for a finite number beyond the type's range.
    """
    label = _label(name, callee)
    try:
        if value.__class__ is not float and (isinstance(value, (str, bytes)) or np.shape(value) != ()):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{label} is {value!r}, a {type(value).__name__}; {ctype} takes a number") from None
    if ctype == "double":
        return number
    with np.errstate(over="ignore"):
        # An argument of a narrower type comes through float, as it does in the kernels' own conversions.
        result = float(C_DTYPES[ctype].type(np.float32(number)))
    if math.isinf(result) and not math.isinf(number):
        raise OverflowError(f"{label} is {value!r}, out of the range of {ctype}")
    return result


def c_bool(value: Any, name: str, callee: str = "") -> bool:
    """Return a truth value. Raises TypeError for anything but a bool or the integers 0 and 1."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{_label(name, callee)} is {value!r}, a {type(value).__name__}; bool takes True or False")


def c_scalar(value: Any, ctype: str, name: str, callee: str = "") -> int | float | bool:
    """Return ``value`` as the C scalar type holds it, by `c_int`, `c_float` or `c_bool`. Raises what they raise."""
    if ctype == "bool":
        return c_bool(value, name, callee)
    if ctype in _INTEGER_RANGES:
        return c_int(value, ctype, name, callee)
    if ctype not in C_DTYPES:
        raise TypeError(f"{_label(name, callee)} is a {ctype}, which is no number; it cannot be passed from Python")
    return c_float(value, ctype, name, callee)


def scalar_bits(value: int | float | bool, ctype: str) -> int:
    """Return the bytes of a C scalar as the integer that a little-endian 8-byte cell holds."""
    return int.from_bytes(np.asarray(value).astype(C_DTYPES[ctype]).tobytes(), "little")


def _label(name: str, callee: str) -> str:
    return f"{callee}: `{name}`" if callee else f"`{name}`"
