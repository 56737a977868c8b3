"""What lowering makes: launch plans and layer plans, ready to be printed."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.library import Kernel, Launcher, Parameter, Slice


@dataclass(frozen=True)
class LaunchPlan:
    """A launcher, lowered to the body of a Python function.

    ``body`` are its lines, indented by four spaces a level; ``asked`` names of values that the source takes from places
    that no plan can see and that callers must give; ``uses`` the names of runtime functions in the body; ``kernels``
    and ``calls`` the kernels that it launches and the launchers that it calls; ``quanta`` for a parameter that an assert
    wants to be a multiple of something, that number by precision.
    """

    launcher: Launcher
    parameters: tuple[Parameter, ...]
    body: tuple[str, ...]
    asked: tuple[str, ...]
    uses: frozenset[str]
    kernels: tuple[str, ...]
    calls: tuple[str, ...]
    launches: tuple[str, ...]
    quanta: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.launcher.name


@dataclass(frozen=True)
class NotLowered:
    """A launcher that is beyond lowering: why, and at which place."""

    launcher: Launcher
    span: SourceSpan
    reason: str


@dataclass(frozen=True)
class ModulePlan:
    """One generated module: its kernels with their slices, launchers and, for a catalogue entry, the op."""

    path: str
    sources: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    launchers: tuple[LaunchPlan, ...]
    not_lowered: tuple[NotLowered, ...]
    slices: tuple[Slice, ...]
    op: OpPlan | None
    imports: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class ArraySpec:
    """An array of an op: its name and the letters of its shape, ``*`` for all leading axes together."""

    name: str
    shape: tuple[str, ...]
    doc: str = ""
    init: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A forward or backward pass as lines of Python over arrays, launchers and kernels."""

    lines: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True)
class CReferenceCall:
    """How an op calls a C reference: the function, its file, and what goes into each parameter."""

    function: str
    file: str
    call: str


@dataclass(frozen=True)
class OpPlan:
    """A catalogue entry, checked against the launchers and kernels that it uses."""

    name: str
    layer: str
    summary: str
    source: str
    precisions: tuple[str, ...]
    inputs: tuple[ArraySpec, ...]
    parameters: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    saves: tuple[str, ...]
    gradients: dict[str, str]
    forward: Recipe
    backward: Recipe
    reference_forward: tuple[str, ...]
    reference_backward: tuple[str, ...]
    c_references: tuple[CReferenceCall, ...]
    fast_sizes: str
    reduction: str | None = None
