"""GPT-2 124M on a GPU: against float64, and against PyTorch with the same weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.gpt2.checkpoint import load_checkpoint
from examples.gpt2.data import TokenLoader
from examples.gpt2.model import GPT2, GPT2_124M, TINY
from examples.gpt2.training import Schedule, Trainer
from tests.gpt2 import reference
from tests.gpt2.against_torch import Three, check_deviations, torch_gradients
from tests.gpt2.conftest import batch, disturb, stacked
from tests.gpt2.test_model import Repeated, check_gradients, gradients

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

T = 128


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    yield
    importlib.import_module("cupy").get_default_memory_pool().free_all_blocks()


@pytest.fixture
def gpt2_torch() -> Any:
    """The module with the model in PyTorch, float32 not rounded to TF32."""
    torch = pytest.importorskip("torch", reason="compared with PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no CUDA device")
    torch.set_float32_matmul_precision("highest")
    yield importlib.import_module("benchmarks.gpt2_torch")
    torch.cuda.empty_cache()


def on_gpu(*arrays: Any) -> tuple[Any, ...]:
    cupy = importlib.import_module("cupy")
    return tuple(cupy.asarray(array) for array in arrays)


def test_a_step_of_124m_in_float32_is_that_of_float64() -> None:
    model = disturb(GPT2(GPT2_124M, seed=1))
    tokens, targets = batch(GPT2_124M, 2, T)
    expected = reference.run(stacked(model), tokens, targets, GPT2_124M.num_heads, GPT2_124M.vocab_size)
    loss, found = gradients(model.to("cuda"), *on_gpu(tokens, targets))
    assert loss == pytest.approx(expected.loss, rel=1e-5)
    check_gradients(found, expected.grads)


def test_a_step_of_124m_in_float32_is_that_of_pytorch(gpt2_torch: Any) -> None:
    model = GPT2(GPT2_124M, seed=1)
    tokens, targets = batch(GPT2_124M, 4, 1024)
    expected, grads = torch_gradients(gpt2_torch, gpt2_torch.torch_copy(model, "cuda"), tokens, targets, "cuda")
    loss, found = gradients(model.to("cuda"), *on_gpu(tokens, targets))
    assert loss == pytest.approx(expected, rel=1e-5)
    check_gradients(found, grads)


def test_twenty_steps_of_124m_have_the_losses_of_pytorch(gpt2_torch: Any) -> None:
    torch = importlib.import_module("torch")
    model = GPT2(GPT2_124M, seed=1)
    batches = [batch(GPT2_124M, 4, 256, seed) for seed in (1, 2)]
    schedule = Schedule(steps=20, batch=4, sequence=256, lr=3e-4, warmup=5, clip=1.0)
    other = gpt2_torch.torch_copy(model, "cuda")
    betas = schedule.beta1, schedule.beta2
    optimizer = torch.optim.AdamW(other.decay_groups(schedule.weight_decay), lr=schedule.lr, betas=betas, eps=1e-8)
    trainer = Trainer(model.to("cuda"), Repeated(*batches), schedule)
    for number in range(20):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr_at(number)
        optimizer.zero_grad()
        loss = other.loss(*(gpt2_torch.on_device(ids, "cuda") for ids in batches[number % 2]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), schedule.clip)
        optimizer.step()
        assert trainer.step().loss == pytest.approx(loss.item(), abs=1e-3), f"step {number}"
    assert trainer.losses[-1] < trainer.losses[0] - 0.5


def trainer_of(dtype: str, graph: bool, accumulation: int = 2) -> Trainer:
    tokens = np.random.default_rng(1).integers(0, 256, 2000).astype(np.uint16)
    schedule = Schedule(steps=20, batch=2, sequence=32, warmup=2, accumulation=accumulation)
    model = GPT2(TINY, accumulation=accumulation).to("cuda", dtype=dtype)
    return Trainer(model, TokenLoader([tokens], 2, 32), schedule, graph=graph)


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_steps_in_a_graph_are_those_without(dtype: str, apart: float) -> None:
    usual, captured = (trainer_of(dtype, graph) for graph in (False, True))
    for number in range(20):
        assert captured.step().loss == pytest.approx(usual.step().loss, abs=apart), f"step {number}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_graph_goes_on_from_a_checkpoint_to_the_same_losses(tmp_path: Path, dtype: str) -> None:
    whole = trainer_of(dtype, graph=True)
    for number in range(6):
        if number == 3:
            whole.save(tmp_path / "c.npz")
        whole.step()
    other = trainer_of(dtype, graph=True)
    other.resume(load_checkpoint(tmp_path / "c.npz"))
    while len(other.losses) < 6:
        other.step()
    # Sums of atomics differ in their last digits.
    assert other.losses == pytest.approx(whole.losses, abs=1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("implementation", ["llmc", "cudnn"])
def test_bfloat16_deviates_no_more_than_one_and_a_half_times_as_pytorch(gpt2_torch: Any, implementation: str) -> None:
    torch = importlib.import_module("torch")
    if implementation == "cudnn":
        pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    # Weights that bfloat16 holds exactly, so that both runs and float64 begin with the same.
    model = disturb(GPT2(GPT2_124M, implementation=implementation, seed=1)).to(dtype="bfloat16")
    other = gpt2_torch.torch_copy(model, "cuda", torch.bfloat16)
    double = gpt2_torch.torch_copy(model, "cuda", torch.float64)
    model.to("cuda")
    batches = [batch(GPT2_124M, 4, T, seed) for seed in range(6)]
    check_deviations(gpt2_torch, batches, Three(model, on_gpu, other, double), "cuda")
