"""What kernels do with the memory behind their pointer parameters, found from the syntax tree.

For each pointer parameter: whether it is read, overwritten, or added to (``+=``, atomics, a stored sum of what was
loaded), how wide its widest access is, and whether the kernel allows it to be null. Local pointers made from a
parameter, and device functions that a parameter is passed to, are followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from llmc2py.frontend.accesses import Access
from llmc2py.frontend.alignment import Widths
from llmc2py.frontend.declarations import declared, read_type
from llmc2py.frontend.items import Function
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, first, named, walk
from llmc2py.ir.types import CType

_LOADS = re.compile(r"^__ld(g|cs|cg|ca|lu|cv)$")
_STORES = re.compile(r"^__st(cs|cg|wb|wt)$")
_ATOMIC = re.compile(r"^atomic\w+$")
_ACCUMULATING_ATOMICS = re.compile(r"^atomic(Add|Sub|Max|Min|And|Or|Xor|Inc|Dec)\w*$")
_CONVERSIONS = frozenset({"float", "double", "half", "floatX", "static_cast", "__nv_bfloat16"})
_HALF_CONVERSION = re.compile(r"^__(float2|half2float|bfloat162float|float2bfloat16|float2half)\w*$")
_CASTS = frozenset({"reinterpret_cast", "const_cast", "static_cast"})
#: What is looked at in a body.
_WATCHED = frozenset(
    {
        "assignment_expression",
        "binary_expression",
        "call_expression",
        "declaration",
        "field_expression",
        "init_declarator",
        "pointer_expression",
        "subscript_expression",
    }
)


@dataclass
class _Function:
    """A function under analysis: parameters, those that each pointer may point into, the locals of loaded values.

    ``watched`` are the nodes of its body that matter, in source order, with their types. ``widths`` are those of the
    accesses through local pointers, None until one is asked for.
    """

    parameters: list[str]
    roots: dict[str, tuple[str, ...]]
    access: dict[str, Access]
    watched: list[tuple[str, Node]]
    loaded: dict[str, str] = field(default_factory=dict)
    widths: dict[str, int] | None = None


class IntentAnalysis:
    """Finds the intents of the functions of one translation unit; device functions are analysed once."""

    def __init__(self, tree: SyntaxTree, functions: dict[str, list[Function]]) -> None:
        self.tree = tree
        self.functions = functions
        self._widths = Widths(tree)
        self._done: dict[int, dict[str, Access]] = {}

    def analyse(self, function: Function) -> dict[str, Access]:
        """Return the accesses of a function definition, by parameter name.

        Raises MissingPartError or RecursionError for a body that cannot be followed.
        """
        known = self._done.get(function.node.id)
        if known is None:
            names = [item.name for item in function.header.parameters]
            # Known before it is complete, for functions that call themselves.
            known = self._done[function.node.id] = {name: Access() for name in names}
            try:
                self._follow(function.node, names, known)
            except (MissingPartError, RecursionError):
                del self._done[function.node.id]
                raise
        return known

    def _follow(self, node: Node, names: list[str], access: dict[str, Access]) -> None:
        body = node.child_by_field_name("body")
        if body is None:
            return
        watched = [(kind, item) for item in walk(body) if (kind := item.type) in _WATCHED]
        function = _Function(names, {name: (name,) for name in names}, access, watched)
        self._find_locals(function)
        for kind, item in watched:
            self._visit(function, kind, item)

    # --- which local names point into a parameter, and which hold what was loaded from one

    def _find_locals(self, function: _Function) -> None:
        for kind, item in function.watched:
            if kind == "init_declarator" and item.parent is not None and item.parent.type == "declaration":
                name, ctype = declared(self.tree, child(item, "declarator"), read_type(self.tree, item.parent))
                self._bind(function, name, ctype, child(item, "value"))
            elif kind == "assignment_expression" and child(item, "left").type == "identifier":
                self._bind(function, self.tree.text(child(item, "left")), None, child(item, "right"))

    def _bind(self, function: _Function, name: str, ctype: CType | None, value: Node) -> None:
        roots = self._pointer_roots(function, value)
        if ctype is None or ctype.is_pointer or ctype.base == "auto":
            # Of a pointer that is set in several places, as in branches, any may hold.
            known = function.roots.get(name, ())
            if known or roots:
                function.roots[name] = tuple(dict.fromkeys((*known, *roots)))
        source = self._load_root(function, value) if name not in function.parameters and not roots else None
        if source is not None and (ctype is None or not ctype.is_pointer):
            function.loaded.setdefault(name, source)

    def _pointer_roots(self, function: _Function, node: Node) -> tuple[str, ...]:
        """``inp + i``, ``&inp[i]``, ``c ? a : b``: the parameters that may be pointed into."""
        node = _bare(node)
        kind = node.type
        if kind == "identifier":
            name = self.tree.text(node)
            return function.roots.get(name, ()) if name not in function.loaded else ()
        if kind == "binary_expression" and self._operator(node) in "+-":
            left = self._pointer_roots(function, child(node, "left"))
            return left or self._pointer_roots(function, child(node, "right"))
        if kind == "pointer_expression" and self._is_prefixed(node, b"&"):
            inner = _bare(child(node, "argument"))
            is_element = inner.type == "subscript_expression"
            return self._pointer_roots(function, child(inner, "argument")) if is_element else ()
        if kind == "cast_expression":
            is_pointer = "*" in self.tree.text(child(node, "type"))
            return self._pointer_roots(function, child(node, "value")) if is_pointer else ()
        if kind == "call_expression" and self._callee(node) in _CASTS:
            return self._pointer_roots(function, first(child(node, "arguments")))
        if kind == "conditional_expression":
            # GNU's a ?: b has no consequence: it is the condition.
            taken = node.child_by_field_name("consequence") or child(node, "condition")
            branches = (taken, child(node, "alternative"))
            return tuple(dict.fromkeys(root for one in branches for root in self._pointer_roots(function, one)))
        return ()

    def _load_root(self, function: _Function, value: Node) -> str | None:
        """Return the parameter that a value is loaded from, where it is loaded from just one."""
        found: set[str] = set()
        for item in walk(value):
            kind = item.type
            if kind == "subscript_expression" or (kind == "pointer_expression" and self._is_prefixed(item, b"*")):
                found.update(self._pointer_roots(function, child(item, "argument")))
            elif kind == "call_expression":
                for argument in named(child(item, "arguments")):
                    found.update(self._pointer_roots(function, argument))
        return found.pop() if len(found) == 1 else None

    # --- accesses

    def _visit(self, function: _Function, kind: str, node: Node) -> None:
        if (
            kind == "subscript_expression"
            or (kind == "pointer_expression" and self._is_prefixed(node, b"*"))
            or (kind == "field_expression" and "->" in self.tree.text(node))
        ):
            self._visit_access(function, node, child(node, "argument"))
        elif kind == "call_expression":
            self._visit_call(function, node)
        elif kind == "binary_expression":
            operator = self._operator(node)
            if operator in ("!=", "=="):
                self._visit_null_check(function, node)
            elif operator in ("%", "&"):
                self._visit_address_test(function, node)

    def _visit_access(self, function: _Function, node: Node, pointer: Node) -> None:
        for root in self._pointer_roots(function, pointer):
            self._record_access(function, node, pointer, root)

    def _record_access(self, function: _Function, node: Node, pointer: Node, root: str) -> None:
        access = function.access[root]
        access.width = max(access.width, self._width(function, pointer))
        target = _outermost_place(node)
        parent = target.parent
        if parent is None:
            return
        if parent.type == "assignment_expression" and parent.child_by_field_name("left") == target:
            operator = self.tree.text(child(parent, "operator"))
            if operator == "=":
                self._record_store(function, root, child(parent, "right"))
            else:
                access.accumulates |= operator in ("+=", "-=")
                access.reads |= operator not in ("+=", "-=")
                access.writes |= operator not in ("+=", "-=")
        elif parent.type == "update_expression":
            access.accumulates = True
        elif parent.type == "pointer_expression" and self.tree.text(parent).startswith("&"):
            return  # an address: whoever takes it is followed
        else:
            access.reads = True

    def _record_store(self, function: _Function, root: str, value: Node) -> None:
        """A plain store; of the sum of an earlier load from the same place it is an accumulation."""
        access = function.access[root]
        if self._is_sum_with(function, root, _bare(value)):
            access.accumulates = True
        else:
            access.writes = True

    def _is_sum_with(self, function: _Function, root: str, value: Node) -> bool:
        """Whether a stored value is what was loaded from the same parameter plus something."""
        value = self._uncast(value)
        if value.type == "identifier":
            name = self.tree.text(value)
            return function.loaded.get(name) == root and self._only_added_to(function, name)
        return root in self._addends(function, value) if value.type == "binary_expression" else False

    def _addends(self, function: _Function, value: Node) -> set[str | None]:
        """Return the parameters whose loaded values are addends of a sum, as they are: ``b * old + x`` adds no old."""
        value = self._uncast(value)
        if value.type == "binary_expression" and self._operator(value) == "+":
            return {root for item in named(value) for root in self._addends(function, item)}
        if (
            value.type in ("subscript_expression", "field_expression")
            and _base_name(self.tree, value) in function.loaded
        ):
            return {function.loaded[_base_name(self.tree, value)]}
        if value.type == "identifier":
            return {function.loaded.get(self.tree.text(value))}
        if value.type in ("subscript_expression", "pointer_expression", "call_expression"):
            return {self._load_root(function, value)}
        return set()

    def _uncast(self, value: Node) -> Node:
        """Return a value without the casts and parentheses around it: ``(floatX)(a + b)``, ``floatX(a + b)``."""
        value = _bare(value)
        while value.type == "cast_expression" or (value.type == "call_expression" and self._is_conversion(value)):
            inner = child(value, "value") if value.type == "cast_expression" else first(child(value, "arguments"))
            value = _bare(inner)
        return value

    def _is_conversion(self, call: Node) -> bool:
        name = self._callee(call)
        return (name in _CONVERSIONS or _HALF_CONVERSION.match(name) is not None) and len(
            named(child(call, "arguments"))
        ) == 1

    def _only_added_to(self, function: _Function, name: str) -> bool:
        """Whether all assignments to (elements of) a loaded local are sums that contain it."""
        changed = False
        for kind, item in function.watched:
            if kind != "assignment_expression" or _base_name(self.tree, child(item, "left")) != name:
                continue
            operator = self.tree.text(child(item, "operator"))
            right = _bare(child(item, "right"))
            while right.type == "cast_expression":
                right = _bare(child(right, "value"))
            names = {self.tree.text(leaf) for leaf in walk(right) if leaf.type == "identifier"}
            is_sum = right.type == "binary_expression" and self._operator(right) == "+" and name in names
            is_load = operator == "=" and self._load_root(function, child(item, "right")) is not None
            if operator != "+=" and not is_sum and not is_load:
                return False
            changed |= operator == "+=" or is_sum
        return changed

    def _visit_call(self, function: _Function, node: Node) -> None:
        name = self._callee(node)
        arguments = named(child(node, "arguments"))
        if name in _CASTS:
            return
        for position, argument in enumerate(arguments):
            for root in self._pointer_roots(function, argument):
                access = function.access[root]
                access.width = max(access.width, self._width(function, argument))
                self._apply_call(function, access, root, name, position, arguments)

    def _apply_call(
        self, function: _Function, access: Access, root: str, name: str, position: int, arguments: list[Node]
    ) -> None:
        if _LOADS.match(name):
            access.reads = True
        elif _STORES.match(name):
            self._record_store(function, root, arguments[-1])
        elif _ATOMIC.match(name) and name not in self.functions:
            access.accumulates |= bool(_ACCUMULATING_ATOMICS.match(name))
            access.writes |= not _ACCUMULATING_ATOMICS.match(name)
            access.reads |= name.startswith("atomicCAS")
        elif name == "memcpy":
            access.writes |= position == 0
            access.reads |= position == 1
        else:
            self._apply_callee(function, access, root, name, position, arguments)

    def _apply_callee(
        self, function: _Function, access: Access, root: str, name: str, position: int, arguments: list[Node]
    ) -> None:
        candidates = self.functions.get(name, [])
        if not candidates:
            access.reads = True
            access.writes |= name not in ("assert", "printf")
        for candidate in candidates:
            found = list(self.analyse(candidate).values())
            if position < len(found):
                effect = found[position]
                stored = next((item for item in arguments if self._is_sum_with(function, root, _bare(item))), None)
                if effect.writes and not effect.reads and stored is not None:
                    access.accumulates = True
                    access.width = max(access.width, effect.width)
                else:
                    access.merge(effect)

    def _visit_null_check(self, function: _Function, node: Node) -> None:
        left, right = _bare(child(node, "left")), _bare(child(node, "right"))
        for pointer, other in ((left, right), (right, left)):
            if self.tree.text(other) in ("nullptr", "NULL") and pointer.type == "identifier":
                for root in function.roots.get(self.tree.text(pointer), ()):
                    function.access[root].nullable = True

    def _visit_address_test(self, function: _Function, node: Node) -> None:
        """``(uintptr_t)p % 16``, ``reinterpret_cast<size_t>(p) & 15``."""
        value = _bare(child(node, "left"))
        if value.type == "cast_expression":
            target, pointer = self.tree.text(child(value, "type")), child(value, "value")
        elif value.type == "call_expression" and self._callee(value) == "reinterpret_cast":
            target, pointer = self.tree.text(child(value, "function")), first(child(value, "arguments"))
        else:
            return
        if "*" not in target:
            for root in self._pointer_roots(function, pointer):
                function.access[root].tests_alignment = True

    def _width(self, function: _Function, pointer: Node) -> int:
        """Return the bytes that an access through this pointer must be aligned to, as far as a cast says it."""
        if function.widths is None:
            widths = self._widths.of_locals(item for kind, item in function.watched if kind == "declaration")
            pointers = function.roots.keys() - set(function.parameters)
            function.widths = {name: width for name, width in widths.items() if name in pointers}
        return self._widths.of_access(pointer, function.widths)

    def _operator(self, node: Node) -> str:
        return self.tree.text(child(node, "operator"))

    def _is_prefixed(self, node: Node, mark: bytes) -> bool:
        return self.tree.source.startswith(mark, node.start_byte)

    def _callee(self, node: Node) -> str:
        function = child(node, "function")
        if function.type == "template_function":
            function = child(function, "name")
        return self.tree.text(function)


def _bare(node: Node) -> Node:
    """Return a node without the parentheses around it."""
    while node.type == "parenthesized_expression" and named(node):
        node = first(node)
    return node


def _outermost_place(node: Node) -> Node:
    """``p[i].x`` and ``(p[i])``: the whole of the place that an assignment would change."""
    while node.parent is not None and (
        node.parent.type == "parenthesized_expression"
        or (
            node.parent.type in ("field_expression", "subscript_expression")
            and node.parent.child_by_field_name("argument") == node
        )
    ):
        node = node.parent
    return node


def _base_name(tree: SyntaxTree, node: Node) -> str:
    """``v``, ``v[k]``, ``v.x``: the name at the bottom of a place."""
    while node.type in ("subscript_expression", "field_expression", "parenthesized_expression"):
        node = node.child_by_field_name("argument") or first(node)
    return tree.text(node) if node.type == "identifier" else ""
