"""What asserts say about sizes: the numbers that parameters must be multiples of."""

from __future__ import annotations

import re
from collections.abc import Callable

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir.conditions import PRECISIONS
from llmc2py.ir.types import INT

_ZERO = ex.Number(SourceSpan("", 0), 0, INT)
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}


class Multiples:
    """The multiples that a launcher asks for, as constant text: ``hoisted`` and what is noted here are inlined."""

    def __init__(self, hoisted: dict[str, str], text_of: Callable[[ex.Expression], str]) -> None:
        self._hoisted = hoisted
        self._text_of = text_of
        self._known: dict[str, str] = {}
        self._found: dict[str, str] = {}

    def know(self, name: str, text: str) -> None:
        """Note the lowered value of a constant, provided that it can be told before a call."""
        if self._is_closed(text):
            self._known[name] = text

    def forget(self, name: str) -> None:
        """Note that a variable is assigned to."""
        self._known.pop(name, None)

    def note(self, condition: ex.Expression) -> None:
        """``assert(N % (block_size * x128::size) == 0)``: remember what N must be a multiple of."""
        if isinstance(condition, ex.Binary) and condition.operator == "&&":
            self.note(condition.left)
            return
        if not (isinstance(condition, ex.Binary) and condition.operator == "==" and condition.right == _ZERO):
            return
        rest = condition.left
        if isinstance(rest, ex.Binary) and rest.operator == "%" and isinstance(rest.left, ex.Name):
            divisor = self._inlined(self._text_of(rest.right))
            if self._is_closed(divisor):
                self._found[rest.left.name] = divisor

    def quanta(self) -> dict[str, dict[str, int]]:
        """Return the multiple of each parameter that has one, by precision."""
        return {
            name: {precision: _evaluate(text, precision) for precision in PRECISIONS}
            for name, text in self._found.items()
        }

    def _is_closed(self, text: str) -> bool:
        try:
            _evaluate(self._inlined(text), "float32")
        except (NameError, AttributeError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
            return False
        return True

    def _inlined(self, text: str) -> str:
        known = self._known | self._hoisted
        # A value may name another constant, but none names itself: there are at most as many steps as constants.
        for _ in known:
            before = text
            for name, value in known.items():
                text = _replace_word(text, name, f"({value})")
            if text == before:
                break
        return text


class _PlanOfSizes:
    """What a constant expression may ask of a plan before there is one."""

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def sizeof(self, ctype: str) -> int:
        if ctype != "floatX":
            raise NameError(ctype)
        return _ITEMSIZE[self.precision]


def _evaluate(text: str, precision: str) -> int:
    """Evaluate lowered constant text, which holds numbers, operators and ``plan.sizeof`` alone."""
    names = {"__builtins__": {}, "plan": _PlanOfSizes(precision), "min": min, "max": max, "ceil_div": _ceil_div}
    return int(eval(text, names))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _replace_word(text: str, word: str, value: str) -> str:
    return re.sub(rf"\b{re.escape(word)}\b", lambda _: value, text)
