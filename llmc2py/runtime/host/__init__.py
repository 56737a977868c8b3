"""The CPU backend: the kernels' own source, compiled as C++ by the system's compiler. Fulfils ``Backend``."""

from __future__ import annotations

import ctypes
import math
import threading
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import numpy_pointer
from llmc2py.runtime.backends import CompiledKernel, DeviceProperties
from llmc2py.runtime.guarded import active_guard
from llmc2py.runtime.host.checker import Report, checking, is_checking, register_buffers
from llmc2py.runtime.host.faults import CheckError, DivergentBarrierError, KernelAssertionError, KernelError
from llmc2py.runtime.host.kernel import PROPERTIES, HostKernel
from llmc2py.runtime.source import KernelRequest

__all__ = [
    "CheckError",
    "DivergentBarrierError",
    "HostKernel",
    "KernelAssertionError",
    "KernelError",
    "Report",
    "checking",
    "current_stream",
    "empty",
    "is_capturing",
    "is_checking",
    "kernel",
    "memcpy",
    "memset",
    "name",
    "properties",
    "register_buffers",
]

name = "cpu"

_ALIGNMENT = 256

_kernels: dict[tuple[str, ...], CompiledKernel] = {}
_kernels_lock = threading.Lock()


def kernel(request: KernelRequest, device: int) -> CompiledKernel:
    """Compile (or find in the cache) and load one kernel; thread-safe, compiles once.

    Raises CompileError with the compiler's first errors, ToolMissingError where no compiler is found.
    """
    key = (request.source.text, request.name, request.selector, request.precision, *request.parameters)
    found = _kernels.get(key)
    if found is None:
        # Built outside the lock: the cache lets one thread compile, and other kernels need not wait for it.
        built = HostKernel(request)
        with _kernels_lock:
            found = _kernels.setdefault(key, built)
    return found


def properties(device: int) -> DeviceProperties:
    """Return the properties of the one device that the CPU backend stands for."""
    return PROPERTIES


def current_stream() -> int:
    """Return 0: kernels run before their launch returns."""
    return 0


def is_capturing() -> bool:
    """Return False: there are no graphs on the CPU."""
    return False


def memset(pointer: int, value: int, nbytes: int, stream: int) -> None:
    """Set ``nbytes`` bytes at an address."""
    ctypes.memset(pointer, value, nbytes)


def memcpy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy ``nbytes`` bytes between two addresses."""
    ctypes.memmove(target, source, nbytes)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new contiguous NumPy array whose data is aligned to 256 bytes."""
    element = np.dtype(dtype)
    guard = active_guard()
    if guard is not None:
        return guard.empty(shape, element)
    storage = np.empty(math.prod(shape) * element.itemsize + _ALIGNMENT, np.uint8)
    return np.ndarray(shape, element, storage, -numpy_pointer(storage) % _ALIGNMENT)
