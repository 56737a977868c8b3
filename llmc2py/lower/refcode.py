"""The NumPy code of references, checked: whether it can be read, its names, and that it assigns what it has to."""

from __future__ import annotations

import ast
import builtins
import difflib
import symtable
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from types import ModuleType

from llmc2py.diagnostics import SourceError
from llmc2py.ir.catalog import CatalogEntry


def check_reference(entry: CatalogEntry) -> None:
    """Check both passes of an entry's reference. Raises SourceError at what is wrong.

    Those of built-in entries are left to the tests: NumPy takes longer to import than most trees to generate again.
    """
    if entry.is_builtin:
        return
    arrays = (*entry.inputs, *entry.parameters)
    arguments = [*(one.name for one in arrays), *(one.name for one in entry.options)]
    _Code(entry, "forward", entry.reference_forward, arguments).check([one.name for one in entry.outputs])
    if entry.reference_backward:
        gradients = [f"d{one.name}" for one in arrays if one.below is None]
        arguments += [f"d{one.name}" for one in entry.outputs]
        _Code(entry, "backward", entry.reference_backward, arguments).check(gradients)


class _Code:
    """One pass: its arguments, and the table of its names as the function that it becomes."""

    def __init__(self, entry: CatalogEntry, key: str, text: str, arguments: list[str]) -> None:
        self.entry = entry
        self.key = key
        self.arguments = {*arguments, "stored"}
        try:
            self.tree = ast.parse(text)
            head = f"def reference({', '.join(sorted(self.arguments))}):\n"
            self.table = symtable.symtable(head + textwrap.indent(text, " ") + "\n", key, "exec").get_children()[0]
        except SyntaxError as error:
            place = entry.places.within(("reference", key), error.lineno or 1, error.offset or 1)
            raise SourceError(place, f"{entry.name}: reference.{key}: {error.msg}") from error

    def check(self, wanted: Iterable[str]) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)):
                raise self._error(node, "a reference assigns arrays, and does nothing else")
        self._check_names()
        self._check_numpy()
        assigned = {one.get_name() for one in self.table.get_symbols() if one.is_assigned()}
        assigned |= {name for node in ast.walk(self.tree) if (name := _written(node)) in self.arguments}
        for name in wanted:
            if name not in assigned:
                message = f"{self.entry.name}: reference.{self.key} assigns no {name}{_like(name, assigned)}"
                raise SourceError(self.entry.places.at("reference", self.key), message)

    def _check_names(self) -> None:
        known = {"np", *dir(builtins)}
        unknown = {
            one.get_name() for table in _all(self.table) for one in table.get_symbols() if one.is_global()
        } - known
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and node.id in unknown:
                local = {one.get_name() for one in self.table.get_symbols() if one.is_local()}
                raise self._error(node, f"{node.id} is not known here{_like(node.id, self.arguments | local)}")

    def _check_numpy(self) -> None:
        """Look up ``np.linalg.norm``, as far as there are modules."""
        for node in ast.walk(self.tree):
            module = _module(node.value) if isinstance(node, ast.Attribute) else None
            if isinstance(node, ast.Attribute) and isinstance(module, ModuleType) and not _has(module, node.attr):
                raise self._error(node, f"{module.__name__} has no {node.attr}{_like(node.attr, dir(module))}")

    def _error(self, node: ast.AST, message: str) -> SourceError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        place = self.entry.places.within(("reference", self.key), line, column)
        return SourceError(place, f"{self.entry.name}: reference.{self.key}: {message}")


def _written(node: ast.AST) -> str:
    """``out[...] = value``: return the name of the array that is written to, else ""."""
    while isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        if isinstance(node.value, ast.Name):
            return node.value.id
        node = node.value
    return ""


def _all(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all(child)


def _module(node: ast.expr) -> object:
    """Return what ``np`` or ``np.linalg`` stands for, None for anything else."""
    import numpy as np

    if isinstance(node, ast.Name):
        return np if node.id == "np" else None
    if isinstance(node, ast.Attribute) and isinstance(above := _module(node.value), ModuleType):
        return getattr(above, node.attr) if _has(above, node.attr) else None
    return None


def _has(module: ModuleType, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is deprecated is there all the same
        return hasattr(module, name)


def _like(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
