"""The places of a translation unit at which kernels are launched, wherever they stand."""

from __future__ import annotations

from bisect import bisect_left

from llmc2py.frontend.launchwords import SITE
from llmc2py.frontend.syntax import Node, SyntaxTree

#: What a place in a comment, a string or a macro is in, innermost.
_NO_CODE = frozenset(
    {"comment", "string_literal", "string_content", "escape_sequence", "raw_string_literal", "raw_string_content"}
    | {"char_literal", "character", "preproc_arg", "system_lib_string"}
)
_NO_CALL = frozenset({"function_declarator", "operator_name"})


class LaunchSites:
    """The launches of a unit, by where they begin in its text."""

    def __init__(self, tree: SyntaxTree) -> None:
        found = (match.start() for match in SITE.finditer(tree.source))
        self.nodes = {start: node for start in found if (node := _code_at(tree, start)) is not None}
        self._starts = sorted(self.nodes)

    def count(self, node: Node) -> int:
        """Count the launches in a node."""
        return bisect_left(self._starts, node.end_byte) - bisect_left(self._starts, node.start_byte)


def _code_at(tree: SyntaxTree, start: int) -> Node | None:
    """Return the innermost node at a place; None where it is in a comment, a string or a prototype."""
    node = tree.root.descendant_for_byte_range(start, start + 1)
    if node is None or node.type in _NO_CODE | _NO_CALL:
        return None
    return None if node.parent is not None and node.parent.type in _NO_CALL else node
