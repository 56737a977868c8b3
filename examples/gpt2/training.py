"""The training loop: schedule, steps, evaluation, and going on from a checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from examples.gpt2.checkpoint import Checkpoint, save_checkpoint
from examples.gpt2.data import TokenLoader
from examples.gpt2.model import GPT2
from generated.optim import AdamW, clip_global_norm
from llmc2py import nn
from llmc2py.runtime import random
from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.cuda.graphs import Graph, capture

#: Dense peaks in TFLOP/s by a part of the device's name: (float32, bfloat16). From NVIDIA's data sheets.
PEAKS = {
    "A100": (19.5, 312.0),
    "H100": (66.9, 989.4),
    "H200": (66.9, 989.4),
    "L40S": (91.6, 362.0),
    "4090": (82.6, 165.2),
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What a run's losses depend on, besides the model and the data. Raises ValueError for what makes no sense."""

    steps: int = 120
    batch: int = 8
    sequence: int = 32
    accumulation: int = 1
    lr: float = 4e-3
    min_lr: float = 0.1
    warmup: int = 30
    weight_decay: float = 0.1
    clip: float = 0.5
    beta1: float = 0.9
    beta2: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "sequence", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        for name in ("lr", "warmup", "weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is not negative, got {getattr(self, name)}")
        if not 0 <= self.min_lr <= 1:
            raise ValueError(f"min_lr is a part of lr, from 0 to 1, not {self.min_lr}")

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0: a straight line up, then half a cosine down to the least."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        least = self.lr * self.min_lr
        return least + 0.5 * (1 + math.cos(math.pi * done)) * (self.lr - least)


class StepResult(NamedTuple):
    """One optimiser step: its loss before the step, its learning rate, and the norm of its gradient where it clips."""

    step: int
    loss: float
    lr: float
    norm: float | None


class Batches(Protocol):
    """What gives batches and can be set to a position."""

    position: tuple[int, int]

    def next_batch(self) -> tuple[Any, Any]:
        """Return inputs and targets."""


