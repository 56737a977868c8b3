"""Causal self-attention by cuDNN's flash attention, in the place of llm.c's kernels: on CUDA, in 16-bit precisions.

The library is driven through ``nvidia-cudnn-frontend``, an optional extra. Importing this module imports neither CUDA
nor cuDNN.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.allocation import lasting
from llmc2py.runtime.arrays import (
    Place,
    backend_named,
    check_dtype,
    check_writable,
    common_place,
    device_scope,
    packed_copy,
    pointer_of,
)
from llmc2py.runtime.cudnnlibrary import frontend_module
from llmc2py.runtime.dtypes import bfloat16, float16, float32
from llmc2py.runtime.errors import LaunchError, PrecisionError

__all__ = ["attention_backward", "attention_forward"]

#: Graphs kept per thread and device; the oldest goes first.
MAX_GRAPHS = 256

_OTHER_WAY = 'choose implementation="llmc"'
_LARGEST_HEAD, _HEAD_QUANTUM = 128, 8
_ALIGNMENT = 16
#: Part of the names of the frontend's own kernels. Some versions prefer them on some devices, where a compiler for them
#: is installed; they take a workspace in another form.
_FRONTENDS_OWN = "sdpa_"
_DATA_TYPES = {float16: "HALF", bfloat16: "BFLOAT16"}

# The numbers by which a graph's tensors are known.
_Q, _K, _V, _OUT, _STATS, _DOUT, _DQ, _DK, _DV = range(1, 10)


class Sizes(NamedTuple):
    """Batch, time, heads and the size of a head; ``dtype`` is that of all arrays but the statistics."""

    B: int
    T: int
    NH: int
    HS: int
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Elements of one position of the output."""
        return self.NH * self.HS

    @property
    def heads(self) -> list[int]:
        """The shape that cuDNN gives all tensors but the statistics: batch, head, time, element."""
        return [self.B, self.NH, self.T, self.HS]

    @property
    def packed_strides(self) -> list[int]:
        """Strides of queries, keys or values in (B, T, 3, NH, HS), in the order of `heads`."""
        return [3 * self.T * self.width, self.HS, 3 * self.width, 1]

    @property
    def output_strides(self) -> list[int]:
        """Strides of (B, T, NH, HS), in the order of `heads`."""
        return [self.T * self.width, self.HS, self.width, 1]


def attention_forward(out: Any, stats: Any, inp: Any, B: int, T: int, NH: int, HS: int) -> None:
    """Compute causal self-attention, scaled by 1 / sqrt(HS), on the caller's current stream.

    ``inp`` (B, T, 3, NH, HS) holds queries, keys and values, ``out`` (B, T, NH, HS) is written, both float16 or
    bfloat16; ``stats`` (B, NH, T) float32 is written with the logarithm of the sum of each row's exponentials. All are
    CuPy arrays; leading and trailing axes may be taken together. The first call with given sizes prepares a graph in
    the calling thread; after it, on the same thread, the function can be captured into a CUDA graph (but for T = 1).

    Raises TypeError (NumPy arrays, mixed places, dtype), PrecisionError (float32), ValueError (sizes, layout of what is
    written), ToolMissingError without cuDNN, LaunchError where cuDNN cannot do it on this device, and RuntimeError
    where memory or a graph would be made during a capture.
    """
    sizes, place = _checked("attention_forward", (B, T, NH, HS), {"out": out, "stats": stats}, {"inp": inp})
    if not out.size:
        return
    with device_scope(place):
        inp = _readable(inp)
        if T == 1:
            _refuse_capture("attention over one position allocates")
            return _forward_of_one(out, stats, inp, sizes)
        addresses = dict(zip((_Q, _K, _V), _thirds(inp, sizes), strict=True))
        addresses |= {_OUT: pointer_of(out), _STATS: pointer_of(stats)}
        _run(place.device, _forward_graph, sizes, addresses)


