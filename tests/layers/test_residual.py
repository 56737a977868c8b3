"""Residual: the exact sum, rounded once, for any number of elements."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor
from llmc2py.runtime.dtypes import PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1, 2, 13, 1021, 1024, 2047, 2048, 2049, 6151])
def test_sizes_on_and_off_the_block(bench, size, precision):
    arrays, gradients = bench.inputs("residual", (size,), precision), bench.gradients("residual", (size,), precision)
    results = bench.run("residual", arrays, gradients)
    bench.check("residual", arrays, gradients, results)
    sums = bench.numpy(arrays["inp1"]).astype(np.float64) + bench.numpy(arrays["inp2"]).astype(np.float64)
    np.testing.assert_array_equal(bench.numpy(results["out"]), sums.astype(PRECISIONS[precision]))
    for name in ("dinp1", "dinp2"):
        bench.xp.testing.assert_array_equal(results[name], gradients["out"])


def test_the_gradients_of_the_inputs_are_arrays_of_their_own(bench):
    gradient = bench.array((9,), "float32")
    results = bench.run("residual", bench.inputs("residual", (9,), "float32"), {"out": gradient})
    results["dinp1"][...] = 7
    bench.xp.testing.assert_array_equal(results["dinp2"], gradient)
    assert not (gradient == 7).any()


def test_a_tensor_added_to_itself(bench):
    x = Tensor(bench.array((33,), "float32"))
    gradient = bench.array((33,), "float32", 1)
    out = bench.layers.Residual()(x, x)
    out.backward(gradient)
    bench.xp.testing.assert_array_equal(out.data, 2 * x.data)
    bench.xp.testing.assert_array_equal(x.grad, 2 * gradient)
