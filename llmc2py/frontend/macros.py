"""Macros that the preprocessor leaves in the text because the precision decides their value."""

from __future__ import annotations

from collections.abc import Iterable

from llmc2py.frontend.hostexpressions import ExpressionReader
from llmc2py.frontend.items import Declaration
from llmc2py.frontend.preprocess import PreprocessedText
from llmc2py.frontend.syntax import SyntaxTree, child, parse, walk
from llmc2py.ir.conditions import precisions_of
from llmc2py.ir.expressions import Expression, PrecisionChoice, Unreadable


def read_macros(tree: SyntaxTree, declarations: Iterable[Declaration]) -> dict[str, Expression]:
    """Return the macros without parameters that have a value in each precision, as constants.

    ``#if defined(ENABLE_FP32)`` / ``#define LOWP CUDA_R_32F`` / ``#else`` / ``#define LOWP CUDA_R_16BF`` / ``#endif``
    """
    found: dict[str, dict[str, Expression]] = {}
    for declaration in declarations:
        node = declaration.node
        value = node.child_by_field_name("value") if node.type == "preproc_def" else None
        if value is None:
            continue
        read = _read_value(tree, declaration, tree.text(value))
        choices = found.setdefault(tree.text(child(node, "name")), {})
        for precision in precisions_of(declaration.conditions):
            choices.setdefault(precision, read)
    return {
        name: PrecisionChoice(next(iter(choices.values())).span, tuple(choices.items()))
        for name, choices in found.items()
        if choices and not any(isinstance(one, Unreadable) for one in choices.values())
    }


def _read_value(tree: SyntaxTree, declaration: Declaration, text: str) -> Expression:
    span = tree.span(declaration.node)
    line = PreprocessedText(span.file, f"auto value = {text.strip()};", (span,), (), (), ())
    inner = parse(line)
    declarator = next((node for node in walk(inner.root) if node.type == "init_declarator"), None)
    if declarator is None or inner.root.has_error:
        return Unreadable(span, text, "is no expression")
    return ExpressionReader(inner).read(child(declarator, "value"))
