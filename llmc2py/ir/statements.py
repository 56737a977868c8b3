"""Statements of host code.

::

    Statement = Declare | Assign | Launch | Evaluate | LocalFunction | If | For | While | Switch | Block | Return
              | Break | Continue | PrecisionBranch | Unsupported
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.expressions import Expression, TemplateArgument
from llmc2py.ir.types import CType


@dataclass(frozen=True)
class Statement:
    """Base of all statements."""

    span: SourceSpan = field(compare=False, repr=False)


Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Declare(Statement):
    """``const int n = a * b;`` and ``dim3 grid(x, y);``: one declared name with its initial value."""

    name: str
    type: CType
    value: Expression | None
    is_static: bool = False


@dataclass(frozen=True)
class Assign(Statement):
    """``n = a;``, ``n += a;``, ``n++;``: the operator without its ``=`` ("" for a plain assignment)."""

    target: Expression
    operator: str
    value: Expression


@dataclass(frozen=True)
class Launch(Statement):
    """``kernel<T, 8><<<grid, block, shared, stream>>>(arguments);``."""

    kernel: str
    template: tuple[TemplateArgument, ...]
    grid: Expression
    block: Expression
    shared: Expression | None
    stream: Expression | None
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Evaluate(Statement):
    """An expression for its effect."""

    expression: Expression


@dataclass(frozen=True)
class LocalFunction(Statement):
    """``auto launch = [&](auto n) { ... };``."""

    name: str
    parameters: tuple[str, ...]
    body: Body


@dataclass(frozen=True)
class If(Statement):
    """``if (c) { ... } else { ... }``."""

    condition: Expression
    consequence: Body
    alternative: Body
    is_constexpr: bool = False


@dataclass(frozen=True)
class For(Statement):
    """``for (init; condition; update) { ... }``."""

    init: Body
    condition: Expression | None
    update: Body
    body: Body


@dataclass(frozen=True)
class While(Statement):
    """``while (c) { ... }``."""

    condition: Expression
    body: Body


@dataclass(frozen=True)
class Case:
    """One ``case`` of a switch; no value for ``default``."""

    values: tuple[Expression, ...]
    is_default: bool
    body: Body


@dataclass(frozen=True)
class Switch(Statement):
    """``switch (n) { case 1: ... break; default: ... }``."""

    subject: Expression
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Block(Statement):
    """``{ ... }`` inside a body, where it declares names of its own."""

    body: Body


@dataclass(frozen=True)
class Return(Statement):
    """``return x;``."""

    value: Expression | None


@dataclass(frozen=True)
class Break(Statement):
    """``break;``."""


@dataclass(frozen=True)
class Continue(Statement):
    """``continue;``."""


@dataclass(frozen=True)
class Unsupported(Statement):
    """A statement that is none of the above: its text, and why it cannot be read."""

    text: str
    reason: str


@dataclass(frozen=True)
class PrecisionBranch(Statement):
    """Statements inside a preprocessor condition that is left open: ``#if defined(ENABLE_BF16)``."""

    condition: str
    body: Body


def walk(body: Body) -> list[Statement]:
    """Return all statements of a body, the nested ones too, in source order."""
    found: list[Statement] = []
    for statement in body:
        found.append(statement)
        for value in vars(statement).values():
            if isinstance(value, tuple) and value and isinstance(value[0], Statement):
                found += walk(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Case):
                for case in value:
                    found += walk(case.body)
    return found
