"""Host code that refuses, ``if (n % 4 != 0) { printf(…); exit(1); }``, as assertions of what it wants instead."""

from __future__ import annotations

from collections.abc import Sequence

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.types import INT
from llmc2py.lower import control

_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_ARITHMETIC = frozenset("+-*/%&|^")


def none_of(conditions: Sequence[ex.Expression]) -> ex.Expression:
    """Return what holds in the last ``else`` behind these conditions."""
    either = conditions[0]
    for one in conditions[1:]:
        either = ex.Binary(one.span, "||", either, one)
    return ex.Unary(either.span, "!", either)


def explained(body: ir.Body, condition: ex.Expression) -> ir.Body:
    """Return the body of a branch, with the exit that it leads to as assertions that cannot hold under ``condition``.

    Bodies that do more than print before their exit stay: the condition may no longer mean the same there.
    """
    if not body or not control.is_exit(body[-1]) or not all(isinstance(one, ir.Evaluate) for one in body):
        return body
    span = body[-1].span
    wanted = [ex.Call(span, "assert", (), (negated(one),)) for one in _alternatives(condition)]
    return (*body[:-1], *(ir.Evaluate(span, one) for one in wanted))


def negated(node: ex.Expression) -> ex.Expression:
    """Return the opposite of a condition, as somebody would write it who asks for it."""
    if isinstance(node, ex.Unary) and node.operator == "!":
        return node.operand
    if isinstance(node, ex.Binary):
        if node.operator in _OPPOSITES:
            return ex.Binary(node.span, _OPPOSITES[node.operator], node.left, node.right)
        if node.operator in ("&&", "||"):
            joined = "||" if node.operator == "&&" else "&&"
            return ex.Binary(node.span, joined, negated(node.left), negated(node.right))
        if node.operator in _ARITHMETIC:
            return ex.Binary(node.span, "==", node, ex.Number(node.span, 0, INT))
    return ex.Unary(node.span, "!", node)


def _alternatives(condition: ex.Expression) -> list[ex.Expression]:
    """``a || b``: each is a reason of its own."""
    if isinstance(condition, ex.Binary) and condition.operator == "||":
        return [*_alternatives(condition.left), *_alternatives(condition.right)]
    return [condition]
