"""Arrays of other libraries as NumPy and CuPy arrays on the same memory: DLPack and the CUDA Array Interface.

Subclasses of NumPy's array are taken here too, so that what runs behind it has to know base arrays alone.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.dtypes import bfloat16
from llmc2py.runtime.errors import ToolMissingError

#: Device types of DLPack that NumPy can look at (CPU, pinned) and that CuPy can (CUDA, managed).
_CPU_DEVICES = frozenset({1, 3})
_CUDA_DEVICES = frozenset({2, 13})
#: The newest version that is asked for; what it says of read-only arrays and of copies is needed here.
_DLPACK_VERSION = (1, 1)
_READ_ONLY, _COPIED = 1, 2
_BFLOAT16 = 4, 16, 1
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
#: Libraries whose arrays never change, though they do not say so where they share them.
_IMMUTABLE = frozenset({"jax", "jaxlib"})
#: The legacy default stream, as DLPack and CUDA name it.
_LEGACY_STREAM = 1


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Memory(NamedTuple):
    """Memory of another library: where it is, what is in it, and the objects that keep it alive."""

    pointer: int
    device: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    is_read_only: bool
    owner: Any


class Lender:
    """What holds an array of NumPy or CuPy and lends it: a tensor, which is defined above this module."""

    __slots__ = ()

    def lent(self) -> Any:
        """Return the array. Raises TypeError where it is not to be used without the object."""
        raise NotImplementedError


#: Whether objects of a type share memory; None: each says for itself.
_foreign: dict[type, bool | None] = {}


def is_foreign(value: Any) -> bool:
    """Whether a value is no NumPy or CuPy array itself but shares its memory as one: see `as_array`."""
    kind = type(value)
    try:
        found = _foreign[kind]
    except KeyError:
        found = _foreign[kind] = _is_foreign_type(kind)
    return "__cuda_array_interface__" in value.__dict__ if found is None else found


def _is_foreign_type(kind: type) -> bool | None:
    if issubclass(kind, np.ndarray):
        return kind is not np.ndarray
    if issubclass(kind, _own_types()):
        return False
    if hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__"):
        return True
    # Some wrappers have the interface as an attribute of each object.
    return None if kind.__dictoffset__ else False


def _own_types() -> tuple[type, ...]:
    kind = getattr(sys.modules.get("cupy"), "ndarray", None)
    return (np.generic,) if kind is None else (np.generic, kind)


def as_array(value: Any, name: str, callee: str = "", *, written: bool = False) -> Any:
    """Return a NumPy or CuPy array on the memory of an array of another library; others are returned as they are.

    What the owner has yet to do on its stream comes before what is done on CuPy's current stream. Of an object of a
    subclass of NumPy's array (``memmap``, ``matrix``, ``recarray``) it is a view.

    Raises TypeError, naming ``name``, for memory that cannot be shared and for masked arrays; ValueError where the
    array is ``written`` but is read-only or a copy; ToolMissingError for CUDA memory where CuPy cannot be used.
    """
    if not is_foreign(value):
        return value
    what = f"{callee + ': ' if callee else ''}`{name}`"
    if isinstance(value, Lender):
        try:
            return value.lent()
        except TypeError as error:
            raise TypeError(f"{what} {error}") from None
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{what} is a masked array, and kernels know no masks; pass `x.filled(value)` or `x.data`")
        return value.view(np.ndarray)
    memory = _exported(value, what)
    if written and (memory.is_read_only or _package_of(value) in _IMMUTABLE):
        raise ValueError(f"{what} is written, but its {_type_name(value)} is read-only; pass a copy")
    return _numpy_view(memory) if memory.device is None else _cupy_view(memory)


def hand_back(values: Iterable[Any]) -> None:
    """Let the streams of the libraries that these arrays belong to wait for CuPy's current stream.

    What they do with the arrays from now on comes after what was launched before.
    """
    for value in values:
        if is_foreign(value) and not isinstance(value, Lender):
            stream = _owner_stream(value)
            if stream is not None:
                _wait(*stream)


def _exported(value: Any, what: str) -> _Memory:
    try:
        if hasattr(value, "__dlpack__"):
            return _from_dlpack(value)
        return _from_cuda_array_interface(value.__cuda_array_interface__, value)
    except ToolMissingError as error:
        raise ToolMissingError(f"{what} is a {_type_name(value)} on CUDA, and {error}") from error
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{what} is a {_type_name(value)} whose memory cannot be shared: {error}") from error


def _package_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _type_name(value: Any) -> str:
    return f"{_package_of(value)}.{type(value).__name__}"


# --- DLPack


def _from_dlpack(value: Any) -> _Memory:
    device_type, device_id = map(int, value.__dlpack_device__())
    if device_type in _CPU_DEVICES:
        return _memory_of(_capsule(value), None, value)
    if device_type in _CUDA_DEVICES:
        cupy = _cupy(device_id)
        with cupy.cuda.Device(device_id):
            stream = cupy.cuda.get_current_stream().ptr or _LEGACY_STREAM
            return _memory_of(_capsule(value, stream=stream), device_id, value)
    raise TypeError(f"it is on a device of DLPack's type {device_type}; the CPU and CUDA are taken")


def _capsule(value: Any, **stream: int) -> Any:
    try:
        return value.__dlpack__(**stream, max_version=_DLPACK_VERSION)
    except TypeError:
        # What was written before DLPack 1.0 does not know the argument.
        return value.__dlpack__(**stream)


def _memory_of(capsule: Any, device: int | None, value: Any) -> _Memory:
    flags = 0
    if _is_capsule(capsule, b"dltensor_versioned"):
        managed = _ManagedVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != _DLPACK_VERSION[0]:
            raise TypeError(f"it speaks DLPack {managed.major}.{managed.minor}; {_DLPACK_VERSION[0]} is understood")
        tensor, flags = managed.tensor, managed.flags
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _dlpack_dtype(tensor)
    strides = tuple(dtype.itemsize * tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    return _Memory(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        device=device,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=strides,
        dtype=dtype,
        is_read_only=bool(flags & (_READ_ONLY | _COPIED)),
        # The capsule frees the export when it goes; some exporters refer to their array from there, some do not.
        owner=(capsule, value),
    )


def _dlpack_dtype(tensor: _DLTensor) -> np.dtype[Any]:
    code, bits, lanes = tensor.code, tensor.bits, tensor.lanes
    dtype: np.dtype[Any] = bfloat16
    if (code, bits, lanes) == _BFLOAT16:
        return dtype
    if lanes != 1 or code not in _KINDS or bits % 8:
        raise TypeError(f"its elements (DLPack's type {code}, {bits} bits, {lanes} lanes) are no dtype of NumPy")
    dtype = np.dtype(f"{_KINDS[code]}{bits // 8}")
    return dtype


# --- the CUDA Array Interface


class _Handle:
    """A stream of somebody else's, by its handle."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol and the handle."""
        return 0, self.handle


