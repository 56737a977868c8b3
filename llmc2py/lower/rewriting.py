"""Expressions found in, or made from, other expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmc2py.diagnostics import SourceError
from llmc2py.ir import expressions as ir
from llmc2py.ir.types import CType

#: No template parameters.
NOTHING: Mapping[str, ir.TemplateArgument] = MappingProxyType({})


def ceil_div_operands(node: ir.Binary) -> tuple[ir.Expression, ir.Expression] | None:
    """``(a + b - 1) / b``, ``((a) + (b) - 1) / (b)``, ``(a + 255) / 256``, ``(a - 1) / b + 1`` is not one (a = 0)."""
    if node.operator != "/" or not isinstance(node.left, ir.Binary):
        return None
    divisor, total = node.right, node.left
    if (
        total.operator == "-"
        and _is_number(total.right, 1)
        and isinstance(total.left, ir.Binary)
        and total.left.operator == "+"
    ):
        for dividend, other in ((total.left.left, total.left.right), (total.left.right, total.left.left)):
            if other == divisor:
                return dividend, divisor
    if total.operator == "+":
        less_one = total.right
        if (
            isinstance(less_one, ir.Binary)
            and less_one.operator == "-"
            and _is_number(less_one.right, 1)
            and less_one.left == divisor
        ):
            return total.left, divisor
        if isinstance(less_one, ir.Number) and isinstance(divisor, ir.Number) and less_one.value == divisor.value - 1:
            return total.left, divisor
    return None


def _is_number(node: ir.Expression, value: int) -> bool:
    return isinstance(node, ir.Number) and node.value == value


def with_arguments(
    node: ir.Expression, names: Mapping[str, ir.Expression], template: Mapping[str, ir.TemplateArgument] = NOTHING
) -> ir.Expression:
    """Return an expression with parameters and template parameters replaced by arguments, all at once.

    Raises SourceError where a type is given for a number.
    """
    return _Replacing(names, template).node(node)


class _Replacing:
    def __init__(self, names: Mapping[str, ir.Expression], template: Mapping[str, ir.TemplateArgument]) -> None:
        self._names = names
        self._template = template

    def node(self, node: ir.Expression) -> ir.Expression:
        if isinstance(node, ir.Name):
            return self._name(node)
        parts = {key: self._part(value) for key, value in vars(node).items()}
        return type(node)(**parts)

    def _part(self, value: Any) -> Any:
        if isinstance(value, ir.Expression):
            return self.node(value)
        if isinstance(value, CType):
            return self._type(value)
        if isinstance(value, ir.TemplateArgument):
            return self._argument(value)
        if isinstance(value, tuple):
            return tuple(self._part(item) for item in value)
        return value

    def _name(self, node: ir.Name) -> ir.Expression:
        if node.name in self._names:
            return self._names[node.name]
        if node.name in self._template:
            given = self._template[node.name]
            if given.value is None:
                raise SourceError(node.span, f"{node.name} is {given.text}, which is no value")
            return given.value
        return ir.Name(node.span, self._text(node.name)) if "<" in node.name else node

    def _type(self, ctype: CType) -> CType:
        given = self._template.get(ctype.base)
        if given is None or given.type is None:
            return ctype
        return CType(given.type.base, given.type.pointers + ctype.pointers, ctype.const or given.type.const)

    def _argument(self, one: ir.TemplateArgument) -> ir.TemplateArgument:
        given = self._template.get(one.text.strip())
        if given is not None:
            return given
        ctype = self._type(one.type) if one.type is not None else None
        return ir.TemplateArgument(ctype, self.node(one.value) if one.value is not None else None, self._text(one.text))

    def _text(self, text: str) -> str:
        return re.sub(
            r"(?<![\w:.])[A-Za-z_]\w*",
            lambda word: self._template[word[0]].text if word[0] in self._template else word[0],
            text,
        )
