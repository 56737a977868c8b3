"""Running matrix products: NumPy on the CPU, cuBLAS through CuPy on CUDA, one epilogue for both.

A matrix is seen as an array with the axes batch, column, row: what is column-major to cuBLAS is row-major there. A
``view`` makes such an array of a `Matrix` for one call.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import backend_named, pointer_of
from llmc2py.runtime.dtypes import float16, float32
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.gemm import BIAS_GRADIENTS, BIASED, MATRIX_DTYPES, READING_AUX, STORING_AUX, Gemm, Matrix

#: Does one product: takes the addresses of the arrays by slot, and a stream.
Step = Callable[[list[int], int], None]
View = Callable[[Matrix], Any]

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715
_DOUBLE = np.dtype(np.float64)
_INSTALL_HINT = 'pip install "llmc2py[cuda13,gemm]" (or "llmc2py[cuda12,gemm]" for a driver older than CUDA 13)'

# cudaDataType_t, cublasComputeType_t and others: numbers that are part of cuBLAS's binary interface.
_DATA_TYPES = {"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}
_COMPUTE_TYPES = {
    "CUBLAS_COMPUTE_16F": 64, "CUBLAS_COMPUTE_16F_PEDANTIC": 65, "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_64F": 70, "CUBLAS_COMPUTE_64F_PEDANTIC": 71,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74, "CUBLAS_COMPUTE_32F_FAST_16BF": 75, "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
}  # fmt: skip
_OP_N, _OP_T = 0, 1
_POINTER_MODE_HOST = _DEFAULT_MATH = 0
_GEMM_DEFAULT = -1
#: The types of A and B, and of the result that cuBLAS can write for them.
_WRITABLE = {
    ("CUDA_R_32F", "CUDA_R_32F"), ("CUDA_R_64F", "CUDA_R_64F"), ("CUDA_R_16F", "CUDA_R_16F"),
    ("CUDA_R_16F", "CUDA_R_32F"), ("CUDA_R_16BF", "CUDA_R_16BF"), ("CUDA_R_16BF", "CUDA_R_32F"),
}  # fmt: skip


def product_step(gemm: Gemm, backend: str) -> Step:
    """Return the function that computes a product on ``cpu`` or ``cuda``. Raises ToolMissingError without cuBLAS."""
    return _numpy_step(gemm) if backend == "cpu" else _cuda_step(gemm, _cublas())


def _accumulator(gemm: Gemm) -> np.dtype[Any]:
    """Return the dtype of sums and epilogues; half precision sums are not imitated."""
    return _DOUBLE if gemm.compute.startswith("CUBLAS_COMPUTE_64F") else float32


# --- NumPy


def _numpy_step(gemm: Gemm) -> Step:
    def step(pointers: list[int], stream: int) -> None:
        view = functools.partial(_numpy_view, gemm.batch_count, pointers)
        # Infinities and NaN are results like others, as they are on a GPU.
        with np.errstate(all="ignore"):
            _finish(np, gemm, _numpy_product(gemm, view), view)

    return step


def _numpy_product(gemm: Gemm, view: View) -> Any:
    if not (gemm.alpha and gemm.k):
        return np.zeros((gemm.batch_count, gemm.n, gemm.m), _accumulator(gemm))
    product = np.matmul(_right(gemm, view), _left(gemm, view))
    product *= gemm.alpha
    return product


def _numpy_view(count: int, pointers: list[int], matrix: Matrix) -> Any:
    address = pointers[matrix.pointer.slot] + matrix.pointer.byte_offset
    memory: Any = (ctypes.c_char * (matrix.elements(count) * matrix.itemsize)).from_address(address)
    shape, strides = _form(matrix, count)
    return np.ndarray(shape, MATRIX_DTYPES[matrix.dtype], memory, strides=strides)


def _form(matrix: Matrix, count: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return shape and strides of the array of a matrix."""
    size = matrix.itemsize
    return (count, matrix.cols, matrix.rows), (matrix.stride * size, matrix.ld * size, size)


# --- on both backends


def _left(gemm: Gemm, view: View) -> Any:
    """Return op(A), with the axes batch, k, m."""
    array = view(gemm.a)
    return (array.swapaxes(1, 2) if gemm.transa else array).astype(_accumulator(gemm), copy=False)


def _right(gemm: Gemm, view: View) -> Any:
    """Return op(B), with the axes batch, n, k."""
    array = view(gemm.b)
    return (array.swapaxes(1, 2) if gemm.transb else array).astype(_accumulator(gemm), copy=False)


def _finish(xp: Any, gemm: Gemm, product: Any, view: View) -> None:
    """Add ``beta * C``, do the epilogue and store D: all in the precision of ``product``, each result rounded once."""
    if gemm.beta:
        product += view(gemm.c).astype(product.dtype) * gemm.beta
    name, bias, aux = gemm.epilogue.name, gemm.epilogue.bias, gemm.epilogue.aux
    if bias is not None and name in BIASED:
        product += view(bias).astype(product.dtype)
    if aux is not None and name in STORING_AUX:
        _store(view(aux), product)
    if name.startswith("GELU"):
        product = gelu(xp, product)
    elif name.startswith("RELU"):
        product = xp.maximum(product, 0)
    elif aux is not None and name in READING_AUX:
        product *= gelu_slope(xp, view(aux).astype(product.dtype))
    if bias is not None and name in BIAS_GRADIENTS:
        _store(view(bias), _bias_gradient(gemm, product, view))
    _store(view(gemm.d), product)


