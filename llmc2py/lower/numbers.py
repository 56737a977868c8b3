"""What can be told of numbers in recipes from how they are written."""

from __future__ import annotations

import ast
from collections.abc import Collection

#: Threads of a block, on every device.
MAX_THREADS = 1024
_FOLDED = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)
_CHOOSING = frozenset({"ceil_div", "max", "min"})


def is_float(node: ast.expr, floats: Collection[str]) -> bool:
    """Whether an expression is a float, whatever the sizes are: ``N / 2``; ``floats`` are names of such values."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.Name(id=name):
            return name in floats
        case ast.BinOp(op=ast.Div()):
            return True
        case ast.BinOp(left=left, right=right):
            return is_float(left, floats) or is_float(right, floats)
        case ast.UnaryOp(operand=operand):
            return is_float(operand, floats)
        case ast.IfExp(body=body, orelse=orelse):
            return is_float(body, floats) or is_float(orelse, floats)
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _CHOOSING:
            return any(is_float(argument, floats) for argument in arguments)
    return False


def not_number(node: ast.expr) -> bool:
    """Whether an expression is text, None or several values."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, (bool, int, float))
    return isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Set))


def constant(node: ast.expr) -> int | None:
    """Return the value of an expression of whole numbers alone, else None."""
    if not all(isinstance(part, _FOLDED) for part in ast.walk(node)):
        return None
    try:
        value = eval(compile(ast.Expression(node), "recipe", "eval"), {"__builtins__": {}})
    except (ArithmeticError, TypeError):
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
