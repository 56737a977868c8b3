"""Which layers and checks of a package a change reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmc2py.drift.changes import Change, Meaning
from llmc2py.drift.snapshot import Snapshot
from llmc2py.ir.plans import CheckPlan, OpPlan, PackagePlan


def affected(changes: Iterable[Change], plan: PackagePlan, new: Snapshot) -> list[str]:
    """Return the layers, and ops without a layer, that have to be verified again after changes.

    A layer is reached by a change in its own module, in any that this imports, however far, and in the files of its
    references and variants. What is cosmetic reaches nothing.
    """
    real = [change for change in changes if change.meaning is not Meaning.COSMETIC]
    files = {file for change in real for file in change.files}
    own = {change.name for change in real if change.subject == "layer"}
    modules = {module for change in real if (module := _module(change, new)) is not None}
    imports = {
        module.path.replace("/", "."): [one.replace("/", ".") for one in module.imports] for module in plan.modules
    }
    found = [
        module.op.layer
        for module in plan.ops
        if module.op is not None
        and (
            module.op.layer in own
            or modules & _closure(module.path.replace("/", "."), imports)
            or files & _files(module.op)
        )
    ]
    return found + [check.name for check in plan.checks if files & _files(check)]


def _module(change: Change, new: Snapshot) -> str | None:
    """Return the module that has what changed."""
    section = {"kernel": new.kernels, "launcher": new.launchers}.get(change.subject, {})
    python = section.get(f"{change.file}:{change.name}", {}).get("python")
    return str(python).rpartition(".")[0] if python else None


def _files(op: OpPlan | CheckPlan) -> set[str]:
    return {one.file for one in op.c_references} | {one.file for one in op.variants}


def _closure(module: str, imports: Mapping[str, Iterable[str]]) -> set[str]:
    found = {module}
    pending = [module]
    while pending:
        for name in imports.get(pending.pop(), ()):
            if name not in found:
                found.add(name)
                pending.append(name)
    return found
