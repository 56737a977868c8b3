"""Packages that were generated before: what comes of sources, catalogue and options that are the same is the same."""

from __future__ import annotations

import pathlib
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llmc2py.caching import Shelf, content_key, paused_collection, program_key
from llmc2py.diagnostics import Diagnostic
from llmc2py.frontend.sources import UnitKeys, find_sources

if TYPE_CHECKING:
    from llmc2py.pipeline import Generated
    from llmc2py.treecache import TreeReading

#: Seconds of work that a package in the cache is worth.
_WORTH_KEEPING = 0.3
RESULTS = Shelf("results", 256 << 20)


@dataclass(frozen=True)
class Request:
    """What to generate: the arguments of ``pipeline.generate``."""

    source: pathlib.Path
    catalogs: tuple[pathlib.Path, ...] = ()
    only: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    commit: str | None = None


@dataclass(frozen=True)
class Result:
    """A generated package: its files, what there is to say, and the record that ``listing.summary`` makes of it."""

    request: Request
    key: str | None
    files: dict[str, str]
    diagnostics: tuple[Diagnostic, ...]
    summary: dict[str, Any]
    made: Generated | None = None

    @cached_property
    def generated(self) -> Generated:
        """All that was made on the way to the files: at hand, or from the cache, or made again."""
        from llmc2py.pipeline import Generated

        known = RESULTS.load(_whole(self.key)) if self.key is not None and self.made is None else None
        if isinstance(known, Generated):
            return known
        made = self.made if self.made is not None else _make(self.request)
        # It is larger than the files by far, so that it is kept for those alone who ask for it.
        if self.key is not None:
            RESULTS.store(_whole(self.key), made)
        return made


@paused_collection()
def generate(request: Request) -> Result:
    """Return what ``pipeline.generate`` makes, from the cache where that was made before.

    Raises UsageError as it does.
    """
    request = replace(request, commit=request.commit or _commit_of(request.source))
    places, key = key_of(request)
    known = RESULTS.load(key) if key is not None else None
    if isinstance(known, tuple):
        return Result(request, key, *known)
    from llmc2py.treecache import TreeReading

    started = time.perf_counter()
    with TreeReading(request.source) as reading:
        from llmc2py import listing

        made = _make(request, reading)
    took = time.perf_counter() - started
    parts = made.files, made.diagnostics, listing.summary(made)
    if key is not None and took > _WORTH_KEEPING and made.library.probes <= places:
        RESULTS.store(key, parts)
    else:
        key = None
    return Result(request, key, *parts, made)


def _make(request: Request, reading: TreeReading | None = None) -> Generated:
    from llmc2py import pipeline

    return pipeline.generate(request.source, request.catalogs, request.only, request.targets, request.commit, reading)


def _commit_of(source: pathlib.Path) -> str | None:
    if not (source / ".git").exists():
        return None
    from llmc2py.revisions import commit_of

    return commit_of(source)


def _whole(key: str) -> str:
    return f"{key}-whole"


def key_of(request: Request) -> tuple[set[str], str | None]:
    """Return the places of includes that the key of a request covers, and the key; None where it cannot be told.

    Raises UsageError where the source is missing or holds no CUDA source.
    """
    root = request.source.resolve()
    paths, unreadable = find_sources(root)
    units = UnitKeys(root)
    keys = [units.key(path) for path in paths]
    catalogs = [*sorted(root.glob("*.toml")), *request.catalogs]
    try:
        entries = [text for path in catalogs for text in (str(path.name), path.read_text(encoding="utf-8"))]
    except (OSError, UnicodeDecodeError):
        return set(), None
    known = [key for key in keys if key is not None]
    if unreadable or len(known) < len(keys):
        return set(), None
    parts = [*known, "", *entries, "", *map(str, request.catalogs), "", *request.only, "", *request.targets]
    parts += ["", request.commit or ""]
    places = {place for path in paths for place in units.places(path)}
    return places, content_key(program_key(), *parts)
