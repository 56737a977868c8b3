"""Headers that lean on what is included before them: their kernels are cut out of a unit that includes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmc2py.diagnostics import Diagnostic, Severity
from llmc2py.ir.library import Item, Kernel, Slice, SourceFile


def with_includers(files: Sequence[SourceFile]) -> tuple[tuple[SourceFile, ...], list[Diagnostic]]:
    """Return the files, kernels of headers that are not complete with the slices of the first unit in which they are.

    A warning says where other units give such a kernel another meaning.
    """
    seen: dict[str, list[tuple[str, dict[str, Kernel]]]] = {}
    for file in files:
        kernels: dict[str, dict[str, Kernel]] = {}
        for kernel in file.scope.kernels.values():
            if kernel.slice is not None and kernel.span.file != file.path:
                kernels.setdefault(kernel.span.file, {})[kernel.name] = kernel
        for header, found in kernels.items():
            seen.setdefault(header, []).append((file.path, found))
    diagnostics: list[Diagnostic] = []
    return tuple(_completed(file, seen.get(file.path, ()), diagnostics) for file in files), diagnostics


def _completed(
    file: SourceFile, units: Iterable[tuple[str, dict[str, Kernel]]], diagnostics: list[Diagnostic]
) -> SourceFile:
    sliced = {kernel.name: kernel.slice for kernel in file.kernels if kernel.slice is not None}
    # Items of one unit alone can stand in one text: all kernels of a file are taken from the same.
    whole = [(path, found) for path, found in units if sliced.keys() <= found.keys()]
    lacking: dict[str, set[str]] = {}
    for _, found in whole:
        for name, own in sliced.items():
            lacking.setdefault(name, set()).update(_lacking(own, found[name].slice))
    lacking = {name: names for name, names in lacking.items() if names}
    if not lacking:
        return file
    complete = [
        (path, found)
        for path, found in whole
        if all(_lacking(sliced[name], found[name].slice) == names for name, names in lacking.items())
    ]
    first, chosen = (complete or whole)[0]
    for name, names in lacking.items():
        others = [path for path, found in whole if _text(found[name].slice) != _text(chosen[name].slice)]
        if others:
            message = (
                f"kernel {name} uses {', '.join(sorted(names))}, which this file does not include and {others[0]} "
                f"gives another meaning than {first}; that of {first} is taken"
            )
            span = next(one.span for one in file.kernels if one.name == name)
            diagnostics.append(Diagnostic(Severity.WARNING, span, message, name))
    kernels = tuple(
        replace(one, slice=chosen[one.name].slice, precisions=chosen[one.name].precisions) if one.slice else one
        for one in file.kernels
    )
    # The key is that of the file alone, and these depend on another.
    return replace(file, kernels=kernels, key="")


def _lacking(own: Slice, other: Slice | None) -> set[str]:
    """Return the names that a slice uses and lacks, and that it has in another unit: from earlier there."""
    if other is None:
        return set()
    used = {name for item in own.items for name in item.uses} - {name for item in own.items for name in item.defines}
    place = next(item.order for item in other.items if item.is_kernel and other.kernel in item.defines)
    known = {_place(item): item for item in own.items}
    found = {name for item in other.items if item.order < place and _place(item) not in known for name in item.defines}
    # A macro of the other unit leaves no name behind.
    expanded = {
        name
        for item in other.items
        if (same := known.get(_place(item))) is not None and same.text != item.text
        for name in same.uses - item.uses
    }
    return used & (found | expanded)


def _place(item: Item) -> tuple[str, int, frozenset[str]]:
    return item.span.file, item.span.line, item.defines


def _text(part: Slice | None) -> list[str]:
    return [item.text for item in part.items] if part is not None else []
