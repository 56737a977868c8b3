"""What changed in the code of a kernel: its own body, or what its slice takes from elsewhere."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmc2py.drift.slices import KernelSlice, SliceItem

#: What makes the result depend on which thread has which element: then another block adds in another order.
_CROSSES_THREADS = re.compile(
    r"\b(?:__shared__|__syncthreads\w*|__shfl\w*|__reduce_\w+|__ballot\w*|atomic[A-Z]\w*|cooperative_groups|cg|cub|wmma)\b"
)


class CodeChange(enum.Enum):
    """How far two slices differ."""

    SAME = "same"
    QUALIFIERS = "qualifiers"
    CODE = "code"


@dataclass(frozen=True)
class CodeDifference:
    """How two slices differ, through which names, and in which files."""

    change: CodeChange
    through: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()


def compare_code(
    old: KernelSlice, new: KernelSlice, old_labels: Mapping[str, str], new_labels: Mapping[str, str]
) -> CodeDifference:
    """Compare two slices of one kernel, whose parameters may have other names.

    The labels are what the names of parameters stand for in each: equal ones are the same parameter. Header and name of
    the kernel itself play no part here but for its qualifiers.
    """
    before, after = old.items(old_labels), new.items(new_labels)
    own_before, own_after = _own(before, old.kernel), _own(after, new.kernel)
    files = frozenset({item.file for item in (*own_before, *own_after)})
    changed = _changed_items(before, after, old.kernel, new.kernel)
    bodies = [[(item.context, item.body) for item in own] for own in (own_before, own_after)]
    if bodies[0] != bodies[1]:
        changed.insert(0, (new.kernel, files))
    if not changed and (old.headers != new.headers or _is_reordered(before, after)):
        changed.append(("the order of declarations", files))
    if changed:
        through = tuple(dict.fromkeys(name for name, _ in changed))
        return CodeDifference(CodeChange.CODE, through, frozenset().union(*(places for _, places in changed)))
    heads = [[_without_name(item.head, kernel) for item in own]
             for own, kernel in ((own_before, old.kernel), (own_after, new.kernel))]  # fmt: skip
    return CodeDifference(CodeChange.SAME if heads[0] == heads[1] else CodeChange.QUALIFIERS, (), files)


def crosses_threads(part: KernelSlice | None) -> bool:
    """Whether the threads of a kernel work on common values; so too where there is no telling."""
    return part is None or bool(_CROSSES_THREADS.search(part.text))


def own_tokens(part: KernelSlice | None) -> tuple[str, ...]:
    """Return the tokens of a kernel's own definition, without its name."""
    if part is None:
        return ()
    return tuple(text for item in _own(part.items(), part.kernel) for text in (*item.head, *item.body)
                 if text != part.kernel)  # fmt: skip


def _own(items: Sequence[SliceItem], kernel: str) -> list[SliceItem]:
    return [item for item in items if item.head and kernel in item.defines]


def _without_name(head: Sequence[str], kernel: str) -> list[str]:
    return [text for text in head if text != kernel]


def _changed_items(
    before: Sequence[SliceItem], after: Sequence[SliceItem], old_kernel: str, new_kernel: str
) -> list[tuple[str, frozenset[str]]]:
    """Return what changed of all but the kernel itself: the name, and the files that it is in."""
    old = Counter(item.code for item in before if not (item.head and old_kernel in item.defines))
    new = Counter(item.code for item in after if not (item.head and new_kernel in item.defines))
    odd = (old - new) + (new - old)
    found: dict[str, set[str]] = {}
    for item in (*before, *after):
        if odd.get(item.code):
            name = ", ".join(sorted(item.defines)) or "a declaration"
            found.setdefault(name, set()).add(item.file)
    return [(name, frozenset(files)) for name, files in found.items()]


def _is_reordered(before: Sequence[SliceItem], after: Sequence[SliceItem]) -> bool:
    """Whether anything stands on the other side of what it uses: overloads may then be chosen otherwise."""
    places = {item.code: index for index, item in enumerate(after)}
    for index, item in enumerate(before):
        for other_index, other in enumerate(before[:index]):
            if item.defines & other.uses or other.defines & item.uses:
                here, there = places.get(item.code), places.get(other.code)
                if here is not None and there is not None and (here > there) != (index > other_index):
                    return True
    return False
