"""pcpp, held to limits: it was made for sources that compile, and takes much of them for granted."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pcpp

#: Hand-written sources stay far below this; a few lines of macros can ask for more than there is memory.
_MOST_TOKENS = 2_000_000
_CONDITIONS = frozenset({"if", "ifdef", "ifndef", "elif"})
_WITH_OPERAND = _CONDITIONS | {"define", "undef", "pragma"}


class GuardedPreprocessor(pcpp.Preprocessor):  # type: ignore[misc]
    """pcpp without what it fails on: directives that lack their operand, bad definitions, endless expansions."""

    def __init__(self) -> None:
        super().__init__()
        self._expanded = 0

    def expand_macros(self, tokens: list[Any], expanding_from: Sequence[str] = ()) -> list[Any]:
        """Expand macros; raises ValueError where a file asks for more than any hand-written one has use for."""
        expanded: list[Any] = super().expand_macros(tokens, list(expanding_from))
        self._expanded += len(expanded)
        if self._expanded > _MOST_TOKENS:
            raise ValueError(f"its macros expand to more than {_MOST_TOKENS:,} tokens")
        return expanded

    def define(self, tokens: Any) -> None:
        """Define a macro; a definition that is not well-formed is reported."""
        try:
            super().define(tokens)
        except LookupError:
            self.on_error(tokens[0].source, tokens[0].lineno, "a bad macro definition is ignored")

    def on_directive_handle(
        self, directive: Any, toks: list[Any], ifpassthru: bool, precedingtoks: object
    ) -> bool | None:
        """Complete a directive that lacks its operand: a condition without one is false, others are nothing."""
        name = directive.value
        words = [tok.value for tok in toks if not tok.value.isspace()]
        if name in _WITH_OPERAND and _lacks_operand(words):
            self.on_error(directive.source, directive.lineno, f"#{name} lacks what follows it")
            if name not in _CONDITIONS:
                raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
            operand = copy.copy(directive)
            is_number = name in ("if", "elif")
            operand.type, operand.value = (self.t_INTEGER, "0") if is_number else (self.t_ID, "__llmc2py_nothing")
            toks[:] = [operand]
        handled: bool | None = super().on_directive_handle(directive, toks, ifpassthru, precedingtoks)
        return handled


@contextmanager
def told_failures() -> Iterator[None]:
    """Turn what pcpp stumbles over into a ValueError, so that the other files are read all the same."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"the preprocessor fails on it ({type(error).__name__}: {error})") from error


def _lacks_operand(words: list[str]) -> bool:
    """Whether a directive ends before its operand, which pcpp takes for granted."""
    return not words or words in (["!"], ["!", "defined"], ["!", "defined", "("])
