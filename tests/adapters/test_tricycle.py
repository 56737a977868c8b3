"""Layers for Tricycle, in a stand-in of its contract: results, gradients, and what its tensors promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.adapters import tricycle_standin as tricycle
from tests.adapters.tricycle_runs import (
    PACKAGE,
    RELU_PACKAGE,
    assert_close,
    assert_same_runs,
    drawn,
    numbers,
    placed,
    run,
)

# --- single layers


@pytest.mark.parametrize("shape", [(12,), (1, 12), (3, 5, 12), (0, 12)])
def test_dense_agrees(adapter: Any, made: Any, xp: Any, shape: tuple[int, ...]) -> None:
    layer = placed(tricycle.Dense(12, 7), xp)
    assert_same_runs(adapter, layer, drawn(xp, *shape))
    assert type(layer) is made.Dense


@pytest.mark.parametrize("width", [1, 12, 37])
def test_layernorm_agrees(adapter: Any, xp: Any, width: int) -> None:
    layer = tricycle.LayerNorm(width)
    layer.gamma.array[:] = np.linspace(0.5, 2, width)
    layer.beta.array[:] = np.linspace(-1, 1, width)
    # A row of one element has no gradient but for what rounding leaves.
    assert_same_runs(adapter, placed(layer, xp), drawn(xp, 2, 5, width, is_batched=True), tolerance=1e-3 / width**2)


@pytest.mark.parametrize("kind", ["GeLU", "Softmax"])
def test_layers_without_weights_agree(adapter: Any, xp: Any, kind: str) -> None:
    assert_same_runs(adapter, getattr(tricycle, kind)(), drawn(xp, 2, 3, 11))


@pytest.mark.parametrize(("tokens", "heads"), [(8, 2), (7, 3), (1, 1)])
def test_attention_agrees(adapter: Any, xp: Any, tokens: int, heads: int) -> None:
    layer = tricycle.Attention(heads * 4, heads, 8)
    assert_same_runs(adapter, layer, drawn(xp, 2, tokens, heads * 12, is_batched=True))


@pytest.mark.parametrize("shape", [(6,), (2, 5)])
def test_cross_entropy_agrees(adapter: Any, xp: Any, shape: tuple[int, ...]) -> None:
    loss = tricycle.CrossEntropy()
    targets, logits = numbers(xp, *shape, below=13), drawn(xp, *shape, 13, is_batched=True)
    assert_same_runs(adapter, loss, targets, logits)
    assert loss(targets, logits).is_batched is False


def test_options_of_a_function_are_attributes(adapter: Any, made: Any) -> None:
    layer = tricycle.Attention(8, 2, 8)
    adapter.enable(layer, PACKAGE)
    assert layer.implementation == "llmc"
    layer.implementation = "none such"
    with pytest.raises(ValueError, match="implementation"):
        layer(drawn(np, 1, 8, 24))


def test_kernels_of_the_users_own_are_swapped_in(adapter: Any, xp: Any) -> None:
    layer = tricycle.ReLU()
    expected = run(layer, drawn(xp, 5, 7))
    assert adapter.enable(layer, RELU_PACKAGE).swapped == (("model", "ReLU"),)
    for name, array in run(layer, drawn(xp, 5, 7)).items():
        assert_close(array, expected[name])


def test_attention_refuses_more_tokens_than_its_window(adapter: Any, made: Any) -> None:
    with pytest.raises(ValueError, match="Attention: 9 tokens do not fit into a window of 8"):
        made.Attention(8, 2, 8)(drawn(np, 1, 9, 24))


def test_class_numbers_out_of_range_are_refused(made: Any) -> None:
    with pytest.raises(IndexError, match="targets"):
        made.CrossEntropy()(tricycle.Tensor([3, 5], dtype=int), drawn(np, 2, 5))


def test_rows_of_another_length_are_refused(made: Any) -> None:
    with pytest.raises(ValueError, match=r"Dense: `weights` has shape \(4, 3\)"):
        made.Dense(4, 3)(drawn(np, 2, 5))


# --- the contract of tensors


def test_outputs_keep_the_contract(made: Any, xp: Any) -> None:
    layer = placed(made.Dense(4, 3), xp)
    batched, single = drawn(xp, 2, 4, is_batched=True), drawn(xp, 2, 4)
    out = layer(batched)
    assert (out.is_batched, out.requires_grad, out.name) == (True, True, "dense")
    assert not layer(single).is_batched
    assert {id(arg) for arg in out.args} == {id(batched), id(layer.weights)}
    assert len(out.args) == len(out.back_fns)
    incoming = tricycle.Tensor(xp.ones((2, 3)), requires_grad=False, is_batched=True)
    grads = {id(arg): back_fn(incoming) for arg, back_fn in zip(out.args, out.back_fns, strict=True)}
    assert grads[id(batched)].is_batched
    assert not grads[id(layer.weights)].is_batched
    assert not any(grad.requires_grad for grad in grads.values())


def test_what_needs_no_gradient_is_not_in_the_graph(made: Any) -> None:
    layer, constant = made.Dense(4, 3), drawn(np, 2, 4, requires_grad=False)
    assert layer(constant).args == (layer.weights,)
    out = made.GeLU()(constant)
    assert not out.requires_grad
    assert out.args is None


@pytest.fixture
def products(made: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of the products that Dense computes."""
    given: list[Any] = []
    launch = made.matmul_cublaslt

    def noted(*arguments: Any) -> None:
        given.append(arguments)
        launch(*arguments)

    monkeypatch.setattr(made, "matmul_cublaslt", noted)
    return given


