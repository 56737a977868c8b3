"""Matrix products through cuBLASLt: one call for a product and its epilogue, on descriptors that are made beforehand.

nvmath-python binds the library. cuBLASLt chooses an algorithm once for each product and alignment of the arrays; what
it has none for (such as GELU on float32, or a stored input of GELU with an odd number of rows) goes another way, which
the caller of `lt_step` passes in.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from llmc2py.runtime.allocation import lasting
from llmc2py.runtime.cublas import COMPUTE_TYPES, DATA_TYPES, OP_N, OP_T, Step, accumulator, scale_dtype
from llmc2py.runtime.gemm import MATRIX_DTYPES, Gemm, Matrix

#: What an algorithm may use beside its matrices, once for each stream; NVIDIA's advice for Hopper.
WORKSPACE_BYTES = 32 << 20
#: The largest alignment that algorithms differ in; CuPy's arrays have it.
_BEST_ALIGNMENT = 256
#: What its kernels move at once: rows that begin elsewhere go another way where that costs digits, or is not possible.
_PACKET_BYTES = 16
#: ``cudaStreamPerThread``: one handle for a stream of each thread.
_PER_THREAD_STREAM = 2
#: ``CUBLAS_STATUS_INVALID_VALUE`` and ``CUBLAS_STATUS_NOT_SUPPORTED``: what cuBLASLt says of a product it has not.
_CANNOT = (7, 15)
#: ``cublasLtReductionScheme_t``: partial sums in the compute type, or in any type.
_SUM_IN_COMPUTE_TYPE, _SUM_IN_ANY_TYPE = 2, 7

_Attribute = tuple[Any, int]


@functools.cache
def nvmath_library() -> Any:
    """Return nvmath-python's binding of cuBLASLt; None where it is not installed.

    Warns where it is installed and cannot be used: products are right without it, and slower.
    """
    try:
        binding = importlib.import_module("nvmath.bindings.cublasLt")
        binding.get_version()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "nvmath":
            return None
        text = f"cuBLASLt cannot be used through nvmath-python ({error}); products with epilogues are slower without it"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return binding


def lt_step(gemm: Gemm, cupy: Any, binding: Any, device: int, otherwise: Step) -> Step:
    """Return the function that does a product in one call of cuBLASLt, or as ``otherwise`` where that has no algorithm.

    ``binding`` is that of nvmath-python. Raises from there what is no matter of the product, such as a lost device. A
    first call, on the stream and with arrays as aligned as later ones, leaves nothing to be made while a CUDA graph is
    captured.
    """
    operands = [(one.pointer.slot, one.pointer.byte_offset) for one in (gemm.a, gemm.b, gemm.d)]
    (a_slot, a_offset), (b_slot, b_offset), (d_slot, d_offset) = operands
    # C is not read where beta is 0, and may be null then.
    c_slot, c_offset = (gemm.c.pointer.slot, gemm.c.pointer.byte_offset) if gemm.beta else operands[2]
    others = [(one.pointer.slot, one.pointer.byte_offset) for _, one in _epilogue_matrices(gemm)]
    with cupy.cuda.Device(device):
        call_at = functools.partial(_find_call, gemm, cupy, binding, device)
        found = {0: call_at(_BEST_ALIGNMENT, [_BEST_ALIGNMENT] * len(others))}

    def step(pointers: list[int], stream: int) -> None:
        a, b = pointers[a_slot] + a_offset, pointers[b_slot] + b_offset
        c, d = pointers[c_slot] + c_offset, pointers[d_slot] + d_offset
        together = a | b | c | d
        extras = []
        for slot, offset in others:
            address = pointers[slot] + offset
            together |= address
            extras.append(address)
        # The lowest bit that is set in any address; 0 stands for the best alignment, as it is.
        alignment = together & (_BEST_ALIGNMENT - 1)
        alignment &= -alignment
        try:
            call = found[alignment]
        except KeyError:
            call = found[alignment] = call_at(alignment, extras)
        if call is None:
            otherwise(pointers, stream)
            return
        try:
            call.run(a, b, c, d, extras, stream)
        except binding.cuBLASLtError as error:
            if error.status not in _CANNOT:
                raise
            found[alignment] = None
            otherwise(pointers, stream)

    return step


def _epilogue_matrices(gemm: Gemm) -> Iterator[tuple[str, Matrix]]:
    """Yield the matrices that the descriptor of the operation points to, with the start of their attributes' names."""
    if gemm.epilogue.bias is not None:
        yield "BIAS", gemm.epilogue.bias
    if gemm.epilogue.aux is not None:
        yield "EPILOGUE_AUX", gemm.epilogue.aux