def attention_backward(dinp: Any, dout: Any, out: Any, stats: Any, inp: Any, B: int, T: int, NH: int, HS: int) -> None:
    """Compute the gradient of `attention_forward` on the caller's current stream; sums are not taken in a fixed order.

    ``dinp``, of the form of ``inp``, is overwritten with the gradient for it; ``dout`` has the form of ``out``. ``out``
    and ``stats`` are what the forward pass wrote. Raises as `attention_forward` does.
    """
    read = {"dout": dout, "out": out, "stats": stats, "inp": inp}
    sizes, place = _checked("attention_backward", (B, T, NH, HS), {"dinp": dinp}, read)
    if not out.size:
        return
    with device_scope(place):
        if T == 1:
            return _backward_of_one(dinp, dout, sizes)
        dout, out, stats, inp = (_readable(array) for array in (dout, out, stats, inp))
        addresses = dict(zip((_Q, _K, _V, _DQ, _DK, _DV), _thirds(inp, sizes) + _thirds(dinp, sizes), strict=True))
        addresses |= {_DOUT: pointer_of(dout), _OUT: pointer_of(out), _STATS: pointer_of(stats)}
        _run(place.device, _backward_graph, sizes, addresses)


# --- checks


def _checked(
    callee: str, numbers: tuple[int, int, int, int], written: dict[str, Any], read: dict[str, Any]
) -> tuple[Sizes, Place]:
    """Return sizes and place of a call; the dtype is that of ``inp``, which is among what is read."""
    place = common_place(callee, [*written.items(), *read.items()])
    if place is None or place.backend != "cuda":
        raise TypeError(
            f"{callee}: cuDNN runs on CUDA alone, and these arrays are on the CPU: move them to a CUDA device, or "
            f"{_OTHER_WAY}"
        )
    dtype = read["inp"].dtype
    if dtype not in _DATA_TYPES:
        raise PrecisionError(
            f"{callee}: cuDNN's attention takes float16 or bfloat16, and `inp` is {dtype}: convert it, or {_OTHER_WAY}"
        )
    sizes = Sizes(*numbers, dtype)
    if min(numbers) < 0:
        raise ValueError(f"{callee}: B, T, NH and HS are {', '.join(map(str, numbers))}; none may be negative")
    if sizes.HS % _HEAD_QUANTUM or not 0 < sizes.HS <= _LARGEST_HEAD:
        raise ValueError(
            f"{callee}: cuDNN's attention takes head sizes that are multiples of {_HEAD_QUANTUM} up to "
            f"{_LARGEST_HEAD}, not {sizes.HS}: {_OTHER_WAY}"
        )
    for name, array in (*written.items(), *read.items()):
        _check_form(callee, name, array, sizes)
    for name, array in written.items():
        check_writable(array, name, callee)
        if not _is_usable(array):
            raise ValueError(f"{callee}: `{name}` is written; it must be contiguous and aligned to {_ALIGNMENT} bytes")
    return sizes, place


def _check_form(callee: str, name: str, array: Any, sizes: Sizes) -> None:
    B, T, NH, HS, dtype = sizes
    shape: tuple[int, ...]
    if name == "stats":
        shape, wanted, ctype = (B, NH, T), float32, "float"
    else:
        shape = (B, T, 3, NH, HS) if name in ("inp", "dinp") else (B, T, NH, HS)
        wanted, ctype = dtype, "an array like `inp`"
    check_dtype(array, wanted, name, ctype, callee)
    if array.size != math.prod(shape):
        raise ValueError(f"{callee}: `{name}` has shape {array.shape}; the elements of {shape} are needed")


def _is_usable(array: Any) -> bool:
    return bool(array.flags.c_contiguous) and (not array.size or pointer_of(array) % _ALIGNMENT == 0)


def _readable(array: Any) -> Any:
    """Return the array, or a copy that cuDNN can read."""
    return array if _is_usable(array) else packed_copy(array, backend_named("cuda"))


def _thirds(array: Any, sizes: Sizes) -> tuple[int, int, int]:
    """Return the addresses of queries, keys and values in (B, T, 3, NH, HS)."""
    start, step = pointer_of(array), sizes.width * sizes.dtype.itemsize
    return start, start + step, start + 2 * step


