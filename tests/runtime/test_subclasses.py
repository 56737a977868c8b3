"""Subclasses of NumPy's array: taken as the arrays that they are, wherever one is, and masked ones refused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from generated import gelu, layers, optim
from generated.dev.cuda import gelu_forward as variants
from llmc2py.runtime import Tensor
from llmc2py.runtime.gradnorm import GradientNorm

Make = Callable[[np.ndarray], Any]


class _Mine(np.ndarray):
    """A subclass of somebody's."""


@pytest.fixture(params=["memmap", "npy", "matrix", "recarray", "own"])
def make(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Make:
    """Make an object of a subclass with the values of a matrix."""

    def mapped(array: np.ndarray) -> Any:
        array.tofile(tmp_path / "values")
        return np.memmap(tmp_path / "values", array.dtype, "r", shape=array.shape)

    def loaded(array: np.ndarray) -> Any:
        np.save(tmp_path / "values.npy", array)
        return np.load(tmp_path / "values.npy", mmap_mode="r")

    views = {"matrix": np.matrix, "recarray": np.recarray, "own": _Mine}
    if request.param in views:
        return lambda array: array.view(views[request.param])
    return {"memmap": mapped, "npy": loaded}[request.param]


def values() -> np.ndarray:
    return np.linspace(-3, 3, 64, dtype=np.float32).reshape(8, 8)


def test_layers_and_backward_passes_take_them(make: Make) -> None:
    layer, plain = layers.LayerNorm(8), layers.LayerNorm(8)
    for transposed in (False, True):
        inp = make(values()).T if transposed else make(values())
        leaf, expected = Tensor(inp), Tensor(np.array(inp))
        out = layer(leaf)
        assert type(leaf.data) is type(out.data) is np.ndarray
        np.testing.assert_array_equal(out.data, plain(expected).data)
        np.testing.assert_array_equal(layer(inp).data, out.data)
        out.backward(make(values()))
        plain(expected).backward(values())
        assert type(leaf.grad) is np.ndarray
        np.testing.assert_array_equal(leaf.grad, expected.grad)


def test_a_tensor_whose_data_was_assigned_runs_on_the_cpu(make: Make) -> None:
    leaf = Tensor(values())
    leaf.data = make(values())
    out = layers.GeLU()(leaf)
    assert isinstance(out.data, np.ndarray)
    out.backward(values())
    assert isinstance(leaf.grad, np.ndarray)


def test_indices_may_be_mapped_from_a_file(make: Make) -> None:
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    encoder = layers.Encoder(10, 8, 5)
    np.testing.assert_array_equal(encoder(make(ids)).data, encoder(ids).data)


def test_launchers_kernels_and_norms_take_them(make: Make) -> None:
    inp = values()
    results = np.zeros((2, 64), np.float32)
    variants.gelu_forward1(results[0], make(inp), 64, 32)
    variants.gelu_forward_kernel1[2, 32](results[1], make(inp), 64)
    assert results[0].any()
    np.testing.assert_array_equal(results[0], results[1])
    norm = optim.global_norm([make(inp)])
    np.testing.assert_allclose(norm, np.linalg.norm(inp), rtol=1e-5)


def test_masked_arrays_are_refused_everywhere() -> None:
    masked = np.ma.masked_less(values(), 0)
    for call in (
        lambda: Tensor(masked),
        lambda: layers.LayerNorm(8)(masked),
        lambda: layers.GeLU()(masked),
        lambda: layers.GeLU()(Tensor(values())).backward(masked),
        lambda: gelu.gelu_forward(np.empty(64, np.float32), masked, 64),
        lambda: GradientNorm(None, None).global_norm([masked]),
    ):
        with pytest.raises(TypeError, match=r"` is a masked array, .*pass `x.filled\(value\)` or `x.data`"):
            call()
