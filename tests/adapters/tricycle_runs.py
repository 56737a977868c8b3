"""Layers of Tricycle's stand-in: random inputs for them, runs forward and backward, and runs compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.adapters import tricycle_standin as tricycle

#: The package of the vendored tree, and one of a user's own kernels.
PACKAGE, RELU_PACKAGE = "package_for_tricycle", "package_of_relu"


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
