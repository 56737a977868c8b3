"""What a user can compare: a folder of sources, a revision of one, a generated package."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmc2py.diagnostics import Diagnostic, UsageError
from llmc2py.drift.changes import Change
from llmc2py.drift.compare import compare
from llmc2py.drift.snapshot import Snapshot, is_package, snapshot_of_files, snapshot_of_package
from llmc2py.results import Request, generate
from llmc2py.revisions import tree_at
from llmc2py.upstream.narrowing import check_globs, concerns, narrowed


@dataclass(frozen=True)
class Difference:
    """What changed from one side to the other, and what there is to say of the new one that was not so of the old."""

    old: str
    new: str
    changes: list[Change]
    diagnostics: tuple[Diagnostic, ...]


def difference(old: str, new: str, catalogs: Sequence[pathlib.Path] = (), only: Sequence[str] = ()) -> Difference:
    """Compare two sides, each ``PATH`` or ``PATH@REV``: a folder of sources or a package.

    A package that was generated from a part of its source is compared with that part. ``only`` are globs on
    layers, ops, source files and kernels: of both sides what they name is compared. Raises UsageError where a side
    cannot be read, or a glob names nothing of either.
    """
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(_folder(side)) for side in (old, new)]
        packages = [snapshot_of_package(folder, side) if is_package(folder) else None
                    for folder, side in zip(folders, (old, new), strict=True)]  # fmt: skip
        part: Sequence[str] = next((one.options.get("only", []) for one in packages if one is not None), [])
        before, said = _side(old, folders[0], packages[0], catalogs, part)
        after, found = _side(new, folders[1], packages[1], catalogs, part)
        news = tuple(item for item in found if item not in said)
        if only:
            check_globs((before, after), only)
            before, after = narrowed(before, only), narrowed(after, only)
            news = tuple(item for item in news if concerns(item, after))
        return Difference(old, new, compare(before, after), news)


def _side(
    label: str, folder: pathlib.Path, package: Snapshot | None, catalogs: Sequence[pathlib.Path], only: Sequence[str]
) -> tuple[Snapshot, tuple[Diagnostic, ...]]:
    if package is not None:
        return package, ()
    made = generate(Request(folder, tuple(catalogs), tuple(only)))
    return snapshot_of_files(label, made.files), made.diagnostics


@contextlib.contextmanager
def _folder(side: str) -> Iterator[pathlib.Path]:
    """Give the folder of a side; a folder whose own name has an ``@`` in it goes before a revision."""
    path = pathlib.Path(side)
    place, at, revision = side.rpartition("@")
    if path.exists() or not at:
        if not path.is_dir():
            raise UsageError(f"{side}: {'is no folder' if path.exists() else 'no such folder'}")
        yield path
        return
    root = pathlib.Path(place or ".")
    if not root.is_dir():
        raise UsageError(f"{side}: no such folder, and {root} is none that could have a revision {revision}")
    with tree_at(root, revision) as tree:
        yield tree
