"""Reading one translation unit: a file with what it includes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from llmc2py.diagnostics import Diagnostic, Severity
from llmc2py.frontend.declarations import FunctionHeader, read_header, read_template
from llmc2py.frontend.functions import Functions
from llmc2py.frontend.hostcode import StatementReader
from llmc2py.frontend.intents import IntentAnalysis
from llmc2py.frontend.items import Declaration, Function, declarations, read_function_header, read_item
from llmc2py.frontend.launchcalls import with_launches
from llmc2py.frontend.launching import CallGraph
from llmc2py.frontend.losses import lost_kernels, unparsed_places
from llmc2py.frontend.members import is_device_only, member_body, odd_places
from llmc2py.frontend.names import Plainer
from llmc2py.frontend.preprocess import PreprocessedText
from llmc2py.frontend.prototypes import Prototypes
from llmc2py.frontend.scope import ScopeReader
from llmc2py.frontend.slicer import Slicer
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, parse, unqualified, walk
from llmc2py.ir.conditions import host_precisions, precisions_of
from llmc2py.ir.defaults import literal_default
from llmc2py.ir.expressions import Number
from llmc2py.ir.library import (
    Intent,
    Item,
    Kernel,
    Launcher,
    Parameter,
    Reference,
    Scope,
    SourceFile,
    TemplateParameter,
)
from llmc2py.ir.statements import Body, Launch, Unsupported
from llmc2py.ir.statements import walk as walk_body
from llmc2py.ir.types import CType

_WRITING = frozenset({Intent.OUT, Intent.INOUT, Intent.ACCUMULATE})
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|' r"'(?:\\[^'\n]{1,8}|[^'\\\n])'")
#: Items that may declare a function without its body.
_PROTOTYPES = frozenset({"declaration", "template_declaration"})

#: What was read of declarations, by place, text and surroundings: those of headers are met in many units.
KnownItems = dict[object, tuple[Item, FunctionHeader | None]]


class UnitReader:
    """Reads one translation unit. Only what the file itself defines is kept."""

    def __init__(self, text: PreprocessedText, known: KnownItems, bodies: dict[object, Body] | None = None) -> None:
        self.text = text
        self._known = known
        self._bodies = bodies if bodies is not None else {}
        self.diagnostics: list[Diagnostic] = []
        self.tree: SyntaxTree = parse(text)
        self.declarations = declarations(self.tree)
        read = [self._read_declaration(declaration, order) for order, declaration in enumerate(self.declarations)]
        self._found = Functions(self.tree, self.declarations, read)
        self.items, self.functions = self._found.items, self._found.by_name
        self.scope = ScopeReader(self.tree, self.declarations, self.items)
        self.slicer = Slicer(self.items, text.system_headers)
        self.intents = IntentAnalysis(self.tree, self.functions)
        self.statements = StatementReader(self.tree)
        self._prototypes = Prototypes(self.tree, self.declarations, self.items)
        self._calls = CallGraph(self.tree, self._found)

    def read(self, references: tuple[Reference, ...]) -> SourceFile:
        """Return what the file defines; diagnostics are left in ``diagnostics``."""
        self.diagnostics += unparsed_places(self.tree)
        kernels: dict[str, Kernel] = {}
        others: dict[str, Kernel] = {}
        for kernel in self._kernels():
            first = kernels.setdefault(kernel.name, kernel)
            if first is not kernel:
                kernels[kernel.name] = kept = self._one_of(first, kernel)
                lost = kernel if kept is first else first
                if lost.namespace != kept.namespace and lost.span.file != kept.span.file:
                    others[f"{lost.namespace}::{lost.name}"] = lost
        own = [kernel for kernel in kernels.values() if kernel.span.file == self.text.file]
        self.diagnostics += lost_kernels(self.tree, self.declarations, self.items)
        hosts = self._host_functions(self._found.plainer(kernels))
        launching = self._calls.launching(hosts)
        launchers = [item for name in launching for item in hosts[name] if item.span.file == self.text.file]
        launchers += self._odd_launchers()
        scope = Scope(
            self.scope.aliases,
            self.scope.constants,
            self.scope.class_constants,
            {name: tuple(values) for name, values in self.scope.globals.items()},
            self.scope.global_types,
            {name: tuple(found) for name, found in hosts.items()},
            kernels | others,
        )
        callers = tuple(self._callers(hosts, launching))
        includes = self.text.includes
        return SourceFile(self.text.file, tuple(own), tuple(launchers), scope, references, includes, callers=callers)

    def _callers(
        self, hosts: Mapping[str, Sequence[Launcher]], launching: Collection[str]
    ) -> Iterator[tuple[Launcher, frozenset[str]]]:
        """Yield the file's host functions that launch nothing here and call what is declared here alone."""
        declared = {name for item in self.items if item.kind in _PROTOTYPES for name in item.defines}
        reached = self._calls.reaching(hosts, declared - self.functions.keys())
        for name, names in reached.items():
            for one in hosts[name] if name not in launching else ():
                if one.span.file == self.text.file:
                    yield replace(one, body=()), names

    def _read_declaration(self, declaration: Declaration, order: int) -> tuple[Item, FunctionHeader | None]:
        """Return the item of a declaration, and the header of a function."""
        key = (
            self.tree.span(declaration.node),
            self.tree.text(declaration.node),
            declaration.conditions,
            declaration.scopes,
        )
        known = self._known.get(key)
        if known is None:
            header = read_function_header(self.tree, declaration)
            known = read_item(self.tree, declaration, order, header), header
            if self.tree.is_whole(declaration.node):
                self._known[key] = known
        item, header = known
        return (item if item.order == order else replace(item, order=order)), header

    def _kernels(self) -> Iterable[Kernel]:
        in_order = sorted((one for found in self.functions.values() for one in found), key=lambda one: one.item.order)
        for function in in_order:
            if not function.item.is_kernel:
                continue
            header, declaration, item = function.header, function.declaration, function.item
            own = item.span.file == self.text.file
            odd = next((one for one in (header.name, *(p.name for p in header.parameters)) if _is_odd(one)), None)
            if odd is not None:
                if own:
                    message = f"kernel {header.name}: {odd} can be no name in Python; the kernel is left out"
                    place = self.tree.span(declaration.node)
                    self.diagnostics.append(Diagnostic(Severity.ERROR, place, message, header.name))
                continue
            template = self._template(declaration)
            part, found = self.slicer.slice(item, header.name, self._passed_functions(template))
            self.diagnostics += found if own else []
            yield Kernel(
                header.name,
                self.tree.span(declaration.node),
                self._kernel_parameters(function, with_intents=own),
                template,
                declaration.conditions,
                precisions_of(declaration.conditions) if part.uses_precision else ("float32",),
                header.launch_bounds,
                None if found else part,
                function.namespace,
            )

    def _template(self, declaration: Declaration) -> tuple[TemplateParameter, ...]:
        """Return the template parameters, with names of integer types and constants as what they stand for."""
        found = read_template(self.tree, declaration.template) if declaration.template is not None else ()
        return tuple(map(self._told, found))

    def _told(self, parameter: TemplateParameter) -> TemplateParameter:
        value = self.scope.constants.get(parameter.default or "")
        if isinstance(value, Number) and parameter.kind != "type":
            parameter = replace(parameter, default=str(int(value.value)))
        ctype = self.scope.resolve(CType(parameter.kind))
        return replace(parameter, kind=ctype.base) if ctype.is_integer else parameter

    def _passed_functions(self, template: tuple[TemplateParameter, ...]) -> set[str]:
        """Return the functions that a kernel may be given: a template parameter of no plain type is a function's."""
        takes_functions = any(one.kind not in ("type", "pack") and not CType(one.kind).is_integer for one in template)
        return self._template_arguments if takes_functions else set()

    @cached_property
    def _template_arguments(self) -> set[str]:
        """The names that are template arguments of calls and launches: ``kernel<function><<<…>>>()``."""
        if b"<<<" not in self.tree.source:
            return set()
        functions = (
            unqualified(child(node, "function")) for node in walk(self.tree.root) if node.type == "call_expression"
        )
        lists = [child(one, "arguments") for one in functions if one.type == "template_function"]
        return {self.tree.text(item) for one in lists for item in walk(one) if item.type.endswith("identifier")}

    def _kernel_parameters(self, function: Function, *, with_intents: bool) -> tuple[Parameter, ...]:
        """Return the parameters, types resolved; intents are left out for kernels of included files."""
        header = function.header
        try:
            accesses = self.intents.analyse(function) if with_intents else {}
        except (MissingPartError, RecursionError) as error:
            accesses = {}
            reason = error if isinstance(error, MissingPartError) else "it nests too deeply"
            message = f"what {header.name} does with its pointers cannot be told: {reason}"
            place = self.tree.span(function.node)
            self.diagnostics.append(Diagnostic(Severity.WARNING, place, message, header.name))
        found = []
        for parameter in self._resolved(self._prototypes.completed(header.name, header.parameters)):
            access = accesses.get(parameter.name)
            if not parameter.type.is_pointer or access is None:
                found.append(parameter)
                continue
            # What a function that is not known here may do with a pointer ends at const.
            intent = Intent.IN if parameter.type.const and access.intent in _WRITING else access.intent
            nullable = access.nullable or literal_default(parameter) == "None"
            found.append(replace(parameter, intent=intent, alignment=access.alignment, nullable=nullable))
        return tuple(found)

    def _resolved(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        types = ((one, self.scope.resolve(one.type)) for one in parameters)
        return tuple(one if ctype == one.type else replace(one, type=ctype) for one, ctype in types)

    def _host_functions(self, plainer: Plainer) -> dict[str, list[Launcher]]:
        """Return the host functions by name; bodies are read for those that launch and those that they may call."""
        wanted = self._calls.reached_from_launches()
        found: dict[str, list[Launcher]] = {}
        for name, versions in self.functions.items():
            for function in versions:
                item = function.item
                is_device = item.is_kernel or is_device_only(function) or (item.is_device and name not in wanted)
                if not is_device and host_precisions(function.declaration.conditions):
                    found.setdefault(name, []).append(self._host_function(function, plainer, with_body=name in wanted))
        return found

    def _host_function(self, function: Function, plainer: Plainer, *, with_body: bool) -> Launcher:
        node, header, declaration = function.node, function.header, function.declaration
        body = self._odd_names(node) or self._host_body(function) if with_body else ()
        return Launcher(
            header.name,
            self.tree.span(declaration.node),
            self._resolved(self._prototypes.completed(header.name, header.parameters)),
            self._template(declaration),
            declaration.conditions,
            plainer.body(body, function.namespace),
            self._found.sites.count(node),
            self.scope.resolve(header.returns),
        )

    def _host_body(self, function: Function) -> Body:
        """Return the body of a host function with all of its launches, or what says which of them cannot be read."""
        body, name = self._body(function.node.child_by_field_name("body")), function.header.name
        if "::" in name:
            why = f"is a member of {name.rpartition('::')[0]}: write a function that is none, or a static one"
            return (Unsupported(self.tree.span(function.node), name, why),)
        if name in self._found.members:
            body = member_body(self.tree, self._found.members[name], body, self.scope.class_constants)
        read = sum(isinstance(one, Launch) for one in walk_body(body))
        is_told = any(isinstance(one, Unsupported) for one in walk_body(body))
        if read < self._found.sites.count(function.node) and not is_told:
            why = "it launches where no launch can be read"
            body = (*body, Unsupported(self.tree.span(function.node), name, why))
        return body

    def _odd_launchers(self) -> Iterable[Launcher]:
        """Return what launches and is no function at file scope, as launchers that say so."""
        functions = (one for versions in self.functions.values() for one in versions)
        plain = [one.node for one in functions if one.item.is_kernel or not is_device_only(one)]
        for place in odd_places(self.tree, self._found.sites, plain):
            header = read_header(self.tree, place.node) if place.node.type == "function_definition" else None
            text = self.tree.text(_call_around(place.sites[0]))
            yield Launcher(
                place.name,
                self.tree.span(place.node),
                self._resolved(header.parameters) if header is not None else (),
                (),
                (),
                (Unsupported(self.tree.span(place.sites[0]), text, place.why),),
                len(place.sites),
                CType("void"),
            )

    def _odd_names(self, node: Node) -> Body:
        """Return what stands for a host function that has odd names in it, nothing for others."""
        text = self.tree.text(node)
        if not _is_odd(text) or not ('R"' in text or _is_odd(_LITERAL.sub("", text))):
            return ()
        for item in walk(node):
            if item.type.endswith("identifier") and not item.child_count and _is_odd(self.tree.text(item)):
                text = self.tree.text(item)
                return (Unsupported(self.tree.span(item), text, f"{text} can be no name in Python"),)
        return ()

    def _body(self, node: Node | None) -> Body:
        """Return the body of a host function; one in a header is read once, however many units include it."""
        if node is None or node.has_error or not self.tree.is_whole(node):
            return with_launches(self.statements.read_body(node))
        key = (self.tree.span(node), self.tree.text(node))
        if key not in self._bodies:
            self._bodies[key] = with_launches(self.statements.read_body(node))
        return self._bodies[key]

    def _one_of(self, first: Kernel, second: Kernel) -> Kernel:
        """Kernels are known by their names: of several definitions the one for more precisions is kept."""
        kept, lost = (second, first) if len(second.precisions) > len(first.precisions) else (first, second)
        if lost.span.file == self.text.file:
            message = f"kernel {lost.name} is also defined at {kept.span.origin}; this definition is left out"
            self.diagnostics.append(Diagnostic(Severity.WARNING, lost.span, message, lost.name))
        return kept


def _call_around(node: Node) -> Node:
    found: Node | None = node
    while found is not None and found.type != "call_expression":
        found = found.parent
    return found if found is not None else node


def _is_odd(name: str) -> bool:
    """Whether a name has what C++ compilers take and Python does not: a dollar, or the escape of a character."""
    return "$" in name or "\\" in name
