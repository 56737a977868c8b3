"""Matrix products: NumPy's against plain formulas in float64, what is refused, and cuBLAS against NumPy's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc2py.runtime import (
    Gemm,
    Launcher,
    LtMatmulDesc,
    LtMatrixLayout,
    Param,
    Plan,
    Pointer,
    gemm_ex,
    gemm_strided_batched_ex,
    launcher,
    lt_matmul,
    products,
    sgemm,
    sgemm_strided_batched,
)
from llmc2py.runtime.arrays import backend_named
from llmc2py.runtime.errors import ToolMissingError

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


EPILOGUES = [
    "DEFAULT", "BIAS", "RELU", "RELU_BIAS", "GELU", "GELU_BIAS", "GELU_AUX", "GELU_AUX_BIAS", "DGELU", "DGELU_BGRAD",
    "BGRADA", "BGRADB",
]  # fmt: skip


def lt_call(
    name: str, dtype: str, m: int, n: int, k: int, batch: int = 1, beta: float = 0.0, aux_room: int = 0
) -> Launcher:
    """Return a launcher of the arrays a (k x m, transposed), b (k x n), d, bias and aux with an epilogue."""

    def record(a: Pointer, b: Pointer, d: Pointer, bias: Pointer, aux: Pointer) -> Gemm:
        desc = LtMatmulDesc("CUBLAS_COMPUTE_32F", "CUDA_R_32F")
        desc.set("CUBLASLT_MATMUL_DESC_TRANSA", "CUBLAS_OP_T")
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE", f"CUBLASLT_EPILOGUE_{name}")
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_POINTER", bias)
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE", max(m, n))
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER", aux)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD", m + aux_room)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE", (m + aux_room) * n)
        layouts = [LtMatrixLayout(dtype, rows, cols, rows) for rows, cols in ((k, m), (k, n), (m, n))]
        for layout, stride in zip(layouts, (k * m, k * n, m * n), strict=True):
            layout.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", batch)
            layout.set("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", stride)
        left, right, result = layouts
        return lt_matmul(desc, 1.0, a, left, b, right, beta, d, result, d, result)

    return call_of(record, ROOMS[dtype], 5)


def lt_arrays(seed: int, dtype: str, m: int, n: int, k: int, batch: int, aux_room: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    counts = (k * m, k * n, m * n, max(m, n), (m + aux_room) * n)
    return [normal(random, batch * count, DTYPES[dtype]) for count in counts]


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


def small(**changes: Any) -> Callable[..., Gemm]:
    """Return a product of 2 x 2 matrices with some arguments changed."""
    defaults: dict[str, Any] = {
        "transa": "CUBLAS_OP_N", "transb": "CUBLAS_OP_N", "m": 2, "n": 2, "k": 2, "alpha": 1.0, "a_type": "CUDA_R_32F",
        "lda": 2, "stride_a": 4, "b_type": "CUDA_R_32F", "ldb": 2, "stride_b": 4, "beta": 0.0, "c_type": "CUDA_R_32F",
        "ldc": 2, "stride_c": 4, "batch_count": 1, "compute_type": "CUBLAS_COMPUTE_32F",
    }  # fmt: skip
    return lambda a, b, d: gemm_strided_batched_ex(**({"a": a, "b": b, "c": d} | defaults | changes))


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


def test_a_missing_cublas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise ImportError("libcublas.so.13: cannot open shared object file")

    monkeypatch.setattr(products.importlib, "import_module", fails)
    products._cublas.cache_clear()
    gemm = small()(*(Pointer(slot, 0, "float*") for slot in range(3)))
    with pytest.raises(ToolMissingError, match=r"libcublas.so.13.*llmc2py\[cuda13,gemm\]"):
        products.product_step(gemm, "cuda")
    products._cublas.cache_clear()


class FakeCublas:
    """Stands for CuPy and its binding: computes products in the memory of the process, element by element."""

    dtypes: ClassVar = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
    tanh, maximum = staticmethod(np.tanh), staticmethod(np.maximum)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.modes = {"pointer": 1, "math": 3}
        self.cupy = self.binding = self.cuda = self.runtime = self

    handle = getDevice = lambda self: 0  # noqa: N815

    def getPointerMode(self, handle: int) -> int:  # noqa: N802
        return self.modes["pointer"]

    def getMathMode(self, handle: int) -> int:  # noqa: N802
        return self.modes["math"]

    def setPointerMode(self, handle: int, mode: int) -> None:  # noqa: N802
        self.modes["pointer"] = mode

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        self.modes["math"] = mode

    def UnownedMemory(self, address: int, size: int, owner: None, device: int) -> Any:  # noqa: N802
        return (ctypes.c_char * size).from_address(address)

    def MemoryPointer(self, memory: Any, offset: int) -> Any:  # noqa: N802
        return memory

    def ndarray(self, shape: Any, dtype: Any, memory: Any, strides: Any) -> np.ndarray:
        return np.ndarray(shape, dtype, memory, strides=strides)

    def gemmStridedBatchedEx(  # noqa: N802
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, *operands: int
    ) -> None:
        a, a_type, lda, sa, b, b_type, ldb, sb, beta, d, d_type, ldd, sd, batch, compute, _ = operands
        assert self.modes == {"pointer": 0, "math": 0}
        self.calls.append((a_type, b_type, d_type, compute))

        def at(address: int, kind: int, index: int) -> np.ndarray:
            dtype = np.dtype(self.dtypes[kind])
            memory = (ctypes.c_char * dtype.itemsize).from_address(address + index * dtype.itemsize)
            return np.ndarray((), dtype, memory)

        scale = {64: 2, 68: 0, 77: 0, 70: 1}[compute]
        for z in range(batch):
            for i in range(m):
                for j in range(n):
                    total = 0.0
                    for p in range(k):
                        left = at(a, a_type, z * sa + (i * lda + p if transa else p * lda + i))
                        right = at(b, b_type, z * sb + (p * ldb + j if transb else j * ldb + p))
                        total += float(left) * float(right)
                    target = at(d, d_type, z * sd + j * ldd + i)
                    before = float(at(beta, scale, 0))
                    total = float(at(alpha, scale, 0)) * total + (before * float(target) if before else 0.0)
                    target[...] = np.asarray(total, target.dtype)


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> FakeCublas:
    fake = FakeCublas()
    monkeypatch.setattr(products, "backend_named", lambda name: backend_named("cpu"))
    return fake


def steps_agree(call: Launcher, arrays: list[np.ndarray], fake: FakeCublas, tolerance: float) -> None:
    """Run a product with NumPy and through the fake cuBLAS and compare all arrays."""
    (gemm,) = call.plan(*arrays).operations
    assert isinstance(gemm, Gemm)
    copies = [array.copy() for array in arrays]
    products._cuda_step(gemm, fake)([array.ctypes.data for array in copies], 0)  # type: ignore[arg-type]
    call(*arrays)
    assert fake.modes == {"pointer": 1, "math": 3}
    for one, other in zip(arrays, copies, strict=True):
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("k", [0, 5])
def test_the_way_through_cublas_with_epilogues(name: str, dtype: str, k: int, cublas: FakeCublas) -> None:
    for beta in (0.0, 0.5):
        arrays = lt_arrays(3, dtype, 4, 3, k, 2, aux_room=1)
        steps_agree(lt_call(name, dtype, 4, 3, k, 2, beta=beta, aux_room=1), arrays, cublas, 4 * ROUNDING[dtype])
    number = {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}[dtype]
    written = number if name == "DEFAULT" else 0
    assert cublas.calls == ([(number, number, written, 68)] * 2 if k else [])


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_the_arguments_of_cublas(dtype: str, transa: bool, transb: bool, cublas: FakeCublas) -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        operands = (a + 1, dtype, 7, 28), (b + 2, dtype, 6, 30), (d + 3, dtype, 5, 21)
        return gemm_strided_batched_ex(
            OPERATION[transa], OPERATION[transb], 4, 3, 2, -0.75, *operands[0], *operands[1], 0.5, *operands[2], 2,
            "CUBLAS_COMPUTE_32F_FAST_TF32" if dtype == "CUDA_R_32F" else "CUBLAS_COMPUTE_32F",
        )  # fmt: skip

    arrays = [normal(np.random.default_rng(4), 70, DTYPES[dtype]) for _ in range(3)]
    steps_agree(call_of(record, ROOMS[dtype], 3), arrays, cublas, 4 * ROUNDING[dtype])
    assert [one[3] for one in cublas.calls] == [77 if dtype == "CUDA_R_32F" else 68]


def test_scalars_of_half_precision_sums_are_half(cublas: FakeCublas) -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        half = "CUDA_R_16F"
        return gemm_ex(
            "CUBLAS_OP_N", "CUBLAS_OP_N", 2, 2, 2, 0.5, a, half, 2, b, half, 2, 2.0, d, half, 2, "CUBLAS_COMPUTE_16F"
        )

    arrays = [normal(np.random.default_rng(4), 4, np.float16) for _ in range(3)]
    steps_agree(call_of(record, "half*", 3), arrays, cublas, 4 * ROUNDING["CUDA_R_16F"])
    assert cublas.calls == [(2, 2, 2, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(1, 1, 1, 1), (67, 33, 129, 1), (64, 48, 32, 3), (5, 9, 0, 2)])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_cublas_does_what_numpy_does(name: str, dtype: str, m: int, n: int, k: int, batch: int, beta: float) -> None:
    cupy = pytest.importorskip("cupy")
    arrays = lt_arrays(m, dtype, m, n, k, batch, aux_room=3)
    if beta == 0:
        arrays[2][...] = np.nan
    on_device = [cupy.asarray(array) for array in arrays]
    call = lt_call(name, dtype, m, n, k, batch, beta=beta, aux_room=3)
    call(*arrays)
    call(*on_device)
    for array, other in zip(arrays, on_device, strict=True):
        host, device = array.astype(np.float64), cupy.asnumpy(other).astype(np.float64)
        # Sums in another order may fall on the other side of a rounding: two units of the type.
        np.testing.assert_allclose(device, host, rtol=4 * ROUNDING[dtype], atol=4 * ROUNDING[dtype] * math.sqrt(k + 1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_cublas_adds_to_what_is_there_and_reads_strided_matrices(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    random = np.random.default_rng(1)

    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        return gemm_strided_batched_ex(
            "CUBLAS_OP_T", "CUBLAS_OP_T", 6, 5, 7, -0.75, a, dtype, 21, 7, b, dtype, 6, 45, 0.5, d, dtype, 18, 6, 3,
            "CUBLAS_COMPUTE_32F",
        )  # fmt: skip

    arrays = [normal(random, 140, DTYPES[dtype]) for _ in range(3)]
    on_device = [cupy.asarray(array) for array in arrays]
    call = call_of(record, ROOMS[dtype], 3)
    call(*arrays)
    call(*on_device)
    host, device = arrays[2].astype(np.float64), cupy.asnumpy(on_device[2]).astype(np.float64)
    np.testing.assert_allclose(device, host, rtol=4 * ROUNDING[dtype], atol=8 * ROUNDING[dtype])
