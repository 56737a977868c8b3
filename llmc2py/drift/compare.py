"""Two snapshots held against each other."""

from __future__ import annotations

from collections.abc import Iterator

from llmc2py.drift.changes import Change, Meaning
from llmc2py.drift.codechanges import own_tokens
from llmc2py.drift.kernels import kernel_changes
from llmc2py.drift.launchers import launcher_changes, launcher_tokens
from llmc2py.drift.matching import Renames, file_of, name_of, pair
from llmc2py.drift.snapshot import Snapshot
from llmc2py.drift.subjects import Subject, lone_changes, precision_changes, signature, subjects

_ARRAYS = ("inputs", "parameters", "outputs")


def compare(old: Snapshot, new: Snapshot) -> list[Change]:
    """Return all changes from one snapshot to another, kernels first; none where a tree is compared with itself."""
    changes = [*_kernels_and_launchers(old, new), *_references(old, new), *_layers(old, new)]
    return [*changes, *_files(old, new, changes)]


def _kernels_and_launchers(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    pairs, gone, come = pair(
        old.kernels,
        new.kernels,
        lambda key: own_tokens(old.slice(key)),
        lambda key: own_tokens(new.slice(key)),
        window=3,
    )
    yield from lone_changes("kernel", gone, come, old.kernels, new.kernels)
    for subject in subjects("kernel", pairs, old.kernels, new.kernels):
        yield from kernel_changes(subject, old, new)
    renamed = Renames(pairs)
    launchers, gone, come = pair(
        old.launchers,
        new.launchers,
        lambda key: launcher_tokens(key, old.launchers[key], renamed),
        lambda key: launcher_tokens(key, new.launchers[key], Renames()),
    )
    yield from lone_changes("launcher", gone, come, old.launchers, new.launchers)
    renamed = Renames([*pairs, *launchers])
    for subject in subjects("launcher", launchers, old.launchers, new.launchers):
        yield from launcher_changes(subject, new, renamed)


def _references(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    pairs, gone, come = pair(
        old.references,
        new.references,
        lambda key: [old.references[key].get("body", key)],
        lambda key: [new.references[key].get("body", key)],
    )
    yield from lone_changes("reference", gone, come, old.references, new.references)
    for subject in subjects("reference", pairs, old.references, new.references):
        before, after = subject.before, subject.after
        if before != after:
            text = f"was {name_of(before)} in {file_of(before)}"
            yield subject.change(Meaning.COSMETIC, "reference-moved", text, before, after)
        if subject.old["parameters"] != subject.new["parameters"]:
            spelled = signature(before, subject.old), signature(after, subject.new)
            yield subject.change(
                Meaning.NUMBERS, "reference-changed", "parameters of the C reference changed", *spelled
            )
        elif subject.old.get("body") != subject.new.get("body"):
            text = "body changed: what results are compared with is another"
            yield subject.change(Meaning.NUMBERS, "reference-changed", text)


def _layers(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    for name in sorted(old.layers.keys() | new.layers.keys()):
        before, after = old.layers.get(name), new.layers.get(name)
        file = str((after or before or {}).get("file", ""))
        subject = Subject("layer", f"{file}:{name}", f"{file}:{name}", before or {}, after or {})
        if before is None:
            yield subject.change(Meaning.ADDITION, "layer-added", "added")
        elif after is None:
            yield subject.change(Meaning.BREAKING, "layer-removed", "removed")
        else:
            yield from _layer(subject)


def _layer(subject: Subject) -> Iterator[Change]:
    for role in _ARRAYS:
        spelled = [", ".join(one.get(role, ())) or "none" for one in (subject.old, subject.new)]
        if spelled[0] != spelled[1]:
            text = f"{role} changed: {spelled[0]} is now {spelled[1]}"
            yield subject.change(Meaning.BREAKING, "layer-arrays-changed", text, *spelled)
    yield from precision_changes(subject)
    if subject.old.get("passes") != subject.new.get("passes"):
        text = "forward or backward pass changed in the catalogue"
        yield subject.change(Meaning.NUMBERS, "layer-passes-changed", text)
    if subject.old.get("reference") != subject.new.get("reference"):
        text = "reference changed in the catalogue: what results are compared with is another"
        yield subject.change(Meaning.NUMBERS, "reference-changed", text)


def _files(old: Snapshot, new: Snapshot, changes: list[Change]) -> Iterator[Change]:
    """Yield the source files that differ although nothing that comes from them does."""
    explained = {file for change in changes for file in change.files}
    for file in sorted(old.sources.keys() | new.sources.keys()):
        before, after = old.sources.get(file), new.sources.get(file)
        if before == after or file in explained:
            continue
        what = "removed" if after is None else "added" if before is None else "text changed"
        text = f"{what}: comments, white space, or code that no kernel, launcher or reference has"
        yield Change(Meaning.COSMETIC, "file-changed", "file", file, file, text, files=frozenset({file}))
