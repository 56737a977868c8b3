"""gradcheck passes right gradients and fails wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.verify.gradcheck import GradientError, gradcheck

ROOT = np.sqrt(2 / np.pi)


def gelu(arrays):
    x = arrays["x"]
    return {"y": 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)))}


def gelu_backward(arrays, grads, *, inner=3 * 0.044715, sech=1.0, scale=0.5):
    x = arrays["x"]
    t = np.tanh(ROOT * (x + 0.044715 * x**3))
    slope = scale * (1 + t) + sech * 0.5 * x * (1 - t**2) * ROOT * (1 + inner * x**2)
    return {"x": grads["y"] * slope}


def layernorm(arrays):
    x, w, b = arrays["x"], arrays["w"], arrays["b"]
    centred = x - x.mean(-1, keepdims=True)
    return {"y": centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b}


def layernorm_backward(arrays, grads, *, on_mean=True, on_norm=True, mean_term=1.0, norm_term=1.0, dw_uses_norm=True):
    x, w, dy = arrays["x"], arrays["w"], grads["y"]
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    norm = centred * rstd
    dnorm = dy * w
    first = mean_term * dnorm.mean(-1, keepdims=True) * (rstd if on_mean else 1.0)
    second = norm_term * norm * (dnorm * norm).mean(-1, keepdims=True) * (rstd if on_norm else 1.0)
    dw = (dy * (norm if dw_uses_norm else x)).reshape(-1, w.size).sum(0)
    return {"x": dnorm * rstd - first - second, "w": dw, "b": dy.reshape(-1, w.size).sum(0)}


def layernorm_inputs(rows=6, width=11, mean=0.7, spread=1.9, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "x": mean + spread * rng.standard_normal((rows, width)),
        "w": 1.2 + 0.4 * rng.standard_normal(width),
        "b": rng.standard_normal(width),
    }


def test_gelu_passes():
    report = gradcheck(gelu, gelu_backward, {"x": np.random.default_rng(0).normal(0.3, 1.4, (5, 7))})
    assert report.ok
    assert len(report.checks) == 4
    report.raise_if_failed()


@pytest.mark.parametrize("width", [1, 2, 3, 11, 257])
def test_layernorm_passes(width):
    assert gradcheck(layernorm, layernorm_backward, layernorm_inputs(width=width)).ok


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (100.0, 1.0), (-3.0, 1e-2), (0.0, 1e3)])
def test_layernorm_passes_at_any_scale(mean, spread):
    assert gradcheck(layernorm, layernorm_backward, layernorm_inputs(mean=mean, spread=spread)).ok


def test_residual_passes_and_is_exact():
    rng = np.random.default_rng(3)
    inputs = {"a": rng.normal(2, 3, (4, 5)), "b": rng.normal(-1, 0.1, (4, 5))}
    report = gradcheck(lambda g: {"y": g["a"] + g["b"]}, lambda _, d: {"a": d["y"], "b": d["y"]}, inputs)
    assert report.ok
    assert all(check.allowed < 1e-7 for check in report.checks)


def relu_inputs():
    x = np.random.default_rng(4).normal(0.2, 1.0, 64)
    return {"x": np.where(np.abs(x) < 0.05, 0.5, x)}


def test_relu_passes_away_from_kinks():
    assert gradcheck(
        lambda a: {"y": np.maximum(a["x"], 0)}, lambda a, d: {"x": d["y"] * (a["x"] > 0)}, relu_inputs()
    ).ok


def test_relu_gradient_of_the_wrong_side_fails():
    wrong = gradcheck(lambda a: {"y": np.maximum(a["x"], 0)}, lambda a, d: {"x": d["y"] * (a["x"] < 0)}, relu_inputs())
    assert not wrong.ok


def test_a_kink_within_the_step_is_an_error_not_a_tolerance():
    inputs = {"x": np.array([1e-6, 1.0, -2.0])}
    with pytest.raises(ValueError, match=r"finite differences by x do not converge .*kink"):
        gradcheck(lambda a: {"y": np.maximum(a["x"], 0)}, lambda a, d: {"x": d["y"] * (a["x"] > 0)}, inputs)


GELU_MUTANTS = {
    "drop the tanh term": {"sech": 0.0},
    "drop the factor 3": {"inner": 0.044715},
    "third digit of the constant": {"inner": 3 * 0.0447},
    "factor one half": {"scale": 1.0},
    "sign": {"sech": -1.0},
}


@pytest.mark.parametrize("mutant", GELU_MUTANTS)
def test_wrong_gelu_fails(mutant):
    inputs = {"x": np.random.default_rng(0).normal(0.3, 1.4, (5, 7))}
    report = gradcheck(gelu, lambda a, d: gelu_backward(a, d, **GELU_MUTANTS[mutant]), inputs)
    assert report.failed == ("x",)


LAYERNORM_MUTANTS = {
    "rstd missing on the mean term": ({"on_mean": False}, "x"),
    "rstd missing on the norm term": ({"on_norm": False}, "x"),
    "mean term dropped": ({"mean_term": 0.0}, "x"),
    "norm term dropped": ({"norm_term": 0.0}, "x"),
    "sign of the mean term": ({"mean_term": -1.0}, "x"),
    "third digit": ({"norm_term": 1.001}, "x"),
    "dweight of x instead of its norm": ({"dw_uses_norm": False}, "w"),
}


@pytest.mark.parametrize("mutant", LAYERNORM_MUTANTS)
def test_wrong_layernorm_fails_for_the_right_input(mutant):
    keywords, name = LAYERNORM_MUTANTS[mutant]
    report = gradcheck(layernorm, lambda a, d: layernorm_backward(a, d, **keywords), layernorm_inputs())
    assert report.failed == (name,)


def test_swapped_gradients_fail():
    def swapped(arrays, grads):
        right = layernorm_backward(arrays, grads)
        return {**right, "w": right["b"], "b": right["w"]}

    assert gradcheck(layernorm, swapped, layernorm_inputs()).failed == ("w", "b")


def test_one_wrong_element_of_ten_thousand_fails():
    def one_wrong(arrays, grads):
        gradient = gelu_backward(arrays, grads)["x"]
        gradient[73, 11] *= 1.001
        return {"x": gradient}

    assert not gradcheck(gelu, one_wrong, {"x": np.random.default_rng(0).normal(0.3, 1.4, (100, 100))}).ok


def test_nan_gradient_fails():
    report = gradcheck(gelu, lambda a, d: {"x": np.full(a["x"].shape, np.nan)}, {"x": np.ones((2, 2))})
    assert report.failed == ("x",)


def test_several_outputs_and_integer_inputs():
    inputs = {"x": np.random.default_rng(5).normal(1, 2, (3, 4)), "pick": np.array([1, 3, 0])}
    rows = np.arange(3)

    def forward(arrays):
        return {"picked": arrays["x"][rows, arrays["pick"]], "squares": arrays["x"] ** 2}

    def backward(arrays, grads, factor=2):
        dx = factor * arrays["x"] * grads["squares"]
        dx[rows, arrays["pick"]] += grads["picked"]
        return {"x": dx}

    assert gradcheck(forward, backward, inputs).ok
    assert not gradcheck(forward, lambda a, d: backward(a, d, factor=1), inputs).ok


def test_inputs_survive_functions_that_work_in_place():
    x = np.array([0.5, -1.0])

    def backward(arrays, grads):
        grads["y"] *= 2 * arrays["x"]
        arrays["x"][:] = 0
        return {"x": grads["y"]}

    assert gradcheck(lambda a: {"y": a["x"] ** 2}, backward, {"x": x}).ok
    assert x.tolist() == [0.5, -1.0]


def test_the_seed_fixes_everything():
    inputs = layernorm_inputs()
    first, second = (gradcheck(layernorm, layernorm_backward, inputs, seed=9) for _ in range(2))
    assert first == second
    assert first != gradcheck(layernorm, layernorm_backward, inputs, seed=10)


def test_failure_is_raised_with_input_and_values():
    report = gradcheck(gelu, lambda a, d: {"x": -gelu_backward(a, d)["x"]}, {"x": np.array([0.5, -1.0])}, directions=1)
    with pytest.raises(GradientError, match=r"gradient of x disagrees in direction 0: backward gives .* finite"):
        report.raise_if_failed()


def test_missing_gradient():
    with pytest.raises(ValueError, match="gives no gradient for b; it gives w, x"):
        gradcheck(
            layernorm,
            lambda a, d: {key: g for key, g in layernorm_backward(a, d).items() if key != "b"},
            layernorm_inputs(),
        )


def test_gradient_of_wrong_shape():
    with pytest.raises(ValueError, match=r"gradient of x has shape \(1, 2\), the input \(2,\)"):
        gradcheck(gelu, lambda a, d: {"x": gelu_backward(a, d)["x"][None]}, {"x": np.array([0.5, -1.0])})


def test_float32_input_is_refused():
    with pytest.raises(TypeError, match="input x is float32"):
        gradcheck(gelu, gelu_backward, {"x": np.ones(2, np.float32)}, wrt=["x"])


def test_nothing_to_check_is_an_error():
    with pytest.raises(ValueError, match="nothing to check"):
        gradcheck(gelu, gelu_backward, {"x": np.ones(0)})
