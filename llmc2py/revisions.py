"""Source trees at revisions: what git says of a folder, and folders of what a revision holds.

Git is run as it is installed, without a prompt and without a word of the user's own files but its configuration.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from llmc2py.diagnostics import UsageError

_TIMEOUT = 600
#: Nothing that an unattended run would hang on, no large file from another server, no message in another language.
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}


def git(folder: pathlib.Path, *arguments: str, index: pathlib.Path | None = None) -> str:
    """Run git in a folder and return what it writes. Raises UsageError with what git says where it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE")}
    environment |= _ENVIRONMENT | ({"GIT_INDEX_FILE": str(index)} if index is not None else {})
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, env=environment, timeout=_TIMEOUT, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise UsageError("git is not installed, and revisions cannot be read without it") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git {arguments[0]} has not ended after {_TIMEOUT} s") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
        raise UsageError(f"{folder}: git {arguments[0]}: {said}")
    return done.stdout.decode(errors="surrogateescape")


def is_work_tree(folder: pathlib.Path) -> bool:
    """Whether a folder is the root of a git work tree."""
    return (folder / ".git").exists()


def commit_of(folder: pathlib.Path) -> str | None:
    """Return the commit of a work tree whose root a folder is; None for any other folder, and for one not as committed.

    A tree that is kept inside another repository has no commit of its own.
    """
    if not is_work_tree(folder):
        return None
    try:
        if local_changes(folder):
            return None
        return git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").strip()
    except UsageError:
        return None  # no commit yet, or no git


def local_changes(folder: pathlib.Path) -> list[str]:
    """Return the files of a work tree that are tracked and not as committed."""
    status = git(folder, "status", "--porcelain=v1", "--untracked-files=no", "-z")
    return [entry[3:] for entry in status.split("\0") if len(entry) > 3]


def resolve(folder: pathlib.Path, revision: str) -> str:
    """Return the commit that a name stands for. Raises UsageError where it stands for none."""
    if revision.startswith("-"):
        raise UsageError(f"{revision}: is no revision")
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    except UsageError as error:
        raise UsageError(f"{folder}: git knows no revision {revision}") from error


@contextlib.contextmanager
def called(folder: pathlib.Path, name: str) -> Iterator[None]:
    """Let the errors of a context name what a temporary folder stands for: nobody else knows the folder."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for path in (folder.resolve(), folder):
            text = text.replace(str(path), name)
        raise UsageError(text) from error


@contextlib.contextmanager
def tree_at(folder: pathlib.Path, revision: str) -> Iterator[pathlib.Path]:
    """Give a temporary folder with what a folder in a git work tree holds at a revision; nothing else is touched.

    Raises UsageError where the folder lies in no work tree, or the revision has no such folder. What is raised while
    the folder is there names the revision in its place.
    """
    commit = resolve(folder, revision)
    prefix = git(folder, "rev-parse", "--show-prefix").rstrip("\n")
    root = pathlib.Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    with tempfile.TemporaryDirectory(prefix="llmc2py-") as scratch:
        target, index = pathlib.Path(scratch, "tree"), pathlib.Path(scratch, "index")
        target.mkdir()
        short = commit[:12] if revision == commit else revision
        with called(target, f"{folder}@{short}"):
            git(root, "read-tree", f"{commit}:{prefix}", index=index)
            git(root, "checkout-index", "--all", "--force", f"--prefix={target}/", index=index)
            yield target


def untracked(folder: pathlib.Path, suffixes: Sequence[str]) -> list[str]:
    """Return the files of a work tree that git does not know, and does not ignore, with one of these suffixes."""
    names = git(folder, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return [name for name in names if pathlib.PurePosixPath(name).suffix in suffixes]
