"""The calls of cuBLAS and cuBLASLt that multiply matrices, by where their arguments stand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProductCall:
    """The function of the runtime for a call, and where the arguments of ``D = alpha A B + beta C`` stand.

    The function takes the arguments from ``first`` to before ``end``.
    """

    function: str
    first: int
    end: int
    alpha: int
    beta: int
    a: int
    b: int
    c: int
    d: int


#: The handle goes first in all of them; what stands behind ``end`` are algorithms, workspaces and the stream.
PRODUCT_CALLS = {
    "cublasSgemm": ProductCall("sgemm", 1, 14, 6, 11, 7, 9, 12, 12),
    "cublasSgemmStridedBatched": ProductCall("sgemm_strided_batched", 1, 18, 6, 13, 7, 10, 14, 14),
    "cublasGemmEx": ProductCall("gemm_ex", 1, 18, 6, 13, 7, 10, 14, 14),
    "cublasGemmStridedBatchedEx": ProductCall("gemm_strided_batched_ex", 1, 22, 6, 15, 7, 11, 16, 16),
    "cublasLtMatmul": ProductCall("lt_matmul", 1, 12, 2, 7, 3, 5, 8, 10),
}
#: What sets the pointers of bias vectors and of matrices before an activation.
SET_DESCRIPTOR = "cublasLtMatmulDescSetAttribute"
POINTER_ATTRIBUTES = frozenset({"CUBLASLT_MATMUL_DESC_BIAS_POINTER", "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER"})

_ENUMERATOR = re.compile(r"(CUBLAS_(OP|COMPUTE|GEMM|SIDE|FILL_MODE|DIAG)_|CUBLASLT_|CUDA_[RC]_\d+|CUBLAS_\w+_MATH$)\w*")
#: Where a program chooses when it runs, the precision that loses nothing.
_EXACT = "CUBLAS_COMPUTE_32F"


def is_enumerator(name: str) -> bool:
    """Whether a name is a constant of cuBLAS or cuBLASLt."""
    return _ENUMERATOR.fullmatch(name) is not None


def chosen_enumerator(names: Iterable[str]) -> str | None:
    """Return the constant that a variable stands for which is given these in the source; None where that is open."""
    found = list(dict.fromkeys(names))
    if len(found) == 1:
        return found[0]
    return _EXACT if _EXACT in found and all(name.startswith("CUBLAS_COMPUTE_") for name in found) else None
