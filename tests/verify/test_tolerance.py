"""Honest kernels are within tolerance at every shape and scale; wrong ones are not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmc2py.verify.tolerance import allowed_error, compare, float32_tolerance, half_spacing

PRECISIONS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
F = np.float32
ROOT = 0.7978845608028654


def gelu(a):
    x = a["x"]
    return {"y": 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)))}


def gelu_kernel(x, half=0.5, root=ROOT, cubic=0.044715, tanh_term=1.0):
    """Another association than the reference's: cubes by a square, halves last."""
    inner = F(root) * x * (F(1) + F(cubic) * (x * x))
    return (x + F(tanh_term) * x * np.tanh(inner)) * F(half)


def gelu_backward(a):
    x, t = a["x"], np.tanh(ROOT * (a["x"] + 0.044715 * a["x"] ** 3))
    return {"dx": a["dy"] * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * ROOT * (1 + 3 * 0.044715 * x**2))}


def gelu_backward_kernel(x, dy, second=1.0):
    t = np.tanh(F(ROOT) * (x + F(0.044715) * x * x * x))
    right = x * (F(1) - t * t) * F(ROOT) * (F(1) + F(3 * 0.044715) * x * x)
    return F(0.5) * dy * (F(1) + t + F(second) * right)


def layernorm(a):
    centred = a["x"] - a["x"].mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return {"y": centred * rstd * a["w"] + a["b"], "mean": a["x"].mean(-1), "rstd": rstd[..., 0]}


def halving_sum(values):
    """Sum the last axis in float32 in the order of a warp's shuffles."""
    while values.shape[-1] > 1:
        if values.shape[-1] % 2:
            values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
        middle = values.shape[-1] // 2
        values = values[..., :middle] + values[..., middle:]
    return values


def running_sum(values):
    """Sum the last axis in float32 one by one."""
    return np.add.accumulate(values, axis=-1, dtype=np.float32)[..., -1:]


def layernorm_kernel(x, w, b, total=halving_sum, bias=1.0, eps=1e-5):
    width = F(x.shape[-1])
    mean = total(x) / width
    rstd = F(1) / np.sqrt(total((x - mean) * (x - mean)) / width + F(eps))
    return ((x - mean) * rstd) * w + F(bias) * b, mean[..., 0], rstd[..., 0]


def layernorm_backward(a):
    x, w, dy = a["x"], a["w"], a["dy"]
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    norm, dnorm = centred * rstd, dy * w
    inner = dnorm - dnorm.mean(-1, keepdims=True) - norm * (dnorm * norm).mean(-1, keepdims=True)
    return {"dx": a["dx"] + inner * rstd, "dw": a["dw"] + (dy * norm).sum(0), "db": a["db"] + dy.sum(0)}


def layernorm_backward_kernel(x, w, dy, dx, dw, db, accumulate=1.0, mean_term=1.0, total=running_sum):
    width = F(x.shape[-1])
    mean = total(x) / width
    rstd = F(1) / np.sqrt(total((x - mean) * (x - mean)) / width + F(1e-5))
    norm, dnorm = (x - mean) * rstd, dy * w
    inner = dnorm - F(mean_term) * total(dnorm) / width - norm * (total(dnorm * norm) / width)
    keep = F(accumulate)
    return (
        keep * dx + inner * rstd,
        keep * dw + total((dy * norm).T)[:, 0],
        keep * db + total(dy.T)[:, 0],
    )


def rounded(arrays, precision):
    """What a kernel is given: rounded, then converted to float32 at the load."""
    return [array.astype(precision).astype(np.float32) for array in arrays.values()]


def check(reference, inputs, outputs, precision, reduction=1, dtypes=None):
    """Round a kernel's float32 outputs and compare each with the reference."""
    dtypes = dtypes or {}
    allowed = allowed_error(reference, inputs, precision, reduction, dtypes=dtypes)
    expected = reference(inputs)
    results = dict(zip(expected, outputs, strict=True))
    return {
        name: compare(result.astype(dtypes.get(name, precision)), expected[name], allowed[name])
        for name, result in results.items()
    }


def rng_inputs(seed, mean, spread, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(mean, spread, shape) for name, shape in shapes.items()}


