"""Output: tables for people, one JSON object for machines, plain text where the output is piped."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any table: what is piped is neither wrapped nor cut.
_UNLIMITED = 1_000_000
_BAR_WIDTH = 30


def write(text: str = "") -> None:
    """Write lines to the standard output, as they are."""
    sys.stdout.write(f"{text}\n")


def write_error(text: str) -> None:
    """Write lines to the standard error, as they are."""
    sys.stderr.write(f"{text}\n")


def write_json(value: dict[str, Any]) -> None:
    """Write one JSON object to the standard output; infinities and NaN, which JSON has not, become strings."""
    write(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    plain = {"markup": False, "emoji": False, "highlight": False}
    if stream.isatty():
        return Console(file=stream, **plain)  # type: ignore[arg-type]
    return Console(file=io.StringIO(), width=_UNLIMITED, color_system=None, **plain)  # type: ignore[arg-type]


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Write a table to the standard output; ``numbers`` are the columns to align to the right.

    A terminal narrower than the table folds cells; piped, each row is one line, however long.
    """
    rows = list(rows)
    if not sys.stdout.isatty() and all(_is_simple(cell) for row in (columns, *rows) for cell in row):
        _write_plain_table(columns, rows, numbers)
        return
    from rich.table import Table

    console = _console()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if isinstance(console.file, io.StringIO):
        write("\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n")))


def _is_simple(cell: str) -> bool:
    """Whether a cell is one line, and as wide as it has characters."""
    return cell.isascii() and cell.isprintable()


def _write_plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str]) -> None:
    """Write what rich would, without the time that it takes to import."""
    lines = [columns, *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    is_number = [column in numbers for column in columns]
    for line in lines:
        cells = zip(line, widths, is_number, strict=True)
        write("  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip())


def write_code(text: str, language: str) -> None:
    """Write source text to the standard output, coloured on a terminal."""
    console = _console()
    if isinstance(console.file, io.StringIO):
        write(text.rstrip("\n"))
        return
    from rich.syntax import Syntax

    console.print(Syntax(text.rstrip("\n"), language, theme="ansi_dark", background_color="default"))


class Progress:
    """A line on the standard error that says what goes on; nothing where that is no terminal."""

    def __init__(self, text: str, *, quiet: bool = False) -> None:
        self._text = text
        self._quiet = quiet or not sys.stderr.isatty()
        self._status: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._status = _console(error=True).status(self._text)
            self._status.start()
        return self

    def update(self, text: str) -> None:
        """Change the line."""
        if self._status is not None:
            self._status.update(text)

    def step(self, done: int, total: int, text: str) -> None:
        """Change the line to a bar: how much of all is done, and what was last."""
        filled = _BAR_WIDTH * done // max(total, 1)
        self.update(f"{'━' * filled}{'─' * (_BAR_WIDTH - filled)} {done}/{total} {text}")

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
