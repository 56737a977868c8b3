"""Macros that the preprocessor leaves in the text because the precision decides their value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmc2py.frontend.hostexpressions import ExpressionReader
from llmc2py.frontend.items import Declaration
from llmc2py.frontend.preprocess import PreprocessedText
from llmc2py.frontend.syntax import SyntaxTree, child, parse, walk
from llmc2py.ir.conditions import PRECISIONS, host_precisions, is_told, on_host
from llmc2py.ir.expressions import Expression, PrecisionChoice, Unreadable

_OPEN = "is known to the compiler alone"


def read_macros(tree: SyntaxTree, declarations: Iterable[Declaration]) -> dict[str, Expression]:
    """Return the macros without parameters that have a value in each precision, as constants of host code.

    ``#if defined(ENABLE_FP32)`` / ``#define LOWP CUDA_R_32F`` / ``#else`` / ``#define LOWP CUDA_R_16BF`` / ``#endif``
    """
    found: dict[str, dict[str, Expression]] = {}
    for declaration in declarations:
        node = declaration.node
        value = node.child_by_field_name("value") if node.type == "preproc_def" else None
        if value is None:
            continue
        read = _read_value(tree, declaration, tree.text(value))
        if not isinstance(read, Unreadable):
            read = known_value(read, declaration.conditions)
        choices = found.setdefault(tree.text(child(node, "name")), {})
        for precision in host_precisions(declaration.conditions):
            choices.setdefault(precision, read)
    return {
        name: chosen_constant(choices)
        for name, choices in found.items()
        if choices and not any(isinstance(one, Unreadable) and one.reason != _OPEN for one in choices.values())
    }


def known_value(value: Expression, conditions: Iterable[str]) -> Expression:
    """Return what a definition inside of conditions gives host code: nothing readable where a compiler decides them."""
    untold = next((one for one in map(on_host, conditions) if not is_told(one)), None)
    if untold is None:
        return value
    return Unreadable(value.span, f"what #if {untold} decides", _OPEN)


def chosen_constant(choices: Mapping[str, Expression]) -> Expression:
    """Return what a name stands for, by precision; what is the same definition in each is no choice."""
    first = next(iter(choices.values()))
    unknown = next((one for one in choices.values() if isinstance(one, Unreadable)), None)
    if unknown is not None:
        return unknown
    is_one = len(choices) == len(PRECISIONS) and all(one is first for one in choices.values())
    return first if is_one else PrecisionChoice(first.span, tuple(choices.items()))


def _read_value(tree: SyntaxTree, declaration: Declaration, text: str) -> Expression:
    span = tree.span(declaration.node)
    line = PreprocessedText(span.file, f"auto value = {text.strip()};", (span,), (), (), ())
    inner = parse(line)
    declarator = next((node for node in walk(inner.root) if node.type == "init_declarator"), None)
    if declarator is None or inner.root.has_error:
        return Unreadable(span, text, "is no expression")
    return ExpressionReader(inner).read(child(declarator, "value"))
