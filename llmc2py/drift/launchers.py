"""How launchers changed."""

from __future__ import annotations

from collections.abc import Iterator

from llmc2py.drift.changes import Change, Meaning
from llmc2py.drift.codechanges import crosses_threads
from llmc2py.drift.matching import Renames, file_of, name_of
from llmc2py.drift.snapshot import Snapshot
from llmc2py.drift.subjects import Record, Subject, interface_changes, place_changes


def launcher_tokens(key: str, record: Record, renamed: Renames) -> list[str]:
    """Return by what a launcher is known: its parameters, what it launches and calls, what it requires."""
    launches = [text for kernel, how in record.get("launches", ()) for text in (renamed(kernel, file_of(key)), how)]
    parameters = [text for one in record["parameters"] for text in (one["type"], one["name"])]
    rest = [*record.get("calls", ()), *record.get("requires", ()), record.get("body", key)]
    return [*parameters, *launches, *rest]


def launcher_changes(subject: Subject, new: Snapshot, renamed: Renames) -> Iterator[Change]:
    """Yield how one launcher changed; ``renamed`` knows the new names of kernels and launchers.

    What was in no package, and still is in none, is passed over.
    """
    was_lowered, is_lowered = ("not_lowered" not in one for one in (subject.old, subject.new))
    if not was_lowered and not is_lowered:
        return
    yield from place_changes(subject)
    if was_lowered and is_lowered:
        yield from interface_changes(subject)
        yield from _body_changes(subject, new, renamed)


def _body_changes(subject: Subject, new: Snapshot, renamed: Renames) -> Iterator[Change]:
    if subject.old.get("replaced_by") or subject.new.get("replaced_by"):
        yield from _replacement_changes(subject)
        return
    said = [*_require_changes(subject), *_launch_changes(subject, new, renamed), *_call_changes(subject, renamed)]
    yield from said
    explained = any(one.kind in ("launches-changed", "calls-changed") for one in said)
    if subject.old.get("body") != subject.new.get("body"):
        if not explained:
            yield subject.change(Meaning.NUMBERS, "body-changed", "body changed")
    elif subject.old.get("text") != subject.new.get("text") and not said and not _names_changed(subject, renamed):
        yield subject.change(Meaning.COSMETIC, "spelling-changed", "names of locals or messages changed")


def _names_changed(subject: Subject, renamed: Renames) -> bool:
    """Whether the names of parameters, kernels or launchers alone make another text."""
    kernels = [kernel for kernel, _ in subject.old.get("launches", ())]
    used = [*kernels, *subject.old.get("calls", ())]
    names = [[one["name"] for one in record["parameters"]] for record in (subject.old, subject.new)]
    return names[0] != names[1] or any(renamed(one, file_of(subject.before)) != one for one in used)


def _replacement_changes(subject: Subject) -> Iterator[Change]:
    """A function of the runtime stands for what cannot be lowered: who changes the one has to look at the other."""
    old, new = subject.old.get("replaced_by"), subject.new.get("replaced_by")
    if old != new:
        text = f"{f'runtime.replacements.{new}' if new else 'what is generated'} stands for it now"
        yield subject.change(Meaning.NUMBERS, "replacement-changed", text, old, new)
    elif subject.old.get("body") != subject.new.get("body"):
        text = f"body changed, but runtime.replacements.{new} stands for it and did not: check that function by hand"
        yield subject.change(Meaning.NUMBERS, "replaced-body-changed", text)


def _require_changes(subject: Subject) -> Iterator[Change]:
    old, new = subject.old.get("requires", ()), subject.new.get("requires", ())
    for text in new:
        if text not in old:
            yield subject.change(Meaning.BREAKING, "assert-added", f"now requires {text}", None, text)
    for text in old:
        if text not in new:
            yield subject.change(Meaning.ADDITION, "assert-dropped", f"no longer requires {text}", text, None)


def _launch_changes(subject: Subject, new: Snapshot, renamed: Renames) -> Iterator[Change]:
    place = file_of(subject.before)
    before = [(renamed(kernel, place), text) for kernel, text in subject.old.get("launches", ())]
    after = [(kernel, text) for kernel, text in subject.new.get("launches", ())]
    kernels = [[kernel for kernel, _ in one] for one in (before, after)]
    if kernels[0] != kernels[1]:
        names = [", ".join(dict.fromkeys(one)) or "nothing" for one in kernels]
        text = f"launches {names[1]}, was {names[0]}"
        spelled = ["; ".join(f"{kernel}{how}" for kernel, how in one) or None for one in (before, after)]
        yield subject.change(Meaning.NUMBERS, "launches-changed", text, *spelled)
        return
    changed = [(kernel, was, now) for (kernel, was), (_, now) in zip(before, after, strict=True) if was != now]
    for kernel, was, now in dict.fromkeys(changed):
        is_joint = _crosses_threads(subject, new, kernel)
        text = f"launch configuration of {kernel} changed"
        text += " (its threads work together: sums may round otherwise)" if is_joint else ""
        meaning = Meaning.NUMBERS if is_joint else Meaning.SPEED
        yield subject.change(meaning, "launch-configuration-changed", text, f"{kernel}{was}", f"{kernel}{now}")


def _call_changes(subject: Subject, renamed: Renames) -> Iterator[Change]:
    before = [renamed(one, file_of(subject.before)) for one in subject.old.get("calls", ())]
    after = list(subject.new.get("calls", ()))
    if before != after:
        names = [", ".join(one) or "nothing" for one in (before, after)]
        yield subject.change(Meaning.NUMBERS, "calls-changed", f"calls {names[1]}, was {names[0]}", *names)


def _crosses_threads(subject: Subject, new: Snapshot, kernel: str) -> bool:
    keys = [key for key in new.kernels if name_of(key) == kernel]
    here = [key for key in keys if file_of(key) == file_of(subject.after)]
    return crosses_threads(new.slice((here or keys)[0]) if keys else None)
