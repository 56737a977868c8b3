"""How the parameters of a kernel or launcher changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmc2py.drift.changes import Meaning

Record = dict[str, Any]
_WRITES = frozenset({"out", "inout", "accumulate"})
_SAID = {
    "in": "is read",
    "out": "is overwritten",
    "inout": "is read and written",
    "accumulate": "is added to",
    "unused": "is not used",
    None: "is of unknown use",
}


@dataclass(frozen=True)
class ParameterChange:
    """One change of one parameter."""

    meaning: Meaning
    kind: str
    text: str
    old: str | None = None
    new: str | None = None


def match_parameters(old: Sequence[Record], new: Sequence[Record]) -> dict[str, str]:
    """Return the old name of each new parameter that was there before: by its name, else by its place and type."""
    before = {one["name"]: index for index, one in enumerate(old)}
    found = {one["name"]: one["name"] for one in new if one["name"] in before}
    for index, one in enumerate(new):
        if one["name"] in found or index >= len(old):
            continue
        other = old[index]
        if other["name"] not in found.values() and _bare(other["type"]) == _bare(one["type"]):
            found[one["name"]] = other["name"]
    return found


def parameter_changes(old: Sequence[Record], new: Sequence[Record]) -> Iterator[ParameterChange]:
    """Yield what changed from one list of parameters to another, each a record of name, type and intent."""
    former = match_parameters(old, new)
    by_name = {one["name"]: one for one in old}
    for one in old:
        if one["name"] not in former.values():
            text = f"parameter {spelled(one)} dropped"
            yield ParameterChange(Meaning.BREAKING, "parameter-dropped", text, spelled(one))
    for one in new:
        if one["name"] not in former:
            text = f"parameter {spelled(one)} added"
            yield ParameterChange(Meaning.BREAKING, "parameter-added", text, None, spelled(one))
    kept = [former[one["name"]] for one in new if one["name"] in former]
    order = [one["name"] for one in old if one["name"] in kept]
    if kept != order:
        before, after = ", ".join(order), ", ".join(one["name"] for one in new if one["name"] in former)
        text = f"parameters reordered: ({before}) is now ({after})"
        yield ParameterChange(Meaning.BREAKING, "parameters-reordered", text, before, after)
    for one in new:
        if one["name"] in former:
            yield from _changed(by_name[former[one["name"]]], one)


def _changed(old: Record, new: Record) -> Iterator[ParameterChange]:
    name = new["name"]
    if old["name"] != name:
        text = f"parameter {old['name']} renamed to {name}"
        yield ParameterChange(Meaning.BREAKING, "parameter-renamed", text, old["name"], name)
    if _bare(old["type"]) != _bare(new["type"]):
        text = f"parameter {name} retyped: {old['type']} is now {new['type']}"
        yield ParameterChange(Meaning.BREAKING, "parameter-retyped", text, old["type"], new["type"])
    elif old["type"] != new["type"]:
        text = f"parameter {name}: {old['type']} is now {new['type']}"
        yield ParameterChange(Meaning.SPEED, "qualifiers-changed", text, old["type"], new["type"])
    if old.get("intent") != new.get("intent"):
        yield _intent(name, old, new)
    if bool(old.get("null")) != bool(new.get("null")):
        is_breaking = bool(old.get("null"))
        text = f"parameter {name} may {'no longer' if is_breaking else 'now'} be None"
        meaning = Meaning.BREAKING if is_breaking else Meaning.ADDITION
        yield ParameterChange(meaning, "null-changed", text)
    if old.get("align", 0) != new.get("align", 0):
        before, after = str(old.get("align", 0)), str(new.get("align", 0))
        text = f"parameter {name}: alignment {before} is now {after} (arrays that are not so aligned are copied)"
        yield ParameterChange(Meaning.SPEED, "alignment-changed", text, before, after)


def _intent(name: str, old: Record, new: Record) -> ParameterChange:
    """What is written now and was not, or is read before it is written, or was and is no more, breaks callers."""
    before, after = old.get("intent"), new.get("intent")
    is_breaking = (before in _WRITES) != (after in _WRITES) or "out" in (before, after)
    known = before is not None and after is not None
    text = f"parameter {name} {_SAID.get(before, before)}, now it {_SAID.get(after, after)}"
    if before == "out" and after in ("accumulate", "inout"):
        text += ": give it its first values (zeros, as a rule) before the call"
    meaning = Meaning.BREAKING if is_breaking and known else Meaning.NUMBERS
    return ParameterChange(meaning, "intent-changed", text, before, after)


def spelled(one: Mapping[str, Any]) -> str:
    """Return a parameter as C has it: ``const float* inp``."""
    name = "" if one["name"].startswith("unnamed") else one["name"]
    return f"{one['type'].removeprefix('tag:')} {name}".rstrip()


def _bare(ctype: str) -> str:
    return ctype.removeprefix("const ")
