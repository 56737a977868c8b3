"""Questions about host control flow: what ends a body, what leaves a switch, which variables a body changes."""

from __future__ import annotations

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir


def ends(body: ir.Body) -> bool:
    """Whether the last statement leaves the body: a break, return, continue or exit."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ir.PrecisionBranch):
        return ends(last.body)
    return isinstance(last, (ir.Break, ir.Return, ir.Continue)) or is_exit(last)


def is_exit(statement: ir.Statement) -> bool:
    """``exit(1);`` and the like."""
    call = statement.expression if isinstance(statement, ir.Evaluate) else None
    return isinstance(call, ex.Call) and call.function.removeprefix("std::") in ("exit", "abort")


def without_break(body: ir.Body) -> ir.Body:
    """Return the body of a case without the break that ends it."""
    if body and isinstance(body[-1], ir.PrecisionBranch):
        last = body[-1]
        return (*body[:-1], ir.PrecisionBranch(last.span, last.condition, without_break(last.body)))
    return body[:-1] if body and isinstance(body[-1], ir.Break) else body


def inner_break(body: ir.Body) -> ir.Break | None:
    """Return a break that leaves what encloses the body, but for one inside a loop or switch of its own."""
    for statement in body:
        found: ir.Break | None = None
        if isinstance(statement, ir.Break):
            found = statement
        elif isinstance(statement, ir.If):
            found = inner_break((*statement.consequence, *statement.alternative))
        elif isinstance(statement, ir.PrecisionBranch):
            found = inner_break(statement.body)
        if found is not None:
            return found
    return None


def assigned(body: ir.Body) -> set[str]:
    """Return the names of the variables that a body assigns to, those of calls by address too."""
    found = set()
    for statement in ir.walk(body):
        if isinstance(statement, ir.Assign):
            found |= {part.name for part in ex.walk(statement.target) if isinstance(part, ex.Name)}
        elif isinstance(statement, ir.Evaluate):
            found |= {
                part.operand.name
                for part in ex.walk(statement.expression)
                if isinstance(part, ex.Unary) and part.operator == "&" and isinstance(part.operand, ex.Name)
            }
    return found


def declared(body: ir.Body) -> set[str]:
    """Return the names of the variables that a body declares."""
    return {statement.name for statement in ir.walk(body) if isinstance(statement, ir.Declare)}


def names(expression: ex.Expression) -> set[str]:
    """Return all names in an expression."""
    return {part.name for part in ex.walk(expression) if isinstance(part, ex.Name)}


def members_of(name: str, body: ir.Body) -> set[str]:
    """Return the fields of a variable that a body mentions: ``y`` of ``grid.y``."""
    found: set[str] = set()
    for statement in ir.walk(body):
        for value in vars(statement).values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, ex.Expression):
                    found |= {
                        part.field
                        for part in ex.walk(item)
                        if isinstance(part, ex.Member) and isinstance(part.object, ex.Name) and part.object.name == name
                    }
    return found
