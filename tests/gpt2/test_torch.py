"""The tiny model against PyTorch with the same weights, on the CPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from examples.gpt2.model import GPT2, TINY
from tests.gpt2.against_torch import Three, check_deviations, torch_gradients
from tests.gpt2.conftest import ODD, batch, disturb
from tests.gpt2.test_model import check_gradients, gradients

torch = pytest.importorskip("torch", reason="compared with PyTorch")


@pytest.fixture
def gpt2_torch() -> Any:
    """The module with the model in PyTorch."""
    return importlib.import_module("benchmarks.gpt2_torch")


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd sizes"])
def test_a_step_is_that_of_pytorch(gpt2_torch: Any, config: Any) -> None:
    model = disturb(GPT2(config, seed=3))
    tokens, targets = batch(config, 2, config.max_seq_len)
    expected, grads = torch_gradients(gpt2_torch, gpt2_torch.torch_copy(model, "cpu"), tokens, targets, "cpu")
    loss, found = gradients(model, tokens, targets)
    assert loss == pytest.approx(expected, rel=1e-5)
    check_gradients(found, grads)


def test_bfloat16_deviates_no_more_than_one_and_a_half_times_as_pytorch(gpt2_torch: Any) -> None:
    # Weights that bfloat16 holds exactly, so that both runs and float64 begin with the same.
    model = disturb(GPT2(TINY, seed=1)).to(dtype="bfloat16")
    other = gpt2_torch.torch_copy(model, "cpu", torch.bfloat16)
    double = gpt2_torch.torch_copy(model, "cpu", torch.float64)
    batches = [batch(TINY, 2, 32, seed) for seed in range(3)]
    check_deviations(gpt2_torch, batches, Three(model, lambda *ids: ids, other, double), "cpu")
