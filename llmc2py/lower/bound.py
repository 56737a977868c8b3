"""Find what classes of the runtime are bound to among the launchers and kernels of a package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.ir.bound import BoundClass, BoundPlan, BoundUse
from llmc2py.ir.plans import ModulePlan

#: The path of a module, a Python name there, the names of the parameters, and the place in the source.
_Found = tuple[str, str, tuple[str, ...], SourceSpan]


def lower_bound(
    modules: Sequence[ModulePlan], classes: Iterable[BoundClass]
) -> tuple[tuple[BoundPlan, ...], list[Diagnostic]]:
    """Return the classes whose launchers and kernels are all there, and what is to be said of those that do not fit.

    A class that lacks one is passed over: what is not lowered is told as such.
    """
    plans: list[BoundPlan] = []
    diagnostics: list[Diagnostic] = []
    for one in classes:
        found = {use: item for use in one.uses if (item := _find(modules, use)) is not None}
        if len(found) < len(one.uses):
            continue
        problems = [_problem(one, use, item) for use, item in found.items() if item[2] != use.parameters]
        diagnostics += problems
        if not problems:
            symbols = {use.attribute: (path, symbol) for use, (path, symbol, _, _) in found.items()}
            sources = tuple(dict.fromkeys(use.source for use in one.uses))
            plans.append(BoundPlan(one.name, one.functions, symbols, sources))
    return tuple(plans), diagnostics


def _problem(one: BoundClass, use: BoundUse, found: _Found) -> Diagnostic:
    _, _, parameters, span = found
    taken, wanted = ", ".join(parameters), ", ".join(use.parameters)
    message = f"{use.name} takes ({taken}), not ({wanted}): optim.{one.name}, which calls it so, is left out"
    return Diagnostic(Severity.WARNING, span, message)


def _find(modules: Sequence[ModulePlan], use: BoundUse) -> _Found | None:
    for module in modules:
        for launcher in module.launchers:
            if (launcher.launcher.span.file, launcher.name) == (use.source, use.name):
                names = tuple(parameter.name for parameter in (*launcher.parameters, *launcher.asked))
                return module.path, launcher.name, names, launcher.launcher.span
        for kernel in module.kernels:
            if (kernel.span.file, kernel.name) == (use.source, use.name):
                names = tuple(parameter.name for parameter in kernel.parameters)
                return module.path, module.symbols[kernel.name], names, kernel.span
    return None
