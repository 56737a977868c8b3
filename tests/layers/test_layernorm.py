"""LayerNorm: widths that choose its kernels, and rows that are hard to normalise."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor
from llmc2py.runtime.dtypes import PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (5, 1),
        (16, 1),
        (3, 2),
        (1, 7),
        (9, 8),
        (16, 8),
        (7, 13),
        (13, 31),
        (33, 32),
        (32, 64),
        (6, 97),
        (16, 136),
        (2, 3, 128),
        (70, 256),
        (80, 256),
        (3, 1021),
    ],
    ids=str,
)
def test_widths_on_and_off_the_packets(bench, shape, precision):
    bench.run_and_check("layernorm", shape, precision, seed=shape[-1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [1600, 4096, 4097, 5000, 6145, 12300, 12301, 12304])
@pytest.mark.parametrize("rows", [3, 16])
def test_wide_rows(bench, rows, width, precision):
    bench.run_and_check("layernorm", (rows, width), precision, seed=width)


def plan_of(bench, package, shape):
    n, c = shape
    out, inp = bench.array(shape, "float32"), bench.array(shape, "float32")
    mean, rstd = bench.array((n,), "float32"), bench.array((n,), "float32")
    weight, bias = bench.array((c,), "float32"), bench.array((c,), "float32")
    plan = package["layernorm"].layernorm_forward.plan(out, mean, rstd, inp, weight, bias, n, 1, c)
    (launch,) = plan.operations
    return launch


def test_rows_of_1600_floats_take_more_than_48_kib_of_shared_memory(bench, package):
    launch = plan_of(bench, package, (4, 1600))
    assert launch.kernel == "layernorm_forward_kernel6"
    assert launch.shared == 64_000
    bench.run_and_check("layernorm", (4, 1600), "float32")


def test_rows_that_no_shared_memory_holds_take_another_kernel(bench, package):
    launch = plan_of(bench, package, (4, 12300))
    assert launch.kernel == "layernorm_forward_kernel3"
    assert launch.shared == 0


def test_many_rows(bench):
    bench.run_and_check("layernorm", (4099, 8), "float32")
    bench.run_and_check("layernorm", (1031, 9), "float32")


@pytest.mark.parametrize("width", [64, 63])
def test_a_mean_far_above_the_spread(bench, width):
    """The variance is not the small difference of two large numbers."""
    arrays = bench.inputs("layernorm", (6, width), "float32") | {"inp": bench.array((6, width), "float32", 0, 1000, 1)}
    gradients = bench.gradients("layernorm", (6, width), "float32")
    bench.check("layernorm", arrays, gradients, bench.run("layernorm", arrays, gradients))


@pytest.mark.parametrize("width", [64, 63])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_one_value_give_the_bias(bench, width, precision):
    arrays = bench.inputs("layernorm", (4, width), precision)
    arrays["inp"] = bench.xp.full((4, width), 3, PRECISIONS[precision])
    results = bench.run("layernorm", arrays, bench.gradients("layernorm", (4, width), precision))
    bench.xp.testing.assert_array_equal(results["out"], bench.xp.broadcast_to(arrays["bias"], (4, width)))
    assert np.isfinite(bench.numpy(results["dinp"]).astype(np.float32)).all()
    bench.xp.testing.assert_array_equal(results["dweight"], bench.xp.zeros(width, PRECISIONS[precision]))


def test_parameters_start_as_ones_and_zeros_and_follow_the_first_input(bench):
    layer = bench.layers.LayerNorm(24)
    x = Tensor(bench.array((3, 24), "bfloat16"))
    layer(x)
    assert layer.weight.dtype == layer.bias.dtype == PRECISIONS["bfloat16"]
    assert type(layer.weight.data) is bench.xp.ndarray
    bench.xp.testing.assert_array_equal(layer.weight.data, bench.xp.ones(24, PRECISIONS["bfloat16"]))
    bench.xp.testing.assert_array_equal(layer.bias.data, bench.xp.zeros(24, PRECISIONS["bfloat16"]))


def test_frozen_parameters_get_no_gradient_and_the_input_gets_its_own(bench):
    arrays, gradients = (
        bench.inputs("layernorm", (16, 40), "float32"),
        bench.gradients("layernorm", (16, 40), "float32"),
    )
    wanted = bench.run("layernorm", arrays, gradients)
    layer = bench.make("layernorm", arrays)
    layer.weight.requires_grad = False
    x = Tensor(arrays["inp"])
    layer(x).backward(gradients["out"])
    assert layer.weight.grad is None
    bench.xp.testing.assert_array_equal(layer.bias.grad, wanted["dbias"])
    bench.xp.testing.assert_array_equal(x.grad, wanted["dinp"])
