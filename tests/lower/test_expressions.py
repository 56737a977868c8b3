"""Host expressions mean in Python what they mean in C: random ones are compiled and compared."""

from __future__ import annotations

import ctypes
import pathlib
import re
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from llmc2py.pipeline import generate
from llmc2py.runtime import csemantics
from llmc2py.runtime.host.compiler import compile_c

#: Sizes, larger than the literals: a size less a literal is taken to be one still. Other differences go below nought.
VARIABLES = {"i": "int", "j": "int", "u": "unsigned int", "v": "unsigned int", "z": "unsigned long"}
C_HEAD = "#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) > (b) ? (a) : (b))\n"
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def literals() -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, 40), st.sampled_from(["", "", "U", "UL"])).map(lambda pair: f"{pair[0]}{pair[1]}")


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """C expressions of smaller ones. Divisors and shifts are kept to what C defines."""
    divisor = st.one_of(st.integers(1, 9).map(str), st.sampled_from(["(u + 1)", "(j + 2)", "(z + 3)", "-3"]))
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "&", "|", "^"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.integers(0, 9)).map(lambda p: f"({p[0]} * {p[1]})"),
        st.tuples(inner, st.sampled_from(["/", "%"]), divisor).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(["/ 8", "% 8", ">> 3", "<< 2"])).map(lambda p: f"({p[0]} {p[1]})"),
        st.tuples(inner, st.sampled_from(COMPARISONS), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        st.tuples(st.sampled_from(["-", "!", "~"]), inner).map(lambda p: f"({p[0]}{p[1]})"),
        st.tuples(st.sampled_from(["int", "unsigned", "size_t"]), inner).map(lambda p: f"({p[0]})({p[1]})"),
        st.tuples(inner, divisor).map(lambda p: f"(({p[0]} + {p[1]} - 1) / {p[1]})"),
    )


EXPRESSIONS = st.recursive(st.one_of(st.sampled_from(sorted(VARIABLES)), literals()), larger, max_leaves=6)
VALUES = st.fixed_dictionaries({name: st.integers(50, 99) for name in VARIABLES})


def lowered(expressions: list[str]) -> list[str]:
    """Return the Python text of each expression, through the whole generator."""
    parameters = ", ".join(f"{ctype} {name}" for name, ctype in VARIABLES.items())
    launches = "".join(f"    k<<<1, 1>>>({expression});\n" for expression in expressions)
    source = f"__global__ void k(long value) {{}}\nvoid go({parameters}) {{\n{launches}}}\n"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "k.cu").write_text(source)
        made = generate(pathlib.Path(folder))
    assert made.plan.not_lowered == (), made.plan.not_lowered
    (plan,) = made.plan.modules[0].launchers
    found = [re.fullmatch(r"plan\.launch\(k, 1, 1, 0, (.*)\)", line) for line in plan.body]
    return [match[1] for match in found if match is not None]


def c_values(expressions: list[str], values: dict[str, int]) -> list[int]:
    declared = "".join(f"static const {ctype} {name} = {values[name]};\n" for name, ctype in VARIABLES.items())
    results = "".join(f"    results[{n}] = (long long)({text});\n" for n, text in enumerate(expressions))
    text = f"#include <stddef.h>\n{C_HEAD}{declared}void run(long long* results) {{\n{results}}}\n"
    array = (ctypes.c_longlong * len(expressions))()
    compile_c(text, "random expressions").run(array)
    return list(array)


def python_value(text: str, values: dict[str, int]) -> int:
    names: dict[str, Any] = {name: getattr(csemantics, name) for name in ("idiv", "imod", "ceil_div", "wrap", "c_cast")}
    value = eval(text, names | values)
    assert isinstance(value, int), text
    return int(value)


@settings(
    max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate]
)
@given(st.lists(EXPRESSIONS, min_size=60, max_size=60), VALUES)
def test_random_expressions_have_the_values_of_c(expressions: list[str], values: dict[str, int]) -> None:
    # A 64-bit parameter takes each value as it is; what was wrapped at 64 bits is compared modulo 2^64.
    for expression, text, expected in zip(
        expressions, lowered(expressions), c_values(expressions, values), strict=True
    ):
        found = csemantics.wrap(python_value(text, values), "long")
        assert found == expected, f"{expression} is {text}: {found}, in C {expected} for {values}"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("-7 / 2", "idiv(-7, 2)"),
        ("(i + 255) / 256", "ceil_div(i, 256)"),
        ("(u + j - 1) / j", "ceil_div(u, j)"),
        ("u / 4", "u // 4"),
        ("i / 4", "idiv(i, 4)"),
        ("u - v", 'wrap(u - v, "unsigned int")'),
        ("i - j", "i - j"),
        ("i % 4 == 0", "i % 4 == 0"),
        ("(i & 3) == 2", "(i & 3) == 2"),
        ("i < u", 'wrap(i, "unsigned int") < u'),
        ("i && j", "i != 0 and j != 0"),
        ("!i", "not i"),
        ("(int)(u - v)", 'c_cast(wrap(u - v, "unsigned int"), "int")'),
        ("(int)z", "z"),
        ("(long)(i * 0.5)", 'c_cast(i * 0.5, "long")'),
        ("i * 0.5f", 'c_cast(c_cast(c_cast(i, "float") * 0.5, "float"), "long")'),
        ("010 + 0x10 + 0b11 + 1'000", "1027"),
        ("~u", 'wrap(~u, "unsigned int")'),
        ("sizeof(int) * i", "4 * i"),
        ("i > 0 ? i : j > 0 ? j : 1", "i if i > 0 else j if j > 0 else 1"),
        ("std::min(i, (int)u)", "min(i, u)"),
    ],
)
def test_spelling(expression: str, text: str) -> None:
    assert lowered([expression]) == [text]
