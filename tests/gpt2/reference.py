"""GPT-2 in float64 NumPy, forward and backward, written from the formulas; nothing of the project is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Weights = Mapping[str, Array]

_GELU = np.sqrt(2 / np.pi)


def layernorm(x: Array, weight: Array, bias: Array) -> tuple[Array, Any]:
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    normed = (x - x.mean(-1, keepdims=True)) * scale
    return normed * weight + bias, (normed, scale, weight)


def layernorm_backward(kept: Any, dout: Array) -> tuple[Array, Array, Array]:
    normed, scale, weight = kept
    dnormed = dout * weight
    projected = normed * (dnormed * normed).mean(-1, keepdims=True)
    dx = scale * (dnormed - dnormed.mean(-1, keepdims=True) - projected)
    axes = tuple(range(dout.ndim - 1))
    return dx, (dout * normed).sum(axes), dout.sum(axes)


def linear_backward(x: Array, weight: Array, dout: Array) -> tuple[Array, Array, Array]:
    rows, douts = x.reshape(-1, x.shape[-1]), dout.reshape(-1, dout.shape[-1])
    return dout @ weight, douts.T @ rows, douts.sum(0)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(_GELU * (x + 0.044715 * x**3)))


def gelu_backward(x: Array, dout: Array) -> Array:
    t = np.tanh(_GELU * (x + 0.044715 * x**3))
    return dout * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * _GELU * (1 + 3 * 0.044715 * x**2))


def heads(x: Array, count: int) -> Array:
    """(B, T, C) to (B, heads, T, C / heads)."""
    B, T, C = x.shape
    return x.reshape(B, T, count, C // count).transpose(0, 2, 1, 3)


def joined(x: Array) -> Array:
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


def attention(qkv: Array, count: int) -> tuple[Array, Any]:
    q, k, v = (heads(part, count) for part in np.split(qkv, 3, axis=-1))
    T, D = q.shape[-2:]
    scores = np.where(np.tri(T, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(D), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return joined(weights @ v), (q, k, v, weights)


def attention_backward(kept: Any, dout: Array) -> Array:
    q, k, v, weights = kept
    douts = heads(dout, q.shape[1])
    dweights = douts @ v.swapaxes(-1, -2)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    parts = dscores @ k, dscores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ douts
    return np.concatenate([joined(part) for part in parts], axis=-1)


@dataclasses.dataclass
class Step:
    """The loss of a batch, its logits, and the gradient of every weight."""

    loss: float
    logits: Array
    grads: dict[str, Array]


def run(weights: Weights, tokens: Any, targets: Any, num_heads: int, vocab_size: int) -> Step:
    """Return one step for weights by llm.c's names, each stacked over the layers.

    ``tokens`` and ``targets`` are ints of (B, T). Logits from ``vocab_size`` on take no part.
    """
    w = weights
    B, T = tokens.shape
    depth = w["ln1w"].shape[0]
    x = w["wte"][tokens] + w["wpe"][:T]
    kept = []
    for n in range(depth):
        ln1, ln1_kept = layernorm(x, w["ln1w"][n], w["ln1b"][n])
        attended, att_kept = attention(ln1 @ w["qkvw"][n].T + w["qkvb"][n], num_heads)
        x = x + attended @ w["attprojw"][n].T + w["attprojb"][n]
        ln2, ln2_kept = layernorm(x, w["ln2w"][n], w["ln2b"][n])
        fch = ln2 @ w["fcw"][n].T + w["fcb"][n]
        x = x + gelu(fch) @ w["fcprojw"][n].T + w["fcprojb"][n]
        kept.append((ln1, ln1_kept, attended, att_kept, ln2, ln2_kept, fch))
    lnf, lnf_kept = layernorm(x, w["lnfw"][0], w["lnfb"][0])
    logits = lnf @ w["wte"][0:].T

    used = logits[..., :vocab_size]
    shifted = used - used.max(-1, keepdims=True)
    probabilities = np.exp(shifted)
    sums = probabilities.sum(-1, keepdims=True)
    losses = np.log(sums[..., 0]) - np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    dlogits = np.zeros_like(logits)
    dlogits[..., :vocab_size] = probabilities / sums
    np.put_along_axis(dlogits, targets[..., None], np.take_along_axis(dlogits, targets[..., None], -1) - 1, -1)
    grads = _backward(w, tokens, dlogits / (B * T), lnf, lnf_kept, kept)
    return Step(float(losses.mean()), logits, grads)


def _backward(w: Weights, tokens: Any, dlogits: Array, lnf: Array, lnf_kept: Any, kept: list[Any]) -> dict[str, Array]:
    g = {name: np.zeros_like(value) for name, value in w.items()}
    dlnf, g["wte"][...], _ = linear_backward(lnf, w["wte"], dlogits)
    dx, g["lnfw"][0], g["lnfb"][0] = layernorm_backward(lnf_kept, dlnf)
    for n in reversed(range(len(kept))):
        ln1, ln1_kept, attended, att_kept, ln2, ln2_kept, fch = kept[n]
        dgelu, g["fcprojw"][n], g["fcprojb"][n] = linear_backward(gelu(fch), w["fcprojw"][n], dx)
        dln2, g["fcw"][n], g["fcb"][n] = linear_backward(ln2, w["fcw"][n], gelu_backward(fch, dgelu))
        dmlp, g["ln2w"][n], g["ln2b"][n] = layernorm_backward(ln2_kept, dln2)
        dx = dx + dmlp
        datt, g["attprojw"][n], g["attprojb"][n] = linear_backward(attended, w["attprojw"][n], dx)
        dln1, g["qkvw"][n], g["qkvb"][n] = linear_backward(ln1, w["qkvw"][n], attention_backward(att_kept, datt))
        dinp, g["ln1w"][n], g["ln1b"][n] = layernorm_backward(ln1_kept, dln1)
        dx = dx + dinp
    np.add.at(g["wte"], tokens, dx)
    g["wpe"][: dx.shape[1]] += dx.sum(0)
    return g


@dataclasses.dataclass
class AdamW:
    """AdamW: decoupled weight decay, moments with their bias corrected."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self._moments: dict[str, tuple[Array, Array]] = {}
        self._step = 0

    def step(self, weights: dict[str, Array], grads: Mapping[str, Array], decayed: Any = lambda name: True) -> None:
        """Change the weights in place."""
        self._step += 1
        b1, b2 = self.betas
        for name, grad in grads.items():
            m, v = self._moments.get(name, (np.zeros_like(grad), np.zeros_like(grad)))
            m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
            self._moments[name] = m, v
            mean, square = m / (1 - b1**self._step), v / (1 - b2**self._step)
            decay = self.weight_decay if decayed(name) else 0.0
            weights[name] -= self.lr * (mean / (np.sqrt(square) + self.eps) + decay * weights[name])
