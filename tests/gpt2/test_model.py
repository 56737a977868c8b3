"""The model of generated layers against the float64 reference: a step, twenty steps, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from examples.gpt2.data import TokenLoader
from examples.gpt2.model import GPT2, TINY, GPT2Config
from examples.gpt2.prepare import TEXT, read_file
from examples.gpt2.training import Schedule, Trainer
from llmc2py import nn
from llmc2py.runtime.poison import poisoned_arrays
from tests.gpt2 import reference
from tests.gpt2.conftest import ODD, Arrays, batch, disturb, stacked


@pytest.fixture(autouse=True)
def _new_memory_is_nan() -> Iterator[None]:
    with poisoned_arrays():
        yield


def decays(name: str) -> bool:
    return (name.endswith("w") and not name.startswith("ln")) or name in ("wte", "wpe")


def gradients(model: GPT2, tokens: Any, targets: Any) -> tuple[float, Arrays]:
    model.zero_grad()
    loss = model(tokens, targets)
    loss.backward()
    return float(loss.numpy()), stacked(model, "grad")


def check_gradients(found: Arrays, expected: Arrays, limit: float = 1e-4) -> None:
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        worst = np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        assert worst < limit, f"the gradient of {name} is off by {worst:.1e} of its largest entry"


@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd sizes"])
def test_one_step_is_that_of_the_reference(config: GPT2Config, xp: Any) -> None:
    model = disturb(GPT2(config, seed=3))
    tokens, targets = batch(config, 3, config.max_seq_len - 1)
    expected = reference.run(stacked(model), tokens, targets, config.num_heads, config.vocab_size)
    model.to(xp.empty(0, np.float32))
    loss, found = gradients(model, xp.asarray(tokens), xp.asarray(targets))
    assert loss == pytest.approx(expected.loss, rel=1e-5)
    check_gradients(found, expected.grads)


def test_logits_are_those_of_the_reference(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 2, 9)
    expected = reference.run(stacked(tiny), tokens, targets, TINY.num_heads, TINY.vocab_size).logits
    with nn.no_grad():
        logits = tiny(tokens).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


def test_recomputing_gelu_changes_nothing(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 2, 16)
    other = GPT2(TINY, recompute=True)
    other.load_state_dict(tiny.state_dict())
    loss, found = gradients(tiny, tokens, targets)
    other_loss, other_found = gradients(other, tokens, targets)
    assert loss == other_loss
    check_gradients(other_found, found, 1e-6)


def test_gradients_of_batches_add_up_to_those_of_one(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 4, 8)
    loss, found = gradients(tiny, tokens, targets)
    parts = GPT2(TINY, accumulation=2)
    parts.load_state_dict(tiny.state_dict())
    losses = [parts(tokens[part], targets[part]) for part in (slice(0, 2), slice(2, 4))]
    for part in losses:
        part.backward()
    assert sum(float(part.numpy()) for part in losses) == pytest.approx(loss, rel=1e-5)
    check_gradients(stacked(parts, "grad"), found, 1e-5)


class Repeated:
    """Batches that come again and again."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches
        self.position = (0, 0)

    def next_batch(self) -> Any:
        shard, index = self.position
        self.position = shard, index + 1
        return self.batches[index % len(self.batches)]


def test_the_losses_of_twenty_steps_are_those_of_the_reference(tiny: GPT2, xp: Any) -> None:
    batches = [batch(TINY, 2, 16, seed) for seed in (1, 2)]
    schedule = Schedule(steps=20, batch=2, sequence=16, lr=2e-3, warmup=5, clip=0, weight_decay=0.1)
    weights = stacked(tiny)
    optimizer = reference.AdamW(schedule.lr, (schedule.beta1, schedule.beta2), 1e-8, schedule.weight_decay)
    trainer = Trainer(tiny.to(xp.empty(0, np.float32)), Repeated(*batches), schedule)
    for number in range(20):
        step = reference.run(weights, *batches[number % 2], TINY.num_heads, TINY.vocab_size)
        optimizer.lr = schedule.lr_at(number)
        optimizer.step(weights, step.grads, decays)
        assert trainer.step().loss == pytest.approx(step.loss, abs=1e-3)
    assert trainer.losses[-1] < 0.8 * trainer.losses[0]


def test_clipping_takes_the_norm_down(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 2, 16)
    _, found = gradients(tiny, tokens, targets)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in found.values()))
    trainer = Trainer(tiny, Repeated((tokens, targets)), Schedule(batch=2, sequence=16, clip=norm / 4))
    assert trainer.step().norm == pytest.approx(norm, rel=1e-5)


def test_the_tiny_model_learns_its_text() -> None:
    tokens = read_file(TEXT)
    schedule = Schedule(steps=90, batch=4, sequence=32, lr=5e-3, warmup=40, clip=0.5, weight_decay=0)
    trainer = Trainer(GPT2(TINY), TokenLoader([tokens], 4, 32), schedule)
    assert trainer.step().loss == pytest.approx(np.log(256), rel=0.02), "at first every byte is as likely as another"
    while np.mean(trainer.losses[-8:]) > trainer.losses[0] / 2:
        assert len(trainer.losses) < schedule.steps, f"the loss is still {trainer.losses[-1]}"
        trainer.step()


def test_bfloat16_with_master_weights_learns(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 1, 8)
    trainer = Trainer(tiny.to(dtype="bfloat16"), Repeated((tokens, targets)), Schedule(batch=1, sequence=8, warmup=0))
    expected = reference.run(stacked(tiny), tokens, targets, TINY.num_heads, TINY.vocab_size).loss
    losses = [trainer.step().loss for _ in range(4)]
    assert losses[0] == pytest.approx(expected, rel=1e-2)
    assert losses[-1] < losses[0] - 0.3
    assert {name.rpartition(".")[2] for name in trainer.optimizer.state_dict()} >= {"m", "v", "master"}


def test_a_gradient_that_is_not_finite_stops_training(tiny: GPT2) -> None:
    nn.fill(tiny.norms[-1].weight, np.inf)
    trainer = Trainer(tiny, Repeated(batch(TINY, 1, 4)), Schedule(batch=1, sequence=4))
    before = tiny.state_dict()
    with pytest.raises(FloatingPointError, match=r"step 0: the gradient's norm is nan; a smaller --lr may help"):
        trainer.step()
    for name, values in tiny.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_bad_batches_are_refused(tiny: GPT2) -> None:
    tokens, targets = batch(TINY, 1, 33)
    with pytest.raises(ValueError, match="T <= L"):
        tiny(tokens, targets)
    tokens[0, 0] = 256
    with pytest.raises(IndexError, match="256"):
        tiny(tokens[:, :8], targets[:, :8])
