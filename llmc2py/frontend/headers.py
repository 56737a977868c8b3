"""Included files that were expanded before: what one expands to depends on the macros that its text names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_NAME_OR_PASTE = re.compile(r"[A-Za-z_]\w*|##")
#: What makes names that stand in no text.
_PASTE = "##"
#: What pcpp defines in each file anew.
_OF_EVERY_FILE = frozenset({"__FILE__", "__LINE__", "__DATE__", "__TIME__", "__PCPP__"})


@dataclass(frozen=True)
class Outside:
    """What a file finds when it is included, as far as it can make a difference to it."""

    macros: frozenset[tuple[Any, ...]]
    varying: frozenset[str]
    include_once: frozenset[str]

    @classmethod
    def of(
        cls, names: frozenset[str], macros: Mapping[str, Any], varying: Iterable[str], include_once: Iterable[str]
    ) -> Outside:
        """Return what there is for a file with certain names in its text and in the texts that it includes."""
        reached = _reached(names, macros) - _OF_EVERY_FILE
        return cls(
            frozenset((name, *_spelled(macros[name])) for name in reached),
            names.intersection(varying),
            frozenset(include_once),
        )


@dataclass(frozen=True)
class ExpandedHeader:
    """What an included file expands to, and what it leaves behind.

    ``names`` are those in its text and in the texts that it includes, ``outside`` what they meant before. ``defined``
    are the macros that it defines, ``undefined`` those that are gone after it.
    """

    names: frozenset[str]
    outside: Outside
    text: str
    token: Any
    defined: dict[str, Any]
    undefined: frozenset[str]
    include_once: dict[str, Any]
    includes: tuple[str, ...]
    system_headers: tuple[str, ...]
    varying: frozenset[str]
    probes: frozenset[str]
    is_clean: bool


#: Expanded headers by path and by the folders of those that include them.
HeaderCache = dict[object, list[ExpandedHeader]]


@lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """Return what may be a macro in a text, and the operator that makes such names if it is there."""
    return frozenset(_NAME_OR_PASTE.findall(text))


def _reached(names: frozenset[str], macros: Mapping[str, Any]) -> set[str]:
    """Return the macros among some names, and those that these name in turn: all where names may be made."""
    reached: set[str] = set()
    found = {name for name in names if name in macros}
    has_paste = _PASTE in names
    while found:
        reached |= found
        inside = {token.value for name in found for token in macros[name].value}
        has_paste = has_paste or _PASTE in inside
        found = {name for name in inside - reached if name in macros}
    return set(macros) if has_paste else reached


def _spelled(macro: Any) -> tuple[Any, ...]:
    arguments = tuple(macro.arglist) if macro.arglist is not None else None
    return tuple(token.value for token in macro.value), arguments, macro.variadic
