"""A whole source tree with its catalogue as the plan of a package: its modules, and what they need of each other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llmc2py.diagnostics import Diagnostic, Severity, SourceError, SourceSpan
from llmc2py.ir.bound import BoundClass
from llmc2py.ir.catalog import CatalogEntry, Replacement
from llmc2py.ir.library import Library, SourceFile
from llmc2py.ir.names import OP_NAMES, is_reserved
from llmc2py.ir.plans import CheckPlan, LaunchPlan, ModulePlan, NotLowered, OpPlan, PackagePlan, ReplacedLauncher
from llmc2py.lower.bound import lower_bound
from llmc2py.lower.checks import lower_check
from llmc2py.lower.entrynames import check_clashes, check_names, folders_of
from llmc2py.lower.entrytree import check_tree, unknown_sources
from llmc2py.lower.files import lower_files
from llmc2py.lower.homes import Home, find_homes
from llmc2py.lower.kernels import callable_kernels, kernel_symbols, listed
from llmc2py.lower.launchers import STREAMS
from llmc2py.lower.layers import lower_entry
from llmc2py.lower.recipes import Callable
from llmc2py.lower.surroundings import Surroundings

_PRECISION_OF = {"float": "float32", "half": "float16", "bfloat16": "bfloat16"}


def lower_library(
    library: Library,
    entries: Iterable[CatalogEntry],
    replacements: Iterable[Replacement] = (),
    bound: Iterable[BoundClass] = (),
) -> tuple[PackagePlan, list[Diagnostic]]:
    """Lower a whole source tree with a catalogue. What does not fit becomes a diagnostic and is left out."""
    plan, diagnostics = _PackageLowering(library, list(entries), list(replacements)).lower()
    plans, said = lower_bound(plan.modules, bound)
    return replace(plan, bound=plans), [*diagnostics, *said]


class _PackageLowering:
    def __init__(self, library: Library, entries: list[CatalogEntry], replacements: list[Replacement]) -> None:
        self.library = library
        self.files = {file.path: file for file in library.files}
        self.folders = folders_of(self.files)
        self.entries = [entry for entry in entries if entry.layer and entry.source in self.files]
        self.checks = [entry for entry in entries if not entry.layer and entry.source in self.files]
        self.replacements = replacements
        self.replaced: dict[tuple[str, str], tuple[Replacement, ReplacedLauncher]] = {}
        self.kernels, self.diagnostics = callable_kernels(library.files)
        for entry, error in unknown_sources(library, entries):
            self._leave_out(entry, error)
        self.symbols = kernel_symbols(self.files, self.kernels, self.entries)
        self.tree = Surroundings(library.files, self.kernels, self.symbols)
        self.plans: dict[tuple[str, str], LaunchPlan] = {}
        self.not_lowered: list[NotLowered] = []
        self.keys: dict[str, str] = {}
        self.homes: dict[Home, str] = {}

    def lower(self) -> tuple[PackagePlan, list[Diagnostic]]:
        for file, lowered in lower_files(self.library.files, self.tree):
            self.plans |= {(file.path, plan.name): plan for plan in lowered.plans}
            self.not_lowered += lowered.refused
            self.keys[file.path] = lowered.key
        self._drop_callers()
        self._replace_launchers()
        ops = {op.name: op for entry in self.entries if (op := self._lower_entry(entry)) is not None}
        entries = [entry for entry in self.entries if entry.name in ops]
        for entry, error in check_clashes(entries):
            self._leave_out(entry, error)
            del ops[entry.name]
            entries.remove(entry)
        self.homes = find_homes(entries, self.plans, self.kernels, self.replaced)
        modules = [self._module(path, ops) for path in dict.fromkeys([*self.homes.values(), *ops])]
        references = {
            (file.path, reference.name): reference for file in self.library.files for reference in file.references
        }
        checks = tuple(check for entry in self.checks if (check := self._lower_check(entry)) is not None)
        in_order = tuple(sorted(modules, key=lambda one: one.path))
        return PackagePlan(in_order, tuple(self.not_lowered), references, checks), self.diagnostics

    # --- launchers

    def _drop_callers(self) -> None:
        """A launcher whose callee was not lowered cannot be lowered either."""
        changed = True
        while changed:
            changed = False
            for (path, name), plan in list(self.plans.items()):
                file = self.files[path]
                missing = next((call for call in plan.calls if self._launcher_file(file, call) is None), None)
                if missing is not None:
                    del self.plans[path, name]
                    self.not_lowered.append(
                        NotLowered(plan.launcher, plan.launcher.span, f"calls {missing}, which is not lowered")
                    )
                    changed = True

    def _launcher_file(self, file: SourceFile, name: str) -> str | None:
        for launcher in self.tree.functions(file, name):
            if (launcher.span.file, name) in self.plans:
                return launcher.span.file
        return None

    def _replace_launchers(self) -> None:
        """Put functions of the runtime in the place of launchers that could not be lowered."""
        for one in self.replacements:
            refused = next((item for item in self.not_lowered if _is_launcher(item, one)), None)
            symbols = [self._symbol_of(one, item) for item in one.uses]
            if refused is None or None in symbols:
                continue
            self.not_lowered.remove(refused)
            found = ReplacedLauncher(
                refused.launcher, one.function, tuple(name for name in symbols if name is not None), refused.reason
            )
            self.replaced[one.source, one.launcher] = one, found

    def _symbol_of(self, replacement: Replacement, item: str) -> str | None:
        file, name = _place_and_name(replacement, item)
        return self.symbols.get((file, name)) or (name if (file, name) in self.plans else None)

    # --- ops

    def _lower_entry(self, entry: CatalogEntry) -> OpPlan | None:
        try:
            places = listed(entry)
            place = places.get(entry.name, ""), entry.name
            if place in self.plans or place in self.replaced or self.symbols.get(place) == entry.name:
                message = f"{entry.name} is a launcher of {place[0]} too: give the op another name"
                raise SourceError(entry.places.at("name"), message)
            launchers = {name for name, file in places.items() if (file, name) in self.plans}
            for name in launchers:
                if name in OP_NAMES or is_reserved(name):
                    message = f"{entry.name}: generated modules use the name {name} themselves, so not a launcher's"
                    raise SourceError(self._place_of(entry, name), message)
            check_names(entry, launchers, self.folders)
            callables = {name: self._callable(entry, file, name) for name, file in places.items()}
            precisions = entry.precisions or self._precisions(entry)
            op = lower_entry(entry, callables, precisions, self._origin(entry, places))
            self.diagnostics += check_tree(entry, self.library)
            return op
        except SourceError as error:
            self._leave_out(entry, error)
            return None

    def _leave_out(self, entry: CatalogEntry, error: SourceError) -> None:
        what = f"the layer {entry.layer} is left out" if entry.layer else "its launchers are not checked"
        message = f"{error.diagnostic.message}; {what}"
        self.diagnostics.append(Diagnostic(Severity.ERROR, error.diagnostic.span, message))

    def _lower_check(self, entry: CatalogEntry) -> CheckPlan | None:
        try:
            check = lower_check(entry)
            self.diagnostics += check_tree(entry, self.library)
            return check
        except SourceError as error:
            self._leave_out(entry, error)
            return None

    def _callable(self, entry: CatalogEntry, file: str, name: str) -> Callable:
        plan, kernel = self.plans.get((file, name)), self.kernels.get((file, name))
        if plan is not None and name not in entry.kernels:
            return Callable(name, False, plan.parameters, plan.quanta)
        if kernel is not None:
            return Callable(self.symbols[file, name], True, kernel.parameters, {})
        if (file, name) in self.replaced:
            launcher = self.replaced[file, name][1].launcher
            return Callable(name, False, tuple(one for one in launcher.parameters if one.type.base not in STREAMS), {})
        reason = next(
            (one for one in self.not_lowered if one.launcher.name == name and one.launcher.span.file == file), None
        )
        why = f" ({reason.span}: {reason.reason})" if reason else ""
        raise SourceError(self._place_of(entry, name), f"{entry.name}: {file} has no launcher or kernel {name}{why}")

    @staticmethod
    def _place_of(entry: CatalogEntry, name: str) -> SourceSpan:
        """Return where an entry lists a launcher or kernel."""
        lists = {"launchers": entry.launchers, "kernels": entry.kernels, "uses": entry.uses}
        return next(
            entry.places.at(key, index)
            for key, items in lists.items()
            for index, item in enumerate(items)
            if item.rpartition(":")[2] == name
        )

    def _origin(self, entry: CatalogEntry, places: Mapping[str, str]) -> str:
        """Return the place of the first launcher or kernel that an op uses."""
        spans = {place: plan.launcher.span for place, plan in self.plans.items()}
        spans = {place: kernel.span for place, kernel in self.kernels.items()} | spans
        return next((spans[file, name].origin for name, file in places.items() if (file, name) in spans), entry.source)

    def _precisions(self, entry: CatalogEntry) -> tuple[str, ...]:
        """Return the precisions of an op: all that its own kernels can be compiled in, or the one of their types."""
        kernels = [
            kernel
            for name in (*entry.kernels, *(k for one in entry.launchers for k in self._launched(entry.source, one)))
            if (kernel := self.tree.kernel(self.files[entry.source], name)) is not None
        ]
        plans = [plan for name, file in listed(entry).items() if (plan := self.plans.get((file, name)))]
        lists = [*(kernel.parameters for kernel in kernels), *(plan.parameters for plan in plans)]
        pointers = [one.type.base for one in itertools.chain(*lists) if one.type.is_pointer]
        if "floatX" in pointers:
            return tuple(
                name for name in ("float32", "float16", "bfloat16") if all(name in one.precisions for one in kernels)
            )
        fixed = [_PRECISION_OF[base] for base in pointers if base in _PRECISION_OF]
        return tuple(dict.fromkeys(fixed[:1])) or ("float32",)

    def _launched(self, file: str, name: str) -> tuple[str, ...]:
        plan = self.plans.get((file, name))
        return plan.kernels if plan is not None else ()

    def _module(self, path: str, ops: Mapping[str, OpPlan]) -> ModulePlan:
        own = [key for key, home in self.homes.items() if home == path]
        op = ops.get(path)
        source = own[0][0] if own else ops[path].source
        file = self.files[source]
        kernels = [kernel for kernel in file.kernels if (source, "kernel", kernel.name) in own]
        launchers = [self.plans[source, one.name] for one in file.launchers if (source, "launcher", one.name) in own]
        entry = next((one for one in self.entries if op is not None and one.name == path), None)
        return ModulePlan(
            path,
            source,
            tuple(kernels),
            tuple(_callees_first(launchers)),
            {kernel.name: self.symbols[source, kernel.name] for kernel in kernels},
            self._extents(source, launchers),
            self._imports(path, file, launchers, entry),
            op,
            tuple(one for (place, name), (_, one) in self.replaced.items() if (place, "replaced", name) in own),
            frozenset(name for one in self.entries if one.source == source for name in one.wide),
            self.keys[source],
        )

    def _extents(self, source: str, launchers: list[LaunchPlan]) -> dict[str, dict[str, str]]:
        """Return how many elements the arrays of each launcher have, as any entry says it of the launcher or file."""
        found: dict[str, dict[str, str]] = {}
        for plan in launchers:
            names = {one.name for one in plan.parameters}
            known = names | {"plan"}
            for entry in (*self.entries, *self.checks):
                told = entry.extents.get(source, {})
                told = told | (entry.extents.get(plan.name, {}) if entry.source == source else {})
                for array, alternatives in told.items():
                    fitting = [one for one in alternatives if set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", one)) <= known]
                    if array in names and fitting:
                        found.setdefault(plan.name, {})[array] = fitting[0]
        return found

    def _imports(
        self, path: str, file: SourceFile, launchers: list[LaunchPlan], entry: CatalogEntry | None
    ) -> dict[str, tuple[str, ...]]:
        wanted: dict[str, set[str]] = {}
        needed = [
            (kernel.span.file, "kernel", kernel.name)
            for plan in launchers
            for name in plan.kernels
            if (kernel := self.tree.kernel(file, name))
        ]
        needed += [
            (self._launcher_file(file, name) or "", "launcher", name) for plan in launchers for name in plan.calls
        ]
        for item, place in listed(entry).items() if entry else ():
            kind = "launcher" if (place, item) in self.plans and not (entry and item in entry.kernels) else "kernel"
            needed.append((place, "replaced" if (place, item) in self.replaced else kind, item))
        for replacement, found in self.replaced.values():
            if self.homes.get((found.launcher.span.file, "replaced", found.launcher.name)) == path:
                places = [_place_and_name(replacement, item) for item in replacement.uses]
                needed += [
                    (place, "kernel" if (place, item) in self.kernels else "launcher", item) for place, item in places
                ]
        for source, kind, name in needed:
            home = self.homes[source, kind, name]
            if home != path:
                wanted.setdefault(home, set()).add(self.symbols[source, name] if kind == "kernel" else name)
        return {home: tuple(sorted(names)) for home, names in sorted(wanted.items())}


def _is_launcher(refused: NotLowered, replacement: Replacement) -> bool:
    return refused.launcher.name == replacement.launcher and refused.launcher.span.file == replacement.source


def _place_and_name(replacement: Replacement, item: str) -> tuple[str, str]:
    file, _, name = item.rpartition(":")
    return file or replacement.source, name


def _callees_first(launchers: list[LaunchPlan]) -> list[LaunchPlan]:
    """Order launchers so that each stands after those that it calls, the source's order otherwise."""
    by_name = {plan.name: plan for plan in launchers}
    ordered: dict[str, LaunchPlan] = {}

    def visit(plan: LaunchPlan, above: frozenset[str]) -> None:
        for name in plan.calls:
            if name in by_name and name not in above:
                visit(by_name[name], above | {plan.name})
        ordered.setdefault(plan.name, plan)

    for plan in launchers:
        visit(plan, frozenset())
    return list(ordered.values())
