"""Launch configurations: grid, block and shared memory in one form, and what a device has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmc2py.runtime.backends import DeviceProperties, Dim3
from llmc2py.runtime.errors import LaunchError

Dims = int | tuple[int, ...]

_MAX_BLOCK: Dim3 = (1024, 1024, 64)


def dim3(callee: str, what: str, value: int | Sequence[int]) -> Dim3:
    """Return a grid or block with all three sizes. Raises TypeError for what is not one to three integers."""
    dims = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(dims) <= 3 or not all(isinstance(d, (int, np.integer)) for d in dims):
        raise TypeError(f"{callee}: {what} is {value!r}; it is an integer or a tuple of one to three")
    x, y, z = (*(int(d) for d in dims), 1, 1)[:3]
    return x, y, z


def checked_configuration(callee: str, index: Any) -> tuple[Dims, Dims, int]:
    """Return ``[grid, block]`` or ``[grid, block, shared_bytes]`` with Python's own integers.

    Raises TypeError for anything else, truth values included.
    """
    if not isinstance(index, tuple) or len(index) not in (2, 3):
        raise TypeError(f"{callee}[{index!r}]: [grid, block] or [grid, block, shared_bytes] is taken")
    grid, block, shared = (*index, 0)[:3]
    if isinstance(shared, bool) or not isinstance(shared, (int, np.integer)):
        raise TypeError(f"{callee}: shared_bytes is {shared!r}; it is an integer")
    return _plain(callee, "grid", grid), _plain(callee, "block", block), int(shared)


def _plain(callee: str, what: str, value: Any) -> Dims:
    dims = value if isinstance(value, (tuple, list)) else (value,)
    # C++ has truth values where integers are taken; who writes one in Python means something else.
    if any(isinstance(d, bool) for d in dims):
        raise TypeError(f"{callee}: {what} is {value!r}; it is an integer or a tuple of one to three")
    sizes = dim3(callee, what, value)[: len(dims)]
    return sizes if isinstance(value, (tuple, list)) else sizes[0]


def is_plain(index: Any) -> bool:
    """Whether a key holds no numbers but Python's own integers: to a dict, 1.0 and True are 1 too."""
    for item in index:
        if item.__class__ is not int:
            if item.__class__ is not tuple:
                return False
            for size in item:
                if size.__class__ is not int:
                    return False
    return True


def check_limits(callee: str, device: DeviceProperties, grid: Dim3, block: Dim3, shared: int) -> None:
    """Raise LaunchError for a configuration that no kernel can have on a device."""
    if min(grid) < 0 or any(g > most for g, most in zip(grid, device.maxGridSize, strict=True)):
        raise LaunchError(f"{callee}: grid {grid} is outside 0 to {device.maxGridSize} of {device.name}")
    threads = block[0] * block[1] * block[2]
    if min(block) < 1 or any(b > most for b, most in zip(block, _MAX_BLOCK, strict=True)):
        raise LaunchError(f"{callee}: block {block} is outside (1, 1, 1) to {_MAX_BLOCK}")
    if threads > device.maxThreadsPerBlock:
        raise LaunchError(
            f"{callee}: block {block} has {threads} threads, {device.name} runs at most {device.maxThreadsPerBlock}"
        )
    if shared < 0:
        raise LaunchError(f"{callee}: {shared} bytes of shared memory are asked for")
