"""The layers of `benchmarks/layers.py` as PyTorch has them: the same maths on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.layer_cases import CHANNELS, HEADS, HIDDEN, POSITIONS, VOCABULARY


class Residual(nn.Module):
    """The sum of two arrays."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return a + b


class FusedResidualLayerNorm(nn.Module):
    """The sum of two arrays, and its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both."""
        total = a + b
        return total, self.norm(total)


class CrossEntropy(nn.Module):
    """The loss of each row, in float32."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return functional.cross_entropy(logits.float(), targets, reduction="none")


class FusedClassifier(nn.Module):
    """The mean loss of logits, of which the last columns do not count."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return functional.cross_entropy(logits[..., :VOCABULARY].float(), targets)


class Encoder(nn.Module):
    """The sum of the embeddings of token and position."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, CHANNELS), nn.Embedding(POSITIONS, CHANNELS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return it."""
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[-1], device=tokens.device))


class Attention(nn.Module):
    """Causal attention over packed queries, keys and values."""

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return (B, T, C) for (B, T, 3C)."""
        B, T, _ = packed.shape
        parts = packed.view(B, T, 3, HEADS, CHANNELS // HEADS).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return out.transpose(1, 2).reshape(B, T, CHANNELS)


def gelu() -> nn.Module:
    """Return GELU in the tanh approximation."""
    return nn.GELU(approximate="tanh")


#: By the name of the case. Parameters come in the order of the generated layer's.
MODULES: dict[str, Callable[[], nn.Module]] = {
    "GeLU": gelu,
    "Residual": Residual,
    "LayerNorm": lambda: nn.LayerNorm(CHANNELS),
    "FusedResidualLayerNorm": FusedResidualLayerNorm,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "CrossEntropy": CrossEntropy,
    "FusedClassifier": FusedClassifier,
    "Encoder": Encoder,
    "Linear": lambda: nn.Linear(CHANNELS, HIDDEN),
    "LinearGeLU": lambda: nn.Sequential(nn.Linear(CHANNELS, HIDDEN), gelu()),
    "MLP": lambda: nn.Sequential(nn.Linear(CHANNELS, HIDDEN), gelu(), nn.Linear(HIDDEN, CHANNELS)),
    "Attention": Attention,
}


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor on the memory of a NumPy or CuPy array; indices as PyTorch takes them, in a copy."""
    if array.dtype.name == "bfloat16":
        return torch.as_tensor(array.view("int16"), device=device_of(array)).view(torch.bfloat16)
    tensor = torch.as_tensor(array, device=device_of(array))
    return tensor.long() if tensor.dtype == torch.int32 else tensor


def device_of(array: Any) -> str:
    """Return the device of an array as PyTorch calls it."""
    return "cpu" if type(array).__module__ == "numpy" else f"cuda:{array.device.id}"
