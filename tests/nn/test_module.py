"""Modules: names, state, shared parameters, moves, initial values."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py import nn
from llmc2py.runtime import Function, Layer


class _Scale(Function):
    @staticmethod
    def forward(ctx: Any, inp: Any, weight: Any) -> Any:
        ctx.save(inp, weight)
        return inp * weight

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        inp, weight = ctx.saved
        return dout * weight, (dout * inp).sum(axis=0)


class Scale(Layer):
    """A layer as the generated ones are: not a Module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.ones(size, np.float32))

    def forward(self, inp: Any) -> Any:
        return _Scale.apply(inp, self.weight)


class Tower(nn.Module):
    def __init__(self, size: int, depth: int) -> None:
        super().__init__()
        self.first = Scale(size)
        self.blocks = nn.ModuleList(Scale(size) for _ in range(depth))
        self.last = Scale(size)
        self.last.weight = self.first.weight

    def forward(self, inp: Any) -> Any:
        x = self.first(inp)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


NAMES = ["first.weight", "blocks.0.weight", "blocks.1.weight"]


def test_a_shared_parameter_has_one_name() -> None:
    tower = Tower(3, 2)
    assert list(tower.state_dict()) == NAMES
    assert len(tower.parameters()) == 3


def test_gradients_of_a_shared_parameter_are_added_up(xp: Any) -> None:
    tower = Tower(3, 1)
    x = xp.asarray(np.array([[1, 2, 3]], np.float32))
    tower(x).backward(xp.ones((1, 3), np.float32))
    first = dict(tower.named_parameters())["first.weight"]
    np.testing.assert_allclose(nn.Tensor(first.grad).numpy(), [2, 4, 6])
    tower.zero_grad()
    assert first.grad is None


def test_state_goes_out_and_in(xp: Any) -> None:
    source = Tower(3, 2).to(xp.empty(0, np.float32))
    for number, parameter in enumerate(source.parameters()):
        nn.fill(parameter, number + 0.5)
    state = source.state_dict()
    nn.fill(source.parameters()[0], 9)
    assert state["first.weight"].tolist() == [0.5, 0.5, 0.5], "the state is a copy"

    target = Tower(3, 2).to(xp.empty(0, np.float32))
    arrays = [parameter.data for parameter in target.parameters()]
    target.load_state_dict(state)
    assert all(parameter.data is array for parameter, array in zip(target.parameters(), arrays, strict=True))
    for name, values in target.state_dict().items():
        np.testing.assert_array_equal(values, state[name])
    assert target.last.weight is target.first.weight


def test_state_is_taken_from_tensors_and_other_backends(xp: Any) -> None:
    tower = Tower(2, 0)
    tower.load_state_dict({"first.weight": nn.Tensor(xp.asarray(np.array([3, 4], np.float32)))})
    assert tower.state_dict()["first.weight"].tolist() == [3, 4]


def test_a_dtype_is_kept_by_loading() -> None:
    tower = Tower(2, 0).to(dtype="bfloat16")
    tower.load_state_dict({"first.weight": np.array([1.001, 2], np.float32)})
    state = tower.state_dict()["first.weight"]
    assert state.dtype == ml_dtypes.bfloat16
    assert state.astype(float).tolist() == [1, 2]


def test_what_does_not_fit_is_named_and_nothing_changes() -> None:
    tower = Tower(3, 2)
    bad = {
        "first.weight": np.zeros(3, np.float32),
        "blocks.0.weight": np.zeros(4, np.float32),
        "head.weight": np.zeros(1, np.float32),
    }
    with pytest.raises(ValueError, match="does not fit Tower") as error:
        tower.load_state_dict(bad)
    for part in ("missing: blocks.1.weight", "unexpected: head.weight", "blocks.0.weight has shape (4,)", "has (3,)"):
        assert part in str(error.value)
    assert tower.state_dict()["first.weight"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [np.zeros(3, np.int32), [1.0, 2.0, 3.0]], ids=["integers", "list"])
def test_state_that_is_no_floating_point_array_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"first\.weight: a floating point array is taken, not (int32|list)"):
        Tower(3, 0).load_state_dict({"first.weight": value})


def test_generated_layers_have_state_too() -> None:
    layer = Scale(2)
    nn.load_state_dict(layer, {"weight": np.array([5, 6], np.float32)})
    assert nn.state_dict(layer)["weight"].tolist() == [5, 6]


def test_a_module_list_is_a_sequence_of_layers() -> None:
    layers = [Scale(1), Scale(2), Scale(3)]
    row = nn.ModuleList(layers)
    assert (len(row), list(row), row[0], row[-1]) == (3, layers, layers[0], layers[2])
    with pytest.raises(IndexError, match="layer 3 of a ModuleList of 3"):
        row[3]
    with pytest.raises(IndexError, match="layer -4"):
        row[-4]
    with pytest.raises(TypeError, match="holds layers, not a int"):
        row.append(1)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="ModuleList defines no forward"):
        row()


def test_modules_move_with_their_gradients() -> None:
    tower = Tower(3, 1)
    tower(np.ones((1, 3), np.float32)).backward(np.ones((1, 3), np.float32))
    assert tower.to(dtype="float16") is tower
    assert {p.dtype for p in tower.parameters()} == {np.dtype(np.float16)}
    assert {p.grad.dtype for p in tower.parameters()} == {np.dtype(np.float16)}


def test_initial_values_have_their_spread(xp: Any) -> None:
    parameter = nn.Parameter(xp.zeros((400, 50), np.float32))
    nn.normal(parameter, np.random.default_rng(1), nn.residual_std(8), mean=1.0)
    values = parameter.numpy()
    assert nn.residual_std(8) == pytest.approx(0.005)
    assert values.std() == pytest.approx(0.005, rel=0.02)
    assert values.mean() == pytest.approx(1, abs=2e-4)
    other = nn.Parameter(np.zeros((400, 50), np.float32))
    nn.normal(other, np.random.default_rng(1), nn.residual_std(8), mean=1.0)
    np.testing.assert_array_equal(other.numpy(), values)


def test_bad_initial_values_are_refused() -> None:
    parameter = nn.Parameter(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="not negative, got -1"):
        nn.normal(parameter, np.random.default_rng(), -1)
    with pytest.raises(ValueError, match=re.escape("at least one block, not 0")):
        nn.residual_std(0)
