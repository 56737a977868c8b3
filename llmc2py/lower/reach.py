"""What host functions call and launch."""

from __future__ import annotations

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.blas import PRODUCT_CALLS
from llmc2py.ir.library import Launcher, Scope


def launches(launcher: Launcher, scope: Scope, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a host function launches kernels, itself or through what it calls."""
    if launcher.launch_sites or launcher_parameters(launcher):
        return True
    if launcher.name in seen:
        return False
    names = called(launcher)
    if names & PRODUCT_CALLS.keys():
        return True
    seen = seen | {launcher.name}
    return any(launches(version, scope, seen) for name in names for version in scope.functions.get(name, ()))


def calls_itself(launcher: Launcher, scope: Scope) -> bool:
    """Whether a host function calls itself, directly or through others."""
    seen: set[str] = set()
    pending = called(launcher)
    while pending:
        name = pending.pop()
        if name == launcher.name:
            return True
        if name not in seen:
            seen.add(name)
            pending |= {other for version in scope.functions.get(name, ()) for other in called(version)}
    return False


def called(launcher: Launcher) -> set[str]:
    """Return the names of the functions that a launcher calls."""
    return {name for statement in ir.walk(launcher.body) for name in called_in(statement)}


def mentioned(launcher: Launcher) -> set[str]:
    """Return the names of kernels and functions that a launcher may launch, call or pass on; others are among them."""
    found: set[str] = set()
    for statement in ir.walk(launcher.body):
        found |= called_in(statement)
        found |= {statement.kernel} if isinstance(statement, ir.Launch) else set()
        for value in vars(statement).values():
            for item in value if isinstance(value, tuple) else (value,):
                parts = ex.walk(item) if isinstance(item, ex.Expression) else ()
                found |= {part.name for part in parts if isinstance(part, (ex.Name, ex.TemplateName))}
                found |= {part.function for part in parts if isinstance(part, ex.Call)}
    return found


def called_in(statement: ir.Statement) -> set[str]:
    """Return the names of the functions that a statement's own expressions call."""
    return {
        part.function
        for value in vars(statement).values()
        if isinstance(value, ex.Expression)
        for part in ex.walk(value)
        if isinstance(part, ex.Call)
    }


def launcher_parameters(launcher: Launcher) -> set[str]:
    """Return the parameters of a template type that a launcher calls."""
    types = {one.name for one in launcher.template if one.kind == "type"}
    names = {one.name for one in launcher.parameters if one.type.base in types and not one.type.is_pointer}
    return names & called(launcher) if names else set()
