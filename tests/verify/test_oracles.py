"""Expressions of sizes in the calls of references and variants."""

from __future__ import annotations

import pytest

from llmc2py.verify.oracles import size_of


@pytest.mark.parametrize(
    ("text", "value"), [("2 * C", 14), ("N - C // 2", 2), ("max(C, 64)", 64), ("min(C, N + 1, 9)", 6)]
)
def test_sizes_are_evaluated(text: str, value: int) -> None:
    assert size_of(text, {"C": 7, "N": 5}) == value


@pytest.mark.parametrize("text", ["V", "max(C)", "abs(C)", "max(C, key=N)", "C ** 2", "'C'"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no expression of the sizes C, N"):
        size_of(text, {"C": 7, "N": 5})
