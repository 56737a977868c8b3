"""Which host functions launch kernels, themselves or through what they call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from llmc2py.frontend.declarations import read_template
from llmc2py.frontend.functions import Functions
from llmc2py.frontend.items import Function
from llmc2py.frontend.syntax import SyntaxTree, child, walk
from llmc2py.ir.blas import PRODUCT_CALLS
from llmc2py.ir.library import Item, Launcher


class CallGraph:
    """What the functions of one translation unit call.

    ``steered`` are the templates that call a parameter, and so launch where they are given a launcher.
    """

    def __init__(self, tree: SyntaxTree, found: Functions) -> None:
        functions, sites = found.by_name, found.sites
        self._calls = _calls(found.all_items)
        others = [(member.name, name) for name, member in found.members.items()]
        for name, new in (*others, *found.renamed.items()):
            for called in self._calls.values() if name not in functions else ():
                if name in called:
                    called.add(new)
        self._launch = {name for name, versions in functions.items() if any(sites.count(one.node) for one in versions)}
        self.steered = {
            name for name, versions in functions.items() if any(_calls_parameter(tree, one) for one in versions)
        }

    def reached_from_launches(self) -> set[str]:
        """Return the functions that launch, those that call them, and those that these may call."""
        wanted = self.steered | self._launch
        wanted |= {name for name, called in self._calls.items() if called & PRODUCT_CALLS.keys()}
        grown = True
        while grown:
            grown = False
            for name, used in self._calls.items():
                if name not in wanted and used & wanted:
                    wanted.add(name)
                    grown = True
        pending = list(wanted)
        while pending:
            more = (self._calls.get(pending.pop(), set()) & self._calls.keys()) - wanted
            wanted |= more
            pending += more
        return wanted

    def reaching(self, hosts: Iterable[str], targets: Set[str]) -> dict[str, frozenset[str]]:
        """Return those host functions that call some of the targets, themselves or through others, with these."""
        found = {name: self._calls.get(name, set()) & targets for name in hosts}
        grown = True
        while grown:
            grown = False
            for name, reached in found.items():
                more = {one for called in self._calls.get(name, set()) for one in found.get(called, ())} - reached
                reached |= more
                grown |= bool(more)
        return {name: frozenset(reached) for name, reached in found.items() if reached}

    def launching(self, hosts: Mapping[str, Sequence[Launcher]]) -> list[str]:
        """Return the names of those host functions that launch kernels, themselves or through others that do."""
        launching = {name for name, versions in hosts.items() if any(item.launch_sites for item in versions)}
        launching |= self.steered & hosts.keys()
        launching |= {name for name in hosts if self._calls.get(name, set()) & PRODUCT_CALLS.keys()}
        grown = True
        while grown:
            more = {name for name in hosts if name not in launching and self._calls.get(name, set()) & launching}
            launching |= more
            grown = bool(more)
        return [name for name in hosts if name in launching]


def _calls(items: Iterable[Item]) -> dict[str, set[str]]:
    calls: dict[str, set[str]] = {}
    for item in items:
        if item.kind == "function" and not item.is_kernel:
            for name in item.defines:
                calls.setdefault(name, set()).update(item.calls)
    return calls


def _calls_parameter(tree: SyntaxTree, function: Function) -> bool:
    """Whether a host template calls one of its parameters: it launches what its caller tells it to."""
    header, template = function.header, function.declaration.template
    if template is None or "__device__" in header.words or "__global__" in header.words:
        return False
    types = {one.name for one in read_template(tree, template) if one.kind == "type"}
    names = {one.name for one in header.parameters if one.type.base in types and not one.type.is_pointer}
    if not names:
        return False
    calls = (item for item in walk(function.node) if item.type == "call_expression")
    return any(tree.text(child(item, "function")) in names for item in calls)
