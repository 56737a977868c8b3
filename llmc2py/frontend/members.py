"""Launches outside of plain functions: in members of classes, in lambdas at file scope, in code that cannot be read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmc2py.diagnostics import SourceSpan
from llmc2py.frontend.declarations import FunctionHeader, function_declarator, read_header, read_parameters
from llmc2py.frontend.items import Declaration, Function, read_item
from llmc2py.frontend.launchsites import LaunchSites
from llmc2py.frontend.names import mapped, namespace_of
from llmc2py.frontend.syntax import Node, SyntaxTree, child, named, walk
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.library import ClassConstant
from llmc2py.ir.types import CType

_CLASSES = frozenset({"class_specifier", "struct_specifier", "union_specifier"})
_UNNAMED = "a class without a name"
_HOSTS = frozenset({"function_definition", "lambda_expression"})
_ENDS = _HOSTS | {"ERROR"}
#: What holds declarations.
_BODIES = frozenset({"translation_unit", "declaration_list", "field_declaration_list"})
_TYPES = frozenset({"alias_declaration", "type_definition", "struct_specifier", "class_specifier", "enum_specifier"})


@dataclass(frozen=True)
class Place:
    """A function that launches and is no plain one: ``why`` says what it is; ``sites`` are its launches."""

    node: Node
    name: str
    why: str
    sites: tuple[Node, ...]


@dataclass(frozen=True)
class StaticMember:
    """A static member function of a class that is no template.

    ``others`` are all names of the class, ``functions`` those of its static functions.
    """

    owner: str
    name: str
    node: Node
    others: frozenset[str]
    functions: frozenset[str]

    @property
    def plain_name(self) -> str:
        """The name of the function that it is as good as."""
        return f"{self.owner}_{self.name}"


def plain_functions(
    tree: SyntaxTree, declarations: Iterable[Declaration], sites: LaunchSites, defined: dict[str, Node]
) -> list[tuple[Function, StaticMember | None]]:
    """Return what is as good as a function at file scope: static members of classes, and lambdas that launch.

    ``defined`` are functions that are defined outside of their classes, by ``S::f``.
    """
    found: list[tuple[Function, StaticMember | None]] = []
    for one in declarations if sites.nodes else ():
        for member in static_members(tree, one.node, defined):
            header = read_header(tree, member.node)
            if header is not None:
                inner = replace(one, node=member.node, function=member.node)
                found.append((_function(tree, inner, member.node, replace(header, name=member.plain_name)), member))
        for name, node in _lambdas(tree, one.node) if sites.count(one.node) else ():
            declarator = node.child_by_field_name("declarator")
            parameters = read_parameters(tree, declarator) if declarator is not None else ()
            header = FunctionHeader(name, frozenset(), CType("void"), parameters, ())
            found.append((_function(tree, one, node, header), None))
    return found


def _function(tree: SyntaxTree, declaration: Declaration, node: Node, header: FunctionHeader) -> Function:
    item = replace(read_item(tree, declaration, 0, header), kind="function", defines=frozenset({header.name}))
    return Function(node, declaration, header, item, namespace_of(declaration.scopes))


def _lambdas(tree: SyntaxTree, node: Node) -> Iterator[tuple[str, Node]]:
    """``auto f = [](float* a) { … };``: yield the name and the lambda."""
    for item in node.children_by_field_name("declarator") if node.type == "declaration" else ():
        value = item.child_by_field_name("value") if item.type == "init_declarator" else None
        name = child(item, "declarator") if value is not None else item
        if value is not None and value.type == "lambda_expression" and name.type == "identifier":
            yield tree.text(name), value


def odd_places(tree: SyntaxTree, sites: LaunchSites, plain: Iterable[Node]) -> list[Place]:
    """Return where the unit's own file launches outside of the functions ``plain``."""
    ranges = sorted((node.start_byte, node.end_byte) for node in plain)
    starts = [start for start, _ in ranges]
    found: list[tuple[Node, list[Node], list[Node]]] = []
    for start, node in sites.nodes.items():
        before = bisect_right(starts, start) - 1
        if tree.span(node).file != tree.file.file or (before >= 0 and start < ranges[before][1]):
            continue
        if found and start < found[-1][0].end_byte:
            found[-1][2].append(node)
            continue
        outer = _path(tree.root, start)
        found.append((outer[0], outer, [node]))
    return [_place(tree, host, outer, launches) for host, outer, launches in found]


def _path(root: Node, start: int) -> list[Node]:
    """Return the outermost function or lambda at a place, or else the declaration, and all that it is in, outward."""
    path = [root]
    while path[0].type not in _ENDS:
        inner = next((one for one in path[0].named_children if one.start_byte <= start < one.end_byte), None)
        if inner is None:
            break
        path.insert(0, inner)
    if path[0].type in _ENDS:
        return path
    holder = next(number for number, one in enumerate(path) if one.type in _BODIES)
    return path[max(holder - 1, 0) :]


