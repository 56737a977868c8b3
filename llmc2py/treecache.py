"""Translation units that were read before: kept on disk by the content of everything that they were read from."""

from __future__ import annotations

import gc
import itertools
import os
import pathlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NoReturn

from llmc2py.caching import Shelf, code_key, paused_collection
from llmc2py.frontend.creference import REFERENCES
from llmc2py.frontend.reader import ReadCache, ReadUnit, library_of, read_unit
from llmc2py.frontend.sources import UnitKeys, find_sources
from llmc2py.ir.library import Library

_READERS = ("pcpp", "pycparser", "tree-sitter", "tree-sitter-cuda")
#: Seconds of reading that a file in the cache is worth.
_WORTH_KEEPING = 0.02
#: How many units are worth one process more, and how many bytes of them are worth the first.
_UNITS_EACH = 3
_LEAST_BYTES = 8_000
#: Numbers of so many bytes, as many as a pipe takes at once.
_NUMBER = 2
_LONGEST_QUEUE = 16_384
UNITS = Shelf("units", 256 << 20)
#: Units that this process has had, by key, the latest at the end.
_RECENT: dict[str, ReadUnit] = {}
_RECENT_LIMIT = 256
#: Declarations and bodies that this process has read: a tree that is another version of one before has most of them.
_SHARED = ReadCache()
_SHARED_LIMIT = 8_000
#: Trees that are read between two looks for garbage.
_TREES_BETWEEN = 8
_trees_read = itertools.count(1)


def read_tree_once(root: pathlib.Path) -> Library:
    """Return what ``read_tree`` returns; what did not change since it was read last comes from the cache.

    Raises UsageError as ``read_tree`` does.
    """
    with TreeReading(root) as reading:
        return reading.library()


def _age() -> None:
    """Let the garbage collector take what was read for old without walking through it, which takes long."""
    if next(_trees_read) % _TREES_BETWEEN:
        gc.freeze()
        gc.unfreeze()
    else:
        gc.collect()


class TreeReading:
    """The translation units of one tree, of which copies of this process read some from now on.

    What is not in the cache is read into it by as many processes as are worth it; this one takes part once the library
    is asked for. Raises UsageError as ``read_tree`` does.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root.resolve()
        self._paths, self._unreadable = find_sources(self.root)
        self._keys = UnitKeys(self.root)
        for known in (_SHARED.items, _SHARED.bodies):
            if len(known) > _SHARED_LIMIT:
                known.clear()
        self._cache = ReadCache(items=_SHARED.items, bodies=_SHARED.bodies)
        self._children: list[int] = []
        missing = [path for path in self._paths if not self._is_known(path)]
        # The largest first, so that all are done at about the same time.
        self._queue = _Queue(sorted(missing, key=lambda path: (-path.stat().st_size, path)))

    def __enter__(self) -> TreeReading:
        for _ in range(_helpers(self._queue.paths)):
            child = os.fork()
            if child == 0:
                _read_and_leave(self)
            self._children.append(child)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        self._wait()
        self._queue.close()

    def library(self) -> Library:
        """Return the whole tree."""
        with paused_collection():
            if self._children:
                for path in self._queue.take():
                    self.get(path)
            self._wait()
            library = library_of([self.get(path) for path in self._paths], self._unreadable)
            REFERENCES.save()
            _age()
        return library

    def _wait(self) -> None:
        while self._children:
            os.waitpid(self._children.pop(), 0)

    def read_ahead(self) -> None:
        """Read what no other process reads into the cache."""
        for path in self._queue.take():
            self.read(path, self.key(path), least=0.0)
        REFERENCES.save()

    def _is_known(self, path: pathlib.Path) -> bool:
        key = self.key(path)
        # A unit without a key is read here each time.
        return key is None or key in _RECENT or UNITS.has(key)

    def get(self, path: pathlib.Path) -> ReadUnit:
        """Return a unit from the cache, read first and kept there where it is not."""
        key = self.key(path)
        if key is None:
            return self.read(path, key)
        known = _RECENT.pop(key, None) or UNITS.load(key)
        unit = known if isinstance(known, ReadUnit) else self.read(path, key)
        if self._is_told(path, unit):
            _RECENT[key] = unit
            while len(_RECENT) > _RECENT_LIMIT:
                del _RECENT[next(iter(_RECENT))]
        return unit

    def key(self, path: pathlib.Path) -> str | None:
        """Return the name of a unit in the cache; None for one that has to be read each time."""
        key = self._keys.key(path)
        return f"{key}-{_reader_key()}" if key is not None else None

    def read(self, path: pathlib.Path, key: str | None, least: float | None = None) -> ReadUnit:
        """Read a unit, and keep it if that took long (``least`` seconds)."""
        least = _WORTH_KEEPING if least is None else least
        started = time.perf_counter()
        unit = read_unit(path, self.root, self._cache)
        took = time.perf_counter() - started
        if key is None or unit.file is None or not self._is_told(path, unit):
            return unit
        unit = replace(unit, file=replace(unit.file, key=key))
        if took > least:
            UNITS.store(key, unit)
        return unit

    def _is_told(self, path: pathlib.Path, unit: ReadUnit) -> bool:
        """Whether a unit was read, and its key tells of every place at which an include was looked for."""
        return unit.file is not None and unit.probes <= self._keys.places(path)


def _processes() -> int:
    """Return how many processes may read at once: ``LLMC2PY_JOBS``, else one for each core."""
    chosen = os.environ.get("LLMC2PY_JOBS", "")
    if chosen.isdigit():
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Queue:
    """Files that this process and its copies take, each file once."""

    def __init__(self, paths: Sequence[pathlib.Path]) -> None:
        self.paths = paths[:_LONGEST_QUEUE]
        self._out, into = os.pipe()
        os.write(into, b"".join(number.to_bytes(_NUMBER, "big") for number in range(len(self.paths))))
        os.close(into)

    def take(self) -> Iterator[pathlib.Path]:
        """Yield the files that no process has taken yet."""
        while number := os.read(self._out, _NUMBER):
            yield self.paths[int.from_bytes(number, "big")]

    def close(self) -> None:
        os.close(self._out)


def _helpers(missing: Sequence[pathlib.Path]) -> int:
    """Return how many processes beside this one are worth it to read files."""
    helpers = min(_processes() - 1, -(-len(missing) // _UNITS_EACH))
    size = sum(path.stat().st_size for path in missing)
    return helpers if helpers > 0 and size >= _LEAST_BYTES and _may_fork() and UNITS.is_writable() else 0


def _may_fork() -> bool:
    """Whether this process has no threads, not even native ones, and runs where that can be told."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _read_and_leave(reading: TreeReading) -> NoReturn:
    try:
        with paused_collection():
            reading.read_ahead()
    finally:
        # Whatever happened: what the process that this is a copy of has yet to do is not to be done here.
        os._exit(0)


@cache
def _reader_key() -> str:
    """Return a digest of what decides what is made of a file: this program's readers and their libraries."""
    package = pathlib.Path(__file__).parent
    files = [path for part in ("frontend", "ir") for path in (package / part).glob("*.py")]
    return code_key([*files, package / "diagnostics.py"], _READERS)
