"""Source trees that were read before: kept on disk, and used as long as not a byte of what was read has changed."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pathlib
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata

from llmc2py.frontend.reader import CUDA_SUFFIXES, HEADER_SUFFIXES, ReadCache, read_tree
from llmc2py.ir.library import Library
from llmc2py.runtime.host.cache import cache_root, content_key

_SOURCES = CUDA_SUFFIXES | HEADER_SUFFIXES
_READERS = ("pcpp", "pycparser", "tree-sitter", "tree-sitter-cuda")
_CODE = ("frontend", "ir")
#: Seconds of reading that a file in the cache is worth, and how many trees are kept.
_WORTH_KEEPING = 0.3
_KEPT = 16


def read_tree_once(root: pathlib.Path) -> Library:
    """Return what ``read_tree`` returns, from the cache where the tree is as it was then.

    Kept with the tree are the content of every file that was read and the names of all that lie beside it, for a new
    file may be a source, or an include in place of another. Raises UsageError as ``read_tree`` does.
    """
    entry = cache_root() / "trees" / f"{content_key(str(root.resolve()), _code_key())}.pickle"
    names = _names(root)
    with paused_collection():
        known = _load(entry, names)
        if known is not None:
            return known
        started = time.perf_counter()
        cache = ReadCache()
        library = read_tree(root, cache)
        is_slow = time.perf_counter() - started > _WORTH_KEEPING
        if is_slow and all(item.span.file in library.hashes for item in library.diagnostics):
            _store(entry, (names, {str(path): _digest(path) for path in cache.texts}, library))
    return library


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Keep the garbage collector from walking through trees that live to the end: that takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load(entry: pathlib.Path, names: str) -> Library | None:
    try:
        then, texts, library = pickle.loads(entry.read_bytes())
    except Exception:
        # Whatever is wrong with the file, reading the tree again is right.
        return None
    is_same = then == names and all(_digest(pathlib.Path(path)) == digest for path, digest in texts.items())
    return library if is_same and isinstance(library, Library) else None


def _store(entry: pathlib.Path, value: object) -> None:
    """Write an entry by atomic rename. A folder that cannot be written costs the next run the reading."""
    with contextlib.suppress(OSError, RecursionError):
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix="tree-", suffix=".part", dir=entry.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, entry)
        by_age = sorted(entry.parent.glob("*.pickle"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_age[_KEPT:]:
            old.unlink()


def _names(root: pathlib.Path) -> str:
    """Return a digest of the names of all files in a tree, hidden ones left out, and of what stands in its sources."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(folder, name)
            content = _digest(pathlib.Path(path)) if pathlib.Path(path).suffix in _SOURCES else ""
            digest.update(f"{path}\0{os.path.islink(path)}\0{content}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _digest(path: pathlib.Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _code_key() -> str:
    """Return a digest of everything that decides what is made of a tree: this program's readers and their libraries."""
    package = pathlib.Path(__file__).parent
    files = [package / "diagnostics.py", *(path for part in _CODE for path in sorted((package / part).glob("*.py")))]
    return content_key(sys.version, *(metadata.version(name) for name in _READERS), *map(_digest, files))
