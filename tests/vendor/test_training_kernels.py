"""The vendored kernels of a training step, run on the CPU, against their formulas in float64."""

from __future__ import annotations

import importlib
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.runtime.kernel import Kernel

HEADERS = Path(__file__).parents[2] / "vendor" / "llm.c" / "llmc"

#: Element type of each precision, and what rounding a result to it may cost, relative to its size or to 1.
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ERRORS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.2e-2}


class Bench:
    """Kernels and launchers by name, and arrays of one precision."""

    def __init__(self, functions: dict[str, Any], precision: str) -> None:
        self.functions = functions
        self.dtype = np.dtype(DTYPES[precision])
        self.error = ERRORS[precision]
        self.width = 16 // self.dtype.itemsize
        self.random = np.random.default_rng(17)

    def __getattr__(self, name: str) -> Any:
        return self.functions[name]

    def array(self, *shape: int, spread: float = 1.0, dtype: Any = None) -> Any:
        return (self.random.normal(size=shape) * spread + 0.3).astype(dtype or self.dtype)

    def unwritten(self, *shape: int, dtype: Any = None) -> Any:
        return np.full(shape, np.nan, dtype or self.dtype)

    def check(self, result: Any, wanted: Any, scale: float = 1.0) -> None:
        error = self.error if result.dtype == self.dtype else ERRORS["float32"]
        np.testing.assert_allclose(wide(result), wanted, rtol=error * scale, atol=error * scale)


