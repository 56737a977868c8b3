"""A catalogue entry: what an op is, as a person wrote it down, before it is checked against a source tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.plans import ArraySpec, CReferenceCall, OptionSpec, VariantCall

#: A key of an entry with those of the tables that it stands in; items of lists by number.
KeyPath = tuple[str | int, ...]
#: A line and a column, counted from 1.
Place = tuple[int, int]


class Places:
    """Where the keys of an entry's file stand, and where texts that are values begin: found when first asked for."""

    def __init__(self, file: str, find: Callable[[], tuple[Mapping[KeyPath, Place], Mapping[KeyPath, Place]]]) -> None:
        self.file = file
        self._find = find

    @cached_property
    def _found(self) -> tuple[Mapping[KeyPath, Place], Mapping[KeyPath, Place]]:
        return self._find()

    def at(self, *path: str | int) -> SourceSpan:
        """Return the place of a key, of the table that it would be in where there is no such key."""
        keys, _ = self._found
        while path and path not in keys:
            path = path[:-1]
        return SourceSpan(self.file, *keys.get(path, (1, 1)))

    def within(self, path: KeyPath, line: int, column: int) -> SourceSpan:
        """Return the place of a line and column of the text that is the value of a key.

        What may be one text or a list of them is named by its number in a list.
        """
        _, texts = self._found
        if path not in texts:
            path = path[:-1]
        first, indent = texts.get(path, (1, 1))
        return SourceSpan(self.file, first + line - 1, column + (indent - 1 if line == 1 else 0))


@dataclass(frozen=True)
class PassEntry:
    """The forward or backward pass of an entry: its recipe, and what it saves or which gradients it gives."""

    recipe: str
    saves: tuple[str, ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Replacement:
    """A launcher that a function of ``llmc2py.runtime.replacements`` stands for, and what the function is given.

    ``uses`` names kernels and launchers: of ``source``, or ``file:name``.
    """

    launcher: str
    source: str
    function: str
    uses: tuple[str, ...]


@dataclass(frozen=True)
class CatalogEntry:
    """One op.

    ``file`` names the TOML file, for messages. ``launchers`` and ``kernels`` of ``source`` are emitted in the op's
    module; ``uses`` are those of other modules (``file:name`` where they are of another file). ``extents`` gives the
    number of elements by launcher (of any file in the tree: by the file's name) and parameter: alternatives, of which
    the first counts whose names are all parameters of the launcher. ``variants`` are launchers that compute the op
    too, on the ``sizes`` by letter, of which ``lead`` are the leading axes; an entry without a ``layer`` is there for
    these alone. ``intermediates`` are what the forward pass saves beside inputs, parameters and outputs, ``cases`` the
    sizes to verify on, ``wide`` the kernels of ``source`` that index arrays with 64 bits, ``stochastic`` the arrays
    whose gradients are rounded at random; ``either_way`` says that what the reference stores may be rounded otherwise,
    or not at all. ``autocast`` says which precision mixed inputs are brought to: the lower one,
    float32, or the widest that is given. ``places`` tells where all this stands; ``is_builtin`` that the entry comes
    with llmc2py, and may be for another tree.
    """

    file: str
    name: str
    layer: str
    summary: str
    details: str
    source: str
    launchers: tuple[str, ...]
    kernels: tuple[str, ...]
    uses: tuple[str, ...]
    inputs: tuple[ArraySpec, ...]
    parameters: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    forward: PassEntry
    backward: PassEntry
    extents: dict[str, dict[str, tuple[str, ...]]]
    reference_forward: str
    reference_backward: str
    c_references: tuple[CReferenceCall, ...]
    fast_sizes: str
    reduction: tuple[str, ...]
    places: Places = field(compare=False, repr=False)
    variants: tuple[VariantCall, ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    lead: tuple[str, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    intermediates: tuple[ArraySpec, ...] = ()
    cases: tuple[dict[str, Any], ...] = ()
    precisions: tuple[str, ...] = ()
    stochastic: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    either_way: bool = False
    autocast: str = "widest"
    is_builtin: bool = field(default=False, compare=False, repr=False)
