"""Matrix products: what calls of cuBLAS in launchers say, as one operation of a plan.

Matrices are column-major, as in cuBLAS; enumerators are strings with cuBLAS's own names. The functions take what the C
functions of the same name take, less handles, workspaces and algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmc2py.runtime.dtypes import bfloat16, float16, float32

if TYPE_CHECKING:
    from llmc2py.runtime.plan import Pointer

#: The element types that matrices can have, by their names in ``cudaDataType_t``.
MATRIX_DTYPES: dict[str, np.dtype[Any]] = {
    "CUDA_R_32F": float32,
    "CUDA_R_16F": float16,
    "CUDA_R_16BF": bfloat16,
    "CUDA_R_64F": np.dtype(np.float64),
}
_OPERATIONS = {"CUBLAS_OP_N": False, "CUBLAS_OP_T": True, "CUBLAS_OP_C": True}
#: How products are computed; the names without ``COMPUTE`` are those that older code passes.
_COMPUTE_TYPES = {
    "CUDA_R_16F": "CUBLAS_COMPUTE_16F",
    "CUDA_R_32F": "CUBLAS_COMPUTE_32F",
    "CUDA_R_64F": "CUBLAS_COMPUTE_64F",
} | {
    name: name
    for name in (
        "CUBLAS_COMPUTE_16F",
        "CUBLAS_COMPUTE_16F_PEDANTIC",
        "CUBLAS_COMPUTE_32F",
        "CUBLAS_COMPUTE_32F_PEDANTIC",
        "CUBLAS_COMPUTE_32F_FAST_16F",
        "CUBLAS_COMPUTE_32F_FAST_16BF",
        "CUBLAS_COMPUTE_32F_FAST_TF32",
        "CUBLAS_COMPUTE_64F",
        "CUBLAS_COMPUTE_64F_PEDANTIC",
    )
}
#: Epilogues that add a bias, that write the gradient of one, that store what goes into GELU, that read that.
BIASED = frozenset({"BIAS", "RELU_BIAS", "GELU_BIAS", "GELU_AUX_BIAS"})
BIAS_GRADIENTS = frozenset({"DGELU_BGRAD", "BGRADA", "BGRADB"})
STORING_AUX = frozenset({"GELU_AUX", "GELU_AUX_BIAS"})
READING_AUX = frozenset({"DGELU", "DGELU_BGRAD"})
EPILOGUES = frozenset({"DEFAULT", "RELU", "GELU"}) | BIASED | BIAS_GRADIENTS | STORING_AUX | READING_AUX


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix, or matrices ``stride`` elements apart: the first element, its type, rows and columns."""

    pointer: Pointer
    dtype: str
    rows: int
    cols: int
    ld: int
    stride: int = 0

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return MATRIX_DTYPES[self.dtype].itemsize

    def elements(self, batch_count: int) -> int:
        """Return how many elements there are from the first one of all matrices to the last one."""
        if not (self.rows and self.cols and batch_count):
            return 0
        return (batch_count - 1) * self.stride + (self.cols - 1) * self.ld + self.rows


@dataclass(frozen=True)
class Epilogue:
    """What is done with the product: cuBLASLt's name less its prefix, bias vector, and matrix before the activation."""

    name: str = "DEFAULT"
    bias: Matrix | None = None
    aux: Matrix | None = None


@dataclass(frozen=True)
class Gemm:
    """``D = epilogue(alpha * op(A) * op(B) + beta * C)``, once for each matrix of a batch."""

    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transa: bool
    transb: bool
    alpha: float
    beta: float
    batch_count: int = 1
    compute: str = "CUBLAS_COMPUTE_32F"
    epilogue: Epilogue = Epilogue()

    @property
    def m(self) -> int:
        """The rows of D."""
        return self.d.rows

    @property
    def n(self) -> int:
        """The columns of D."""
        return self.d.cols

    @property
    def k(self) -> int:
        """The length of the sums."""
        return self.a.rows if self.transa else self.a.cols

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.m and self.n and self.batch_count)

    def read(self) -> Iterator[tuple[str, Matrix]]:
        """Yield what is read, with its name; C is not where beta is 0, A and B are not where alpha or k is."""
        if self.k and (self.alpha or self.epilogue.name in ("BGRADA", "BGRADB")):
            yield "A", self.a
            yield "B", self.b
        if self.beta:
            yield "C", self.c
        if self.epilogue.bias is not None and self.epilogue.name in BIASED:
            yield "bias", self.epilogue.bias
        if self.epilogue.aux is not None and self.epilogue.name not in STORING_AUX:
            yield "aux", self.epilogue.aux

    def written(self) -> Iterator[tuple[str, Matrix]]:
        """Yield what is written, with its name."""
        yield "D", self.d
        if self.epilogue.bias is not None and self.epilogue.name in BIAS_GRADIENTS:
            yield "bias", self.epilogue.bias
        if self.epilogue.aux is not None and self.epilogue.name in STORING_AUX:
            yield "aux", self.epilogue.aux


