"""Causal attention in float64, and how near a flash attention of 16 bits must be."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np


def attention(q, k, v, dout, scale):
    """Return causal attention, its statistics and its gradients in float64; all (B, NH, T, HS)."""
    T = q.shape[2]
    scores = np.where(np.tri(T, dtype=bool), scale * q @ k.swapaxes(2, 3), -np.inf)
    largest = scores.max(axis=3, keepdims=True)
    stats = largest + np.log(np.exp(scores - largest).sum(axis=3, keepdims=True))
    p = np.exp(scores - stats)
    out = p @ v
    dp, delta = dout @ v.swapaxes(2, 3), (dout * out).sum(axis=3, keepdims=True)
    ds = p * (dp - delta)
    return SimpleNamespace(
        p=p, ds=ds, delta=delta, out=out, stats=stats[..., 0],
        dq=scale * ds @ k, dk=scale * ds.swapaxes(2, 3) @ q, dv=p.swapaxes(2, 3) @ dout,
    )  # fmt: skip


def allowances(exact, q, k, v, dout, scale, dtype):
    """Return the error allowed in each element: 1.5 times the roundings to ``dtype`` that the algorithm has.

    Those are the probabilities, the gradients of the scores, the output that the backward pass reads, and each result;
    the rest is float32.
    """
    info = ml_dtypes.finfo(dtype)
    u, tiny, single = 1.5 * float(info.eps) / 2 + 1e-5, float(info.smallest_subnormal), 1e-5
    q, k, v, dout = (np.abs(x) for x in (q, k, v, dout))
    p = exact.p
    seen = np.tri(p.shape[3])
    out = u * (p @ v + abs(exact.out)) + tiny * (1 + seen @ v)
    delta = (dout * (out + single * abs(exact.out))).sum(axis=3, keepdims=True)
    ds = u * abs(exact.ds) + p * (delta + single * (dout @ v.swapaxes(2, 3) + abs(exact.delta))) + tiny * seen
    return SimpleNamespace(
        out=out,
        stats=single * (1 + scale * (q * k.max(axis=2, keepdims=True)).sum(axis=3)),
        dq=scale * ds @ k + u * abs(exact.dq) + tiny,
        dk=scale * ds.swapaxes(2, 3) @ q + u * abs(exact.dk) + tiny,
        dv=u * (p.swapaxes(2, 3) @ dout + abs(exact.dv)) + tiny * (1 + seen.T @ dout),
    )


def draw(B, T, NH, HS, dtype, seed=0):
    """Return a packed input and a gradient, rounded to ``dtype``."""
    random = np.random.default_rng([seed, B, T, NH, HS])
    inp = 0.3 + 0.8 * random.standard_normal((B, T, 3, NH, HS))
    dout = -0.2 + 1.3 * random.standard_normal((B, T, NH, HS))
    return inp.astype(dtype), dout.astype(dtype)


def by_head(array):
    """Return (B, T, ..., NH, HS) as float64 with the heads before the time; three arrays where it is packed."""
    values = np.moveaxis(array.astype(np.float64), -2, 1)
    return list(np.moveaxis(values, 3, 0)) if values.ndim == 5 else values


def worst(found, inp, dout):
    """Return, by name, the largest error of an attention over what is allowed; NaN where something was not written."""
    q, k, v = by_head(inp)
    gradient, scale = by_head(dout), q.shape[3] ** -0.5
    exact = attention(q, k, v, gradient, scale)
    allowed = allowances(exact, q, k, v, gradient, scale, inp.dtype)
    return {
        name: (abs(value - getattr(exact, name)) / getattr(allowed, name)).max() for name, value in vars(found).items()
    }


def found_in(out, stats, dinp):
    dq, dk, dv = by_head(dinp)
    return SimpleNamespace(out=by_head(out), stats=stats.astype(np.float64), dq=dq, dk=dk, dv=dv)


def flash(inp, dout, *, fault=""):
    """Return what a flash attention that rounds as cuDNN does computes, with a fault where one is named."""
    q, k, v = by_head(inp)
    dout, scale = by_head(dout), q.shape[3] ** -0.5 * (1.01 if fault == "scale" else 1)
    half = lambda x: x.astype(inp.dtype).astype(np.float64)  # noqa: E731
    mask = np.tri(q.shape[2], k=1 if fault == "mask" else 0, dtype=bool)
    scores = np.where(mask, scale * q @ k.swapaxes(2, 3), -np.inf)
    largest = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    out, stats, p = half(half(weights) @ v / total), largest + np.log(total), weights / total
    delta = 0 if fault == "delta" else (dout * out).sum(axis=3, keepdims=True)
    ds = half(p * (dout @ v.swapaxes(2, 3) - delta))
    dk = ds.swapaxes(2, 3) @ q
    return SimpleNamespace(
        out=out, stats=stats[..., 0], dq=half(scale * ds @ k), dk=half(dk if fault == "dk" else scale * dk),
        dv=half((p if fault == "dv" else half(p).swapaxes(2, 3)) @ dout),
    )  # fmt: skip
