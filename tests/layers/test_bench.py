"""The checks of the layer tests can fail."""

from __future__ import annotations

import numpy as np
import pytest

from tests.layers.test_every_layer import OPS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_one_wrong_element_is_found(bench, op, precision):
    arrays, gradients = bench.inputs(op, (16, 24), precision), bench.gradients(op, (16, 24), precision)
    results = bench.run(op, arrays, gradients)
    bench.check(op, arrays, gradients, results)
    for name, result in results.items():
        position = int(np.argmax(np.abs(bench.numpy(result).astype(np.float64))))
        for wrong in (np.nan, float(result.reshape(-1)[position]) * 1.03):
            broken = result.copy()
            broken.reshape(-1)[position] = wrong
            with pytest.raises(AssertionError, match=f"d?{name.removeprefix('d')}.*: beyond tolerance"):
                bench.check(op, arrays, gradients, results | {name: broken})


def test_a_missing_term_is_found(bench):
    """LayerNorm's input gradient without the mean of the products."""
    arrays, gradients = (
        bench.inputs("layernorm", (16, 24), "float32"),
        bench.gradients("layernorm", (16, 24), "float32"),
    )
    results = bench.run("layernorm", arrays, gradients)
    x, g = (bench.numpy(array).astype(np.float64) for array in (arrays["inp"], gradients["out"]))
    h = g * bench.numpy(arrays["weight"])
    scale = 1 / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    without = (scale * (h - h.mean(axis=1, keepdims=True))).astype(np.float32)
    with pytest.raises(AssertionError, match="dinp: beyond tolerance"):
        bench.check("layernorm", arrays, gradients, results | {"dinp": bench.xp.asarray(without)})


def test_an_input_that_is_written_to_is_found(bench):
    arrays, gradients = bench.inputs("gelu", (16,), "float32"), bench.gradients("gelu", (16,), "float32")
    layer = bench.make("gelu", arrays)
    forward = layer.forward

    def in_place(x):
        out = forward(x)
        x.data[3] += 1
        return out

    layer.forward = in_place
    with pytest.raises(AssertionError, match="an array of the caller was written to"):
        bench.run("gelu", arrays, gradients, layer)
