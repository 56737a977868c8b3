"""A part of what is compared: the layers, source files and kernels that the user names by globs."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from llmc2py.diagnostics import Diagnostic
from llmc2py.drift.matching import file_of, name_of
from llmc2py.drift.snapshot import Snapshot
from llmc2py.pipeline import not_selected


def narrowed(snapshot: Snapshot, globs: Sequence[str]) -> Snapshot:
    """Return what globs name of a snapshot: layers (or ops) with the files that they use, source files, kernels."""
    layers = {name: record for name, record in snapshot.layers.items() if _matches((name, record.get("op", "")), globs)}
    files = {file for file in snapshot.sources if _matches((file,), globs)}
    files |= {file for record in layers.values() for file in _used(snapshot, record)}
    part = copy.copy(snapshot)
    part.layers = layers
    part.kernels = {
        key: record
        for key, record in snapshot.kernels.items()
        if file_of(key) in files or _matches((name_of(key),), globs)
    }
    part.launchers = {key: record for key, record in snapshot.launchers.items() if file_of(key) in files}
    part.references = {key: record for key, record in snapshot.references.items() if file_of(key) in files}
    part.sources = {file: digest for file, digest in snapshot.sources.items() if file in files}
    return part


def concerns(item: Diagnostic, part: Snapshot) -> bool:
    """Whether a diagnostic is of what was chosen, or of a catalogue entry."""
    if item.kernel is not None:
        return f"{item.span.file}:{item.kernel}" in part.kernels
    return item.span.file in part.sources or item.span.file.endswith(".toml")


def check_globs(snapshots: Iterable[Snapshot], globs: Sequence[str]) -> None:
    """Raise UsageError for a glob that names nothing of any snapshot: it is a slip."""
    names = [name for snapshot in snapshots for name in _names(snapshot)]
    for glob in globs:
        if not fnmatch.filter(names, glob):
            raise not_selected(glob, names)


def _names(snapshot: Snapshot) -> Iterator[str]:
    yield from snapshot.sources
    yield from map(name_of, snapshot.kernels)
    for name, record in snapshot.layers.items():
        yield from (name, record.get("op", name))


def _used(snapshot: Snapshot, layer: dict[str, object]) -> Iterator[str]:
    """Yield the source files of a layer: those that the modules are of which it takes anything."""
    yield str(layer.get("file", ""))
    listed = layer.get("modules")
    modules = {str(one).replace("/", ".") for one in listed} if isinstance(listed, list) else set()
    for key, record in (*snapshot.kernels.items(), *snapshot.launchers.items()):
        if str(record.get("python", "")).rpartition(".")[0] in modules:
            yield file_of(key)


def _matches(names: Iterable[str], globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs)