def _bias_gradient(gemm: Gemm, result: Any, view: View) -> Any:
    """Return the sums along k of op(A) or op(B), or along the columns of D, with the axes batch, 1, element."""
    if gemm.epilogue.name == "BGRADA":
        return _left(gemm, view).sum(axis=1, keepdims=True)
    if gemm.epilogue.name == "BGRADB":
        return _right(gemm, view).sum(axis=2)[:, None, :]
    return result.sum(axis=1, keepdims=True)


def _store(target: Any, values: Any) -> None:
    target[...] = values.astype(target.dtype, copy=False)


def gelu(xp: Any, x: Any) -> Any:
    """Return the tanh form of GELU, as cuBLASLt has it. ``xp`` is the module of the array."""
    return 0.5 * x * (1 + xp.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x)))


def gelu_slope(xp: Any, x: Any) -> Any:
    """Return the derivative of `gelu`."""
    t = xp.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))
    inner = _GELU_SCALE * (1 + 3 * _GELU_CUBIC * x * x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner


# --- cuBLAS


@dataclass(frozen=True)
class _Cublas:
    """CuPy, its binding of cuBLAS, and the function that gives the calling thread's handle."""

    cupy: Any
    binding: Any
    handle: Callable[[], int]


@functools.cache
def _cublas() -> _Cublas:
    try:
        cupy = importlib.import_module("cupy")
        binding = importlib.import_module("cupy_backends.cuda.libs.cublas")
        handle = importlib.import_module("cupy.cuda.device").get_cublas_handle
    except ImportError as error:
        raise ToolMissingError(f"cuBLAS cannot be loaded ({error}); {_INSTALL_HINT}") from error
    return _Cublas(cupy, binding, handle)


def _cuda_step(gemm: Gemm, blas: _Cublas) -> Step:
    """Let cuBLAS write D where it can; else take the product from it and do the rest with CuPy.

    A library that fuses epilogues (nvmath-python) would take the place of the second way.
    """
    in_place = not gemm.beta or gemm.c == gemm.d
    is_plain = gemm.epilogue.name == "DEFAULT" and (gemm.a.dtype, gemm.d.dtype) in _WRITABLE
    if in_place and is_plain and gemm.alpha and gemm.k:
        call = _cublas_call(gemm, blas, gemm.d, gemm.beta, gemm.compute)
        slot, offset = gemm.d.pointer.slot, gemm.d.pointer.byte_offset
        return lambda pointers, stream: call(pointers, pointers[slot] + offset)
    return _cuda_step_with_epilogue(gemm, blas)


def _cuda_step_with_epilogue(gemm: Gemm, blas: _Cublas) -> Step:
    dtype = _accumulator(gemm)
    name = next(name for name, one in MATRIX_DTYPES.items() if one == dtype)
    own = Matrix(gemm.d.pointer, name, gemm.m, gemm.n, gemm.m, gemm.m * gemm.n)
    # Sums in half precision have no place in an array of float32.
    compute = "CUBLAS_COMPUTE_32F" if gemm.compute.startswith("CUBLAS_COMPUTE_16F") else gemm.compute
    call = _cublas_call(gemm, blas, own, 0.0, compute)
    empty = backend_named("cuda").empty

    def step(pointers: list[int], stream: int) -> None:
        view = functools.partial(_cupy_view, blas.cupy, gemm.batch_count, pointers)
        product = empty((gemm.batch_count, gemm.n, gemm.m), dtype)
        if gemm.alpha and gemm.k:
            call(pointers, pointer_of(product))
        else:
            product.fill(0)
        _finish(blas.cupy, gemm, product, view)

    return step


def _cublas_call(
    gemm: Gemm, blas: _Cublas, target: Matrix, beta: float, compute: str
) -> Callable[[list[int], int], None]:
    """Return the call that writes ``alpha * op(A) * op(B) + beta * D`` to an address in the form of ``target``."""
    a, b, binding = gemm.a, gemm.b, blas.binding
    scale = float16 if compute.startswith("CUBLAS_COMPUTE_16F") else _accumulator(gemm)
    scalars = np.array([gemm.alpha, beta], scale)
    operations = _OP_T if gemm.transa else _OP_N, _OP_T if gemm.transb else _OP_N
    types = [_DATA_TYPES[one.dtype] for one in (a, b, target)]
    number = _COMPUTE_TYPES[compute]

    def call(pointers: list[int], address: int) -> None:
        handle, alpha = blas.handle(), scalars.ctypes.data
        mode, math_mode = binding.getPointerMode(handle), binding.getMathMode(handle)
        binding.setPointerMode(handle, _POINTER_MODE_HOST)
        # CuPy's own mode could let float32 be rounded to TF32.
        binding.setMathMode(handle, _DEFAULT_MATH)
        try:
            binding.gemmStridedBatchedEx(
                handle, *operations, gemm.m, gemm.n, gemm.k,
                alpha, pointers[a.pointer.slot] + a.pointer.byte_offset, types[0], a.ld, a.stride,
                pointers[b.pointer.slot] + b.pointer.byte_offset, types[1], b.ld, b.stride,
                alpha + scale.itemsize, address, types[2], target.ld, target.stride,
                gemm.batch_count, number, _GEMM_DEFAULT,
            )  # fmt: skip
        finally:
            binding.setPointerMode(handle, mode)
            binding.setMathMode(handle, math_mode)

    return call


def _cupy_view(cupy: Any, count: int, pointers: list[int], matrix: Matrix) -> Any:
    address = pointers[matrix.pointer.slot] + matrix.pointer.byte_offset
    size = max(matrix.elements(count) * matrix.itemsize, 1)
    memory = cupy.cuda.UnownedMemory(address, size, None, cupy.cuda.runtime.getDevice())
    shape, strides = _form(matrix, count)
    return cupy.ndarray(shape, MATRIX_DTYPES[matrix.dtype], cupy.cuda.MemoryPointer(memory, 0), strides)