def _find_call(gemm: Gemm, cupy: Any, binding: Any, device: int, alignment: int, extras: Sequence[int]) -> _Call | None:
    """Return the call for arrays of an alignment on the current device; None where cuBLASLt has none that is exact."""
    aux, is_narrow = gemm.epilogue.aux, gemm.d.itemsize == 2
    if is_narrow and gemm.epilogue.name != "DEFAULT" and alignment % _PACKET_BYTES:
        # It adds the bias to a product that is rounded already (seen on an H200).
        return None
    if aux is not None:
        # cuBLASLt does not look at these before it runs.
        steps = [aux.ld * aux.itemsize, aux.stride * aux.itemsize if gemm.batch_count > 1 else 0, alignment]
        if any(step % _PACKET_BYTES for step in steps):
            return None
    try:
        call = _Call(gemm, cupy, binding, device)
        return call if call.choose_algorithm(alignment, extras) else None
    except binding.cuBLASLtError as error:
        if error.status not in _CANNOT:
            raise
        return None


class _Owned:
    """A descriptor of cuBLASLt, destroyed with this object."""

    def __init__(self, address: int, destroy: Callable[[int], None]) -> None:
        self.address = address
        # At the end of the process the library may be gone before this.
        weakref.finalize(self, destroy, address).atexit = False


class _Operation:
    """A descriptor of the operation with the places that hold the addresses that it points to."""

    def __init__(self, owned: _Owned, attributes: Sequence[int]) -> None:
        self.owned = owned
        self.address = owned.address
        cells = [ctypes.c_uint64(0) for _ in attributes]
        self.pointers = [(cell, ctypes.addressof(cell), name) for cell, name in zip(cells, attributes, strict=True)]


