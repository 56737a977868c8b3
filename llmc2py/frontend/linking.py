"""Kernels that one file launches and another defines: a prototype is all that the launching file has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmc2py.ir import statements as ir
from llmc2py.ir.library import Kernel, SourceFile


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
    return tuple(found)


def _launched(file: SourceFile) -> set[str]:
    return {
        statement.kernel
        for launcher in file.launchers
        for statement in ir.walk(launcher.body)
        if isinstance(statement, ir.Launch)
    }
