"""Layers for Tricycle, in a stand-in of its contract: swapped in and out, forward, backward and training."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from tests.adapters import tricycle_standin as tricycle
from tests.field.test_d10_tricycle import ENTRY, RELU

VENDORED = pathlib.Path(__file__).parents[2] / "vendor" / "llm.c"
PACKAGE, RELU_PACKAGE = "package_for_tricycle", "package_of_relu"


@contextlib.contextmanager
def standing_in(folder: pathlib.Path) -> Iterator[None]:
    """Let ``import tricycle`` find the stand-in, and packages in a folder; what is imported meanwhile is forgotten."""
    present = tricycle.modules()
    assert not present.keys() & sys.modules.keys(), "another Tricycle has been imported"
    before = set(sys.modules)
    sys.modules.update(present)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        adapters = {"llmc2py.adapters.tricycle"}
        for name in [name for name in sys.modules if name not in before]:
            if name in present or name in adapters or name.startswith(("package_", "field_")):
                del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a package of the vendored tree, and one of Tricycle's own ReLU kernels."""
    folder = tmp_path_factory.mktemp("tricycle")
    write_package(folder / PACKAGE, generate(VENDORED, targets=["tricycle"]).files)
    source = folder / "source"
    source.mkdir()
    (source / "relu.cu").write_text(RELU, encoding="utf-8")
    (source / "relu.toml").write_text(ENTRY, encoding="utf-8")
    write_package(folder / RELU_PACKAGE, generate(source, targets=["tricycle"]).files)
    return folder


@pytest.fixture(scope="module")
def adapter(folder: pathlib.Path) -> Iterator[types.ModuleType]:
    with standing_in(folder):
        yield importlib.import_module("llmc2py.adapters.tricycle")


@pytest.fixture(scope="module")
def made(adapter: types.ModuleType) -> types.ModuleType:
    """The module of the generated layers."""
    return importlib.import_module(f"{PACKAGE}.tricycle_layers")


def drawn(xp: Any, *shape: int, seed: int = 0, **options: Any) -> Any:
    """A tensor of random numbers."""
    values = np.random.default_rng(seed).normal(0.3, 1.2, shape)
    return tricycle.Tensor(xp.asarray(values.astype(np.float32)), **options)


def placed(layer: Any, xp: Any) -> Any:
    if xp is not np:
        layer.to_gpu()
    return layer


def numbers(xp: Any, *shape: int, below: int) -> Any:
    values = np.random.default_rng(1).integers(0, below, shape)
    return tricycle.Tensor(xp.asarray(values), requires_grad=False, dtype=int)


def on_cpu(array: Any) -> np.ndarray[Any, Any]:
    return array if isinstance(array, np.ndarray) else array.get()


def assert_close(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Compare with a tolerance relative to the largest value."""
    actual, expected = on_cpu(actual).astype(np.float64), on_cpu(expected).astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1e-6))


def weights_of(layer: Any) -> dict[str, Any]:
    """Weights by name, of a layer and of those in it."""
    found = {name: getattr(layer, name) for name in getattr(layer, "weights_", ())}
    for index, inner in enumerate(getattr(layer, "layers", ())):
        found |= {f"{index}.{name}": tensor for name, tensor in weights_of(inner).items()}
    return found


def run(layer: Any, *inputs: Any, seed: int = 5) -> dict[str, Any]:
    """Output and gradients of the inputs and weights, for random weights of the outputs' sum."""
    for tensor in (*inputs, *weights_of(layer).values()):
        tensor.grad = None
    out = layer(*inputs)
    xp = tricycle.array_module(out.array)
    factors = np.random.default_rng(seed).normal(size=out.shape).astype(np.float32)
    (out * xp.asarray(factors)).sum().backward()
    found = {f"input {index}": tensor.grad for index, tensor in enumerate(inputs) if tensor.requires_grad}
    found |= {name: tensor.grad for name, tensor in weights_of(layer).items()}
    return {"out": out.array} | {name: grad.array for name, grad in found.items()}


def assert_same_runs(adapter: Any, layer: Any, *inputs: Any, tolerance: float = 2e-5) -> None:
    """Run a layer as it is and with what is in it swapped, and compare."""
    expected = run(layer, *inputs)
    assert adapter.enable(layer, PACKAGE).swapped
    actual = run(layer, *inputs)
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert array.dtype == expected[name].dtype, name
        assert_close(array, expected[name], tolerance)


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
