"""Putting generated files on disk, all or nothing, or telling how they differ from what is there."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

from llmc2py.diagnostics import UsageError
from llmc2py.emit.lock import LOCK_NAME


def write_package(output: pathlib.Path, files: Mapping[str, str]) -> None:
    """Make a folder hold exactly these files: written beside it, then swapped in.

    A run that fails or is killed leaves the folder as it was. Raises UsageError where the folder holds files that no
    lock file accounts for, or where it cannot be written.
    """
    _check_owned(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(output)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{output.name}.new-", dir=output.parent))
        try:
            for name, text in files.items():
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            staging.chmod(0o755)
            _swap(staging, output)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error


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
    """Return the files of a folder, but for what Python leaves there."""
    if not output.is_dir():
        return []
    return [
        path.relative_to(output).as_posix()
        for path in sorted(output.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _read(path: pathlib.Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _check_owned(output: pathlib.Path) -> None:
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UsageError(f"{output}: is no plain folder; choose another --output")
    present = _present(output)
    if not present:
        return
    lock = output / LOCK_NAME
    owned: set[str] = set()
    if lock.is_file():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            owned = {LOCK_NAME, *json.loads(_read(lock))["files"]}
    foreign = [name for name in present if name not in owned]
    if foreign:
        names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise UsageError(
            f"{output}: holds files that llmc2py did not write ({names}); move them away or choose another --output"
        )


def _swap(staging: pathlib.Path, output: pathlib.Path) -> None:
    """Put the new folder in the place of the old one; between two renames the old one is kept under another name."""
    if not output.exists():
        os.replace(staging, output)
        return
    old = pathlib.Path(tempfile.mkdtemp(prefix=f".{output.name}.old-", dir=output.parent))
    os.replace(output, old)
    try:
        os.replace(staging, output)
    except OSError:
        os.replace(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(output: pathlib.Path) -> None:
    """Clear what a killed run left; where it was killed between two renames, put the old folder back first."""
    for old in sorted(output.parent.glob(f".{output.name}.old-*")):
        if not output.exists() and any(old.iterdir()):
            os.replace(old, output)
        else:
            shutil.rmtree(old, ignore_errors=True)
    for new in output.parent.glob(f".{output.name}.new-*"):
        shutil.rmtree(new, ignore_errors=True)
