"""Run elementwise launchers that take whole blocks only on any number of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmc2py.runtime.arrays import array_module, common_place, device_scope
from llmc2py.runtime.interop import as_array, hand_back
from llmc2py.runtime.launcher import Launcher
from llmc2py.runtime.params import Param


def elementwise(launcher: Launcher, arrays: Sequence[Any], count: int, quantum: int, after: Sequence[Any] = ()) -> None:
    """Call ``launcher(*arrays, count, *after)``, also where the launcher takes multiples of ``quantum`` alone.

    The first whole quanta run in place; the rest runs on copies padded with zeros, and what is written is copied back.
    ``arrays`` have at least ``count`` elements each, of any shape; they are the launcher's first arguments.

    Raises what the launcher raises, and ValueError for an array that is too small.
    """
    tail = count % quantum
    if not tail:
        return launcher(*arrays, count, *after)
    params = launcher.params[: len(arrays)]
    given = arrays
    arrays = [
        as_array(array, param.name, launcher.name, written=param.is_written)
        for param, array in zip(params, arrays, strict=True)
    ]
    named = [(param.name, array) for param, array in zip(params, arrays, strict=True) if array is not None]
    place = common_place(launcher.name, named)
    for name, array in named:
        if array.size < count:
            raise ValueError(f"{launcher.name}: `{name}` has {array.size} elements, {count} are needed")
    if place is not None:
        with device_scope(place):
            _run_in_two(launcher, params, arrays, count, quantum, after)
    hand_back(given)


def _run_in_two(
    launcher: Launcher, params: Sequence[Param], arrays: Sequence[Any], count: int, quantum: int, after: Sequence[Any]
) -> None:
    tail = count % quantum
    head = count - tail
    flat: list[Any] = [None if array is None else array.reshape(-1) for array in arrays]
    if head:
        launcher(*(None if array is None else array[:head] for array in flat), head, *after)
    padded: list[Any] = [
        None if array is None else _padded(array[head:count], quantum, copied=param.intent != "out")
        for param, array in zip(params, flat, strict=True)
    ]
    launcher(*padded, quantum, *after)
    for param, array, whole, piece in zip(params, arrays, flat, padded, strict=True):
        if array is not None and param.is_written:
            whole[head:count] = piece[:tail]
            # reshape copies what is strided; an array that is in place has its elements already.
            if not array.flags.c_contiguous:
                array[...] = whole.reshape(array.shape)


def _padded(piece: Any, quantum: int, *, copied: bool) -> Any:
    padded = array_module(piece).zeros(quantum, dtype=piece.dtype)
    if copied:
        padded[: piece.size] = piece
    return padded
