"""Names that an entry gives: each once in a scope, and none that the generated modules use themselves."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence

from llmc2py.diagnostics import SourceError
from llmc2py.ir.catalog import CatalogEntry, KeyPath
from llmc2py.ir.names import ARGUMENT_NAMES, CONTEXT_NAMES, LAYER_NAMES, is_taken
from llmc2py.lower.entrychecks import entry_error

_ARRAYS = ("inputs", "parameters", "outputs")


def check_names(entry: CatalogEntry, defined: Collection[str], folders: Collection[str]) -> None:
    """Raise SourceError at the name of an op, layer, array, option or axis that no generated module can have.

    ``defined`` are the launchers that the op's module defines or imports, ``folders`` those of the package.
    """
    for key, name in (("name", entry.name), ("layer", entry.layer)):
        if is_taken(name):
            raise entry_error(entry, (key,), f"generated modules use the name {name} themselves: give it another")
    if entry.name in folders:
        raise entry_error(entry, ("name",), f"the package has a folder {entry.name}: give the op another name")
    function = f"{entry.layer}Function"
    if entry.name in (entry.layer, function) or function in defined:
        what = f"a launcher {function}" if function in defined else f"an op {entry.name}"
        raise entry_error(
            entry, ("layer",), f"beside {what} there cannot be a layer {entry.layer}: give it another name"
        )
    _check_variables(entry)


def check_clashes(entries: Sequence[CatalogEntry]) -> Iterator[tuple[CatalogEntry, SourceError]]:
    """Yield the entries whose ops or layers have a name in the package that another's has; built-in ones come first."""
    owners: dict[str, CatalogEntry] = {}
    for entry in sorted(entries, key=lambda one: not one.is_builtin):
        # The last one is the operator for PyTorch.
        names = {"layer": (entry.layer, f"{entry.layer}Function"), "name": (entry.name, f"_{entry.name.upper()}")}
        clash = next(((key, one) for key, several in names.items() for one in several if one in owners), None)
        if clash is None:
            owners |= dict.fromkeys((*names["layer"], *names["name"]), entry)
            continue
        key, name = clash
        other = f"the {'layer' if key == 'layer' else 'op'} another name"
        yield entry, entry_error(entry, (key,), f"{owners[name].file} makes a {name} too: give {other}")


def folders_of(files: Iterable[str]) -> set[str]:
    """Return the folders in the root of a package that the modules of source files lie in."""
    return {parts[0] for file in files if len(parts := pathlib.PurePosixPath(file).parts) > 1}


def check_arguments(entry: CatalogEntry) -> None:
    """Raise SourceError at the name of an array that the functions of an op's reference cannot have."""
    for path in _array_paths(entry):
        if path[-1] in ("np", "stored", "Array"):
            raise entry_error(
                entry, path, f"references use the name {path[-1]} themselves: give the array another name"
            )
    inputs = {one.name for one in entry.inputs}
    for one in entry.outputs:
        if entry.reference_backward and f"d{one.name}" in inputs:
            message = f"d{one.name} is the gradient of {one.name}: give the input another name"
            raise entry_error(entry, ("inputs", f"d{one.name}"), message)


def _check_variables(entry: CatalogEntry) -> None:
    found: dict[str, KeyPath] = {}
    gradients = {f"d{one.name}": one.name for one in entry.outputs}
    own = {entry.name, entry.layer, f"{entry.layer}Function"}
    for kind, path, name in _variables(entry):
        if is_taken(name) or name in ARGUMENT_NAMES or name in own:
            raise entry_error(entry, path, f"generated functions use the name {name} themselves: give it another")
        if kind in ("options", "letters") and name in CONTEXT_NAMES:
            raise entry_error(entry, path, f"the context of a pass has a {name} of its own: give it another name")
        if kind in ("options", "parameters") and (name in LAYER_NAMES or name.startswith("_")):
            raise entry_error(entry, path, f"layers have a {name} of their own: give it another name")
        if name in gradients:
            raise entry_error(entry, path, f"{name} is the gradient of {gradients[name]}: give it another name")
        if name in found:
            raise entry_error(entry, path, f"the name {name} is taken by {'.'.join(map(str, found[name]))}")
        found[name] = path


def _variables(entry: CatalogEntry) -> Iterator[tuple[str, KeyPath, str]]:
    """Yield what becomes variables and arguments, each with its kind and key: letters of axes first."""
    letters: dict[str, KeyPath] = {}
    for key, arrays in (("inputs", entry.inputs), ("parameters", entry.parameters)):
        for one in arrays:
            letters |= {letter: (key, one.name, "shape") for letter in one.letters if letter not in letters}
    yield from (("letters", path, letter) for letter, path in letters.items())
    yield from ((str(path[0]), path, str(path[-1])) for path in _array_paths(entry))
    yield from (("options", ("options", one.name), one.name) for one in entry.options)


def _array_paths(entry: CatalogEntry) -> Iterator[KeyPath]:
    for key, arrays in zip(_ARRAYS, (entry.inputs, entry.parameters, entry.outputs), strict=True):
        yield from ((key, one.name) for one in arrays)
