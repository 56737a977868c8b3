"""How kernels changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmc2py.drift.changes import SHARED_CODE, Change, Meaning
from llmc2py.drift.codechanges import CodeChange, compare_code
from llmc2py.drift.matching import name_of
from llmc2py.drift.parameters import match_parameters
from llmc2py.drift.snapshot import Snapshot
from llmc2py.drift.subjects import Record, Subject, interface_changes, place_changes


def kernel_changes(subject: Subject, old: Snapshot, new: Snapshot) -> Iterator[Change]:
    """Yield how one kernel changed: where it is, its interface, its launch bounds, its code."""
    yield from place_changes(subject)
    yield from interface_changes(subject)
    bounds = [", ".join(one.get("launch_bounds", ())) or "none" for one in (subject.old, subject.new)]
    if bounds[0] != bounds[1]:
        text = f"launch bounds changed: {bounds[0]} is now {bounds[1]}"
        yield subject.change(Meaning.SPEED, "launch-bounds-changed", text, *bounds)
    if subject.old.get("slice") != subject.new.get("slice"):
        yield from _code_changes(subject, old, new)


def _code_changes(subject: Subject, old: Snapshot, new: Snapshot) -> Iterator[Change]:
    before, after = old.slice(subject.before), new.slice(subject.after)
    if before is None or after is None:
        if subject.old.get("slice") and subject.new.get("slice"):
            yield subject.change(Meaning.NUMBERS, "body-changed", "code changed (one of the packages does not have it)")
        return
    found = compare_code(before, after, *_labels(subject.old, subject.new))
    if found.change is CodeChange.CODE:
        own = name_of(subject.after)
        through = ", ".join(name for name in found.through if name != own)
        text = "body changed" if own in found.through else SHARED_CODE
        text += f"{' and so did' if own in found.through else ':'} {through}" if through else ""
        yield subject.change(Meaning.NUMBERS, "body-changed", text, files=found.files)
    elif not _has_same_header(subject):
        return  # which says it all
    elif found.change is CodeChange.QUALIFIERS:
        text = "qualifiers of the kernel or of its parameters changed"
        yield subject.change(Meaning.SPEED, "qualifiers-changed", text, files=found.files)
    elif name_of(subject.before) == name_of(subject.after):
        text = "comments, white space or names of locals changed"
        yield subject.change(Meaning.COSMETIC, "spelling-changed", text, files=found.files)


def _has_same_header(subject: Subject) -> bool:
    keys = ("template", "launch_bounds", "parameters")
    return all(subject.old.get(key) == subject.new.get(key) for key in keys)


def _labels(old: Record, new: Record) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the names of parameters stand for in the old body and in the new."""
    former = match_parameters(old["parameters"], new["parameters"])
    before = {one["name"]: f"@{one['name']}" for one in old["parameters"]}
    after = {one["name"]: f"@{former[one['name']]}" if one["name"] in former else f"+{one['name']}"
             for one in new["parameters"]}  # fmt: skip
    return before | _template_labels(old.get("template", ())), after | _template_labels(new.get("template", ()))


def _template_labels(template: Sequence[str]) -> dict[str, str]:
    names = [one.partition(" = ")[0].split()[-1] for one in template]
    return {name: f"@template {index}" for index, name in enumerate(names)}
