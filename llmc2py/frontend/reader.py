"""Reading a source tree into a Library."""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.cooperative import with_launches
from llmc2py.frontend.creference import parse_references
from llmc2py.frontend.declarations import FunctionHeader, read_header, read_template
from llmc2py.frontend.hostcode import StatementReader, launch_sites
from llmc2py.frontend.intents import IntentAnalysis
from llmc2py.frontend.items import Declaration, declarations, kernel_words, read_item
from llmc2py.frontend.linking import linked
from llmc2py.frontend.preprocess import HeaderCache, PreprocessedText, preprocess
from llmc2py.frontend.scope import ScopeReader
from llmc2py.frontend.slicer import Slicer, is_kernel
from llmc2py.frontend.sources import find_sources
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, errors, parse, walk
from llmc2py.ir.blas import PRODUCT_CALLS
from llmc2py.ir.conditions import precisions_of
from llmc2py.ir.library import (
    Intent,
    Item,
    Kernel,
    Launcher,
    Library,
    Parameter,
    Reference,
    Scope,
    SourceFile,
    TemplateParameter,
)
from llmc2py.ir.statements import Body, Unsupported
from llmc2py.ir.types import CType

_WRITING = frozenset({Intent.OUT, Intent.INOUT, Intent.ACCUMULATE})


@dataclass
class ReadCache:
    """What the files of one tree share: texts, expanded headers, the items of headers and bodies of functions there."""

    texts: dict[pathlib.Path, str] = field(default_factory=dict)
    headers: HeaderCache = field(default_factory=dict)
    items: dict[object, Item] = field(default_factory=dict)
    bodies: dict[object, Body] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadUnit:
    """A translation unit that was read: what its file defines, None where it cannot be read.

    ``hashes`` are those of the texts that were read for it, ``probes`` the paths at which an include was looked for;
    both are named from the root.
    """

    file: SourceFile | None
    diagnostics: tuple[Diagnostic, ...]
    hashes: dict[str, str]
    probes: frozenset[str] = frozenset()


def read_tree(root: pathlib.Path) -> Library:
    """Read every CUDA source under a folder. Files that cannot be read become diagnostics, the others stay.

    Raises UsageError where the folder is missing or holds no source.
    """
    root = root.resolve()
    cache = ReadCache()
    paths, unreadable = find_sources(root)
    return library_of([read_unit(path, root, cache) for path in paths], unreadable)


def library_of(units: Sequence[ReadUnit], unreadable: Iterable[Diagnostic]) -> Library:
    """Put the units of a tree together, in the order of their files."""
    files = [unit.file for unit in units if unit.file is not None]
    hashes = {name: digest for unit in units for name, digest in unit.hashes.items()}
    diagnostics = [*unreadable, *(item for unit in units for item in unit.diagnostics)]
    in_order = dict(sorted(hashes.items(), key=lambda item: pathlib.PurePath(item[0])))
    probes = frozenset(probe for unit in units for probe in unit.probes)
    return Library(linked(files), in_order, tuple(dict.fromkeys(diagnostics)), probes)


def read_unit(path: pathlib.Path, root: pathlib.Path, cache: ReadCache) -> ReadUnit:
    """Read one file of a tree (paths resolved); where it is no text or cannot be opened, an error says so."""
    name = path.relative_to(root).as_posix()
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("is no regular file")
        if not name.isprintable():
            raise ValueError("its name holds control characters")
        text = preprocess(path, root, cache.texts, cache.headers)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _unreadable(path, reason, root, cache)
    except RecursionError:
        return _unreadable(path, "its macros nest too deeply", root, cache)
    references, found = parse_references(cache.texts[path], name)
    converted = tuple(Reference(item.name, item.span, item.double_params, item.double_source) for item in references)
    read = [path, *(root / included for included in text.includes)]
    try:
        unit = UnitReader(text, cache.items, cache.bodies)
        file = unit.read(converted)
    except RecursionError:
        return _unreadable(path, "it nests too deeply", root, cache)
    diagnostics = (*text.diagnostics, *unit.diagnostics, *found)
    probes = frozenset(os.path.relpath(probe, root) for probe in text.probes)
    return ReadUnit(file, diagnostics, _hashes(read, root, cache), probes)


def _unreadable(path: pathlib.Path, reason: str, root: pathlib.Path, cache: ReadCache) -> ReadUnit:
    why = Diagnostic(Severity.ERROR, SourceSpan(path.relative_to(root).as_posix(), 1), f"cannot be read: {reason}")
    return ReadUnit(None, (why,), _hashes([path] if path in cache.texts else [], root, cache))