class CapturedPass:
    """Forward and backward over the batches of a step as one CUDA graph, which takes Python next to no time.

    Parameters
    ----------
    run:
        Clears the gradients, goes forward and back through batches of tokens and targets, and returns their loss.
    model:
        The model that it is about. Its parameters stay where they are as long as the graph is used.
    seed:
        Of what is rounded at random, which is the same in each step.
    """

    def __init__(self, run: Callable[[Any, Any], Any], model: GPT2, seed: int) -> None:
        self._run = run
        self._model = model
        self._seed = seed
        self._ids: tuple[Any, ...] = ()
        self._graph: Graph[Any] | None = None
        self._gradients: list[Any] = []

    def __call__(self, batches: list[tuple[Any, Any]]) -> Any:
        """Run, on new batches; the first call captures.

        Raises IndexError for ids that are not in the vocabulary, and ValueError for batches of another shape than the
        first.
        """
        ids = [np.stack(arrays) for arrays in zip(*batches, strict=True)]
        for array in ids:
            # No replay looks at them.
            if array.min() < 0 or array.max() >= self._model.config.vocab_size:
                raise IndexError(f"ids from {array.min()} to {array.max()}: {self._model.config.vocab_size} are known")
        parameters = self._model.parameters()
        if self._graph is None:
            self._graph = self._capture(ids)
            self._gradients = [parameter.grad for parameter in parameters]
        for place, array in zip(self._ids, ids, strict=True):
            if array.shape != place.shape:
                raise ValueError(f"batches of {array.shape}; the graph was captured for {place.shape}")
            place[...] = array_module(place).asarray(array)
        for parameter, gradient in zip(parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        return self._graph.replay()

    def _capture(self, ids: list[Any]) -> Graph[Any]:
        xp = array_module(self._model.encoder.wte.data)
        self._ids = tuple(xp.asarray(array) for array in ids)
        before = random.get_state()
        random.manual_seed(self._seed)
        try:
            return capture(self._run, *self._ids)
        finally:
            random.set_state(before)


class Trainer:
    """A model, its optimiser and its data.

    ``losses`` holds the loss of each step so far, ``val_losses`` (step, loss) of each evaluation. With ``graph``,
    forward and backward are a `CapturedPass`. Raises ValueError for a model that was made for another accumulation than
    the schedule's.
    """

    def __init__(self, model: GPT2, loader: Batches, schedule: Schedule, *, graph: bool = False) -> None:
        if model.accumulation != schedule.accumulation:
            raise ValueError(
                f"the model accumulates {model.accumulation} batches, the schedule {schedule.accumulation}"
            )
        self.model = model
        self.loader = loader
        self.schedule = schedule
        self.parameters = model.parameters()
        self.optimizer = AdamW(
            model.decay_groups(schedule.weight_decay),
            lr=schedule.lr,
            betas=(schedule.beta1, schedule.beta2),
            seed=schedule.seed,
        )
        random.manual_seed(schedule.seed)
        self._pass = CapturedPass(self._forward_backward, model, schedule.seed) if graph else self._uncaptured
        self.losses: list[float] = []
        self.val_losses: list[tuple[int, float]] = []

    @property
    def tokens_per_step(self) -> int:
        """How many tokens one step learns from."""
        return self.schedule.batch * self.schedule.sequence * self.schedule.accumulation

    def step(self) -> StepResult:
        """Run one step over ``accumulation`` batches. Raises FloatingPointError where the gradient is not finite."""
        number = len(self.losses)
        lr = self.schedule.lr_at(number)
        total = self._pass([self.loader.next_batch() for _ in range(self.schedule.accumulation)])
        norm, scale = None, 1.0
        if self.schedule.clip:
            norm, scale = clip_global_norm(self.parameters, self.schedule.clip)
            if not math.isfinite(norm):
                raise FloatingPointError(f"step {number}: the gradient's norm is {norm}; a smaller --lr may help")
        self.optimizer.lr = lr
        self.optimizer.step(scale)
        # Here Python waits for the device for the first time where the norm is not asked for.
        loss = float(total)
        if not math.isfinite(loss):
            raise FloatingPointError(f"step {number}: the loss is {loss}; a smaller --lr may help")
        self.losses.append(loss)
        return StepResult(number, loss, lr, norm)

    def evaluate(self, loader: TokenLoader, batches: int) -> float:
        """Return the mean loss over the first batches of a loader, and note it."""
        loader.position = (0, 0)
        total = 0.0
        with nn.no_grad():
            for _ in range(batches):
                total += float(self.model(*self._on_device(loader.next_batch())).data) * self.model.accumulation
        self.val_losses.append((len(self.losses), total / batches))
        return total / batches

    def save(self, path: str | Path) -> None:
        """Write a checkpoint that `resume` goes on from."""
        progress = {
            "schedule": vars(self.schedule),
            "position": self.loader.position,
            "random": random.get_state(),
            "losses": self.losses,
            "val_losses": self.val_losses,
        }
        save_checkpoint(path, self.model, self.optimizer, progress)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written: the same steps on the same batches. For a trainer without steps yet."""
        self.model.load_state_dict(checkpoint.model)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        shard, index = checkpoint.progress["position"]
        self.loader.position = (shard, index)
        random.set_state(checkpoint.progress["random"])
        self.losses = list(checkpoint.progress["losses"])
        self.val_losses = [(step, loss) for step, loss in checkpoint.progress["val_losses"]]

    def _uncaptured(self, batches: list[tuple[Any, Any]]) -> Any:
        return self._forward_backward(*zip(*batches, strict=True))

    def _forward_backward(self, tokens: Iterable[Any], targets: Iterable[Any]) -> Any:
        """Go forward and back through the batches of a step; return the sum of their losses, on the device."""
        self.optimizer.zero_grad()
        total = None
        for batch in zip(tokens, targets, strict=True):
            loss = self.model(*self._on_device(batch))
            loss.backward()
            total = loss.data if total is None else total + loss.data
        return total

    def _on_device(self, batch: tuple[Any, Any]) -> tuple[Any, ...]:
        xp = array_module(self.model.encoder.wte.data)
        return tuple(xp.asarray(ids) for ids in batch)


def utilisation(model: GPT2, sequence: int, tokens_per_second: float, peak_tflops: float) -> float:
    """Return the model FLOP utilisation (MFU): the part of the device's peak that the model's products come to."""
    return model.config.flops_per_token(sequence) * tokens_per_second / (peak_tflops * 1e12)


def peak_of(device_name: str, dtype: np.dtype[Any]) -> float | None:
    """Return the peak in TFLOP/s of a device for products in a precision, or None where it is not known."""
    for part, (float32, bfloat16) in PEAKS.items():
        if part in device_name:
            return float32 if dtype == np.float32 else bfloat16
    return None
