"""Memory from elsewhere than CuPy's pool: for libraries that have an allocator of their own."""

from __future__ import annotations

import contextlib
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
