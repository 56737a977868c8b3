"""The GPT-2 of `examples.gpt2` in PyTorch, with the same weights: what its losses and times are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from examples.gpt2.model import GPT2, GPT2Config


class Attention(nn.Module):
    """Causal attention, by whichever kernel PyTorch finds fastest (flash attention in 16 bits)."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.channels, 3 * config.channels)
        self.proj = nn.Linear(config.channels, config.channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, C) for (B, T, C)."""
        B, T, C = x.shape
        parts = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        C = config.channels
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention = Attention(config)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, C) for (B, T, C)."""
        x = x + self.attention(self.ln1(x))
        return x + self.fcproj(functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class TorchGPT2(nn.Module):
    """GPT-2 in PyTorch; the token embedding is shared between its two ends."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.padded_vocab_size, config.channels)
        self.wpe = nn.Embedding(config.max_seq_len, config.channels)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.lnf = nn.LayerNorm(config.channels)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, T, padded vocabulary) of int64 tokens (B, T)."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.lnf(x), self.wte.weight)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in float32 at least; logits of the padding take no part."""
        logits = self(tokens)
        if self.config.vocab_size < self.config.padded_vocab_size:
            logits = logits[..., : self.config.vocab_size]
        rows = logits.reshape(-1, logits.shape[-1])
        return functional.cross_entropy(rows if rows.dtype == torch.float64 else rows.float(), targets.reshape(-1))

    def llmc_tensors(self) -> list[tuple[str, list[nn.Parameter]]]:
        """Return llm.c's tensors in the order of its checkpoints: a name, and a parameter for each layer."""
        parts = {
            "ln1": [block.ln1 for block in self.blocks],
            "qkv": [block.attention.qkv for block in self.blocks],
            "attproj": [block.attention.proj for block in self.blocks],
            "ln2": [block.ln2 for block in self.blocks],
            "fc": [block.fc for block in self.blocks],
            "fcproj": [block.fcproj for block in self.blocks],
            "lnf": [self.lnf],
        }
        found = [("wte", [self.wte.weight]), ("wpe", [self.wpe.weight])]
        for name, modules in parts.items():
            found += [(f"{name}w", [m.weight for m in modules]), (f"{name}b", [m.bias for m in modules])]
        return found

    def decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return the parameters in groups for AdamW, as those of `GPT2`."""
        parameters = list(self.parameters())
        return [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]


def torch_copy(model: GPT2, device: str, dtype: Any = torch.float32) -> TorchGPT2:
    """Return a PyTorch model with the weights of a model of generated layers."""
    copy = TorchGPT2(model.config)
    with torch.no_grad():
        for (_, targets), (_, sources) in zip(copy.llmc_tensors(), model.llmc_tensors(), strict=True):
            for target, source in zip(targets, sources, strict=True):
                target.copy_(torch.from_numpy(source.numpy().astype(np.float64)))
    return copy.to(device=device, dtype=dtype)


def gradients(model: TorchGPT2) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield llm.c's names and the gradients in float64, each stacked over the layers (embeddings are not)."""
    for name, parameters in model.llmc_tensors():
        values = [parameter.grad.to("cpu", torch.float64).numpy() for parameter in parameters]
        yield name, values[0] if name in ("wte", "wpe") else np.stack(values)


def on_device(array: Any, device: str) -> torch.Tensor:
    """Return token ids as PyTorch takes them: int64, on a device."""
    return torch.from_numpy(np.asarray(array, np.int64)).to(device)