# cublasGemmStridedBatchedEx(handle, opA, opB, m, n, k, &alpha, A, typeA, lda, strideA, B, …, batchCount, compute, algo)
def gemm_strided_batched_ex(
    transa: str,
    transb: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Pointer,
    a_type: str,
    lda: int,
    stride_a: int,
    b: Pointer,
    b_type: str,
    ldb: int,
    stride_b: int,
    beta: float,
    c: Pointer,
    c_type: str,
    ldc: int,
    stride_c: int,
    batch_count: int,
    compute_type: str,
) -> Gemm:
    """Return the products that ``cublasGemmStridedBatchedEx`` computes. Raises ValueError for unknown enumerators."""
    is_a_transposed, is_b_transposed = is_transposed(transa), is_transposed(transb)
    first = Matrix(a, a_type, *((k, m) if is_a_transposed else (m, k)), lda, stride_a)
    second = Matrix(b, b_type, *((n, k) if is_b_transposed else (k, n)), ldb, stride_b)
    result = Matrix(c, c_type, m, n, ldc, stride_c)
    compute = compute_type_named(compute_type)
    return Gemm(first, second, result, result, is_a_transposed, is_b_transposed, alpha, beta, batch_count, compute)


# cublasGemmEx(handle, opA, opB, m, n, k, &alpha, A, typeA, lda, B, typeB, ldb, &beta, C, typeC, ldc, compute, algo)
def gemm_ex(
    transa: str,
    transb: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Pointer,
    a_type: str,
    lda: int,
    b: Pointer,
    b_type: str,
    ldb: int,
    beta: float,
    c: Pointer,
    c_type: str,
    ldc: int,
    compute_type: str,
) -> Gemm:
    """Return the product that ``cublasGemmEx`` computes. Raises ValueError for unknown enumerators."""
    return gemm_strided_batched_ex(
        transa, transb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute_type
    )


# cublasSgemmStridedBatched(handle, opA, opB, m, n, k, &alpha, A, lda, strideA, B, …, &beta, C, …, batchCount)
def sgemm_strided_batched(
    transa: str,
    transb: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Pointer,
    lda: int,
    stride_a: int,
    b: Pointer,
    ldb: int,
    stride_b: int,
    beta: float,
    c: Pointer,
    ldc: int,
    stride_c: int,
    batch_count: int,
) -> Gemm:
    """Return the products that ``cublasSgemmStridedBatched`` computes. Raises ValueError for unknown enumerators."""
    single = "CUDA_R_32F"
    return gemm_strided_batched_ex(
        transa, transb, m, n, k, alpha, a, single, lda, stride_a, b, single, ldb, stride_b,
        beta, c, single, ldc, stride_c, batch_count, "CUBLAS_COMPUTE_32F",
    )  # fmt: skip


# cublasSgemm(handle, opA, opB, m, n, k, &alpha, A, lda, B, ldb, &beta, C, ldc)
def sgemm(
    transa: str,
    transb: str,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: Pointer,
    lda: int,
    b: Pointer,
    ldb: int,
    beta: float,
    c: Pointer,
    ldc: int,
) -> Gemm:
    """Return the product that ``cublasSgemm`` computes. Raises ValueError for unknown enumerators."""
    return sgemm_strided_batched(transa, transb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1)


def problem_of(gemm: Gemm, memory: Callable[[Matrix, str, int], str | None]) -> str | None:
    """Return what is wrong with a product, None where it can be computed.

    ``memory`` says so of the array that a matrix lies in, by the matrix, its name and how many elements it reaches.
    """
    sizes = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "batch count": gemm.batch_count}
    for name, size in sizes.items():
        if size < 0:
            return f"{name} is {size}"
    operands = {
        "A": (gemm.a, gemm.transa, (gemm.m, gemm.k)),
        "B": (gemm.b, gemm.transb, (gemm.k, gemm.n)),
        "C": (gemm.c, False, (gemm.m, gemm.n)),
    }
    for name, (matrix, is_transposed, wanted) in operands.items():
        shape = (matrix.cols, matrix.rows) if is_transposed else (matrix.rows, matrix.cols)
        if shape != wanted:
            return f"{name} is {shape[0]} x {shape[1]} where {wanted[0]} x {wanted[1]} is needed"
    if gemm.is_empty:
        return None
    if gemm.a.dtype != gemm.b.dtype:
        return f"A is of {gemm.a.dtype} and B of {gemm.b.dtype}; cuBLAS takes one type for both"
    for name, one in (*gemm.read(), *gemm.written()):
        if found := _layout_problem(one, name) or memory(one, name, one.elements(gemm.batch_count)):
            return found
    shared = (name for name, one in gemm.written() if gemm.batch_count > 1 and not one.stride)
    return next((f"the {gemm.batch_count} results {name} of the batch lie at one place" for name in shared), None)


def _layout_problem(matrix: Matrix, name: str) -> str | None:
    if matrix.dtype not in MATRIX_DTYPES:
        return f"{name} is of {matrix.dtype}; there are {', '.join(MATRIX_DTYPES)}"
    if matrix.ld < max(matrix.rows, 1):
        return f"the leading dimension of {name} is {matrix.ld}, less than its {matrix.rows} rows"
    if matrix.stride < 0:
        return f"the matrices {name} of the batch lie {matrix.stride} elements apart"
    return None


def is_transposed(operation: str) -> bool:
    """Return whether a ``cublasOperation_t`` transposes. Raises ValueError for one that is not known."""
    if operation not in _OPERATIONS:
        raise ValueError(f"operation {operation} is not known; there are {', '.join(_OPERATIONS)}")
    return _OPERATIONS[operation]


def compute_type_named(name: str) -> str:
    """Return a ``cublasComputeType_t`` by its name or that of a data type. Raises ValueError for an unknown one."""
    if name not in _COMPUTE_TYPES:
        raise ValueError(f"compute type {name} is not supported; there are {', '.join(_COMPUTE_TYPES)}")
    return _COMPUTE_TYPES[name]
