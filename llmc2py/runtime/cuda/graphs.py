"""CUDA graphs: what a function launches is captured once, and replayed for the cost of one launch."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from llmc2py.runtime.allocation import allocator
from llmc2py.runtime.arrays import Place, backend_named, common_place, cupy_array_type, device_scope, is_array, place_of
from llmc2py.runtime.autograd import Tensor
from llmc2py.runtime.interop import is_foreign

__all__ = ["Graph", "capture", "refuse_capture", "refuse_capture_of"]

T = TypeVar("T")

#: ``cudaErrorStreamCaptureUnsupported`` to ``cudaErrorStreamCaptureWrongThread``: what cannot be in a graph.
_CAPTURE_FAILURES = range(900, 909)
_NOT_REPEATABLE = (
    "capture: the function waits for the device, or copies to or from the host ({error}); a graph cannot repeat that: "
    "move it before or behind the captured function"
)

#: Streams of graphs that are gone, by device, each with a list of the stream that its graph was replayed on last. Some
#: libraries keep a workspace for each stream that they were called on, so that streams are used again.
_idle: dict[int, list[tuple[Any, list[Any]]]] = {}

#: Pools of graphs that are gone, with their devices, as long as arrays are in them. A pool of CuPy keeps what it has,
#: even when it is gone itself.
_retired: list[tuple[int, Any]] = []


class Graph(Generic[T]):
    """What a function launched, with the memory that it uses; made by `capture`.

    Attributes
    ----------
    outputs
        What the function returned. Its arrays hold nothing before the first `replay`, and are overwritten by each.
    device
        The number of the device.
    """

    def __init__(self, outputs: T, device: int, graph: Any, stream: Any, pool: Any, kept: tuple[Any, ...]) -> None:
        self.outputs = outputs
        self.device = device
        self._graph = graph
        self._kept = kept
        self._last: list[Any] = []
        # At exit nothing is given back: CUDA may be gone by then.
        weakref.finalize(self, _idle.setdefault(device, []).append, (stream, self._last)).atexit = False
        weakref.finalize(self, _retire, device, pool).atexit = False

    def replay(self) -> T:
        """Launch everything again on the caller's current stream, and return `outputs`; this does not wait for it.

        It reads the arrays that the function was captured with: write new values into them beforehand. One graph must
        not run on two streams at once, as both would write to the same memory.
        """
        cupy = importlib.import_module("cupy")
        with device_scope(Place("cuda", self.device)):
            stream = cupy.cuda.get_current_stream()
            self._graph.launch(stream)
        self._last[:] = [stream]
        return self.outputs


def capture(function: Callable[..., T], *args: Any) -> Graph[T]:
    """Call a function of CuPy arrays and capture what it launches into a CUDA graph.

    The function is called three times: twice to compile kernels and to make what libraries make at a first call, and
    once to capture. What it does on the host happens three times and never again: what it accumulates is accumulated
    twice before the first replay, and scalars and seeds are those of the third call. Its new arrays are memory of the
    graph alone. Indices are not checked when the graph is replayed.

    Parameters
    ----------
    function
        Takes ``args``, and may use other CuPy arrays and layers.
    args
        CuPy arrays or tensors of them, on one device, and other values; without arrays, the current device is used.

    Returns
    -------
    The graph. It keeps ``function``, ``args`` and all memory alive that it uses. When it is gone, its memory goes back
    to CuPy's default pool, but for what arrays are still in, which follows with the next graph that comes or goes.

    Raises TypeError for arrays on the CPU or of other libraries, among ``args`` or what the function returns, and for
    arrays on two devices; RuntimeError where the function waits for the device or copies to or from the host, for
    AdamW, and where the current stream is captured already; and what the function raises.
    """
    place = _place(args)
    refuse_capture("capture: begin another one when that has ended")
    cupy = importlib.import_module("cupy")
    with contextlib.nullcontext() if place is None else device_scope(place):
        device = int(cupy.cuda.runtime.getDevice())
        stream = _stream(cupy, device)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        _give_back()
        # On top of CuPy's own: what is given back waits there, and no call of CUDA is made for it.
        pool = cupy.cuda.MemoryPool(cupy.get_default_memory_pool().malloc)
        try:
            graph, outputs = _third_call(cupy, stream, pool, function, args)
            _check_outputs(outputs)
        except BaseException:
            _idle.setdefault(device, []).append((stream, []))
            _retire(device, pool)
            raise
    return Graph(outputs, device, graph, stream, pool, (function, args))


def refuse_capture(reason: str) -> None:
    """Raise RuntimeError, with the reason, while CuPy's current stream is captured into a CUDA graph."""
    if backend_named("cuda").is_capturing():
        raise RuntimeError(f"{reason}: the current stream is captured into a CUDA graph")


