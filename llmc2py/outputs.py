"""Where a generated package goes, and what the one that is there already says of how it was generated."""

from __future__ import annotations

import pathlib

from llmc2py.emit.lock import LOCK_NAME, with_commit_of

#: Where a package goes by default; a source folder with a catalogue of its own gets it inside.
DEFAULT_OUTPUT = "generated"


def local_catalog(source: pathlib.Path) -> list[pathlib.Path]:
    """Return the catalogue entries that lie in the root of a source tree; other tools' TOML files are none."""
    found = sorted(source.glob("*.toml")) if source.is_dir() else []
    if not found:
        return []
    from llmc2py.catalog import is_entry

    return [path for path in found if is_entry(path)]


def default_output(source: pathlib.Path) -> pathlib.Path:
    """Return where the package of a source goes unless the user says otherwise."""
    return source / DEFAULT_OUTPUT if local_catalog(source) else pathlib.Path(DEFAULT_OUTPUT)


def former_targets(output: pathlib.Path) -> tuple[str, ...]:
    """Return the targets that the package in a folder was generated for; none where there is no package."""
    from llmc2py.emit.targets import targets_in_lock

    try:
        text = (output / LOCK_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return targets_in_lock(text)


def as_committed_in(output: pathlib.Path, files: dict[str, str]) -> dict[str, str]:
    """Return files with the commit that the package in a folder notes: a commit alone makes no other package."""
    try:
        former = (output / LOCK_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return files
    return files | {LOCK_NAME: with_commit_of(files[LOCK_NAME], former)}
