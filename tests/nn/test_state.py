"""State of layers, whatever their class: strict or not, out to files and back, with the dtypes that it had."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from generated.layers import LayerNorm, Linear
from llmc2py import nn

WEIGHT = np.linspace(1, 2, 8, dtype=np.float32)


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_layers_state_goes_through_a_file_of_numpy(precision: str) -> None:
    layer = LayerNorm(8, dtype=precision)
    layer.weight.data[...] = WEIGHT
    file = io.BytesIO()
    np.savez(file, **layer.state_dict())
    file.seek(0)
    other = LayerNorm(8)
    assert other.load_state_dict(np.load(file)) == ([], [])
    for one, its in zip(layer.parameters(), other.parameters(), strict=True):
        assert its.dtype == one.dtype
        np.testing.assert_array_equal(its.data, one.data)
    x = np.ones((2, 8), one.dtype)
    np.testing.assert_array_equal(other(x).data, layer(x).data)


def test_what_a_state_lacks_or_has_besides_is_left_out_where_it_may_be() -> None:
    layer = LayerNorm(8)
    state = {"weight": WEIGHT, "scale": WEIGHT}
    with pytest.raises(ValueError, match="the state does not fit LayerNorm: missing: bias; unexpected: scale"):
        layer.load_state_dict(state)
    assert layer.state_dict()["weight"].tolist() == [1] * 8
    left_out = layer.load_state_dict(state, strict=False)
    assert (left_out.missing, left_out.unexpected) == (["bias"], ["scale"])
    np.testing.assert_array_equal(layer.state_dict()["weight"], WEIGHT)
    with pytest.raises(ValueError, match=r"LayerNorm: weight has shape \(2,\), the parameter has \(8,\)"):
        layer.load_state_dict({"weight": WEIGHT[:2]}, strict=False)


def test_a_parameter_that_is_left_out_stays_open() -> None:
    model = nn.Module()
    model.norm, model.linear = LayerNorm(8), Linear(8, 3)
    model.load_state_dict({"norm.weight": WEIGHT, "norm.bias": WEIGHT}, strict=False)
    x = np.ones((2, 8), ml_dtypes.bfloat16)
    assert model.linear(x).dtype == ml_dtypes.bfloat16
    with pytest.raises(TypeError, match="LayerNorm: the parameters are float32"):
        model.norm(x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_of_no_precision_go_to_the_parameters_dtype(dtype: Any) -> None:
    layer = LayerNorm(8)
    layer.load_state_dict({"weight": WEIGHT.astype(dtype), "bias": WEIGHT.astype(dtype)})
    assert layer.weight.dtype == np.float32


def test_state_may_be_mapped_from_a_file_but_not_masked(tmp_path: Any) -> None:
    np.save(tmp_path / "weight.npy", WEIGHT)
    layer = LayerNorm(8)
    layer.load_state_dict({"weight": np.load(tmp_path / "weight.npy", mmap_mode="r"), "bias": nn.Tensor(WEIGHT)})
    assert type(layer.weight.data) is np.ndarray
    with pytest.raises(TypeError, match="load_state_dict: `bias` is a masked array"):
        layer.load_state_dict({"weight": WEIGHT, "bias": np.ma.masked_less(WEIGHT, 1.5)})
