"""Which kernel and launcher goes into which generated module, and what the modules need of each other."""

from __future__ import annotations

import itertools
import keyword
import pathlib
import re
from collections import Counter, abc
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llmc2py.diagnostics import Diagnostic, Severity, SourceError, SourceSpan
from llmc2py.ir.bound import BoundClass
from llmc2py.ir.catalog import CatalogEntry, Replacement
from llmc2py.ir.library import Kernel, Launcher, Library, Parameter, SourceFile
from llmc2py.ir.names import OP_NAMES, is_reserved
from llmc2py.ir.plans import CheckPlan, LaunchPlan, ModulePlan, NotLowered, OpPlan, PackagePlan, ReplacedLauncher
from llmc2py.ir.types import FLOATING_TYPES, INTEGER_TYPES
from llmc2py.lower.bound import lower_bound
from llmc2py.lower.checks import lower_check
from llmc2py.lower.effects import LauncherEffects
from llmc2py.lower.launchers import STREAMS, lower_launcher
from llmc2py.lower.layers import lower_entry
from llmc2py.lower.recipes import Callable

_PRECISION_OF = {"float": "float32", "half": "float16", "bfloat16": "bfloat16"}
#: Modules that every package may have beside those of sources and ops.
_PACKAGE_FILES = frozenset({"__init__", "layers", "optim", "references"})
_TEMPLATE_KINDS = frozenset({"type", "bool", *INTEGER_TYPES})
#: What pointers point to where arrays of any dtype are taken.
_UNTYPED = ("void", "x128", "f128")
_VECTORS = tuple(
    f"{base}{size}"
    for base in (
        "char",
        "uchar",
        "short",
        "ushort",
        "int",
        "uint",
        "long",
        "ulong",
        "float",
        "double",
        "half",
        "bfloat16",
    )
    for size in (1, 2, 3, 4)
)
_Lowered = LaunchPlan | NotLowered


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
        self.library = _with_neighbours(library)
        self.files = {file.path: file for file in self.library.files}
        self.diagnostics: list[Diagnostic] = []
        self.entries = [entry for entry in entries if entry.layer and entry.source in self.files]
        self.checks = [entry for entry in entries if not entry.layer and entry.source in self.files]
        self.replacements = replacements
        self.replaced: dict[tuple[str, str], tuple[Replacement, ReplacedLauncher]] = {}
        self.kernels: dict[tuple[str, str], Kernel] = {}
        self.plans: dict[tuple[str, str], LaunchPlan] = {}
        self.not_lowered: list[NotLowered] = []
        self.symbols: dict[tuple[str, str], str] = {}
        self.homes: dict[tuple[str, str, str], str] = {}

    def lower(self) -> tuple[PackagePlan, list[Diagnostic]]:
        self._take_kernels()
        for file in self.library.files:
            self._lower_launchers(file)
        self._drop_callers()
        self._replace_launchers()
        ops = {op.name: op for entry in self.entries if (op := self._lower_entry(entry)) is not None}
        self._claim([entry for entry in self.entries if entry.name in ops])
        modules = [self._module(path, ops) for path in dict.fromkeys([*self.homes.values(), *ops])]
        references = {
            (file.path, reference.name): reference for file in self.library.files for reference in file.references
        }
        checks = tuple(check for entry in self.checks if (check := self._lower_check(entry)) is not None)
        in_order = tuple(sorted(modules, key=lambda one: one.path))
        return PackagePlan(in_order, tuple(self.not_lowered), references, checks), self.diagnostics

    # --- kernels and launchers of each file

    def _take_kernels(self) -> None:
        beside_ops = {place for entry in self.entries for place in (entry.source, *self._listed(entry).values())}
        for file in self.library.files:
            taken = {launcher.name for launcher in file.launchers}
            taken |= {entry.name for entry in self.entries if entry.source == file.path}
            for kernel in file.kernels:
                if kernel.slice is None:
                    continue
                reason = _uncallable(kernel)
                if reason:
                    message = f"kernel {kernel.name} cannot be called from Python and is left out: {reason}"
                    self.diagnostics.append(Diagnostic(Severity.WARNING, kernel.span, message))
                    continue
                self.kernels[file.path, kernel.name] = kernel
                # A kernel may share its name with a launcher or op; Python has one namespace for all.
                is_taken = kernel.name in taken or is_reserved(kernel.name)
                is_taken |= file.path in beside_ops and kernel.name in OP_NAMES
                self.symbols[file.path, kernel.name] = f"{kernel.name}_kernel" if is_taken else kernel.name

    def _lower_launchers(self, file: SourceFile) -> None:
        symbols = {
            name: self.symbols[kernel.span.file, name]
            for name, kernel in file.scope.kernels.items()
            if (kernel.span.file, name) in self.symbols
        }
        effects = LauncherEffects(
            lambda name: self._kernel_of(file, name), lambda name: next(iter(file.scope.functions.get(name, ())), None)
        )
        lower = self._lowering_in(file, symbols)
        names = [launcher.name for launcher in file.launchers]
        for launcher in file.launchers:
            if names.count(launcher.name) > 1:
                self.not_lowered.append(
                    NotLowered(launcher, launcher.span, "is overloaded: Python has one function a name")
                )
                continue
            if is_reserved(launcher.name):
                reason = f"has the name {launcher.name}, which Python or the generated module needs"
                self.not_lowered.append(NotLowered(launcher, launcher.span, reason))
                continue
            lowered = lower(launcher)
            if isinstance(lowered, NotLowered):
                self.not_lowered.append(lowered)
                continue
            by_name = {one.name: one for one in effects.parameters(launcher)}
            parameters = tuple(
                replace(
                    by_name[one.name], type=one.type, nullable=by_name[one.name].nullable or _is_object(one, launcher)
                )
                for one in lowered.parameters
            )
            self.plans[file.path, launcher.name] = replace(lowered, parameters=parameters)

    def _lowering_in(self, file: SourceFile, symbols: Mapping[str, str]) -> abc.Callable[[Launcher], _Lowered]:
        """Return what lowers the launchers of a file, once each: those that others call tell what they ask for."""
        known: dict[int, _Lowered | None] = {}

        def lower(launcher: Launcher) -> _Lowered:
            found = known.get(id(launcher))
            if found is None:
                found = known[id(launcher)] = lower_launcher(launcher, file.scope, symbols, asked_of)
            return found

        def asked_of(name: str) -> tuple[Parameter, ...]:
            versions = file.scope.functions.get(name, ())
            if len(versions) != 1:
                return ()
            key = id(versions[0])
            if key not in known:
                known[key] = None  # what calls itself asks for nothing more
                known[key] = lower_launcher(versions[0], file.scope, symbols, asked_of)
            found = known[key]
            return found.asked if isinstance(found, LaunchPlan) else ()

        return lower

    def _kernel_of(self, file: SourceFile, name: str) -> Kernel | None:
        seen = file.scope.kernels.get(name)
        return self.kernels.get((seen.span.file, name)) if seen is not None else None

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
        for launcher in file.scope.functions.get(name, ()):
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
            listed = self._listed(entry)
            place = listed.get(entry.name, ""), entry.name
            if place in self.plans or place in self.replaced or self.symbols.get(place) == entry.name:
                message = f"{entry.name} is a launcher of {place[0]} too: give the op another name"
                raise SourceError(SourceSpan(entry.file, 1), message)
            for name in (entry.name, *(name for name, file in listed.items() if (file, name) in self.plans)):
                if name in OP_NAMES or is_reserved(name):
                    message = f"{entry.name}: generated modules use the name {name} themselves: give it another"
                    raise SourceError(SourceSpan(entry.file, 1), message)
            callables = {name: self._callable(entry, file, name) for name, file in listed.items()}
            precisions = entry.precisions or self._precisions(entry)
            return lower_entry(entry, callables, precisions, self._origin(entry, listed))
        except SourceError as error:
            diagnostic = error.diagnostic
            message = f"{diagnostic.message}; the layer {entry.layer} is left out"
            self.diagnostics.append(Diagnostic(Severity.ERROR, diagnostic.span, message))
            return None

    def _lower_check(self, entry: CatalogEntry) -> CheckPlan | None:
        try:
            return lower_check(entry)
        except SourceError as error:
            diagnostic = error.diagnostic
            message = f"{diagnostic.message}; its launchers are not checked"
            self.diagnostics.append(Diagnostic(Severity.ERROR, diagnostic.span, message))
            return None

    def _listed(self, entry: CatalogEntry) -> dict[str, str]:
        """Return what an entry may use: the file of each launcher or kernel by name."""
        listed = dict.fromkeys((*entry.launchers, *entry.kernels), entry.source)
        for item in entry.uses:
            file, _, name = item.rpartition(":")
            listed[name] = file or entry.source
        return listed

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
        raise SourceError(SourceSpan(entry.file, 1), f"{entry.name}: {file} has no launcher or kernel {name}{why}")

    def _origin(self, entry: CatalogEntry, listed: Mapping[str, str]) -> str:
        """Return the place of the first launcher or kernel that an op uses."""
        spans = {place: plan.launcher.span for place, plan in self.plans.items()}
        spans = {place: kernel.span for place, kernel in self.kernels.items()} | spans
        return next((spans[file, name].origin for name, file in listed.items() if (file, name) in spans), entry.source)

    def _precisions(self, entry: CatalogEntry) -> tuple[str, ...]:
        """Return the precisions of an op: all that its own kernels can be compiled in, or the one of their types."""
        kernels = [
            kernel
            for name in (*entry.kernels, *(k for one in entry.launchers for k in self._launched(entry.source, one)))
            if (kernel := self._kernel_of(self.files[entry.source], name)) is not None
        ]
        plans = [plan for name, file in self._listed(entry).items() if (plan := self.plans.get((file, name)))]
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

    # --- homes

    def _claim(self, entries: list[CatalogEntry]) -> None:
        """Give everything a module: the op that lists it, the op whose launcher launches it, or its file's own."""
        for entry in entries:
            for name in entry.launchers:
                self._settle(entry.source, "launcher", name, entry.name)
            for name in entry.kernels:
                self._settle(entry.source, "kernel", name, entry.name)
        for entry in entries:
            for launcher in entry.launchers:
                for name in self._launched(entry.source, launcher):
                    self._settle(entry.source, "kernel", name, entry.name)
        homeless = {file for file, name in self.plans if (file, "launcher", name) not in self.homes}
        homeless |= {file for file, name in self.kernels if (file, "kernel", name) not in self.homes}
        homeless |= {file for file, name in self.replaced}
        paths = _module_paths(sorted(homeless), [entry.name for entry in entries])
        for file, name in self.plans:
            self._settle(file, "launcher", name, paths.get(file, ""))
        for file, name in self.kernels:
            self._settle(file, "kernel", name, paths.get(file, ""))
        for file, name in self.replaced:
            self.homes[file, "replaced", name] = paths[file]

    def _settle(self, file: str, kind: str, name: str, module: str) -> None:
        known = self.plans if kind == "launcher" else self.kernels
        if (file, name) in known:
            self.homes.setdefault((file, kind, name), module)

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
            (kernel.span.file, "kernel", name)
            for plan in launchers
            for name in plan.kernels
            if (kernel := self._kernel_of(file, name))
        ]
        needed += [
            (self._launcher_file(file, name) or "", "launcher", name) for plan in launchers for name in plan.calls
        ]
        for item, place in self._listed(entry).items() if entry else ():
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


