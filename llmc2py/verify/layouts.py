"""Arrays that do not lie packed in memory, and a record of bytes that must not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The layouts that parameters are given as well.
PARAMETER_LAYOUTS = ("sliced", "misaligned")


def _transposed(xp: Any, array: Any) -> Any:
    return xp.ascontiguousarray(array.T).T


def _sliced(xp: Any, array: Any) -> Any:
    wide = xp.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _broadcast(xp: Any, array: Any) -> Any:
    return xp.broadcast_to(array[:1], array.shape)


def _misaligned(xp: Any, array: Any) -> Any:
    longer = xp.zeros(array.size + 1, array.dtype)
    longer[1:] = array.reshape(-1)
    return longer[1:].reshape(array.shape)


#: Functions of the array module and a packed array (of two axes at least, for ``broadcast`` with equal slices along
#: the first) that return the same values in another layout.
LAYOUTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    "broadcast": _broadcast,
    "misaligned": _misaligned,
}


def as_numpy(array: Any) -> NDArray[Any]:
    """Return an array of either backend as a NumPy array."""
    result: NDArray[Any] = array if isinstance(array, np.ndarray) else array.get()
    return result


def _bytes(array: Any) -> bytes:
    """Return the bytes of an array and, for a view, of all the memory that it is a view of."""
    root = array
    while isinstance(root.base, type(array)):
        root = root.base
    return as_numpy(root).tobytes()


class Snapshot:
    """The bytes of named arrays at one time."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)
        self._before = {name: _bytes(array) for name, array in arrays.items()}

    def changed(self) -> list[str]:
        """Return the names of the arrays whose bytes have changed since."""
        return [name for name, array in self._arrays.items() if _bytes(array) != self._before[name]]
