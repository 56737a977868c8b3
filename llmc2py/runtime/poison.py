"""New arrays that start as NaN, so that what a kernel reads or returns without writing it shows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from llmc2py.runtime.arrays import backend_named, place_of, pointer_of

_ALL_BITS = 0xFF

_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def poisoned_arrays() -> Iterator[None]:
    """Fill every new output and scratch array with NaN (integers: -1) while the context lasts, in all threads."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1


def poison(array: Any) -> Any:
    """Fill a new contiguous array with NaN within `poisoned_arrays`, and return it."""
    if _users and array.size:
        backend = backend_named(place_of(array, "array").backend)
        # In every format of floating point numbers, all bits set are a NaN.
        backend.memset(pointer_of(array), _ALL_BITS, array.nbytes, backend.current_stream())
    return array
