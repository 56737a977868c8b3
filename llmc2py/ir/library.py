"""What a source tree holds: kernels, launchers, the items that slices are made of, and C references."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmc2py.diagnostics import Diagnostic, SourceSpan
from llmc2py.ir.expressions import Expression, TemplateArgument
from llmc2py.ir.statements import Body
from llmc2py.ir.types import CType

_ENUMERATION = re.compile(r"\s*(?:typedef\s+)?enum\b")


class Intent(enum.StrEnum):
    """What a kernel does with the memory that a pointer parameter points to."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"
    ACCUMULATE = "accumulate"
    UNUSED = "unused"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel or launcher."""

    name: str
    type: CType
    span: SourceSpan
    default: str | None = None
    intent: Intent | None = None
    alignment: int = 0
    nullable: bool = False


@dataclass(frozen=True)
class TemplateParameter:
    """``typename T`` (kind "type") or ``int N`` (kind: the type's name)."""

    name: str
    kind: str
    default: str | None = None


@dataclass(frozen=True)
class Item:
    """A declaration at file scope that a slice can hold: a function, type, constant, typedef or macro.

    ``text`` is the preprocessed text with its ``#line`` marks left out; ``lines`` gives the original place of each of
    its lines. ``conditions`` are the preprocessor conditions left open around it; ``scopes`` what encloses it
    (``namespace x``, ``extern "C"``). ``calls`` are names called like functions, ``uses`` all names. ``is_kernel`` says
    that it is the definition of a kernel.
    """

    kind: str
    defines: frozenset[str]
    uses: frozenset[str]
    calls: frozenset[str]
    text: str
    lines: tuple[SourceSpan, ...] = field(repr=False)
    conditions: tuple[str, ...]
    scopes: tuple[str, ...]
    is_device: bool
    is_kernel: bool
    order: int

    @property
    def span(self) -> SourceSpan:
        return self.lines[0]


@dataclass(frozen=True)
class Slice:
    """The smallest translation unit that compiles one kernel: items in source order and the system headers used."""

    kernel: str
    items: tuple[Item, ...]
    headers: tuple[str, ...]
    uses_precision: bool

    @property
    def is_cooperative(self) -> bool:
        """Whether the kernel waits for the whole grid, so that all of its blocks have to run at once."""
        return any(item.uses & {"this_grid", "grid_group"} for item in self.items)


@dataclass(frozen=True)
class Kernel:
    """A ``__global__`` function; ``namespace`` is what names it from outside, ``a::b``."""

    name: str
    span: SourceSpan
    parameters: tuple[Parameter, ...]
    template: tuple[TemplateParameter, ...]
    conditions: tuple[str, ...]
    precisions: tuple[str, ...]
    launch_bounds: tuple[str, ...]
    slice: Slice | None
    namespace: str = ""

    @property
    def kind(self) -> str:
        return "kernel"

    @property
    def enumerations(self) -> dict[str, str]:
        """The template parameters whose values are enumerators, each with the enumeration as C++ names it."""
        found = {}
        for one in self.template:
            for item in self.slice.items if self.slice is not None else ():
                if one.kind in item.defines and _ENUMERATION.match(item.text):
                    outer = [scope.rpartition(" ")[2] for scope in item.scopes if "namespace " in scope]
                    found[one.name] = "::".join([*outer, one.kind])
        return found


@dataclass(frozen=True)
class Launcher:
    """A host function; a launcher in the narrow sense where it, or one that it calls, launches kernels."""

    name: str
    span: SourceSpan
    parameters: tuple[Parameter, ...]
    template: tuple[TemplateParameter, ...]
    conditions: tuple[str, ...]
    body: Body = field(repr=False)
    launch_sites: int
    returns: CType

    @property
    def kind(self) -> str:
        return "launcher"


@dataclass(frozen=True)
class ClassConstant:
    """A ``static constexpr`` member: its value in terms of the class's template parameters."""

    parameters: tuple[str, ...]
    value: Expression


@dataclass(frozen=True)
class TypeAlias:
    """What a ``typedef`` or ``using`` names: a type, with its template arguments, types canonical."""

    type: CType
    arguments: tuple[TemplateArgument, ...]


@dataclass(frozen=True)
class Scope:
    """What the names of a translation unit mean to the host code in it.

    ``globals`` are mutable variables at file scope with every value that is assigned to them anywhere in the unit;
    ``class_constants`` is keyed by class and member, ``kernels`` by name; one of the name of another is qualified.
    """

    aliases: dict[str, TypeAlias]
    constants: dict[str, Expression]
    class_constants: dict[tuple[str, str], ClassConstant]
    globals: dict[str, tuple[Expression, ...]]
    global_types: dict[str, CType]
    functions: Mapping[str, tuple[Launcher, ...]]
    kernels: Mapping[str, Kernel]


@dataclass(frozen=True)
class Reference:
    """A plain C function that computes an op, rewritten to double.

    ``parameters`` are names with canonical C types, as ``double_source``, a translation unit of its own, declares them.
    """

    name: str
    span: SourceSpan
    parameters: tuple[tuple[str, str], ...]
    double_source: str = field(repr=False)


@dataclass(frozen=True)
class SourceFile:
    """One file of the tree with what is defined in it.

    ``callers`` are host functions that call others which are declared here alone, with the names of these.
    ``key`` stands for all that the file was read from: files of one key are equal. It is "" where that is not known.
    """

    path: str
    kernels: tuple[Kernel, ...]
    launchers: tuple[Launcher, ...]
    scope: Scope = field(compare=False, repr=False)
    references: tuple[Reference, ...]
    depends_on: tuple[str, ...]
    key: str = field(default="", compare=False, repr=False)
    callers: tuple[tuple[Launcher, frozenset[str]], ...] = ()

    def kernel(self, name: str) -> Kernel | None:
        """Return the kernel of this name that the file defines, or None."""
        return next((kernel for kernel in self.kernels if kernel.name == name), None)


@dataclass(frozen=True)
class Library:
    """A source tree, read.

    ``hashes`` are those of all files that were read; ``probes`` are the paths at which an include was looked for.
    """

    files: tuple[SourceFile, ...]
    hashes: dict[str, str]
    diagnostics: tuple[Diagnostic, ...]
    probes: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def kernels(self) -> list[Kernel]:
        return [kernel for file in self.files for kernel in file.kernels]

    @property
    def launchers(self) -> list[Launcher]:
        return [launcher for file in self.files for launcher in file.launchers]

    @property
    def references(self) -> list[Reference]:
        return [reference for file in self.files for reference in file.references]
