"""The syntax tree of a preprocessed file, and small things to ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import tree_sitter
import tree_sitter_cuda

from llmc2py.diagnostics import SourceSpan
from llmc2py.frontend.preprocess import PreprocessedText

Node = tree_sitter.Node

_LANGUAGE = tree_sitter.Language(tree_sitter_cuda.language())
_ALIGN = re.compile(r"__align__\s*\(((?:[^()]|\([^()]*\))*)\)")
#: Attributes of kernels that the grammar does not know. Compilers read them in the slice; nothing here depends on them.
_ATTRIBUTE = re.compile(
    r"\b__(?:cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    r"|\b__(?:grid_constant|nv_pure)__\b"
)
_SPLIT_OPEN = re.compile(r"<[ \t]*<[ \t]*<")
_SPLIT_CLOSE = re.compile(r">[ \t]*>[ \t]*>(?=\s*\()")


@dataclass(frozen=True)
class SyntaxTree:
    """A parsed file. ``source`` is the preprocessed text as bytes, which node offsets refer to."""

    file: PreprocessedText
    source: bytes
    root: Node
    _spans: dict[tuple[int, int], SourceSpan] = field(default_factory=dict, compare=False, repr=False)

    def text(self, node: Node) -> str:
        """Return the source text of a node."""
        return self.source[node.start_byte : node.end_byte].decode()

    def span(self, node: Node) -> SourceSpan:
        """Return the original place at which a node begins."""
        place = node.start_point
        known = self._spans.get(place)
        if known is None:
            # Nodes begin where nodes in them do: they share the span.
            known = self._spans[place] = self.file.span(place.row, place.column)
        return known

    def is_whole(self, node: Node) -> bool:
        """Whether the lines of a node stand in one file one below the other: its begin then tells where each stands."""
        first, last = (self.file.span(point.row) for point in (node.start_point, node.end_point))
        return first.file == last.file and last.line - first.line == node.end_point.row - node.start_point.row


def parse(file: PreprocessedText) -> SyntaxTree:
    """Parse preprocessed CUDA C++; unreadable places become error nodes."""
    source = file.text.encode()
    root = tree_sitter.Parser(_LANGUAGE).parse(_respell(file.text).encode()).root_node
    return SyntaxTree(file, source, root)


def _respell(text: str) -> str:
    """Put what the grammar does not know into words that it knows, every character staying at its place.

    ``__align__(8)`` becomes ``alignas(8)``, ``__maxnreg__(32)`` blanks; ``k << <1, 2 >> > (a)``, as some
    formatters leave it, ``k<<<1, 2>>>(a)``.
    """
    text = _ALIGN.sub(lambda match: f"alignas({match[1]})".ljust(len(match[0])), text)
    text = _ATTRIBUTE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    if _SPLIT_OPEN.search(text):
        text = _SPLIT_OPEN.sub(lambda match: "<<<".rjust(len(match[0])), text)
        text = _SPLIT_CLOSE.sub(lambda match: ">>>".rjust(len(match[0])), text)
    return text


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all named ones below it, in source order, without recursion."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        below = current.named_children
        if below:
            stack += below[::-1]


def leaves(node: Node) -> Iterator[Node]:
    """Yield the words and marks of a node, in source order, without recursion."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.child_count:
            stack.extend(reversed(current.children))
        else:
            yield current


def errors(node: Node) -> Iterator[Node]:
    """Yield the outermost nodes that could not be parsed."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.type == "ERROR" or current.is_missing:
            yield current
        elif current.has_error:
            stack.extend(reversed(current.children))


class MissingPartError(ValueError):
    """A node lacks a part that C++ demands, though not the grammar: ``a[]``, ``x ?: y``."""


def child(node: Node, field: str) -> Node:
    """Return the child in a field; raises MissingPartError where there is none."""
    found = node.child_by_field_name(field)
    if found is None:
        raise MissingPartError(f"{node.type.replace('_', ' ')} without {field}")
    return found


def first(node: Node) -> Node:
    """Return the first named child that is no comment; raises MissingPartError where there is none."""
    found = named(node)
    if not found:
        raise MissingPartError(f"{node.type.replace('_', ' ')} with nothing in it")
    return found[0]


def unqualified(node: Node) -> Node:
    """Return the last part of a qualified name: ``k<float>`` of ``a::b::k<float>``."""
    while node.type == "qualified_identifier":
        node = child(node, "name")
    return node


def named(node: Node) -> list[Node]:
    """Return the named children, comments left out."""
    return [item for item in node.named_children if item.type != "comment"]
