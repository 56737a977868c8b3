"""Translation units that were read before: kept on disk by the content of everything that they were read from."""

from __future__ import annotations

import gc
import itertools
import pathlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from llmc2py.caching import Shelf, code_key, paused_collection
from llmc2py.forks import Shared, possible_copies
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
        self._cache = ReadCache(items=_SHARED.items, bodies=_SHARED.bodies, index=self._keys.index)
        self._known = [path for path in self._paths if self._is_known(path)]
        missing = list(set(self._paths).difference(self._known))
        # The largest first, so that all are done at about the same time.
        missing.sort(key=lambda path: (-path.stat().st_size, path))
        self._ahead = Shared(missing, self._read_ahead, _copies(missing))

    def __enter__(self) -> TreeReading:
        self._ahead.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ahead.__exit__(*raised)

    def library(self) -> Library:
        """Return the whole tree."""
        with paused_collection():
            # What the copies have no part in comes first, so that these take more of what is to be read.
            units = {path: self.get(path) for path in self._known}
            units |= {path: self.get(path) for path in self._ahead.take()}
            self._ahead.wait()
            library = library_of([units.get(path) or self.get(path) for path in self._paths], self._unreadable)
            REFERENCES.save()
            _age()
        return library

    def _read_ahead(self, paths: Iterable[pathlib.Path]) -> None:
        """Read units into the cache for another process."""
        for path in paths:
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


def _copies(missing: Sequence[pathlib.Path]) -> int:
    """Return how many processes beside this one are worth it to read files."""
    if sum(path.stat().st_size for path in missing) < _LEAST_BYTES or not UNITS.is_writable():
        return 0
    return possible_copies(-(-len(missing) // _UNITS_EACH))


@cache
def _reader_key() -> str:
    """Return a digest of what decides what is made of a file: this program's readers and their libraries."""
    package = pathlib.Path(__file__).parent
    files = [path for part in ("frontend", "ir") for path in (package / part).glob("*.py")]
    return code_key([*files, package / "diagnostics.py"], _READERS)