def test_what_needs_no_gradient_is_not_computed(made: Any, products: list[Any]) -> None:
    layer, constant = made.Dense(4, 3), drawn(np, 2, 4, requires_grad=False)
    layer(constant).sum().backward()
    assert len(products) == 2
    layer.weights.requires_grad = False
    layer(drawn(np, 2, 4)).sum().backward()
    assert len(products) == 4


def test_weights_and_outputs_are_not_copied(made: Any, products: list[Any]) -> None:
    layer, tensor = made.Dense(4, 3), drawn(np, 2, 4)
    out = layer(tensor)
    out.sum().backward()
    forward, dinp, dweights = products
    assert forward[0] is out.array
    assert forward[1] is dinp[1] is layer.weights.array
    assert forward[2] is dweights[2] is tensor.array


def test_a_layer_used_twice_keeps_what_each_call_needs(adapter: Any, xp: Any) -> None:
    dense, gelu = tricycle.Dense(4, 4), tricycle.GeLU()
    layer = placed(tricycle.Sequential(dense, gelu, dense, gelu), xp)
    adapter.enable(layer, PACKAGE)
    x = drawn(xp, 3, 4)
    run(layer, x)
    apart = tricycle.Sequential(tricycle.Dense(4, 4), tricycle.GeLU(), tricycle.Dense(4, 4), tricycle.GeLU())
    expected = run(placed(apart, xp), drawn(xp, 3, 4))
    assert_close(x.grad.array, expected["input 0"])
    assert_close(dense.weights.grad.array, expected["0.weights"] + expected["2.weights"])


def test_gradients_share_no_memory(made: Any, xp: Any) -> None:
    """Tricycle adds up in place: in `x + layer(x)` one gradient would be in the other."""
    residual, first, second = made.Residual(), drawn(xp, 2, 6, seed=1), drawn(xp, 2, 6, seed=2)
    total = residual(first, second)
    (residual(first, total) * 3.0).sum().backward()
    assert_close(first.grad.array, xp.full((2, 6), 6))
    assert_close(second.grad.array, xp.full((2, 6), 3))
    assert_close(total.grad.array, xp.full((2, 6), 3))


def test_a_layer_under_a_residual_sum_agrees(adapter: Any, xp: Any) -> None:
    x, twin = drawn(xp, 2, 6), drawn(xp, 2, 6)
    dense = placed(tricycle.Dense(6, 6), xp)
    (twin + dense(twin)).sum().backward()
    expected = dense.weights.grad.array
    dense.weights.grad = None
    adapter.enable(dense, PACKAGE)
    (x + dense(x)).sum().backward()
    assert_close(x.grad.array, twin.grad.array)
    assert_close(dense.weights.grad.array, expected)


def test_an_input_given_twice_gets_both_gradients(made: Any, xp: Any) -> None:
    x = drawn(xp, 2, 6)
    (made.Residual()(x, x) * 3.0).sum().backward()
    assert_close(x.grad.array, xp.full((2, 6), 6))


def test_gradients_are_clipped_as_they_pass(made: Any) -> None:
    x = drawn(np, 2, 6)
    (made.Residual()(x, drawn(np, 2, 6)) * 3.0).sum().backward(clip=0.5)
    assert_close(x.grad.array, np.full((2, 6), 0.5))


def test_a_second_backward_pass_says_so(made: Any) -> None:
    out = made.GeLU()(drawn(np, 2, 6)).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="GeLUFunction: the graph was freed by an earlier backward pass"):
        out.backward()


# --- layers that Tricycle has no counterpart of


def test_several_outputs_go_back_together(made: Any, xp: Any) -> None:
    fused, norm = placed(made.FusedResidualLayerNorm(8), xp), placed(made.LayerNorm(8), xp)
    x, y = drawn(xp, 3, 8, seed=1), drawn(xp, 3, 8, seed=2)
    residual, normed = fused(x, y)
    (residual * 2.0 + normed * normed.array).sum().backward()
    a, b = drawn(xp, 3, 8, seed=1), drawn(xp, 3, 8, seed=2)
    total = a + b
    expected = norm(total)
    (total * 2.0 + expected * expected.array).sum().backward()
    assert_close(normed.array, expected.array)
    assert_close(x.grad.array, a.grad.array)
    assert_close(y.grad.array, b.grad.array)
    assert_close(fused.weight.grad.array, norm.gamma.grad.array)


def test_an_output_that_is_not_used_counts_as_zero(made: Any, xp: Any) -> None:
    x, y = drawn(xp, 3, 8, seed=1), drawn(xp, 3, 8, seed=2)
    fused = placed(made.FusedResidualLayerNorm(8), xp)
    residual, _ = fused(x, y)
    (residual * 2.0).sum().backward()
    assert not fused.weight.grad.array.any()
    assert not fused.bias.grad.array.any()
    assert_close(x.grad.array, xp.full((3, 8), 2))
    assert_close(y.grad.array, xp.full((3, 8), 2))


def test_a_layer_of_its_own_is_trained(made: Any, xp: Any) -> None:
    layer = placed(made.Linear(4, 3), xp)
    assert set(layer.tensors) == {"weight", "bias"}
    before, x = layer.bias.array.copy(), drawn(xp, 5, 4)
    layer(x).sum().backward()
    layer.update(tricycle.Descent(0.5, renews=True))
    assert layer.tensors["bias"] is layer.bias
    assert_close(layer.bias.array, before - 2.5)
    layer(x).sum().backward()
    layer.zero_grad()
    assert layer.weight.grad is None
    assert made.Linear(4, 3, bias=False).bias is None
