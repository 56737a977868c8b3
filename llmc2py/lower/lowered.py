"""Python text with its C type, and C's conversions between types."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

from llmc2py.ir.types import BOOL, FLOAT, INT, INTEGER_TYPES, CType, promote

# Python's precedence of what is emitted, loosest first.
ATOM, UNARY, PRODUCT, SUM, SHIFT, AND, XOR, OR, COMPARE, NOT, LAND, LOR, TERNARY = range(13, 0, -1)

_ROUNDED = re.compile(r"math\.(?:ceil|floor)\(.*\)")
_LITERAL = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Lowered:
    """A Python expression: text, C type, how tightly it binds, and whether it is known not to be negative."""

    text: str
    type: CType
    level: int = ATOM
    is_natural: bool = False

    def at(self, level: int) -> str:
        """Return the text, in parentheses where an operator of this level needs them."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def is_wrapped(self) -> bool:
        """Whether it may be as large as its unsigned type allows, since a difference went below nought."""
        return self.type.is_unsigned and "wrap(" in self.text

    @property
    def is_irregular(self) -> bool:
        """Whether unsigned arithmetic with it may differ from Python's."""
        return self.is_wrapped or self.may_be_negative

    @property
    def may_be_negative(self) -> bool:
        """Whether it can be negative although sizes are not."""
        return not self.is_natural and ("-" in self.text or "~" in self.text)


def wrapped(text: str, ctype: CType) -> Lowered:
    """Return unsigned arithmetic, which wraps around."""
    return Lowered(f'wrap({text}, "{ctype.base}")', ctype, is_natural=True)


def truth(value: Lowered) -> Lowered:
    """Return an operand of ``&&`` or ``||`` as a truth value: a pointer is true where it is not null."""
    if value.type.is_pointer:
        return Lowered(f"{value.at(COMPARE)} is not None", BOOL, COMPARE)
    return Lowered(f"{value.at(SHIFT)} != 0", BOOL, COMPARE) if value.type.is_integer and value.type != BOOL else value


def meeting(value: Lowered, ctype: CType) -> Lowered:
    """Return an operand converted to the type that C computes in: an int that meets an unsigned becomes unsigned."""
    if ctype.is_unsigned and value.type.is_integer and value.may_be_negative:
        return wrapped(value.text, ctype)
    return value


def compared(left: Lowered, right: Lowered) -> tuple[Lowered, Lowered]:
    """Return the operands of a comparison; an int that may be negative is not less than an unsigned one."""
    if not (left.type.is_integer and right.type.is_integer):
        return left, right
    ctype = promote(left.type, right.type)
    if not ctype.is_unsigned:
        return left, right
    one, other = (
        wrapped(value.text, ctype) if not value.is_natural and not value.type.is_unsigned else value
        for value in (left, right)
    )
    return one, other


def in_single(value: Lowered) -> Lowered:
    """Return a number as a float: rounded, unless it is one already."""
    if not (value.type.is_integer or value.type.is_floating):
        return value
    if _LITERAL.fullmatch(value.text):
        is_exact = ctypes.c_float(float(value.text)).value == float(value.text)
    else:
        is_exact = value.type == FLOAT
    return value if is_exact else Lowered(f'c_cast({value.text}, "float")', FLOAT)


def stored(value: Lowered, ctype: CType) -> Lowered:
    """Return a value as an object of a scalar C type takes it: truncated, wrapped, or as it is where that is the same.

    Sizes that are not negative pass through the integer types unchanged: what is too large is refused where a kernel's
    parameter takes it, instead of being wrapped here.
    """
    if ctype == FLOAT:
        return in_single(value)
    if not ctype.is_integer or not (value.type.is_integer or value.type.is_floating):
        return value
    if value.type.is_floating:
        # Of an atom, what begins with a call and ends with a parenthesis is that call.
        is_integer = value.level == ATOM and bool(_ROUNDED.fullmatch(value.text)) and ctype != BOOL
        return value if is_integer else Lowered(f'c_cast({value.text}, "{ctype.base}")', ctype)
    if ctype == BOOL:
        return value if value.type == BOOL else Lowered(f"{value.at(SHIFT)} != 0", BOOL, COMPARE)
    if ctype.is_unsigned:
        return meeting(value, ctype)
    narrows = INTEGER_TYPES[ctype.base] <= INTEGER_TYPES[value.type.base]
    return Lowered(f'c_cast({value.text}, "{ctype.base}")', ctype) if value.is_wrapped and narrows else value


def holds(target: CType, operand: Lowered) -> bool:
    """Whether a cast keeps every value that a launcher works with."""
    ranks = INTEGER_TYPES[target.base], INTEGER_TYPES[operand.type.base]
    if operand.is_wrapped and ranks[0] < ranks[1]:
        return False
    if operand.is_natural and ranks[0] >= INTEGER_TYPES["int"]:
        return not operand.is_wrapped or ranks[0] >= ranks[1]
    return ranks[0] >= ranks[1] and not target.is_unsigned


def promoted(ctype: CType) -> CType:
    """Return the type of an operand after C's integer promotion."""
    return promote(ctype, INT) if ctype.is_integer else ctype
