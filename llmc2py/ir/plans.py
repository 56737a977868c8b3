"""What lowering makes: launch plans and layer plans, ready to be printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir.bound import BoundPlan
from llmc2py.ir.library import Kernel, Launcher, Parameter, Reference


@dataclass(frozen=True)
class HelperPlan:
    """A host function that computes a number, lowered to a Python function.

    ``asked`` are the last of its parameters, which its callers ask their own callers for; ``takes_plan`` says that the
    plan (for properties of the device) is its first argument.
    """

    name: str
    parameters: tuple[str, ...]
    asked: tuple[str, ...]
    takes_plan: bool
    body: tuple[str, ...]
    span: SourceSpan


@dataclass(frozen=True)
class LaunchPlan:
    """A launcher, lowered to the body of a Python function.

    ``body`` are its lines, indented by four spaces a level; ``asked`` the values that the source takes from places
    that no plan can see and that callers must give; ``uses`` the names of runtime functions in the body; ``kernels``
    and ``calls`` the kernels that it launches and the launchers that it calls; ``helpers`` the host functions that its
    expressions need; ``quanta`` for a parameter that an assert wants to be a multiple of something, that number by
    precision.
    """

    launcher: Launcher
    parameters: tuple[Parameter, ...]
    body: tuple[str, ...]
    asked: tuple[Parameter, ...]
    uses: frozenset[str]
    kernels: tuple[str, ...]
    calls: tuple[str, ...]
    launches: tuple[str, ...]
    helpers: tuple[HelperPlan, ...] = ()
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
class ArraySpec:
    """An array of an op: its name and the letters of its shape, ``*`` for all leading axes together.

    ``below`` is the letter of an axis that the array holds indices of: it is int32. ``positive`` says that its values
    have to be so. ``dtype`` is the array's own where it is not that of the op; ``optional`` says that a layer may go
    without the parameter. ``when`` says, as an expression of the options, when an intermediate is there, ``otherwise``
    what is saved in its place when it is not.
    """

    name: str
    shape: tuple[str, ...]
    doc: str = ""
    init: str | None = None
    below: str | None = None
    positive: bool = False
    dtype: str | None = None
    optional: bool = False
    when: str | None = None
    otherwise: str | None = None

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters of the shape: ``3C`` is a multiple of C, and a number has none."""
        return tuple(letter for axis in self.shape if axis != "*" and (letter := axis.lstrip("0123456789")))


@dataclass(frozen=True)
class OptionSpec:
    """A scalar that a layer is made with: its Python type, and the text of its default, if it has one.

    An integer may have a ``least`` value, a text ``choices``.
    """

    name: str
    kind: str
    default: str | None = None
    doc: str = ""
    least: int | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A forward or backward pass as lines of Python over arrays, launchers and kernels.

    ``names`` are the functions that the lines use; ``quanta`` the constants for launchers that take whole blocks alone,
    by name: what the count must be a multiple of, by precision. ``values`` are the sizes, options and other values
    that the lines take from the call: ``N``, ``C``, ``lead``, ``dtype``.
    """

    lines: tuple[str, ...]
    names: frozenset[str]
    quanta: dict[str, dict[str, int]] = field(default_factory=dict)
    values: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CReferenceCall:
    """How an op calls a C reference: the function, its file, and what goes into each parameter.

    ``zeros`` are arrays that have to begin with noughts.
    """

    function: str
    file: str
    call: str
    zeros: tuple[str, ...] = ()


@dataclass(frozen=True)
class VariantCall:
    """How the launchers of a file whose names match a pattern compute an op's pass: what goes into each parameter.

    ``blocks`` and ``precisions`` are those to run in, if not all; ``zeros`` the arrays that have to begin with noughts.
    """

    file: str
    launchers: str
    reference: str
    call: str
    blocks: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpPlan:
    """A catalogue entry, checked against the launchers and kernels that it uses."""

    name: str
    layer: str
    summary: str
    details: str
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
    reduction: tuple[str, ...] = ()
    variants: tuple[VariantCall, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    intermediates: tuple[ArraySpec, ...] = ()
    cases: tuple[dict[str, Any], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    lead: tuple[str, ...] = ()
    stochastic: tuple[str, ...] = ()
    either_way: bool = False
    origin: str = ""
    autocast: str = "widest"

    @property
    def letters(self) -> tuple[str, ...]:
        """The sizes that the layer is made with: those of its parameters, in the order in which arrays name them."""
        own = {letter for one in self.parameters for letter in one.shape}
        named = (letter for one in (*self.inputs, *self.parameters) for letter in one.shape)
        return tuple(dict.fromkeys(letter for letter in named if letter in own))


@dataclass(frozen=True)
class CheckPlan:
    """An op without a layer, checked: what its launchers read and write, what is expected, and at which sizes.

    ``sizes`` are expressions by letter, which may name ``block_size``.
    """

    name: str
    summary: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    sizes: tuple[tuple[str, str], ...]
    reference_forward: tuple[str, ...]
    reference_backward: tuple[str, ...]
    c_references: tuple[CReferenceCall, ...]
    reduction: tuple[str, ...]
    variants: tuple[VariantCall, ...]
    layer: str = ""
    parameters: tuple[ArraySpec, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    either_way: bool = False


@dataclass(frozen=True)
class ReplacedLauncher:
    """A launcher that cannot be lowered, with the Python function in its place and the symbols that it is given."""

    launcher: Launcher
    function: str
    symbols: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ModulePlan:
    """One generated module, made from one source file.

    ``path`` is relative to the package, without suffix; ``symbols`` gives the Python name of each kernel here;
    ``extents`` the number of elements by launcher and parameter; ``imports`` the names taken from other modules;
    ``wide`` names the kernels that index with 64 bits though no parameter tells. ``key`` stands for all that the plans
    of launchers and the kernels were made from: those of one name and key are equal. It is "" where that is not known.
    """

    path: str
    source: str
    kernels: tuple[Kernel, ...]
    launchers: tuple[LaunchPlan, ...]
    symbols: dict[str, str]
    extents: dict[str, dict[str, str]]
    imports: dict[str, tuple[str, ...]]
    op: OpPlan | None
    replaced: tuple[ReplacedLauncher, ...] = ()
    wide: frozenset[str] = frozenset()
    key: str = field(default="", compare=False, repr=False)

    @property
    def origin(self) -> str:
        """The place of the first launcher, else of the first kernel, else of the first launcher that is replaced."""
        spans = [plan.launcher.span for plan in self.launchers]
        spans += [kernel.span for kernel in self.kernels]
        spans += [one.launcher.span for one in self.replaced]
        return spans[0].origin


@dataclass(frozen=True)
class PackagePlan:
    """All modules of a generated package, what could not be lowered, and the C references of the source."""

    modules: tuple[ModulePlan, ...]
    not_lowered: tuple[NotLowered, ...]
    references: dict[tuple[str, str], Reference]
    checks: tuple[CheckPlan, ...] = ()
    bound: tuple[BoundPlan, ...] = ()

    @property
    def replaced(self) -> list[ReplacedLauncher]:
        """The launchers that Python functions stand for."""
        return [one for module in self.modules for one in module.replaced]

    @property
    def ops(self) -> list[ModulePlan]:
        """The modules that have a layer, by name."""
        return sorted((module for module in self.modules if module.op is not None), key=lambda module: module.path)
