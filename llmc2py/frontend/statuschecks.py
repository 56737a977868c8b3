"""Checks of what CUDA calls return: operations of a plan raise by themselves, so that the call alone is left."""

from __future__ import annotations

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir

_STATUS_TYPES = frozenset({"cudaError_t", "cudaError", "auto"})
_SUCCESS = frozenset({"cudaSuccess"})
#: Whether there is so much shared memory is for the source to ask.
_ASKED = frozenset({"cudaFuncSetAttribute"})
_HARMLESS = (ir.Evaluate, ir.Return, ir.Unsupported, ir.Block)


def without_checks(body: ir.Body) -> ir.Body:
    """Replace checks by what they check.

    ``cudaError_t e = cudaMemset(…); if (e != cudaSuccess) { printf(…); exit(1); }`` and
    ``if (cudaMemset(…) != cudaSuccess) …`` become ``cudaMemset(…);``.
    """
    found: list[ir.Statement] = []
    rest = list(body)
    while rest:
        statement = rest.pop(0)
        checked = _compared(statement) if isinstance(statement, ir.If) else None
        if isinstance(checked, ex.Call) and _is_checked(checked):
            statement = ir.Evaluate(statement.span, checked)
        elif isinstance(statement, ir.Declare) and rest and _is_status(statement, rest):
            rest.pop(0)
            assert statement.value is not None
            statement = ir.Evaluate(statement.span, statement.value)
        found.append(statement)
    return tuple(found)


def _is_status(declared: ir.Declare, rest: list[ir.Statement]) -> bool:
    """Whether a variable holds what a call returns, for the check that follows it and for nothing else."""
    if declared.type.base not in _STATUS_TYPES or not isinstance(declared.value, ex.Call):
        return False
    checked = _compared(rest[0]) if isinstance(rest[0], ir.If) else None
    is_named = isinstance(checked, ex.Name) and checked.name == declared.name
    return is_named and _is_checked(declared.value) and not any(_names(one, declared.name) for one in rest[1:])


def _is_checked(call: ex.Call) -> bool:
    return call.function.startswith("cuda") and call.function not in _ASKED


def _compared(statement: ir.If) -> ex.Expression | None:
    """Return what is compared with success by a check that does nothing but report, None where it is none."""
    if statement.alternative or not all(isinstance(one, _HARMLESS) for one in ir.walk(statement.consequence)):
        return None
    condition = statement.condition
    if isinstance(condition, ex.Binary) and condition.operator == "!=":
        for value, other in ((condition.left, condition.right), (condition.right, condition.left)):
            if isinstance(other, ex.Name) and other.name in _SUCCESS:
                return value
        return None
    return condition if isinstance(condition, (ex.Name, ex.Call)) else None


def _names(statement: ir.Statement, name: str) -> bool:
    return any(
        isinstance(part, ex.Name) and part.name == name
        for inner in ir.walk((statement,))
        for value in vars(inner).values()
        if isinstance(value, ex.Expression)
        for part in ex.walk(value)
    )
