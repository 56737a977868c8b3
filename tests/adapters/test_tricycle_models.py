"""Models of Tricycle, in a stand-in of its contract: layers swapped in and out, training, wrong use."""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from tests.adapters import tricycle_standin as tricycle
from tests.adapters.tricycle_runs import (
    PACKAGE,
    assert_close,
    drawn,
    numbers,
    on_cpu,
    placed,
    run,
    weights_of,
)

# --- models


def test_a_model_agrees_and_says_what_was_swapped(adapter: Any, xp: Any) -> None:
    model = placed(tricycle.Model(), xp)
    x = drawn(xp, 3, 8, 16, is_batched=True)
    expected = run(model, x)
    report = adapter.enable(model, PACKAGE)
    names = dict(report.swapped)
    # A block has four products, two norms, attention and GELU.
    assert len(names) == 2 * 8 + 2
    assert names["model.blocks[1].in_projection"] == "Dense"
    assert names["model.blocks[0].activation_fn"] == "GeLU"
    assert report.kept == (
        ("model.blocks[0].dropout", "Dropout", "the package has no layer for it"),
        ("model.blocks[1].dropout", "Dropout", "the package has no layer for it"),
    )
    assert str(report).startswith("18 layers swapped for generated ones, 2 kept\n")
    for name, array in run(model, x).items():
        assert_close(array, expected[name], 1e-4)
    assert adapter.disable(model) == list(names)
    assert adapter.disable(model) == []
    for name, array in run(model, x).items():
        np.testing.assert_array_equal(on_cpu(array), on_cpu(expected[name]), err_msg=name)


@pytest.mark.parametrize("renews", [False, True])
def test_training_goes_the_same_way(adapter: Any, xp: Any, renews: bool) -> None:
    plain, swapped = placed(tricycle.Model(), xp), placed(tricycle.Model(), xp)
    x, targets = drawn(xp, 3, 8, 16, is_batched=True), numbers(xp, 3, 8, below=11)
    losses: list[list[float]] = [[], []]
    loss_fns = tricycle.CrossEntropy(), tricycle.CrossEntropy()
    optimiser = tricycle.Descent(0.3, renews)
    for step in range(4):
        if step == 1:
            adapter.enable(swapped, PACKAGE)
            adapter.enable(loss_fns[1], PACKAGE)
        for model, loss_fn, seen in zip((plain, swapped), loss_fns, losses, strict=True):
            loss = loss_fn(targets, model(x))
            loss.backward()
            model.update(optimiser)
            seen.append(float(loss.array))
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    adapter.disable(swapped)
    for name, tensor in weights_of(swapped).items():
        assert_close(tensor.array, weights_of(plain)[name].array, 1e-4)


def test_mixed_precision_agrees(adapter: Any, xp: Any) -> None:
    model, loss_fn = placed(tricycle.Model(), xp), tricycle.CrossEntropy()
    values, targets = drawn(xp, 3, 8, 16).array, numbers(xp, 3, 8, below=11)

    def step() -> dict[str, Any]:
        model.zero_grad()
        with tricycle.mixed_precision(64):
            x = tricycle.Tensor(values, is_batched=True)
            loss = loss_fn(targets, model(x))
            loss.backward()
        return {"loss": loss, "x": x.grad} | {name: tensor.grad for name, tensor in weights_of(model).items()}

    expected = step()
    for layer in (model, loss_fn):
        assert adapter.enable(layer, PACKAGE).swapped
    actual = step()
    assert actual["loss"].array > 64
    for name, tensor in actual.items():
        assert tensor.array.dtype == np.float16, name
        assert_close(tensor.array, expected[name].array, 2e-2)


def test_gradients_have_the_precision_that_tricycle_computes_in(made: Any) -> None:
    logits = drawn(np, 4, 5)
    with tricycle.mixed_precision():
        made.CrossEntropy()(numbers(np, 4, below=5), logits).backward()
    assert logits.grad.array.dtype == np.float16


def test_a_graph_made_before_goes_back_after(adapter: Any) -> None:
    model, x = tricycle.Model(), drawn(np, 2, 8, 16)
    expected = run(model, x)["input 0"]
    x.grad = None
    factors = np.random.default_rng(5).normal(size=(2, 8, 11)).astype(np.float32)
    total = (model(x) * factors).sum()
    adapter.enable(model, PACKAGE)
    total.backward()
    np.testing.assert_array_equal(x.grad.array, expected)


