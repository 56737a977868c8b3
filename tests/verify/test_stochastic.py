"""Random rounding: what cancels shows, what does not stays near."""

import numpy as np
import pytest

from llmc2py.verify.stochastic import RandomlyRounded
from llmc2py.verify.tolerance import allowed_error


def moved(function: object, array: np.ndarray) -> float:
    exact = function(array)  # type: ignore[operator]
    noisy = function(RandomlyRounded.of(array, np.random.default_rng(0)))  # type: ignore[operator]
    return float(np.max(np.abs(np.asarray(noisy) - exact)))


def test_errors_have_the_size_of_float32() -> None:
    array = np.linspace(1, 2, 1000)
    assert 2.0**-27 < moved(lambda a: a * 1.0, array) <= 2.0**-23


@pytest.mark.parametrize("function", [np.mean, np.var, lambda a: a.mean(axis=-1, keepdims=True), lambda a: a.sum()])
def test_reductions_are_rounded_too(function: object) -> None:
    assert 0 < moved(function, np.linspace(100, 101, 7)) < 1e-3


def test_a_difference_that_cancels_shows_the_rounding_before_it() -> None:
    def cancelled(a: np.ndarray) -> np.ndarray:
        return 1e4 * (a * 3.0 - 3.0 * a)

    assert cancelled(np.array([1.1])) == 0
    assert 1e-5 < moved(cancelled, np.linspace(1, 2, 100)) < 1e-2


def test_a_row_of_one_element_is_allowed_what_a_fused_product_leaves() -> None:
    """LayerNorm of one element: the gradient is 0, but 316 times float32's error of a product is left on a device."""

    def backward(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inp, dout = arrays["inp"], arrays["dout"]
        mean = inp.mean(axis=-1, keepdims=True)
        rstd = 1 / np.sqrt(inp.var(axis=-1, keepdims=True) + 1e-5)
        norm = (inp - mean) * rstd
        return {
            "inp": rstd * (dout - dout.mean(axis=-1, keepdims=True) - norm * (dout * norm).mean(axis=-1, keepdims=True))
        }

    rng = np.random.default_rng(1)
    arrays = {"inp": rng.normal(1, 2, (3, 1)), "dout": rng.normal(size=(3, 1))}
    allowed = allowed_error(backward, arrays, np.float32)["inp"]
    assert np.all(allowed > 2e-5)
    assert np.all(allowed < 5e-3)
