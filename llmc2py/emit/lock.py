"""The lock file of a generated package: what it was made from and what it offers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

LOCK_NAME = "llmc2py.lock"
SCHEMA = 2
_COMMIT = "commit"


def emit_lock(
    version: str,
    sources: Mapping[str, str],
    catalog: Mapping[str, str],
    files: Mapping[str, str],
    offers: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    precisions: Sequence[str] = (),
    only: Sequence[str] = (),
    targets: Sequence[str] = (),
    commit: str | None = None,
) -> str:
    """Return the text of the lock, one entry a line, in an order that inputs alone decide.

    ``sources`` and ``catalog`` map names to SHA-256 digests, ``files`` the generated files to their texts; ``offers``
    are the sections that say what kernels, launchers, references and layers there are. ``only`` and ``targets`` are the
    options that the package was asked for with. ``commit`` is the revision of the source where it is a git work tree of
    its own. No paths of the machine and no times: equal inputs give an equal lock.
    """
    lock: dict[str, Any] = {
        "schema": SCHEMA,
        "generator": f"llmc2py {version}",
        _COMMIT: commit,
        "precisions": list(precisions),
        "options": {"only": list(only), "targets": list(targets)},
        "sources": dict(sorted(sources.items())),
        "catalog": dict(sorted(catalog.items())),
        **{name: dict(section) for name, section in (offers or {}).items()},
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())},
    }
    return _dump(lock)


def with_commit_of(lock: str, other: str) -> str:
    """Return a lock with the commit of another lock; as it is where the other cannot be read.

    The same sources give the same package, whichever commit they are from.
    """
    try:
        return _dump(json.loads(lock) | {_COMMIT: json.loads(other)[_COMMIT]})
    except (ValueError, KeyError, TypeError):
        return lock


def _dump(lock: Mapping[str, Any]) -> str:
    """Write JSON that people read and that changes line by line: every entry of a section is a line."""
    parts = []
    for key, value in lock.items():
        if isinstance(value, dict) and value:
            entries = [f"    {_json(name)}: {_json(entry)}" for name, entry in value.items()]
            parts.append(f"  {_json(key)}: {{\n" + ",\n".join(entries) + "\n  }")
        else:
            parts.append(f"  {_json(key)}: {_json(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
