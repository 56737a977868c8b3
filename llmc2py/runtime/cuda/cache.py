"""Compiled kernels on disk: one file per content, written by atomic rename, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
import warnings
from dataclasses import dataclass

from llmc2py.runtime.host.cache import cache_root

_MAGIC = b"llmc2py cubin 1\n"


@dataclass(frozen=True)
class CompiledCubin:
    """A kernel's machine code, the name it has in there, and what the compiler said (warnings)."""

    cubin: bytes
    lowered_name: str
    log: str


def cache_folder() -> pathlib.Path:
    """Return the folder of compiled CUDA kernels."""
    return cache_root() / "cuda"


def load(key: str) -> CompiledCubin | None:
    """Return the entry, or None where there is none or where the file is not what was written."""
    try:
        data = (cache_folder() / f"{key}.cubin").read_bytes()
    except OSError:
        return None
    magic, checksum, body = data[: len(_MAGIC)], data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if magic != _MAGIC or hashlib.sha256(body).digest() != checksum:
        return None
    header, _, cubin = body.partition(b"\n")
    fields = json.loads(header)
    return CompiledCubin(cubin, fields["lowered_name"], fields["log"])


def store(key: str, compiled: CompiledCubin) -> None:
    """Write the entry. A folder that cannot be written costs the next process a compile, so it is only a warning."""
    header = json.dumps({"lowered_name": compiled.lowered_name, "log": compiled.log}).encode()
    body = header + b"\n" + compiled.cubin
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f"{key}.", suffix=".part", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, folder / f"{key}.cubin")
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {folder}: {error}; set LLMC2PY_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=2,
        )
