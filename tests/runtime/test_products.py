"""Products on CUDA through cuBLAS and CuPy, the way without nvmath-python: a stand-in for them against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Gemm, Launcher, Pointer, cublas, gemm_ex, gemm_strided_batched_ex, products
from llmc2py.runtime.arrays import backend_named
from llmc2py.runtime.errors import ToolMissingError
from tests.runtime.fakeblas import FakeCublas
from tests.runtime.matmuls import (
    DTYPES,
    EPILOGUES,
    OPERATION,
    ROOMS,
    ROUNDING,
    call_of,
    lt_arrays,
    lt_call,
    normal,
    small,
)


def test_a_missing_cublas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise ImportError("libcublas.so.13: cannot open shared object file")

    monkeypatch.setattr(cublas.importlib, "import_module", fails)
    cublas.cublas.cache_clear()
    gemm = small()(*(Pointer(slot, 0, "float*") for slot in range(3)))
    with pytest.raises(ToolMissingError, match=r"libcublas.so.13.*llmc2py\[cuda13,gemm\]"):
        products.product_step(gemm, "cuda")
    cublas.cublas.cache_clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCublas:
    fake = FakeCublas()
    monkeypatch.setattr(products, "backend_named", lambda name: backend_named("cpu"))
    return fake


def steps_agree(call: Launcher, arrays: list[np.ndarray], fake: FakeCublas, tolerance: float) -> None:
    """Run a product with NumPy and through the fake cuBLAS and compare all arrays."""
    (gemm,) = call.plan(*arrays).operations
    assert isinstance(gemm, Gemm)
    copies = [array.copy() for array in arrays]
    products._cuda_step(gemm, fake, None, 0)([array.ctypes.data for array in copies], 0)  # type: ignore[arg-type]
    call(*arrays)
    assert fake.modes == {"pointer": 1, "math": 3}
    for one, other in zip(arrays, copies, strict=True):
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("k", [0, 5])
def test_the_way_through_cublas_with_epilogues(name: str, dtype: str, k: int, fake: FakeCublas) -> None:
    for beta in (0.0, 0.5):
        arrays = lt_arrays(3, dtype, 4, 3, k, 2, aux_room=1)
        steps_agree(lt_call(name, dtype, 4, 3, k, 2, beta=beta, aux_room=1), arrays, fake, 4 * ROUNDING[dtype])
    number = {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}[dtype]
    written = number if name == "DEFAULT" else 0
    assert fake.calls == ([(number, number, written, 68)] * 2 if k else [])


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_the_arguments_of_cublas(dtype: str, transa: bool, transb: bool, fake: FakeCublas) -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        operands = (a + 1, dtype, 7, 28), (b + 2, dtype, 6, 30), (d + 3, dtype, 5, 21)
        return gemm_strided_batched_ex(
            OPERATION[transa], OPERATION[transb], 4, 3, 2, -0.75, *operands[0], *operands[1], 0.5, *operands[2], 2,
            "CUBLAS_COMPUTE_32F_FAST_TF32" if dtype == "CUDA_R_32F" else "CUBLAS_COMPUTE_32F",
        )  # fmt: skip

    arrays = [normal(np.random.default_rng(4), 70, DTYPES[dtype]) for _ in range(3)]
    steps_agree(call_of(record, ROOMS[dtype], 3), arrays, fake, 4 * ROUNDING[dtype])
    assert [one[3] for one in fake.calls] == [77 if dtype == "CUDA_R_32F" else 68]


def test_scalars_of_half_precision_sums_are_half(fake: FakeCublas) -> None:
    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        half = "CUDA_R_16F"
        return gemm_ex(
            "CUBLAS_OP_N", "CUBLAS_OP_N", 2, 2, 2, 0.5, a, half, 2, b, half, 2, 2.0, d, half, 2, "CUBLAS_COMPUTE_16F"
        )

    arrays = [normal(np.random.default_rng(4), 4, np.float16) for _ in range(3)]
    steps_agree(call_of(record, "half*", 3), arrays, fake, 4 * ROUNDING["CUDA_R_16F"])
    assert fake.calls == [(2, 2, 2, 64)]


def test_modes_are_set_only_where_they_differ(fake: FakeCublas, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = small()(*(Pointer(slot, 0, "float*") for slot in range(3)))
    arrays = [np.ones(4, np.float32) for _ in range(3)]
    step = products._cuda_step(gemm, fake, None, 0)  # type: ignore[arg-type]
    fake.modes = {"pointer": 0, "math": 0}
    monkeypatch.setattr(fake, "setMathMode", lambda handle, mode: pytest.fail("set without need"))
    step([array.ctypes.data for array in arrays], 0)
    assert arrays[2].tolist() == [2, 2, 2, 2]
