"""Preprocessor conditions that are left open, asked for one precision, and for the compiler's pass over host code."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable

MACRO_OF = {"float32": "ENABLE_FP32", "float16": "ENABLE_FP16", "bfloat16": "ENABLE_BF16"}
PRECISIONS = tuple(MACRO_OF)

_PRECISION = r"\b(ENABLE_(?:FP32|FP16|BF16))\b"
#: Whether the macro is defined, and its value: the two are the same, as a build defines it by ``-D`` to 1.
_DEFINED = re.compile(rf"defined\s*\(\s*{_PRECISION}\s*\)|(?:defined\s+)?{_PRECISION}")
#: Macros that no compiler defines in its pass over host code.
_DEVICE_ONLY = r"\b(?:__CUDA_ARCH__|__CUDACC_RTC__)\b"
_DEVICE_DEFINED = re.compile(rf"defined\s*(?:\(\s*{_DEVICE_ONLY}\s*\)|{_DEVICE_ONLY})")
_DEVICE_VALUE = re.compile(_DEVICE_ONLY)
_COMPARED = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\s*([<>]=?|[=!]=)\s*(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
_COMPARISONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq}
_LOGIC = re.compile(r"(?:[01()!\s]|&&|\|\|)*")


@functools.cache
def holds(condition: str, precision: str) -> bool | None:
    """Return whether a condition holds where the macro of ``precision`` is the one defined; None where it cannot tell.

    Only ``defined(ENABLE_…)``, ``ENABLE_…`` and logic can be told; architectures and compiler versions cannot.
    """
    wanted = MACRO_OF[precision]
    text = _COMPARED.sub(_compared, _DEFINED.sub(lambda match: str(int(wanted in match.groups())), condition))
    if not _LOGIC.fullmatch(text):
        return None
    tokens = re.findall(r"[01()!]|&&|\|\|", text)
    value, rest = _either(tokens)
    return None if rest else value


def precisions_of(conditions: Iterable[str]) -> tuple[str, ...]:
    """Return the precisions under which none of the conditions is known to be false."""
    found = list(conditions)
    if not found:
        return PRECISIONS
    return tuple(name for name in PRECISIONS if all(holds(condition, name) is not False for condition in found))


@functools.cache
def on_host(condition: str) -> str:
    """Return what is left of a condition in host code, where the macros of device code are undefined, and so nought."""
    text = _DEVICE_VALUE.sub("0", _DEVICE_DEFINED.sub("0", condition))
    return _COMPARED.sub(_compared, text) if text != condition else condition


def _compared(match: re.Match[str]) -> str:
    left, sign, right = int(match[1], 0), match[2], int(match[3], 0)
    return str(int(left != right if sign == "!=" else _COMPARISONS[sign](left, right)))


def host_precisions(conditions: Iterable[str]) -> tuple[str, ...]:
    """Return the precisions under which host code inside of conditions may be compiled."""
    return precisions_of([on_host(condition) for condition in conditions])


def is_told(condition: str) -> bool:
    """Whether each precision alone decides a condition."""
    return all(holds(condition, precision) is not None for precision in PRECISIONS)


# either := both ("||" both)*
def _either(tokens: list[str]) -> tuple[bool, list[str]]:
    value, tokens = _both(tokens)
    while tokens and tokens[0] == "||":
        other, tokens = _both(tokens[1:])
        value = value or other
    return value, tokens


# both := single ("&&" single)*
def _both(tokens: list[str]) -> tuple[bool, list[str]]:
    value, tokens = _single(tokens)
    while tokens and tokens[0] == "&&":
        other, tokens = _single(tokens[1:])
        value = value and other
    return value, tokens


# single := "!" single | "(" either ")" | "0" | "1"
def _single(tokens: list[str]) -> tuple[bool, list[str]]:
    if not tokens:
        return False, ["incomplete"]
    head, rest = tokens[0], tokens[1:]
    if head == "!":
        value, rest = _single(rest)
        return not value, rest
    if head == "(":
        value, rest = _either(rest)
        return value, rest[1:] if rest[:1] == [")"] else ["unbalanced"]
    return head == "1", rest
