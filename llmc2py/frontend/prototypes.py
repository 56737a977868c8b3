"""Functions that are declared without a body: default arguments may stand there alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from llmc2py.frontend.declarations import FunctionHeader, function_declarator, read_header
from llmc2py.frontend.items import Declaration
from llmc2py.frontend.syntax import MissingPartError, SyntaxTree, named
from llmc2py.ir.library import Item, Parameter


class Prototypes:
    """The prototypes of a unit that have something which the definitions may lack."""

    def __init__(self, tree: SyntaxTree, declarations: Iterable[Declaration], items: Iterable[Item]) -> None:
        self._defaults: dict[tuple[str, int], tuple[Parameter, ...]] = {}
        for declaration, item in zip(declarations, items, strict=True):
            if declaration.function is None and "=" in item.text and "(" in item.text:
                for header in _headers(tree, declaration):
                    self._defaults.setdefault((header.name, len(header.parameters)), header.parameters)

    def completed(self, name: str, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        """Return the parameters of a definition with the defaults that its prototype gives them."""
        told = self._defaults.get((name, len(parameters)))
        if told is None or any(one.type != other.type for one, other in zip(parameters, told, strict=True)):
            return parameters
        return tuple(
            replace(one, default=other.default) if one.default is None and other.default is not None else one
            for one, other in zip(parameters, told, strict=True)
        )


def _headers(tree: SyntaxTree, declaration: Declaration) -> Iterator[FunctionHeader]:
    node = declaration.node
    while node.type == "template_declaration":
        node = named(node)[-1]
    if node.type == "declaration" and function_declarator(node) is not None:
        try:
            header = read_header(tree, node)
        except MissingPartError:
            return
        if header is not None:
            yield header
