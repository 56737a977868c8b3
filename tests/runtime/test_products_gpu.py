"""Products on a GPU, through cuBLASLt and through cuBLAS, against NumPy's."""

from __future__ import annotations

import importlib
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Gemm, Launcher, Pointer, gemm_strided_batched_ex, ltmatmul, products
from tests.runtime.matmuls import DTYPES, EPILOGUES, ROOMS, ROUNDING, call_of, lt_arrays, lt_call, normal

pytestmark = pytest.mark.gpu

HALVES = ["CUDA_R_16F", "CUDA_R_16BF"]
#: What llm.c's linear layers ask for.
LINEAR = ["DEFAULT", "BIAS", "GELU_AUX_BIAS", "DGELU"]


@pytest.fixture(params=["cuBLASLt", "cuBLAS"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuBLASLt":
        pytest.importorskip("nvmath")
        assert ltmatmul.nvmath_library() is not None
    else:
        monkeypatch.setattr(products, "nvmath_library", lambda: None)
    return str(request.param)


@pytest.fixture
def one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make products fail that are not done in one call of cuBLASLt."""
    pytest.importorskip("nvmath")
    assert ltmatmul.nvmath_library() is not None
    monkeypatch.setattr(products, "_step_by_step", lambda *_: lambda *_: pytest.fail("not in one call"))


def on_device(arrays: list[np.ndarray]) -> list[Any]:
    return [importlib.import_module("cupy").asarray(array) for array in arrays]


def check_equal(arrays: list[np.ndarray], others: list[Any], dtype: str, k: int) -> None:
    """Compare with what NumPy computed; sums in another order may fall on the other side of a rounding."""
    for array, other in zip(arrays, others, strict=True):
        host, device = array.astype(np.float64), other.get().astype(np.float64)
        np.testing.assert_allclose(device, host, rtol=4 * ROUNDING[dtype], atol=4 * ROUNDING[dtype] * math.sqrt(k + 1))


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "aux_room", "beta"),
    [
        (1, 1, 1, 1, 3, 0.0),
        (67, 33, 129, 1, 3, 0.5),
        (64, 48, 32, 3, 0, 0.0),
        (67, 40, 24, 2, 5, 0.5),
        (5, 9, 0, 2, 3, 0.0),
    ],
)
def test_epilogues(
    name: str, dtype: str, m: int, n: int, k: int, batch: int, aux_room: int, beta: float, library: str
) -> None:
    arrays = lt_arrays(m, dtype, m, n, k, batch, aux_room=aux_room)
    if beta == 0:
        arrays[2][...] = np.nan
    others = on_device(arrays)
    call = lt_call(name, dtype, m, n, k, batch, beta=beta, aux_room=aux_room)
    call(*arrays)
    call(*others)
    check_equal(arrays, others, dtype, k)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 40, 72), (63, 41, 71)])
def test_transposes_and_alignments(
    dtype: str, transa: bool, transb: bool, m: int, n: int, k: int, library: str
) -> None:
    for name, offset in itertools.product(LINEAR, [0, 1, 2, 8]):
        arrays = lt_arrays(m, dtype, m, n, k, 1, offset=offset)
        others = on_device(arrays)
        call = lt_call(name, dtype, m, n, k, beta=1.0, transa=transa, transb=transb, offset=offset)
        call(*arrays)
        call(*others)
        check_equal(arrays, others, dtype, k)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("offset", [0, 1, 2, 8])
@pytest.mark.parametrize(("m", "n"), [(64, 40), (63, 41)])
def test_a_bias_is_added_before_the_product_is_rounded(m: int, n: int, offset: int, dtype: str, library: str) -> None:
    # A product that has more digits than 16 bits hold, of which a bias leaves the last.
    a, b, d, bias, aux = lt_arrays(1, dtype, m, n, 64, 1, offset=offset)
    a[...], b[...], bias[...] = 0, 0, -1
    for array, value in ((a, 2**-6), (b, 2**-7)):
        rows = array[offset:].reshape(-1, 64)
        rows[:, 0], rows[:, 1] = 1, value
    others = on_device([a, b, d, bias, aux])
    lt_call("BIAS", dtype, m, n, 64, offset=offset)(*others)
    assert (others[2].get()[offset:] == np.float32(2**-13)).all()


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_strided_matrices_of_a_batch(dtype: str, library: str) -> None:
    random = np.random.default_rng(1)

    def record(a: Pointer, b: Pointer, d: Pointer) -> Gemm:
        return gemm_strided_batched_ex(
            "CUBLAS_OP_T", "CUBLAS_OP_T", 6, 5, 7, -0.75, a, dtype, 21, 7, b, dtype, 6, 45, 0.5, d, dtype, 18, 6, 3,
            "CUBLAS_COMPUTE_32F",
        )  # fmt: skip

    arrays = [normal(random, 140, DTYPES[dtype]) for _ in range(3)]
    others = on_device(arrays)
    call = call_of(record, ROOMS[dtype], 3)
    call(*arrays)
    call(*others)
    check_equal(arrays, others, dtype, 7)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LINEAR)
def test_linear_layers_are_one_call(name: str, dtype: str, one_call: None) -> None:
    arrays = lt_arrays(2, dtype, 96, 128, 64, 1)
    others = on_device(arrays)
    call = lt_call(name, dtype, 96, 128, 64)
    call(*arrays)
    call(*others)
    check_equal(arrays, others, dtype, 64)


@pytest.mark.parametrize("transb", [False, True])
def test_float32_is_one_call_and_not_rounded_to_tf32(transb: bool, one_call: None) -> None:
    arrays = lt_arrays(2, "CUDA_R_32F", 96, 128, 512, 1)
    others = on_device(arrays)
    call = lt_call("BIAS", "CUDA_R_32F", 96, 128, 512, transb=transb)
    call(*arrays)
    call(*others)
    check_equal(arrays, others, "CUDA_R_32F", 512)


def capture(call: Launcher, arrays: list[Any]) -> tuple[Any, Any]:
    """Return a stream and the graph of a second call on it."""
    cupy = importlib.import_module("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        call(*arrays)
        stream.synchronize()
        stream.begin_capture()
        call(*arrays)
        graph = stream.end_capture()
    return stream, graph


@pytest.mark.parametrize("name", LINEAR)
def test_a_product_is_captured_after_a_first_call(name: str, one_call: None) -> None:
    dtype = "CUDA_R_16BF"
    call = lt_call(name, dtype, 96, 128, 64)
    others = on_device(lt_arrays(2, dtype, 96, 128, 64, 1))
    stream, graph = capture(call, others)
    arrays = lt_arrays(7, dtype, 96, 128, 64, 1)
    for array, other in zip(arrays, others, strict=True):
        other.set(array)
    importlib.import_module("cupy").cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    call(*arrays)
    check_equal(arrays, others, dtype, 64)


def test_a_product_is_captured_on_a_stream_that_saw_none(one_call: None) -> None:
    cupy = importlib.import_module("cupy")
    dtype = "CUDA_R_16BF"
    call = lt_call("GELU_AUX_BIAS", dtype, 96, 128, 64)
    arrays = lt_arrays(7, dtype, 96, 128, 64, 1)
    others = on_device(arrays)
    call.warmup(*others)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        call(*others)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    call(*arrays)
    check_equal(arrays, others, dtype, 64)


# Small ones take an algorithm of several kernels, and threads on one stream launch them in any order.
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("GELU_AUX_BIAS", "CUDA_R_16BF", (96, 128, 64)),
        ("BIAS", "CUDA_R_32F", (1, 1, 1)),
        ("BIAS", "CUDA_R_16F", (1, 1, 1)),
        ("DEFAULT", "CUDA_R_32F", (2, 3, 700)),
    ],
)
@pytest.mark.parametrize("own_streams", [False, True])
def test_threads_multiply_at_once(
    library: str, name: str, dtype: str, shape: tuple[int, int, int], own_streams: bool
) -> None:
    cupy = importlib.import_module("cupy")
    call = lt_call(name, dtype, *shape)
    arrays = [lt_arrays(seed, dtype, *shape, 1) for seed in range(4)]
    others = [on_device(one) for one in arrays]
    cupy.cuda.Device().synchronize()
    failures: list[BaseException] = []

    def work(mine: list[Any]) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) if own_streams else cupy.cuda.Stream.null as stream:
                for _ in range(200):
                    call(*mine)
                stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for one, other in zip(arrays, others, strict=True):
        call(*one)
        check_equal(one, other, dtype, shape[2])


@pytest.mark.parametrize(("name", "dtype"), [("GELU_AUX_BIAS", "CUDA_R_16BF"), ("BIAS", "CUDA_R_32F")])
def test_threads_that_have_called_nothing_of_cuda_multiply(library: str, name: str, dtype: str) -> None:
    shape = 96, 128, 64
    call, arrays = lt_call(name, dtype, *shape), lt_arrays(7, dtype, *shape, 1)
    others = on_device(arrays)
    call(*others)
    call(*arrays)
    # cuBLASLt gives the first of such threads a context itself, and fails in the second.
    for _ in range(3):
        others[2].fill(0)
        importlib.import_module("cupy").cuda.Device().synchronize()
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(call, *others).result()
        check_equal(arrays, others, dtype, shape[2])
