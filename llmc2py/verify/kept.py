"""Rows of checks that passed before: what comes of the same code, package and machine need not be run again."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from llmc2py.caching import Shelf, content_key
from llmc2py.runtime.layer import OpSpec
from llmc2py.runtime.references import Reference
from llmc2py.verify.cases import Case
from llmc2py.verify.checks import Subject
from llmc2py.verify.machine import code_files, machine_key
from llmc2py.verify.packages import Package
from llmc2py.verify.reach import Reach, Sources, Stamp, UnknownReachError, stamp
from llmc2py.verify.rows import VerifyRow
from llmc2py.verify.variants import VariantSubject

VERIFIED = Shelf("verified", 32 << 20)

#: What to do with rows that are kept: leave them and keep none; take them; run everything and keep what passes.
Earlier = Literal["ignored", "taken", "renewed"]
Run = Callable[[], list[VerifyRow]]


@dataclass(frozen=True)
class Footprint:
    """What decides the rows of a task: the key of all that stands there, and when its files were last written."""

    key: str
    stamps: dict[pathlib.Path, Stamp]

    def is_current(self) -> bool:
        """Whether no file was written since; what ran may otherwise be another text than the one of the key."""
        try:
            return all(stamp(path) == noted for path, noted in self.stamps.items())
        except OSError:
            return False


class Footprints:
    """The footprints of what is checked of a package on a backend.

    Each is None where it cannot be told what the checks depend on, as for modules that import others' modules.
    """

    def __init__(self, package: Package, backend: str) -> None:
        self._code = {path: stamp(path) for path in code_files()}
        self._machine = machine_key(backend)
        self._sources = Sources(package.folder)
        self._references = f"{package.module.__name__}.references"

    def layer(self, subject: Subject, cases: Sequence[Case]) -> Footprint | None:
        """Return that of a layer in one precision: its class and its reference, with all that these import."""

        def reach() -> Reach:
            own = self._sources.definitions("layers", [subject.name])
            return own | self._reference(subject.reference)

        return self._footprint(reach, "layer", subject.name, subject.precision, repr(subject.spec), repr(cases))

    def reference(self, name: str, spec: OpSpec, reference: Reference, cases: Sequence[Case]) -> Footprint | None:
        """Return that of the checks of a layer's reference, with the C references."""

        def reach() -> Reach:
            return self._reference(reference, with_c=True)

        return self._footprint(reach, "reference", name, repr(spec), repr(cases))

    def variant(self, subject: VariantSubject) -> Footprint | None:
        """Return that of a variant in one precision: its module, with all that this imports, and the references."""

        def reach() -> Reach:
            own = self._sources.module(subject.variant.module)
            return own | self._reference(subject.reference, with_c=True)

        what = (repr(part) for part in (subject.variant, subject.spec, subject.check))
        return self._footprint(reach, "variant", subject.precision, *what)

    def _reference(self, reference: Reference, *, with_c: bool = False) -> Reach:
        passes = [one for one in (reference.forward, reference.backward) if one is not None]
        if any(getattr(one, "__module__", None) != self._references for one in passes):
            raise UnknownReachError(f"the passes of {reference.op} are not in the module of references")
        found = self._sources.definitions("references", [one.__name__ for one in passes])
        plain = dataclasses.replace(reference, forward=dict, backward=None, c=reference.c if with_c else ())
        found |= Reach((repr(plain), *(one.__name__ for one in passes)), frozenset())
        for item in reference.c if with_c else ():
            found |= self._sources.file(item.file)
        return found

    def _footprint(self, reach: Callable[[], Reach], *what: str) -> Footprint | None:
        try:
            found = reach()
        except (UnknownReachError, RecursionError):
            return None
        stamps = {path: self._sources.stamps[path] for path in found.files}
        return Footprint(content_key(self._machine, *what, "", *found.texts), self._code | stamps)


def rows_of(run: Run, footprint: Footprint | None, earlier: Earlier) -> list[VerifyRow]:
    """Return the rows of a task: those that are kept, or else what comes of running it, which is kept if all passed.

    Rows that are kept say so by ``earlier``.
    """
    if footprint is None or earlier == "ignored":
        return run()
    known = _passed(VERIFIED.load(footprint.key)) if earlier == "taken" else None
    if known is not None:
        return [dataclasses.replace(row, earlier=True) for row in known]
    rows = run()
    if _passed(tuple(rows)) and footprint.is_current():
        VERIFIED.store(footprint.key, tuple(rows))
    elif VERIFIED.has(footprint.key):
        VERIFIED.store(footprint.key, None)  # it passed once and did not now
    return rows


def _passed(value: object) -> tuple[VerifyRow, ...] | None:
    """Return what was read from the shelf where it is rows that passed."""
    if isinstance(value, tuple) and value and all(isinstance(row, VerifyRow) and row.ok for row in value):
        return value
    return None
