"""AdamW and the norm of gradients: what they launch, what they refuse, and what they cost."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc2py.runtime import Kernel, KernelSource, Param, Parameter, Plan, TemplateParam, Tensor, launcher, optim
from llmc2py.runtime.csemantics import c_cast

ARRAYS = [
    Param("params_memory", "Tp*", intent="inout"),
    Param("master_params_memory", "float*", intent="inout", nullable=True),
    Param("grads_memory", "Tg*", intent="in"),
    Param("m_memory", "float*", intent="inout"),
    Param("v_memory", "float*", intent="inout"),
]
SIZES = [Param("num_parameters", "unsigned long"), *(Param(f"{one}_stride", "long") for one in "wgs")]
RATES = [Param(name, "float") for name in ("learning_rate", "beta1", "beta2")]
CORRECTIONS = [Param(name, "float") for name in ("beta1_correction", "beta2_correction")]
REST = [*(Param(name, "float") for name in ("eps", "weight_decay", "grad_scale")), Param("seed", "unsigned int")]
TEMPLATE = [TemplateParam("Tp"), TemplateParam("Tg")]
UPDATE = [*ARRAYS, *SIZES, Param("num_slices", "int"), *RATES, Param("t", "int"), *REST]
KERNEL = [*ARRAYS, *SIZES, *RATES, *CORRECTIONS, *REST]
FLOATS = {
    "learning_rate",
    "beta1",
    "beta2",
    "beta1_correction",
    "beta2_correction",
    "eps",
    "weight_decay",
    "grad_scale",
}

fake_settings = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Counted:
    """How often the body of a launcher has run."""

    bodies = 0


def adamw(tmp_path: Any, *, align: int = 0, times: float = 1.0, launches: int = 1) -> tuple[type[optim.AdamW], Counted]:
    """AdamW over launchers of llm.c's form; ``times`` and ``launches`` make one that does something else."""
    file = tmp_path / "adamw.cu"
    file.write_text("// no kernels: the backend is a fake")
    source, counted = KernelSource(file), Counted()
    params = [Param(one.name, one.ctype, one.intent, align, one.nullable) if one.is_pointer else one for one in KERNEL]
    kernel = Kernel(source, "adamw_kernel3", params, template=TEMPLATE)
    rounding = [ARRAYS[0], ARRAYS[1], SIZES[0], SIZES[1], SIZES[3], REST[-1]]
    rounding_kernel = Kernel(source, "init_from_master_kernel", rounding, template=TEMPLATE[:1])

    @launcher(UPDATE, template=TEMPLATE)
    def adamw_update(
        plan: Plan, params_memory: Any, master_params_memory: Any, grads_memory: Any, m_memory: Any, v_memory: Any,
        num_parameters: int, w_stride: int, g_stride: int, s_stride: int, num_slices: int, learning_rate: float,
        beta1: float, beta2: float, t: int, eps: float, weight_decay: float, grad_scale: float, seed: int,
    ) -> None:  # fmt: skip
        counted.bodies += 1
        corrections = [c_cast(1.0 - c_cast(math.pow(beta, t), "float"), "float") for beta in (beta1, beta2)]
        arrays = (params_memory, master_params_memory, grads_memory, m_memory, v_memory)
        sizes = (num_parameters, w_stride, g_stride, s_stride)
        rest = (learning_rate * times, beta1, beta2, *corrections, eps, weight_decay, grad_scale, seed)
        for _ in range(launches):
            plan.launch(kernel, (num_parameters + 255) // 256, 256, 0, *arrays, *sizes, *rest)

    @launcher([*rounding[:5], Param("num_slices", "int"), rounding[5]], template=TEMPLATE[:1])
    def init_from_master(
        plan: Plan, params_memory: Any, master_params_memory: Any, num_parameters: int, w_stride: int, s_stride: int,
        num_slices: int, seed: int,
    ) -> None:  # fmt: skip
        sizes = (num_parameters, w_stride, s_stride)
        plan.launch(rounding_kernel, 1, 256, 0, params_memory, master_params_memory, *sizes, seed)

    bound = type("AdamW", (optim.AdamW,), {"update": adamw_update, "init_from_master": init_from_master})
    return bound, counted


def parameter(size: int = 5, dtype: Any = np.float32, grad: bool = True) -> Parameter:
    one = Parameter(np.ones(size, dtype))
    one.grad = np.ones(size, dtype) if grad else None
    return one


def launched(fake: Any, number: int = -1) -> dict[str, Any]:
    """What a launch of adamw_kernel3 was given, by parameter."""
    cells = fake.launches[number][4]
    return {
        param.name: struct.unpack("f", struct.pack("I", cell))[0] if param.name in FLOATS else cell
        for param, cell in zip(KERNEL, cells, strict=True)
    }


rates = st.floats(0, 0.96875, width=32)


@fake_settings
@given(
    lr=rates, betas=st.tuples(rates, rates), decay=rates, scale=rates, steps=st.integers(1, 4), size=st.integers(1, 600)
)
def test_launches_what_the_launcher_would(
    fake: Any, tmp_path: Any, lr: float, betas: Any, decay: float, scale: float, steps: int, size: int
) -> None:
    bound, counted = adamw(tmp_path)
    one = parameter(size, ml_dtypes.bfloat16)
    optimizer = bound([one], 0.5, (0.5, 0.5), 1e-8, 0.5, seed=3)
    for step in range(steps):
        optimizer.lr, optimizer.betas, optimizer.weight_decay = lr / (step + 1), betas, decay
        optimizer.step(scale)
    assert counted.bodies == 1
    fast = fake.launches[-1]
    state = optimizer._states[0][0]
    bound.update(
        one.data, state.master, one.grad, state.m, state.v, *[size] * 4, 1,
        optimizer.lr, *betas, steps, 1e-8, decay, scale, state.seed,
    )  # fmt: skip
    assert fake.launches[-1] == fast


def test_a_new_learning_rate_or_gradient_records_no_plan(fake: Any, tmp_path: Any) -> None:
    bound, counted = adamw(tmp_path)
    parameters = [parameter(5), parameter(5), parameter(7)]
    optimizer = bound(parameters)
    for step in range(1, 6):
        optimizer.lr = 1 / step
        for one in parameters:
            one.grad = np.full(one.shape, step, np.float32)
        optimizer.step(1 / step)
    assert len(fake.launches) == 15
    assert counted.bodies == 3
    assert launched(fake)["grads_memory"] == parameters[2].grad.ctypes.data
    seeds = {launched(fake, number)["seed"] for number in range(15)}
    assert len(seeds) == 15


@pytest.mark.parametrize("other", [{"times": 2.0}, {"launches": 2}])
def test_a_launcher_that_does_something_else_is_called(fake: Any, tmp_path: Any, other: Any) -> None:
    bound, counted = adamw(tmp_path, **other)
    optimizer = bound([parameter()], lr=0.25)
    optimizer.step()
    optimizer.lr = 0.125
    optimizer.step()
    assert launched(fake)["learning_rate"] == 0.125 * other.get("times", 1)
    assert len(fake.launches) == 2 * other.get("launches", 1)
    assert counted.bodies == 3


def test_a_gradient_that_lies_across_the_kernels_alignment_is_copied(fake: Any, tmp_path: Any) -> None:
    bound, counted = adamw(tmp_path, align=16)
    one = Parameter(fake.empty((5,), np.float32))
    one.data[...] = 1
    optimizer = bound([one])
    for start in (1, 0, 1):
        one.grad = fake.empty((6,), np.float32)[start : start + 5]
        one.grad[...] = 1
        optimizer.step()
        assert launched(fake)["grads_memory"] % 16 == 0
        assert (launched(fake)["grads_memory"] == one.grad.ctypes.data) == (start == 0)
    assert counted.bodies == 3


def test_parameters_without_a_gradient_are_left_out_and_count_their_own_steps(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    always, late = parameter(), parameter(grad=False)
    optimizer = bound([always, late], betas=(0.5, 0.5))
    optimizer.step()
    assert len(fake.launches) == 1
    late.grad = np.ones(5, np.float32)
    optimizer.step()
    assert [launched(fake, number)["beta1_correction"] for number in (1, 2)] == [0.75, 0.5]
    assert (optimizer.steps, int(optimizer.state_dict()["1.t"])) == (2, 1)


def test_an_empty_parameter_launches_nothing(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    bound([parameter(0)]).step()
    assert fake.launches == []


def test_groups_have_rates_of_their_own_or_those_of_the_optimiser(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    groups = [{"params": [parameter()]}, {"params": iter([parameter()]), "weight_decay": 0.0, "lr": 0.5}]
    optimizer = bound(groups, lr=0.25, weight_decay=0.125)
    optimizer.lr, optimizer.groups[1].lr = 0.0625, 0.75
    optimizer.step()
    found = [(launched(fake, number)["learning_rate"], launched(fake, number)["weight_decay"]) for number in (0, 1)]
    assert found == [(0.0625, 0.125), (0.75, 0.0)]
    assert optimizer.parameters == [one for group in optimizer.groups for one in group.parameters]


def test_zero_grad(fake: Any, tmp_path: Any) -> None:
    one, other = parameter(), parameter(grad=False)
    optimizer = adamw(tmp_path)[0]([one, other])
    kept = one.grad
    optimizer.zero_grad(set_to_none=False)
    assert one.grad is kept
    assert not kept.any()
    optimizer.zero_grad()
    assert one.grad is None


def test_the_state_follows_a_parameter_of_another_dtype(fake: Any, tmp_path: Any) -> None:
    optimizer = adamw(tmp_path)[0]([one := parameter()])
    optimizer.step()
    assert launched(fake)["master_params_memory"] == 0
    one.data, one.grad = np.full(5, 2, np.float16), np.ones(5, np.float16)
    optimizer.step()
    master = np.frombuffer((ctypes.c_char * 20).from_address(launched(fake)["master_params_memory"]), np.float32)
    np.testing.assert_array_equal(master, 2)
    assert fake.launches[-1][0] == "adamw_kernel3<half, half>"
    one.data[...] = 3
    optimizer.step()
    np.testing.assert_array_equal(master, 2)
    optimizer.reset_master_weights()
    optimizer.step()
    np.testing.assert_array_equal(optimizer.state_dict()["0.master"], 3)


REFUSED = [
    ({"lr": -1}, ValueError, "lr is -1; it has to be at least 0"),
    ({"lr": math.nan}, ValueError, "lr is nan"),
    ({"lr": math.inf}, ValueError, "at least 0 and finite"),
    ({"lr": "much"}, TypeError, "takes a number"),
    ({"betas": (0.9, 1.0)}, ValueError, "betas is 1.0; it has to be at least 0 and below 1"),
    ({"betas": (0.9, 0.999999999)}, ValueError, "below 1"),
    ({"betas": (-0.1, 0.9)}, ValueError, "betas is -0.1"),
    ({"eps": -1e-8}, ValueError, "eps is -1e-08"),
    ({"weight_decay": -0.1}, ValueError, "weight_decay is -0.1"),
    ({"seed": -1}, ValueError, "seed is -1; it is an integer of at least 0"),
    ({"seed": 1.5}, ValueError, "seed is 1.5"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED)
def test_settings_out_of_range_are_refused(tmp_path: Any, wrong: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        adamw(tmp_path)[0]([parameter()], **wrong)


def test_parameters_that_are_none_are_refused(tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    one = parameter()
    for wrong, error, message in (
        ([], ValueError, "there are no parameters"),
        ([{"params": []}], ValueError, "there are no parameters"),
        ([np.ones(3)], TypeError, "a Parameter or another Tensor, not a ndarray"),
        ([one, one], ValueError, "comes twice"),
        ([{"params": [one]}, {"params": [one]}], ValueError, "comes twice"),
        ([{"params": [one]}, one], TypeError, "mixed"),
        ([{"params": [one], "rate": 1}], ValueError, "no key 'rate'"),
        ([{"lr": 1}], ValueError, "under the key 'params'"),
    ):
        with pytest.raises(error, match=message):
            bound(wrong)
    with pytest.raises(TypeError, match="a generated package's optim module"):
        optim.AdamW([one])


def test_a_step_that_is_refused_changes_nothing(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    first, second = parameter(), parameter()
    optimizer = bound([first, second])
    second.grad = np.ones(5, np.float64)
    with pytest.raises(TypeError, match="the gradient of parameter 1 is float64; one of float32"):
        optimizer.step()
    second.grad = np.ones(5, np.float32)
    before, second.data = second.data, np.ones(4, np.float32)
    with pytest.raises(ValueError, match=r"parameter 1 has shape \(4,\), its gradient \(5,\)"):
        optimizer.step()
    second.data = before
    for scale in (math.nan, math.inf):
        with pytest.raises(ValueError, match="leave the step out"):
            optimizer.step(scale)
    optimizer.groups[0].lr = -1.0
    with pytest.raises(ValueError, match="lr is -1"):
        optimizer.step()
    assert fake.launches == []
    assert optimizer.steps == 0
    optimizer.groups[0].lr = None
    optimizer.step()
    second.data, second.grad = np.ones(6, np.float32), np.ones(6, np.float32)
    with pytest.raises(ValueError, match="has 6 elements now, its moments have 5"):
        optimizer.step()
    doubles = Parameter(np.ones(3))
    doubles.grad = np.ones(3)
    with pytest.raises(TypeError, match="parameter 0 is float64"):
        bound([doubles]).step()


def test_a_state_of_other_parameters_is_refused_and_changes_nothing(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    optimizer = bound([parameter(5)])
    optimizer.step()
    good = optimizer.state_dict()
    other = bound([parameter(6)], lr=0.5)
    with pytest.raises(ValueError, match=r"0\.m has 5 elements, the parameter has 6; 0\.v has 5"):
        other.load_state_dict(good)
    for change, message in (
        ({"1.t": 3}, "unexpected: 1.t"),
        ({"0.m": None}, "missing: 0.m"),
        ({"steps": None}, "missing: steps"),
    ):
        state = {key: value for key, value in (good | change).items() if value is not None}
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
    assert (other.lr, other.steps, optimizer.steps) == (0.5, 0, 1)


def test_a_state_is_a_copy_and_can_be_taken_before_the_first_step(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    optimizer = bound([parameter()], seed=7)
    fresh = optimizer.state_dict()
    assert "0.m" not in fresh
    optimizer.step()
    state = optimizer.state_dict()
    state["0.m"][...] = 9
    assert not optimizer.state_dict()["0.m"].any()
    optimizer.load_state_dict(fresh)
    assert optimizer.steps == 0
    optimizer.step()
    # The same seed and step as the first time.
    assert launched(fake, 0)["seed"] == launched(fake, 1)["seed"]


def test_a_loaded_master_waits_for_a_parameter_that_is_not_placed_yet(fake: Any, tmp_path: Any) -> None:
    bound, _ = adamw(tmp_path)
    optimizer = bound([parameter(5, np.float16)])
    optimizer.step()
    state = optimizer.state_dict() | {"0.master": np.full(5, 1.0001, np.float32)}
    one = parameter(5, np.float32)
    resumed = bound([one])
    resumed.load_state_dict(state)
    assert len(fake.launches) == 1
    one.data, one.grad = one.data.astype(np.float16), one.grad.astype(np.float16)
    resumed.step()
    np.testing.assert_array_equal(resumed.state_dict()["0.master"], np.float32(1.0001))


class TestNorm:
    @pytest.fixture
    def norms(self) -> optim.GradientNorm:
        def never(*args: Any) -> None:
            raise AssertionError("launched")

        return optim.GradientNorm(never, {(1, 1024): lambda sums, blocks: None})

    def test_limits_are_above_nought(self, norms: Any) -> None:
        for limit in (0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"max_norm is {limit}; it has to be above 0"):
                norms.clip_global_norm([parameter()], limit)

    def test_what_has_no_norm_is_refused(self, norms: Any) -> None:
        with pytest.raises(ValueError, match="no parameters or arrays"):
            norms.global_norm([])
        with pytest.raises(TypeError, match="gradient 1 is float64"):
            norms.global_norm([np.ones(1, np.float32), np.ones(1)])
        with pytest.raises(TypeError, match="`gradient 0` is a NoneType"):
            norms.global_norm([None])

    def test_without_gradients_it_is_nought(self, norms: Any) -> None:
        norm = norms.global_norm([Tensor(np.ones(3, np.float32)), np.zeros((0, 4), np.float16)])
        assert (norm.shape, norm.dtype, float(norm)) == ((), np.float32, 0.0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_takes_the_steps_that_the_optimiser_would_take(copied: Any) -> None:
    from generated.optim import AdamW

    gradient = np.linspace(-1, 1, 40, dtype=np.float32).astype(ml_dtypes.bfloat16)
    one = Parameter(gradient.copy())
    optimizer = AdamW([one], lr=0.1)
    for _ in range(3):
        its, other = copied((one, optimizer))
        assert other.parameters[0] is its
        one.grad, its.grad = gradient.copy(), gradient.copy()
        before = its.data.copy()
        optimizer.step()
        np.testing.assert_array_equal(its.data, before)
        other.step()
        np.testing.assert_array_equal(its.data, one.data)
        state, expected = other.state_dict(), optimizer.state_dict()
        assert list(state) == list(expected)
        for name in expected:
            np.testing.assert_array_equal(state[name], expected[name])