def _hashes(paths: Iterable[pathlib.Path], root: pathlib.Path, cache: ReadCache) -> dict[str, str]:
    found = {}
    for path in paths:
        name = path.relative_to(root).as_posix()
        if name not in cache.hashes:
            cache.hashes[name] = hashlib.sha256(cache.texts[path].encode()).hexdigest()
        found[name] = cache.hashes[name]
    return found


class UnitReader:
    """Reads one translation unit: a file with what it includes. Only what the file itself defines is kept."""

    def __init__(
        self, text: PreprocessedText, known: dict[object, Item], bodies: dict[object, Body] | None = None
    ) -> None:
        self.text = text
        self._bodies = bodies if bodies is not None else {}
        self.diagnostics: list[Diagnostic] = []
        self.tree: SyntaxTree = parse(text)
        self.declarations = declarations(self.tree)
        self.items = [self._item(declaration, order, known) for order, declaration in enumerate(self.declarations)]
        self.scope = ScopeReader(self.tree, self.declarations, self.items)
        self._headers: dict[int, FunctionHeader | None] = {}
        self._steered: set[str] = set()
        self.slicer = Slicer(self.items, text.system_headers)
        self.functions = self._functions()
        self.intents = IntentAnalysis(
            self.tree, {name: [node for node, _ in found] for name, found in self.functions.items()}
        )
        self.statements = StatementReader(self.tree)

    def read(self, references: tuple[Reference, ...]) -> SourceFile:
        """Return what the file defines; diagnostics are left in ``diagnostics``."""
        self._report_errors()
        kernels: dict[str, Kernel] = {}
        for kernel in self._kernels():
            kernels[kernel.name] = self._one_of(kernels[kernel.name], kernel) if kernel.name in kernels else kernel
        own = [kernel for kernel in kernels.values() if kernel.span.file == self.text.file]
        self._report_lost_kernels()
        hosts = self._host_functions()
        launching = _launching(hosts, self.items, self.declarations, self._steered)
        launchers = [item for name in launching for item in hosts[name] if item.span.file == self.text.file]
        scope = Scope(
            self.scope.aliases,
            self.scope.constants,
            self.scope.class_constants,
            {name: tuple(values) for name, values in self.scope.globals.items()},
            self.scope.global_types,
            {name: tuple(found) for name, found in hosts.items()},
            kernels,
        )
        return SourceFile(self.text.file, tuple(own), tuple(launchers), scope, references, self.text.includes)

    def _item(self, declaration: Declaration, order: int, known: dict[object, Item]) -> Item:
        """Return the item of a declaration; a header's items are read once, however many units include it."""
        text = self.tree.text(declaration.node)
        key = (self.tree.span(declaration.node), text, declaration.conditions, declaration.scopes)
        if key not in known:
            known[key] = read_item(self.tree, declaration, order)
        return replace(known[key], order=order)

    def _header(self, function: Node | None) -> FunctionHeader | None:
        if function is None:
            return None
        if function.id not in self._headers:
            try:
                self._headers[function.id] = read_header(self.tree, function)
            except MissingPartError:
                self._headers[function.id] = None
        return self._headers[function.id]

    def _functions(self) -> dict[str, list[tuple[Node, Declaration]]]:
        found: dict[str, list[tuple[Node, Declaration]]] = {}
        for declaration in self.declarations:
            header = self._header(declaration.function)
            if header is not None and declaration.function is not None:
                found.setdefault(header.name, []).append((declaration.function, declaration))
        return found

    def _kernels(self) -> Iterable[Kernel]:
        passed = self._template_arguments()
        for item, declaration in zip(self.items, self.declarations, strict=True):
            header = self._header(declaration.function)
            if header is None or declaration.function is None or not is_kernel(item):
                continue
            own = item.span.file == self.text.file
            odd = next((one for one in (header.name, *(p.name for p in header.parameters)) if _is_odd(one)), None)
            if odd is not None:
                if own:
                    message = f"kernel {header.name}: {odd} can be no name in Python; the kernel is left out"
                    place = self.tree.span(declaration.node)
                    self.diagnostics.append(Diagnostic(Severity.ERROR, place, message, header.name))
                continue
            template = read_template(self.tree, declaration.template) if declaration.template is not None else ()
            part, found = self.slicer.slice(item, header.name, self._passed_functions(passed, template))
            self.diagnostics += found if own else []
            yield Kernel(
                header.name,
                self.tree.span(declaration.node),
                self._kernel_parameters(declaration.function, header, with_intents=own),
                template,
                declaration.conditions,
                precisions_of(declaration.conditions) if part.uses_precision else ("float32",),
                header.launch_bounds,
                None if found else part,
            )

    def _passed_functions(self, names: set[str], template: tuple[TemplateParameter, ...]) -> set[str]:
        """Return the functions that a kernel may be given: a template parameter of no plain type is a function's."""
        takes_functions = any(one.kind not in ("type", "pack") and not CType(one.kind).is_integer for one in template)
        return names if takes_functions else set()

    def _template_arguments(self) -> set[str]:
        """Return the names that are template arguments of calls and launches: ``kernel<function><<<…>>>()``."""
        if b"<<<" not in self.tree.source:
            return set()
        functions = (child(node, "function") for node in self.tree.find(self.tree.root, "call_expression"))
        lists = [child(one, "arguments") for one in functions if one.type == "template_function"]
        return {self.tree.text(item) for one in lists for item in walk(one) if item.type.endswith("identifier")}

    def _kernel_parameters(self, node: Node, header: FunctionHeader, *, with_intents: bool) -> tuple[Parameter, ...]:
        """Return the parameters, types resolved; intents are left out for kernels of included files."""
        try:
            accesses = self.intents.analyse(node) if with_intents else {}
        except (MissingPartError, RecursionError) as error:
            accesses = {}
            reason = error if isinstance(error, MissingPartError) else "it nests too deeply"
            message = f"what {header.name} does with its pointers cannot be told: {reason}"
            self.diagnostics.append(Diagnostic(Severity.WARNING, self.tree.span(node), message, header.name))
        found = []
        for parameter in header.parameters:
            ctype = self.scope.resolve(parameter.type)
            access = accesses.get(parameter.name)
            if not ctype.is_pointer or access is None:
                found.append(replace(parameter, type=ctype))
                continue
            # What a function that is not known here may do with a pointer ends at const.
            intent = Intent.IN if ctype.const and access.intent in _WRITING else access.intent
            found.append(
                replace(parameter, type=ctype, intent=intent, alignment=access.alignment, nullable=access.nullable)
            )
        return tuple(found)

    def _host_functions(self) -> dict[str, list[Launcher]]:
        """Return the host functions by name; bodies are read for those that launch and those that they may call."""
        wanted = self._reached_from_launches()
        items = {id(declaration): item for item, declaration in zip(self.items, self.declarations, strict=True)}
        found: dict[str, list[Launcher]] = {}
        for name, versions in self.functions.items():
            for node, declaration in versions:
                item = items[id(declaration)]
                header = self._header(node)
                device_only = header is not None and "__device__" in header.words and "__host__" not in header.words
                if header is None or is_kernel(item) or device_only or (item.is_device and name not in wanted):
                    continue
                template = read_template(self.tree, declaration.template) if declaration.template is not None else ()
                parameters = tuple(replace(one, type=self.scope.resolve(one.type)) for one in header.parameters)
                body = self._odd_names(node) or self._body(node.child_by_field_name("body")) if name in wanted else ()
                found.setdefault(name, []).append(
                    Launcher(
                        name, self.tree.span(declaration.node), parameters, template, declaration.conditions, body,
                        launch_sites(self.tree, node), self.scope.resolve(header.returns),
                    )
                )  # fmt: skip
        return found

    def _odd_names(self, node: Node) -> Body:
        """Return what stands for a host function that has odd names in it, nothing for others."""
        if not _is_odd(self.tree.text(node)):
            return ()
        for item in walk(node):
            if item.type.endswith("identifier") and not item.child_count and _is_odd(self.tree.text(item)):
                text = self.tree.text(item)
                return (Unsupported(self.tree.span(item), text, f"{text} can be no name in Python"),)
        return ()

    def _body(self, node: Node | None) -> Body:
        """Return the body of a host function; one in a header is read once, however many units include it."""
        if node is None or node.has_error:
            return with_launches(self.statements.read_body(node))
        key = (self.tree.span(node), self.tree.text(node))
        if key not in self._bodies:
            self._bodies[key] = with_launches(self.statements.read_body(node))
        return self._bodies[key]

    def _reached_from_launches(self) -> set[str]:
        calls = _calls(self.items, self.declarations)
        self._steered = {
            name
            for name, found in self.functions.items()
            if any(self._calls_parameter(node, declaration) for node, declaration in found)
        }
        wanted = self._steered | {
            name for name, found in self.functions.items() if any(launch_sites(self.tree, node) for node, _ in found)
        }
        wanted |= {name for name, called in calls.items() if called & PRODUCT_CALLS.keys()}
        grown = True
        while grown:
            grown = False
            for name, used in calls.items():
                if name not in wanted and used & wanted:
                    wanted.add(name)
                    grown = True
        for name in list(wanted):
            _reach(name, calls, wanted)
        return wanted

    def _calls_parameter(self, node: Node, declaration: Declaration) -> bool:
        """Whether a host template calls one of its parameters: it launches what its caller tells it to."""
        header = self._header(node)
        if (
            declaration.template is None
            or header is None
            or "__device__" in header.words
            or "__global__" in header.words
        ):
            return False
        types = {one.name for one in read_template(self.tree, declaration.template) if one.kind == "type"}
        names = {one.name for one in header.parameters if one.type.base in types and not one.type.is_pointer}
        if not names:
            return False
        calls = self.tree.find(node, "call_expression")
        return any(self.tree.text(child(item, "function")) in names for item in calls)

    def _report_errors(self) -> None:
        for node in errors(self.tree.root):
            span = self.tree.span(node)
            text = " ".join(self.tree.text(node).split())[:60]
            message = (
                f"{' '.join(self.tree.text(node.parent).split())[:40] if node.parent else ''} lacks {node.type}"
                if node.is_missing
                else f"cannot be parsed: {text!r}"
            )
            if span.file == self.text.file:
                self.diagnostics.append(Diagnostic(Severity.WARNING, span, f"{message}; the rest of the file is read"))

    def _one_of(self, first: Kernel, second: Kernel) -> Kernel:
        """Kernels are known by their names: of several definitions the one for more precisions is kept."""
        kept, lost = (second, first) if len(second.precisions) > len(first.precisions) else (first, second)
        if lost.span.file == self.text.file:
            message = f"kernel {lost.name} is also defined at {kept.span.origin}; this definition is left out"
            self.diagnostics.append(Diagnostic(Severity.WARNING, lost.span, message, lost.name))
        return kept

    def _report_lost_kernels(self) -> None:
        """A ``__global__`` that begins neither a kernel that was read nor a prototype is reported at its place."""
        pairs = list(zip(self.items, self.declarations, strict=True))
        read = sum(_kernels_begun(item, declaration) for item, declaration in pairs)
        if kernel_words(self.text.text) <= read:
            return
        begun = [_header_range(declaration) for item, declaration in pairs if _kernels_begun(item, declaration)]
        for node in walk(self.tree.root):
            if not node.child_count and self.tree.text(node) == "__global__":
                place = self.tree.span(node)
                if place.file == self.text.file and not any(start <= node.start_byte < end for start, end in begun):
                    message = "a kernel begins here that cannot be read; it is left out"
                    self.diagnostics.append(Diagnostic(Severity.ERROR, place, message))


