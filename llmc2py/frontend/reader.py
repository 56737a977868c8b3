"""Reading a source tree into a Library."""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.creference import parse_references
from llmc2py.frontend.headers import HeaderCache
from llmc2py.frontend.leaning import with_includers
from llmc2py.frontend.linking import linked
from llmc2py.frontend.preprocess import preprocess
from llmc2py.frontend.sources import HeaderIndex, find_sources
from llmc2py.frontend.unit import KnownItems, UnitReader
from llmc2py.ir.library import Library, Reference, SourceFile
from llmc2py.ir.statements import Body


@dataclass
class ReadCache:
    """What the files of one tree share: texts, expanded headers, the items of headers and bodies of functions there.

    ``items`` and ``bodies`` are told by their place and text, so that trees may share them as well.
    """

    texts: dict[pathlib.Path, str] = field(default_factory=dict)
    headers: HeaderCache = field(default_factory=dict)
    items: KnownItems = field(default_factory=dict)
    bodies: dict[object, Body] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    index: HeaderIndex | None = None


@dataclass(frozen=True)
class ReadUnit:
    """A translation unit that was read: what its file defines, None where it cannot be read.

    ``hashes`` are those of the texts that were read for it, ``probes`` the paths at which an include was looked for;
    both are named from the root.
    """

    file: SourceFile | None
    diagnostics: tuple[Diagnostic, ...]
    hashes: dict[str, str]
    probes: frozenset[str] = frozenset()


def read_tree(root: pathlib.Path) -> Library:
    """Read every CUDA source under a folder. Files that cannot be read become diagnostics, the others stay.

    Raises UsageError where the folder is missing or holds no source.
    """
    root = root.resolve()
    cache = ReadCache(index=HeaderIndex(root))
    paths, unreadable = find_sources(root)
    return library_of([read_unit(path, root, cache) for path in paths], unreadable)


def library_of(units: Sequence[ReadUnit], unreadable: Iterable[Diagnostic]) -> Library:
    """Put the units of a tree together, in the order of their files."""
    files, said = with_includers(linked([unit.file for unit in units if unit.file is not None]))
    hashes = {name: digest for unit in units for name, digest in unit.hashes.items()}
    diagnostics = [*unreadable, *(item for unit in units for item in unit.diagnostics), *said]
    in_order = dict(sorted(hashes.items(), key=lambda item: pathlib.PurePath(item[0])))
    probes = frozenset(probe for unit in units for probe in unit.probes)
    return Library(files, in_order, tuple(dict.fromkeys(diagnostics)), probes)


def read_unit(path: pathlib.Path, root: pathlib.Path, cache: ReadCache) -> ReadUnit:
    """Read one file of a tree (paths resolved); where it is no text or cannot be opened, an error says so."""
    name = path.relative_to(root).as_posix()
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("is no regular file")
        if not name.isprintable():
            raise ValueError("its name holds control characters")
        text = preprocess(path, root, cache.texts, cache.headers, cache.index)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _unreadable(path, reason, root, cache)
    except RecursionError:
        return _unreadable(path, "its macros nest too deeply", root, cache)
    references, found = parse_references(cache.texts[path], name)
    converted = tuple(Reference(item.name, item.span, item.double_params, item.double_source) for item in references)
    read = [path, *(root / included for included in text.includes)]
    try:
        unit = UnitReader(text, cache.items, cache.bodies)
        file = unit.read(converted)
    except RecursionError:
        return _unreadable(path, "it nests too deeply", root, cache)
    diagnostics = (*text.diagnostics, *unit.diagnostics, *found)
    inside = f"{root}{os.sep}"
    probes = frozenset(
        probe.removeprefix(inside) if probe.startswith(inside) else os.path.relpath(probe, root)
        for probe in text.probes
    )
    return ReadUnit(file, diagnostics, _hashes(read, root, cache), probes)


def _unreadable(path: pathlib.Path, reason: str, root: pathlib.Path, cache: ReadCache) -> ReadUnit:
    why = Diagnostic(Severity.ERROR, SourceSpan(path.relative_to(root).as_posix(), 1), f"cannot be read: {reason}")
    return ReadUnit(None, (why,), _hashes([path] if path in cache.texts else [], root, cache))


def _hashes(paths: Iterable[pathlib.Path], root: pathlib.Path, cache: ReadCache) -> dict[str, str]:
    found = {}
    for path in paths:
        name = path.relative_to(root).as_posix()
        if name not in cache.hashes:
            cache.hashes[name] = hashlib.sha256(cache.texts[path].encode()).hexdigest()
        found[name] = cache.hashes[name]
    return found
