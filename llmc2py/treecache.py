"""Translation units that were read before: kept on disk by the content of everything that they were read from."""

from __future__ import annotations

import pathlib
import time
from functools import cache

from llmc2py.caching import Shelf, code_key, paused_collection
from llmc2py.frontend.reader import ReadCache, ReadUnit, library_of, read_unit
from llmc2py.frontend.sources import UnitKeys, find_sources
from llmc2py.ir.library import Library

_READERS = ("pcpp", "pycparser", "tree-sitter", "tree-sitter-cuda")
#: Seconds of reading that a file in the cache is worth.
_WORTH_KEEPING = 0.02
UNITS = Shelf("units", 256 << 20)
#: Units that this process has had, by key, the latest at the end.
_RECENT: dict[str, ReadUnit] = {}
_RECENT_LIMIT = 256


def read_tree_once(root: pathlib.Path) -> Library:
    """Return what ``read_tree`` returns; what did not change since it was read last comes from the cache.

    Raises UsageError as ``read_tree`` does.
    """
    root = root.resolve()
    paths, unreadable = find_sources(root)
    with paused_collection():
        units = _Units(root)
        return library_of([units.get(path) for path in paths], unreadable)


class _Units:
    """The translation units of one tree."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._keys = UnitKeys(root)
        self._cache = ReadCache()

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

    def read(self, path: pathlib.Path, key: str | None) -> ReadUnit:
        """Read a unit, and keep it if that took long."""
        started = time.perf_counter()
        unit = read_unit(path, self.root, self._cache)
        took = time.perf_counter() - started
        if key is not None and took > _WORTH_KEEPING and self._is_told(path, unit):
            UNITS.store(key, unit)
        return unit

    def _is_told(self, path: pathlib.Path, unit: ReadUnit) -> bool:
        """Whether a unit was read, and its key tells of every place at which an include was looked for."""
        return unit.file is not None and unit.probes <= self._keys.places(path)


@cache
def _reader_key() -> str:
    """Return a digest of what decides what is made of a file: this program's readers and their libraries."""
    package = pathlib.Path(__file__).parent
    files = [path for part in ("frontend", "ir") for path in (package / part).glob("*.py")]
    return code_key([*files, package / "diagnostics.py"], _READERS)
