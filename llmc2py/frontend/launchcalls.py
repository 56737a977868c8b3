"""Launches that CUDA has as calls of a function: they become launches like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from llmc2py.frontend.launchwords import LAUNCH_CALLS
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.types import CType

#: Those that are given the addresses of the arguments.
_WITH_ADDRESSES = frozenset({"cudaLaunchKernel", "cudaLaunchCooperativeKernel"})
_REASONS = {
    "cudaLaunchKernelEx": "its configuration is a struct; launch the kernel with <<<grid, block>>> or cudaLaunchKernel",
    "cuLaunchKernel": "its kernel is a handle, which no source names; launch the kernel with <<<grid, block>>>",
}

_Arguments = tuple[ex.Expression, ...]


def with_launches(body: ir.Body) -> ir.Body:
    """Replace calls that launch by ``k<<<…>>>(…)``, and drop the arrays of pointers to their arguments.

    ``void* args[] = {&out, &n}; cudaLaunchKernel((void*)k, grid, block, args, shared, stream);``
    """
    calls = [call for one in ir.walk(body) if (call := _launching(one)) is not None]
    if not calls:
        return body
    unknown = next((call for call in calls if call.function not in _WITH_ADDRESSES), None)
    if unknown is not None:
        # What makes its configuration ready comes first, and would be told instead.
        return (_launch(unknown, {}), *body)
    used = {one.name for call in calls for one in call.arguments[3:4] if isinstance(one, ex.Name)}
    return _replaced(body, used, {})


def _launching(statement: ir.Statement) -> ex.Call | None:
    """Return the call of CUDA by which a statement launches: bare, inside a check, or for its status."""
    value = statement.expression if isinstance(statement, ir.Evaluate) else None
    value = statement.value if isinstance(statement, (ir.Return, ir.Declare, ir.Assign)) else value
    while isinstance(value, ex.Cast):
        value = value.operand
    if isinstance(value, ex.Call) and value.arguments and value.function not in LAUNCH_CALLS:
        value = value.arguments[0]
    return value if isinstance(value, ex.Call) and value.function in LAUNCH_CALLS else None


def _addressed(value: ex.InitializerList) -> _Arguments | None:
    items = [_without_casts(item) for item in value.items]
    found = tuple(item.operand for item in items if isinstance(item, ex.Unary) and item.operator == "&")
    return found if len(found) == len(items) else None


def _without_casts(node: ex.Expression) -> ex.Expression:
    while isinstance(node, ex.Cast):
        node = node.operand
    return node


def _replaced(body: ir.Body, used: set[str], outer: Mapping[str, _Arguments | None]) -> ir.Body:
    """Replace the launches of a body; ``outer`` are the arrays that it sees, by the names in ``used``."""
    lists = dict(outer)
    found: list[ir.Statement] = []
    for one in body:
        if isinstance(one, ir.Declare) and one.name in used:
            lists[one.name] = _addressed(one.value) if isinstance(one.value, ex.InitializerList) else None
        else:
            found += _rewritten(one, used, lists)
    return tuple(found)


def _rewritten(statement: ir.Statement, used: set[str], lists: Mapping[str, _Arguments | None]) -> ir.Body:
    call = _launching(statement)
    if call is not None:
        return (_launch(call, lists), *_status(statement))
    inner: dict[str, Any] = {}
    for field in fields(statement):
        value = getattr(statement, field.name)
        if isinstance(value, tuple) and value and isinstance(value[0], ir.Statement):
            inner[field.name] = _replaced(value, used, lists)
        elif isinstance(value, tuple) and value and isinstance(value[0], ir.Case):
            inner[field.name] = tuple(replace(case, body=_replaced(case.body, used, lists)) for case in value)
    return (replace(statement, **inner) if inner else statement,)


def _status(statement: ir.Statement) -> ir.Body:
    """Return what a statement does with the status of its launch, which raises by itself."""
    if isinstance(statement, ir.Return):
        return (ir.Return(statement.span, None),)
    if isinstance(statement, (ir.Declare, ir.Assign)):
        return (replace(statement, value=ex.Name(statement.span, "cudaSuccess")),)
    return ()


def _launch(call: ex.Call, lists: Mapping[str, _Arguments | None]) -> ir.Statement:
    if call.function not in _WITH_ADDRESSES:
        reason = next((text for name, text in _REASONS.items() if call.function.startswith(name)), "is not supported")
        return ir.Unsupported(call.span, call.function, reason)
    kernel = _without_casts(call.arguments[0]) if call.arguments else call
    if isinstance(kernel, ex.Unary) and kernel.operator == "&":
        kernel = _without_casts(kernel.operand)
    given = _without_casts(call.arguments[3]) if 4 <= len(call.arguments) <= 6 else None
    arguments = lists.get(given.name) if isinstance(given, ex.Name) else None
    if not isinstance(kernel, (ex.Name, ex.TemplateName)) or arguments is None:
        reason = "such a launch names its kernel, and a local array that is made with the addresses of its arguments"
        return ir.Unsupported(call.span, call.function, reason)
    shared, stream = (*call.arguments[4:], None, None)[:2]
    zero = ex.Number(call.span, 0, CType("int"))
    template = kernel.template if isinstance(kernel, ex.TemplateName) else ()
    grid, block = call.arguments[1:3]
    return ir.Launch(call.span, kernel.name, template, grid, block, shared or zero, stream or zero, arguments)