precisions = st.sampled_from(list(PRECISIONS.values()))
seeds = st.integers(0, 2**32 - 1)
means = st.floats(-3, 3)
spreads = st.floats(0.05, 3)


@settings(max_examples=80, deadline=None)
@given(seeds, means, spreads, precisions, st.integers(1, 300))
@example(2019831087, -2.1296350594759224, 3, ml_dtypes.bfloat16, 1)  # 1 + tanh(x) is a few units in the last place
def test_honest_gelu_passes(seed, mean, spread, precision, count):
    inputs = rng_inputs(seed, mean, spread, x=count, dy=count)
    x, dy = rounded(inputs, precision)
    forward = check(gelu, {"x": inputs["x"]}, [gelu_kernel(x)], precision)
    backward = check(gelu_backward, inputs, [gelu_backward_kernel(x, dy)], precision)
    assert forward["y"].ok, str(forward["y"])
    assert backward["dx"].ok, str(backward["dx"])


@settings(max_examples=80, deadline=None)
@given(seeds, means, spreads, precisions, st.integers(1, 7), st.integers(1, 130), st.booleans())
def test_honest_layernorm_passes(seed, mean, spread, precision, rows, width, running):
    inputs = rng_inputs(seed, mean, spread, x=(rows, width), w=width, b=width)
    outputs = layernorm_kernel(*rounded(inputs, precision), total=running_sum if running else halving_sum)
    dtypes = {"mean": np.float32, "rstd": np.float32}
    for name, result in check(layernorm, inputs, outputs, precision, width, dtypes).items():
        assert result.ok, f"{name}: {result}"


@settings(max_examples=80, deadline=None)
@given(seeds, means, spreads, precisions, st.integers(1, 40), st.integers(1, 70), st.booleans())
def test_honest_layernorm_backward_passes(seed, mean, spread, precision, rows, width, running):
    row = dict.fromkeys(("x", "dy", "dx"), (rows, width))
    inputs = rng_inputs(seed, mean, spread, **row, w=width, dw=width, db=width)
    inputs = {name: inputs[name] for name in ("x", "w", "dy", "dx", "dw", "db")}
    total = running_sum if running else halving_sum
    outputs = layernorm_backward_kernel(*rounded(inputs, precision), total=total)
    for name, result in check(layernorm_backward, inputs, outputs, precision, max(rows, width)).items():
        assert result.ok, f"{name}: {result}"


@settings(max_examples=60, deadline=None)
@given(seeds, means, spreads, precisions, st.integers(1, 500))
def test_honest_residual_passes(seed, mean, spread, precision, count):
    inputs = rng_inputs(seed, mean, spread, a=count, b=count)
    a, b = rounded(inputs, precision)
    result = check(lambda g: {"y": g["a"] + g["b"]}, inputs, [a + b], precision)["y"]
    assert result.ok, str(result)


@settings(max_examples=30, deadline=None)
@given(seeds, means, precisions, st.integers(1, 5000), st.booleans())
def test_honest_dot_product_passes(seed, mean, precision, count, running):
    inputs = rng_inputs(seed, mean, 1.0, a=(2, count), b=(2, count))
    a, b = rounded(inputs, precision)
    total = (running_sum if running else halving_sum)(a * b)[:, 0]
    result = check(lambda g: {"y": (g["a"] * g["b"]).sum(-1)}, inputs, [total], precision, count)["y"]
    assert result.ok, str(result)


def gelu_case(precision, **mutation):
    inputs = rng_inputs(1, 0.3, 1.5, x=4096)
    return check(gelu, inputs, [gelu_kernel(*rounded(inputs, precision), **mutation)], precision)["y"]


