"""Where in a source something stands, and what there is to say of it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SourceSpan:
    """A place in a source file: path relative to the source root, line and column counted from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def origin(self) -> str:
        """The place as ``file:line``, for comments and docstrings."""
        return f"{self.file}:{self.line}"


class Severity(enum.StrEnum):
    """How much a diagnostic matters: notes inform, warnings lose something, errors fail the run."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Diagnostic:
    """One thing that the user should know: where, what, and what to do.

    ``kernel`` names the kernel that it is about, where it is about one alone: who leaves that out is spared it.
    ``loses`` says that kernels or launches of the source are left out, although nothing fails.
    """

    severity: Severity
    span: SourceSpan
    message: str
    kernel: str | None = None
    loses: bool = False

    def __str__(self) -> str:
        return f"{self.span}: {self.severity}: {self.message}"


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether anything was said that fails a run."""
    return any(item.severity is Severity.ERROR for item in diagnostics)


class Llmc2pyError(Exception):
    """Base of the errors that the command line shows without a traceback."""


class UsageError(Llmc2pyError):
    """The command was used wrongly or an input cannot be read (exit code 2)."""


class SourceError(Llmc2pyError):
    """Something in a source file prevents what was asked for."""

    def __init__(self, span: SourceSpan, message: str) -> None:
        super().__init__(f"{span}: {message}")
        self.diagnostic = Diagnostic(Severity.ERROR, span, message)
