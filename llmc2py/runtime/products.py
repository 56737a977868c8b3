"""Running matrix products: NumPy on the CPU; on CUDA cuBLASLt, or cuBLAS and CuPy with the same epilogue as NumPy.

A matrix is seen as an array with the axes batch, column, row: what is column-major to cuBLAS is row-major there. A
``view`` makes such an array of a `Matrix` for one call.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import backend_named, pointer_of
from llmc2py.runtime.cublas import Cublas, Step, accumulator, cublas, cublas_call
from llmc2py.runtime.gemm import BIAS_GRADIENTS, BIASED, MATRIX_DTYPES, READING_AUX, STORING_AUX, Epilogue, Gemm, Matrix
from llmc2py.runtime.ltmatmul import lt_step, nvmath_library

View = Callable[[Matrix], Any]

_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715

#: Elements of 16 bits that cuBLASLt's kernels move at once.
_PACKET = 8
#: The types of A and B, and of the result that cuBLAS can write for them.
_WRITABLE = {
    ("CUDA_R_32F", "CUDA_R_32F"), ("CUDA_R_64F", "CUDA_R_64F"), ("CUDA_R_16F", "CUDA_R_16F"),
    ("CUDA_R_16F", "CUDA_R_32F"), ("CUDA_R_16BF", "CUDA_R_16BF"), ("CUDA_R_16BF", "CUDA_R_32F"),
}  # fmt: skip


def product_step(gemm: Gemm, backend: str, device: int = 0) -> Step:
    """Return the function that computes a product on ``cpu`` or a device of ``cuda``.

    Raises ToolMissingError without cuBLAS.
    """
    return _numpy_step(gemm) if backend == "cpu" else _cuda_step(gemm, cublas(), nvmath_library(), device)


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
        return np.zeros((gemm.batch_count, gemm.n, gemm.m), accumulator(gemm))
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
    return (array.swapaxes(1, 2) if gemm.transa else array).astype(accumulator(gemm), copy=False)


def _right(gemm: Gemm, view: View) -> Any:
    """Return op(B), with the axes batch, n, k."""
    array = view(gemm.b)
    return (array.swapaxes(1, 2) if gemm.transb else array).astype(accumulator(gemm), copy=False)


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


# --- CUDA


def _cuda_step(gemm: Gemm, blas: Cublas, lt: Any, device: int) -> Step:
    """Let cuBLASLt do it in one call where nvmath-python binds it (``lt``), else cuBLAS and, for epilogues, CuPy."""
    otherwise = _step_by_step(gemm, blas, lt, device)
    if lt is None or not (gemm.alpha and gemm.k) or _is_coarse(gemm):
        return otherwise
    return lt_step(gemm, blas.cupy, lt, device, otherwise)


def _is_coarse(gemm: Gemm) -> bool:
    """Whether cuBLASLt's own epilogue is less exact than the result's type. Seen on an H200.

    In float32 its slope of GELU has a fast tanh; in 16 bits it adds the bias to a product that is rounded already where
    columns of any of the matrices are not whole packets, and sums gradients of the bias in 16 bits.
    """
    name = gemm.epilogue.name
    if gemm.d.dtype == "CUDA_R_32F":
        return name in ("DGELU", "DGELU_BGRAD")
    is_ragged = any(size % _PACKET for size in (gemm.m, gemm.a.ld, gemm.b.ld, gemm.d.ld))
    return name == "DGELU_BGRAD" or (name != "DEFAULT" and is_ragged)


def _step_by_step(gemm: Gemm, blas: Cublas, lt: Any, device: int) -> Step:
    """Let cuBLAS write D where it can; else take the product from a library and do the rest with CuPy."""
    in_place = not gemm.beta or gemm.c == gemm.d
    is_plain = gemm.epilogue.name == "DEFAULT" and (gemm.a.dtype, gemm.d.dtype) in _WRITABLE
    if in_place and is_plain and gemm.alpha and gemm.k:
        call = cublas_call(gemm, blas, gemm.d, gemm.beta, gemm.compute)
        slot, offset = gemm.d.pointer.slot, gemm.d.pointer.byte_offset
        return lambda pointers, stream: call(pointers, pointers[slot] + offset)
    return _step_with_epilogue(gemm, blas, lt, device)


def _step_with_epilogue(gemm: Gemm, blas: Cublas, lt: Any, device: int) -> Step:
    dtype = accumulator(gemm)
    multiply = _product_alone(gemm, blas, lt, device)
    empty = backend_named("cuda").empty

    def step(pointers: list[int], stream: int) -> None:
        view = functools.partial(_cupy_view, blas.cupy, gemm.batch_count, pointers)
        product = empty((gemm.batch_count, gemm.n, gemm.m), dtype)
        if gemm.alpha and gemm.k:
            multiply([*pointers, pointer_of(product)], stream)
        else:
            product.fill(0)
        _finish(blas.cupy, gemm, product, view)

    return step


def _product_alone(gemm: Gemm, blas: Cublas, lt: Any, device: int) -> Step:
    """Return the function that writes ``alpha * op(A) * op(B)``, as it is added up, to the last address given."""
    name = next(name for name, one in MATRIX_DTYPES.items() if one == accumulator(gemm))
    last = dataclasses.replace(gemm.d.pointer, slot=-1, byte_offset=0)
    own = Matrix(last, name, gemm.m, gemm.n, gemm.m, gemm.m * gemm.n)
    # Sums in half precision have no place in an array of float32.
    compute = "CUBLAS_COMPUTE_32F" if gemm.compute.startswith("CUBLAS_COMPUTE_16F") else gemm.compute
    call = cublas_call(gemm, blas, own, 0.0, compute)

    def multiply(pointers: list[int], stream: int) -> None:
        call(pointers, pointers[-1])

    if lt is None or not (gemm.alpha and gemm.k):
        return multiply
    plain = dataclasses.replace(gemm, c=own, d=own, beta=0.0, compute=compute, epilogue=Epilogue())
    return lt_step(plain, blas.cupy, lt, device, multiply)


def _cupy_view(cupy: Any, count: int, pointers: list[int], matrix: Matrix) -> Any:
    address = pointers[matrix.pointer.slot] + matrix.pointer.byte_offset
    size = max(matrix.elements(count) * matrix.itemsize, 1)
    memory = cupy.cuda.UnownedMemory(address, size, None, cupy.cuda.runtime.getDevice())
    shape, strides = _form(matrix, count)
    return cupy.ndarray(shape, MATRIX_DTYPES[matrix.dtype], cupy.cuda.MemoryPointer(memory, 0), strides)
