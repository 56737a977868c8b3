"""Expressions and launches of host code in C's own words, for listings and messages."""

from __future__ import annotations

from llmc2py.ir import expressions as ex
from llmc2py.ir.statements import Launch

# C's precedence of infix operators, tightest first.
_LEVELS = ("* / %", "+ -", "<< >>", "< <= > >=", "== !=", "&", "^", "|", "&&", "||")
_LEVEL = {operator: level for level, operators in enumerate(_LEVELS, 1) for operator in operators.split()}
_LOOSEST = len(_LEVELS) + 1


def spelled(node: ex.Expression) -> str:
    """Return an expression as C writes it, with the parentheses that it needs.

    The text fits between double quotes: it is one line, without double quotes and backslashes of its own.
    """
    return " ".join(_spell(node).replace('"', "'").replace("\\", "/").split())


def configuration(statement: Launch) -> str:
    """Return a launch with its configuration."""
    parts = [statement.grid, statement.block]
    if statement.shared is not None and not (isinstance(statement.shared, ex.Number) and statement.shared.value == 0):
        parts.append(statement.shared)
    return f"{statement.kernel}{_template(statement.template)}<<<{', '.join(spelled(part) for part in parts)}>>>"


def _spell(node: ex.Expression) -> str:
    match node:
        case ex.Binary(right=ex.String(value=text)):  # assert(c && "what is wrong")
            return f"{_spell(node.left)} ({text})"
        case ex.Binary(operator=operator):
            level = _LEVEL.get(operator, _LOOSEST)
            return f"{_operand(node.left, level)} {operator} {_operand(node.right, level - 1)}"
        case ex.Conditional():
            parts = _operand(node.condition, _LOOSEST - 1), _spell(node.consequence), _spell(node.alternative)
            return "{} ? {} : {}".format(*parts)
        case ex.Unary(operator=operator, operand=operand):
            return f"{operator}{_operand(operand, 0)}"
        case ex.Cast(type=ctype, operand=operand):
            return f"({ctype}){_operand(operand, 0)}"
        case ex.Construct(type=ctype, arguments=arguments):
            return f"{ctype}{_template(node.template)}({_list(arguments)})"
        case ex.Call(function=function, arguments=arguments):
            return f"{function}{_template(node.template)}({_list(arguments)})"
        case ex.MethodCall(object=owner, method=method, arguments=arguments):
            return f"{_spell(owner)}.{method}({_list(arguments)})"
        case ex.Member(object=owner, field=field):
            return f"{_spell(owner)}.{field}"
        case ex.Index(object=owner, index=index):
            return f"{_spell(owner)}[{_spell(index)}]"
        case ex.InitializerList(items=items):
            return f"{{{_list(items)}}}"
        case _:
            return _atom(node)


def _atom(node: ex.Expression) -> str:
    match node:
        case ex.Number(value=bool() as value):
            return str(value).lower()
        case ex.Number(value=value):
            return str(value)
        case ex.String(value=text):
            return f"'{text}'"
        case ex.Name(name=name):
            return name
        case ex.TemplateName(name=name, template=template):
            return f"{name}{_template(template)}"
        case ex.SizeOf(type=ctype):
            return f"sizeof({ctype})"
        case ex.SizeOfValue(operand=operand):
            return f"sizeof({_spell(operand)})"
        case ex.Unreadable(text=text):
            return text
        case _:
            return "nullptr"


def _operand(node: ex.Expression, level: int) -> str:
    """Return an operand, in parentheses where it binds looser than ``level``."""
    own = 0
    if isinstance(node, ex.Binary):
        own = _LEVEL.get(node.operator, _LOOSEST)
    elif isinstance(node, ex.Conditional):
        own = _LOOSEST
    return f"({_spell(node)})" if own > level else _spell(node)


def _list(nodes: tuple[ex.Expression, ...]) -> str:
    return ", ".join(map(_spell, nodes))


def _template(arguments: tuple[ex.TemplateArgument, ...]) -> str:
    return f"<{', '.join(argument.text for argument in arguments)}>" if arguments else ""
