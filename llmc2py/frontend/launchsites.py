"""The places of a translation unit at which kernels are launched, wherever they stand."""

from __future__ import annotations

import re
from bisect import bisect_left

from llmc2py.frontend.syntax import Node, SyntaxTree

#: Functions of CUDA that launch a kernel, beside ``<<<…>>>``.
LAUNCH_CALLS = (
    "cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernelMultiDevice", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
)  # fmt: skip
_SITE = re.compile(rf"<[ \t]*<[ \t]*<|\b(?:{'|'.join(LAUNCH_CALLS)})\b(?=\s*[(<])".encode())
_NO_CODE = frozenset(
    {"comment", "string_literal", "raw_string_literal", "char_literal", "concatenated_string", "operator_name"}
    | {"preproc_def", "preproc_function_def", "function_declarator"}
)


class LaunchSites:
    """The launches of a unit, by where they begin in its text."""

    def __init__(self, tree: SyntaxTree) -> None:
        found = (match.start() for match in _SITE.finditer(tree.source))
        self.nodes = {start: node for start in found if (node := _code_at(tree, start)) is not None}
        self._starts = sorted(self.nodes)

    def count(self, node: Node) -> int:
        """Count the launches in a node."""
        return bisect_left(self._starts, node.end_byte) - bisect_left(self._starts, node.start_byte)


def _code_at(tree: SyntaxTree, start: int) -> Node | None:
    """Return the innermost node at a place; None where it is in a comment, a string or a prototype."""
    found = tree.root.descendant_for_byte_range(start, start + 1)
    node = found
    while node is not None and node.type not in ("compound_statement", "ERROR"):
        if node.type in _NO_CODE:
            return None
        node = node.parent
    return found