def _with_neighbours(library: Library) -> Library:
    """Let files call launchers of headers that they do not include: who includes both brings them together.

    Only names that a single header defines are taken.
    """
    found: dict[str, list[Launcher]] = {}
    for file in library.files:
        for launcher in file.launchers if pathlib.PurePosixPath(file.path).suffix != ".cu" else ():
            found.setdefault(launcher.name, []).append(launcher)
    single = {name: tuple(launchers) for name, launchers in found.items() if len(launchers) == 1}
    return replace(
        library,
        files=tuple(
            replace(file, scope=replace(file.scope, functions=single | file.scope.functions)) for file in library.files
        ),
    )


def _is_launcher(refused: NotLowered, replacement: Replacement) -> bool:
    return refused.launcher.name == replacement.launcher and refused.launcher.span.file == replacement.source


def _place_and_name(replacement: Replacement, item: str) -> tuple[str, str]:
    file, _, name = item.rpartition(":")
    return file or replacement.source, name


def _module_paths(files: Iterable[str], ops: Iterable[str]) -> dict[str, str]:
    """Return the module of each source file: its own path; where something else has that name, with its suffix."""
    plain = {
        file: "/".join(_identifier(part) for part in pathlib.PurePosixPath(file).with_suffix("").parts)
        for file in files
    }
    shared = {path for path, count in Counter(plain.values()).items() if count > 1}
    taken = {*_PACKAGE_FILES, *ops, *(str(folder) for path in plain.values() for folder in _folders(path))}
    found: dict[str, str] = {}
    for file, path in plain.items():
        if path in taken | shared:
            path = f"{path}_{pathlib.PurePosixPath(file).suffix[1:]}"
        while path in taken:
            path += "_"
        taken.add(path)
        found[file] = path
    return found


