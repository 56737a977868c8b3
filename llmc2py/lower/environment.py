"""The names that expressions of host code may use, and the types that no C type stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmc2py.ir.library import Launcher, Scope
from llmc2py.ir.types import CType

DIM3 = CType("dim3")
STATUS = CType("cudaError_t")
#: A local name of a kernel.
KERNEL = CType("kernel")
#: What a template parameter or an expression of no known type counts as.
UNKNOWN = CType("?")
#: A constant of cuBLAS: a string with its name. And what a local pointer to a host variable counts as: its value.
ENUMERATOR = CType("enumerator")
REFERENCE = CType("reference")
#: The remainder of an address, a small number.
ADDRESS = CType("unsigned long", const=True)


@dataclass(frozen=True)
class Variable:
    """A local name: how Python calls it, its type, and, for a constant, the expression that it stands for."""

    name: str
    type: CType
    is_natural: bool = False


@dataclass
class Environment:
    """The names that an expression may use, and what lowering has found out so far.

    ``hoisted`` holds constants of classes, such as ``x128::size``, that get a name of their own at the top.
    """

    scope: Scope
    variables: dict[str, Variable] = field(default_factory=dict)
    asked: dict[str, CType] = field(default_factory=dict)
    hoisted: dict[str, str] = field(default_factory=dict)
    template: frozenset[str] = frozenset()
    template_values: frozenset[str] = frozenset()
    #: Those of them that are no numbers: functions, or enumerators.
    opaque: frozenset[str] = frozenset()
    #: What template parameters of a host function that only computes stand for, where these are types.
    types: Mapping[str, CType] = field(default_factory=dict)

    def function(self, name: str) -> Launcher | None:
        """Return the host function of a name; None where there is none, or one of several."""
        versions = self.scope.functions.get(name, ())
        return versions[0] if len(versions) == 1 else None