def wide(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All kernels and launchers that are generated from the headers, by name."""
    root = tmp_path_factory.mktemp("vendor")
    shutil.copytree(HEADERS, root / "tree" / "llmc")
    package = f"vendored_{uuid.uuid4().hex}"
    write_package(root / package, generate(root / "tree").files)
    sys.path.insert(0, str(root))
    found: dict[str, Any] = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] not in ("__init__", "layers", "references"):
            module = importlib.import_module(".".join(parts))
            found |= {name: getattr(module, name) for name in module.__all__}
    yield found
    sys.path.remove(str(root))


@pytest.fixture(params=list(DTYPES))
def bench(functions: dict[str, Any], request: pytest.FixtureRequest) -> Bench:
    return Bench(functions, request.param)


@pytest.mark.parametrize(("B", "T", "C"), [(1, 1, 1), (2, 3, 7), (2, 5, 8), (3, 4, 72), (2, 3, 515)])
def test_encoder(bench: Bench, B: int, T: int, C: int) -> None:
    V = 11
    tokens = bench.random.integers(0, V, (B, T)).astype(np.int32)
    wte, wpe, dout = bench.array(V, C), bench.array(T, C), bench.array(B, T, C)

    wanted = wide(wte)[tokens] + wide(wpe)
    out = bench.unwritten(B, T, C)
    bench.encoder_forward(out, tokens, wte, wpe, B, T, C)
    bench.check(out, wanted)
    out = bench.unwritten(B, T, C)
    bench.encoder_forward_kernel3[1, 64](out, tokens, wte, wpe, B, T, C)
    bench.check(out, wanted)

    dwpe = wpe.copy()
    bench.wpe_backward_kernel[2, 32](dwpe, dout, tokens, B, T, C, 1234)
    bench.check(dwpe, wide(wpe) + wide(dout).sum(0), scale=2)

    buckets, places = sorted_into_buckets(tokens, ceil_div(C, 32 * bench.width))
    dwte, wanted = wte.copy(), wide(wte)
    bench.wte_backward_kernel[len(buckets), 256](dwte, buckets, places, dout, tokens, 7, B, T, C)
    np.add.at(wanted, tokens.ravel(), wide(dout).reshape(B * T, C))
    bench.check(dwte, wanted, scale=2)


def sorted_into_buckets(tokens: Any, groups: int) -> tuple[Any, Any]:
    """Return (begin, length, token, group of columns) of every bucket, and the places that they refer to."""
    buckets: list[tuple[int, int, int, int]] = []
    places: list[int] = []
    for token in np.unique(tokens):
        where = np.flatnonzero(tokens.ravel() == token)
        buckets += [(len(places), len(where), int(token), group) for group in range(groups)]
        places += where.tolist()
    return np.array(buckets, np.int32), np.array(places, np.int32)


@pytest.mark.parametrize("with_master", [True, False])
@pytest.mark.parametrize(
    ("count", "slices", "strides"),
    [(1, 1, (0, 0, 0)), (7, 1, (0, 0, 0)), (517, 2, (600, 520, 530)), (300, 3, (300, 300, 300))],
)
def test_adamw(bench: Bench, count: int, slices: int, strides: tuple[int, int, int], with_master: bool) -> None:
    w, g, s = strides
    rate, beta1, beta2, t, eps, decay, scale = 1e-2, 0.9, 0.95, 3, 1e-8, 0.1, 0.5
    weights, gradients = bench.array(count + (slices - 1) * w), bench.array(count + (slices - 1) * g, spread=3.0)
    state = [bench.array(count + (slices - 1) * s, dtype=np.float32) for _ in range(3)]
    m, v, master = state[0], abs(state[1]), state[2] if with_master else None
    wanted_w, wanted_m, wanted_v, wanted_master = wide(weights), wide(m), wide(v), wide(state[2])
    for k in range(slices):
        at_w, at_g, at_s = (slice(k * stride, k * stride + count) for stride in strides)
        gradient = wide(gradients)[at_g] * scale
        wanted_m[at_s] = beta1 * wanted_m[at_s] + (1 - beta1) * gradient
        wanted_v[at_s] = beta2 * wanted_v[at_s] + (1 - beta2) * gradient**2
        before = wanted_master[at_s] if with_master else wanted_w[at_w]
        direction = wanted_m[at_s] / (1 - beta1**t) / (np.sqrt(wanted_v[at_s] / (1 - beta2**t)) + eps)
        wanted_master[at_s] = wanted_w[at_w] = before - rate * (direction + decay * before)

    settings = (rate, beta1, beta2, t, eps, decay, scale, 99)
    bench.adamw_update(weights, master, gradients, m, v, count, *strides, slices, *settings)
    bench.check(m, wanted_m)
    bench.check(v, wanted_v)
    bench.check(weights, wanted_w)
    if master is not None:
        bench.check(master, wanted_master)
        rounded = bench.unwritten(weights.size)
        bench.init_from_master(rounded, master, count, w, s, slices, 5)
        for k in range(slices):
            bench.check(rounded[k * w : k * w + count], wide(master)[k * s : k * s + count])


def test_rounding_is_right_in_the_mean(functions: dict[str, Any]) -> None:
    bench = Bench(functions, "bfloat16")
    master = np.full(20_000, 1.0 + 1.0 / 512, np.float32)  # a quarter of the way to the next bfloat16
    rounded = bench.unwritten(master.size)
    bench.init_from_master(rounded, master, master.size, 0, 0, 1, 5)
    assert set(wide(rounded)) == {1.0, 1.0 + 1.0 / 128}
    assert abs(wide(rounded).mean() - master[0]) < 4e-4 * 3.4 / np.sqrt(200)


@pytest.mark.parametrize(
    ("count", "slices", "stride"), [(1, 1, 0), (13, 1, 0), (1037, 1, 0), (517, 3, 521), (9000, 2, 9000)]
)
def test_global_norm(bench: Bench, count: int, slices: int, stride: int) -> None:
    values = bench.array(count + (slices - 1) * stride)
    parts = bench.unwritten(4096, dtype=np.float32)
    bench.global_norm_squared(parts, values, count, stride, slices, parts.size, True)
    bench.global_norm_squared(parts, values, count, stride, slices, parts.size, False)
    bench.global_norm_aggregate_kernel[1, 256](parts, parts.size)
    squares = sum((wide(values)[k * stride : k * stride + count] ** 2).sum() for k in range(slices))
    np.testing.assert_allclose(parts[0], 2 * squares, rtol=1e-5)


@pytest.mark.parametrize(
    ("B", "T", "V", "P"), [(1, 1, 1, 1), (2, 3, 5, 8), (2, 2, 50, 50), (1, 3, 1037, 1040), (2, 1, 9001, 9003)]
)
def test_fused_classifier(bench: Bench, B: int, T: int, V: int, P: int) -> None:
    N, dloss = B * T, 0.37
    logits, losses = bench.array(N, P, spread=2.0), bench.array(N, dtype=np.float32)
    logits[:, V:] = np.nan  # not to be read, but to be overwritten
    targets = bench.random.integers(0, V, N).astype(np.int32)
    shifted = np.exp(wide(logits)[:, :V] - wide(logits)[:, :V].max(1, keepdims=True))
    shares = shifted / shifted.sum(1, keepdims=True)
    hit = np.arange(V) == targets[:, None]
    wanted_losses = losses - np.log(shares[hit])
    wanted = np.pad((shares - hit) * dloss, ((0, 0), (0, P - V)))

    after, loss, probs = logits.copy(), losses.copy(), bench.unwritten(N, P)
    kernel = bench.fused_classifier_kernel5[True, True]
    kernel[N, 256](after, loss, probs, dloss, targets, B, T, V, P, True)
    bench.check(loss, wanted_losses, scale=3)
    bench.check(after, wanted)
    bench.check(probs, np.pad(shares, ((0, 0), (0, P - V))))

    after, loss, probs = logits.copy(), losses.copy(), bench.unwritten(N, P)
    kernel = bench.fused_classifier_kernel5[False, False]
    kernel[N, 1024](after, loss, probs, dloss, targets, B, T, V, P, False)
    bench.check(loss, wanted_losses, scale=3)
    assert after.tobytes() == logits.tobytes()
    assert np.isnan(wide(probs)).all()


@pytest.mark.parametrize(("B", "T", "NH", "d"), [(1, 1, 1, 1), (2, 3, 2, 5), (2, 5, 3, 8), (1, 37, 2, 16)])
def test_permutations(bench: Bench, B: int, T: int, NH: int, d: int) -> None:
    packed = bench.array(B, T, 3, NH, d)
    q, k, v = (bench.unwritten(B, NH, T, d) for _ in range(3))
    bench.permute_kernel[3, 32](q, k, v, packed, B, T, NH, d)
    for third, array in enumerate((q, k, v)):
        np.testing.assert_array_equal(wide(array), wide(packed)[:, :, third].swapaxes(1, 2))
    again = bench.unwritten(B, T, 3, NH, d)
    bench.permute_kernel_backward[2, 64](again, q, k, v, B, T, NH, d)
    np.testing.assert_array_equal(wide(again), wide(packed))

    by_token, by_head = bench.unwritten(B, T, NH, d), bench.unwritten(B, NH, T, d)
    bench.unpermute_kernel[2, 32](q, by_token, B, T, NH, d)
    np.testing.assert_array_equal(wide(by_token), wide(packed)[:, :, 0])
    bench.unpermute_kernel_backward[1, 64](by_head, by_token, B, T, NH, d)
    np.testing.assert_array_equal(wide(by_head), wide(q))


@pytest.mark.parametrize(("N", "T"), [(1, 1), (3, 5), (2, 8), (6, 33), (2, 301)])
def test_causal_softmax(bench: Bench, N: int, T: int) -> None:
    scale = 0.4
    hidden = np.triu(np.ones((T, T), bool), 1)
    scores, gradient = bench.array(N, T, T, spread=3.0), bench.array(N, T, T)
    scores[:, hidden] = gradient[:, hidden] = np.nan
    att = bench.unwritten(N, T, T)
    bench.softmax_forward_kernel5[ceil_div(N * T, 8), 256](att, scale, scores, N, T)
    visible = np.where(hidden, -np.inf, scale * wide(scores))
    wanted = np.exp(visible - visible.max(-1, keepdims=True))
    bench.check(att, wanted / wanted.sum(-1, keepdims=True))

    share, dout = wide(att), np.where(hidden, 0.0, wide(gradient))
    bench.softmax_autoregressive_backward_inplace_kernel[(2, N), 128](gradient, att, 1, T, 8, scale)
    bench.check(gradient, scale * share * (dout - (share * dout).sum(-1, keepdims=True)), scale=2)


@pytest.mark.parametrize(("B", "T", "OC"), [(1, 1, 1), (2, 3, 33), (3, 7, 64), (5, 30, 72), (4, 100, 130)])
def test_bias_gradient(bench: Bench, B: int, T: int, OC: int) -> None:
    dout, before = bench.array(B * T, OC), bench.array(OC)
    sums = wide(dout).sum(0)
    across, down = ceil_div(OC, 8 * bench.width), 3
    kernel: Kernel = bench.matmul_backward_bias_kernel9
    dbias = before.copy()
    kernel[across, (4, 8, 16)](dbias, dout, B, T, OC, False)
    bench.check(dbias, wide(before) + sums, scale=3)

    lines = bench.unwritten(down, OC, dtype=np.float32)
    kernel[(across, down), (4, 8, 2)](lines, dout, B, T, OC, True)
    bench.check(lines.sum(0), sums, scale=20)
    dbias = before.copy()
    add: Callable[..., None] = bench.reduce_add_sum_kernel[ceil_div(OC, 64), 64]
    add(dbias, lines, OC, down)
    bench.check(dbias, wide(before) + sums, scale=3)


def gelu(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("gelu_fusion", [None, 1, 2])
@pytest.mark.parametrize(("B", "T", "C", "OC"), [(1, 2, 8, 16), (2, 50, 24, 40)])
def test_linear(bench: Bench, B: int, T: int, C: int, OC: int, gelu_fusion: int | None) -> None:
    inp, weight, bias = bench.array(B * T, C), bench.array(OC, C, spread=0.3), bench.array(OC)
    sums = wide(inp) @ wide(weight).T + wide(bias)
    out, pre_gelu = bench.unwritten(B * T, OC), bench.unwritten(B * T, OC)
    if gelu_fusion is None:
        bench.matmul_forward_cublaslt(out, inp, weight, bias, B, T, C, OC)
        bench.check(out, sums, scale=2)
    else:
        bench.matmul_forward_cublaslt(out, inp, weight, bias, B, T, C, OC, pre_gelu, gelu_fusion)
        bench.check(pre_gelu, sums, scale=2)
        bench.check(out, gelu(sums), scale=3)

    dout, dinp = bench.array(B * T, OC), bench.unwritten(B * T, C)
    dweight, dbias, buffer = weight.copy(), bias.copy(), bench.unwritten(1 << 16, dtype=np.float32)
    arguments = [dinp, dweight, dbias, dout, inp, weight, buffer, B, T, C, OC]
    wanted = wide(dout) @ wide(weight)
    if gelu_fusion == 2:  # 1 leaves the GeLU to a kernel that takes other sizes than these
        before = bench.array(B * T, C)
        arguments += [before, gelu_fusion]
        step = 1e-5
        wanted *= (gelu(wide(before) + step) - gelu(wide(before) - step)) / (2 * step)
    bench.matmul_backward(*arguments)
    bench.check(dinp, wanted, scale=4)
    bench.check(dweight, wide(weight) + wide(dout).T @ wide(inp), scale=4)
    bench.check(dbias, wide(bias) + wide(dout).sum(0), scale=4)


@pytest.mark.parametrize(("B", "T", "NH", "HS"), [(1, 1, 1, 8), (2, 9, 3, 8), (1, 40, 2, 16)])
def test_attention(bench: Bench, B: int, T: int, NH: int, HS: int) -> None:
    C = NH * HS
    packed, dout = bench.array(B, T, 3, NH, HS), bench.array(B, T, NH, HS)
    q, k, v = wide(packed).transpose(2, 0, 3, 1, 4)
    visible = np.where(np.triu(np.ones((T, T), bool), 1), -np.inf, q @ k.swapaxes(2, 3) / np.sqrt(HS))
    shares = np.exp(visible - visible.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)

    # What comes as input is used as scratch, for the scores too.
    scratch = np.resize(packed.ravel(), max(packed.size, B * NH * T * T)).copy()
    out, qkvr, att = bench.unwritten(B, T, C), bench.unwritten(3, B, NH, T, HS), bench.unwritten(B, NH, T, T)
    bench.attention_forward(out, qkvr, att, scratch, B, T, C, NH)
    bench.check(att, shares, scale=3)
    bench.check(out, (shares @ v).swapaxes(1, 2).reshape(B, T, C), scale=3)

    dinp, dqkvr = bench.unwritten(B, T, 3, NH, HS), bench.unwritten(3, B, NH, T, HS)
    datt, scratch = bench.unwritten(B, NH, T, T), bench.unwritten(B, T, C)
    bench.attention_backward(dinp, dqkvr, datt, scratch, dout.reshape(B, T, C), qkvr, att, B, T, C, NH)
    dy = wide(dout).swapaxes(1, 2)
    dshares = dy @ v.swapaxes(2, 3)
    dscores = shares * (dshares - (shares * dshares).sum(-1, keepdims=True)) / np.sqrt(HS)
    wanted = np.stack([dscores @ k, dscores.swapaxes(2, 3) @ q, shares.swapaxes(2, 3) @ dy])
    bench.check(dinp, wanted.transpose(1, 3, 0, 2, 4), scale=4)
