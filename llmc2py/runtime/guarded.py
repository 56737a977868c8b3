"""New arrays of the CPU with memory around them that cannot be touched: an access out of bounds ends the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.arrays import numpy_pointer

#: An index of 32 bits into an array of float32 stays in this distance. Address space costs nothing.
_FARTHEST = 8 << 30
_NEAREST = 1 << 20
_ALIGNMENT = 256
_PAGE = mmap.PAGESIZE
#: Windows has none of them, and no CPU backend.
_FLAGS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_PROT_NONE = 0
# A NaN in every format of floating point numbers, for whoever reads beside an array.
_BESIDE = b"\xff"


class GuardedMemory(mmap.mmap):
    """The memory of one array; it is given back with the array."""


class Guard:
    """The arrays that were made within `guarded_arrays`."""

    def __init__(self) -> None:
        self._sides: list[tuple[GuardedMemory, int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return a new array that ends where the memory does, but for its alignment to 256 bytes.

        Raises MemoryError where there is no address space.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        room = max(1, -(-nbytes // _PAGE)) * _PAGE
        memory, reach, storage = _mapped(room)
        start = (room - nbytes) // _ALIGNMENT * _ALIGNMENT
        for begin, end in ((reach, reach + start), (reach + start + nbytes, reach + room)):
            memory[begin:end] = _BESIDE * (end - begin)
            # Not the storage: whoever asks how many refer to an array's memory must not find the guard among them.
            self._sides.append((memory, begin, end))
        return np.ndarray(shape, dtype, storage, start)

    def is_damaged(self) -> bool:
        """Whether something was written right beside an array made since this was last asked."""
        sides, self._sides = self._sides, []
        return any(memory[begin:end] != _BESIDE * (end - begin) for memory, begin, end in sides)


_active: ContextVar[Guard | None] = ContextVar("llmc2py_guard", default=None)


@contextlib.contextmanager
def guarded_arrays() -> Iterator[Guard]:
    """Make every new output, copy and scratch array of this thread on the CPU a guarded one while the context lasts."""
    guard = Guard()
    token = _active.set(guard)
    try:
        yield guard
    finally:
        _active.reset(token)


def active_guard() -> Guard | None:
    """Return the guard of the `guarded_arrays` that this thread is in."""
    return _active.get()


def _mapped(room: int) -> tuple[GuardedMemory, int, NDArray[np.uint8]]:
    """Return memory, how much before and behind so many bytes of it cannot be touched, and these bytes."""
    reach = _FARTHEST
    while True:
        try:
            memory = GuardedMemory(-1, room + 2 * reach, _FLAGS)
        except OSError:
            if reach <= _NEAREST:
                raise MemoryError(f"no address space for an array of {room} bytes") from None
            reach //= 2
            continue
        storage = np.frombuffer(memory, np.uint8, room, reach)
        first = numpy_pointer(storage)
        for begin in (first - reach, first + room):
            if _mprotect()(begin, reach, _PROT_NONE) != 0:
                raise OSError(ctypes.get_errno(), "mprotect of the memory around an array")
        return memory, reach, storage


@functools.cache
def _mprotect() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    protect: Callable[[int, int, int], int] = function
    return protect
