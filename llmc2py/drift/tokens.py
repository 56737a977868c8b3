"""Device code as tokens in which the names of locals do not count.

Two texts with the same tokens compile to the same code: they differ in comments, white space and the names of locals.
A name becomes a number where the scopes of C++ say for sure that it is a local's; any other stays as it is, so that a
doubt shows as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmc2py.frontend.declarations import declared
from llmc2py.frontend.syntax import Node, SyntaxTree, walk
from llmc2py.ir.types import CType

_SCOPES = frozenset(
    {
        "compound_statement", "function_definition", "lambda_expression", "for_statement", "for_range_loop",
        "if_statement", "while_statement", "do_statement", "switch_statement", "case_statement", "else_clause",
        "template_declaration", "catch_clause",
    }
)  # fmt: skip
_PARAMETERS = frozenset({"parameter_declaration", "optional_parameter_declaration"})
_TYPE_PARAMETERS = frozenset({"type_parameter_declaration", "optional_type_parameter_declaration"})
_NAMES = frozenset({"identifier", "type_identifier", "namespace_identifier"})
_OWNERS = frozenset({"function_definition", "lambda_expression"})
_BLOCKS = frozenset({"compound_statement", "for_statement", "condition_clause", "case_statement"})
_HEADS = frozenset({"function_declarator", "lambda_declarator", "parameter_list", "template_parameter_list"})


def tokens(tree: SyntaxTree, node: Node, names: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the tokens of a node, comments left out.

    ``names`` are names from outside that are to be spelled otherwise (parameters of a kernel that were renamed). What
    could not be parsed has its names left as they are.
    """
    reader = _TokenReader(tree, dict(names or {}))
    reader.resolves = not node.has_error
    reader.read(node)
    return tuple(reader.found)


class _TokenReader:
    def __init__(self, tree: SyntaxTree, names: dict[str, str]) -> None:
        self.tree = tree
        self.scopes: list[dict[str, str]] = [names]
        self.found: list[str] = []
        self.resolves = True
        self.count = 0
        self.declared: set[int] = set()
        self.end = 0

    def read(self, root: Node) -> None:
        """Go through the leaves in source order, without recursion: generated code nests deeply."""
        self.end = root.start_byte
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                self.scopes.pop()
                continue
            if node.type == "comment":
                self._gap(node)
                continue
            if node.type in _SCOPES:
                self.scopes.append({})
                stack.append((node, True))
            if not node.children:
                self._leaf(node)
                continue
            if self.resolves:
                self._mark(node)
            stack.extend((item, False) for item in reversed(node.children))

    def _leaf(self, node: Node) -> None:
        self._gap(node)
        text = self.tree.text(node)
        if not text.strip():
            return
        if node.type in _NAMES and self.resolves:
            if node.id in self.declared:
                self._declare(text)
            if not _is_member(node):
                text = self._resolve(text)
        self.found.append(text)

    def _gap(self, node: Node) -> None:
        """Keep what stands between two leaves: the grammar may pass over text, which compiles nonetheless."""
        between = self.tree.source[self.end : node.start_byte].decode().split()
        self.found += between
        self.end = node.end_byte

    def _resolve(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def _declare(self, name: str) -> None:
        """A name that a scope declares twice (in branches of the preprocessor) is one name."""
        if name not in self.scopes[-1]:
            self.scopes[-1][name] = f"${self.count}"
            self.count += 1

    def _mark(self, node: Node) -> None:
        """Note the leaves below a declaration that declare a local: their names are known from there on."""
        if node.type == "declaration":
            if node.parent is not None and node.parent.type in _BLOCKS and not _is_external(self.tree, node):
                for declarator in node.children_by_field_name("declarator"):
                    self._mark_declarator(declarator)
        elif node.type == "for_range_loop":
            self._mark_declarator(node.child_by_field_name("declarator"))
        elif node.type == "lambda_capture_initializer":
            self._mark_declarator(node.children[0])
        elif node.type in _PARAMETERS:
            if _owner(node) is not None:
                self._mark_declarator(node.child_by_field_name("declarator"))
        elif node.type in _TYPE_PARAMETERS:
            name = next((item for item in node.named_children if item.type == "type_identifier"), None)
            self._mark_declarator(name)

    def _mark_declarator(self, node: Node | None) -> None:
        if node is None:
            return
        if node.type == "init_declarator":
            node = node.child_by_field_name("declarator") or node
        if node.type == "function_declarator" and not self._is_variable(node):
            return
        if node.type == "structured_binding_declarator":
            self.declared |= {item.id for item in node.named_children if item.type == "identifier"}
            return
        name, _ = declared(self.tree, node, CType(""))
        leaf = next((item for item in walk(node) if item.type in _NAMES and self.tree.text(item) == name), None)
        if leaf is not None:
            self.declared.add(leaf.id)

    def _is_variable(self, node: Node) -> bool:
        """``x128 packet(inp);`` looks like a function's prototype: it is none where the parameters are locals."""
        parameters = node.child_by_field_name("parameters")
        named = parameters.named_children if parameters is not None else []
        texts = [self.tree.text(item) for item in named]
        return bool(texts) and all(self._resolve(text) != text for text in texts)


def _is_external(tree: SyntaxTree, node: Node) -> bool:
    """Whether a declaration in a block names something outside it, or may not be there at all."""
    words = [tree.text(item) for item in node.children if item.type.endswith(("specifier", "qualifier"))]
    return "extern" in words and "__shared__" not in words


def _owner(parameter: Node) -> Node | None:
    """Return the function or template that a parameter belongs to; None for those of types and prototypes."""
    node = parameter.parent
    while node is not None and (node.type in _HEADS or node.type.endswith("_declarator")):
        if node.type == "template_parameter_list":
            return node.parent
        node = node.parent
    return node if node is not None and node.type in _OWNERS else None


def _is_member(node: Node) -> bool:
    """Whether a name is looked up in a class or namespace: ``size`` in ``x128::size``."""
    child, parent = node, node.parent
    while parent is not None and parent.type in ("template_function", "template_type", "dependent_name"):
        if parent.child_by_field_name("name") != child:
            return False
        child, parent = parent, parent.parent
    return parent is not None and parent.type == "qualified_identifier" and parent.child_by_field_name("name") == child
