"""Template arguments in the place of the parameters of classes and host functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir import expressions as ir
from llmc2py.ir.library import Kernel, Launcher, TemplateParameter
from llmc2py.ir.types import BOOL, FLOATING_TYPES, INT, INTEGER_TYPES, CType, canonical_name

#: Template parameters and the arguments that they are given.
Given = Mapping[str, ir.TemplateArgument]

_NUMBER = re.compile(r"(-?(?:0[xX][0-9a-fA-F]+|0|[1-9]\d*))[uUlL]*")
_TYPE = re.compile(r"(?:const )?([A-Za-z_][\w: ]*(?:<.*>)?)\s*(\**)")


def split_owner(owner: str, span: SourceSpan) -> tuple[str, tuple[ir.TemplateArgument, ...]]:
    """Return what ``Cfg<32, float>`` names, and its arguments."""
    base, has_arguments, rest = owner.partition("<")
    texts = _split(rest.rpartition(">")[0]) if has_arguments else []
    return base, tuple(_argument(text, span) for text in texts)


def paired(
    parameters: Iterable[tuple[str, str | None]], given: Sequence[ir.TemplateArgument], span: SourceSpan
) -> Given:
    """Return the arguments of template parameters, given as names with their defaults; those without any are left out.

    A default that is no number is none.
    """
    found: dict[str, ir.TemplateArgument] = {}
    for index, (name, default) in enumerate(parameters):
        if index < len(given):
            found[name] = given[index]
        elif default is not None and is_literal(default):
            found[name] = _argument(default, span)
    return found


def class_of(
    base: str, given: Sequence[ir.TemplateArgument], classes: Iterable[tuple[str, bool]], span: SourceSpan
) -> str:
    """Return the class template or specialization that arguments choose.

    ``classes`` are names of classes, each with whether it has template parameters. Raises SourceError where it cannot
    be told which specialization is meant.
    """
    special = {name: is_partial for name, is_partial in classes if name.startswith(f"{base}<")}
    wanted = [_key(one) for one in given]
    arguments = {name: split_owner(name, span)[1] for name in special}
    exact = [name for name in special if not special[name] and [_key(one) for one in arguments[name]] == wanted]
    if exact:
        return exact[0]
    others = (one for items in arguments.values() for one in items)
    if any(special.values()) or (special and not all(map(_is_decided, (*given, *others)))):
        raise SourceError(span, f"{base} has specializations, and which of them is meant cannot be told")
    return base


def _key(argument: ir.TemplateArgument) -> str:
    """Return an argument in a form in which equal ones are equal."""
    if isinstance(argument.value, ir.Number):
        return str(int(argument.value.value))
    return str(argument.type) if argument.type is not None else re.sub(r"\s+", "", argument.text)


def _is_decided(argument: ir.TemplateArgument) -> bool:
    """Whether an argument is a number or a type of C: it is the same one everywhere."""
    base = argument.type.base if argument.type is not None else ""
    known = base in INTEGER_TYPES or (base in FLOATING_TYPES and base != "floatX")
    return known or isinstance(argument.value, ir.Number)


def is_literal(text: str) -> bool:
    """Whether a default is a number or truth value."""
    return text in ("true", "false") or _NUMBER.fullmatch(text) is not None


def _argument(text: str, span: SourceSpan) -> ir.TemplateArgument:
    number, ctype = _NUMBER.fullmatch(text), _TYPE.fullmatch(text)
    if text in ("true", "false"):
        return ir.TemplateArgument(None, ir.Number(span, int(text == "true"), BOOL), text)
    if number is not None:
        return ir.TemplateArgument(None, ir.Number(span, int(number[1], 0), INT), text)
    if ctype is None:
        why = "as a template argument here, only names and numbers can be read"
        return ir.TemplateArgument(None, ir.Unreadable(span, text, why), text)
    value = ir.Name(span, text) if re.fullmatch(r"[\w:]+", text) else None
    return ir.TemplateArgument(CType(canonical_name(ctype[1]), len(ctype[2])), value, text)


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def check_given(span: SourceSpan, owner: str, node: ir.Expression, parameters: Iterable[str]) -> None:
    """Raise SourceError where an expression still mentions a template parameter of ``owner``."""
    left = set(parameters)
    for part in ir.walk(node):
        words = set(re.findall(r"[A-Za-z_]\w*", part.name)) if isinstance(part, ir.Name) else set()
        ctype = getattr(part, "type", None)
        words |= {ctype.base} if isinstance(ctype, CType) else set()
        for one in getattr(part, "template", ()):
            words |= {one.type.base} if one.type is not None else set()
        if words & left:
            name = sorted(words & left)[0]
            raise SourceError(span, f"the template parameter {name} of {owner} is not given here")


def is_opaque(parameter: TemplateParameter) -> bool:
    """Whether a template parameter is neither a type nor a number: a function or what cannot be told from one."""
    return parameter.kind != "type" and not CType(canonical_name(parameter.kind)).is_integer


def given_types(parameters: Iterable[TemplateParameter], given: Iterable[ir.TemplateArgument]) -> dict[str, str]:
    """Return the types that are spelled out, by the names of the template parameters."""
    pairs = zip(parameters, given, strict=False)
    return {one.name: canonical_name(argument.text) for one, argument in pairs if one.kind == "type"}


def check_defaults(span: SourceSpan, owner: Kernel | Launcher, given: int) -> None:
    """Raise SourceError where a template argument that is not given has a default that Python does not know."""
    carried = {one.type.tag for one in owner.parameters}
    for one in owner.template[given:]:
        known = one.kind == "type" or one.default is None or is_literal(one.default) or one.name in carried
        if not known:
            message = f"is left to its default, {one.default}, which is no number"
            raise SourceError(span, f"template parameter {one.name} of {owner.name} {message}")


def check_kinds(function: Launcher, given: Given) -> None:
    """Raise SourceError for a host function whose template parameters are no types and no numbers that are given."""
    for one in function.template:
        if is_opaque(one):
            raise SourceError(function.span, f"{function.name}: its template parameter {one.name} is a {one.kind}")
        if one.kind != "type" and one.name not in given:
            raise SourceError(function.span, f"the template parameter {one.name} of {function.name} is not given here")
