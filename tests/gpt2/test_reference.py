"""The float64 reference itself: its gradients against finite differences, its optimiser against a step by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpt2 import reference

SHAPES = {
    "wte": (11, 6), "wpe": (5, 6), "ln1w": (2, 6), "ln1b": (2, 6), "qkvw": (2, 18, 6), "qkvb": (2, 18),
    "attprojw": (2, 6, 6), "attprojb": (2, 6), "ln2w": (2, 6), "ln2b": (2, 6), "fcw": (2, 24, 6), "fcb": (2, 24),
    "fcprojw": (2, 6, 24), "fcprojb": (2, 6), "lnfw": (1, 6), "lnfb": (1, 6),
}  # fmt: skip


def test_gradients_are_the_slopes_of_the_loss() -> None:
    random = np.random.default_rng(0)
    weights = {name: 0.5 * random.standard_normal(shape) for name, shape in SHAPES.items()}
    tokens, targets = random.integers(0, 9, (2, 2, 5))

    def loss(changed: dict[str, np.ndarray]) -> float:
        return reference.run(changed, tokens, targets, num_heads=3, vocab_size=9).loss

    grads = reference.run(weights, tokens, targets, num_heads=3, vocab_size=9).grads
    assert set(grads) == set(SHAPES)
    for name, shape in SHAPES.items():
        direction = random.standard_normal(shape)
        ahead, behind = (loss(weights | {name: weights[name] + h * direction}) for h in (1e-5, -1e-5))
        assert (grads[name] * direction).sum() == pytest.approx((ahead - behind) / 2e-5, rel=1e-5), name


def test_all_tokens_are_as_likely_where_all_weights_are_zero() -> None:
    weights = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    step = reference.run(weights, np.zeros((1, 5), int), np.ones((1, 5), int), num_heads=2, vocab_size=9)
    assert step.loss == pytest.approx(np.log(9))
    assert not step.grads["wte"].any()


def test_the_first_step_of_adamw_has_the_length_of_the_learning_rate() -> None:
    weights = {"w": np.array([1.0, -2.0]), "b": np.array([3.0])}
    optimizer = reference.AdamW(lr=0.1, weight_decay=0.5)
    optimizer.step(weights, {"w": np.array([5.0, -7.0]), "b": np.array([1e-3])}, lambda name: name == "w")
    np.testing.assert_allclose(weights["w"], [1 - 0.1 - 0.05, -2 + 0.1 + 0.1])
    np.testing.assert_allclose(weights["b"], [2.9], rtol=1e-5)
