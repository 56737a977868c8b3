"""The lock file of a generated package: what it was made from, as hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

LOCK_NAME = "llmc2py.lock"
_SCHEMA = 1


def emit_lock(version: str, sources: Mapping[str, str], catalog: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Return the text of the lock: the generator's version, hashes of sources, catalogue entries and generated files.

    ``sources`` and ``catalog`` map names to SHA-256 digests, ``files`` the generated files to their texts. No paths of
    the machine and no times: equal inputs give an equal lock.
    """
    lock = {
        "schema": _SCHEMA,
        "generator": f"llmc2py {version}",
        "sources": dict(sorted(sources.items())),
        "catalog": dict(sorted(catalog.items())),
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())},
    }
    return json.dumps(lock, indent=2) + "\n"
