"""Bringing a source tree to another revision and its package with it: all of it, or nothing."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources

from llmc2py.catalog import read_entry
from llmc2py.diagnostics import Diagnostic, UsageError
from llmc2py.drift.changes import Change
from llmc2py.drift.compare import compare
from llmc2py.drift.snapshot import Snapshot, is_package, snapshot_of_files, snapshot_of_package
from llmc2py.emit.writer import write_package
from llmc2py.outputs import DEFAULT_OUTPUT, former_targets, local_catalog
from llmc2py.pipeline import Generated, generate, load_entries
from llmc2py.revisions import tree_at, untracked
from llmc2py.upstream.affected import affected
from llmc2py.upstream.proposals import Misfit, misfits
from llmc2py.upstream.worktree import Checkout, Move, plan_move, work_tree
from llmc2py.verify.report import VerifyRow, verify_package

#: Files that git does not know and that a package is made from all the same.
_SOURCES = (".cu", ".cuh", ".h", ".hpp", ".hh", ".hxx", ".inl", ".c", ".toml")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to update: a path or URL, and how.

    ``into`` is where a URL is cloned, ``output`` where the package goes; ``backend`` is that of ``verify``, None to
    verify nothing; ``dry_run`` says to leave everything as it is.
    """

    location: str
    revision: str | None = None
    into: pathlib.Path | None = None
    output: pathlib.Path | None = None
    catalogs: Sequence[pathlib.Path] = ()
    backend: str | None = "auto"
    dry_run: bool = False


@dataclass(frozen=True)
class Update:
    """What an update found and did; ``written`` says that tree and package are the new ones.

    ``unverified`` says that the user asked to verify nothing.
    """

    source: pathlib.Path
    output: pathlib.Path
    start: str
    target: str
    old: str
    new: str
    changes: list[Change]
    diagnostics: tuple[Diagnostic, ...]
    misfits: tuple[Misfit, ...] = ()
    verified: tuple[str, ...] = ()
    rows: list[VerifyRow] = field(default_factory=list)
    written: bool = False
    unverified: bool = False

    @property
    def failed(self) -> list[VerifyRow]:
        """The checks that failed, for which everything was left as it was."""
        return [row for row in self.rows if not row.ok]


def update(request: Request, say: Say = lambda text: None) -> Update:
    """Move the source tree, compare, generate, verify what changed, and write the package.

    Everything is made and verified beside what is there; the tree and the package are touched last, the tree by git and
    the package as a whole, and the tree is put back where the package cannot be written. Where a check fails they are
    not touched. Raises UsageError for a tree or output that cannot be used.
    """
    with work_tree(request.location, request.into) as checkout:
        say(f"fetching {request.location}")
        move = plan_move(checkout.folder, request.revision)
        with _prepared(request, move, checkout.place, say) as (found, made):
            if request.dry_run:
                return found
            if request.backend is not None:
                found = _verified(found, made, request.backend, say)
            if found.failed:
                return found
            say(f"writing {found.output}")
            _put(checkout, move, found.output, made.files)
            return replace(found, written=True, unverified=request.backend is None)


@contextmanager
def _prepared(request: Request, move: Move, place: pathlib.Path, say: Say) -> Iterator[tuple[Update, Generated]]:
    """Give what changes and the new package, made from a copy of the tree at the revision that it goes to."""
    with tree_at(move.folder, move.target) as tree:
        is_mixed = _copy_untracked(move.folder, tree)
        output = request.output
        if output is None:
            output = place / DEFAULT_OUTPUT if local_catalog(tree) else pathlib.Path(DEFAULT_OUTPUT)
        only, targets = _former_options(output)
        say(f"reading {move.target[:12]}")
        made = generate(tree, request.catalogs, only, targets, commit=None if is_mixed else move.target)
        new = snapshot_of_files(f"{place}@{move.target[:12]}", made.files)
        with _former(request, move, output, only) as old:
            say("comparing")
            changes = compare(old, new)
            renamed = {one.former: f"{one.file}:{one.name}" for one in changes if one.former is not None}
            entries, texts = load_entries(tree, request.catalogs), _entry_texts(tree, request.catalogs)
            left_out = misfits(entries, texts, made.diagnostics, old, new, renamed)
            tried = tuple(_tried(one, tree, request, only) for one in left_out)
            yield (
                Update(place, output, move.start, move.target, old.label, new.label, changes, made.diagnostics, tried),
                made,
            )