class _Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``, whose algorithm stands at its start."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Call:
    """One product with arrays of one alignment, ready to run on a device, which is the current one."""

    def __init__(self, gemm: Gemm, cupy: Any, binding: Any, device: int) -> None:
        self._gemm, self._cupy, self._binding = gemm, cupy, binding
        self._matmul, self._set = binding.matmul, binding.matmul_desc_set_attribute
        self._device = device
        self._handle = _handle(binding, device)
        self._scalars = np.array([gemm.alpha, gemm.beta], scale_dtype(gemm.compute))
        self._alpha = self._scalars.ctypes.data
        self._beta = self._alpha + self._scalars.itemsize
        matrices = gemm.a, gemm.b, gemm.c if gemm.beta else gemm.d, gemm.d
        self._layouts = [self._layout(matrix) for matrix in matrices]
        self._a, self._b, self._c, self._d = (layout.address for layout in self._layouts)
        self._result = _Result()
        self._algorithm = ctypes.addressof(self._result)
        # A call lets other threads run while the library reads the addresses in the descriptor: one for each running
        # call, and the list's ``pop`` and ``append`` are atomic.
        self._idle: list[_Operation] = []

    def choose_algorithm(self, alignment: int, extras: Sequence[int]) -> bool:
        """Ask for the best algorithm; False where there is none. ``extras``: addresses of bias and aux."""
        binding, count = self._binding, ctypes.c_int(0)
        preference = self._preference(alignment)
        operation = self._operation()
        self._point(operation, extras)
        binding.matmul_algo_get_heuristic(
            self._handle, operation.address, self._a, self._b, self._c, self._d, preference.address, 1,
            self._algorithm, ctypes.addressof(count),
        )  # fmt: skip
        self._idle.append(operation)
        return count.value > 0 and self._result.state == 0

    # cublasLtMatmul(handle, desc, &alpha, A, Adesc, B, Bdesc, &beta, C, Cdesc, D, Ddesc, algo, workspace, size, stream)
    def run(self, a: int, b: int, c: int, d: int, extras: Sequence[int], stream: int) -> None:
        """Do the product on a stream, with the addresses of the matrices."""
        try:
            operation = self._idle.pop()
        except IndexError:
            operation = self._operation()
        if extras:
            self._point(operation, extras)
        workspace = _workspace(self._cupy, self._device, stream)
        with workspace.lock:
            self._matmul(
                self._handle, operation.address, self._alpha, a, self._a, b, self._b, self._beta, c, self._c, d,
                self._d, self._algorithm, workspace.address, WORKSPACE_BYTES, stream,
            )  # fmt: skip
        self._idle.append(operation)

    def _point(self, operation: _Operation, extras: Sequence[int]) -> None:
        for (cell, address, name), target in zip(operation.pointers, extras, strict=True):
            if cell.value != target:
                cell.value = target
                self._set(operation.address, name, address, 8)

    def _layout(self, matrix: Matrix) -> _Owned:
        binding, names = self._binding, self._binding.MatrixLayoutAttribute
        address = binding.matrix_layout_create(DATA_TYPES[matrix.dtype], matrix.rows, matrix.cols, matrix.ld)
        layout = _Owned(address, binding.matrix_layout_destroy)
        if self._gemm.batch_count > 1:
            values: dict[int, _Attribute] = {
                names.BATCH_COUNT: (ctypes.c_int32, self._gemm.batch_count),
                names.STRIDED_BATCH_OFFSET: (ctypes.c_int64, matrix.stride),
            }
            _set_all(binding.matrix_layout_set_attribute, layout, values)
        return layout

    def _operation(self) -> _Operation:
        gemm, binding, names = self._gemm, self._binding, self._binding.MatmulDescAttribute
        scale = next(name for name, dtype in MATRIX_DTYPES.items() if dtype == self._scalars.dtype)
        address = binding.matmul_desc_create(COMPUTE_TYPES[gemm.compute], DATA_TYPES[scale])
        desc = _Owned(address, binding.matmul_desc_destroy)
        values: dict[int, _Attribute] = {
            names.TRANSA: (ctypes.c_int32, OP_T if gemm.transa else OP_N),
            names.TRANSB: (ctypes.c_int32, OP_T if gemm.transb else OP_N),
            names.EPILOGUE: (ctypes.c_uint32, binding.Epilogue[gemm.epilogue.name]),
        }
        for name, matrix in _epilogue_matrices(gemm):
            if matrix.dtype != gemm.d.dtype:
                values[names[f"{name}_DATA_TYPE"]] = (ctypes.c_int32, DATA_TYPES[matrix.dtype])
            if gemm.batch_count > 1:
                values[names[f"{name}_BATCH_STRIDE"]] = (ctypes.c_int64, matrix.stride)
        if gemm.epilogue.aux is not None:
            values[names.EPILOGUE_AUX_LD] = (ctypes.c_int64, gemm.epilogue.aux.ld)
        _set_all(self._set, desc, values)
        return _Operation(desc, [int(names[f"{name}_POINTER"]) for name, _ in _epilogue_matrices(gemm)])

    def _preference(self, alignment: int) -> _Owned:
        binding, names = self._binding, self._binding.MatmulPreferenceAttribute
        preference = _Owned(binding.matmul_preference_create(), binding.matmul_preference_destroy)
        # Partial sums that are rounded to half precision would cost digits that the sums of one block do not.
        is_rounded = MATRIX_DTYPES[self._gemm.d.dtype] != accumulator(self._gemm)
        values: dict[int, _Attribute] = {
            names.MAX_WORKSPACE_BYTES: (ctypes.c_uint64, WORKSPACE_BYTES),
            names.REDUCTION_SCHEME_MASK: (ctypes.c_uint32, _SUM_IN_COMPUTE_TYPE if is_rounded else _SUM_IN_ANY_TYPE),
        }
        for matrix in "ABCD":
            values[names[f"MIN_ALIGNMENT_{matrix}_BYTES"]] = (ctypes.c_uint32, alignment)
        _set_all(binding.matmul_preference_set_attribute, preference, values)
        return preference


def _set_all(setter: Callable[[int, int, int, int], None], owned: _Owned, values: dict[int, _Attribute]) -> None:
    for name, (ctype, value) in values.items():
        cell = ctype(int(value))
        setter(owned.address, int(name), ctypes.addressof(cell), ctypes.sizeof(cell))


@functools.cache
def _handle(binding: Any, device: int) -> int:
    """Return the handle of a device, which is the current one; threads share it, as cuBLASLt allows."""
    handle: int = binding.create()
    return handle


class _Workspace:
    """The memory that algorithms use on one stream.

    A call launches several kernels that hand results on in it, and lets other threads run meanwhile: one call at a time
    launches on the stream.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.address: int = memory.ptr
        self.lock = threading.Lock()


#: By device, stream and (for the streams of threads, which share a handle) thread.
_workspaces: dict[tuple[int, int, int], _Workspace] = {}


def _workspace(cupy: Any, device: int, stream: int) -> _Workspace:
    """Return the workspace of a stream.

    It is never given back: what is captured into a CUDA graph goes on using it.
    """
    key = (device, stream, threading.get_ident() if stream == _PER_THREAD_STREAM else 0)
    try:
        return _workspaces[key]
    except KeyError:
        # Of two threads that come here at once, both take the memory that stood there first.
        return _workspaces.setdefault(key, _Workspace(lasting(cupy, WORKSPACE_BYTES)))
