"""Tiny models, and their weights and gradients by llm.c's names in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.gpt2.model import GPT2, TINY, GPT2Config

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float64]]]

#: A vocabulary that is padded, 3 heads, and no size that is a multiple of the others.
ODD = GPT2Config(max_seq_len=12, vocab_size=77, num_layers=2, num_heads=3, channels=48)


def stacked(model: GPT2, attribute: str = "data") -> Arrays:
    """The weights, or with ``"grad"`` the gradients, each stacked over its layers as the reference takes them."""
    found = {}
    for name, parameters in model.llmc_tensors():
        arrays = [getattr(parameter, attribute) for parameter in parameters]
        values = [np.asarray(a if isinstance(a, np.ndarray) else a.get()).astype(np.float64) for a in arrays]
        found[name] = values[0] if name in ("wte", "wpe") else np.stack(values)
    return found


def disturb(model: GPT2, seed: int = 5) -> GPT2:
    """Give biases and normalisations values that are neither 0 nor 1, so that each of them shows."""
    random = np.random.default_rng(seed)
    for parameter in model.parameters():
        noise = 0.05 * random.standard_normal(parameter.shape)
        parameter.data[...] = (parameter.numpy().astype(np.float64) + noise).astype(parameter.dtype)
    return model


def batch(config: GPT2Config, rows: int, length: int, seed: int = 7) -> tuple[Any, Any]:
    """Inputs and targets at random, in int32."""
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, (2, rows, length), dtype=np.int32)
    return ids[0], ids[1]


@pytest.fixture
def tiny() -> GPT2:
    """The model of the example, all of its parameters at random."""
    return disturb(GPT2(TINY, seed=3))