def refuse_capture_of(array: Any, reason: str) -> None:
    """Do the same where something is an array of CuPy; other work is in no graph."""
    kind = cupy_array_type()
    if kind is not None and isinstance(array, kind):
        refuse_capture(reason)


def _place(args: Sequence[Any]) -> Place | None:
    arrays = list(_arrays(args, "args"))
    for name, array in arrays:
        if isinstance(array, np.ndarray):
            raise TypeError(f"capture: `{name}` is a NumPy array; CUDA graphs are for CuPy arrays: `cupy.asarray`")
        if is_foreign(array):
            raise TypeError(
                f"capture: `{name}` is a {type(array).__module__}.{type(array).__qualname__}; pass a CuPy array on its "
                "memory (`cupy.asarray`), or capture with the library that it is of"
            )
    return common_place("capture", arrays)


def _check_outputs(outputs: Any) -> None:
    for name, array in _arrays(outputs, "outputs"):
        if isinstance(array, np.ndarray) or is_foreign(array):
            where = "is not one of CuPy" if is_foreign(array) else f"is on {place_of(array, name)}"
            raise TypeError(f"capture: `{name}`, which the function returns, {where}: no replay would change it")


def _arrays(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in a value, in tuples, lists and mappings too, with what to call them."""
    if isinstance(value, Tensor):
        yield name, value.data
    elif is_array(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _arrays(item, f"{name}[{index}]")
    elif is_foreign(value):
        yield name, value


def _stream(cupy: Any, device: int) -> Any:
    """Return a stream of the device, which is the current one, that no other graph has."""
    try:
        stream, last = _idle.get(device, []).pop()
    except IndexError:
        return cupy.cuda.Stream(non_blocking=True)
    for used in last:
        # The graph that had it before may still run.
        stream.wait_event(used.record())
    return stream


def _retire(device: int, pool: Any) -> None:
    """Give the memory of a graph that is gone back to CuPy's default pool, as far as no array is in it."""
    _retired.append((device, pool))
    _give_back()


def _give_back() -> None:
    """Give back what arrays of retired pools have left meanwhile.

    Graphs may be collected anywhere, here too: each pool is with one caller at a time.
    """
    in_use = []
    try:
        for _ in range(len(_retired)):
            try:
                device, pool = entry = _retired.pop(0)
            except IndexError:
                break  # others took some
            with device_scope(Place("cuda", device)):
                # An array that goes after this look leaves its memory for the next.
                if pool.used_bytes():
                    in_use.append(entry)
                pool.free_all_blocks()
    finally:
        _retired.extend(in_use)


def _third_call(cupy: Any, stream: Any, pool: Any, function: Callable[..., T], args: Sequence[Any]) -> tuple[Any, T]:
    """Return the graph of a third call of a function, and what that returned."""
    with stream:
        # What this call leaves behind, such as workspaces of libraries, is to outlive the graph. What it does not need
        # any more lies where no other stream can use it.
        function(*args)
        cupy.get_default_memory_pool().free_all_blocks(stream=stream)
        with allocator(pool.malloc):
            # The pool has to have the memory beforehand: getting it could free other memory, which waits.
            function(*args)
            stream.synchronize()
            return _captured(cupy, stream, function, args)


def _captured(cupy: Any, stream: Any, function: Callable[..., T], args: Sequence[Any]) -> tuple[Any, T]:
    """Call the function while ``stream``, the current one, is captured; return the graph and what it returned."""
    failure = cupy.cuda.runtime.CUDARuntimeError
    # CuPy's default is the relaxed mode, in which memory may be allocated.
    stream.begin_capture()
    try:
        outputs = function(*args)
    except BaseException as error:
        # The capture has to end in any case, and this says no more than the first error.
        with contextlib.suppress(failure):
            stream.end_capture()
        # CuPy refuses copies to the host itself, with an error of no class of its own.
        if getattr(error, "status", None) in _CAPTURE_FAILURES or "transfers are disallowed" in str(error):
            raise RuntimeError(_NOT_REPEATABLE.format(error=error)) from error
        raise
    try:
        return stream.end_capture(), outputs
    except failure as error:
        if error.status in _CAPTURE_FAILURES:
            raise RuntimeError(_NOT_REPEATABLE.format(error=error)) from error
        raise
