"""Assignments that nothing reads are left out of functions' bodies, with what is empty without them."""

from __future__ import annotations

import ast

import pytest

from llmc2py.lower.unused import without_unused


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([], []),
        (["a = 1", "plan.launch(k, 1, 32, 0, a)"], ["a = 1", "plan.launch(k, 1, 32, 0, a)"]),
        (["a = 1", "plan.launch(k, 1, 32, 0)"], ["plan.launch(k, 1, 32, 0)"]),
        # a chain: each is read by the next alone
        (["a = 1", "b = a + 1", "c = (b, a)", "return"], ["return"]),
        # a name that is given several values
        (["a = 1", "b = 2", "b = a", "plan.memset(p, 0, 4)"], ["plan.memset(p, 0, 4)"]),
        # all assignments to a name that is read
        (["a = 1", "if n > 2:", "    a = 2", "f(a)"], ["a = 1", "if n > 2:", "    a = 2", "f(a)"]),
        # names that contain a name
        (["grid = 1", "grid_size = 2", "f(grid_size)"], ["grid_size = 2", "f(grid_size)"]),
        # what is compared or passed by keyword is no assignment
        (["n == 3", "f(a=n)", "x = n"], ["n == 3", "f(a=n)"]),
        (["x = n", "plan.require(x > 0, 'x > 0', x=x)"], ["x = n", "plan.require(x > 0, 'x > 0', x=x)"]),
        # strings that mention a name do not read it
        (["a = 1", "f('a')"], ["f('a')"]),
    ],
)
def test_lines(lines: list[str], kept: list[str]) -> None:
    assert list(without_unused(lines)) == kept


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["if n > 2:", "    a = 1", "f(n)"], ["if n > 2:", "    pass", "f(n)"]),
        (["if n > 2:", "    a = 1"], ["if n > 2:", "    pass"]),
        (
            ["if n > 2:", "    a = 1", "elif n > 1:", "    f(n)", "else:", "    a = 2"],
            ["if n > 2:", "    pass", "elif n > 1:", "    f(n)", "else:", "    pass"],
        ),
        (
            ["for i in range(n):", "    if i > 2:", "        a = i", "        b = a", "g(n)"],
            ["for i in range(n):", "    if i > 2:", "        pass", "g(n)"],
        ),
        (["", "def launch(size: Any) -> None:", "    a = size", "", "launch(3)"],
         ["", "def launch(size: Any) -> None:", "    pass", "", "launch(3)"]),
    ],
)  # fmt: skip
def test_blocks_that_become_empty_pass(lines: list[str], kept: list[str]) -> None:
    found = list(without_unused(lines))
    assert found == kept
    ast.parse("\n".join(found))


def test_a_read_in_an_inner_function_counts() -> None:
    lines = ["a = 1", "def launch(size: Any) -> None:", "    plan.launch(k, a, size, 0)", "launch(3)"]
    assert list(without_unused(lines)) == lines


def test_a_condition_that_only_a_dropped_line_was_under_still_reads() -> None:
    assert list(without_unused(["limit = n", "if n > limit:", "    a = 1"])) == [
        "limit = n",
        "if n > limit:",
        "    pass",
    ]


def test_a_loop_that_counts_keeps_its_counter() -> None:
    lines = ["i = 0", "while i < n:", "    dead = i", "    i = i + 1"]
    assert list(without_unused(lines)) == ["i = 0", "while i < n:", "    i = i + 1"]
