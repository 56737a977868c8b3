"""Matrix products through cuBLAS, which CuPy binds, and the numbers that its binary interface is made of."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc2py.runtime.dtypes import float16, float32
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.gemm import Gemm, Matrix

#: Does one product: takes the addresses of the arrays by slot, and a stream.
Step = Callable[[list[int], int], None]

#: ``cudaDataType_t`` and ``cublasComputeType_t``.
DATA_TYPES = {"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}
COMPUTE_TYPES = {
    "CUBLAS_COMPUTE_16F": 64, "CUBLAS_COMPUTE_16F_PEDANTIC": 65, "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_64F": 70, "CUBLAS_COMPUTE_64F_PEDANTIC": 71,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74, "CUBLAS_COMPUTE_32F_FAST_16BF": 75, "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
}  # fmt: skip
OP_N, OP_T = 0, 1
_POINTER_MODE_HOST = _DEFAULT_MATH = 0
_GEMM_DEFAULT = -1
_DOUBLE = np.dtype(np.float64)
_INSTALL_HINT = 'pip install "llmc2py[cuda13,gemm]" (or "llmc2py[cuda12,gemm]" for a driver older than CUDA 13)'


def accumulator(gemm: Gemm) -> np.dtype[Any]:
    """Return the dtype of sums and epilogues; half precision sums are not imitated."""
    return _DOUBLE if gemm.compute.startswith("CUBLAS_COMPUTE_64F") else float32


def scale_dtype(compute: str) -> np.dtype[Any]:
    """Return the dtype that cuBLAS reads alpha and beta in, by the compute type."""
    if compute.startswith("CUBLAS_COMPUTE_16F"):
        return float16
    return _DOUBLE if compute.startswith("CUBLAS_COMPUTE_64F") else float32


@dataclass(frozen=True)
class Cublas:
    """CuPy, its binding of cuBLAS, and the function that gives the calling thread's handle."""

    cupy: Any
    binding: Any
    handle: Callable[[], int]


@functools.cache
def cublas() -> Cublas:
    """Return cuBLAS as CuPy has it. Raises ToolMissingError where one of them is not installed."""
    try:
        cupy = importlib.import_module("cupy")
        binding = importlib.import_module("cupy_backends.cuda.libs.cublas")
        handle = importlib.import_module("cupy.cuda.device").get_cublas_handle
    except ImportError as error:
        raise ToolMissingError(f"cuBLAS cannot be loaded ({error}); {_INSTALL_HINT}") from error
    return Cublas(cupy, binding, handle)


# cublasGemmStridedBatchedEx(handle, opA, opB, m, n, k, &alpha, A, typeA, lda, strideA, B, …, batchCount, compute, algo)
def cublas_call(
    gemm: Gemm, blas: Cublas, target: Matrix, beta: float, compute: str
) -> Callable[[list[int], int], None]:
    """Return the call that writes ``alpha * op(A) * op(B) + beta * D`` to an address in the form of ``target``."""
    a, b, binding = gemm.a, gemm.b, blas.binding
    scale = scale_dtype(compute)
    scalars = np.array([gemm.alpha, beta], scale)
    alpha_address = scalars.ctypes.data
    beta_address = alpha_address + scale.itemsize
    shape = (OP_T if gemm.transa else OP_N, OP_T if gemm.transb else OP_N, gemm.m, gemm.n, gemm.k)
    types = [DATA_TYPES[one.dtype] for one in (a, b, target)]
    number = COMPUTE_TYPES[compute]

    # ``scalars`` stands here to live as long as the call that passes its addresses.
    def multiply(handle: int, pointers: list[int], address: int, _: Any = scalars) -> None:
        binding.gemmStridedBatchedEx(
            handle, *shape,
            alpha_address, pointers[a.pointer.slot] + a.pointer.byte_offset, types[0], a.ld, a.stride,
            pointers[b.pointer.slot] + b.pointer.byte_offset, types[1], b.ld, b.stride,
            beta_address, address, types[2], target.ld, target.stride,
            gemm.batch_count, number, _GEMM_DEFAULT,
        )  # fmt: skip

    def call(pointers: list[int], address: int) -> None:
        handle = blas.handle()
        mode, math_mode = binding.getPointerMode(handle), binding.getMathMode(handle)
        # Both are nearly always as they should be, and setting them costs more than asking.
        if mode == _POINTER_MODE_HOST and math_mode == _DEFAULT_MATH:
            multiply(handle, pointers, address)
            return
        binding.setPointerMode(handle, _POINTER_MODE_HOST)
        # CuPy's own mode could let float32 be rounded to TF32.
        binding.setMathMode(handle, _DEFAULT_MATH)
        try:
            multiply(handle, pointers, address)
        finally:
            binding.setPointerMode(handle, mode)
            binding.setMathMode(handle, math_mode)

    return call
