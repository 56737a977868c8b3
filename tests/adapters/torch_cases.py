"""Inputs of every operator for PyTorch, and the same in PyTorch's own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


@dataclass(frozen=True)
class Case:
    """Shapes of the tensors (None: left out; an integer behind a shape: indices below it), options, a reference."""

    op: str
    arrays: tuple[Any, ...]
    reference: Callable[..., Any]
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.op, *map(str, self.options), *("none" for one in self.arrays if one is None)])

    def tensors(self, dtype: torch.dtype, device: str, seed: int = 0) -> list[Any]:
        """Make the tensors; those of numbers require gradients."""
        generator = torch.Generator().manual_seed(seed)
        return [None if one is None else _tensor(one, dtype, device, generator) for one in self.arrays]


def _tensor(shape: Any, dtype: torch.dtype, device: str, generator: torch.Generator) -> torch.Tensor:
    if isinstance(shape[0], tuple):
        return torch.randint(0, shape[1], shape[0], generator=generator).to(device)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.25
    return values.to(dtype).to(device).requires_grad_()


def _attention(inp: Any, heads: int, implementation: str) -> Any:
    size = inp.shape[-1] // 3
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(-2, -3) for one in inp.split(size, dim=-1))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2)


def _fused_residual(inp1: Any, inp2: Any, weight: Any, bias: Any) -> Any:
    return inp1 + inp2, functional.layer_norm(inp1 + inp2, weight.shape, weight, bias)


def _gelu(inp: Any) -> Any:
    return functional.gelu(inp, approximate="tanh")


def _linear_gelu(inp: Any, weight: Any, bias: Any) -> Any:
    return _gelu(functional.linear(inp, weight, bias))


def _mlp(inp: Any, fcw: Any, fcb: Any, fcprojw: Any, fcprojb: Any, recompute: bool) -> Any:
    return functional.linear(_linear_gelu(inp, fcw, fcb), fcprojw, fcprojb)


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")


def _classifier(logits: Any, targets: Any, size: int, accumulation: int) -> Any:
    return _cross_entropy(logits[..., :size], targets).mean() / accumulation


X = (2, 3, 16)
CASES = [
    Case("gelu", (X,), _gelu),
    Case("residual", (X, X), lambda a, b: a + b),
    Case("layernorm", (X, (16,), (16,)), lambda x, w, b: functional.layer_norm(x, w.shape, w, b)),
    Case("fused_residual", (X, X, (16,), (16,)), _fused_residual),
    Case("linear", (X, (24, 16), (24,)), functional.linear),
    Case("linear", (X, (24, 16), None), functional.linear),
    Case("linear_gelu", (X, (24, 16), (24,)), _linear_gelu),
    Case("mlp", (X, (32, 16), (32,), (16, 32), (16,)), _mlp, (False,)),
    Case("mlp", (X, (32, 16), (32,), (16, 32), (16,)), _mlp, (True,)),
    Case("attention", ((2, 6, 48),), _attention, (2, "llmc")),
    Case("softmax", (X,), lambda x: x.softmax(-1)),
    Case("encoder", (((2, 6), 10), (10, 16), (8, 16)), lambda i, wte, wpe: wte[i] + wpe[: i.shape[-1]]),
    Case("crossentropy", (X, ((2, 3), 16)), _cross_entropy),
    Case("classifier", (X, ((2, 3), 13)), _classifier, (13, 2)),
]


def as_tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def gradients(outputs: Any, tensors: list[Any], seed: int = 1) -> list[Any]:
    """The gradients of all tensors that require one, for incoming gradients that are not all alike."""
    generator = torch.Generator().manual_seed(seed)
    outputs = as_tuple(outputs)
    incoming = [torch.randn(one.shape, generator=generator).to(one) for one in outputs]
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    return list(torch.autograd.grad(outputs, wanted, incoming))
