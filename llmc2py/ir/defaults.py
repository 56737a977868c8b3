"""Default arguments of parameters, as Python has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmc2py.ir.library import Parameter

_INTEGER = re.compile(r"([-+]?)(0[xX][0-9a-fA-F']+|0[bB][01']+|0[0-7']*|[1-9][\d']*)[uUlLzZ]*")
_FLOATING = re.compile(r"([-+]?(?:\d[\d']*\.?[\d']*|\.\d[\d']*)(?:[eE][-+]?\d+)?)[fFlL]?")
_NULL = frozenset({"NULL", "nullptr", "0", "{}"})


def literal_default(parameter: Parameter) -> str | None:
    """Return the default of a parameter as Python text, None where it has none or one that is no plain value."""
    text = (parameter.default or "").strip()
    if parameter.type.is_pointer:
        return "None" if text in _NULL else None
    if text in ("true", "false"):
        return text.capitalize()
    if integer := _INTEGER.fullmatch(text):
        digits = integer[2].replace("'", "")
        is_octal = digits.startswith("0") and digits.isdigit()
        value = int(digits, 8 if is_octal else 0)
        return str(-value if integer[1] == "-" else value)
    floating = _FLOATING.fullmatch(text)
    if floating is not None and not parameter.type.is_integer:
        return floating[1].replace("'", "")
    return None


def trailing_defaults(parameters: Sequence[Parameter]) -> list[str | None]:
    """Return the defaults of the parameters behind the last one that has no plain value, None for those before."""
    found: list[str | None] = [None] * len(parameters)
    for index in range(len(parameters) - 1, -1, -1):
        found[index] = literal_default(parameters[index])
        if found[index] is None:
            break
    return found


def required(parameters: Sequence[Parameter]) -> int:
    """Return how many arguments a call has to give at least."""
    return sum(one.default is None for one in parameters)
