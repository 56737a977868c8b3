"""The launchers of one source file, lowered, and kept between runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmc2py.caching import Shelf, content_key, program_key
from llmc2py.forks import share
from llmc2py.ir.library import Launcher, Parameter, SourceFile
from llmc2py.ir.names import is_reserved
from llmc2py.ir.plans import LaunchPlan, NotLowered
from llmc2py.ir.types import FLOATING_TYPES, INTEGER_TYPES, VECTOR_TYPES
from llmc2py.lower.effects import LauncherEffects
from llmc2py.lower.launchers import lower_launcher
from llmc2py.lower.surroundings import Look, Surroundings, View

#: What pointers point to where arrays of any dtype are taken.
_UNTYPED = ("void", "x128", "f128")
LOWERED = Shelf("lowered", 64 << 20)
#: How many files are worth a process.
_FILES_EACH = 4
_Lowered = LaunchPlan | NotLowered


@dataclass(frozen=True)
class LoweredFile:
    """The launchers of a file: those with a plan, and those that are beyond lowering.

    ``key`` stands for the file and all that was looked at outside of it; it is "" where that is not known.
    """

    plans: tuple[LaunchPlan, ...]
    refused: tuple[NotLowered, ...]
    key: str = ""


def lower_files(files: Iterable[SourceFile], tree: Surroundings) -> Iterator[tuple[SourceFile, LoweredFile]]:
    """Yield each file with its launchers, lowered in several processes where many are new."""
    files = list(files)
    new = [file for file in files if file.key and file.launchers and not LOWERED.has(_place(file))]
    # The longest first, so that all are done at about the same time.
    new.sort(key=lambda file: -len(file.launchers))
    if LOWERED.is_writable():
        share(new, lambda file: lower_file(file, tree), _FILES_EACH)
    for file in files:
        yield file, lower_file(file, tree)


def _place(file: SourceFile) -> str:
    return content_key(program_key(), file.key)


def lower_file(file: SourceFile, tree: Surroundings) -> LoweredFile:
    """Lower the launchers of a file, or take what was made of them when all that it depends on was the same."""
    if not file.key:
        return _FileLowering(file, tree).lower()[0]
    place = _place(file)
    known = LOWERED.load(place)
    if isinstance(known, _Kept) and known.is_valid(file, tree):
        return known.attached(file)
    found, looks = _FileLowering(file, tree).lower()
    states = {look: tree.state(file, look) for look in sorted(looks)}
    outside = {look: state for look, state in states.items() if state is not None}
    if len(outside) < len(states):
        return found
    kept = _Kept.of(file, found, outside)
    if file.launchers:
        LOWERED.store(place, kept)
    return replace(found, key=kept.key)


@dataclass(frozen=True)
class _Kept:
    """What was made of a file's launchers, without the launchers themselves: in their place stand their numbers.

    ``looks`` is what was found outside of the file.
    """

    key: str
    looks: dict[Look, str]
    plans: tuple[dict[str, Any], ...]
    refused: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, file: SourceFile, found: LoweredFile, looks: dict[Look, str]) -> _Kept:
        numbers = {id(launcher): number for number, launcher in enumerate(file.launchers)}

        def detached(item: _Lowered) -> dict[str, Any]:
            return vars(item) | {"launcher": numbers[id(item.launcher)]}

        key = content_key(file.key, *(part for look, state in looks.items() for part in (*look, state)))
        return cls(key, looks, tuple(map(detached, found.plans)), tuple(map(detached, found.refused)))

    def is_valid(self, file: SourceFile, tree: Surroundings) -> bool:
        return all(tree.state(file, look) == state for look, state in self.looks.items())

    def attached(self, file: SourceFile) -> LoweredFile:
        def launcher(values: dict[str, Any]) -> dict[str, Any]:
            return values | {"launcher": file.launchers[values["launcher"]]}

        plans = tuple(LaunchPlan(**launcher(values)) for values in self.plans)
        return LoweredFile(plans, tuple(NotLowered(**launcher(values)) for values in self.refused), self.key)


class _FileLowering:
    def __init__(self, file: SourceFile, tree: Surroundings) -> None:
        self.file = file
        self.view = View(file, tree)
        self.effects = LauncherEffects(self.view.kernel, self.view.launcher)
        #: Each launcher is lowered once: those that others call tell what they ask for.
        self.known: dict[int, _Lowered | None] = {}

    def lower(self) -> tuple[LoweredFile, set[Look]]:
        counts = Counter(launcher.name for launcher in self.file.launchers)
        found = [self._lower_named(launcher, counts[launcher.name]) for launcher in self.file.launchers]
        plans = tuple(item for item in found if isinstance(item, LaunchPlan))
        refused = tuple(item for item in found if isinstance(item, NotLowered))
        return LoweredFile(plans, refused), self.view.looks

    def _lower_named(self, launcher: Launcher, versions: int) -> _Lowered:
        if versions > 1 and launcher.name.isidentifier():
            return NotLowered(launcher, launcher.span, "is overloaded: Python has one function a name")
        if is_reserved(launcher.name):
            reason = f"has the name {launcher.name}, which Python or the generated module needs"
            return NotLowered(launcher, launcher.span, reason)
        lowered = self._lower(launcher)
        if isinstance(lowered, NotLowered):
            return lowered
        if not launcher.name.isidentifier():
            return NotLowered(launcher, launcher.span, "has a name that Python cannot have")
        by_name = {one.name: one for one in self.effects.parameters(launcher)}
        return replace(lowered, parameters=tuple(_with_effects(one, by_name, launcher) for one in lowered.parameters))

    def _lower(self, launcher: Launcher) -> _Lowered:
        found = self.known.get(id(launcher))
        if found is None:
            found = lower_launcher(launcher, self.view.scope, self.view.symbols, self._asked_of)
            self.known[id(launcher)] = found
        return found

    def _asked_of(self, name: str) -> tuple[Parameter, ...]:
        versions = self.view.scope.functions.get(name, ())
        if len(versions) != 1:
            return ()
        key = id(versions[0])
        if key not in self.known:
            self.known[key] = None  # what calls itself asks for nothing more
            self._lower(versions[0])
        found = self.known[key]
        return found.asked if isinstance(found, LaunchPlan) else ()


def _with_effects(one: Parameter, effects: dict[str, Parameter], launcher: Launcher) -> Parameter:
    """Return a parameter of a plan with what the launcher does with it."""
    effect = effects[one.name]
    return replace(effect, type=one.type, nullable=effect.nullable or _is_object(one, launcher))


def _is_object(parameter: Parameter, launcher: Launcher) -> bool:
    """Whether a parameter points to what no array is: its members are asked for, and Python gives None for it."""
    known = {*INTEGER_TYPES, *FLOATING_TYPES, *VECTOR_TYPES, *_UNTYPED, *(one.name for one in launcher.template)}
    return parameter.type.is_pointer and parameter.type.base not in known
