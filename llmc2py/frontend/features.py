"""Macros that a build would define: kernels that stand under ``#ifdef FEATURE`` are kernels too."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define)\b(.*)$")
_FEATURE = re.compile(r"(?:defined\s*\(?\s*)?(\w+)\s*\)?")
_KERNEL = re.compile(r"\b__global__\b")


@dataclass
class _Conditional:
    """An open ``#if``: the macro that turns it on, and which of its branches hold kernels."""

    feature: str | None
    in_else: bool = False
    kernels: bool = False
    kernels_in_else: bool = False


def features_of_kernels(text: str, known: frozenset[str]) -> list[str]:
    """Return the macros that must be defined for all kernels of a text to be seen, in the order of their names.

    Only plain tests count (``#ifdef X``, ``#if defined(X)``, ``#if X``) of macros that the text does not define itself
    and that are not ``known``; where the ``#else`` branch holds kernels as well, nothing is gained by a definition.
    """
    defined: set[str] = set()
    found: set[str] = set()
    stack: list[_Conditional] = []
    for line in text.split("\n"):
        directive = _DIRECTIVE.match(line)
        if directive is None:
            if stack and _KERNEL.search(line.split("//")[0]):
                for conditional in stack:
                    conditional.kernels |= not conditional.in_else
                    conditional.kernels_in_else |= conditional.in_else
            continue
        word, rest = directive[1], directive[2].split("//")[0].strip()
        if word == "define":
            # What a broken line defines has no name; the preprocessor says so.
            defined.update(re.findall(r"^\w+", rest))
        elif word in ("if", "ifdef"):
            plain = _FEATURE.fullmatch(rest)
            stack.append(_Conditional(plain[1] if plain and not plain[1].isdigit() else None))
        elif word == "ifndef":
            stack.append(_Conditional(None))
        elif stack and word in ("elif", "else"):
            stack[-1].in_else = True
        elif stack and word == "endif":
            closed = stack.pop()
            if closed.feature and closed.kernels and not closed.kernels_in_else:
                found.add(closed.feature)
    return sorted(found - defined - known)
