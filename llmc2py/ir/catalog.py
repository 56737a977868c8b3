"""A catalogue entry: what an op is, as a person wrote it down, before it is checked against a source tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmc2py.ir.plans import ArraySpec, CReferenceCall, VariantCall


@dataclass(frozen=True)
class PassEntry:
    """The forward or backward pass of an entry: its recipe, and what it saves or which gradients it gives.

    ``line`` is the line of the entry's file that the recipe begins in.
    """

    recipe: str
    saves: tuple[str, ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    line: int = field(default=1, compare=False, repr=False)


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
    too. An entry without a ``layer`` is there for these alone, and has the ``sizes`` that they run on by letter.
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
    reduction: str | None
    variants: tuple[VariantCall, ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
