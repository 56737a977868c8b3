"""Classes of the runtime that a generated package binds to launchers and kernels of its source tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BoundUse:
    """A launcher or kernel that a class calls: the attribute it is, its file and name, and its parameters by name."""

    attribute: str
    source: str
    name: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class BoundClass:
    """A class of ``llmc2py.runtime.optim`` and what it calls; ``functions`` are methods to be had as functions."""

    name: str
    uses: tuple[BoundUse, ...]
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class BoundPlan:
    """A class with all that it calls found: the Python name, in the module of a path, for each attribute."""

    name: str
    functions: tuple[str, ...]
    symbols: dict[str, tuple[str, str]]
    sources: tuple[str, ...]
