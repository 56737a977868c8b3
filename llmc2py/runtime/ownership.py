"""Whether an array's memory is referred to by nobody else, so that it can be kept without a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from llmc2py.runtime.guarded import GuardedMemory


def _reference_counts(items: list[Any], index: int) -> tuple[int, int]:
    """Return the reference counts of an array in a list and of the object that owns its memory."""
    array = items[index]
    owner = array.base if isinstance(array, np.ndarray) else array.data.mem
    return sys.getrefcount(array), 0 if owner is None else sys.getrefcount(owner)


# What the counts are for an array that the list alone refers to depends on the interpreter, so it is found by trying.
_ALONE, _OWNER_ALONE = _reference_counts([np.empty(2)[:1]], 0)


def is_exclusive(items: list[Any], index: int) -> bool:
    """Whether ``items`` alone refers to the array ``items[index]`` and to its memory; when in doubt, False."""
    array = items[index]
    owner = array.base
    if not isinstance(array, np.ndarray):
        # Memory from outside CuPy's pool belongs to somebody; views of an array share the owner's.
        if owner is not None or type(array.data.mem).__name__ != "PooledMemory":
            return False
    elif owner is not None and (type(owner) is not np.ndarray or _belongs_elsewhere(owner.base)):
        return False
    del array, owner
    held, owner_held = _reference_counts(items, index)
    return held <= _ALONE and owner_held <= _OWNER_ALONE


def _belongs_elsewhere(memory: Any) -> bool:
    """Whether what stands behind a NumPy array may be somebody else's; guarded memory is of one array alone."""
    return memory is not None and not (type(memory) is memoryview and type(memory.obj) is GuardedMemory)
