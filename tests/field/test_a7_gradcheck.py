"""A7: LayerNorm backward without rstd on the mean term must not pass a gradcheck."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.verify.gradcheck import gradcheck


def forward(arrays):
    x = arrays["x"]
    centred = x - x.mean(-1, keepdims=True)
    return {"y": centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * arrays["w"]}


def backward(arrays, grads, rstd_on_mean):
    x, w = arrays["x"], arrays["w"]
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    norm, dnorm = (x - x.mean(-1, keepdims=True)) * rstd, grads["y"] * w
    inner = dnorm - norm * (dnorm * norm).mean(-1, keepdims=True)
    on_mean = rstd if rstd_on_mean else 1.0
    return {"x": inner * rstd - dnorm.mean(-1, keepdims=True) * on_mean, "w": (grads["y"] * norm).sum(0)}


def inputs(mean, spread):
    rng = np.random.default_rng(7)
    return {"x": mean + spread * rng.standard_normal((4, 9)), "w": rng.normal(1, 0.3, 9)}


@pytest.mark.parametrize(("mean", "spread"), [(0.5, 2.0), (-3.0, 0.4), (10.0, 1.1)])
def test_a7_missing_rstd_fails(mean, spread):
    given = inputs(mean, spread)
    assert gradcheck(forward, lambda a, d: backward(a, d, True), given).ok
    assert gradcheck(forward, lambda a, d: backward(a, d, False), given).failed == ("x",)