GELU_MUTANTS = {
    "third digit of the root": {"root": 0.807},
    "third digit of the cubic's constant": {"cubic": 0.0457},
    "third digit of one half": {"half": 0.505},
    "tanh term dropped": {"tanh_term": 0.0},
    "tanh term's sign": {"tanh_term": -1.0},
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_right_gelu_is_green(precision):
    assert gelu_case(PRECISIONS[precision]).ok


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mutant", GELU_MUTANTS)
def test_wrong_gelu_is_red(precision, mutant):
    result = gelu_case(PRECISIONS[precision], **GELU_MUTANTS[mutant])
    assert not result.ok
    assert result.error > result.allowed


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mutation", [{"accumulate": 0.0}, {"mean_term": 0.0}, {"mean_term": 1.02}])
def test_wrong_layernorm_backward_is_red(precision, mutation):
    shape = (33, 65)
    inputs = rng_inputs(2, 0.7, 1.6, x=shape, w=65, dy=shape, dx=shape, dw=65, db=65)
    kernel_inputs = rounded(inputs, PRECISIONS[precision])
    right = check(layernorm_backward, inputs, layernorm_backward_kernel(*kernel_inputs), PRECISIONS[precision], 65)
    wrong_outputs = layernorm_backward_kernel(*kernel_inputs, **mutation)
    wrong = check(layernorm_backward, inputs, wrong_outputs, PRECISIONS[precision], 65)
    assert all(result.ok for result in right.values())
    assert not wrong["dx"].ok
    assert wrong["dw"].ok is ("accumulate" not in mutation)
    assert wrong["db"].ok is ("accumulate" not in mutation)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mutation", [{"bias": 0.0}, {"bias": 1.03}])
def test_wrong_layernorm_is_red(precision, mutation):
    inputs = rng_inputs(2, 0.7, 1.6, x=(9, 65), w=65, b=65)
    outputs = layernorm_kernel(*rounded(inputs, PRECISIONS[precision]), **mutation)
    dtypes = {"mean": np.float32, "rstd": np.float32}
    result = check(layernorm, inputs, outputs, PRECISIONS[precision], 65, dtypes)
    assert not result["y"].ok
    assert result["mean"].ok
    assert result["rstd"].ok


def test_wrong_epsilon_is_red_where_the_spread_is_small():
    inputs = rng_inputs(2, 0.7, 0.01, x=(9, 65), w=65, b=65)
    outputs = layernorm_kernel(*rounded(inputs, np.float32), eps=1.01e-5)
    assert not check(layernorm, inputs, outputs, np.float32, 65)["rstd"].ok


def test_swapped_arguments_are_red():
    inputs = rng_inputs(3, 0.2, 1.1, x=50, dy=50)
    x, dy = rounded(inputs, ml_dtypes.bfloat16)
    assert not check(gelu_backward, inputs, [gelu_backward_kernel(dy, x)], ml_dtypes.bfloat16)["dx"].ok


def test_rounding_twice_to_bfloat16_is_more_than_a_tie():
    """A kernel that keeps its intermediate in bfloat16 loses a bit more than one that rounds once."""
    inputs = rng_inputs(4, 0.5, 1.2, a=2000, b=2000, c=2000)
    a, b, c = rounded(inputs, ml_dtypes.bfloat16)
    twice = (a + b).astype(ml_dtypes.bfloat16).astype(np.float32) + c
    result = check(lambda g: {"y": g["a"] + g["b"] + g["c"]}, inputs, [twice], ml_dtypes.bfloat16)["y"]
    assert not result.ok


def test_representable_inputs_leave_only_the_rounding_of_the_output():
    x = np.array([0.5, 1.0, -2.0])
    allowed = allowed_error(lambda a: {"y": 3 * a["x"]}, {"x": x}, ml_dtypes.bfloat16)["y"]
    half_ulp = np.array([2.0**-8, 2.0**-7, 2.0**-6])
    assert np.all(allowed >= 1.5 * half_ulp)
    assert np.all(allowed <= 1.52 * half_ulp)


def test_the_rounding_of_the_inputs_counts_by_its_effect():
    allowed = allowed_error(lambda a: {"y": a["x"] * 0 + 1}, {"x": np.array([1 / 3])}, np.float16)["y"]
    assert allowed[0] == pytest.approx(1.5 * 2.0**-11, rel=0.03)


def test_precisions_can_be_given_by_name():
    x = np.linspace(-2, 2, 9)
    by_name = allowed_error(gelu, {"x": x}, "bfloat16", dtypes={"y": "float32"})["y"]
    by_type = allowed_error(gelu, {"x": x}, ml_dtypes.bfloat16, dtypes={"y": np.float32})["y"]
    np.testing.assert_array_equal(by_name, by_type)
    assert np.all(by_name <= allowed_error(gelu, {"x": x}, "bfloat16")["y"])


def test_float32_tolerances():
    assert float32_tolerance() == 1e-5
    assert float32_tolerance(1024) == 1e-5
    assert 1e-5 < float32_tolerance(10_000) < 1e-4
    assert float32_tolerance(10**7) == 1e-4


@pytest.mark.parametrize("precision", PRECISIONS)
def test_half_spacing_is_that_of_the_format(precision):
    dtype = np.dtype(PRECISIONS[precision])
    rng = np.random.default_rng(0)
    values = np.concatenate([np.exp(rng.uniform(-12, 9, 200)), [1.0, 2.0, 0.0, float(ml_dtypes.finfo(dtype).tiny) / 2]])
    unsigned = np.dtype(f"u{dtype.itemsize}")
    below = values.astype(dtype)
    below = np.where(below.astype(np.float64) > values, (below.view(unsigned) - 1).view(dtype), below)
    above = (below.view(unsigned) + 1).astype(unsigned).view(dtype)
    wanted = (above.astype(np.float64) - below.astype(np.float64)) / 2
    np.testing.assert_array_equal(half_spacing(values, dtype), wanted)


def test_integer_inputs_are_passed_as_they_are():
    seen = []

    def pick(arrays):
        seen.append(arrays["i"].dtype)
        return {"y": arrays["x"][arrays["i"]]}

    allowed = allowed_error(pick, {"x": np.array([1.0, 2.0]), "i": np.array([1, 1, 0])}, np.float16)
    assert allowed["y"].shape == (3,)
    assert set(seen) == {np.dtype(np.int64)}


def test_overflow_to_infinity_is_allowed_only_where_it_must_happen():
    x = np.array([60000.0, 70000.0])
    allowed = allowed_error(lambda a: {"y": a["x"] * 1.0}, {"x": x}, np.float16)["y"]
    with np.errstate(over="ignore"):
        assert compare(x.astype(np.float16), x, allowed).ok
    assert not compare(np.array([np.inf, np.inf], np.float16), x, allowed).ok
    assert not compare(np.array([60000, -np.inf], np.float16), x, allowed).ok
    assert not compare(np.array([60000, 0], np.float16), x, allowed).ok
    assert not compare(np.array([60000, np.nan], np.float16), x, allowed).ok


def test_nan_is_never_within_tolerance():
    wanted = np.array([1.0, 2.0])
    result = compare(np.array([1.0, np.nan]), wanted, np.full(2, 1e9))
    assert not result.ok
    assert result.index == (1,)
    assert np.isnan(result.got)


def test_nan_and_infinity_of_the_reference_are_wanted():
    wanted = np.array([np.nan, np.inf, -np.inf])
    assert compare(wanted.astype(np.float32), wanted, np.zeros(3)).ok
    assert not compare(np.array([0.0, np.inf, -np.inf]), wanted, np.zeros(3)).ok
    assert not compare(np.array([np.nan, -np.inf, -np.inf]), wanted, np.zeros(3)).ok


def test_worst_element_is_by_error_over_allowed():
    result = compare(
        np.array([[1.5, 2.0], [3.0, 4.2]]), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1], [1, 0.1]])
    )
    assert not result.ok
    assert result.index == (1, 1)
    assert (result.got, result.wanted, result.allowed) == (4.2, 4.0, 0.1)
    assert result.error == pytest.approx(0.2)
    assert str(result) == "beyond tolerance at [1, 1]: got 4.2, wanted 4, error 0.2, allowed 0.1"


def test_exact_equality_needs_no_tolerance():
    assert compare(np.zeros(3), np.zeros(3), np.zeros(3)).ok
    assert not compare(np.array([0, 1e-30, 0]), np.zeros(3), np.zeros(3)).ok


def test_empty_arrays_agree():
    result = compare(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)))
    assert result.ok
    assert result.index is None
    assert str(result) == "equal: nothing to compare"


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"got \(2,\), wanted \(3,\)"):
        compare(np.zeros(2), np.zeros(3), np.zeros(3))
