"""The stages in their order: source tree, library, plans, files."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import pathlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from llmc2py import __version__
from llmc2py.caching import paused_collection
from llmc2py.catalog import builtin_entries, builtin_replacements, read_entry
from llmc2py.catalog.bindings import builtin_bound
from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan, UsageError
from llmc2py.drift.record import BODIES, describe, precisions_of
from llmc2py.emit.lock import LOCK_NAME, emit_lock
from llmc2py.emit.render import render_package
from llmc2py.emit.targets import BASE_TARGET, TARGETS
from llmc2py.frontend.creference import parse_references
from llmc2py.frontend.preprocess import read_source
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.library import Library, Reference
from llmc2py.ir.plans import PackagePlan
from llmc2py.lower.modules import lower_library
from llmc2py.lower.reach import mentioned
from llmc2py.lower.surroundings import Surroundings
from llmc2py.modulecache import made_modules
from llmc2py.outputs import local_catalog
from llmc2py.revisions import commit_of
from llmc2py.treecache import TreeReading, read_tree_once


@dataclass(frozen=True)
class Generated:
    """The result of a run: files by name, the plan that they were rendered from, and what there is to say."""

    files: dict[str, str]
    plan: PackagePlan
    library: Library
    diagnostics: tuple[Diagnostic, ...]


def generate(
    source: pathlib.Path,
    catalogs: Sequence[pathlib.Path] = (),
    only: Sequence[str] = (),
    targets: Sequence[str] = (),
    commit: str | None = None,
    reading: TreeReading | None = None,
) -> Generated:
    """Read a source tree and render the package of it; nothing is written.

    ``catalogs`` are TOML files of entries beyond the built-in ones and those in the source's root; ``only`` are globs
    on source files, layers, ops and kernel names; ``targets`` are `TARGETS` or "cupy". ``commit`` is what the lock
    notes as the revision of the source; by default that of the git work tree whose root the source is. ``reading`` is
    the source where it is being read already. Raises UsageError for what cannot be read at all.
    """
    with paused_collection():
        return _generate(source, catalogs, only, sorted(set(targets) - {BASE_TARGET}), commit, reading)


def _generate(
    source: pathlib.Path,
    catalogs: Sequence[pathlib.Path],
    only: Sequence[str],
    targets: Sequence[str],
    commit: str | None,
    reading: TreeReading | None,
) -> Generated:
    entries = load_entries(source, catalogs)
    library = reading.library() if reading is not None else read_tree_once(source)
    if only:
        library, entries = _selected(library, entries, only)
    if not library.kernels:
        why = "".join(f"\n{item}" for item in library.diagnostics)
        raise UsageError(f"{source}: no kernel in it{' that --only selects' if only else ''}{why}")
    plan, diagnostics = lower_library(library, entries, _replacements(), _bound())
    made = made_modules(plan)
    files = render_package(plan, lambda module: made[module.path].files)
    for target in targets:
        files |= TARGETS[target](plan)
    catalog_hashes = {entry.file: hashlib.sha256(repr(entry).encode()).hexdigest() for entry in entries}
    lock = emit_lock(
        __version__,
        library.hashes,
        catalog_hashes,
        files,
        describe(library, plan, lambda module: made[module.path].records),
        precisions=precisions_of(library),
        only=only,
        targets=targets,
        commit=commit if commit is not None else commit_of(source),
    )
    BODIES.save()
    return Generated(files | {LOCK_NAME: lock}, plan, library, (*library.diagnostics, *diagnostics))


def plain_references(source: pathlib.Path) -> tuple[list[Reference], list[Diagnostic]]:
    """Return the references in the plain C files under a source, and what could not be read."""
    references: list[Reference] = []
    diagnostics: list[Diagnostic] = []
    for path in sorted(source.rglob("*.c")):
        name = path.relative_to(source)
        if any(part.startswith(".") for part in name.parts) or any(
            (folder / LOCK_NAME).is_file() for folder in path.parents if folder.is_relative_to(source)
        ):
            continue
        try:
            text = read_source(path)
        except (OSError, ValueError) as error:
            place = SourceSpan(name.as_posix(), 1)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            diagnostics.append(Diagnostic(Severity.WARNING, place, f"cannot be read: {reason}"))
            continue
        found, said = parse_references(text, name.as_posix())
        references += [Reference(one.name, one.span, one.double_params, one.double_source) for one in found]
        diagnostics += said
    return references, diagnostics


def load_entries(source: pathlib.Path, catalogs: Iterable[pathlib.Path]) -> list[CatalogEntry]:
    """Return the catalogue for a source: built in, then the TOML files in its root, then those named.

    An entry replaces an earlier one of its name.
    """
    entries = {entry.name: entry for entry in _entries()}
    for path in (*local_catalog(source), *catalogs):
        entry = read_entry(path)
        entries[entry.name] = entry
    return sorted(entries.values(), key=lambda entry: entry.name)


# What comes with llmc2py is read once, however many packages a process makes.
_entries = functools.cache(builtin_entries)
_replacements = functools.cache(builtin_replacements)
_bound = functools.cache(builtin_bound)


def _selected(library: Library, entries: list[CatalogEntry], only: Sequence[str]) -> tuple[Library, list[CatalogEntry]]:
    """Keep what the globs name: ops with the files that they use, source files, single kernels; and what these launch.

    Raises UsageError for a glob that names nothing: it is a slip.
    """
    names = [name for entry in entries if entry.layer for name in (entry.layer, entry.name)]
    names += [*(file.path for file in library.files), *(kernel.name for kernel in library.kernels)]
    for glob in only:
        if not fnmatch.filter(names, glob):
            raise not_selected(glob, names)
    # What has no layer comes with its file: its name would choose kernels' files that are not asked for.
    whole = {file.path for file in library.files if _matches(file.path, only)}
    chosen = [entry for entry in entries if (_is_chosen(entry, only) if entry.layer else entry.source in whole)]
    used = {entry.source for entry in chosen} | {item.rpartition(":")[0] for entry in chosen for item in entry.uses}
    used |= {file.path for file in library.files if _matches(file.path, only)}
    needed = _needed(library, used)
    files = []
    for file in library.files:
        if file.path in used:
            files.append(file)
            continue
        kernels = tuple(one for one in file.kernels if _matches(one.name, only) or one.span in needed)
        launchers = tuple(one for one in file.launchers if one.span in needed)
        if kernels or launchers:
            # What is a part of a file is not what its key stands for.
            files.append(replace(file, kernels=kernels, launchers=launchers, key=""))
    left_out = {file.path for file in library.files} - {file.path for file in files}
    kernels_kept = {kernel.name for file in files for kernel in file.kernels}
    diagnostics = tuple(
        item
        for item in library.diagnostics
        if (item.kernel in kernels_kept if item.kernel is not None else item.span.file not in left_out)
    )
    return replace(library, files=tuple(files), diagnostics=diagnostics), chosen


def _needed(library: Library, used: Collection[str]) -> set[SourceSpan]:
    """Return the places of all that the launchers of the used files launch and call, in whatever file it is."""
    tree = Surroundings(library.files, {}, {})
    launchers = {one.span: (file, one) for file in library.files for one in file.launchers}
    pending = [span for span, (file, _) in launchers.items() if file.path in used]
    found = set(pending)
    while pending:
        file, launcher = launchers[pending.pop()]
        for name in mentioned(launcher):
            kernel = file.scope.kernels.get(name)
            if kernel is not None:
                found.add(kernel.span)
            called = {one.span for one in tree.functions(file, name) if one.span in launchers} - found
            found |= called
            pending += called
    return found


def not_selected(glob: str, names: Iterable[str]) -> UsageError:
    """Return the error for a glob that no layer, source file or kernel is named like."""
    folded = {name.casefold(): name for name in sorted(names)}
    near = difflib.get_close_matches(glob.casefold(), folded, n=1)
    hint = f"; did you mean {folded[near[0]]}?" if near else ""
    return UsageError(f"--only {glob}: no layer, source file or kernel has such a name{hint}")


def _is_chosen(entry: CatalogEntry, only: Sequence[str]) -> bool:
    return _matches(entry.layer, only) or _matches(entry.name, only)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)
