"""Member functions that run on the host alone: NVRTC takes no class with any, and does not know what they call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from llmc2py.frontend.declarations import function_declarator
from llmc2py.frontend.items import names_used
from llmc2py.frontend.preprocess import PreprocessedText
from llmc2py.frontend.syntax import Node, SyntaxTree, parse, walk
from llmc2py.ir.library import Item

_WORD = re.compile(r"\w+")
#: What makes a member more than a host function: a word for the device, or a need of its definition.
_KEPT = frozenset({"__device__", "constexpr", "consteval", "virtual", "override", "auto"})
_FUNCTIONS = frozenset({"function_definition", "field_declaration", "declaration"})
_NAMES = frozenset({"field_identifier", "identifier", "operator_name", "destructor_name", "operator_cast"})
_BODIES = frozenset({"field_initializer_list", "compound_statement", "try_statement"})
_NO_BODIES = frozenset({"default_method_clause", "delete_method_clause", "pure_virtual_clause"})
#: Operators that are called in device code without their names in it.
_CALLED = frozenset({"()", "[]"})
_CLASS = re.compile(r"\b(?:struct|class|union)\b[^;]*\{.*\(", re.S)


def without_host_members(item: Item, is_used: Callable[[str], bool], is_bad: Callable[[str], bool]) -> Item:
    """Return a class without its host functions, but for those that device code uses.

    ``is_used`` tells of a word whether device code has it. A member that calls what ``is_bad`` goes in any case.
    """
    if item.kind == "function" or not _CLASS.search(item.text):
        return item
    tree = parse(PreprocessedText(item.span.file, item.text, item.lines, (), (), ()))
    cuts = [outer for outer, member, name in _host_members(tree) if _is_cut(tree, member, name, is_used, is_bad)]
    if not cuts:
        return item
    text = tree.source
    for outer in reversed(cuts):
        gone = text[outer.start_byte : outer.end_byte]
        text = text[: outer.start_byte] + b"\n" * gone.count(b"\n") + text[outer.end_byte :]
    bare = parse(replace(tree.file, text=text.decode()))
    uses, calls = names_used(bare, bare.root)
    return replace(item, text=bare.file.text, uses=uses, calls=calls)


def device_words(item: Item) -> set[str]:
    """Return the words of an item that device code has: of a class without its host functions."""
    return (
        set(_WORD.findall(without_host_members(item, lambda _: False, lambda _: False).text))
        if item.is_device
        else set()
    )


def _host_members(tree: SyntaxTree) -> Iterator[tuple[Node, Node, str]]:
    """Yield the member functions that no device code may call: what is to go with them, and their names."""
    for node in walk(tree.root):
        declarator = function_declarator(node) if node.type in _FUNCTIONS else None
        named_by = declarator.child_by_field_name("declarator") if declarator is not None else None
        outer = _member(node) if named_by is not None and named_by.type in _NAMES else None
        if outer is None or named_by is None or any(one.type in _NO_BODIES for one in node.children):
            continue
        body = next((one for one in node.children if one.type in _BODIES), None)
        head = tree.source[outer.start_byte : body.start_byte if body is not None else node.end_byte].decode()
        if _KEPT.isdisjoint(_WORD.findall(head)):
            yield outer, node, tree.text(named_by)


def _member(node: Node) -> Node | None:
    """Return a member of a class with the template that it is; None for what is none."""
    while node.parent is not None and node.parent.type == "template_declaration":
        node = node.parent
    return node if node.parent is not None and node.parent.type == "field_declaration_list" else None


def _is_cut(
    tree: SyntaxTree, member: Node, name: str, is_used: Callable[[str], bool], is_bad: Callable[[str], bool]
) -> bool:
    # A constructor, which has no type of its own, is named where there is a type as well.
    is_constructor = member.child_by_field_name("type") is None
    is_operator = name.startswith("operator")
    called = name.removeprefix("operator").strip() in _CALLED if is_operator else not is_constructor and is_used(name)
    return not called or any(map(is_bad, names_used(tree, member)[1]))
