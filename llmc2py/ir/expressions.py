"""Expressions of host code, as the front end reads them from launchers.

::

    Expression = Number | String | Null | Name | TemplateName | Unary | Binary | Conditional | Call | MethodCall
               | Construct | Member | Index | Cast | SizeOf | SizeOfValue | InitializerList | PrecisionChoice
               | Unreadable
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.types import CType


@dataclass(frozen=True)
class Expression:
    """Base of all expressions. The span plays no part in comparisons: two equal texts are equal expressions."""

    span: SourceSpan = field(compare=False, repr=False)


@dataclass(frozen=True)
class Number(Expression):
    """``42``, ``0.5f``, ``32U``, ``true``: the value and the type that its suffix gives it."""

    value: int | float
    type: CType


@dataclass(frozen=True)
class String(Expression):
    """A string literal, without its quotes."""

    value: str


@dataclass(frozen=True)
class Null(Expression):
    """``nullptr`` or ``NULL``."""


@dataclass(frozen=True)
class Name(Expression):
    """An identifier, qualified (``x128::size``) or not."""

    name: str


@dataclass(frozen=True)
class Unary(Expression):
    """``-x``, ``!x``, ``~x``, ``*p``, ``&x``."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary(Expression):
    """``a + b`` and all other infix operators but assignments."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Conditional(Expression):
    """``c ? a : b``."""

    condition: Expression
    consequence: Expression
    alternative: Expression


@dataclass(frozen=True)
class TemplateArgument:
    """A template argument: a type or a value."""

    type: CType | None
    value: Expression | None
    text: str = field(compare=False)


@dataclass(frozen=True)
class Call(Expression):
    """``f(a, b)``, ``f<T>(a)``: a free function, by name."""

    function: str
    template: tuple[TemplateArgument, ...]
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class TemplateName(Expression):
    """``kernel<float, 8>`` that is not called: a function as a value."""

    name: str
    template: tuple[TemplateArgument, ...]


@dataclass(frozen=True)
class MethodCall(Expression):
    """``p->bs()``, ``x.size()``."""

    object: Expression
    method: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Construct(Expression):
    """``dim3(a, b)``, ``std::integral_constant<int, 3>{}``: a value of a named class."""

    type: CType
    template: tuple[TemplateArgument, ...]
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Member(Expression):
    """``deviceProp.multiProcessorCount``, ``p->n``."""

    object: Expression
    field: str


@dataclass(frozen=True)
class Index(Expression):
    """``a[i]``."""

    object: Expression
    index: Expression


@dataclass(frozen=True)
class Cast(Expression):
    """``(float*)p``, ``reinterpret_cast<float*>(p)``, ``int(x)``."""

    type: CType
    operand: Expression


@dataclass(frozen=True)
class SizeOf(Expression):
    """``sizeof(floatX)``."""

    type: CType


@dataclass(frozen=True)
class SizeOfValue(Expression):
    """``sizeof x``: of an expression, by its type."""

    operand: Expression


@dataclass(frozen=True)
class InitializerList(Expression):
    """``{1, 2, 3}``."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class PrecisionChoice(Expression):
    """A macro whose value the precision decides: an expression for each precision that it is defined in."""

    values: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Unreadable(Expression):
    """Text that is no expression of the kinds above."""

    text: str
    reason: str


#: Types of what is no part of an expression: nearly all that nodes hold.
_LEAVES = frozenset({SourceSpan, CType, str, int, float, bool, type(None)})


def walk(expression: Expression) -> list[Expression]:
    """Return the expression and all that it is made of."""
    found: list[Expression] = [expression]
    for value in vars(expression).values():
        if type(value) in _LEAVES:
            continue
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Expression):
                found += walk(item)
            elif isinstance(item, TemplateArgument) and item.value is not None:
                found += walk(item.value)
    return found
