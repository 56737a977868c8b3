"""What the recipes of generated functions are written in: checked inputs and new arrays beside them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import backend_named, place_of, pointer_of
from llmc2py.runtime.autograd import Context
from llmc2py.runtime.backends import Backend, DeviceProperties
from llmc2py.runtime.poison import poison

_FLOAT32 = np.dtype(np.float32)


def take(op: str, name: str, array: Any, dtypes: Collection[np.dtype[Any]]) -> Any:
    """Return an input as a contiguous array (a copy where it is strided).

    Raises TypeError for what is no array, or one of another dtype than the op takes.
    """
    if is_packed(array) and array.dtype in dtypes:
        return array
    place_of(array, name, op)
    if array.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{op}: `{name}` is {array.dtype}; {wanted} is taken (convert with .astype)")
    return contiguous(array)


def take_like(op: str, name: str, array: Any, shape: tuple[int, ...], like_name: str, like: Any) -> Any:
    """Return an input that must have a shape, and the place and dtype of another, as a contiguous array.

    Raises TypeError for another dtype, backend or device, ValueError for another shape.
    """
    place, like_place = place_of(array, name, op), place_of(like, like_name, op)
    if place != like_place:
        raise TypeError(f"{op}: `{name}` is on {place}, `{like_name}` on {like_place}; move one of them")
    if array.dtype != like.dtype:
        raise TypeError(f"{op}: `{name}` is {array.dtype}, `{like_name}` is {like.dtype}; convert one with .astype")
    if array.shape != shape:
        raise ValueError(
            f"{op}: `{name}` has shape {array.shape}; beside `{like_name}` of {like.shape} it needs {shape}"
        )
    return contiguous(array)


def rows(op: str, name: str, array: Any) -> tuple[int, int]:
    """Return the number of rows and their length, leading axes taken together. Raises ValueError for no axes."""
    if array.ndim == 0:
        raise ValueError(f"{op}: `{name}` has no axes; at least one is needed")
    width = array.shape[-1]
    return math.prod(array.shape[:-1]), width


def contiguous(array: Any) -> Any:
    """Return a contiguous array of the same values; the same one where it is contiguous."""
    return array if is_packed(array) else array.copy()


def is_packed(array: Any) -> bool:
    """Whether this is a NumPy or CuPy array whose elements lie one behind the other."""
    if array.__class__ is np.ndarray:
        return bool(array.flags.c_contiguous)
    # CuPy makes a new object for `flags`; the attribute behind it costs a tenth.
    return bool(getattr(array, "_c_contiguous", False))


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return a new array on the place of another."""
    return poison(backend_named("cpu" if like.__class__ is np.ndarray else "cuda").empty(shape, dtype))


def empty_like(array: Any) -> Any:
    """Return a new contiguous array of the same shape, dtype and place."""
    return empty(array.shape, array.dtype, array)


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return zeros on the place of another array."""
    result = empty(shape, dtype, like)
    backend = _backend_of(result)
    backend.memset(pointer_of(result), 0, result.nbytes, backend.current_stream())
    return result


def zeros_like(array: Any) -> Any:
    """Return zeros of the same shape, dtype and place."""
    return zeros(array.shape, array.dtype, array)


def copy(array: Any) -> Any:
    """Return a contiguous copy that a kernel may write to."""
    result = empty_like(array)
    if is_packed(array):
        backend = _backend_of(array)
        backend.memcpy(pointer_of(result), pointer_of(array), array.nbytes, backend.current_stream())
    else:
        result[...] = array
    return result


def as_float32(array: Any) -> Any:
    """Return the array in float32; the same one where it is."""
    return array if array.dtype == _FLOAT32 else array.astype(_FLOAT32)


def cast(array: Any, like: Any) -> Any:
    """Return the array with the dtype and shape of another; the same one where it has them."""
    result = array if array.dtype == like.dtype else array.astype(like.dtype)
    return result if result.shape == like.shape else result.reshape(like.shape)


def accumulator(ctx: Context, index: int, like: Any) -> Any:
    """Return what a kernel adds the gradient of input ``index`` to: the gradient so far, or zeros."""
    present = ctx.accumulator(index)
    return zeros_like(like) if present is None else present


def _backend_of(array: Any) -> Backend:
    return backend_named("cpu" if array.__class__ is np.ndarray else "cuda")


def device_of(array: Any) -> DeviceProperties:
    """Return the properties of the device that an array is on."""
    place = place_of(array, "array")
    return backend_named(place.backend).properties(place.device)
