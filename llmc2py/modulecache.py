"""Generated modules that were made before: their texts and records, kept by all that they are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from llmc2py.caching import Shelf, content_key, program_key
from llmc2py.drift.record import BODIES, ModuleRecords, kernel_names, records_of
from llmc2py.emit.render import render_module
from llmc2py.forks import share
from llmc2py.ir.plans import ModulePlan, PackagePlan

MODULES = Shelf("modules", 128 << 20)
#: How many modules are worth a process.
_MODULES_EACH = 6
#: What a key of the module stands for, so that their names tell which of them the module has.
_NAMED = ("kernels", "launchers", "replaced")


@dataclass(frozen=True)
class MadeModule:
    """The files of a module by name, and what the lock records of its kernels and launchers."""

    files: dict[str, str]
    records: ModuleRecords


def made_modules(plan: PackagePlan) -> dict[str, MadeModule]:
    """Return what is made of each module, by its path; from the cache where the same was made before."""
    wanted = []
    for module in plan.modules:
        names = kernel_names(plan, module)
        wanted.append((module, names, _key(module, names)))
    new = [one for one in wanted if one[2] is not None and not MODULES.has(one[2])]
    # The longest first, so that all are done at about the same time.
    new.sort(key=lambda one: -len(one[0].launchers))
    if MODULES.is_writable():
        share(new, lambda one: _made(*one), _MODULES_EACH, BODIES.save)
    return {module.path: _made(module, names, key) for module, names, key in wanted}


def _made(module: ModulePlan, names: dict[str, str], key: str | None) -> MadeModule:
    known = MODULES.load(key) if key is not None else None
    if isinstance(known, MadeModule):
        return known
    made = MadeModule(render_module(module), records_of(module, names))
    if key is not None:
        MODULES.store(key, made)
    return made


def _key(module: ModulePlan, names: dict[str, str]) -> str | None:
    """Return the name of a module in the cache; None where it is not known what its launchers were made from."""
    if not module.key:
        return None
    values = {name: value for name, value in vars(module).items() if name not in _NAMED}
    values["kernels"] = [kernel.name for kernel in module.kernels]
    values["launchers"] = [plan.name for plan in module.launchers]
    values["replaced"] = [
        {**vars(one), "launcher": (one.launcher.name, str(one.launcher.span))} for one in module.replaced
    ]
    return content_key(program_key(), _spelled(values), _spelled(names))


def _spelled(value: object) -> str:
    """Return a text that equal values alone share, whatever order their sets happen to have."""
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"({','.join(map(_spelled, value))})"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_spelled(key)}:{_spelled(item)}' for key, item in value.items())}}}"
    if isinstance(value, frozenset):
        return f"<{','.join(sorted(map(_spelled, value)))}>"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}{_spelled(vars(value))}"
    raise TypeError(f"{type(value).__name__} has no spelling yet")
