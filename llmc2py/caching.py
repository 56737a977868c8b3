"""What is worth keeping between runs: folders of values named by the content that they were made from."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import os
import pathlib
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_LIBRARIES = ("jinja2", "markupsafe", "pcpp", "pycparser", "tree-sitter", "tree-sitter-cuda")


def cache_root() -> pathlib.Path:
    """Return the cache folder: ``LLMC2PY_CACHE_DIR``, else the platform's place for caches."""
    chosen = os.environ.get("LLMC2PY_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen)
    if sys.platform == "darwin":
        return pathlib.Path.home() / "Library" / "Caches" / "llmc2py"
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "llmc2py"


def content_key(*parts: str) -> str:
    """Return a name for what is built from ``parts``; no two lists of parts share one."""
    digest = hashlib.sha256()
    for part in parts:
        # What is no UTF-8 in the name of a file stands in strings as lone surrogates.
        data = part.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:40]


def code_key(files: Iterable[pathlib.Path], distributions: Iterable[str] = ()) -> str:
    """Return a digest of what decides a result beside its input: Python, files of this program, installed libraries."""
    root = pathlib.Path(__file__).parent
    parts = [f"{os.path.relpath(path, root)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(files)]
    return content_key(sys.version, *parts, *_versions(distributions))


@functools.cache
def program_key() -> str:
    """Return a digest of this program and its libraries."""
    package = pathlib.Path(__file__).parent
    templates = package / "templates" if (package / "templates").is_dir() else package.parent / "templates"
    files = [
        pathlib.Path(folder, name)
        for top in (package, templates)
        for folder, _, names in os.walk(top)
        for name in names
        if name.endswith((".py", ".toml", ".j2"))
    ]
    return code_key(files, _LIBRARIES)


def _versions(distributions: Iterable[str]) -> list[str]:
    """Return names with versions, from the names of folders: importlib.metadata takes long to import."""
    wanted = {name.replace("-", "_").lower() for name in distributions}
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(folder or "."):
                name, _, rest = entry.partition("-")
                if rest.endswith(".dist-info") and name.lower() in wanted:
                    found.setdefault(name.lower(), entry)
    for name in wanted - found.keys():
        from importlib import metadata

        found[name] = metadata.version(name)
    return sorted(found.values())


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Keep the garbage collector from walking through trees that live to the end: that takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # What has come meanwhile counts as old, or all of it would be walked through now.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


#: Bytes that this process may store in a folder before it looks through it again: a part of those that were free, since
#: as many other processes may store as much.
_ROOM: dict[pathlib.Path, int] = {}
_SHARERS = 8
#: How a file ends that is being written; the one who writes it holds a lock on it.
_PART = ".part"
#: Seconds for which a part counts as being written without a lock: who made it may be about to lock it.
_YOUNG = 60.0


def _lock(handle: int) -> bool:
    """Try to lock an open file; False where another process holds it or the file system knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_abandoned(path: str) -> bool:
    """Whether the process that began to write a file is gone: the system has dropped its lock."""
    if time.time() - os.stat(path).st_mtime < _YOUNG:
        return False
    with open(path, "rb") as file:
        return _lock(file.fileno())


@dataclass(frozen=True)
class Shelf:
    """A folder of pickled values by key, shared by processes; what was not used for longest goes when it is full.

    A value is a function of its key alone, so that one under its final name is whole and never out of date.
    """

    name: str
    limit: int

    @property
    def folder(self) -> pathlib.Path:
        """The folder, which need not be there."""
        return cache_root() / self.name

    def load(self, key: str) -> object:
        """Return the value of a key; None where there is none, or none that can be read."""
        path = self.folder / f"{key}.pickle"
        try:
            data = path.read_bytes()
            os.utime(path)
            with paused_collection():
                return pickle.loads(data)
        except Exception:
            # Whatever is wrong with the file, to make the value again is right.
            return None

    def has(self, key: str) -> bool:
        """Whether there is a value, readable or not."""
        return (self.folder / f"{key}.pickle").exists()

    def is_writable(self) -> bool:
        """Whether values can be stored."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return os.access(self.folder, os.W_OK)

    def store(self, key: str, value: object) -> None:
        """Write a value by atomic rename. A folder that cannot be written costs the next run the work."""
        folder = self.folder
        with contextlib.suppress(OSError, RecursionError):
            data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix="new-", suffix=_PART, dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    _lock(handle)
                    file.write(data)
                    file.flush()
                    os.replace(temporary, folder / f"{key}.pickle")
            except OSError:
                os.unlink(temporary)
                raise
            self._make_room(len(data))

    def _make_room(self, size: int) -> None:
        """Hold the folder to its limit after so many bytes more; look through it where that could be too much."""
        _ROOM[self.folder] = _ROOM.get(self.folder, 0) - size
        if _ROOM[self.folder] >= 0:
            return
        entries = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(_PART) and _is_abandoned(entry.path):
                    os.unlink(entry.path)
                    continue
                found = entry.stat()
                entries.append((found.st_mtime, found.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit:
                break
            # Another process may have made room already.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        _ROOM[self.folder] = (self.limit - total) // _SHARERS


class Memo:
    """Values of a pure function by its arguments, kept in one file between runs.

    ``program`` returns a digest of the code of the function, ``limit`` is the number of values that are kept.
    """

    def __init__(self, name: str, program: Callable[[], str], limit: int) -> None:
        self._name = name
        self._program = program
        self._limit = limit
        self._shelf = Shelf("memos", 64 << 20)
        self._values: dict[str, Any] | None = None
        self._is_changed = False

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made where it is not known."""
        if self._values is None:
            self._values = self._load()
        if key not in self._values:
            self._values[key] = make()
            self._is_changed = True
        return self._values[key]

    def save(self) -> None:
        """Write what is new, beside what other processes have written since."""
        if self._is_changed and self._values is not None:
            values = self._load() | self._values
            kept = dict(list(values.items())[-self._limit :])
            self._shelf.store(self._file(), kept)
            self._is_changed = False

    def _load(self) -> dict[str, Any]:
        values = self._shelf.load(self._file())
        return values if isinstance(values, dict) else {}

    def _file(self) -> str:
        return f"{self._name}-{self._program()}"
