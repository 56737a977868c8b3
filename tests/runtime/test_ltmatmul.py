"""Products in one call of cuBLASLt: a stand-in for nvmath-python, which checks what it is told, against NumPy."""

from __future__ import annotations

import gc
import importlib
import threading
import types
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Gemm, Launcher, ltmatmul
from llmc2py.runtime.cublas import Step
from tests.runtime.fakeblas import FakeCublasLt, FakeLtError
from tests.runtime.matmuls import DTYPES, EPILOGUES, ROUNDING, call_of, lt_arrays, lt_call, small

SHAPE = (8, 3, 5)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, driver: Any) -> FakeCublasLt:
    monkeypatch.setattr(ltmatmul, "_workspaces", {})
    return FakeCublasLt()


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """Return a copy that starts ``offset`` bytes behind a multiple of 256."""
    raw = np.zeros(array.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


def step_of(call: Launcher, arrays: list[np.ndarray], fake: FakeCublasLt, otherwise: Step | None = None) -> Step:
    """Return the step of a launcher's product; one that goes another way fails unless there is another way."""
    (gemm,) = call.plan(*arrays).operations
    assert isinstance(gemm, Gemm)
    return ltmatmul.lt_step(gemm, fake, fake, 0, otherwise or (lambda *_: pytest.fail("not in one call")))


def addresses(arrays: list[np.ndarray]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def check_equal(arrays: list[np.ndarray], others: list[np.ndarray], dtype: str) -> None:
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(
            other.astype(np.float64), one.astype(np.float64), rtol=4 * ROUNDING[dtype], atol=4 * ROUNDING[dtype]
        )


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("batch", "beta"), [(1, 0.0), (1, 0.5), (2, 0.5)])
def test_each_epilogue_in_one_call(name: str, dtype: str, batch: int, beta: float, fake: FakeCublasLt) -> None:
    arrays = lt_arrays(3, dtype, *SHAPE, batch, aux_room=8)
    copies = [aligned(array) for array in arrays]
    call = lt_call(name, dtype, *SHAPE, batch, beta, aux_room=8)
    step_of(call, arrays, fake)(addresses(copies), 0)
    call(*arrays)
    check_equal(arrays, copies, dtype)
    assert (fake.calls, fake.workspaces) == (1, 1)


@pytest.mark.parametrize(("transa", "transb"), [(False, False), (False, True), (True, False), (True, True)])
def test_transposes(transa: bool, transb: bool, fake: FakeCublasLt) -> None:
    dtype = "CUDA_R_16BF"
    arrays = lt_arrays(5, dtype, *SHAPE, 2)
    copies = [aligned(array) for array in arrays]
    call = lt_call("GELU_AUX_BIAS", dtype, *SHAPE, 2, 1.0, transa=transa, transb=transb)
    step_of(call, arrays, fake)(addresses(copies), 0)
    call(*arrays)
    check_equal(arrays, copies, dtype)


def test_scalars_have_the_type_of_the_sums(fake: FakeCublasLt) -> None:
    half = {"a_type": "CUDA_R_16F", "b_type": "CUDA_R_16F", "c_type": "CUDA_R_16F", "compute_type": "CUDA_R_16F"}
    call = call_of(small(alpha=0.5, beta=2.0, **half), "half*", 3)
    arrays = [aligned(np.full(4, value, np.float16)) for value in (3, 1, 2)]
    step_of(call, arrays, fake)(addresses(arrays), 0)
    assert arrays[2].tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("offset", [16, 8, 4, 2, 6])
def test_an_algorithm_is_chosen_once_for_each_alignment(offset: int, fake: FakeCublasLt) -> None:
    dtype = "CUDA_R_16BF"
    arrays = lt_arrays(5, dtype, *SHAPE, 1)
    call = lt_call("DEFAULT", dtype, *SHAPE)
    step = step_of(call, arrays, fake)
    call(*arrays)
    for repeat in range(3):
        copies = [aligned(array, offset if index == repeat else 0) for index, array in enumerate(arrays)]
        copies[2][...] = 0
        step(addresses(copies), 0)
        step(addresses(copies), 0)
        check_equal(arrays, copies, dtype)
    lowest = offset & -offset
    assert [one["MIN_ALIGNMENT_D_BYTES"] for one in fake.preferences] == [256, lowest]
    for one in fake.preferences:
        assert len({one[f"MIN_ALIGNMENT_{matrix}_BYTES"] for matrix in "ABCD"}) == 1


@pytest.mark.parametrize("dtype", ["CUDA_R_16BF", "CUDA_R_16F", "CUDA_R_32F"])
@pytest.mark.parametrize("offset", [16, 8, 4])
def test_epilogues_in_16_bits_of_arrays_that_are_no_packets_go_the_other_way(
    dtype: str, offset: int, fake: FakeCublasLt
) -> None:
    arrays = [aligned(array, offset) for array in lt_arrays(5, dtype, *SHAPE, 1)]
    seen: list[int] = []
    step = step_of(lt_call("BIAS", dtype, *SHAPE), arrays, fake, other_way(seen))
    step(addresses(arrays), 3)
    is_exact = dtype == "CUDA_R_32F" or offset == 16
    assert (seen, fake.calls) == (([], 1) if is_exact else ([3], 0))


@pytest.mark.parametrize(("dtype", "mask"), [("CUDA_R_16BF", 2), ("CUDA_R_16F", 2), ("CUDA_R_32F", 7)])
def test_partial_sums_are_not_rounded_to_half_precision(dtype: str, mask: int, fake: FakeCublasLt) -> None:
    step_of(lt_call("BIAS", dtype, *SHAPE), lt_arrays(1, dtype, *SHAPE, 1), fake)
    assert [(one["REDUCTION_SCHEME_MASK"], one["MAX_WORKSPACE_BYTES"]) for one in fake.preferences] == [
        (mask, 32 << 20)
    ]


def other_way(seen: list[int]) -> Step:
    return lambda pointers, stream: seen.append(stream)


@pytest.mark.parametrize("where", ["refused_at_heuristic", "refused_at_call"])
@pytest.mark.parametrize("status", [7, 15])
def test_what_cublaslt_has_no_algorithm_for_goes_the_other_way(where: str, status: int, fake: FakeCublasLt) -> None:
    setattr(fake, where, status)
    seen: list[int] = []
    arrays = [aligned(array) for array in lt_arrays(5, "CUDA_R_32F", *SHAPE, 1)]
    step = step_of(lt_call("GELU_AUX_BIAS", "CUDA_R_32F", *SHAPE), arrays, fake, other_way(seen))
    step(addresses(arrays), 3)
    setattr(fake, where, 0)
    step(addresses(arrays), 4)
    assert (seen, fake.calls, len(fake.preferences)) == ([3, 4], 0, 1)


@pytest.mark.parametrize("where", ["refused_at_heuristic", "refused_at_call"])
def test_other_failures_are_raised(where: str, fake: FakeCublasLt) -> None:
    setattr(fake, where, 13)
    arrays = [aligned(array) for array in lt_arrays(5, "CUDA_R_32F", *SHAPE, 1)]
    with pytest.raises(FakeLtError, match="status 13"):
        step_of(lt_call("BIAS", "CUDA_R_32F", *SHAPE), arrays, fake)(addresses(arrays), 0)


@pytest.mark.parametrize(("room", "offset", "batch"), [(1, 0, 1), (0, 8, 1)])
def test_a_stored_input_of_gelu_that_lies_badly_goes_the_other_way(
    room: int, offset: int, batch: int, fake: FakeCublasLt
) -> None:
    seen: list[int] = []
    arrays = [aligned(array, offset) for array in lt_arrays(5, "CUDA_R_16BF", *SHAPE, batch, aux_room=room)]
    call = lt_call("GELU_AUX", "CUDA_R_16BF", *SHAPE, batch, aux_room=room)
    step_of(call, arrays, fake, other_way(seen))(addresses(arrays), 5)
    assert seen == [5]


def test_pointers_are_set_only_where_they_change(fake: FakeCublasLt) -> None:
    arrays = [aligned(array) for array in lt_arrays(5, "CUDA_R_16BF", *SHAPE, 1)]
    step = step_of(lt_call("GELU_AUX_BIAS", "CUDA_R_16BF", *SHAPE), arrays, fake)
    places = addresses(arrays)
    step(places, 0)
    before = fake.pointers_set
    step(places, 0)
    assert fake.pointers_set == before
    moved = aligned(arrays[4])
    places[4] = moved.ctypes.data
    step(places, 0)
    assert fake.pointers_set == before + 1
    assert (moved == arrays[4]).all()


def test_threads_share_neither_pointers_nor_a_workspace_at_once(fake: FakeCublasLt) -> None:
    fake.pause = 0.01
    call = lt_call("BIAS", "CUDA_R_32F", *SHAPE)
    wanted = [lt_arrays(seed, "CUDA_R_32F", *SHAPE, 1) for seed in range(4)]
    got = [[aligned(array) for array in arrays] for arrays in wanted]
    step = step_of(call, wanted[0], fake)
    threads = [threading.Thread(target=step, args=(addresses(arrays), 0)) for arrays in got for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.calls == len(threads)
    for one, other in zip(wanted, got, strict=True):
        call(*one)
        check_equal(one, other, "CUDA_R_32F")


def test_each_stream_has_its_workspace(fake: FakeCublasLt) -> None:
    arrays = [aligned(array) for array in lt_arrays(5, "CUDA_R_32F", *SHAPE, 1)]
    step = step_of(lt_call("BIAS", "CUDA_R_32F", *SHAPE), arrays, fake)
    for stream in (0, 64, 0, 64):
        step(addresses(arrays), stream)
    assert fake.workspaces == 2
    # The stream of each thread has one handle in all of them.
    for _ in range(2):
        thread = threading.Thread(target=step, args=(addresses(arrays), 2))
        step(addresses(arrays), 2)
        thread.start()
        thread.join()
    assert fake.workspaces >= 4


def test_descriptors_are_destroyed_with_the_step(fake: FakeCublasLt) -> None:
    arrays = [aligned(array) for array in lt_arrays(5, "CUDA_R_32F", *SHAPE, 1)]
    step: Any = step_of(lt_call("BIAS", "CUDA_R_32F", *SHAPE), arrays, fake)
    step(addresses(arrays), 0)
    assert len(fake.alive) == 5
    del step
    gc.collect()
    assert not fake.alive


def test_without_nvmath_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise error

    monkeypatch.setattr(ltmatmul.importlib, "import_module", fails)
    ltmatmul.nvmath_library.cache_clear()
    error: Exception = ModuleNotFoundError("No module named 'nvmath'", name="nvmath")
    assert ltmatmul.nvmath_library() is None
    for error in (RuntimeError("libcublasLt.so: cannot open"), ModuleNotFoundError("no cuda.core", name="cuda.core")):
        ltmatmul.nvmath_library.cache_clear()
        with pytest.warns(RuntimeWarning, match=f"through nvmath-python .{error}.; products with epilogues are slower"):
            assert ltmatmul.nvmath_library() is None
    monkeypatch.undo()
    binding = types.SimpleNamespace(get_version=lambda: 130100)
    monkeypatch.setattr(importlib, "import_module", lambda name: binding)
    ltmatmul.nvmath_library.cache_clear()
    assert ltmatmul.nvmath_library() is binding
    ltmatmul.nvmath_library.cache_clear()
