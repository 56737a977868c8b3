"""Kernels that one file launches and another defines, and launchers that are called so.

A prototype is all that the first file has of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmc2py.ir import statements as ir
from llmc2py.ir.library import Kernel, Launcher, SourceFile


def linked(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """Return the files with the kernels in scope that they launch and that just one other file defines."""
    defined: dict[str, list[Kernel]] = {}
    for file in files:
        for kernel in file.kernels:
            defined.setdefault(kernel.name, []).append(kernel)
    found = []
    for file in files:
        missing = sorted(_launched(file) - file.scope.kernels.keys())
        kernels = {name: defined[name][0] for name in missing if len(defined.get(name, ())) == 1}
        scope = replace(file.scope, kernels={**file.scope.kernels, **kernels})
        found.append(replace(file, scope=scope) if kernels else file)
    return _with_callers(found)


def _with_callers(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """Return the files with the functions among their launchers that call launchers which other files define.

    They cannot be lowered, and say so.
    """
    places = {one.name: one.span for file in files for one in file.launchers}
    callers = {file.path: dict[str, Launcher]() for file in files}
    grown = True
    while grown:
        grown = False
        for file in files:
            for caller, names in file.callers:
                called = sorted(names & places.keys())
                if called and caller.name not in callers[file.path]:
                    why = f"is defined at {places[called[0]].origin}, which is not included here; call it from Python"
                    body = (ir.Unsupported(caller.span, f"{called[0]}()", why),)
                    callers[file.path][caller.name] = replace(caller, body=body)
                    places.setdefault(caller.name, caller.span)
                    grown = True
    return tuple(_extended(file, tuple(callers[file.path].values())) for file in files)


def _extended(file: SourceFile, more: tuple[Launcher, ...]) -> SourceFile:
    if not more:
        return file
    # The key is that of the file alone, and these depend on others.
    return replace(file, launchers=(*file.launchers, *more), key="")


def _launched(file: SourceFile) -> set[str]:
    return {
        statement.kernel
        for launcher in file.launchers
        for statement in ir.walk(launcher.body)
        if isinstance(statement, ir.Launch)
    }
