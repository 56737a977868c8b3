"""Linear, LinearGeLU and MLP: sizes on and off what the library likes, no bias, shared weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc2py.runtime import Parameter, Tensor
from llmc2py.runtime.dtypes import PRECISIONS

SIZES = [(1, 1), (5, 7), (8, 16), (17, 9), (24, 4), (7, 64), (33, 136)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("columns", "others"), SIZES)
def test_sizes_on_and_off_the_packets(bench, columns, others, precision):
    bench.run_and_check("linear", (13, columns), precision, OC=others)
    bench.run_and_check("linear", (2, 3, columns), precision, OC=others, bias=False)
    bench.run_and_check("linear_gelu", (13, columns), precision, OC=others)
    bench.run_and_check("mlp", (13, columns), precision, H=others)
    bench.run_and_check("mlp", (2, 3, columns), precision, H=others, recompute=True)


@pytest.mark.parametrize("rows", [1, 64, 257])
def test_many_rows(bench, rows):
    bench.run_and_check("linear", (rows, 16), "float32", OC=40)
    bench.run_and_check("linear", (rows, 16), "bfloat16", OC=40)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lead=st.lists(st.integers(0, 9), max_size=2),
    columns=st.integers(1, 40),
    others=st.integers(1, 40),
    bias=st.booleans(),
    precision=st.sampled_from(list(PRECISIONS)),
)
def test_random_sizes(bench, lead, columns, others, bias, precision):
    bench.run_and_check("linear", (*lead, columns), precision, OC=others, bias=bias)


def test_without_a_bias_there_is_none(bench):
    layer = bench.layers.Linear(8, 16, bias=False)
    assert layer.bias is None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


@pytest.mark.parametrize("shape", [(2, 5, 24), (3, 5), (2, 3, 17)], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_computed_again_has_the_same_bits(bench, shape, precision):
    """But for the gradient of the second weight where the first product computes GELU from sums not yet rounded."""
    sizes = {"H": 17 if shape[-1] % 8 else 40}
    arrays, gradients = bench.inputs("mlp", shape, precision, **sizes), bench.gradients("mlp", shape, precision)
    kept = bench.run("mlp", arrays, gradients)
    again = bench.run("mlp", arrays, gradients, recompute=True)
    bench.check("mlp", arrays, gradients, again, recompute=True)
    for name, result in kept.items():
        if name != "dfcprojw" or shape[-1] % 8:
            bench.xp.testing.assert_array_equal(again[name], result)


@pytest.mark.parametrize("width", [40, 41])
def test_frozen_parameters_get_no_gradient_and_the_input_gets_its_own(bench, width):
    arrays, gradients = (make("linear", (6, 24), "float32", OC=width) for make in (bench.inputs, bench.gradients))
    wanted = bench.run("linear", arrays, gradients)
    layer = bench.make("linear", arrays)
    layer.weight.requires_grad = False
    x = Tensor(arrays["inp"])
    layer(x).backward(gradients["out"])
    assert layer.weight.grad is None
    bench.xp.testing.assert_array_equal(layer.bias.grad, wanted["dbias"])
    bench.xp.testing.assert_array_equal(x.grad, wanted["dinp"])


@pytest.mark.parametrize("columns", [24, 23])
@pytest.mark.parametrize("uses", [1, 2])
def test_a_weight_that_two_layers_share_gets_the_gradients_of_both(bench, columns, uses):
    """The table of an encoder is the weight of the last product, as in GPT-2."""
    vocabulary, positions = 11, 7
    table = Parameter(bench.array((vocabulary, columns), "float32", 1))
    tokens = bench.xp.asarray(np.random.default_rng(2).integers(0, vocabulary, (2, 5)))
    like = bench.xp.zeros(1, np.float32)
    encoder = bench.layers.Encoder(vocabulary, columns, positions, like=like)
    head = bench.layers.Linear(columns, vocabulary, bias=False, like=like)
    encoder.wte = head.weight = table
    gradient = bench.array((2, 5, vocabulary), "float32", 3)
    for _ in range(uses):
        head(encoder(tokens)).backward(gradient)

    hidden, weight = bench.numpy(encoder(tokens).data).astype(float), bench.numpy(table.data).astype(float)
    rows, upper = bench.numpy(gradient).reshape(-1, vocabulary).astype(float), np.zeros((vocabulary, columns))
    np.add.at(upper, bench.numpy(tokens).reshape(-1), rows @ weight)
    wanted = uses * (rows.T @ hidden.reshape(-1, columns) + upper)
    np.testing.assert_allclose(bench.numpy(table.grad), wanted, rtol=1e-4, atol=1e-3)
    assert head.weight is encoder.wte
