"""Translation units that were read before: kept on disk by the content of everything that they were read from."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pathlib
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
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
#: How many units, and how many bytes of them, are worth another process.
_LEAST_UNITS = 3
_LEAST_BYTES = 40_000
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
    root = root.resolve()
    paths, unreadable = find_sources(root)
    with paused_collection():
        units = _Units(root)
        units.read_ahead(paths)
        library = library_of([units.get(path) for path in paths], unreadable)
        REFERENCES.save()
        _age()
    return library


def _age() -> None:
    """Let the garbage collector take what was read for old without walking through it, which takes long."""
    if next(_trees_read) % _TREES_BETWEEN:
        gc.freeze()
        gc.unfreeze()
    else:
        gc.collect()


class _Units:
    """The translation units of one tree."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._keys = UnitKeys(root)
        for known in (_SHARED.items, _SHARED.bodies):
            if len(known) > _SHARED_LIMIT:
                known.clear()
        self._cache = ReadCache(items=_SHARED.items, bodies=_SHARED.bodies)

    def read_ahead(self, paths: Sequence[pathlib.Path]) -> None:
        """Read what is not in the cache into it, in several processes where there is enough of it."""
        missing = [path for path in paths if not self._is_known(path)]
        size = sum(path.stat().st_size for path in missing)
        jobs = min(_processes(), len(missing) // _LEAST_UNITS)
        if jobs < 2 or size < _LEAST_BYTES or not _may_fork() or not UNITS.is_writable():
            return
        own, *others = _shares(missing, jobs)
        with contextlib.ExitStack() as stack:
            for share in others:
                stack.enter_context(_reading_apart(self, share))
            for path in own:
                self.get(path)

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


def _shares(paths: Iterable[pathlib.Path], number: int) -> list[list[pathlib.Path]]:
    """Deal files out so that each share has about as many bytes."""
    shares: list[list[pathlib.Path]] = [[] for _ in range(number)]
    sizes = [0] * number
    for path in sorted(paths, key=lambda one: (-one.stat().st_size, one)):
        least = sizes.index(min(sizes))
        shares[least].append(path)
        sizes[least] += path.stat().st_size
    return shares


def _may_fork() -> bool:
    """Whether this process has no threads, not even native ones, and runs where that can be told."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


@contextlib.contextmanager
def _reading_apart(units: _Units, paths: Sequence[pathlib.Path]) -> Iterator[None]:
    """Let a copy of this process read units into the cache meanwhile. What it leaves out is read here afterwards."""
    child = os.fork()
    if child == 0:
        _read_and_leave(units, paths)
    try:
        yield
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.waitpid(child, 0)


def _read_and_leave(units: _Units, paths: Iterable[pathlib.Path]) -> NoReturn:
    try:
        for path in paths:
            units.read(path, units.key(path), least=0.0)
        REFERENCES.save()
    finally:
        # Whatever happened: what the process that this is a copy of has yet to do is not to be done here.
        os._exit(0)


@cache
def _reader_key() -> str:
    """Return a digest of what decides what is made of a file: this program's readers and their libraries."""
    package = pathlib.Path(__file__).parent
    files = [path for part in ("frontend", "ir") for path in (package / part).glob("*.py")]
    return code_key([*files, package / "diagnostics.py"], _READERS)
