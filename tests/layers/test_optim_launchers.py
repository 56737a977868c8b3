"""AdamW and the norm of gradients on the committed package's launchers, against float64 written from the formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc2py.runtime import Parameter, no_grad
from llmc2py.runtime.dtypes import PRECISIONS
from tests.layers.conftest import Package, to_double, to_numpy

SIZES = (1, 31, 1023, 4097)
LR, BETAS, EPS, DECAY, SCALE = 1e-2, (0.9, 0.95), 1e-8, 0.1, 0.5
few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_float(value: float) -> float:
    return float(np.float32(value))


class Reference:
    """AdamW in float64, with the scalars that float holds."""

    def __init__(self, values: np.ndarray[Any, Any], decay: float = DECAY) -> None:
        self.p, self.decay, self.t = values.astype(np.float64), as_float(decay), 0
        self.m, self.v = np.zeros_like(self.p), np.zeros_like(self.p)

    def step(self, gradient: np.ndarray[Any, Any], scale: float = SCALE, lr: float = LR) -> None:
        beta1, beta2 = map(as_float, BETAS)
        g = as_float(scale) * gradient.astype(np.float64)
        self.t += 1
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g**2
        direction = self.m / (1 - beta1**self.t) / (np.sqrt(self.v / (1 - beta2**self.t)) + as_float(EPS))
        self.p = self.p - as_float(lr) * (direction + self.decay * self.p)


@pytest.fixture
def adamw(package: Package) -> Any:
    """AdamW of the committed package."""
    return package["optim"].AdamW


@pytest.fixture
def norms(package: Package) -> Any:
    """The module of the committed package, for its functions."""
    return package["optim"]


def drawn(xp: Any, shape: Any, dtype: Any, seed: Any) -> Any:
    return xp.asarray(np.random.default_rng(seed).normal(0.5, 2.0, shape).astype(dtype))


def give_gradients(xp: Any, parameters: list[Parameter], seed: int) -> None:
    for index, one in enumerate(parameters):
        one.grad = drawn(xp, one.shape, one.dtype, [seed, 1, index])


def assert_near(got: Any, expected: np.ndarray[Any, Any], steps: int = 1) -> None:
    # Float loses digits of 1 - beta^t, and some in each step.
    error = np.abs(to_double(got) - expected)
    assert np.all(error <= 1e-6 * steps * (np.abs(expected) + 1) + 1e-5 * LR)


def spacing(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """The distance between numbers of a dtype about these values."""
    digits = {"float16": 10, "bfloat16": 7}[dtype.name]
    return 2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 2.0**-14))) - digits)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_follow_the_formula(adamw: Any, xp: Any, precision: str) -> None:
    dtype = PRECISIONS[precision]
    parameters = [Parameter(drawn(xp, size, dtype, [0, size])) for size in SIZES]
    references = [Reference(to_numpy(one.data)) for one in parameters]
    optimizer = adamw(parameters, LR, BETAS, EPS, DECAY)
    for step in range(1, 6):
        give_gradients(xp, parameters, step)
        optimizer.lr = LR / step
        optimizer.step(SCALE)
        for index, (one, reference) in enumerate(zip(parameters, references, strict=True)):
            reference.step(to_numpy(one.grad), lr=LR / step)
            state = optimizer.state_dict()
            assert state[f"{index}.m"].dtype == np.float32
            assert int(state[f"{index}.t"]) == step
            np.testing.assert_allclose(state[f"{index}.m"], reference.m, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(state[f"{index}.v"], reference.v, rtol=1e-5, atol=1e-6)
            assert (f"{index}.master" in state) == (dtype.itemsize == 2)
            assert_near(state.get(f"{index}.master", one.data), reference.p, step)
            if dtype.itemsize == 2:
                rounding = np.abs(to_double(one.data) - state[f"{index}.master"])
                assert np.all(rounding <= spacing(reference.p, dtype))


def test_float32_may_have_a_master_and_16_bits_none(adamw: Any, xp: Any) -> None:
    single = Parameter(drawn(xp, 33, np.float32, 1))
    reference = Reference(to_numpy(single.data))
    optimizer = adamw([single], LR, BETAS, EPS, DECAY, master_weights=True)
    give_gradients(xp, [single], 1)
    optimizer.step(SCALE)
    reference.step(to_numpy(single.grad))
    assert_near(single.data, reference.p)
    np.testing.assert_array_equal(optimizer.state_dict()["0.master"], to_numpy(single.data))

    half = Parameter(drawn(xp, 33, np.float16, 1))
    reference = Reference(to_numpy(half.data))
    optimizer = adamw([half], LR, BETAS, EPS, DECAY, master_weights=False)
    give_gradients(xp, [half], 1)
    optimizer.step(SCALE)
    reference.step(to_numpy(half.grad))
    assert "0.master" not in optimizer.state_dict()
    assert np.all(np.abs(to_double(half.data) - reference.p) <= 0.51 * spacing(reference.p, half.dtype))


def test_without_a_master_bfloat16_is_right_in_the_mean_over_seeds(adamw: Any, xp: Any) -> None:
    dtype, count, seeds = PRECISIONS["bfloat16"], 2048, 16
    start, gradient = 1.0, 0.7
    reference = Reference(np.full(1, start))
    reference.step(np.full(1, np.float64(np.asarray(gradient, dtype))))
    means, seen = [], set()
    for seed in range(seeds):
        one = Parameter(xp.asarray(np.full(count, start, dtype)))
        one.grad = xp.asarray(np.full(count, gradient, dtype))
        adamw([one], LR, BETAS, EPS, DECAY, master_weights=False, seed=seed).step(SCALE)
        means.append(to_double(one.data).mean())
        seen.add(to_numpy(one.data).tobytes())
    step = float(spacing(reference.p, dtype)[0])
    # Where rounding to the nearest would be off by more than a tenth of the spacing, the mean is off by far less.
    offset = abs(reference.p[0] / step - round(reference.p[0] / step))
    assert offset > 0.1
    assert abs(np.mean(means) - reference.p[0]) < 5 * step * 0.5 / math.sqrt(count * seeds)
    assert len(seen) == seeds


def test_each_parameter_and_step_rounds_with_a_seed_of_its_own(adamw: Any, xp: Any) -> None:
    dtype = PRECISIONS["bfloat16"]
    parameters = [Parameter(xp.asarray(np.full(512, 1.0, dtype))) for _ in range(2)]
    for one in parameters:
        one.grad = xp.asarray(np.full(512, 0.7, dtype))
    optimizer = adamw(parameters, LR, master_weights=True)
    patterns = set()
    for _ in range(2):
        optimizer.step()
        patterns |= {(to_double(one.data) > to_double(one.data).mean()).tobytes() for one in parameters}
    assert len(patterns) == 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("master_weights", [None, False])
def test_resumes_to_the_same_bits(adamw: Any, xp: Any, tmp_path: Any, precision: str, master_weights: Any) -> None:
    def made(values: list[Any]) -> tuple[list[Parameter], Any]:
        parameters = [Parameter(value) for value in values]
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0, "lr": 3e-3}]
        return parameters, adamw(groups, LR, BETAS, master_weights=master_weights, seed=5)

    def train(parameters: list[Parameter], optimizer: Any, steps: range) -> None:
        for step in steps:
            give_gradients(xp, parameters, step)
            parameters[1].grad = None if step == 1 else parameters[1].grad
            optimizer.lr = LR / step
            optimizer.step(SCALE)

    start = [drawn(xp, size, PRECISIONS[precision], size) for size in SIZES]
    parameters, optimizer = made([one.copy() for one in start])
    train(parameters, optimizer, range(1, 3))
    np.savez(tmp_path / "state.npz", **optimizer.state_dict())
    at_two = [one.data.copy() for one in parameters]
    train(parameters, optimizer, range(3, 6))

    others, resumed = made(at_two)
    with np.load(tmp_path / "state.npz") as state:
        resumed.load_state_dict(state)
    assert resumed.lr == LR / 2
    train(others, resumed, range(3, 6))
    for one, other in zip(parameters, others, strict=True):
        np.testing.assert_array_equal(to_numpy(one.data), to_numpy(other.data))
    wanted, got = optimizer.state_dict(), resumed.state_dict()
    assert set(wanted) == set(got)
    for key, value in wanted.items():
        np.testing.assert_array_equal(value, got[key], err_msg=key)


def test_loading_rounds_parameters_from_their_masters_to_the_same_bits(adamw: Any, xp: Any) -> None:
    dtype = PRECISIONS["bfloat16"]
    parameters = [Parameter(drawn(xp, size, dtype, size)) for size in SIZES]
    optimizer = adamw(parameters)
    for step in range(2):
        give_gradients(xp, parameters, step)
        parameters[0].grad = parameters[0].grad if step == 0 else None
        optimizer.step()
    state, wanted = optimizer.state_dict(), [to_numpy(one.data).copy() for one in parameters]
    for one in parameters:
        one.data[...] = 0
    adamw(parameters).load_state_dict(state)
    for one, values in zip(parameters, wanted, strict=True):
        np.testing.assert_array_equal(to_numpy(one.data), values)


def test_clipping_scales_what_the_step_sees_and_not_the_gradients(adamw: Any, norms: Any, xp: Any) -> None:
    parameters = [Parameter(drawn(xp, size, np.float32, size)) for size in SIZES]
    references = [Reference(to_numpy(one.data)) for one in parameters]
    give_gradients(xp, parameters, 4)
    before = [to_numpy(one.grad).copy() for one in parameters]
    expected = math.sqrt(sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in before))
    clipped = norms.clip_global_norm(parameters, 1.0)
    assert type(clipped.norm) is type(clipped.grad_scale) is float
    assert clipped.norm == pytest.approx(expected, rel=1e-6)
    assert clipped.grad_scale == pytest.approx(1 / expected, rel=1e-6)
    adamw(parameters, LR, BETAS, EPS, DECAY).step(clipped.grad_scale)
    for one, reference, gradient in zip(parameters, references, before, strict=True):
        np.testing.assert_array_equal(to_numpy(one.grad), gradient)
        reference.step(gradient, scale=clipped.grad_scale)
        assert_near(one.data, reference.p)


def test_a_norm_below_the_limit_leaves_gradients_alone(norms: Any, xp: Any) -> None:
    assert norms.clip_global_norm([xp.full(4, 0.5, np.float32)], 2.0) == (1.0, 1.0)
    assert norms.clip_global_norm([xp.full(4, 0.5, np.float32)], 0.5) == (1.0, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_is_told_and_stops_the_step(adamw: Any, norms: Any, xp: Any, bad: float) -> None:
    one = Parameter(drawn(xp, 600, np.float32, 0))
    one.grad = xp.ones(600, np.float32)
    one.grad[599] = bad
    before = to_numpy(one.data).copy()
    clipped = norms.clip_global_norm([one], 1.0)
    assert not clipped.is_finite
    assert math.isnan(clipped.norm) == math.isnan(bad)
    optimizer = adamw([one])
    with pytest.raises(ValueError, match="leave the step out"):
        optimizer.step(clipped.grad_scale)
    assert optimizer.steps == 0
    np.testing.assert_array_equal(to_numpy(one.data), before)


def test_the_norm_is_over_all_gradients_of_any_precision(norms: Any, xp: Any) -> None:
    arrays = [drawn(xp, size, dtype, size) for size, dtype in zip(SIZES, [*PRECISIONS.values()] * 2, strict=False)]
    arrays += [drawn(xp, (40, 30), np.float32, 9)[:, ::3], xp.zeros(0, np.float32)]
    expected = math.sqrt(sum(float((to_double(array) ** 2).sum()) for array in arrays))
    norm = norms.global_norm(arrays)
    assert type(norm) is xp.ndarray
    assert norm.shape == ()
    assert norm.dtype == np.float32
    assert float(norm) == pytest.approx(expected, rel=1e-6)


def test_parameters_without_gradients_count_as_nought(norms: Any, xp: Any) -> None:
    parameters = [Parameter(xp.ones(5, np.float32)) for _ in range(2)]
    assert float(norms.global_norm(parameters)) == 0
    parameters[1].grad = xp.full(5, 2.0, np.float32)
    assert float(norms.global_norm(parameters)) == pytest.approx(math.sqrt(20))


@few
@given(size=st.integers(1, 5000), seed=st.integers(0, 99), precision=st.sampled_from(["float32", "bfloat16"]))
def test_any_size(adamw: Any, norms: Any, xp: Any, size: int, seed: int, precision: str) -> None:
    # Between others in one array, where what is written beside it would show.
    around = drawn(xp, size + 2, PRECISIONS[precision], seed)
    one = Parameter(around[1:-1])
    reference, edges = Reference(to_numpy(one.data)), to_double(around)[[0, -1]]
    one.grad = drawn(xp, size + 1, PRECISIONS[precision], [seed, 1])[1:]
    norm = float(norms.global_norm([one]))
    assert norm == pytest.approx(math.sqrt(float((to_double(one.grad) ** 2).sum())), rel=1e-6)
    optimizer = adamw([one], LR, BETAS, EPS, DECAY, seed=seed)
    optimizer.step(SCALE)
    reference.step(to_numpy(one.grad))
    assert_near(optimizer.state_dict().get("0.master", one.data), reference.p)
    np.testing.assert_array_equal(to_double(around)[[0, -1]], edges)


def test_strided_parameters_and_gradients(adamw: Any, xp: Any) -> None:
    one = Parameter(drawn(xp, (9, 14), np.float32, 0)[:, ::2])
    one.grad = drawn(xp, (7, 9), np.float32, 1).T
    reference = Reference(to_numpy(one.data))
    reference.step(to_numpy(one.grad))
    adamw([one], LR, BETAS, EPS, DECAY).step(SCALE)
    assert_near(one.data, reference.p)


def test_a_layer_trains(package: Package, adamw: Any, norms: Any, xp: Any) -> None:
    layer = package["layers"].LayerNorm(48)
    # Made before the first call, which puts the parameters where the input is.
    optimizer = adamw(layer.parameters(), lr=0.05, weight_decay=0.0)
    x, target = drawn(xp, (16, 48), np.float32, 0), drawn(xp, (16, 48), np.float32, 1) * 0 + 3
    errors = []
    for _ in range(40):
        optimizer.zero_grad()
        out = layer(x)
        errors.append(float(((out.data - target) ** 2).mean()))
        out.backward(2 * (out.data - target) / out.data.size)
        optimizer.step(norms.clip_global_norm(layer.parameters(), 1.0).grad_scale)
    with no_grad():
        assert float(((layer(x).data - target) ** 2).mean()) < 0.3 * errors[0]
