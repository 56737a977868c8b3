"""What the tests of matrix products share: element types, launchers of one product, and formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from llmc2py.runtime import (
    Gemm,
    Launcher,
    LtMatmulDesc,
    LtMatrixLayout,
    Param,
    Pointer,
    gemm_strided_batched_ex,
    lt_matmul,
)

DTYPES = {
    "CUDA_R_32F": np.dtype(np.float32),
    "CUDA_R_16F": np.dtype(np.float16),
    "CUDA_R_16BF": np.dtype(ml_dtypes.bfloat16),
}
#: How far a result may be from the float64 one, relative to the sum of the magnitudes: half a unit and a float32 sum.
ROUNDING = {"CUDA_R_32F": 2e-6, "CUDA_R_16F": 2.0**-11 + 2e-6, "CUDA_R_16BF": 2.0**-8 + 2e-6}
ROOMS = {
    name: f"{'half' if name == 'CUDA_R_16F' else 'bfloat16' if name == 'CUDA_R_16BF' else 'float'}*" for name in DTYPES
}
OPERATION = {False: "CUBLAS_OP_N", True: "CUBLAS_OP_T"}


def call_of(record: Callable[..., Gemm], ctype: str, count: int) -> Launcher:
    """Return a launcher of ``count`` arrays that does the product that ``record(*pointers)`` returns."""
    names = ["a", "b", "d", "bias", "aux"][:count]
    params = [Param(name, ctype, intent="inout") for name in names]
    body = f"lambda plan, {', '.join(names)}: plan.gemm(record({', '.join(names)}))"
    return Launcher(eval(body, {"record": record}), params, origin="llmc/product.cuh:3")


def normal(random: np.random.Generator, count: int, dtype: Any) -> np.ndarray:
    return (random.standard_normal(count) * 1.5 + 0.25).astype(dtype)


def column_major(array: np.ndarray, rows: int, cols: int, ld: int, stride: int, batch: int) -> np.ndarray:
    """Return the matrices of a flat array, in float64, element by element."""
    return np.array(
        [[[float(array[z * stride + j * ld + i]) for j in range(cols)] for i in range(rows)] for z in range(batch)]
    ).reshape(batch, rows, cols)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x: np.ndarray) -> np.ndarray:
    step = 1e-5
    return (gelu(x + step) - gelu(x - step)) / (2 * step)


EPILOGUES = [
    "DEFAULT", "BIAS", "RELU", "RELU_BIAS", "GELU", "GELU_BIAS", "GELU_AUX", "GELU_AUX_BIAS", "DGELU", "DGELU_BGRAD",
    "BGRADA", "BGRADB",
]  # fmt: skip


def lt_call(
    name: str,
    dtype: str,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    beta: float = 0.0,
    aux_room: int = 0,
    transa: bool = True,
    transb: bool = False,
    offset: int = 0,
) -> Launcher:
    """Return a launcher of the arrays a, b, d, bias and aux with an epilogue; matrices start ``offset`` elements in."""

    def record(*pointers: Pointer) -> Gemm:
        a, b, d, bias, aux = (pointer + offset for pointer in pointers)
        desc = LtMatmulDesc("CUBLAS_COMPUTE_32F", "CUDA_R_32F")
        desc.set("CUBLASLT_MATMUL_DESC_TRANSA", OPERATION[transa])
        desc.set("CUBLASLT_MATMUL_DESC_TRANSB", OPERATION[transb])
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE", f"CUBLASLT_EPILOGUE_{name}")
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_POINTER", bias)
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE", max(m, n))
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER", aux)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD", m + aux_room)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE", (m + aux_room) * n)
        forms = (k, m) if transa else (m, k), (n, k) if transb else (k, n), (m, n)
        layouts = [LtMatrixLayout(dtype, rows, cols, max(rows, 1)) for rows, cols in forms]
        for layout, stride in zip(layouts, (k * m, k * n, m * n), strict=True):
            layout.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", batch)
            layout.set("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", stride)
        left, right, result = layouts
        return lt_matmul(desc, 1.0, a, left, b, right, beta, d, result, d, result)

    return call_of(record, ROOMS[dtype], 5)


def lt_arrays(
    seed: int, dtype: str, m: int, n: int, k: int, batch: int, aux_room: int = 0, offset: int = 0
) -> list[np.ndarray]:
    """Return the arrays that a launcher of `lt_call` takes."""
    random = np.random.default_rng(seed)
    counts = (k * m, k * n, m * n, max(m, n), (m + aux_room) * n)
    return [normal(random, batch * count + offset, DTYPES[dtype]) for count in counts]


def small(**changes: Any) -> Callable[..., Gemm]:
    """Return a product of 2 x 2 matrices with some arguments changed."""
    defaults: dict[str, Any] = {
        "transa": "CUBLAS_OP_N", "transb": "CUBLAS_OP_N", "m": 2, "n": 2, "k": 2, "alpha": 1.0, "a_type": "CUDA_R_32F",
        "lda": 2, "stride_a": 4, "b_type": "CUDA_R_32F", "ldb": 2, "stride_b": 4, "beta": 0.0, "c_type": "CUDA_R_32F",
        "ldc": 2, "stride_c": 4, "batch_count": 1, "compute_type": "CUBLAS_COMPUTE_32F",
    }  # fmt: skip
    return lambda a, b, d: gemm_strided_batched_ex(**({"a": a, "b": b, "c": d} | defaults | changes))
