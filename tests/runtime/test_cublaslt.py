"""Products that descriptors of cuBLASLt describe: epilogues against formulas in float64, and descriptors themselves."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Gemm, LtMatmulDesc, LtMatrixLayout, Pointer, lt_matmul
from tests.runtime.matmuls import (
    DTYPES,
    EPILOGUES,
    ROUNDING,
    call_of,
    column_major,
    gelu,
    gelu_slope,
    lt_arrays,
    lt_call,
)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(1, 1, 1, 1), (7, 3, 5, 1), (8, 16, 4, 2), (5, 9, 0, 3)])
def test_epilogues(name: str, dtype: str, m: int, n: int, k: int, batch: int) -> None:
    a, b, d, bias, aux = lt_arrays(m, dtype, m, n, k, batch, aux_room=2)
    old = {"d": d.copy(), "bias": bias.copy(), "aux": aux.copy()}
    lt_call(name, dtype, m, n, k, batch, beta=0.5, aux_room=2)(a, b, d, bias, aux)
    left = column_major(a, k, m, k, k * m, batch).swapaxes(1, 2)
    right = column_major(b, k, n, k, k * n, batch)
    product = left @ right + 0.5 * column_major(old["d"], m, n, m, m * n, batch)
    size = np.abs(left) @ np.abs(right) + np.abs(column_major(old["d"], m, n, m, m * n, batch))
    added = old["bias"].astype(np.float64).reshape(batch, -1)[:, :m, None]
    stored = column_major(old["aux"], m, n, m + 2, (m + 2) * n, batch)
    if name in ("BIAS", "RELU_BIAS", "GELU_BIAS", "GELU_AUX_BIAS"):
        product, size = product + added, size + np.abs(added)
    wanted = product
    if name.startswith("GELU"):
        wanted = gelu(product)
    elif name.startswith("RELU"):
        wanted = np.maximum(product, 0)
    elif name.startswith("DGELU"):
        wanted, size = product * gelu_slope(stored), 1.2 * size
    bound = ROUNDING[dtype] * 1.2 * size + 1e-6
    assert (np.abs(column_major(d, m, n, m, m * n, batch) - wanted) <= bound).all()
    if name in ("GELU_AUX", "GELU_AUX_BIAS"):
        assert (np.abs(column_major(aux, m, n, m + 2, (m + 2) * n, batch) - product) <= bound).all()
    else:
        np.testing.assert_array_equal(aux, old["aux"])
    sums = {
        "DGELU_BGRAD": (wanted.sum(2), size.sum(2)),
        "BGRADA": (left.sum(2), np.abs(left).sum(2)),
        "BGRADB": (right.sum(1), np.abs(right).sum(1)),
    }
    got = bias.astype(np.float64).reshape(batch, -1)
    if name in sums:
        total, magnitude = sums[name]
        assert (np.abs(got[:, : total.shape[1]] - total) <= ROUNDING[dtype] * magnitude + 1e-5).all()
    else:
        np.testing.assert_array_equal(bias, old["bias"])


def test_a_bias_serves_all_matrices_of_a_batch() -> None:
    def record(a: Pointer, b: Pointer, d: Pointer, bias: Pointer) -> Gemm:
        desc = LtMatmulDesc("CUBLAS_COMPUTE_32F")
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE", "CUBLASLT_EPILOGUE_BIAS")
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_POINTER", bias)
        layout = LtMatrixLayout("CUDA_R_32F", 2, 2, 2)
        layout.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", 2)
        layout.set("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", 4)
        return lt_matmul(desc, 1.0, a, layout, b, layout, 0.0, d, layout, d, layout)

    eye = np.tile(np.eye(2, dtype=np.float32).ravel(), 2)
    d = np.empty(8, np.float32)
    call_of(record, "float*", 4)(eye, eye, d, np.array([10, 20], np.float32))
    assert d.tolist() == [11, 20, 10, 21, 11, 20, 10, 21]


def test_c_may_lie_elsewhere_than_d() -> None:
    def record(a: Pointer, b: Pointer, d: Pointer, c: Pointer) -> Gemm:
        layout = LtMatrixLayout("CUDA_R_32F", 1, 1, 1)
        return lt_matmul(LtMatmulDesc("CUBLAS_COMPUTE_32F"), 2.0, a, layout, b, layout, 3.0, c, layout, d, layout)

    a, b, d, c = (np.array([value], np.float32) for value in (5, 7, np.nan, 11))
    call_of(record, "float*", 4)(a, b, d, c)
    assert (d[0], c[0]) == (103, 11)


def test_descriptors_know_their_attributes() -> None:
    with pytest.raises(ValueError, match="CUBLASLT_MATMUL_DESC_FAST_ACCUM is not supported; there are COMPUTE_TYPE, "):
        LtMatmulDesc("CUBLAS_COMPUTE_32F").set("CUBLASLT_MATMUL_DESC_FAST_ACCUM", 1)
    with pytest.raises(ValueError, match="CUBLASLT_MATRIX_LAYOUT_ORDER is not supported"):
        LtMatrixLayout("CUDA_R_32F", 1, 1, 1).set("CUBLASLT_MATRIX_LAYOUT_ORDER", "CUBLASLT_ORDER_ROW")


def test_layouts_have_to_agree() -> None:
    pointer = Pointer(0, 0, "float*")
    desc = LtMatmulDesc("CUBLAS_COMPUTE_32F")
    square, batched = LtMatrixLayout("CUDA_R_32F", 2, 2, 2), LtMatrixLayout("CUDA_R_32F", 2, 2, 2)
    batched.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", 3)
    with pytest.raises(ValueError, match=r"different batch counts: \[1, 3\]"):
        lt_matmul(desc, 1.0, pointer, square, pointer, batched, 0.0, pointer, square, pointer, square)
    desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE", "CUBLASLT_EPILOGUE_RELU_AUX")
    with pytest.raises(ValueError, match="epilogue CUBLASLT_EPILOGUE_RELU_AUX is not supported"):
        lt_matmul(desc, 1.0, pointer, square, pointer, square, 0.0, pointer, square, pointer, square)

    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        wide = LtMatrixLayout("CUDA_R_32F", 2, 3, 2)
        plain = LtMatmulDesc("CUBLAS_COMPUTE_32F")
        return lt_matmul(plain, 1.0, a, square, b, wide, 0.0, d, square, d, square)

    with pytest.raises(ValueError, match="B is 2 x 3 where 2 x 2 is needed"):
        call_of(record, "float*", 3)(*(np.zeros(6, np.float32) for _ in range(3)))
