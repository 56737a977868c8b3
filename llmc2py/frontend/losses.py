"""What could not be read of a translation unit: places that do not parse, and kernels that begin in none that does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmc2py.diagnostics import Diagnostic, Severity
from llmc2py.frontend.items import Declaration, kernel_words
from llmc2py.frontend.syntax import Node, SyntaxTree, errors, leaves, walk
from llmc2py.ir.library import Item

#: What is said of a kernel that is there and cannot be read.
LOST = "a kernel begins here that cannot be read; it is left out: write it as __global__ void name(parameters) { … }"
#: What a place may lack that has no spelling of its own.
_WORDS = {
    "identifier": "a name",
    "type_identifier": "a type",
    "field_identifier": "a name",
    "number_literal": "a number",
}


def unparsed_places(tree: SyntaxTree) -> Iterator[Diagnostic]:
    """Report the places in the unit's own file that could not be parsed."""
    for node in errors(tree.root):
        span = tree.span(node)
        if span.file != tree.file.file:
            continue
        if node.is_missing and _is_whole_class(node):
            continue
        yield Diagnostic(Severity.WARNING, span, _missing(tree, node) if node.is_missing else _unparsed(tree, node))


def _unparsed(tree: SyntaxTree, node: Node) -> str:
    text = " ".join(tree.text(node).split())
    return f"cannot be parsed: {text[:60]!r}{' …' if len(text) > 60 else ''}; it is passed over"


def _missing(tree: SyntaxTree, node: Node) -> str:
    around = " ".join(tree.text(node.parent).split())[:40] if node.parent is not None else ""
    return f"{around!r} lacks {_WORDS.get(node.type, repr(node.type))}; it is read as if that were there"


def _is_whole_class(node: Node) -> bool:
    """``template class X<float>;``: the grammar has explicit instantiations of functions alone, which have a name."""
    parent = node.parent
    spec = parent.child_by_field_name("type") if parent is not None else None
    is_instance = parent is not None and parent.type == "template_instantiation"
    return is_instance and spec is not None and spec.type in ("class_specifier", "struct_specifier", "union_specifier")


def lost_kernels(tree: SyntaxTree, declarations: Sequence[Declaration], items: Sequence[Item]) -> Iterator[Diagnostic]:
    """Report each ``__global__`` of the unit's own file that begins neither a kernel that was read nor a prototype."""
    pairs = list(zip(items, declarations, strict=True))
    read = sum(_kernels_begun(item, declaration) for item, declaration in pairs)
    text = tree.file.text
    if text.count("__global__") <= read or kernel_words(text) <= read:
        return
    begun = [_header_range(declaration) for item, declaration in pairs if _kernels_begun(item, declaration)]
    for node in leaves(tree.root):
        if tree.text(node) == "__global__":
            place = tree.span(node)
            if place.file == tree.file.file and not any(start <= node.start_byte < end for start, end in begun):
                yield Diagnostic(Severity.ERROR, place, LOST)


#: Nodes that can be, or hold, the prototype or an explicit instantiation of a kernel.
_DECLARATIONS = frozenset({"declaration", "template_declaration", "template_instantiation"})


def _kernels_begun(item: Item, declaration: Declaration) -> int:
    """Count the kernels or prototypes that an item begins: what stands in a body or in an error is swallowed."""
    if item.kind == "function":
        return int(item.is_kernel)
    words = kernel_words(item.text)
    if not words or declaration.node.type not in _DECLARATIONS or declaration.node.has_error:
        return 0
    # A definition inside something else, as in a statement at file scope, is not read.
    return 0 if any(node.type == "function_definition" for node in walk(declaration.node)) else words


def _header_range(declaration: Declaration) -> tuple[int, int]:
    """Return where a declaration begins, and where its body does or it ends."""
    body = declaration.function.child_by_field_name("body") if declaration.function is not None else None
    return declaration.node.start_byte, body.start_byte if body is not None else declaration.node.end_byte
