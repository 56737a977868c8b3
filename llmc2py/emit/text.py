"""Laying out generated Python: lines within the width, broken as a formatter would break them."""

from __future__ import annotations

import re
from collections.abc import Iterable

WIDTH = 120
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_CONDITION = re.compile(r"( *)(if|elif|while) (.*):$")


def lay_out(line: str, width: int = WIDTH) -> list[str]:
    """Return one logical line as physical lines that fit, where its last bracket can be broken open."""
    if len(line) <= width:
        return [line]
    opening = _last_group(line)
    if opening is None:
        return _broken_condition(line)
    start, end = opening
    indent = line[: len(line) - len(line.lstrip())]
    inner = indent + "    "
    head, body, tail = line[: start + 1], line[start + 1 : end], line[end:]
    parts = split_arguments(body)
    one_line = f"{inner}{', '.join(parts)}"
    if line[start] == "(" and len(one_line) <= width and not body.rstrip().endswith(","):
        return [head, one_line, indent + tail]
    found = [head]
    for part in parts:
        found += lay_out(f"{inner}{part},", width)
    return [*found, indent + tail]


def _broken_condition(line: str) -> list[str]:
    """``if a or b:`` with each operand on a line of its own; any other line as it is."""
    found = _CONDITION.match(line)
    if found is None:
        return [line]
    space, word, condition = found.groups()
    for operator in (" or ", " and "):
        parts = _split_outside(condition, operator)
        if len(parts) > 1:
            rest = [f"{space}    {operator.strip()} {part}" for part in parts[1:]]
            return [f"{space}{word} (", f"{space}    {parts[0]}", *rest, f"{space}):"]
    return [line]


def _split_outside(text: str, separator: str) -> list[str]:
    """Split at the separators that stand outside brackets and strings."""
    masked = _masked(text)
    places = [found.start() for found in re.finditer(re.escape(separator), masked)]
    outer = [place for place in places if _depth(masked[:place]) == 0]
    starts = [0, *(place + len(separator) for place in outer)]
    return [text[start:end] for start, end in zip(starts, [*outer, len(text)], strict=True)]


def _depth(masked: str) -> int:
    return sum(masked.count(letter) for letter in "([{") - sum(masked.count(letter) for letter in ")]}")


def lay_out_all(lines: Iterable[str], width: int = WIDTH) -> list[str]:
    """Lay out several lines."""
    return [part for line in lines for part in lay_out(line, width)]


def split_arguments(text: str) -> list[str]:
    """Split at the commas that stand outside brackets and strings."""
    masked = _masked(text)
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(masked):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _last_group(line: str) -> tuple[int, int] | None:
    """Return where the bracket group that ends the line (but for a colon or comma) opens and closes."""
    masked = _masked(line)
    returns = re.search(r"\) -> [^()]*:$", masked) if masked.lstrip().startswith("def ") else None
    end = returns.start() if returns else len(masked.rstrip(" :,")) - 1
    if end < 0 or masked[end] not in ")]}":
        return None
    depth = 0
    for index in range(end, -1, -1):
        if masked[index] in ")]}":
            depth += 1
        elif masked[index] in "([{":
            depth -= 1
            if depth == 0:
                return index, end
    return None


def _masked(text: str) -> str:
    return _STRING.sub(lambda match: "s" * len(match[0]), text)


def indent(lines: Iterable[str], levels: int) -> list[str]:
    """Indent lines by four spaces a level; empty lines stay empty."""
    return [f"{'    ' * levels}{line}" if line else line for line in lines]


def quoted(text: str) -> str:
    """Return a Python string literal with double quotes, whatever the text holds."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        escaped = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in escaped)
    return f'"{escaped}"'


def plain(text: str) -> str:
    """Return text for the inside of a docstring or comment, on one line and unable to end it."""
    return " ".join(prose(text, 10_000))


def prose(text: str, width: int = WIDTH - 4) -> list[str]:
    """Wrap a paragraph for a docstring; what could end or escape the docstring is taken out."""
    safe = text.replace("\\", "/").replace('"""', "'''")
    lines: list[str] = []
    for word in safe.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def import_order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """Constants, classes, functions, numbers in names by value: the order that isort keeps."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]