def _place(tree: SyntaxTree, host: Node, outer: list[Node], sites: list[Node]) -> Place:
    name = _name(tree, host)
    owner = next((_class_name(tree, one) for one in outer if one.type in _CLASSES), "")
    head = tree.source[host.start_byte : _body_start(host)].decode()
    if any(one.type == "ERROR" for one in outer):
        why = "in code that cannot be parsed"
    elif "__device__" in head:
        why = "in device code: launch it from host code"
    elif owner or "::" in name:
        owner = owner or name.rpartition("::")[0]
        why = _why(owner, outer)
        if host.type != "function_definition":
            name = owner
        elif "::" not in name and owner != _UNNAMED:
            name = f"{owner}::{name}"
    else:
        why = "outside of a function"
    return Place(host, name, why, tuple(sites))


def _why(owner: str, outer: list[Node]) -> str:
    if any(one.type == "friend_declaration" for one in outer):
        return f"in a friend function that is defined in {owner}: define it outside"
    spec = next((number for number, one in enumerate(outer) if one.type in _CLASSES), 0)
    if any(one.type == "template_declaration" for one in outer[spec:]):
        return f"in a member function of the class template {owner}: write a function template"
    return f"in a member function of {owner}: write a function that is none, or a static one"


def _body_start(node: Node) -> int:
    body = node.child_by_field_name("body")
    return body.start_byte if body is not None else node.end_byte


def _name(tree: SyntaxTree, host: Node) -> str:
    """Return the name of a function or lambda; of anything else how it begins."""
    if host.type == "lambda_expression":
        declarator = host.parent.child_by_field_name("declarator") if host.parent is not None else None
        return tree.text(declarator) if declarator is not None else "lambda"
    declarator = function_declarator(host) if host.type == "function_definition" else None
    named_by = declarator.child_by_field_name("declarator") if declarator is not None else None
    if named_by is None:
        named_by = host.child_by_field_name("declarator")
    text = " ".join(tree.text(named_by if named_by is not None else host).split())
    return text.partition("=")[0].strip()[:40] if host.type != "function_definition" else text


def _class_name(tree: SyntaxTree, node: Node) -> str:
    name = node.child_by_field_name("name")
    return tree.text(name) if name is not None else _UNNAMED


def static_members(tree: SyntaxTree, node: Node, defined: dict[str, Node]) -> Iterator[StaticMember]:
    """Yield the static member functions of a class at file scope that is no template."""
    spec = node.child_by_field_name("type") if node.type == "declaration" else node
    body = spec.child_by_field_name("body") if spec is not None and spec.type in _CLASSES else None
    if spec is not None and body is not None:
        yield from _members(tree, _class_name(tree, spec), body, defined)


def _members(tree: SyntaxTree, owner: str, body: Node, defined: dict[str, Node]) -> Iterator[StaticMember]:
    names = frozenset(_declared(tree, body))
    found = []
    for node in named(body):
        declarator = function_declarator(node) if node.type in ("function_definition", "field_declaration") else None
        words = tree.source[node.start_byte : declarator.start_byte].decode().split() if declarator else []
        if declarator is None or "static" not in words or ("__device__" in words and "__host__" not in words):
            continue
        name = tree.text(child(declarator, "declarator"))
        host = node if node.type == "function_definition" else defined.get(f"{owner}::{name}")
        if host is not None and name.isidentifier():
            found.append((name, host))
    functions = frozenset(name for name, _ in found)
    yield from (StaticMember(owner, name, host, names, functions) for name, host in found)


def _declared(tree: SyntaxTree, body: Node) -> Iterator[str]:
    """Yield all names that a class declares: fields, functions, types, enumerators."""
    for node in named(body):
        yield from (tree.text(one) for one in walk(node) if one.type == "field_identifier" and _is_declared(one))
        if node.type in _TYPES:
            name = node.child_by_field_name("name") or node.child_by_field_name("declarator")
            yield from [tree.text(name)] if name is not None else []
        yield from (tree.text(child(one, "name")) for one in walk(node) if one.type == "enumerator")


def _is_declared(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type.endswith("declarator"):
        parent = parent.parent
    return parent is not None and parent.type in ("field_declaration", "function_definition")


def is_device_only(function: Function) -> bool:
    """Whether a function runs on the device and not on the host."""
    words = function.header.words
    return "__device__" in words and "__host__" not in words


def member_body(
    tree: SyntaxTree, member: StaticMember, body: ir.Body, constants: Mapping[tuple[str, str], ClassConstant]
) -> ir.Body:
    """Return the body of a static member as a plain function has it; what else it uses of its class cannot be read."""
    local = {one.name for one in ir.walk(body) if isinstance(one, ir.Declare)}
    declarator = function_declarator(member.node)
    local |= {one.name for one in read_parameters(tree, declarator)} if declarator is not None else set()
    used: list[tuple[SourceSpan, str]] = []

    def plain(name: str, span: SourceSpan) -> str:
        if name not in member.others or name in local:
            return name
        if (member.owner, name) not in constants and name not in member.functions:
            used.append((span, name))
        return f"{member.owner}::{name}"

    def change(node: Any) -> Any:
        if isinstance(node, ex.Name):
            return replace(node, name=plain(node.name, node.span))
        return replace(node, function=plain(node.function, node.span)) if isinstance(node, ex.Call) else node

    changed = mapped(body, change)
    types = (one for one in walk(member.node) if one.type == "type_identifier" and tree.text(one) in member.others)
    used += [(tree.span(one), tree.text(one)) for one in types]
    why = f"belongs to {member.owner}, whose static functions are read without what else it has"
    return (ir.Unsupported(used[0][0], used[0][1], why),) if used else changed