@contextmanager
def _former(request: Request, move: Move, output: pathlib.Path, only: Sequence[str]) -> Iterator[Snapshot]:
    """Give what to compare with: the package as it is, else what would be made of the tree as it is."""
    if is_package(output):
        yield snapshot_of_package(output)
        return
    with tree_at(move.folder, move.start) as tree:
        _copy_untracked(move.folder, tree)
        label = f"{move.folder.name}@{move.start[:12]}"
        yield snapshot_of_files(label, generate(tree, request.catalogs, only, commit=move.start).files)


def _former_options(output: pathlib.Path) -> tuple[list[str], tuple[str, ...]]:
    if not is_package(output):
        return [], ()
    return list(snapshot_of_package(output).options.get("only", [])), tuple(former_targets(output))


def _copy_untracked(folder: pathlib.Path, tree: pathlib.Path) -> bool:
    """Let sources and catalogue entries that lie in the tree, and that git does not know, be part of it, if any."""
    copied = False
    packages = {path.parent for path in folder.rglob("llmc2py.lock")}
    for name in untracked(folder, _SOURCES):
        path = folder / name
        if path.is_symlink() or not path.is_file() or any(one in packages for one in path.parents):
            continue
        if not (tree / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tree / name)
            copied = True
    return copied


def _verified(found: Update, made: Generated, backend: str, say: Say) -> Update:
    """Verify what changes reach, in a copy of the package; all of it where there was none."""
    names = affected(found.changes, made.plan, snapshot_of_files(found.new, made.files))
    if not is_package(found.output):
        names = [module.op.layer for module in made.plan.ops if module.op is not None]
        names += [check.name for check in made.plan.checks]
    if not names:
        return found
    with tempfile.TemporaryDirectory(prefix="llmc2py-") as scratch:
        package = pathlib.Path(scratch, found.output.name)
        write_package(package, made.files)
        rows = verify_package(
            str(package),
            backend,
            names,
            lambda row: say(f"verifying {row.layer} {row.precision} {row.shape}"),
            earlier="taken",
        )
    return replace(found, verified=tuple(names), rows=rows)


def _put(checkout: Checkout, move: Move, output: pathlib.Path, files: dict[str, str]) -> None:
    move.make()
    try:
        checkout.settle()
        write_package(output, files)
    except BaseException:
        if checkout.is_new:
            checkout.withdraw()
        else:
            move.undo()
        raise


def _tried(one: Misfit, tree: pathlib.Path, request: Request, only: Sequence[str]) -> Misfit:
    """Say whether a package with the proposed entry has the layer."""
    if one.proposed is None or "TODO_" in one.proposed:
        return one
    with tempfile.TemporaryDirectory(prefix="llmc2py-") as scratch:
        path = pathlib.Path(scratch, f"{one.entry}.toml")
        path.write_text(one.proposed, encoding="utf-8")
        try:
            made = generate(tree, [*request.catalogs, path], only, commit="")
        except UsageError:
            return one
    layers = {module.op.layer for module in made.plan.ops if module.op is not None}
    return replace(one, fits=one.layer in layers)


def _entry_texts(tree: pathlib.Path, catalogs: Sequence[pathlib.Path]) -> dict[str, str]:
    """Return the texts of all entries by the name of the op, as `load_entries` chooses them."""
    texts = {}
    for item in resources.files("llmc2py.catalog").iterdir():
        if item.name.endswith(".toml"):
            texts[item.name.removesuffix(".toml")] = item.read_text(encoding="utf-8")
    for path in (*local_catalog(tree), *catalogs):
        texts[read_entry(path).name] = path.read_text(encoding="utf-8")
    return texts
