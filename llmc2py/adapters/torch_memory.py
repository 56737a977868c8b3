"""Tensors as the arrays that kernels run on, and back: the same memory, streams and allocator."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

from llmc2py.runtime.allocation import allocator
from llmc2py.runtime.arrays import pointer_of
from llmc2py.runtime.cuda.device import usable_cupy
from llmc2py.runtime.interop import external_stream
from llmc2py.runtime.random import seeds_from

NUMPY_DTYPES: dict[Any, np.dtype[Any]] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
}
TORCH_DTYPES = {dtype: kind for kind, dtype in NUMPY_DTYPES.items()}
#: NumPy knows no bfloat16 by itself.
_TYPESTRS = {kind: "<i2" if kind == torch.bfloat16 else dtype.str for kind, dtype in NUMPY_DTYPES.items()}


class Borrowing:
    """One call: tensors lent to it as arrays, and the arrays that it returns as tensors of their own.

    A context in which kernels run on PyTorch's current stream of the device, CuPy's arrays are made of memory from
    PyTorch's allocator, and seeds come from PyTorch's generator of the CPU.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._taken: set[int] = set()
        # Scratch is given back as soon as the call drops it, outputs are held by their arrays until `tensor`.
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> Borrowing:
        self._scope.enter_context(seeds_from(_seed))
        if self._is_cuda:
            self._scope.enter_context(self._on_cuda())
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)

    def array(self, tensor: Any) -> Any:
        """Return a contiguous array on a tensor's memory, of a copy where the tensor is strided; None for None.

        Raises TypeError for a dtype that kernels do not know, and for a tensor elsewhere than the call.
        """
        if tensor is None:
            return None
        if tensor.device != self._device:
            raise TypeError(f"the arrays of a call live on one device; here are {self._device} and {tensor.device}")
        if tensor.dtype not in NUMPY_DTYPES:
            raise TypeError(f"{tensor.dtype} is no dtype that kernels know")
        tensor = tensor.detach().resolve_neg().contiguous()
        array = self._cupy_array(tensor) if self._is_cuda else _numpy_array(tensor)
        self._taken.add(tensor.data_ptr())
        return array

    def tensor(self, array: Any) -> Any:
        """Return a new array as a tensor; of a copy where its memory is that of another tensor of this call."""
        array = np.asarray(array) if isinstance(array, np.generic) else array
        pointer = pointer_of(array)
        owner = self._owners.get(pointer) if self._is_cuda else None
        is_new = array.flags.c_contiguous and pointer not in self._taken and (not self._is_cuda or owner is not None)
        if not array.size or not is_new or (owner is not None and owner.numel() != array.nbytes):
            return self._copied(array)
        self._taken.add(pointer)
        if owner is not None:
            return owner.view(TORCH_DTYPES[array.dtype]).view(array.shape)
        return _cpu_tensor(array)

    def _copied(self, array: Any) -> Any:
        tensor = torch.empty(array.shape, dtype=TORCH_DTYPES[array.dtype], device=self._device)
        if array.size:
            target = self._cupy_array(tensor) if self._is_cuda else _numpy_array(tensor)
            target[...] = array
        self._taken.add(tensor.data_ptr())
        return tensor

    @contextlib.contextmanager
    def _on_cuda(self) -> Iterator[None]:
        index = self._device.index
        cupy = usable_cupy(index)
        with torch.cuda.device(index), allocator(self._allocate):
            stream = torch.cuda.current_stream(index).cuda_stream
            if cupy.cuda.get_current_stream().ptr == stream:
                yield
                return
            with external_stream(stream) if stream else cupy.cuda.Stream.null:
                yield

    def _allocate(self, nbytes: int) -> Any:
        owner = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        self._owners[owner.data_ptr()] = owner
        return _cuda_memory(owner)

    def _cupy_array(self, tensor: Any) -> Any:
        import cupy

        return cupy.ndarray(tuple(tensor.shape), NUMPY_DTYPES[tensor.dtype], _cuda_memory(tensor))


def _seed() -> int:
    return int(torch.randint(1 << 32, (), device="cpu"))


def _cuda_memory(tensor: Any) -> Any:
    import cupy

    nbytes = tensor.numel() * tensor.element_size()
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(tensor.data_ptr(), nbytes, tensor, tensor.device.index), 0)


class _Lent:
    """What NumPy makes an array of; it keeps the tensor. ``Tensor.numpy()`` would bar the tensor from being resized."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": _TYPESTRS[tensor.dtype],
            "version": 3,
        }


def _numpy_array(tensor: Any) -> np.ndarray[Any, Any]:
    dtype = NUMPY_DTYPES[tensor.dtype]
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), dtype)
    array: np.ndarray[Any, Any] = np.asarray(_Lent(tensor))
    return array if array.dtype == dtype else array.view(dtype)


def _cpu_tensor(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype == NUMPY_DTYPES[torch.bfloat16]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
