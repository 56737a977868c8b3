"""Putting generated files on disk, all or nothing, or telling how they differ from what is there."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import pathlib
import shutil
import stat
import tempfile
from collections.abc import Mapping

from llmc2py.diagnostics import UsageError
from llmc2py.emit.folders import exchange, sole_writer
from llmc2py.emit.lock import LOCK_NAME

_NEW, _OLD = "new", "old"


def write_package(output: pathlib.Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """Make a folder hold these files: written beside it, then swapped in as a whole.

    A run that fails or is killed leaves the folder as it was; the next one clears what it left beside it. Files that
    are the same stay as they are, times included. With ``force`` files that no lock file accounts for stay where they
    are, those that have the name of a generated file aside. Raises UsageError where there are such files and no
    ``force``, where another process does not stop writing, or where the folder cannot be written.
    """
    _check_usable(output)
    place = output.absolute()
    try:
        if _is_up_to_date(place, files):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with sole_writer(place) as is_alone:
            if is_alone:
                _remove_leftovers(place)
            foreign = _foreign(place)
            if foreign and not force:
                raise UsageError(_refusal(output, foreign))
            _replace(place, files, [name for name in foreign if name not in files])
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error


def _replace(output: pathlib.Path, files: Mapping[str, str], kept: list[str]) -> None:
    staging = pathlib.Path(tempfile.mkdtemp(prefix=_staging_prefix(output), dir=output.parent))
    try:
        new = staging / _NEW
        new.mkdir()
        for name, text in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text, output / name)
        for name in kept:
            _carry(output / name, new / name)
        old = _swap(staging, output)
        # What came while we wrote is not ours to delete either.
        for name in _foreign(old):
            if not os.path.lexists(output / name):
                _carry(old / name, output / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write(path: pathlib.Path, text: str, former: pathlib.Path) -> None:
    """Write a file, or let it be the former one where that holds the same."""
    if _holds(former, text):
        with contextlib.suppress(OSError):
            os.link(former, path)
            return
    path.write_text(text, encoding="utf-8", newline="\n")


def _carry(source: pathlib.Path, target: pathlib.Path) -> None:
    """Let a user's file be in a second place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def diff_package(output: pathlib.Path, files: Mapping[str, str]) -> list[str]:
    """Return a unified diff from what is in the folder to what would be written; empty where they agree."""
    lines: list[str] = []
    present = {name: _read(output / name) for name in _present(output)}
    for name in sorted({*present, *files}):
        old, new = present.get(name), files.get(name)
        if old != new:
            before = f"a/{name}" if old is not None else "/dev/null"
            after = f"b/{name}" if new is not None else "/dev/null"
            found = list(
                difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), before, after, lineterm="")
            )
            lines += found or [f"--- {before}", f"+++ {after}", "the ends of lines or of the file differ"]
    return lines


def _present(output: pathlib.Path) -> list[str]:
    """Return what is in a folder and below, links and all, but for folders and what Python leaves there."""
    found: list[str] = []
    for folder, folders, names in os.walk(output):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [pathlib.Path(folder, name).relative_to(output).as_posix() for name in (*links, *names)]
    return sorted(found)


def _read(path: pathlib.Path) -> str:
    if not stat.S_ISREG(path.lstat().st_mode):
        return "(no regular file)\n"
    return path.read_bytes().decode("utf-8", "replace")


def _holds(path: pathlib.Path, text: str) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and path.read_bytes() == text.encode()
    except OSError:
        return False


def _is_up_to_date(output: pathlib.Path, files: Mapping[str, str]) -> bool:
    """Whether there is nothing to do: the folder holds exactly the files, and no run left anything beside it."""
    if sorted(files) != _present(output) or not all(_holds(output / name, text) for name, text in files.items()):
        return False
    return not _leftovers(output)


def _check_usable(output: pathlib.Path) -> None:
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UsageError(f"{output}: is no plain folder; choose another --output")
    if pathlib.Path.cwd().is_relative_to(output.resolve()):
        raise UsageError(
            f"{output}: is the working folder or holds it, and is replaced as a whole; choose another --output"
        )


def _foreign(output: pathlib.Path) -> list[str]:
    """Return the files in a folder that its lock does not name."""
    present = _present(output)
    lock = output / LOCK_NAME
    owned: set[str] = set()
    if LOCK_NAME in present:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            owned = {LOCK_NAME, *json.loads(_read(lock))["files"]}
    return [name for name in present if name not in owned]


def _refusal(output: pathlib.Path, foreign: list[str]) -> str:
    names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
    return (
        f"{output}: holds files that llmc2py did not write ({names}); move them away, choose another --output, or "
        "give --force to keep them there and to replace those that have a generated file's name"
    )


def _swap(staging: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Put the new folder in the place of the old one, and return where the old one is then.

    Where the two cannot change places in one step, the old one lies in the staging folder between two renames.
    """
    new, old = staging / _NEW, staging / _OLD
    if not output.exists():
        os.replace(new, output)
        return old
    if exchange(new, output):
        return new
    os.replace(output, old)
    try:
        os.replace(new, output)
    except OSError:
        os.replace(old, output)
        raise
    return old


def _staging_prefix(output: pathlib.Path) -> str:
    return f".{output.name}.llmc2py-new-"


def _leftovers(output: pathlib.Path) -> list[pathlib.Path]:
    prefix = _staging_prefix(output)
    try:
        return sorted(output.parent / name for name in os.listdir(output.parent) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def _remove_leftovers(output: pathlib.Path) -> None:
    """Clear what a killed run left; where it was killed between two renames, put the old folder back first."""
    for staging in _leftovers(output):
        if (staging / _OLD).is_dir() and not output.exists():
            os.replace(staging / _OLD, output)
        shutil.rmtree(staging, ignore_errors=True)