def test_what_cannot_be_swapped_is_named(adapter: Any) -> None:
    class Scaled(tricycle.Dense):
        def forward(self, tensor: Any) -> Any:
            return super().forward(tensor) * 2.0

    model = tricycle.Sequential(tricycle.LayerNorm(8, eps=1e-3), Scaled(8, 8), tricycle.RMSNorm(8))
    assert adapter.enable(model, PACKAGE).kept == (
        ("model.layers[0]", "LayerNorm", "its eps is 0.001, the kernel's 1e-5"),
        ("model.layers[1]", "Scaled", "it is a subclass of Dense, which may compute something else"),
        ("model.layers[2]", "RMSNorm", "the package has no layer for it"),
    )


def test_single_kinds_of_layers_are_swapped(adapter: Any, made: Any) -> None:
    model = tricycle.Sequential(tricycle.Dense(8, 8), tricycle.GeLU(), tricycle.LayerNorm(8))
    adapter.enable(model, PACKAGE)
    report = adapter.enable(model, PACKAGE, only=["Dense", "LayerNorm"])
    assert [name for name, _ in report.swapped] == ["model.layers[0]", "model.layers[2]"]
    assert report.kept == (("model.layers[1]", "GeLU", "it was not asked for"),)
    assert [type(layer) for layer in model.layers] == [made.Dense, tricycle.GeLU, made.LayerNorm]
    with pytest.raises(ValueError, match="no layer for GELU; it has some for Attention, CrossEntropy, Dense, GeLU, "):
        adapter.enable(model, PACKAGE, only=["GELU"])
    assert type(model.layers[0]) is made.Dense


def test_layers_in_dictionaries_and_tuples_are_found(adapter: Any, made: Any) -> None:
    model = tricycle.Sequential()
    model.experts = {"a": (tricycle.Dense(2, 2), [tricycle.GeLU()])}
    model.itself = model
    assert dict(adapter.enable(model, PACKAGE).swapped) == {
        "model.experts['a'][0]": "Dense", "model.experts['a'][1][0]": "GeLU",
    }  # fmt: skip
    assert type(model.experts["a"][0]) is made.Dense


def test_a_layer_made_by_its_own_class_becomes_tricycles(adapter: Any, made: Any) -> None:
    layer = made.LayerNorm(4)
    assert adapter.disable(layer) == ["model"]
    assert type(layer) is tricycle.LayerNorm


def test_an_epsilon_set_later_is_refused(made: Any) -> None:
    layer = made.LayerNorm(4, eps=1e-6)
    with pytest.raises(ValueError, match=r"its eps is 1e-06, the kernel's 1e-5; use tricycle\.layers\.LayerNorm"):
        layer(drawn(np, 2, 4))


def test_a_swapped_model_is_pickled(adapter: Any, made: Any) -> None:
    model = tricycle.Sequential(tricycle.Dense(3, 2), tricycle.GeLU())
    adapter.enable(model, PACKAGE)
    again = pickle.loads(pickle.dumps(model))
    assert type(again.layers[0]) is made.Dense
    x = drawn(np, 2, 3)
    np.testing.assert_array_equal(again(x).array, model(x).array)


# --- use in a wrong way


def test_only_layers_and_operations_are_taken(adapter: Any) -> None:
    for function in (adapter.enable, adapter.disable):
        with pytest.raises(TypeError, match="ndarray is no layer or operation of Tricycle"):
            function(*([np.zeros(2), PACKAGE] if function is adapter.enable else [np.zeros(2)]))


def test_a_package_without_the_target_says_what_to_do(adapter: Any) -> None:
    for package in ("generated_nowhere", "email"):
        with pytest.raises(ImportError, match=f"--output {package} --target tricycle` makes the layers for Tricycle"):
            adapter.enable(tricycle.GeLU(), package)


def test_without_tricycle_the_error_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tricycle"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "llmc2py.adapters.tricycle", raising=False)
    monkeypatch.setitem(sys.modules, "tricycle", None)
    with pytest.raises(ImportError, match=r"needs Tricycle.*clone https://github\.com/bclarkson-code/Tricycle"):
        importlib.import_module("llmc2py.adapters.tricycle")
