"""Which kernel, launcher or reference of one tree is which of another: by place, by name, by likeness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

#: How alike two definitions must be to be one that was renamed: in one file, and from file to file.
_ALIKE_HERE = 0.6
_ALIKE_ELSEWHERE = 0.8

Tokens = Callable[[str], Sequence[str]]


def pair(
    old: Iterable[str], new: Iterable[str], old_tokens: Tokens, new_tokens: Tokens, window: int = 1
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Pair two sets of ``file:name``; return the pairs, what is left of the old and what is left of the new.

    What has kept its place is paired first, then what has kept its name in another file, then what is most alike. The
    two functions give the tokens by which likeness is measured, so many in a row at a time.
    """
    old, new = list(old), list(new)
    here = set(old) & set(new)
    pairs = [(key, key) for key in old if key in here]
    gone, come = [key for key in old if key not in here], [key for key in new if key not in here]
    if not gone or not come:
        return pairs, gone, come
    before = {key: _windows(old_tokens(key), window) for key in gone}
    after = {key: _windows(new_tokens(key), window) for key in come}
    scored = [(_score(one, other, before[one], after[other]), one, other) for one in gone for other in come]
    for score, one, other in sorted(scored, key=lambda item: (-item[0], item[1], item[2])):
        if score > 0 and one in gone and other in come:
            pairs.append((one, other))
            gone.remove(one)
            come.remove(other)
    return pairs, gone, come


def name_of(key: str) -> str:
    """Return the name in ``file:name`` (``file:name#2`` is the second of its name)."""
    return key.rpartition(":")[2].partition("#")[0]


def file_of(key: str) -> str:
    """Return the file in ``file:name``."""
    return key.rpartition(":")[0]


class Renames:
    """The new names of what was renamed, as seen from a file."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._names: dict[str, str] = {}
        self._by_name: dict[str, set[str]] = {}
        for before, after in pairs:
            self._names[before] = name_of(after)
            self._by_name.setdefault(name_of(before), set()).add(name_of(after))

    def __call__(self, name: str, file: str) -> str:
        """Return the new name of what a file calls by a name: its own, or the only one of this name elsewhere."""
        own = self._names.get(f"{file}:{name}")
        elsewhere = self._by_name.get(name, {name})
        return own if own is not None else next(iter(elsewhere)) if len(elsewhere) == 1 else name


def _score(one: str, other: str, before: Counter[Sequence[str]], after: Counter[Sequence[str]]) -> float:
    """Return how likely two are the same, 0 for not at all; a name that was kept goes before any likeness."""
    likeness = _likeness(before, after)
    if name_of(one) == name_of(other):
        return 1 + likeness
    wanted = _ALIKE_HERE if file_of(one) == file_of(other) else _ALIKE_ELSEWHERE
    return likeness if likeness >= wanted else 0.0


def _windows(tokens: Sequence[str], size: int) -> Counter[Sequence[str]]:
    tokens = tuple(tokens)
    return Counter(tokens[index : index + size] for index in range(max(len(tokens) - size + 1, 1)))


def _likeness(before: Counter[Sequence[str]], after: Counter[Sequence[str]]) -> float:
    """Return the part of all windows that both have."""
    total = before.total() + after.total()
    return 2 * (before & after).total() / total if total else 0.0
