"""Assignments whose value nothing reads: what C++ only needs for calls that no plan has."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"(\s*)(\w+) = ")


def without_unused(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a function's body without assignments to names that no line reads, whole blocks of them too.

    Each statement, or head of a block, is one line. The values are lowered expressions: they have no effects.
    """
    kept = list(lines)
    while unread := _unread(kept):
        kept = _with_passes([line for line in kept if _target(line) not in unread])
    return tuple(kept)


def _target(line: str) -> str | None:
    found = _ASSIGNMENT.match(line)
    return found.group(2) if found else None


def _unread(lines: Sequence[str]) -> set[str]:
    targets = {target for line in lines if (target := _target(line)) is not None}
    if not targets:
        return targets
    text = "\n".join(f"    {line}" for line in lines)
    names = [node for node in ast.walk(ast.parse(f"def f():\n{text}")) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return targets - read


def _with_passes(lines: Sequence[str]) -> list[str]:
    """Fill blocks that have become empty."""
    filled: list[str] = []
    for number, line in enumerate(lines):
        filled.append(line)
        rest = (following for following in lines[number + 1 :] if following)
        if line.endswith(":") and _depth(next(rest, "")) <= _depth(line):
            filled.append(" " * (_depth(line) + 4) + "pass")
    return filled


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
