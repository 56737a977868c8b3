"""What the files of a tree see of each other, and what the lowering of one file has looked at of it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from llmc2py.ir.library import Kernel, Launcher, Scope, SourceFile

_Value = TypeVar("_Value")
#: "launcher" or "kernel", and the name that was looked for.
Look = tuple[str, str]


class Surroundings:
    """The kernels and launchers that names mean in each file of a tree.

    ``kernels`` are those that Python can call, ``symbols`` their Python names, both by file and name. Files may call
    launchers of headers that they do not include: who includes both brings them together. Only names that a single
    header defines are taken.
    """

    def __init__(
        self,
        files: Iterable[SourceFile],
        kernels: Mapping[tuple[str, str], Kernel],
        symbols: Mapping[tuple[str, str], str],
    ) -> None:
        self.files = {file.path: file for file in files}
        self._kernels = kernels
        self._symbols = symbols
        self._lent = _lent(self.files.values())

    def functions(self, file: SourceFile, name: str) -> tuple[Launcher, ...]:
        """Return the host functions of a name."""
        return file.scope.functions.get(name) or self._lent.get(name, ())

    def kernel(self, file: SourceFile, name: str) -> Kernel | None:
        """Return the kernel of a name, as the file that defines it has it; None where Python cannot call it."""
        seen = file.scope.kernels.get(name)
        found = self._kernels.get((seen.span.file, seen.name)) if seen is not None else None
        # Of several kernels of a name in one file, Python has one.
        return found if found is not None and seen is not None and found.namespace == seen.namespace else None

    def symbol(self, file: SourceFile, name: str) -> str | None:
        """Return the Python name of a kernel; None where Python cannot call it."""
        found = self.kernel(file, name)
        return self._symbols[found.span.file, found.name] if found is not None else None

    def state(self, file: SourceFile, look: Look) -> str | None:
        """Return what decides what a file finds under a name outside of itself; None where that is not known."""
        kind, name = look
        if kind == "launcher":
            found = () if name in file.scope.functions else self._lent.get(name, ())
            place, symbol = found[0].span.file if found else "", ""
        else:
            seen = file.scope.kernels.get(name)
            place, symbol = seen.span.file if seen is not None else "", self.symbol(file, name) or ""
        if not place:
            return ""
        key = self.files[place].key if place in self.files else "left out"
        return f"{symbol} {place} {key}" if key else None


class View:
    """What one file sees of a tree, for the lowering of its launchers: ``looks`` is what it has asked for."""

    def __init__(self, file: SourceFile, tree: Surroundings) -> None:
        self._file = file
        self._tree = tree
        self.looks: set[Look] = set()
        self.symbols: Mapping[str, str] = _Watched(self._symbol)
        self.scope: Scope = replace(
            file.scope, functions=_Watched(self._functions), kernels=_Watched(self._kernel_in_scope)
        )

    def kernel(self, name: str) -> Kernel | None:
        """Return a kernel that Python can call, as the file that defines it has it."""
        self.looks.add(("kernel", name))
        return self._tree.kernel(self._file, name)

    def launcher(self, name: str) -> Launcher | None:
        """Return the first host function of a name."""
        return next(iter(self.scope.functions.get(name, ())), None)

    def _symbol(self, name: str) -> str | None:
        self.looks.add(("kernel", name))
        return self._tree.symbol(self._file, name)

    def _kernel_in_scope(self, name: str) -> Kernel | None:
        self.looks.add(("kernel", name))
        return self._file.scope.kernels.get(name)

    def _functions(self, name: str) -> tuple[Launcher, ...] | None:
        self.looks.add(("launcher", name))
        return self._tree.functions(self._file, name) or None


class _Watched(Mapping[str, _Value]):
    """A mapping that finds values by name alone, so that whoever looks at one can be told."""

    def __init__(self, find: Callable[[str], _Value | None]) -> None:
        self._find = find

    def __getitem__(self, name: str) -> _Value:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        raise TypeError("names are looked up one by one here, since each look is noted")

    def __len__(self) -> int:
        raise TypeError("names are looked up one by one here, since each look is noted")


def _lent(files: Iterable[SourceFile]) -> dict[str, tuple[Launcher, ...]]:
    """Return the launchers that any file may call, by name."""
    found: dict[str, list[Launcher]] = {}
    for file in files:
        for launcher in file.launchers if pathlib.PurePosixPath(file.path).suffix != ".cu" else ():
            found.setdefault(launcher.name, []).append(launcher)
    return {name: tuple(launchers) for name, launchers in found.items() if len(launchers) == 1}
