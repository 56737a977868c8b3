"""Cooperative launches, which CUDA has as a call of a function: they become launches like any other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.types import CType

COOPERATIVE_LAUNCH = "cudaLaunchCooperativeKernel"

_Arguments = tuple[ex.Expression, ...]


def with_launches(body: ir.Body) -> ir.Body:
    """Replace cooperative launches by ``k<<<…>>>(…)``, and drop the arrays of pointers to their arguments.

    ``void* args[] = {&out, &n}; cudaLaunchCooperativeKernel((void*)k, grid, block, args, shared, stream);``
    """
    calls = [call for one in ir.walk(body) if (call := _launching(one)) is not None]
    if not calls:
        return body
    used = {call.arguments[3].name for call in calls if isinstance(call.arguments[3], ex.Name)}
    lists = {
        one.name: _addressed(one.value)
        for one in ir.walk(body)
        if isinstance(one, ir.Declare) and one.name in used and isinstance(one.value, ex.InitializerList)
    }
    return _replaced(body, lists)


def _launching(statement: ir.Statement) -> ex.Call | None:
    """Return the call of a cooperative launch that a statement is, bare or inside a check."""
    call = statement.expression if isinstance(statement, ir.Evaluate) else None
    if isinstance(call, ex.Call) and len(call.arguments) == 1 and isinstance(call.arguments[0], ex.Call):
        call = call.arguments[0]
    if not isinstance(call, ex.Call) or call.function != COOPERATIVE_LAUNCH or not 4 <= len(call.arguments) <= 6:
        return None
    return call


def _addressed(value: ex.InitializerList) -> _Arguments | None:
    items = [_without_casts(item) for item in value.items]
    found = tuple(item.operand for item in items if isinstance(item, ex.Unary) and item.operator == "&")
    return found if len(found) == len(items) else None


def _without_casts(node: ex.Expression) -> ex.Expression:
    while isinstance(node, ex.Cast):
        node = node.operand
    return node


def _replaced(body: ir.Body, lists: dict[str, _Arguments | None]) -> ir.Body:
    return tuple(_rewritten(one, lists) for one in body if not (isinstance(one, ir.Declare) and one.name in lists))


def _rewritten(statement: ir.Statement, lists: dict[str, _Arguments | None]) -> ir.Statement:
    call = _launching(statement)
    if call is not None:
        return _launch(statement, call, lists)
    inner: dict[str, Any] = {}
    for field in fields(statement):
        value = getattr(statement, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], ir.Statement):
            inner[field.name] = _replaced(value, lists)
        elif isinstance(value, tuple) and value and isinstance(value[0], ir.Case):
            inner[field.name] = tuple(replace(case, body=_replaced(case.body, lists)) for case in value)
    return replace(statement, **inner) if inner else statement


def _launch(statement: ir.Statement, call: ex.Call, lists: dict[str, _Arguments | None]) -> ir.Statement:
    kernel, grid, block, given, *rest = call.arguments
    kernel = _without_casts(kernel)
    if isinstance(kernel, ex.Unary) and kernel.operator == "&":
        kernel = kernel.operand
    arguments = lists.get(given.name) if isinstance(given, ex.Name) else None
    if not isinstance(kernel, ex.Name) or arguments is None:
        reason = "a cooperative launch names its kernel, and an array of the addresses of its arguments"
        return ir.Unsupported(statement.span, call.function, reason)
    shared, stream = (*rest, None, None)[:2]
    zero = ex.Number(call.span, 0, CType("int"))
    return ir.Launch(statement.span, kernel.name, (), grid, block, shared or zero, stream or zero, arguments)
