"""Names that stand in namespaces: what a name means where it is used.

The IR knows kernels and functions by their last names, and kernels what they are in. Namespaces without a name and
inline ones are left out everywhere: C++ finds what is in them without.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.types import CType

_SCOPE = re.compile(r"(?:namespace|(inline) namespace) (\S+)")
_Node = TypeVar("_Node")


def namespace_of(scopes: Iterable[str], *, with_inline: bool = False) -> str:
    """Return the namespace that scopes make: ``a::b``, "" for the global one."""
    found = (_SCOPE.fullmatch(scope) for scope in scopes)
    return "::".join(one[2] for one in found if one is not None and (with_inline or not one[1]))


def split_name(name: str) -> tuple[str, str]:
    """Return what a name is qualified with, and its last part."""
    owner, _, last = name.rpartition("::")
    return owner.removeprefix("::"), last


class Names:
    """The namespaces in which the functions of a unit are declared, by their last names."""

    def __init__(self, aliases: Mapping[str, str], *, is_needed: bool) -> None:
        self._aliases = aliases
        self._found: dict[str, dict[str, str]] = {}
        #: Whether any name is written or found with a qualification.
        self.is_needed = is_needed

    def add(self, name: str, namespace: str, spelled: str | None = None) -> None:
        """Note a function; ``spelled`` is its namespace with the inline ones."""
        known = self._found.setdefault(name, {})
        known[namespace] = namespace
        known[spelled if spelled is not None else namespace] = namespace
        self.is_needed |= bool(namespace)

    def namespaces(self, name: str) -> list[str]:
        """Return the namespaces in which there is a function of a last name."""
        return sorted(set(self._found.get(name, {}).values()))

    def namespace(self, name: str, inside: str) -> str | None:
        """Return the namespace of the function that a name means inside of a namespace; None where that is not known.

        What C++ finds by ``using`` is taken where it is the only one.
        """
        owner, last = split_name(name)
        known = self._found.get(last)
        if known is None:
            return None
        first, _, rest = owner.partition("::")
        if first in self._aliases:
            owner = f"{self._aliases[first]}::{rest}".removesuffix("::")
        if name.startswith("::"):
            return known.get(owner)
        for outer in _outward(inside):
            found = known.get("::".join(part for part in (outer, owner) if part))
            if found is not None:
                return found
        fitting = {one for path, one in known.items() if not owner or f"::{path}".endswith(f"::{owner}")}
        return fitting.pop() if len(fitting) == 1 else None


def _outward(namespace: str) -> Iterator[str]:
    """``a::b``, ``a``, and the global namespace."""
    while namespace:
        yield namespace
        namespace = namespace.rpartition("::")[0]
    yield ""


class Plainer:
    """Makes the names in bodies those by which the IR knows kernels and functions.

    ``kept`` gives the namespace of the kernel or function that is known by a name: one of several alone is. A name that
    means another one stays qualified, and so is found by nobody. ``device`` are the device functions, ``statics`` the
    names of static member functions by ``S::f``, ``overloaded`` those of the ``kernels`` of which there are several in
    one namespace.
    """

    def __init__(
        self,
        names: Names,
        kept: Mapping[str, str],
        device: Collection[str],
        statics: Mapping[str, str],
        kernels: Collection[str],
        overloaded: Collection[str],
    ) -> None:
        self._names = names
        self._kept = kept
        self._device = device
        self._statics = statics
        self._kernels = kernels
        self._overloaded = overloaded

    def body(self, body: ir.Body, inside: str) -> ir.Body:
        """Return the body of a function that is defined inside of a namespace."""
        is_needed = self._names.is_needed or self._statics or self._overloaded
        return mapped(body, lambda node: self._plain(node, inside)) if is_needed else body

    def _plain(self, node: Any, inside: str) -> Any:
        if isinstance(node, ir.Launch):
            return self._launch(node, inside)
        if isinstance(node, ex.Call):
            return replace(node, function=self._name(node.function, inside))
        if isinstance(node, ex.TemplateName) or (isinstance(node, ex.Name) and "::" in node.name):
            return replace(node, name=self._name(node.name, inside))
        if isinstance(node, ex.TemplateArgument):
            return self._function_argument(node, inside)
        return node

    def _launch(self, node: ir.Launch, inside: str) -> ir.Statement:
        several = self._names.namespaces(node.kernel) if node.kernel in self._kernels else []
        if len(several) > 1 and self._names.namespace(node.kernel, inside) is None:
            places = ", ".join(one or "the global one" for one in several)
            return ir.Unsupported(node.span, node.kernel, f"is in several namespaces ({places}): qualify it")
        name = self._name(node.kernel, inside)
        if name in self._overloaded:
            return ir.Unsupported(node.span, name, "is an overloaded kernel, of which Python has the one that is kept")
        return replace(node, kernel=name)

    def _name(self, name: str, inside: str) -> str:
        owner, last = split_name(name)
        static = self._statics.get(f"{split_name(owner)[1]}::{last}")
        if static is not None:
            return static
        found = self._names.namespace(name, inside)
        if found is None:
            return name
        kept = self._kept.get(last, found)
        return last if found == kept else f"{found}::{last}"

    def _function_argument(self, node: ex.TemplateArgument, inside: str) -> ex.TemplateArgument:
        """``kernel<function>``: device functions are named from outside, where kernels are compiled by name."""
        name = re.sub(r"\s+", "", node.text)
        last = split_name(name)[1]
        if last not in self._device:
            return node
        found = self._names.namespace(name, inside)
        return ex.TemplateArgument(CType(f"{found}::{last}"), None, node.text) if found else node


def mapped(node: _Node, change: Any) -> _Node:
    """Return a node of the IR, or a tuple of such, with a function applied to all in it, the innermost first."""
    if isinstance(node, tuple):
        items = tuple(mapped(item, change) for item in node)
        return node if all(one is other for one, other in zip(items, node, strict=True)) else items  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, (SourceSpan, CType, type)):
        return node
    inner = {field.name: getattr(node, field.name) for field in fields(node)}
    changed = {name: new for name, value in inner.items() if (new := mapped(value, change)) is not value}
    result: _Node = change(replace(node, **changed) if changed else node)
    return result
