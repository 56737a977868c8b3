"""The optimiser of a package: classes of the runtime, bound to launchers and kernels of the source tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmc2py.ir.bound import BoundPlan

OPTIM_FILE = "optim.py"


def optim_values(bound: Sequence[BoundPlan]) -> dict[str, Any]:
    """Return what the template needs."""
    imports: dict[str, set[str]] = {}
    for one in bound:
        for path, symbol in one.symbols.values():
            imports.setdefault(path.replace("/", "."), set()).add(symbol)
    objects = [one for one in bound if one.functions]
    classes = [one for one in bound if not one.functions]
    return {
        "classes": [_values(one) for one in classes],
        "objects": [_values(one) | {"object": f"_{_snake(one.name)}"} for one in objects],
        "imports": {path: sorted(names) for path, names in sorted(imports.items())},
        "exports": sorted([*(one.name for one in classes), *(name for one in objects for name in one.functions)]),
        "sources": " and ".join(sorted({source for one in bound for source in one.sources})),
    }


def _values(one: BoundPlan) -> dict[str, Any]:
    return {
        "name": one.name,
        "functions": one.functions,
        "attributes": {attribute: symbol for attribute, (_, symbol) in one.symbols.items()},
        "sources": " and ".join(one.sources),
    }


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
