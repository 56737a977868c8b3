"""CASES B11: eight threads make the first call of one layer; then it is captured in a CUDA graph."""

from __future__ import annotations

import importlib
import threading
import traceback

import numpy as np
import pytest

from llmc2py.runtime import Tensor
from llmc2py.runtime.dtypes import bfloat16


@pytest.fixture
def gelu(generated_package):
    return importlib.import_module(f"{generated_package.__name__}.gelu")


@pytest.fixture
def layer(generated_package):
    return importlib.import_module(f"{generated_package.__name__}.layers").GeLU()


def test_eight_threads_make_the_first_call(layer, xp):
    values = [np.linspace(-3, 3, 1000 + n).astype(bfloat16) for n in range(8)]
    outputs: list = [None] * 8
    failures: list[str] = []
    together = threading.Barrier(8)

    def call(n: int) -> None:
        try:
            array = xp.asarray(values[n])
            together.wait()
            outputs[n] = layer(Tensor(array)).data
            if xp is not np:
                xp.cuda.get_current_stream().synchronize()
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for value, output in zip(values, outputs, strict=True):
        x = value.astype(np.float64)
        wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        seen = (output if xp is np else output.get()).astype(np.float64)
        np.testing.assert_allclose(seen, wanted, rtol=2**-7, atol=1e-3)


@pytest.mark.gpu
def test_a_warmed_launcher_is_captured_and_a_layer_that_allocates_is_refused(gelu, layer):
    cupy = importlib.import_module("cupy")
    x, out = cupy.linspace(-3, 3, 2048, dtype=np.float32), cupy.full(2048, np.nan, np.float32)
    tensor = Tensor(x)
    gelu.gelu_forward.warmup(out, x, 2048)
    wanted = layer(tensor).data
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        gelu.gelu_forward(out, x, 2048)
        with pytest.raises(RuntimeError, match="allocate outputs before the capture"):
            layer(tensor)
        graph = stream.end_capture()
        stream.synchronize()
        assert cupy.isnan(out).all()
        graph.launch(stream)
        stream.synchronize()
    cupy.testing.assert_array_equal(out, wanted)