def external_stream(handle: int) -> Any:
    """Return a stream of another library, on the current device, as one of CuPy's."""
    return _cupy().cuda.Stream.from_external(_Handle(handle))


def _from_cuda_array_interface(interface: dict[str, Any], value: Any) -> _Memory:
    if interface.get("mask") is not None:
        raise TypeError("it has a mask")
    pointer, is_read_only = interface["data"]
    cupy = _cupy()
    device = cupy.cuda.runtime.pointerGetAttributes(pointer).device if pointer else cupy.cuda.Device().id
    stream = interface.get("stream")
    if stream is not None:
        with cupy.cuda.Device(device):
            current = cupy.cuda.get_current_stream()
            if stream != (current.ptr or _LEGACY_STREAM):
                current.wait_event(external_stream(stream).record())
    strides, shape = interface.get("strides"), tuple(interface["shape"])
    strides = None if strides is None else tuple(strides)
    return _Memory(pointer, device, shape, strides, np.dtype(interface["typestr"]), bool(is_read_only), value)


# --- views


class _Exporter:
    """What NumPy makes an array of: it refers to this object, and this object to the owner of the memory."""

    def __init__(self, memory: _Memory) -> None:
        self.owner = memory.owner
        # NumPy's interface has no name for bfloat16.
        kind = "<V2" if memory.dtype == bfloat16 else memory.dtype.str
        self.__array_interface__ = {
            "data": (memory.pointer, memory.is_read_only),
            "shape": memory.shape,
            "strides": memory.strides,
            "typestr": kind,
            "version": 3,
        }


def _numpy_view(memory: _Memory) -> np.ndarray[Any, Any]:
    if not math.prod(memory.shape):
        return np.empty(memory.shape, memory.dtype)
    array = np.asarray(_Exporter(memory))
    return array.view(memory.dtype) if array.dtype != memory.dtype else array


def _cupy_view(memory: _Memory) -> Any:
    cupy = _cupy()
    nbytes = _extent(memory.shape, memory.strides, memory.dtype.itemsize)
    owned = cupy.cuda.UnownedMemory(memory.pointer, nbytes, memory.owner, memory.device)
    return cupy.ndarray(memory.shape, memory.dtype, cupy.cuda.MemoryPointer(owned, 0), memory.strides)


def _extent(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> int:
    """Return how many bytes an array reaches from its first element on."""
    if strides is None or not math.prod(shape):
        return math.prod(shape) * itemsize
    return itemsize + sum((length - 1) * max(stride, 0) for length, stride in zip(shape, strides, strict=True))


def _cupy(device: int = 0) -> Any:
    # Imported for arrays on CUDA alone: it takes as long as all else that an array needs.
    from llmc2py.runtime.cuda.device import usable_cupy

    return usable_cupy(device)


# --- streams


def _owner_stream(value: Any) -> tuple[int, int] | None:
    """Return device and stream that the owner of an array on CUDA goes on with; None where there is none to wait."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return (value.device.index, torch.cuda.current_stream(value.device).cuda_stream) if value.is_cuda else None
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None or interface.get("stream") is None or not interface["data"][0]:
        return None
    device = _cupy().cuda.runtime.pointerGetAttributes(interface["data"][0]).device
    return device, interface["stream"]


def _wait(device: int, stream: int) -> None:
    cupy = _cupy()
    with cupy.cuda.Device(device):
        current = cupy.cuda.get_current_stream()
        if (stream or _LEGACY_STREAM) != (current.ptr or _LEGACY_STREAM):
            external_stream(stream).wait_event(current.record())
