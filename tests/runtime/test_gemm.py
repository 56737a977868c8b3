"""Matrix products: NumPy's against plain formulas in float64, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc2py.runtime import (
    Gemm,
    Param,
    Plan,
    Pointer,
    gemm_ex,
    gemm_strided_batched_ex,
    launcher,
    sgemm,
    sgemm_strided_batched,
)
from tests.runtime.matmuls import DTYPES, OPERATION, ROOMS, ROUNDING, call_of, column_major, normal, small

sizes = st.integers(1, 9)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(list(DTYPES)),
    shape=st.tuples(sizes, sizes, st.integers(0, 9)),
    transposes=st.tuples(st.booleans(), st.booleans()),
    room=st.tuples(*[st.integers(0, 3)] * 6),
    batch=st.sampled_from([1, 2, 3]),
    scales=st.tuples(st.sampled_from([1.0, 0.0, -0.75]), st.sampled_from([0.0, 1.0, 0.5])),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_any_form(
    dtype: str, shape: Any, transposes: Any, room: Any, batch: int, scales: Any, seed: int
) -> None:
    (m, n, k), (transa, transb), (alpha, beta) = shape, transposes, scales
    forms = [(k, m) if transa else (m, k), (n, k) if transb else (k, n), (m, n)]
    lds = [max(rows, 1) + more for (rows, _), more in zip(forms, room, strict=False)]
    strides = [ld * cols + more for ld, (_, cols), more in zip(lds, forms, room[3:], strict=True)]
    random = np.random.default_rng(seed)
    a, b, d = (normal(random, stride * batch, DTYPES[dtype]) for stride in strides)
    if beta == 0:
        d[...] = np.nan
    before = d.copy()

    def record(*pointers: Pointer) -> Gemm:
        operands = [x for p, ld, s in zip(pointers, lds, strides, strict=True) for x in ((p, dtype, ld, s),)]
        first, second, result = operands
        return gemm_strided_batched_ex(
            OPERATION[transa], OPERATION[transb], m, n, k, alpha, *first, *second, beta, *result, batch,
            "CUBLAS_COMPUTE_32F",
        )  # fmt: skip

    call_of(record, ROOMS[dtype], 3)(a, b, d)
    left, right = (
        column_major(array, *form, ld, stride, batch)
        for array, form, ld, stride in zip((a, b), forms, lds, strides, strict=False)
    )
    left, right = (x.swapaxes(1, 2) if t else x for x, t in zip((left, right), transposes, strict=True))
    wanted, size = alpha * (left @ right), abs(alpha) * (np.abs(left) @ np.abs(right))
    if beta:
        old = column_major(before, m, n, lds[2], strides[2], batch)
        wanted, size = wanted + beta * old, size + np.abs(beta * old)
    got = column_major(d, m, n, lds[2], strides[2], batch)
    assert (np.abs(got - wanted) <= ROUNDING[dtype] * size + 1e-7).all()
    outside = np.ones(d.size, bool)
    for z in range(batch):
        for j in range(n):
            outside[z * strides[2] + j * lds[2] : z * strides[2] + j * lds[2] + m] = False
    np.testing.assert_array_equal(d[outside].astype(np.float32), before[outside].astype(np.float32))


def test_the_short_forms_are_special_cases() -> None:
    a, b = Pointer(0, 0, "float*"), Pointer(1, 4, "float*")
    d = Pointer(2, 0, "float*")
    single = "CUDA_R_32F"
    plain = sgemm("CUBLAS_OP_T", "CUBLAS_OP_N", 2, 3, 4, 1.0, a, 4, b, 5, 0.5, d, 6)
    assert plain == gemm_ex(
        "CUBLAS_OP_T", "CUBLAS_OP_N", 2, 3, 4, 1.0, a, single, 4, b, single, 5, 0.5, d, single, 6, "CUBLAS_COMPUTE_32F"
    )
    assert (plain.m, plain.n, plain.k, plain.batch_count) == (2, 3, 4, 1)
    assert (plain.transa, plain.transb, plain.a.rows, plain.b.ld, plain.d.ld) == (True, False, 4, 5, 6)
    batched = sgemm_strided_batched("CUBLAS_OP_N", "CUBLAS_OP_C", 2, 3, 4, 1.0, a, 2, 8, b, 3, 12, 0.0, d, 2, 6, 7)
    assert (batched.a.stride, batched.b.stride, batched.d.stride, batched.batch_count) == (8, 12, 6, 7)
    assert (batched.transb, batched.k) == (True, 4)


def test_operations_are_recorded_to_look_at() -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        return sgemm("CUBLAS_OP_N", "CUBLAS_OP_N", 2, 2, 2, 1.0, a, 2, b, 2, 0.0, d, 2)

    (operation,) = call_of(record, "float*", 3).plan(*(np.zeros(4, np.float32) for _ in range(3))).operations
    assert isinstance(operation, Gemm)
    assert (operation.m, operation.n, operation.k, operation.compute) == (2, 2, 2, "CUBLAS_COMPUTE_32F")
    assert operation.d.pointer == Pointer(2, 0, "float*")


@pytest.mark.parametrize(("m", "n", "batch"), [(0, 3, 1), (3, 0, 1), (3, 3, 0)])
def test_nothing_is_done_without_elements(m: int, n: int, batch: int) -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        return sgemm_strided_batched("CUBLAS_OP_N", "CUBLAS_OP_N", m, n, 2, 1.0, a, 3, 6, b, 2, 6, 0.0, d, 3, 9, batch)

    a, b, d = np.ones(6, np.float32), np.ones(6, np.float32), np.full(9, 7, np.float32)
    call = call_of(record, "float*", 3)
    assert call.plan(a, b, d).operations == []
    call(a, b, d)
    assert (d == 7).all()


def test_infinities_and_overflow_are_results() -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        half = "CUDA_R_16F"
        return gemm_ex(
            "CUBLAS_OP_N", "CUBLAS_OP_N", 2, 1, 1, 1.0, a, half, 2, b, half, 1, 0.0, d, half, 2, "CUDA_R_32F"
        )

    d = np.zeros(2, np.float16)
    call_of(record, "half*", 3)(np.array([6e4, np.nan], np.float16), np.array([6e4], np.float16), d)
    assert math.isinf(d[0])
    assert math.isnan(d[1])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"m": -1}, ValueError, "product: m is -1"),
        ({"lda": 1}, ValueError, "the leading dimension of A is 1, less than its 2 rows"),
        ({"ldb": 3}, ValueError, r"B has 5 elements, `b` has 4 from there on \(llmc/product.cuh:3\)"),
        ({"batch_count": 2}, ValueError, "A has 8 elements, `a` has 4"),
        (
            {"batch_count": 2, "stride_a": 0, "stride_b": 0, "stride_c": 0},
            ValueError,
            "2 results D .* lie at one place",
        ),
        ({"stride_a": -1}, ValueError, "matrices A of the batch lie -1 elements apart"),
        ({"transa": "CUBLAS_OP_X"}, ValueError, "operation CUBLAS_OP_X is not known"),
        ({"compute_type": "CUBLAS_COMPUTE_32I"}, ValueError, "compute type CUBLAS_COMPUTE_32I is not supported"),
        ({"a_type": "CUDA_R_8I", "b_type": "CUDA_R_8I"}, ValueError, "A is of CUDA_R_8I; there are CUDA_R_32F"),
        ({"a_type": "CUDA_R_16F"}, ValueError, "A is of CUDA_R_16F and B of CUDA_R_32F"),
        ({"c_type": "CUDA_R_16F"}, TypeError, r"D is float\* \(float32\), but CUDA_R_16F is float16"),
        ({"a": None}, TypeError, "matrix product: A is null"),
    ],
)
def test_what_cannot_be_computed_is_refused(changes: Any, error: Any, message: str) -> None:
    call = call_of(small(**changes), "float*", 3)
    arrays = [np.ones(4, np.float32) for _ in range(3)]
    with pytest.raises(error, match=message):
        call(*arrays)
    assert (arrays[2] == 1).all()


def test_asking_for_an_alignment_gives_it() -> None:
    seen: list[int] = []

    @launcher([Param("a", "float*", intent="in"), Param("d", "float*", intent="inout")])
    def product(plan: Plan, a: Pointer, d: Pointer) -> None:
        seen.extend(plan.misalignment(p, 16) for p in (a, a + 4, a + 1, None))
        plan.gemm(sgemm("CUBLAS_OP_N", "CUBLAS_OP_N", 1, 1, 1, 1.0, a, 1, a, 1, 0.0, d, 1))

    storage = np.arange(16, dtype=np.float32)
    start = -storage.ctypes.data // 4 % 4 + 1
    misaligned, d = storage[start : start + 8], np.zeros(1, np.float32)
    assert misaligned.ctypes.data % 16 == 4
    product(misaligned, d)
    assert seen == [0, 0, 4, 0]
    assert d[0] == misaligned[0] ** 2
    assert product.plan(misaligned, d).slots[0].align == 16


def test_an_array_without_elements_is_a_sum_of_nothing() -> None:
    a, b, d = np.empty(0, np.float32), np.empty(0, np.float32), np.full(4, 3, np.float32)
    call_of(small(k=0, beta=0.5), "float*", 3)(a, b, d)
    assert d.tolist() == [1.5, 1.5, 1.5, 1.5]
