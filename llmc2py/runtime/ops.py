"""What the recipes of generated functions are written in: checked inputs and new arrays beside them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from llmc2py.runtime import kernels
from llmc2py.runtime.arrays import array_module, backend_named, place_of, pointer_of
from llmc2py.runtime.autograd import Context
from llmc2py.runtime.backends import Backend, DeviceProperties
from llmc2py.runtime.dtypes import PRECISIONS, float32
from llmc2py.runtime.poison import poison

_CONVERTIBLE = frozenset(PRECISIONS.values())


def take(op: str, name: str, array: Any, dtypes: Collection[np.dtype[Any]]) -> Any:
    """Return an input as a contiguous array (a copy where it is strided).

    Raises TypeError for what is no array, or one of another dtype than the op takes.
    """
    if is_packed(array) and array.dtype in dtypes:
        return array
    place_of(array, name, op)
    if array.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{op}: `{name}` is {array.dtype}; {wanted} is taken (convert it)")
    return contiguous(array)


def take_like(op: str, name: str, array: Any, shape: tuple[int, ...], like_name: str, like: Any) -> Any:
    """Return an input that must have a shape, and the place and dtype of another, as a contiguous array.

    Raises TypeError for another dtype, backend or device, ValueError for another shape.
    """
    place, like_place = place_of(array, name, op), place_of(like, like_name, op)
    if place != like_place:
        raise TypeError(f"{op}: `{name}` is on {place}, `{like_name}` on {like_place}; move one of them")
    if array.dtype != like.dtype:
        raise TypeError(f"{op}: `{name}` is {array.dtype}, `{like_name}` is {like.dtype}; convert one of them")
    if array.shape != shape:
        raise ValueError(
            f"{op}: `{name}` has shape {array.shape}; beside `{like_name}` of {like.shape} it needs {shape}"
        )
    return contiguous(array)


def take_indices(op: str, name: str, array: Any, shape: tuple[int, ...], below: int, like_name: str, like: Any) -> Any:
    """Return an input of indices as a contiguous int32 array of a shape, on the place of another.

    Raises TypeError for what holds no integers or is elsewhere, ValueError for another shape, and IndexError, naming
    the first, for an index that is negative or not below ``below``. On CUDA that look waits for the device; it is left
    out while a graph is captured.
    """
    place, like_place = place_of(array, name, op), place_of(like, like_name, op)
    if place != like_place:
        raise TypeError(f"{op}: `{name}` is on {place}, `{like_name}` on {like_place}; move one of them")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{op}: `{name}` is {array.dtype}; integers are taken (convert it)")
    if array.shape != shape:
        raise ValueError(f"{op}: `{name}` has shape {array.shape}; {shape} is needed")
    if array.size and not _backend_of(array).is_capturing():
        # One value to wait for: negative ones are large where they are read without a sign.
        unsigned = array.view(f"u{array.dtype.itemsize}") if array.flags.c_contiguous else array.astype(np.uint64)
        if int(unsigned.max()) >= below:
            raise IndexError(_wrong_index(op, name, array, below))
    return contiguous(array if array.dtype == np.int32 else array.astype(np.int32))


def _wrong_index(op: str, name: str, array: Any, below: int) -> str:
    values = array if isinstance(array, np.ndarray) else array.get()
    place = tuple(int(axis[0]) for axis in np.nonzero((values < 0) | (values >= below)))
    return f"{op}: `{name}` has {int(values[place])} at {place}; it is to be at least 0 and below {below}"


def rows(op: str, name: str, array: Any, axes: int = 1) -> tuple[int, ...]:
    """Return the number of rows, leading axes taken together, and the lengths of the last ``axes`` axes.

    Raises ValueError for an array that has fewer.
    """
    if not hasattr(array, "ndim"):
        place_of(array, name, op)
    if array.ndim < axes:
        has, wanted = ("no axes" if array.ndim == 0 else f"shape {array.shape}"), ("one" if axes == 1 else str(axes))
        raise ValueError(f"{op}: `{name}` has {has}; at least {wanted} {'is' if axes == 1 else 'are'} needed")
    shape = array.shape
    return math.prod(shape[:-axes]), *shape[-axes:]


def length(op: str, name: str, array: Any, axis: int, axes: int) -> int:
    """Return the length of an axis of an array that has so many. Raises ValueError for one with more or fewer."""
    place_of(array, name, op)
    if array.ndim != axes:
        raise ValueError(f"{op}: `{name}` has shape {array.shape}; {axes} axes are needed")
    size: int = array.shape[axis]
    return size


def part(op: str, name: str, size: int, factor: int, letter: str) -> int:
    """Return the ``factor``th part of an axis. Raises ValueError where it cannot be divided."""
    if size % factor:
        raise ValueError(f"{op}: the last axis of `{name}` is {size} long; {factor} {letter} is needed")
    return size // factor


def require(op: str, condition: bool, text: str, /, **values: Any) -> None:
    """Raise ValueError, with the condition's text and the values in it, unless it holds."""
    if not condition:
        raise ValueError(f"{op} needs {text}, but {', '.join(f'{name} = {value!r}' for name, value in values.items())}")


