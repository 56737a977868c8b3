"""Expressions found in, or made from, other expressions."""

from __future__ import annotations

from collections.abc import Callable

from llmc2py.ir import expressions as ir
from llmc2py.ir.types import CType


def ceil_div_operands(node: ir.Binary) -> tuple[ir.Expression, ir.Expression] | None:
    """``(a + b - 1) / b``, ``((a) + (b) - 1) / (b)``, ``(a + 255) / 256``, ``(a - 1) / b + 1`` is not one (a = 0)."""
    if node.operator != "/" or not isinstance(node.left, ir.Binary):
        return None
    divisor, total = node.right, node.left
    if (
        total.operator == "-"
        and _is_number(total.right, 1)
        and isinstance(total.left, ir.Binary)
        and total.left.operator == "+"
    ):
        for dividend, other in ((total.left.left, total.left.right), (total.left.right, total.left.left)):
            if other == divisor:
                return dividend, divisor
    if total.operator == "+":
        less_one = total.right
        if (
            isinstance(less_one, ir.Binary)
            and less_one.operator == "-"
            and _is_number(less_one.right, 1)
            and less_one.left == divisor
        ):
            return total.left, divisor
        if isinstance(less_one, ir.Number) and isinstance(divisor, ir.Number) and less_one.value == divisor.value - 1:
            return total.left, divisor
    return None


def _is_number(node: ir.Expression, value: int) -> bool:
    return isinstance(node, ir.Number) and node.value == value


def with_types(node: ir.Expression, types: dict[str, CType]) -> ir.Expression:
    """Return a class constant's value with template parameters replaced by types."""
    return _rebuilt(node, lambda part: _typed(part, types))


def _typed(node: ir.Expression, types: dict[str, CType]) -> ir.Expression | None:
    if isinstance(node, ir.SizeOf) and node.type.base in types:
        return ir.SizeOf(node.span, types[node.type.base])
    return None


def with_names(node: ir.Expression, names: dict[str, ir.Expression]) -> ir.Expression:
    """Return a function's result with its parameters replaced by arguments."""
    return _rebuilt(node, lambda part: names.get(part.name) if isinstance(part, ir.Name) else None)


def _rebuilt(node: ir.Expression, change: Callable[[ir.Expression], ir.Expression | None]) -> ir.Expression:
    changed = change(node)
    if changed is not None:
        return changed
    parts: dict[str, object] = {}
    for key, value in vars(node).items():
        if isinstance(value, ir.Expression):
            parts[key] = _rebuilt(value, change)
        elif isinstance(value, tuple) and any(isinstance(item, ir.Expression) for item in value):
            parts[key] = tuple(_rebuilt(item, change) for item in value)
        else:
            parts[key] = value
    return type(node)(**parts)  # type: ignore[arg-type]
