"""The programs that train GPT-2 in the benchmark: generated layers, PyTorch eager, PyTorch compiled."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from examples.gpt2.model import GPT2, GPT2Config
from examples.gpt2.prepare import DTYPES
from examples.gpt2.training import Schedule, Trainer

Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
SCHEDULE = Schedule(lr=3e-4, warmup=0, min_lr=1.0, weight_decay=0.1, clip=1.0)


class OutOfMemoryError(Exception):
    """The device has not enough memory."""


class Program(Protocol):
    """A model in training. ``takes_any_shape``: batches of another shape need no compiling."""

    takes_any_shape: bool

    def step(self, tokens: Any, targets: Any) -> float:
        """Take a training step and return the loss before it; this waits for the device. Raises OutOfMemoryError."""

    def enqueue(self, tokens: Any, targets: Any) -> None:
        """Hand forward and backward to the device without waiting for it."""

    def peak_bytes(self) -> int:
        """Return how much memory of the device the program has had, 0 where that is not known."""


class _Given:
    """One batch after the other, as they are given."""

    position = (0, 0)

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def next_batch(self) -> Batch:
        if self.batch is None:
            raise RuntimeError("no batch was given")
        return self.batch


class Generated:
    """The model of `examples.gpt2`, trained as `examples/gpt2/train.py` does."""

    def __init__(
        self, config: GPT2Config, dtype: str, device: str, implementation: str = "llmc", graph: bool = False
    ) -> None:
        self.takes_any_shape = not graph
        self._on_gpu = device != "cpu"
        self._before = self._bytes_in_use()
        model = GPT2(config, implementation=implementation).to(device, dtype=DTYPES[dtype])
        self._given = _Given()
        self._trainer = Trainer(model, self._given, SCHEDULE, graph=graph)

    def step(self, tokens: Any, targets: Any) -> float:
        self._given.batch = tokens, targets
        return self._guarded(lambda: self._trainer.step().loss)

    def enqueue(self, tokens: Any, targets: Any) -> None:
        model = self._trainer.model
        model.zero_grad()
        place = array_place(model)
        batch = place(tokens), place(targets)
        self._guarded(lambda: model(*batch).backward())

    def peak_bytes(self) -> int:
        # Pools keep what they had, those of graphs too.
        return self._bytes_in_use() - self._before

    def _bytes_in_use(self) -> int:
        if not self._on_gpu:
            return 0
        free, total = importlib.import_module("cupy").cuda.runtime.memGetInfo()
        return int(total - free)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        if not self._on_gpu:
            return call()
        try:
            return call()
        except importlib.import_module("cupy").cuda.memory.OutOfMemoryError as error:
            raise OutOfMemoryError(str(error)) from None


class Torch:
    """The same model in PyTorch: float32 parameters, bfloat16 by autocast, the fused AdamW.

    ``mode`` is that of ``torch.compile``; with None, nothing is compiled.
    """

    def __init__(self, config: GPT2Config, dtype: str, device: str, mode: str | None = None) -> None:
        self.takes_any_shape = mode is None
        self._torch: Any = importlib.import_module("torch")
        gpt2_torch = importlib.import_module("benchmarks.gpt2_torch")
        self._place, self._device = gpt2_torch.on_device, device
        if device != "cpu":
            if not self._torch.cuda.is_available():
                raise RuntimeError("this PyTorch sees no CUDA device")
            self._torch.cuda.reset_peak_memory_stats()
        # As the generated layers: float32 is not rounded to TF32.
        self._torch.set_float32_matmul_precision("highest")
        self._model = gpt2_torch.torch_copy(GPT2(config), device)
        self._loss = self._torch.compile(self._model.loss, mode=mode) if mode else self._model.loss
        self._autocast = dtype == "bf16"
        self._optimizer = self._torch.optim.AdamW(
            self._model.decay_groups(SCHEDULE.weight_decay),
            lr=SCHEDULE.lr,
            betas=(SCHEDULE.beta1, SCHEDULE.beta2),
            eps=1e-8,
            fused=True,
        )

    def step(self, tokens: Any, targets: Any) -> float:
        try:
            loss = self._forward_backward(tokens, targets)
            self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), SCHEDULE.clip)
            self._optimizer.step()
            return float(loss.detach())
        except self._torch.cuda.OutOfMemoryError as error:
            raise OutOfMemoryError(str(error)) from None

    def enqueue(self, tokens: Any, targets: Any) -> None:
        self._forward_backward(tokens, targets)

    def peak_bytes(self) -> int:
        return 0 if self._device == "cpu" else int(self._torch.cuda.max_memory_reserved())

    def _forward_backward(self, tokens: Any, targets: Any) -> Any:
        self._optimizer.zero_grad(set_to_none=True)
        batch = self._place(tokens, self._device), self._place(targets, self._device)
        kind = self._device.partition(":")[0]
        with self._torch.autocast(kind, self._torch.bfloat16, enabled=self._autocast):
            loss = self._loss(*batch)
        loss.backward()
        return loss


#: By the name in the tables: a function of config, dtype and device.
PROGRAMS: dict[str, Callable[[GPT2Config, str, str], Program]] = {
    "llmc2py": Generated,
    "llmc2py graph": lambda config, dtype, device: Generated(config, dtype, device, graph=True),
    "llmc2py cudnn": lambda config, dtype, device: Generated(config, dtype, device, "cudnn"),
    "llmc2py cudnn graph": lambda config, dtype, device: Generated(config, dtype, device, "cudnn", graph=True),
    "torch eager": Torch,
    "torch compile": lambda config, dtype, device: Torch(config, dtype, device, "default"),
    "torch compile graph": lambda config, dtype, device: Torch(config, dtype, device, "reduce-overhead"),
}


def array_place(model: GPT2) -> Callable[[Any], Any]:
    """Return what puts an array where a model is."""
    data = model.encoder.wte.data
    place: Callable[[Any], Any] = np.asarray if isinstance(data, np.ndarray) else sys.modules["cupy"].asarray
    return place


def free_memory(device: str) -> None:
    """Give memory that nobody uses back to the device, so that the next program has all of it."""
    if device != "cpu":
        importlib.import_module("cupy").get_default_memory_pool().free_all_blocks()
    if (torch := sys.modules.get("torch")) is not None:
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def synchronizer(device: str) -> Callable[[], None]:
    """Return what waits for the device."""
    if device == "cpu":
        return lambda: None
    wait: Callable[[], None] = importlib.import_module("cupy").cuda.runtime.deviceSynchronize
    return wait
