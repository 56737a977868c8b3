"""A translation unit as a flat list of the declarations at file scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmc2py.frontend.declarations import FunctionHeader, declared, function_declarator, read_header
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, walk
from llmc2py.ir.library import Item
from llmc2py.ir.types import CType

_IDENTIFIERS = frozenset({"identifier", "type_identifier", "namespace_identifier"})
_CONDITIONALS = frozenset({"preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else"})
_LOCALS = frozenset({"init_declarator", "identifier", "pointer_declarator", "array_declarator"})
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEVICE_WORDS = re.compile(r"\b(__device__|__global__|__constant__|__shared__|constexpr)\b")
_ALIGNMENT = r"(?:__align__|alignas)\s*\(\s*\d+\s*\)\s*"
_NO_TYPE = CType("")
_DYNAMIC_SHARED = re.compile(rf"(?:extern\s+__shared__|__shared__\s+extern|extern\s+{_ALIGNMENT}__shared__)\s+")
_SHARED_ALIGN = re.compile(rf"(extern __shared__ )(?:{_ALIGNMENT})?([\w:<>, *]+?\s*\w+)\s*(?:{_ALIGNMENT})?\[\s*\]\s*;")


@dataclass(frozen=True)
class Declaration:
    """A node at file scope with its surroundings: open preprocessor conditions, scopes, template header."""

    node: Node
    function: Node | None
    template: Node | None
    conditions: tuple[str, ...]
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function definition, with the declaration that it is in, what was read of it, and its namespace."""

    node: Node
    declaration: Declaration
    header: FunctionHeader
    item: Item
    namespace: str


def declarations(tree: SyntaxTree) -> list[Declaration]:
    """Return everything that stands at file scope, namespaces and conditionals opened."""
    return list(_flatten(tree, tree.root.children, (), ()))


def _flatten(
    tree: SyntaxTree, nodes: list[Node], conditions: tuple[str, ...], scopes: tuple[str, ...]
) -> Iterator[Declaration]:
    for node in nodes:
        if node.type in _CONDITIONALS:
            yield from _flatten_conditional(tree, node, conditions, scopes, ())
        elif node.type == "linkage_specification":
            body = child(node, "body")
            inner = body.children if body.type == "declaration_list" else [body]
            yield from _flatten(tree, inner, conditions, (*scopes, 'extern "C"'))
        elif node.type == "namespace_definition":
            name = node.child_by_field_name("name")
            word = "inline namespace" if any(one.type == "inline" for one in node.children) else "namespace"
            scope = f"{word} {''.join(tree.text(name).split())}" if name else word
            yield from _flatten(tree, child(node, "body").children, conditions, (*scopes, scope))
        elif node.is_named and node.type not in ("comment", "expression_statement", "string_literal"):
            yield _declaration(node, conditions, scopes)


def _declaration(node: Node, conditions: tuple[str, ...], scopes: tuple[str, ...]) -> Declaration:
    inner = node
    while inner.type == "template_declaration":
        inner = next(item for item in reversed(inner.children) if item.is_named and item.type != "comment")
    template = node if node.type == "template_declaration" else None
    return Declaration(node, inner if inner.type == "function_definition" else None, template, conditions, scopes)


def _flatten_conditional(
    tree: SyntaxTree, node: Node, conditions: tuple[str, ...], scopes: tuple[str, ...], earlier: tuple[str, ...]
) -> Iterator[Declaration]:
    """``#if a … #elif b … #else … #endif``: each branch under its own condition and the negation of those before."""
    own = branch_condition(tree, node)
    condition = " && ".join([*(f"!({other})" for other in earlier), *([own] if own else [])])
    following = node.child_by_field_name("alternative")
    head = {node.child_by_field_name("condition"), node.child_by_field_name("name"), following}
    inner = [item for item in node.children if item not in head]
    yield from _flatten(tree, inner, (*conditions, condition), scopes)
    if following is not None:
        yield from _flatten_conditional(tree, following, conditions, scopes, (*earlier, own))


def branch_condition(tree: SyntaxTree, node: Node) -> str:
    """Return the condition of a preprocessor branch as an ``#if`` would spell it ("" for ``#else``)."""
    if node.type in ("preproc_ifdef", "preproc_elifdef"):
        negated = node.children[0].type.endswith("ndef")
        return f"{'!' if negated else ''}defined({tree.text(child(node, 'name'))})"
    condition = node.child_by_field_name("condition")
    if condition is None:
        return ""
    text = " ".join(tree.text(condition).replace("\\\n", " ").split())
    return f"({text})" if "||" in text else text


def read_function_header(tree: SyntaxTree, declaration: Declaration) -> FunctionHeader | None:
    """Return the header of the function that a declaration defines, None where it defines none by a name."""
    if declaration.function is None:
        return None
    try:
        return read_header(tree, declaration.function)
    except MissingPartError:
        return None


