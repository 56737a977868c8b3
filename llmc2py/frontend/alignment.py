"""How far memory must be aligned for what a kernel does with it: as far as the types of its accesses say."""

from __future__ import annotations

import re
from collections.abc import Iterable

from llmc2py.frontend.declarations import declared
from llmc2py.frontend.syntax import Node, SyntaxTree, child, walk
from llmc2py.ir.types import CType

_WIDTHS = {"int4": 16, "float4": 16, "uint4": 16, "double2": 16, "longlong2": 16, "ulonglong2": 16}
_WIDTHS |= {"int2": 8, "float2": 8, "uint2": 8, "double": 8, "short4": 8, "ushort4": 8, "char4": 4, "half2": 4}
_WIDTHS |= {"__half2": 4, "__nv_bfloat162": 4, "nv_bfloat162": 4, "bfloat162": 4}
_ALIGNED_CLASS = re.compile(r"\b(?:struct|class)\s+(?:__align__|alignas)\s*\(\s*(\d+)\s*\)\s*(\w+)")
_ALIAS = re.compile(r"\btypedef\s+(\w+)\s*(?:<[^;{}]*>)?\s*(\w+)\s*;|\busing\s+(\w+)\s*=\s*(\w+)\b[^;{}]*;")
_NO_TYPE = CType("")


class Widths:
    """The bytes that types of one translation unit are aligned to, where a pointer to one is made from another."""

    def __init__(self, tree: SyntaxTree) -> None:
        self._tree = tree
        self._classes = _aligned_classes(tree.source.decode())

    def of_type(self, text: str) -> int:
        """Return the width of a type by its spelling; 0 for those that any pointer is aligned to."""
        base = re.sub(r"\b(const|volatile)\b|[*&\s]", "", text)
        if base.split("<")[0] == "Packed128" or base in ("x128", "f128"):
            return 16
        width = _WIDTHS.get(base, 0) if base != "double" else 0
        return max(width, self._classes.get(base.split("<")[0], 0))

    def of_locals(self, declarations: Iterable[Node]) -> dict[str, int]:
        """Return the widths of the types that local variables are declared with, by name."""
        found: dict[str, int] = {}
        for node in declarations:
            kind = node.child_by_field_name("type")
            width = self.of_type(self._tree.text(kind)) if kind else 0
            for one in node.children_by_field_name("declarator"):
                declarator = child(one, "declarator") if one.type == "init_declarator" else one
                found.setdefault(declared(self._tree, declarator, _NO_TYPE)[0], width)
        return found

    def of_access(self, pointer: Node, local: dict[str, int]) -> int:
        """Return the bytes that an access through a pointer must be aligned to, as far as a cast or a type says it."""
        widest = 0
        for item in walk(pointer):
            kind = item.type
            if kind == "type_descriptor" or kind == "type_identifier":
                widest = max(widest, self.of_type(self._tree.text(item)))
            elif kind == "identifier":
                widest = max(widest, local.get(self._tree.text(item), 0))
        return widest


def _aligned_classes(text: str) -> dict[str, int]:
    """``struct __align__(16) Pack { … }; typedef Pack<float> f4;``: the alignment of classes and of their aliases."""
    found = {match[2]: int(match[1]) for match in _ALIGNED_CLASS.finditer(text)}
    if not found:
        return found
    for match in _ALIAS.finditer(text):
        target, name = (match[1], match[2]) if match[2] else (match[4], match[3])
        if target in found:
            found[name] = found[target]
    return found
