"""A generated package, on disk or in memory, as what is compared: its lock file, and the slices of its kernels."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from llmc2py.diagnostics import UsageError
from llmc2py.drift.slices import KernelSlice
from llmc2py.emit.lock import LOCK_NAME, SCHEMA

Record = dict[str, Any]
_SECTIONS = ("sources", "kernels", "launchers", "references", "layers", "files")


class Snapshot:
    """What a package offers.

    Parameters
    ----------
    label
        How messages name it.
    read
        Returns the text of one of the package's files by name; None where there is none.

    Raises
    ------
    UsageError
        The lock file is missing, damaged, or of another version of llmc2py.
    """

    def __init__(self, label: str, read: Callable[[str], str | None]) -> None:
        self.label = label
        self._read = read
        self._slices: dict[str, KernelSlice | None] = {}
        lock = _parse(label, read(LOCK_NAME))
        self.commit: str | None = lock.get("commit")
        self.options: Record = lock.get("options") or {}
        self.sources: dict[str, str] = lock["sources"]
        self.kernels: dict[str, Record] = lock["kernels"]
        self.launchers: dict[str, Record] = lock["launchers"]
        self.references: dict[str, Record] = lock["references"]
        self.layers: dict[str, Record] = lock["layers"]
        self.files: dict[str, str] = lock["files"]

    def slice(self, key: str) -> KernelSlice | None:
        """Return the slice of a kernel by its ``file:name``; None where the package has none."""
        if key not in self._slices:
            self._slices[key] = self._read_slice(key)
        return self._slices[key]

    def _read_slice(self, key: str) -> KernelSlice | None:
        python = self.kernels[key].get("python")
        if python is None:
            return None
        name = f"{python.rpartition('.')[0].replace('.', '/')}.cu"
        source = self._read(name) if name in self.files else None
        return KernelSlice(source, key.rpartition(":")[2]) if source is not None else None


def snapshot_of_files(label: str, files: Mapping[str, str]) -> Snapshot:
    """Return the snapshot of a package that was generated and not written."""
    return Snapshot(label, files.get)


def snapshot_of_package(folder: pathlib.Path, label: str | None = None) -> Snapshot:
    """Return the snapshot of a package on disk. Raises UsageError where it is none, or none that can be read."""

    def read(name: str) -> str | None:
        try:
            return (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    return Snapshot(label or str(folder), read)


def is_package(folder: pathlib.Path) -> bool:
    """Whether a folder holds a generated package."""
    return (folder / LOCK_NAME).is_file()


def _parse(label: str, text: str | None) -> Record:
    if text is None:
        raise UsageError(f"{label}: has no {LOCK_NAME}: is it a package of llmc2py?")
    try:
        lock = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{label}: {LOCK_NAME} cannot be read ({error}); generate the package again") from error
    if not isinstance(lock, dict) or lock.get("schema") != SCHEMA:
        found = lock.get("schema") if isinstance(lock, dict) else None
        raise UsageError(
            f"{label}: {LOCK_NAME} has schema {found}, this version of llmc2py knows {SCHEMA}; "
            f"generate the package again from the sources that it was made from, or compare sources"
        )
    if any(not _is_section(lock.get(name), name) for name in _SECTIONS):
        raise UsageError(f"{label}: {LOCK_NAME} is damaged; generate the package again")
    return lock


def _is_section(section: object, name: str) -> bool:
    kind = str if name in ("sources", "files") else dict
    return isinstance(section, dict) and all(isinstance(value, kind) for value in section.values())