def read_item(tree: SyntaxTree, declaration: Declaration, order: int, header: FunctionHeader | None = None) -> Item:
    """Make the slice item of one declaration; ``header`` is that of the function, where it was read already."""
    node = declaration.node
    header = header or read_function_header(tree, declaration)
    text = tree.text(node)
    if node.type.endswith("_specifier") and not text.endswith(";"):
        text += ";"
    uses, calls = names_used(tree, node)
    rows = range(node.start_point.row, node.start_point.row + text.count("\n") + 1)
    is_function = declaration.function is not None
    return Item(
        "function" if is_function else node.type,
        frozenset(_names_defined(tree, declaration, header)),
        uses,
        calls,
        canonical_shared(text),
        tuple(tree.file.span(row) for row in rows),
        declaration.conditions,
        declaration.scopes,
        _is_device(tree, declaration),
        is_function and "__global__" in text.partition("{")[0],
        order,
    )


def canonical_shared(text: str) -> str:
    """Give dynamic shared memory one spelling: ``extern __shared__ __align__(16) TYPE NAME[];``."""
    if "__shared__" not in text or "extern" not in text:
        return text
    text = _DYNAMIC_SHARED.sub("extern __shared__ ", text)
    return _SHARED_ALIGN.sub(lambda found: f"{found[1]}__align__(16) {' '.join(found[2].split())}[];", text)


def _is_device(tree: SyntaxTree, declaration: Declaration) -> bool:
    """Whether device code may use it: functions and variables need a word for it, types and aliases do not."""
    node = declaration.node
    if declaration.function is not None:
        body = declaration.function.child_by_field_name("body")
        end = body.start_byte if body else node.end_byte
        return bool(_DEVICE_WORDS.search(tree.source[node.start_byte : end].decode()))
    inner = node
    while inner.type == "template_declaration":
        inner = inner.children[-1]
    if inner.type != "declaration":
        return True
    if function_declarator(inner) is None and "const" in tree.text(inner).split("=")[0].split():
        return True
    return bool(_DEVICE_WORDS.search(tree.text(inner)))


def _names_defined(tree: SyntaxTree, declaration: Declaration, header: FunctionHeader | None) -> Iterator[str]:
    node = declaration.node
    while node.type == "template_declaration":
        node = next(item for item in reversed(node.children) if item.is_named and item.type != "comment")
    if node.type == "declaration":
        header = read_header(tree, node)
    if header is not None:
        yield header.name.split("::")[0]
        return
    if node.type in ("preproc_def", "preproc_function_def", "alias_declaration", "namespace_alias_definition"):
        yield tree.text(child(node, "name"))
    elif node.type in ("declaration", "type_definition"):
        for item in node.children_by_field_name("declarator"):
            yield declared(tree, child(item, "declarator") if item.type == "init_declarator" else item, CType(""))[0]
        yield from _names_of_type(tree, node.child_by_field_name("type"))
    else:
        yield from _names_of_type(tree, node)


def _names_of_type(tree: SyntaxTree, node: Node | None) -> Iterator[str]:
    """``struct S { … }`` defines S, an enumeration its enumerators too."""
    if node is None or not node.type.endswith("_specifier"):
        return
    name = node.child_by_field_name("name")
    if name is not None:
        yield tree.text(child(name, "name") if name.type == "template_type" else name)
    if node.type == "enum_specifier":
        for item in walk(node):
            if item.type == "enumerator":
                yield tree.text(child(item, "name"))


def names_used(tree: SyntaxTree, node: Node) -> tuple[frozenset[str], frozenset[str]]:
    """Return all names in a declaration and those among them that are called; local variables are left out."""
    words: set[bytes] = set()
    uses: set[str] = set()
    calls: set[str] = set()
    local: set[str] = set()
    qualified: set[str] = set()
    for item in walk(node):
        kind = item.type
        if kind in _IDENTIFIERS:
            # Most stand there many times, so that they are decoded afterwards.
            words.add(tree.source[item.start_byte : item.end_byte])
        elif kind == "parameter_declaration" or kind == "optional_parameter_declaration":
            local.add(declared(tree, item.child_by_field_name("declarator"), _NO_TYPE)[0])
        elif kind == "declaration" and item.parent is not None and item.parent.type == "compound_statement":
            for declarator in item.children_by_field_name("declarator"):
                if declarator.type in _LOCALS:
                    target = child(declarator, "declarator") if declarator.type == "init_declarator" else declarator
                    local.add(declared(tree, target, _NO_TYPE)[0])
        elif kind == "call_expression":
            function = child(item, "function")
            # ::f() calls a function, whatever a local variable is called.
            (qualified if function.type == "qualified_identifier" else calls).add(_callee(tree, function))
        elif kind == "preproc_arg":
            uses.update(_WORD.findall(tree.text(item)))
    uses.update(word.decode() for word in words)
    qualified.discard("")
    return frozenset((uses - local) | qualified), frozenset((calls - local - {""}) | qualified)


def _callee(tree: SyntaxTree, function: Node) -> str:
    """Return the last name of what is called; "" for what has none, and for what the standard library has."""
    if function.type == "qualified_identifier" and tree.text(function).startswith("std::"):
        return ""
    while function.type in ("template_function", "qualified_identifier"):
        function = child(function, "name")
    return tree.text(function) if function.type == "identifier" else ""


def kernel_words(text: str) -> int:
    """Count ``__global__`` in a text from which comments are gone, strings left out."""
    if "__global__" not in text:
        return 0
    bare = re.sub(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', '""', text, flags=re.S)
    return len(re.findall(r"\b__global__\b", bare))