def _folders(path: str) -> Iterable[pathlib.PurePosixPath]:
    return pathlib.PurePosixPath(path).parents


def _identifier(part: str) -> str:
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in part)
    return f"_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name


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


def _is_object(parameter: Parameter, launcher: Launcher) -> bool:
    """Whether a parameter points to what no array is: its members are asked for, and Python gives None for it."""
    known = {*INTEGER_TYPES, *FLOATING_TYPES, *_VECTORS, *_UNTYPED, *(one.name for one in launcher.template)}
    return parameter.type.is_pointer and parameter.type.base not in known


def _uncallable(kernel: Kernel) -> str:
    """Return why a kernel's parameters cannot be given from Python ("" where they can)."""
    types = {one.name for one in kernel.template if one.kind == "type"}
    for one in kernel.template:
        if one.kind not in _TEMPLATE_KINDS and (one.kind == "pack" or not one.kind.isidentifier()):
            return f"template parameter {one.name} is a {one.kind}"
    known = INTEGER_TYPES.keys() | FLOATING_TYPES | types
    values = {one.name for one in kernel.template if one.kind != "type"}
    for parameter in kernel.parameters:
        base = parameter.type.base
        if parameter.type.pointers > 1:
            return f"parameter {parameter.name} is a pointer to pointers"
        if parameter.type.tag in values:
            continue
        if not (base in known or (parameter.type.is_pointer and base in (*_VECTORS, "void"))):
            return f"parameter {parameter.name} has type {parameter.type}"
    return ""