def contiguous(array: Any) -> Any:
    """Return a contiguous array of the same values; the same one where it is contiguous."""
    return array if is_packed(array) else array.copy()


def is_packed(array: Any) -> bool:
    """Whether this is a NumPy or CuPy array whose elements lie one behind the other."""
    if isinstance(array, np.ndarray):
        return bool(array.flags.c_contiguous)
    # CuPy makes a new object for `flags`; the attribute behind it costs a tenth.
    return bool(getattr(array, "_c_contiguous", False))


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return a new array on the place of another."""
    return poison(backend_named("cpu" if isinstance(like, np.ndarray) else "cuda").empty(shape, dtype))


def empty_like(array: Any) -> Any:
    """Return a new contiguous array of the same shape, dtype and place."""
    return empty(array.shape, array.dtype, array)


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return zeros on the place of another array."""
    result = empty(shape, dtype, like)
    backend = _backend_of(result)
    backend.memset(pointer_of(result), 0, result.nbytes, backend.current_stream())
    return result


def ones(shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return ones on the place of another array."""
    result = empty(shape, dtype, like)
    result[...] = 1
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


def own(ctx: Context, gradient: Any) -> Any:
    """Return an incoming gradient for a kernel to write to: itself where nobody else has it, else a copy."""
    return gradient if any(gradient is one for one in ctx.owned_) else copy(gradient)


def put(buffer: Any, array: Any, shape: tuple[int, ...]) -> None:
    """Write an array to the beginning of a flat buffer, laid out as ``shape``: zeros where the array is shorter.

    Leading axes of the array are taken together, so that it has as many axes as ``shape``. Where one of the others is
    longer than in ``shape``, its end is left out.
    """
    view = buffer[: math.prod(shape)].reshape(shape)
    values = array.reshape(shape[0], *array.shape[1 - len(shape) :])
    corner = tuple(slice(min(sizes)) for sizes in zip(values.shape, shape, strict=True))
    if any(axis.stop < length for axis, length in zip(corner, shape, strict=True)):
        view[...] = 0
    view[corner] = values[corner]


def assign(target: Any, values: Any) -> None:
    """Write values to an array of as many elements, in its shape and dtype."""
    target[...] = values.reshape(target.shape)


def clear(array: Any, begin: int) -> None:
    """Set the elements of each row from a column on to zero."""
    if begin < array.shape[-1]:
        array[..., begin:] = 0


def fitted(array: Any, shape: tuple[int, ...]) -> Any:
    """Return a new array of a shape, with zeros where the array is shorter and without what is longer; see `put`."""
    result = empty((math.prod(shape),), array.dtype, array)
    put(result, array, shape)
    return result.reshape(shape)


def cropped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the beginning of each axis of an array in a shape whose leading axes its first one stands for."""
    if array.size == math.prod(shape):
        return array.reshape(shape)
    corner = (slice(None), *map(slice, shape[1 - array.ndim :]))
    return array[corner].reshape(shape)


def scale(array: Any, factor: Any) -> None:
    """Multiply an array by a number or by a 0-d array, in place."""
    if getattr(factor, "dtype", None) == float32 and is_packed(array) and is_packed(factor):
        kernels.scale_by(array, factor, array.size)
    else:
        array_module(array).multiply(array, factor, out=array, casting="unsafe")


def softmax_of(inp: Any) -> Any:
    """Return the softmax over the last axis, in float32 arithmetic: llm.c's own kernels take float32 alone."""
    out = empty_like(inp)
    kernels.softmax(out, inp, *rows("softmax_of", "inp", inp))
    return out


def softmax_gradient(out: Any, dout: Any) -> Any:
    """Return the gradient of what a softmax over the last axis was computed of, in float32 arithmetic.

    ``out`` and ``dout`` are arrays of one shape and dtype, which the result has too. llm.c has no kernel for it.
    """
    dinp = empty_like(out)
    kernels.softmax_gradient(dinp, out, dout, *rows("softmax_gradient", "out", out))
    return dinp


def crossentropy_gradient(logits: Any, losses: Any, targets: Any, dlosses: Any, share: float, V: int) -> Any:
    """Return the gradient of logits (..., P), of which the first V count, for the cross entropies of their rows.

    ``losses`` (...) are these cross entropies, ``targets`` (...) the indices, ``dlosses`` the incoming gradient, for
    each row or one for all, which is multiplied by ``share``. llm.c's kernels take the probabilities instead, or write
    over the logits.
    """
    dlogits = empty_like(logits)
    N, P = rows("crossentropy_gradient", "logits", logits)
    kernels.crossentropy_gradient(dlogits, logits, losses, targets, dlosses, share, N, V, P)
    return dlogits


def mend_losses(losses: Any, logits: Any, targets: Any, V: int) -> None:
    """Compute those cross entropies (...) anew whose probability is too small for its type, from logits (..., P).

    llm.c takes the logarithm of the probability, which is 0 from a difference of logits of about 103 on, and the loss
    infinite. The first V logits of a row count.
    """
    N, P = rows("mend_losses", "logits", logits)
    kernels.mend_losses(losses, logits, targets, N, V, P)


def writable(array: Any) -> Any:
    """Return the array itself, or a copy of one that is read-only: for a launcher that need not write what it could."""
    return array if not isinstance(array, np.ndarray) or array.flags.writeable else array.copy()


def as_float32(array: Any) -> Any:
    """Return the array in float32; the same one where it is."""
    return as_type(array, float32)


def as_type(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return the array in a dtype; the same one where it is."""
    if array.dtype == dtype:
        return array
    if isinstance(array, np.ndarray) or array.dtype not in _CONVERTIBLE or dtype not in _CONVERTIBLE:
        return array.astype(dtype)
    # Of bfloat16, CuPy's own conversion takes ten times as long.
    result = empty(array.shape, dtype, array)
    kernels.convert(result, array, array.size)
    return result


def cast(array: Any, like: Any) -> Any:
    """Return the array with the dtype and shape of another; the same one where it has them."""
    result = as_type(array, like.dtype)
    return result if result.shape == like.shape else result.reshape(like.shape)


def accumulator(ctx: Context, index: int, like: Any) -> Any:
    """Return what a kernel adds the gradient of input ``index`` to: the gradient so far, or zeros."""
    present = ctx.accumulator(index)
    return zeros_like(like) if present is None else present


def _backend_of(array: Any) -> Backend:
    return backend_named("cpu" if isinstance(array, np.ndarray) else "cuda")


def device_of(array: Any) -> DeviceProperties:
    """Return the properties of the device that an array is on."""
    place = place_of(array, "array")
    return backend_named(place.backend).properties(place.device)
