"""Laying out lines as the formatter does, and literals that hold anything."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc2py.emit.text import WIDTH, lay_out_all, plain, prose, quoted, split_arguments

NAMES = st.from_regex(r"[a-z][a-z_]{0,14}", fullmatch=True).filter(lambda name: name.isidentifier())
ATOMS = st.one_of(
    NAMES.map(lambda name: f"v_{name}"), st.integers(0, 9999).map(str), st.text("ab,()[] ", max_size=9).map(quoted)
)


def calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(NAMES, st.lists(inner, min_size=1, max_size=5)).map(lambda p: f"f_{p[0]}({', '.join(p[1])})")


LINES = st.tuples(NAMES, st.lists(st.recursive(ATOMS, calls, max_leaves=8), min_size=1, max_size=9)).map(
    lambda p: f"plan.{p[0]}_({', '.join(p[1])})"
)


@settings(max_examples=1, deadline=None, derandomize=True)
@given(st.lists(LINES, min_size=300, max_size=300))
def test_calls_are_broken_as_the_formatter_breaks_them(lines: list[str]) -> None:
    text = "\n".join(lay_out_all(lines)) + "\n"
    command = [pathlib.Path(sys.executable).with_name("ruff"), "format", "--isolated", "--line-length", str(WIDTH), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert text == done.stdout


@given(st.text())
def test_quoted_text_reads_back(text: str) -> None:
    literal = quoted(text)
    assert ast.literal_eval(literal) == text
    assert "\n" not in literal


@given(st.text(st.sampled_from("\"'\\ \n\tab{}%#")))
def test_prose_cannot_end_a_docstring(text: str) -> None:
    for shown in ("\n".join(prose(text)), plain(text)):
        tree = ast.parse(f'"""Says {shown} here."""\n')
        assert len(tree.body) == 1
        assert isinstance(tree.body[0], ast.Expr)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a, b", ["a", "b"]),
        ("f(a, b), [c, d], {e: 1}", ["f(a, b)", "[c, d]", "{e: 1}"]),
        ("\"a, b\", 'c, d'", ['"a, b"', "'c, d'"]),
        ('"\\", ", x', ['"\\", "', "x"]),
        ("", []),
        ("a,", ["a"]),
    ],
)
def test_arguments_are_split_at_top_level_commas(text: str, parts: list[str]) -> None:
    assert split_arguments(text) == parts
