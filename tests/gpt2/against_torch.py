"""Comparing the model of generated layers with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.gpt2.conftest import Arrays
from tests.gpt2.test_model import gradients


def torch_gradients(gpt2_torch: Any, model: Any, tokens: Any, targets: Any, device: str) -> tuple[float, Arrays]:
    """The loss of a batch, and the gradients as `gradients` gives them."""
    model.zero_grad()
    loss = model.loss(gpt2_torch.on_device(tokens, device), gpt2_torch.on_device(targets, device))
    loss.backward()
    return loss.item(), dict(gpt2_torch.gradients(model))


class Three(NamedTuple):
    """Three models of the same weights: ours and PyTorch's in bfloat16, and PyTorch's in float64."""

    ours: Any
    place: Callable[..., tuple[Any, ...]]
    theirs: Any
    double: Any


def check_deviations(gpt2_torch: Any, batches: list[Any], models: Three, device: str) -> None:
    """Our loss and gradients are off by no more than 1.5 times as much as PyTorch's."""
    losses: list[tuple[float, float]] = []
    for tokens, targets in batches:
        exact, expected = torch_gradients(gpt2_torch, models.double, tokens, targets, device)
        theirs, their_gradients = torch_gradients(gpt2_torch, models.theirs, tokens, targets, device)
        ours, our_gradients = gradients(models.ours, *models.place(tokens, targets))
        losses.append((ours - exact, theirs - exact))
        limits = deviations(their_gradients, expected)
        for name, value in deviations(our_gradients, expected).items():
            assert value < 1.5 * limits[name], f"{name}: {value:.2e} is more than 1.5 times {limits[name]:.2e}"
    # One loss may be right by chance, so it is the root of the mean square that is compared.
    ours_rms, theirs_rms = (np.sqrt(np.mean(np.square(column))) for column in zip(*losses, strict=True))
    assert ours_rms < 1.5 * theirs_rms, f"losses are off by {ours_rms:.2e}, PyTorch's by {theirs_rms:.2e}"


def deviations(found: Arrays, expected: Arrays) -> dict[str, float]:
    """The length of what a gradient is off by, as a part of the length of the gradient."""
    return {name: float(np.linalg.norm(found[name] - one) / np.linalg.norm(one)) for name, one in expected.items()}
