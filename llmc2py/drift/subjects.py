"""What kernels, launchers, references and layers have in common when they are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmc2py.drift.changes import Change, Meaning
from llmc2py.drift.matching import file_of, name_of
from llmc2py.drift.parameters import parameter_changes, spelled

Record = dict[str, Any]
Records = Mapping[str, Record]


@dataclass(frozen=True)
class Subject:
    """A kernel, launcher, reference or layer that is in both trees: its kind, both keys and both records."""

    kind: str
    before: str
    after: str
    old: Record
    new: Record

    def change(
        self,
        meaning: Meaning,
        kind: str,
        text: str,
        old: str | None = None,
        new: str | None = None,
        *,
        files: frozenset[str] = frozenset(),
    ) -> Change:
        """Return a change of this subject."""
        places = files | {file_of(self.before), file_of(self.after)}
        former = self.before if self.before != self.after else None
        name, file = name_of(self.after), file_of(self.after)
        return Change(meaning, kind, self.kind, name, file, text, old, new, former, places)


def subjects(kind: str, pairs: Iterable[tuple[str, str]], old: Records, new: Records) -> Iterator[Subject]:
    """Yield what is in both trees, by the keys that it has in each."""
    for before, after in pairs:
        yield Subject(kind, before, after, old[before], new[after])


def signature(key: str, record: Record) -> str:
    """Return a kernel, launcher or reference as C declares it, without what it returns."""
    parameters = ", ".join(one if isinstance(one, str) else spelled(one) for one in record["parameters"])
    template = f"template <{', '.join(record['template'])}> " if record.get("template") else ""
    return f"{template}{name_of(key)}({parameters})"


def lone_changes(kind: str, gone: Iterable[str], come: Iterable[str], old: Records, new: Records) -> Iterator[Change]:
    """Yield what is in one tree alone. What no package had or has is told as cosmetic."""
    for key in gone:
        meaning = Meaning.BREAKING if _is_offered(kind, old[key]) else Meaning.COSMETIC
        yield _lone(meaning, kind, key, "removed", signature(key, old[key]), None)
    for key in come:
        meaning = Meaning.ADDITION if _is_offered(kind, new[key]) else Meaning.COSMETIC
        why = f"added; not in the package: {new[key]['not_lowered']}" if new[key].get("not_lowered") else "added"
        yield _lone(meaning, kind, key, why, None, signature(key, new[key]))


def _lone(meaning: Meaning, kind: str, key: str, text: str, old: str | None, new: str | None) -> Change:
    what = f"{kind}-{'removed' if new is None else 'added'}"
    return Change(meaning, what, kind, name_of(key), file_of(key), text, old, new, None, frozenset({file_of(key)}))


def place_changes(subject: Subject) -> Iterator[Change]:
    """Yield what changed of where the source has it and where Python finds it."""
    old, new = subject.old.get("python"), subject.new.get("python")
    is_other = old != new and old is not None and new is not None
    to_callers = f"; in Python it is {new}, was {old}" if is_other else ""
    meaning = Meaning.BREAKING if is_other else Meaning.COSMETIC
    before, after = subject.before, subject.after
    if name_of(before) != name_of(after):
        where = f" in {file_of(before)}" if file_of(before) != file_of(after) else ""
        text = f"renamed: was {name_of(before)}{where}{to_callers}"
        yield subject.change(meaning, f"{subject.kind}-renamed", text, name_of(before), name_of(after))
    elif file_of(before) != file_of(after):
        text = f"moved here from {file_of(before)}{to_callers}"
        yield subject.change(meaning, f"{subject.kind}-moved", text, file_of(before), file_of(after))
    elif is_other:
        yield subject.change(meaning, "python-name-changed", f"in Python it is {new}, was {old}", old, new)
    if old is not None and new is None:
        why = f": {subject.new['not_lowered']}" if subject.new.get("not_lowered") else ""
        yield subject.change(Meaning.BREAKING, "left-out", f"no longer in the package{why}", old, None)
    elif old is None and new is not None:
        yield subject.change(Meaning.ADDITION, "now-available", f"now in the package, as {new}", None, new)


def interface_changes(subject: Subject) -> Iterator[Change]:
    """Yield what changed of template, parameters and precisions."""
    templates = [", ".join(one.get("template", ())) or "none" for one in (subject.old, subject.new)]
    if templates[0] != templates[1]:
        text = f"template parameters changed: {templates[0]} is now {templates[1]}"
        yield subject.change(Meaning.BREAKING, "template-changed", text, *templates)
    for one in parameter_changes(subject.old["parameters"], subject.new["parameters"]):
        yield subject.change(one.meaning, one.kind, one.text, one.old, one.new)
    yield from precision_changes(subject)


def precision_changes(subject: Subject) -> Iterator[Change]:
    """Yield the precisions that are gone or new."""
    old, new = subject.old.get("precisions", ()), subject.new.get("precisions", ())
    for name in old:
        if name not in new:
            yield subject.change(Meaning.BREAKING, "precision-dropped", f"precision {name} dropped", name, None)
    for name in new:
        if name not in old:
            yield subject.change(Meaning.ADDITION, "precision-added", f"precision {name} added", None, name)


def _is_offered(kind: str, record: Record) -> bool:
    return kind == "reference" or record.get("python") is not None
