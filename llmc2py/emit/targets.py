"""The frameworks that a package can have layers for, beside its own on NumPy and CuPy arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmc2py.ir.plans import PackagePlan

#: What is always there; asking for it alone asks for no other.
BASE_TARGET = "cupy"


# Emitters are imported where they are used: what asks for the names of frameworks alone is to start fast.
def _torch(plan: PackagePlan) -> dict[str, str]:
    from llmc2py.emit.torch import emit_torch

    return emit_torch(plan)


def _tricycle(plan: PackagePlan) -> dict[str, str]:
    from llmc2py.emit.tricycle import emit_tricycle

    return emit_tricycle(plan)


#: For each framework the function that makes its files.
TARGETS: dict[str, Callable[[PackagePlan], dict[str, str]]] = {"torch": _torch, "tricycle": _tricycle}


def targets_in_lock(text: str) -> tuple[str, ...]:
    """Return the frameworks that a lock notes, of those that are known; none where the text is no lock."""
    try:
        found = json.loads(text)["options"]["targets"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(target for target in TARGETS if target in found) if isinstance(found, list) else ()
