"""Attention by cuDNN: results on a device, and the allowance that they are held to."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from llmc2py.runtime.dtypes import bfloat16, float16
from tests.runtime.fakecudnn import call_arrays, run_both
from tests.runtime.flash import draw, flash, found_in, worst


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_the_allowance_is_enough_for_the_roundings_and_no_more(dtype):
    for sizes in [(2, 7, 3, 32), (1, 65, 2, 48)]:
        inp, dout = draw(*sizes, dtype)
        assert max(worst(flash(inp, dout), inp, dout).values()) <= 1
        for fault, name in {"scale": "stats", "mask": "out", "delta": "dq", "dk": "dk", "dv": "dv"}.items():
            assert worst(flash(inp, dout, fault=fault), inp, dout)[name] > 2, fault


HEADS, TIMES = (32, 48, 64, 80, 96, 128), (1, 7, 64, 65, 130)
CASES = [
    (1 + n % 3, T, 1 + n % 4, HS) for n, (T, HS) in enumerate((T, HS) for T in TIMES for HS in HEADS)
]  # fmt: skip


class Device:
    """Makes CuPy arrays of NumPy's."""

    @staticmethod
    def of(values):
        return importlib.import_module("cupy").asarray(values)


@pytest.fixture
def cupy():
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("nvidia-cudnn-frontend is not installed")
    return importlib.import_module("cupy")


def check_on_device(a):
    inp, dout = a.inp.get(), a.dout.get()
    errors = worst(found_in(a.out.get(), a.stats.get(), a.dinp.get()), inp, dout)
    assert all(error <= 1 for error in errors.values()), errors


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_results_are_within_the_roundings(cupy, sizes, dtype):
    a = call_arrays(*sizes, dtype, new=Device)
    run_both(a, *sizes)
    check_on_device(a)


@pytest.mark.gpu
def test_a_long_sequence_and_strided_inputs_on_a_stream(cupy):
    sizes = 2, 1024, 4, 64
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = call_arrays(*sizes, bfloat16, new=Device)
        wide = cupy.empty((2, 2048, 3, 4, 64), bfloat16)
        wide[:, ::2] = a.inp
        a.inp = wide[:, ::2]
        run_both(a, *sizes)
        stream.synchronize()
        check_on_device(a)


@pytest.mark.gpu
def test_a_captured_call_can_be_replayed_on_other_values(cupy):
    sizes = 2, 130, 3, 64
    a, stream = call_arrays(*sizes, bfloat16, new=Device), cupy.cuda.Stream(non_blocking=True)
    with stream:
        run_both(a, *sizes)
        stream.synchronize()
        stream.begin_capture()
        run_both(a, *sizes)
        graph = stream.end_capture()
        for seed in (1, 2):
            inp, dout = draw(*sizes, bfloat16, seed)
            a.inp[...], a.dout[...] = cupy.asarray(inp), cupy.asarray(dout)
            for array in (a.out, a.stats, a.dinp):
                array[...] = cupy.asarray(np.full(array.shape, np.nan, array.dtype))
            # What the pool has to give must not be what the graph works in.
            others = [cupy.full(1 << size, 255, np.uint8) for size in range(9, 24)]
            graph.launch(stream)
            stream.synchronize()
            check_on_device(a)
            assert all((other == 255).all() for other in others)


@pytest.mark.gpu
def test_threads_run_at_the_same_time(cupy):
    sizes = 1, 65, 2, 64
    calls = [call_arrays(*sizes, float16, new=Device) for _ in range(4)]
    cupy.cuda.Device().synchronize()
    failures: list[BaseException] = []

    def run(a):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                run_both(a, *sizes)
                stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(a,)) for a in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for a in calls:
        check_on_device(a)


@pytest.mark.gpu
def test_threads_that_have_called_nothing_of_cuda_attend(cupy):
    sizes = 1, 65, 2, 64
    a = call_arrays(*sizes, float16, new=Device)
    # Each thread takes over the graphs of the one before, which is gone, and so prepares nothing.
    for _ in range(4):
        for array in (a.out, a.stats, a.dinp):
            array.fill(0)
        cupy.cuda.Device().synchronize()
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(run_both, a, *sizes).result()
        check_on_device(a)
