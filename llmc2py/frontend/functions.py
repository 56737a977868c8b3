"""The functions of a translation unit: their items, and the namespaces that they are in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from llmc2py.frontend.declarations import FunctionHeader
from llmc2py.frontend.items import Declaration, Function
from llmc2py.frontend.launchsites import LaunchSites
from llmc2py.frontend.members import StaticMember, plain_functions
from llmc2py.frontend.names import Names, Plainer, namespace_of, split_name
from llmc2py.frontend.syntax import SyntaxTree, child
from llmc2py.ir.library import Item, Kernel
from llmc2py.ir.names import is_reserved

_QUALIFIED = re.compile(rb"(?<![\w>)])::\s*\w")
_PLAIN = frozenset({"declaration", "template_declaration"})


class Functions:
    """The function definitions of a unit by name, with the items of all declarations.

    What is defined outside of its namespace, ``void ns::f() {}``, is as if it stood there. What a class has keeps the
    name that it is defined by, ``S::f``.
    """

    def __init__(
        self,
        tree: SyntaxTree,
        declarations: Sequence[Declaration],
        read: Iterable[tuple[Item, FunctionHeader | None]],
    ) -> None:
        scopes = {one.scopes for one in declarations}
        self._namespaces = {namespace_of(one, with_inline=deep) for one in scopes for deep in (True, False)}
        self._namespaces |= {outer for one in self._namespaces for outer in _prefixes(one)}
        self.items: list[Item] = []
        self.by_name: dict[str, list[Function]] = {}
        self.sites = LaunchSites(tree)
        #: The static members among the functions, by the names that these have here.
        self.members: dict[str, StaticMember] = {}
        self.names = Names(_aliases(tree, declarations), is_needed=bool(_QUALIFIED.search(tree.source)))
        for declaration, (item, header) in zip(declarations, read, strict=True):
            self.items.append(self._add(declaration, item, header))
        #: What launchers are called whose own names the generated modules need.
        self.renamed = dict(self._renamed())
        self._add_plain(tree, declarations)

    def _add(self, declaration: Declaration, item: Item, header: FunctionHeader | None) -> Item:
        namespace = namespace_of(declaration.scopes)
        if header is None or declaration.function is None:
            self._note_prototypes(declaration, item, namespace)
            return item
        if "::" in header.name:
            owner, last = split_name(header.name)
            home = self._home(owner, namespace)
            if home is not None:
                header, namespace, item = replace(header, name=last), home, replace(item, defines=frozenset({last}))
        if "::" not in header.name:
            self.names.add(header.name, namespace, namespace_of(declaration.scopes, with_inline=True) or namespace)
        function = Function(declaration.function, declaration, header, item, namespace)
        self.by_name.setdefault(header.name, []).append(function)
        return item

    def _add_plain(self, tree: SyntaxTree, declarations: Sequence[Declaration]) -> None:
        """Add what is as good as a function at file scope."""
        defined = {name: versions[0].node for name, versions in self.by_name.items() if "::" in name}
        for function, member in plain_functions(tree, declarations, self.sites, defined):
            name = function.header.name
            if member is not None:
                self.members[name] = member
                self.by_name.pop(f"{member.owner}::{member.name}", None)
            self.by_name.setdefault(name, []).append(function)

    def _renamed(self) -> Iterator[tuple[str, str]]:
        """Give launchers names as kernels get them where Python or the generated modules need theirs."""
        for name, versions in list(self.by_name.items()):
            launches = any(self.sites.count(one.node) and not one.item.is_device for one in versions)
            if launches and is_reserved(name) and len(versions) == 1:
                new = f"{name}_launcher"
                (one,) = self.by_name.pop(name)
                item = replace(one.item, defines=frozenset({new}))
                self.by_name.setdefault(new, []).append(replace(one, header=replace(one.header, name=new), item=item))
                yield name, new

    @property
    def all_items(self) -> list[Item]:
        """The items of all functions, those too that do not stand at file scope, and of all else."""
        functions = [one.item for versions in self.by_name.values() for one in versions]
        return [*(item for item in self.items if item.kind != "function"), *functions]

    def _note_prototypes(self, declaration: Declaration, item: Item, namespace: str) -> None:
        if item.kind in _PLAIN and "__global__" in item.text:
            for name in item.defines:
                self.names.add(name, namespace, namespace_of(declaration.scopes, with_inline=True))

    def _home(self, owner: str, inside: str) -> str | None:
        """Return the namespace that qualifies a definition inside of another; None for a class."""
        for outer in (*reversed(_prefixes(inside)), ""):
            found = f"{outer}::{owner}" if outer else owner
            if found in self._namespaces:
                return found
        return None

    def plainer(self, kernels: Mapping[str, Kernel]) -> Plainer:
        """Return what makes names in host code those of the IR; ``kernels`` are those that are known."""
        kept = {name: versions[0].namespace for name, versions in self.by_name.items()}
        kept |= {name: kernel.namespace for name, kernel in kernels.items()}
        device = {
            name for name, versions in self.by_name.items() if any("__device__" in one.header.words for one in versions)
        }
        statics = {f"{one.owner}::{one.name}": name for name, one in self.members.items()}
        statics |= {f"::{name}": new for name, new in self.renamed.items()}
        return Plainer(self.names, kept, device, statics, kernels.keys(), self._overloaded())

    def _overloaded(self) -> set[str]:
        """Return the kernels that differ in the types of their parameters alone."""
        found = set()
        for name, versions in self.by_name.items():
            kernels = [one for one in versions if one.item.is_kernel] if len(versions) > 1 else []
            places = {(one.namespace, one.declaration.conditions) for one in kernels}
            types = {tuple(parameter.type for parameter in one.header.parameters) for one in kernels}
            if len(places) < len(kernels) and len(types) > 1:
                found.add(name)
        return found


def _prefixes(namespace: str) -> list[str]:
    parts = namespace.split("::") if namespace else []
    return ["::".join(parts[: count + 1]) for count in range(len(parts))]


def _aliases(tree: SyntaxTree, declarations: Iterable[Declaration]) -> dict[str, str]:
    """``namespace fs = std::filesystem;``."""
    found = {}
    for one in declarations:
        if one.node.type == "namespace_alias_definition":
            target = one.node.named_children[-1]
            found[tree.text(child(one.node, "name"))] = re.sub(r"\s+", "", tree.text(target))
    return found
