"""Memory that is not of CuPy's current allocator: of a library that has an allocator of its own, or to stay."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Thread(threading.local):
    has_allocator = False


_thread = _Thread()


@contextlib.contextmanager
def allocator(allocate: Callable[[int], Any]) -> Iterator[None]:
    """Make the memory of new CuPy arrays in this thread, while the context lasts, that of ``allocate(nbytes)``.

    It returns a ``cupy.cuda.MemoryPointer`` to memory that work on the current stream may use, also while the stream is
    captured into a graph.
    """
    cupy = importlib.import_module("cupy")
    before = _thread.has_allocator
    _thread.has_allocator = True
    try:
        with cupy.cuda.using_allocator(allocate):
            yield
    finally:
        _thread.has_allocator = before


def has_allocator() -> bool:
    """Whether new arrays of this thread come from an allocator that was set with `allocator`."""
    return _thread.has_allocator


def lasting(cupy: Any, nbytes: int) -> Any:
    """Return a ``cupy.cuda.MemoryPointer`` to memory on the current device that is kept as long as the process lasts.

    It is never of an `allocator`, which it would outlive, and may be asked for while any stream is captured into a CUDA
    graph: what is captured can go on using it.
    """
    with _allocating_in_captures():
        return cupy.get_default_memory_pool().malloc(nbytes)


#: ``CU_STREAM_CAPTURE_MODE_RELAXED``: this thread may do what no graph records, such as to allocate.
_RELAXED = 2


@contextlib.contextmanager
def _allocating_in_captures() -> Iterator[None]:
    """Let this thread allocate, whatever mode (CuPy's relaxed, PyTorch's global) streams are captured in."""
    exchange, mode = _driver().cuThreadExchangeStreamCaptureMode, ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
