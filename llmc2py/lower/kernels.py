"""The kernels of a tree that Python can call, and their names there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmc2py.diagnostics import Diagnostic, Severity
from llmc2py.ir import statements as ir
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.library import Kernel, SourceFile
from llmc2py.ir.names import OP_NAMES, is_reserved
from llmc2py.ir.types import FLOATING_TYPES, INTEGER_TYPES, VECTOR_TYPES
from llmc2py.lower.control import declared
from llmc2py.lower.reach import called

_TEMPLATE_KINDS = frozenset({"type", "bool", *INTEGER_TYPES})


def listed(entry: CatalogEntry) -> dict[str, str]:
    """Return what an entry may use: the file of each launcher or kernel by name."""
    found = dict.fromkeys((*entry.launchers, *entry.kernels), entry.source)
    for item in entry.uses:
        file, _, name = item.rpartition(":")
        found[name] = file or entry.source
    return found


def callable_kernels(files: Iterable[SourceFile]) -> tuple[dict[tuple[str, str], Kernel], list[Diagnostic]]:
    """Return the kernels that Python can call by file and name, and why others cannot be called."""
    kernels: dict[tuple[str, str], Kernel] = {}
    diagnostics: list[Diagnostic] = []
    for file in files:
        for kernel in file.kernels:
            if kernel.slice is None:
                continue
            reason = _uncallable(kernel)
            if reason:
                message = f"kernel {kernel.name} cannot be called from Python and is left out: {reason}"
                diagnostics.append(Diagnostic(Severity.WARNING, kernel.span, message))
            else:
                kernels[file.path, kernel.name] = kernel
    return kernels, diagnostics


def kernel_symbols(
    files: Mapping[str, SourceFile], kernels: Mapping[tuple[str, str], Kernel], entries: Iterable[CatalogEntry]
) -> dict[tuple[str, str], str]:
    """Return the Python names of kernels.

    A kernel may share its name with a launcher, an op, a variable of who launches it, or a kernel of another
    namespace; Python has one namespace for all.
    """
    entries = list(entries)
    beside_ops = {place for entry in entries for place in (entry.source, *listed(entry).values())}
    taken = {path: {launcher.name for launcher in file.launchers} for path, file in files.items()}
    for entry in entries:
        taken[entry.source] |= {entry.name, f"{entry.layer}Function"}
    hidden: set[tuple[str, str]] = set()
    told_apart: set[tuple[str, str]] = set()
    for file in files.values():
        hidden |= _hidden(file)
        told_apart |= _told_apart(file)
    symbols: dict[tuple[str, str], str] = {}
    for (path, name), kernel in kernels.items():
        is_taken = name in taken[path] or is_reserved(name) or (path in beside_ops and name in OP_NAMES)
        outer = kernel.namespace.replace("::", "_") if (path, name) in told_apart else ""
        symbol = f"{outer}_{name}" if outer else name
        symbols[path, name] = f"{symbol}_kernel" if is_taken or (path, name) in hidden else symbol
    return symbols


def _hidden(file: SourceFile) -> set[tuple[str, str]]:
    """Return the kernels that a file launches by a name that is a host function or variable as well."""
    found = set()
    for launcher in file.launchers:
        names = {one.name for one in launcher.parameters} | declared(launcher.body) | called(launcher)
        for statement in ir.walk(launcher.body):
            seen = file.scope.kernels.get(statement.kernel) if isinstance(statement, ir.Launch) else None
            if seen is not None and seen.name in names | {one.name for one in file.launchers}:
                found.add((seen.span.file, seen.name))
    return found


def _told_apart(file: SourceFile) -> set[tuple[str, str]]:
    """Return the kernels of which a file sees others of the same name."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for kernel in file.scope.kernels.values():
        seen.setdefault(kernel.name, set()).add((kernel.span.file, kernel.name))
    return {place for places in seen.values() if len(places) > 1 for place in places}


def _uncallable(kernel: Kernel) -> str:
    """Return why a kernel's name or parameters cannot be given from Python ("" where they can)."""
    if not kernel.name.isidentifier():
        return f"{' '.join(kernel.name.split())} is no name"
    types = {one.name for one in kernel.template if one.kind == "type"}
    for one in kernel.template:
        if one.kind not in _TEMPLATE_KINDS and (one.kind == "pack" or not one.kind.isidentifier()):
            return f"template parameter {one.name} is a {one.kind}"
    known = INTEGER_TYPES.keys() | FLOATING_TYPES | types
    values = {one.name for one in kernel.template if one.kind != "type"}
    for parameter in kernel.parameters:
        base = parameter.type.base
        if parameter.type.pointers > 1:
            return f"parameter {parameter.name} is a pointer to pointers"
        if parameter.type.tag in values:
            continue
        if not (base in known or (parameter.type.is_pointer and base in (*VECTOR_TYPES, "void"))):
            return f"parameter {parameter.name} has type {parameter.type}"
    return ""
