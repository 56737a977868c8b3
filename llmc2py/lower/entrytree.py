"""What an entry says of a source tree beside its passes: its file, extents, variants and C references."""

from __future__ import annotations

import ast
import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Mapping

from llmc2py.diagnostics import Diagnostic, Severity, SourceError
from llmc2py.ir.catalog import CatalogEntry, KeyPath
from llmc2py.ir.library import Library, SourceFile
from llmc2py.lower.entrychecks import entry_error, parse_expression
from llmc2py.lower.kernels import listed


def unknown_sources(library: Library, entries: Iterable[CatalogEntry]) -> Iterator[tuple[CatalogEntry, SourceError]]:
    """Yield the entries of a user's whose source is none; built-in ones may be for another tree."""
    files = [file.path for file in library.files]
    for entry in entries:
        if entry.source not in files and not entry.is_builtin:
            near = _like(entry.source, files)
            yield entry, entry_error(entry, ("source",), f"the tree has no source file {entry.source}{near}")


def check_tree(entry: CatalogEntry, library: Library) -> list[Diagnostic]:
    """Check what an entry says of the launchers and C references of a tree.

    Returns what is amiss and leaves the layer as it is: what has nothing to be applied to. Of built-in entries nothing
    is said of what a tree lacks. Raises SourceError for what is wrong in any tree, or does not fit the entry's source.
    """
    files = {file.path: file for file in library.files}
    unread = library.hashes.keys() - files.keys()
    found = [*_c_references(entry, files, unread), *_variants(entry, files, unread), *_extents(entry, files, unread)]
    own = {entry.source, *listed(entry).values()} & files.keys()
    kernels = [kernel.name for path in sorted(own) for kernel in files[path].kernels]
    for index, name in enumerate(entry.wide):
        if name not in kernels:
            found.append(_warning(entry, ("wide", index), f"there is no kernel {name}{_like(name, kernels)}"))
    return [] if entry.is_builtin else found


def _c_references(entry: CatalogEntry, files: Mapping[str, SourceFile], unread: Iterable[str]) -> Iterator[Diagnostic]:
    for index, one in enumerate(entry.c_references):
        path: KeyPath = ("reference", "c", index)
        name, _, rest = one.call.strip().partition("(")
        if name.strip() != one.function:
            raise entry_error(entry, (*path, "call"), f"the call is of {name.strip()}, the function is {one.function}")
        given = _arguments(entry, (*path, "call"), f"({rest}")
        references = files[one.file].references if one.file in files else ()
        reference = next((item for item in references if item.name == one.function), None)
        if reference is None:
            if one.file not in unread:
                near = _like(one.function, [item.name for item in references])
                yield _warning(entry, path, f"there is no C reference {one.function} in {one.file}{near}")
        elif given != len(reference.parameters):
            wanted = ", ".join(f"{ctype} {name}" for name, ctype in reference.parameters)
            message = f"{one.function} takes ({wanted}), {given} arguments are given"
            raise entry_error(entry, (*path, "call"), message)


def _variants(entry: CatalogEntry, files: Mapping[str, SourceFile], unread: Iterable[str]) -> Iterator[Diagnostic]:
    for index, one in enumerate(entry.variants):
        _arguments(entry, ("variants", index, "call"), one.call)
        names = [item.name for item in files[one.file].launchers] if one.file in files else []
        if one.file not in unread and not fnmatch.filter(names, one.launchers):
            message = f"there is no launcher {one.launchers} in {one.file}{_like(one.launchers, names)}"
            yield _warning(entry, ("variants", index), message)


def _arguments(entry: CatalogEntry, path: KeyPath, text: str) -> int:
    """Return the number of arguments in brackets. Raises SourceError where they are no expressions."""
    try:
        tree = ast.parse(f"call{text}", mode="eval").body
    except SyntaxError as error:
        raise entry_error(entry, path, f"{text} is no list of arguments: {error.msg}") from error
    if not isinstance(tree, ast.Call) or tree.keywords:
        raise entry_error(entry, path, f"{text} is no list of arguments in brackets")
    return len(tree.args)


def _extents(entry: CatalogEntry, files: Mapping[str, SourceFile], unread: Iterable[str]) -> Iterator[Diagnostic]:
    """``[extents]`` by launcher of the source, or by file for all launchers of it."""
    for key, arrays in entry.extents.items():
        for array, counts in arrays.items():
            for index, count in enumerate(counts):
                parse_expression(entry, ("extents", key, array, index), count)
        if key in unread:
            continue
        is_file = key in files or "." in key
        in_file = files[key].launchers if key in files else () if is_file else files[entry.source].launchers
        launchers = [one for one in in_file if is_file or one.name == key]
        if not launchers:
            near = _like(key, files if is_file else [one.name for one in in_file])
            what = f"there is no launcher in {key}" if is_file else f"{entry.source} has no launcher {key}"
            yield _warning(entry, ("extents", key), what + near)
            continue
        names = {parameter.name for one in launchers for parameter in one.parameters}
        for array, counts in arrays.items():
            path: KeyPath = ("extents", key, array)
            if array not in names:
                yield _warning(entry, path, f"no parameter of {key} is named {array}{_like(array, names)}")
            elif not any(_names(entry, path, count) <= names for count in counts):
                missing = sorted(_names(entry, path, counts[-1]) - names)
                yield _warning(entry, path, f"no parameter of {key} is named {missing[0]}{_like(missing[0], names)}")


def _names(entry: CatalogEntry, path: KeyPath, text: str) -> set[str]:
    tree = parse_expression(entry, path, text)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"plan"}


def _warning(entry: CatalogEntry, path: KeyPath, message: str) -> Diagnostic:
    return Diagnostic(Severity.WARNING, entry.places.at(*path), f"{entry.name}: {message}")


def _like(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
