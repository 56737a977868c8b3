"""Kernels and launches in branches of conditionals that are off: nobody reads them, so that they have to be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llmc2py.frontend.launchwords import SITE

_CONDITIONALS = frozenset({"if", "ifdef", "ifndef"})
_KERNEL = re.compile(r"\b__global__\b[^;{]*\{")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENTS = frozenset({"CPP_COMMENT1", "CPP_COMMENT2"})
_SPACES = frozenset({"CPP_WS", "CPP_LINECONT"})


@dataclass
class _Branch:
    """A branch that is open: its directive, whether it is known to be on, and what stands in it and is off."""

    line: int
    directive: str
    is_on: bool = False
    off: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class OffBranch:
    """A branch that is off, with the line of its first kernel or launch."""

    line: int
    kernels: int
    launches: int
    #: The directives that it is under, the outermost first, but for those known to hold.
    directives: tuple[tuple[int, str], ...]

    @property
    def is_deleted(self) -> bool:
        """Whether no definition turns it on: ``#if 0``."""
        return any(directive in ("#if 0", "#if false") for _, directive in self.directives)

    @property
    def message(self) -> str:
        """What there is to say of it."""
        counts = [(self.kernels, "kernel", "s"), (self.launches, "launch", "es")]
        parts = [f"{count} {word}{plural if count > 1 else ''}" for count, word, plural in counts if count]
        verb = "stands" if self.kernels + self.launches == 1 else "stand"
        under = " and ".join(f"{directive} (line {line})" for line, directive in self.directives)
        holds = "does not hold" if len(self.directives) == 1 else "do not hold together"
        remedy = "" if self.is_deleted else ": #define above it what turns it on to have it read"
        return f"{' and '.join(parts)} {verb} under {under}, which {holds}{remedy}"


def follow(lines: Iterable[list[Any]], acted: Callable[[], int], found: list[OffBranch]) -> Iterator[list[Any]]:
    """Yield the tokens of each line to pcpp, and add the branches that are off to ``found``.

    pcpp handles a line before it asks for the next. It takes the tokens out of one that is off. ``acted`` counts the
    directives that it carried out.
    """
    stack: list[_Branch] = []
    for line in lines:
        text = "".join(token.value for token in line if token.type not in _COMMENTS)
        number, before = line[0].lineno, acted()
        yield line
        if not text.lstrip().startswith("#"):
            if stack and not text.isspace():
                _note(stack, number, text, is_off=all(token.type in _SPACES for token in line))
            continue
        words = " ".join(text.replace("\\\n", " ").split()).removeprefix("#").lstrip()
        name = re.match(r"\w*", words)[0]  # type: ignore[index]  # it always matches
        if name in _CONDITIONALS:
            stack.append(_Branch(number, f"#{words}"))
        elif stack and name in ("elif", "else", "endif"):
            ended = stack.pop()
            found += _off(stack, ended)
            if name == "elif":
                stack.append(_Branch(number, f"#{words}"))
            elif name == "else":
                stack.append(_Branch(number, ended.directive if "#else" in ended.directive else _else(ended)))
        elif acted() != before:
            _note(stack, number, "", is_off=False)


def _else(ended: _Branch) -> str:
    return f"the #else of {ended.directive}"


def _note(stack: list[_Branch], number: int, text: str, *, is_off: bool) -> None:
    if is_off:
        stack[-1].off.append((number, _STRING.sub('""', text)))
    else:
        for branch in stack:
            branch.is_on = True


def _off(around: list[_Branch], ended: _Branch) -> Iterator[OffBranch]:
    text = "".join(one for _, one in ended.off)
    kernels, launches = len(_KERNEL.findall(text)), len(SITE.findall(text.encode()))
    if kernels or launches:
        first = next((line for line, one in ended.off if "__global__" in one or SITE.search(one.encode())), ended.line)
        under = [one for one in (*around, ended) if not one.is_on] or [ended]
        yield OffBranch(first, kernels, launches, tuple((one.line, one.directive) for one in under))
