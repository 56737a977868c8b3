"""Arrays of the two backends: where they live, where their memory is, and whether a kernel can use them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.backends import Backend

#: The backends by name, filled on first use.
BACKENDS: dict[str, Backend] = {}

_MODULES = {"cpu": "llmc2py.runtime.host", "cuda": "llmc2py.runtime.cuda"}
_HINTS = {"builtins": "pass `numpy.asarray(x, dtype=...)`"}


class Place(NamedTuple):
    """A backend and the number of a device of it."""

    backend: str
    device: int

    def __str__(self) -> str:
        return "the CPU" if self.backend == "cpu" else f"{self.backend}:{self.device}"


def backend_named(name: str) -> Backend:
    """Return the backend ``cpu`` or ``cuda``; imported on first use."""
    try:
        return BACKENDS[name]
    except KeyError:
        module: Any = importlib.import_module(_MODULES[name])
        return BACKENDS.setdefault(name, module)


def cupy_array_type() -> type | None:
    """Return ``cupy.ndarray`` where the program has imported CuPy, else None: nobody can hold such an array then."""
    return getattr(sys.modules.get("cupy"), "ndarray", None)


def is_array(value: Any) -> bool:
    """Whether a value is an array of one of the backends."""
    kind = cupy_array_type()
    return isinstance(value, np.ndarray) or (kind is not None and isinstance(value, kind))


def place_of(array: Any, name: str, callee: str = "") -> Place:
    """Return where an array lives. Raises TypeError, naming ``name``, for what is no NumPy or CuPy array."""
    if isinstance(array, np.ndarray):
        return Place("cpu", 0)
    if is_array(array):
        return Place("cuda", array.data.device_id)
    kind = type(array)
    package = kind.__module__.partition(".")[0]
    hint = _HINTS.get(package, "convert it with `numpy.asarray` or `cupy.asarray`")
    full_name = kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"
    raise TypeError(
        f"{callee + ': ' if callee else ''}`{name}` is a {full_name}; "
        f"a NumPy array (runs on the CPU), a CuPy array (runs on CUDA), or what shares its memory by `__dlpack__` or "
        f"`__cuda_array_interface__` is taken: {hint}"
    )


def common_place(callee: str, arrays: Iterable[tuple[str, Any]]) -> Place | None:
    """Return where all these (name, array) live; None where there is none.

    Raises TypeError, naming two of them, where they live on two backends or devices.
    """
    first: tuple[str, Place] | None = None
    for name, array in arrays:
        place = place_of(array, name, callee)
        if first is None:
            first = name, place
        elif place != first[1]:
            raise TypeError(
                f"{callee}: `{first[0]}` is on {first[1]} and `{name}` is on {place}; "
                f"the arrays of a call live on one device: move one with `cupy.asarray` or `cupy.asnumpy`"
            )
    return first[1] if first else None


# CPython keeps an object's header first and NumPy the data pointer right behind it, in every ABI so far. Reading it
# there takes a fifth of the time of `array.ctypes.data`.
POINTER_OFFSET = object.__basicsize__
_read_address = ctypes.c_size_t.from_address


def _pointer_is_behind_the_header() -> bool:
    sample = np.empty(3, dtype=np.int8)[1:]
    return _read_address(id(sample) + POINTER_OFFSET).value == sample.ctypes.data


if _pointer_is_behind_the_header():

    def numpy_pointer(array: np.ndarray[Any, Any]) -> int:
        """Return the address of a NumPy array's first element."""
        return _read_address(id(array) + POINTER_OFFSET).value

else:

    def numpy_pointer(array: np.ndarray[Any, Any]) -> int:
        """Return the address of a NumPy array's first element."""
        return array.ctypes.data


def pointer_of(array: Any) -> int:
    """Return the address of an array's first element."""
    return numpy_pointer(array) if isinstance(array, np.ndarray) else int(array.data.ptr)


def array_module(array: Any) -> Any:
    """Return the module whose functions work on this array: ``numpy`` or ``cupy``."""
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


def has_several_devices() -> bool:
    """Whether there are several CUDA devices, so that another than an array's own could be the current one."""
    return "cupy" in sys.modules and _cuda_devices() > 1


@functools.cache
def _cuda_devices() -> int:
    try:
        return int(sys.modules["cupy"].cuda.runtime.getDeviceCount())
    except (RuntimeError, AttributeError):
        # CuPy without a driver, or still being imported: nobody holds an array on a device.
        return 0


def needs_scope(place: Place) -> bool:
    """Whether another device than ``place`` could be the current one."""
    return place.backend != "cpu" and has_several_devices()


def device_scope(place: Place) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which ``place`` is the current device; free where there is one device only."""
    if not needs_scope(place):
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = sys.modules["cupy"].cuda.Device(place.device)
    return scope


def packed_copy(array: Any, backend: Backend) -> Any:
    """Return a contiguous copy in memory that is aligned for 128-bit loads."""
    copy = backend.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def moved(array: Any, place: Place, dtype: np.dtype[Any]) -> Any:
    """Return an array with a place and dtype, aligned for 128-bit loads; the same one where it has them."""
    if array.dtype == dtype and place_of(array, "array") == place:
        return array
    if place.backend == "cuda":
        cupy: Any = importlib.import_module("cupy")
        with device_scope(place):
            return cupy.asarray(array.astype(dtype, copy=False))
    copy = backend_named("cpu").empty(array.shape, dtype)
    copy[...] = array if isinstance(array, np.ndarray) else array.get()
    return copy


def check_writable(array: Any, name: str, callee: str) -> None:
    """Raise ValueError for an array that cannot be written, or whose elements share memory (``broadcast_to``)."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{callee}: `{name}` is written, but the array is read-only; pass a copy")
    # NumPy gives arrays without elements any strides.
    if array.size and any(
        stride == 0 and length > 1 for stride, length in zip(array.strides, array.shape, strict=True)
    ):
        raise ValueError(f"{callee}: `{name}` is written, but its elements share memory (broadcast); pass a copy")


def check_dtype(array: Any, wanted: np.dtype[Any] | None, name: str, ctype: str, callee: str) -> None:
    """Raise TypeError unless the array has the dtype that the C type stands for (None: any)."""
    if wanted is not None and array.dtype != wanted:
        raise TypeError(
            f"{callee}: `{name}` is {array.dtype}, but {ctype} takes {wanted}; "
            f"convert it with `.astype({_spell(wanted)})`"
        )


def _spell(dtype: np.dtype[Any]) -> str:
    return f"ml_dtypes.{dtype.name}" if dtype.kind == "V" else f"numpy.{dtype.name}"