def _is_odd(name: str) -> bool:
    """Whether a name has what C++ compilers take and Python does not: a dollar, or the escape of a character."""
    return "$" in name or "\\" in name


def _kernels_begun(item: Item, declaration: Declaration) -> int:
    """Count the kernels or prototypes that an item begins: what stands in a body or in an error is swallowed."""
    if item.kind == "function":
        return int(is_kernel(item))
    words = kernel_words(item.text)
    if not words or declaration.node.has_error:
        return 0
    # A definition inside something else, as in a statement at file scope, is not read.
    return 0 if any(node.type == "function_definition" for node in walk(declaration.node)) else words


def _header_range(declaration: Declaration) -> tuple[int, int]:
    """Return where a declaration begins, and where its body does or it ends."""
    body = declaration.function.child_by_field_name("body") if declaration.function is not None else None
    return declaration.node.start_byte, body.start_byte if body is not None else declaration.node.end_byte


def _calls(items: list[Item], found: list[Declaration]) -> dict[str, set[str]]:
    calls: dict[str, set[str]] = {}
    for item, declaration in zip(items, found, strict=True):
        if declaration.function is not None and not is_kernel(item):
            for name in item.defines:
                calls.setdefault(name, set()).update(item.calls)
    return calls


def _reach(name: str, calls: dict[str, set[str]], wanted: set[str]) -> None:
    for used in calls.get(name, ()):
        if used in calls and used not in wanted:
            wanted.add(used)
            _reach(used, calls, wanted)


def _launching(
    hosts: dict[str, list[Launcher]], items: list[Item], found: list[Declaration], steered: set[str]
) -> list[str]:
    """Return the names of host functions that launch kernels, themselves or through others that do.

    ``steered`` are the templates that call a parameter, and so launch where they are given a launcher.
    """
    calls = _calls(items, found)
    launching = {name for name, versions in hosts.items() if any(item.launch_sites for item in versions)}
    launching |= steered & hosts.keys()
    launching |= {name for name in hosts if calls.get(name, set()) & PRODUCT_CALLS.keys()}
    grown = True
    while grown:
        more = {name for name in hosts if name not in launching and calls.get(name, set()) & launching}
        launching |= more
        grown = bool(more)
    return [name for name in hosts if name in launching]
