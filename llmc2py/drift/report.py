"""Changes as people and machines read them: text, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llmc2py.drift.changes import SHARED_CODE, TITLES, Change, Meaning

_SHOWN = 6
#: Changes of which the signature does not have to be the same to be told together.
_LONE = frozenset(
    f"{subject}-{what}" for subject in ("kernel", "launcher", "reference") for what in ("added", "removed")
)
#: Changes whose states the text does not tell.
_STATED = frozenset({"launch-configuration-changed", "launches-changed", "reference-changed"})


def counts(changes: Iterable[Change]) -> dict[str, int]:
    """Return the number of changes of each meaning, noughts included."""
    found = dict.fromkeys(map(str, Meaning), 0)
    for change in changes:
        found[change.meaning] += 1
    return found


def to_record(changes: Sequence[Change], old: str, new: str) -> dict[str, Any]:
    """Return changes as plain values; each stands alone."""
    return {
        "old": old,
        "new": new,
        "counts": counts(changes),
        "changes": [
            {
                "meaning": str(change.meaning),
                "kind": change.kind,
                "subject": change.subject,
                "name": change.name,
                "file": change.file,
                "text": change.text,
                "old": change.old,
                "new": change.new,
                "former": change.former,
            }
            for change in changes
        ],
    }


def to_text(changes: Sequence[Change], old: str, new: str) -> str:
    """Return changes as lines, grouped by what they mean; the same change of many subjects is one entry."""
    lines = [f"{old} -> {new}: {summary(changes)}"]
    for meaning, found in _groups(changes):
        lines += ["", f"{TITLES[meaning]} ({len(found)})"]
        for group in _merged(found):
            lines.append(f"  {_subjects(group)}: {group[0].text}")
            if _has_formulas(group[0]):
                lines += [f"    was {group[0].old}", f"    now {group[0].new}"]
    return "\n".join(lines)


def to_markdown(changes: Sequence[Change], old: str, new: str) -> str:
    """Return changes as the text of a pull request."""
    lines = ["# Changes of the kernels", "", f"From {code(old)} to {code(new)}: {summary(changes)}."]
    for meaning, found in _groups(changes):
        lines += ["", f"## {TITLES[meaning]} ({len(found)})", ""]
        for group in _merged(found):
            lines.append(f"- {_subjects(group, markdown=True)}: {escaped(group[0].text)}")
            if _has_formulas(group[0]):
                lines += [f"  - was {code(group[0].old or '')}", f"  - now {code(group[0].new or '')}"]
    return "\n".join(lines)


def summary(changes: Sequence[Change]) -> str:
    """Return the numbers of changes in words."""
    words = {
        Meaning.BREAKING: "breaking for callers",
        Meaning.NUMBERS: "that change numbers",
        Meaning.SPEED: "of speed only",
        Meaning.ADDITION: "new",
        Meaning.COSMETIC: "cosmetic",
    }
    found = counts(changes)
    parts = [f"{found[meaning]} {text}" for meaning, text in words.items() if found[meaning]]
    return f"{len(changes)} change{'' if len(changes) == 1 else 's'}: {', '.join(parts)}" if parts else "no changes"


def _groups(changes: Sequence[Change]) -> Iterator[tuple[Meaning, list[Change]]]:
    for meaning in Meaning:
        found = [change for change in changes if change.meaning is meaning]
        if found:
            yield meaning, found


def _merged(changes: Iterable[Change]) -> list[list[Change]]:
    """Put together what is said in the same words of several subjects in a file, or of all that use the same code."""
    groups: dict[object, list[Change]] = {}
    for change in changes:
        is_lone = change.kind in _LONE
        states = None if is_lone else (change.old, change.new)
        file = None if change.kind == "file-changed" or change.text.startswith(SHARED_CODE) else change.file
        groups.setdefault((change.subject, change.kind, change.text, states, file), []).append(change)
    return list(groups.values())


def _subjects(group: Sequence[Change], *, markdown: bool = False) -> str:
    spell = code if markdown else str
    first = group[0]
    names = [spell(one.name) for one in group[:_SHOWN]]
    more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
    files = sorted({one.file for one in group})
    where = f" ({escaped(files[0]) if markdown else files[0]})" if len(files) == 1 and first.subject != "file" else ""
    return f"{first.subject}{'s' if len(group) > 1 else ''} {', '.join(names)}{more}{where}"


def _has_formulas(change: Change) -> bool:
    """Whether the two states are said in lines of their own."""
    return change.kind in _STATED and change.old is not None and change.new is not None


def code(text: str) -> str:
    """Return text as a code span, with more backticks around it than are in it."""
    flat = " ".join(text.split())
    fence = "`"
    while fence in flat:
        fence += "`"
    pad = " " if "`" in flat else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def escaped(text: str) -> str:
    """Keep Markdown and HTML from seeing signs of their own in names and formulas."""
    flat = " ".join(text.split())
    for sign in "\\`*_{}[]<>#|@":
        flat = flat.replace(sign, f"&#{ord(sign)};" if sign in "<>@" else f"\\{sign}")
    return flat
