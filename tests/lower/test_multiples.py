"""What asserts say that sizes are multiples of, from constants that are made of other constants."""

from __future__ import annotations

import pytest

from llmc2py.diagnostics import SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir.types import INT
from llmc2py.lower.multiples import Multiples

PLACE = SourceSpan("a.cu", 1)


def is_multiple(divisor: str) -> ex.Binary:
    """``N % divisor == 0``"""
    rest = ex.Binary(PLACE, "%", ex.Name(PLACE, "N"), ex.Name(PLACE, divisor))
    return ex.Binary(PLACE, "==", rest, ex.Number(SourceSpan("", 0), 0, INT))


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "b", "a"]])
def test_constants_are_followed_in_any_order(order: list[str]) -> None:
    values = {"a": "b * 2", "b": "c * 3", "c": "5"}
    multiples = Multiples({name: values[name] for name in order}, lambda expression: expression.name)
    multiples.note(is_multiple("a"))
    assert multiples.quanta() == {"N": dict.fromkeys(("float32", "float16", "bfloat16"), 30)}


def test_a_hoisted_value_may_name_what_was_noted_later() -> None:
    multiples = Multiples({"warps": "block_size // 32"}, lambda expression: expression.name)
    multiples.know("block_size", "256")
    multiples.note(is_multiple("warps"))
    assert multiples.quanta()["N"]["float32"] == 8


def test_what_no_constant_tells_is_no_multiple() -> None:
    multiples = Multiples({"a": "unknown * 2"}, lambda expression: expression.name)
    multiples.note(is_multiple("a"))
    assert multiples.quanta() == {}