def _refuse_capture(reason: str) -> None:
    if backend_named("cuda").is_capturing():
        raise RuntimeError(f"cuDNN: {reason}, and the current stream is captured into a CUDA graph: call it before")


# --- one position: the softmax of one score is 1, and cuDNN has no backward pass


def _forward_of_one(out: Any, stats: Any, inp: Any, sizes: Sizes) -> None:
    packed = inp.reshape(sizes.B, 3, sizes.NH, sizes.HS)
    out.reshape(sizes.B, sizes.NH, sizes.HS)[...] = packed[:, 2]
    scores = (packed[:, 0].astype(float32) * packed[:, 1].astype(float32)).sum(axis=-1)
    stats.reshape(sizes.B, sizes.NH)[...] = scores * float32.type(1 / math.sqrt(sizes.HS))


def _backward_of_one(dinp: Any, dout: Any, sizes: Sizes) -> None:
    backend = backend_named("cuda")
    backend.memset(pointer_of(dinp), 0, dinp.size * dinp.dtype.itemsize, backend.current_stream())
    dinp.reshape(sizes.B, 3, sizes.NH, sizes.HS)[:, 2] = dout.reshape(sizes.B, sizes.NH, sizes.HS)


# --- cuDNN


class _Context:
    """A handle of cuDNN on one device, and the graphs that were built with it; one thread uses it at a time."""

    def __init__(self, frontend: Any) -> None:
        self.frontend = frontend
        self.handle = frontend.create_handle()
        self.graphs: dict[tuple[Any, Sizes], tuple[Any, int]] = {}

    def graph(self, build: Callable[[Any, Any, Sizes], Any], sizes: Sizes) -> tuple[Any, int]:
        """Return a graph and the bytes of workspace that it needs; built on first use."""
        key = build, sizes
        if key not in self.graphs:
            _refuse_capture("a graph for these sizes would be built")
            graph = build(self.frontend, self.handle, sizes)
            self._finish(graph, sizes)
            if len(self.graphs) >= MAX_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = graph, int(graph.get_workspace_size())
        return self.graphs[key]

    def _finish(self, graph: Any, sizes: Sizes) -> None:
        modes = self.frontend.heur_mode
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.deselect_engines([_FRONTENDS_OWN])
            graph.check_support()
            graph.build_plans()
        except self.frontend.cudnnGraphNotSupportedError as error:
            raise LaunchError(
                f"cuDNN {self.frontend.backend_version_string()} has no attention for {sizes.dtype}, B={sizes.B}, "
                f"T={sizes.T}, NH={sizes.NH}, HS={sizes.HS} on this device ({_first_line(error)}): {_OTHER_WAY}"
            ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Lease:
    """What holds contexts, by device, for as long as a thread lives."""

    def __init__(self) -> None:
        self.contexts: dict[int, _Context] = {}


_threads = threading.local()
#: Contexts by device of threads that have ended: graphs take long to build, and destroying a handle waits for the GPU.
_free: dict[int, list[_Context]] = {}


def _context(device: int) -> _Context:
    """Return the calling thread's context for the current device, whose number is ``device``."""
    lease: _Lease | None = getattr(_threads, "lease", None)
    if lease is None:
        lease = _threads.lease = _Lease()
    if device not in lease.contexts:
        frontend, free = frontend_module(), _free.setdefault(device, [])
        try:
            context = free.pop()
        except IndexError:
            _refuse_capture("a handle would be made")
            context = _Context(frontend)
        lease.contexts[device] = context
        # At exit nothing is given back: CUDA may be gone by then.
        weakref.finalize(lease, free.append, context).atexit = False
    return lease.contexts[device]


def _run(device: int, build: Callable[[Any, Any, Sizes], Any], sizes: Sizes, addresses: dict[int, int]) -> None:
    """Run a graph on the caller's current stream. ``device`` is the current one."""
    stream = backend_named("cuda").current_stream()
    context = _context(device)
    graph, nbytes = context.graph(build, sizes)
    workspace = _workspace(device, stream, nbytes)
    context.frontend.set_stream(context.handle, stream)
    graph.execute(addresses, 0 if workspace is None else pointer_of(workspace), context.handle)


#: Workspaces of captured calls by device, stream and bytes. A CUDA graph uses them whenever it is replayed, and nobody
#: says when that ends, so they stay. Captures on one stream share them, as calls on one stream could.
_captured: dict[tuple[int, int, int], Any] = {}


def _workspace(device: int, stream: int, nbytes: int) -> Any:
    """Return memory for one call, from CuPy's pool: the pool gives it to others after the call, in stream order."""
    backend = backend_named("cuda")
    if not nbytes:
        return None
    if not backend.is_capturing():
        return backend.empty((nbytes,), np.dtype(np.uint8))
    key = device, stream, nbytes
    if key not in _captured:
        cupy = sys.modules["cupy"]
        _captured[key] = cupy.ndarray((nbytes,), np.uint8, lasting(cupy, nbytes))
    return _captured[key]


# --- graphs


def _new_graph(frontend: Any, handle: Any, sizes: Sizes) -> tuple[Any, Any]:
    """Return a graph and the data type of its tensors."""
    data_type, single = getattr(frontend.data_type, _DATA_TYPES[sizes.dtype]), frontend.data_type.FLOAT
    graph = frontend.pygraph(
        io_data_type=data_type, intermediate_data_type=single, compute_data_type=single, handle=handle
    )
    return graph, data_type


def _inputs(graph: Any, data_type: Any, strides: list[int], sizes: Sizes, **uids: int) -> dict[str, Any]:
    return {
        name: graph.tensor(name=name, dim=sizes.heads, stride=strides, data_type=data_type, uid=uid)
        for name, uid in uids.items()
    }


def _output(tensor: Any, uid: int, dim: list[int], stride: list[int], data_type: Any) -> None:
    tensor.set_output(True).set_uid(uid).set_dim(dim).set_stride(stride).set_data_type(data_type)


def _statistics(sizes: Sizes) -> tuple[list[int], list[int]]:
    """Return shape and strides of (B, NH, T) as cuDNN wants them."""
    return [sizes.B, sizes.NH, sizes.T, 1], [sizes.NH * sizes.T, sizes.T, 1, 1]


def _mask(frontend: Any, sizes: Sizes) -> dict[str, Any]:
    """Return the scale, and the mask that leaves to each position itself and those before it."""
    return {
        "attn_scale": 1 / math.sqrt(sizes.HS),
        "diagonal_alignment": frontend.diagonal_alignment.TOP_LEFT,
        "diagonal_band_right_bound": 0,
    }


def _forward_graph(frontend: Any, handle: Any, sizes: Sizes) -> Any:
    graph, data_type = _new_graph(frontend, handle, sizes)
    packed = _inputs(graph, data_type, sizes.packed_strides, sizes, q=_Q, k=_K, v=_V)
    out, stats = graph.sdpa(**packed, generate_stats=True, **_mask(frontend, sizes), name="attention")
    _output(out, _OUT, sizes.heads, sizes.output_strides, data_type)
    _output(stats, _STATS, *_statistics(sizes), frontend.data_type.FLOAT)
    return graph


def _backward_graph(frontend: Any, handle: Any, sizes: Sizes) -> Any:
    graph, data_type = _new_graph(frontend, handle, sizes)
    packed = _inputs(graph, data_type, sizes.packed_strides, sizes, q=_Q, k=_K, v=_V)
    outer = _inputs(graph, data_type, sizes.output_strides, sizes, o=_OUT, dO=_DOUT)
    dim, stride = _statistics(sizes)
    stats = graph.tensor(name="stats", dim=dim, stride=stride, data_type=frontend.data_type.FLOAT, uid=_STATS)
    gradients = graph.sdpa_backward(**packed, **outer, stats=stats, **_mask(frontend, sizes), name="attention_gradient")
    for tensor, uid in zip(gradients, (_DQ, _DK, _DV), strict=True):
        _output(tensor, uid, sizes.heads, sizes.packed_strides, data_type)
    return graph
