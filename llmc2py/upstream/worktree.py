"""The git work tree that an update moves."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from llmc2py.diagnostics import UsageError
from llmc2py.revisions import called, git, is_work_tree, local_changes, resolve

_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")


@dataclass(frozen=True)
class Move:
    """A work tree, where it stands, and where it is to go.

    ``branch`` is the branch that follows; None where the tree stands on no branch afterwards.
    """

    folder: pathlib.Path
    start: str
    start_branch: str | None
    target: str
    branch: str | None

    @property
    def is_needed(self) -> bool:
        """Whether the tree is not there yet."""
        return self.start != self.target

    def make(self) -> None:
        """Move the work tree. Raises UsageError, with nothing moved, where git refuses."""
        if not self.is_needed:
            return
        if self.branch is not None:
            git(self.folder, "merge", "--ff-only", "--quiet", self.target)
        else:
            git(self.folder, "checkout", "--quiet", "--detach", self.target)

    def undo(self) -> None:
        """Put the work tree back to where it was; what was committed alone was in it."""
        if not self.is_needed:
            return
        if self.branch is not None:
            git(self.folder, "reset", "--quiet", "--hard", self.start)
        else:
            git(self.folder, "checkout", "--quiet", self.start_branch or self.start)


@dataclass(frozen=True)
class Checkout:
    """A work tree: where it is, and where it is to be in the end."""

    folder: pathlib.Path
    place: pathlib.Path

    @property
    def is_new(self) -> bool:
        """Whether it was cloned just now."""
        return self.folder != self.place

    def settle(self) -> None:
        """Put a new clone into its place. Raises UsageError where something has come to be there meanwhile."""
        if not self.is_new:
            return
        try:
            os.replace(self.folder, self.place)
        except OSError as error:
            if self.place.exists():
                raise UsageError(f"{self.place}: was made by another while this ran; update again") from error
            raise

    def withdraw(self) -> None:
        """Take a new clone away again, if it was put into its place."""
        if self.is_new and not self.folder.exists():
            shutil.rmtree(self.place, ignore_errors=True)


@contextlib.contextmanager
def work_tree(location: str, into: pathlib.Path | None) -> Iterator[Checkout]:
    """Give the work tree of a path or URL.

    A URL is cloned beside the place that the clone is for, ``into`` or the name in the URL, and is gone at the end
    unless it was settled there. A clone of that URL that is there already is used as it is. One process updates a work
    tree at a time. Raises UsageError for a path that is no root of a work tree, a URL that cannot be cloned, a place
    that is taken, and a tree that another process updates.
    """
    path = pathlib.Path(location)
    if path.exists():
        if not is_work_tree(path):
            raise UsageError(f"{location}: is not the root of a git work tree; give the folder of a clone, or its URL")
        with _held(path):
            yield Checkout(path, path)
        return
    if not _URL.fullmatch(location):
        raise UsageError(f"{location}: no such folder, and no URL that git can clone")
    place = into if into is not None else pathlib.Path(_name_in(location))
    if place.exists():
        if not is_work_tree(place) or _said(place, "remote", "get-url", "origin") != location:
            raise UsageError(f"{place}: is there and is no clone of {location}; give another place with --into")
        with _held(place):
            yield Checkout(place, place)
        return
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.new-", dir=_parent(place.resolve())) as scratch:
        folder = pathlib.Path(scratch, "tree")
        with called(pathlib.Path(scratch), location), called(folder, location):
            git(pathlib.Path(scratch), "clone", "--quiet", "--", location, str(folder))
            yield Checkout(folder, place)


@contextlib.contextmanager
def _held(folder: pathlib.Path) -> Iterator[None]:
    """Lock a work tree against other updates; the system drops the lock of a process that dies."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Where the file system knows no locks, git's own must do.
            if error.errno == errno.EWOULDBLOCK:
                raise UsageError(
                    f"{folder}: another `llmc2py update` is at work on it; wait for it, then update again"
                ) from error
        yield
    finally:
        os.close(handle)


def plan_move(folder: pathlib.Path, revision: str | None) -> Move:
    """Fetch, and say where a work tree is to go: to a revision, or to what its branch follows.

    Raises UsageError for local changes, an unknown revision, and a branch that has commits of its own.
    """
    changed = local_changes(folder)
    if changed:
        names = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        raise UsageError(f"{folder}: has local changes ({names}); commit them or take them back, then update again")
    start = resolve(folder, "HEAD")
    branch = _said(folder, "symbolic-ref", "--quiet", "--short", "HEAD")
    remote = _remote(folder, branch)
    if remote is not None:
        git(folder, "fetch", "--quiet", "--tags", remote)
    target = _target(folder, remote, revision)
    if revision is not None and revision != branch:
        return Move(folder, start, branch, target, None)
    if branch is not None and target != start and not _is_ancestor(folder, start, target):
        if _is_ancestor(folder, target, start):
            return Move(folder, start, branch, start, branch)
        raise UsageError(f"{folder}: branch {branch} has commits of its own; merge or rebase it, then update again")
    return Move(folder, start, branch, target, branch)


def _target(folder: pathlib.Path, remote: str | None, revision: str | None) -> str:
    """Return the commit of a revision, of a branch of the remote before one here; else what the branch follows."""
    names = [f"refs/remotes/{remote}/{revision}", revision] if revision is not None else ["@{upstream}"]
    names += [f"refs/remotes/{remote}/HEAD", "HEAD"] if revision is None else []
    for name in names:
        found = _said(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if found is not None:
            return found.splitlines()[-1]
    raise UsageError(f"{folder}: git knows no revision {revision}")


def _remote(folder: pathlib.Path, branch: str | None) -> str | None:
    followed = _said(folder, "config", "--get", f"branch.{branch}.remote") if branch is not None else None
    remotes = git(folder, "remote").split()
    if followed in remotes:
        return followed
    return "origin" if "origin" in remotes else next(iter(remotes), None)


def _is_ancestor(folder: pathlib.Path, older: str, newer: str) -> bool:
    return _said(folder, "merge-base", "--is-ancestor", older, newer) is not None


def _said(folder: pathlib.Path, *arguments: str) -> str | None:
    """Return what git answers to a question; None where the answer is no."""
    try:
        return git(folder, *arguments).strip()
    except UsageError:
        return None


def _name_in(url: str) -> str:
    name = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    if not re.fullmatch(r"[\w][\w.-]*", name):
        raise UsageError(f"{url}: has no name for a folder; give one with --into")
    return name


def _parent(place: pathlib.Path) -> pathlib.Path:
    if not place.parent.is_dir():
        raise UsageError(f"{place.parent}: no such folder to clone into")
    return place.parent
