"""FusedResidualLayerNorm: the sum and its normalisation, whichever kernels the sizes choose."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.verify.tolerance import allowed_error, compare


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (5, 1), (1, 7), (8, 8), (7, 13), (8, 31), (16, 32), (9, 64), (2, 4, 128), (24, 97), (60, 256), (64, 256)],
)
def test_rows_and_widths_that_choose_the_kernels(bench, shape, precision):
    bench.run_and_check("fused_residual", shape, precision, seed=shape[-1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "shape", [(8, 1600), (3, 1600), (16, 1600), (8, 5000), (16, 12304), (8, 12300), (3, 12300), (2, 12301)]
)
def test_wide_rows(bench, shape, precision):
    bench.run_and_check("fused_residual", shape, precision, seed=shape[-1])


def test_rows_too_wide_for_shared_memory_take_two_kernels(bench, package):
    n, c = 8, 12300
    rows = [bench.array((n, c), "float32", seed) for seed in range(4)]
    statistics = [bench.array((n,), "float32") for _ in range(2)]
    parameters = [bench.array((c,), "float32") for _ in range(2)]
    launcher = package["fused_residual"].fused_residual_forward5
    plan = launcher.plan(*rows[:2], *statistics, *rows[2:], *parameters, n, c)
    assert [launch.kernel for launch in plan.operations] == ["residual_rows_kernel", "layernorm_forward_kernel3"]


@pytest.mark.parametrize("shape", [(8, 48), (5, 47)])
def test_against_the_reference_from_the_inputs(bench, shape):
    arrays = bench.inputs("fused_residual", shape, "float32")
    gradients = bench.gradients("fused_residual", shape, "float32")
    results = bench.run("fused_residual", arrays, gradients)
    reference = bench.references["fused_residual"]

    def both(given):
        inputs = {name: given[name] for name in arrays}
        derived = {f"d{name}": value for name, value in reference.backward(**given).items()}
        return reference.forward(**inputs) | derived

    given = {**arrays, **{f"d{name}": array for name, array in gradients.items()}}
    doubles = {name: bench.numpy(array).astype(np.float64) for name, array in given.items()}
    allowed = allowed_error(both, doubles, np.float32, max(shape))
    for name, value in both(doubles).items():
        outcome = compare(bench.numpy(results[name]), value, allowed[name])
        assert outcome.ok, f"{name}: {outcome}"


@pytest.mark.parametrize("width", [48, 47])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_agrees_with_the_two_layers_one_after_the_other(bench, precision, width):
    arrays = bench.inputs("fused_residual", (8, width), precision)
    gradient = bench.gradients("fused_residual", (8, width), precision)["normed"]
    fused = bench.make("fused_residual", arrays)
    norm = bench.make("layernorm", arrays | {"inp": arrays["inp1"]})
    leaves, outputs = bench.forward(fused, arrays)
    outputs["normed"].backward(gradient)
    x = Tensor(arrays["inp1"])
    total = bench.layers.Residual()(x, arrays["inp2"])
    out = norm(total)
    out.backward(gradient)
    bench.xp.testing.assert_array_equal(outputs["residual"].data, total.data)
    close = {"rtol": 2.0**-7 if precision == "bfloat16" else 2.0**-9, "atol": 1e-3}
    for got, wanted in (
        (outputs["normed"].data, out.data),
        (leaves["inp1"].grad, x.grad),
        (leaves["weight"].grad, norm.weight.grad),
        (leaves["bias"].grad, norm.bias.grad),
    ):
        np.testing.assert_allclose(bench.numpy(got).astype(float), bench.numpy(wanted).astype(float), **close)


def test_only_one_of_the_outputs_is_used(bench):
    arrays = bench.inputs("fused_residual", (8, 48), "float32")
    gradient = bench.gradients("fused_residual", (8, 48), "float32")["residual"]
    leaves, outputs = bench.forward(bench.make("fused_residual", arrays), arrays)
    outputs["residual"].backward(gradient)
    for name in ("inp1", "inp2"):
        bench.xp.testing.assert_array_equal(leaves[name].grad, gradient)
    for name in ("weight", "bias"):
        bench.xp.testing.assert_array_equal(leaves[name].grad, bench.xp.zeros(48, np.float32))


def test_one_tensor_as_both_inputs(bench):
    arrays = bench.inputs("fused_residual", (8, 48), "float32")
    arrays["inp2"] = arrays["inp1"]
    gradients = bench.gradients("fused_residual", (8, 48), "float32")
    apart = bench.run("fused_residual", arrays, gradients)
    x = Tensor(arrays["inp1"])
    layer = bench.make("fused_residual", arrays)
    outputs = layer(x, x)
    bench.backward(dict(zip(layer.spec.outputs, outputs, strict=True)), gradients)
    bench.xp.testing.assert_allclose(x.grad, apart["dinp1"] + apart["dinp2"], rtol=1e-6)
