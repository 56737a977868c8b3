"""A stand-in for Tricycle: the part of its contract that the adapter relies on, on NumPy or CuPy arrays.

Tensors hold ``array``, ``grad``, ``requires_grad``, ``is_batched``, ``args`` and ``back_fns`` and take any array over
in the precision of the context. `Tensor.backward` starts from ones, goes to a tensor when all that was computed from it
is done, asks ``back_fns`` for one gradient at a time and adds to the first one in place. Layers hold the weights as
tensors, which optimisers are handed and give back. Formulas are written straight down, in the precision of the arrays.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

_ids = itertools.count(1)


@dataclass
class Context:
    use_mixed_precision: bool = False
    loss_scale_factor: float = 128


TRICYCLE_CONTEXT = Context()


def array_module(array: Any) -> Any:
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


class Tensor:
    def __init__(
        self, array: Any, requires_grad: bool = True, is_batched: bool = False, args: Any = None, back_fns: Any = None,
        dtype: Any = None, name: str | None = None, _id: int | None = None,
    ) -> None:  # fmt: skip
        default = np.float16 if TRICYCLE_CONTEXT.use_mixed_precision else np.float32
        # A CuPy array is kept on its device; a NumPy scalar becomes an array.
        own = array if hasattr(array, "get") else np.asarray(array)
        self.array = own.astype(default if dtype is None else dtype)
        self.grad: Tensor | None = None
        self.requires_grad, self.is_batched, self.args, self.back_fns = requires_grad, is_batched, args, back_fns
        self.name, self._id, self._parents = name, _id or next(_ids), None

    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    dtype = property(lambda self: self.array.dtype)
    xp = property(lambda self: array_module(self.array))

    def __add__(self, other: Tensor) -> Tensor:
        # Both inputs are handed the very tensor that came in, as Tricycle does.
        back_fns = (lambda grad: grad, lambda grad: grad)
        batched = self.is_batched or other.is_batched
        return Tensor(self.array + other.array, is_batched=batched, args=(self, other), back_fns=back_fns)

    def __mul__(self, other: Any) -> Tensor:
        def back(grad: Tensor) -> Tensor:
            return Tensor(grad.array * other, is_batched=grad.is_batched)

        return Tensor(self.array * other, is_batched=self.is_batched, args=(self,), back_fns=(back,))

    def sum(self) -> Tensor:
        shape, xp = self.shape, self.xp
        return Tensor(
            xp.asarray(self.array.sum()),
            args=(self,),
            back_fns=(lambda grad: Tensor(xp.ones(shape, np.float32) * grad.array),),
        )

    def backward(self, clip: float | None = None) -> None:
        waiting: dict[int, set[int]] = {}
        stack = [self]
        while stack:
            node = stack.pop()
            for arg in node.args or ():
                parents = waiting.setdefault(arg._id, set())
                if arg.requires_grad and node._id not in parents:
                    parents.add(node._id)
                    stack.append(arg)
        self.grad = Tensor(self.xp.ones(self.shape), requires_grad=False, is_batched=self.is_batched)
        stack = [self]
        while stack:
            node = stack.pop()
            for arg, back_fn in zip(node.args or (), node.back_fns or (), strict=True):
                if arg.requires_grad and node._id in waiting[arg._id]:
                    waiting[arg._id].remove(node._id)
                    _collect(arg, back_fn(node.grad), clip)
                    if not waiting[arg._id]:
                        stack.append(arg)

    def to_gpu(self, device: int = 0) -> Tensor:
        import cupy

        with cupy.cuda.Device(device):
            self.array = cupy.asarray(self.array)
        return self

    def from_gpu(self) -> Tensor:
        self.array = self.array.get()
        return self


def _collect(arg: Tensor, grad: Tensor, clip: float | None) -> None:
    if clip is not None:
        grad.array = grad.array.clip(-clip, clip)
    if arg.grad is None:
        arg.grad = grad
    else:
        arg.grad.array += grad.array


class Op:
    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)  # type: ignore[attr-defined]


class Layer(Op):
    """Subclasses name their weights in ``weights_``."""

    tensors: ClassVar[dict[str, Tensor]] = {}
    layers: Any = ()
    weights_: tuple[str, ...] = ()

    def _inner(self) -> Any:
        return self.layers

    def update(self, optimiser: Any) -> None:
        for name in self.weights_:
            setattr(self, name, optimiser(getattr(self, name)))
        for layer in self._inner():
            layer.update(optimiser)

    def zero_grad(self) -> None:
        for name in self.weights_:
            getattr(self, name).grad = None
        for layer in self._inner():
            layer.zero_grad()

    def to_gpu(self, device: int = 0) -> Any:
        for name in self.weights_:
            getattr(self, name).to_gpu(device)
        for layer in self._inner():
            layer.to_gpu(device)
        return self

    def from_gpu(self) -> Any:
        for name in self.weights_:
            getattr(self, name).from_gpu()
        for layer in self._inner():
            layer.from_gpu()
        return self


def init_normal(shape: tuple[int, ...], name: str = "") -> Tensor:
    drawn = np.random.default_rng(sum(shape)).normal(0, 0.2, shape)
    return Tensor(drawn, dtype=np.float32, name=name)


class Dense(Layer):
    weights_ = ("weights",)

    def __init__(self, from_size: int, to_size: int, initialiser: Any = init_normal, name: str | None = None) -> None:
        self.weights = initialiser((from_size, to_size), name=name or "weights")
        self.from_size, self.to_size, self.name = from_size, to_size, name
        self.tensors = {"weights": self.weights}

    def forward(self, tensor: Tensor) -> Tensor:
        self._input = tensor.array
        weights = self.weights.array.astype(tensor.dtype)
        back_fns = (self.weight_back_fn, self.input_back_fn)
        return Tensor(
            self._input @ weights, is_batched=tensor.is_batched, args=(self.weights, tensor), back_fns=back_fns
        )

    def weight_back_fn(self, grad: Tensor) -> Tensor:
        rows = self._input.reshape(-1, self.from_size)
        return Tensor(rows.T @ grad.array.reshape(-1, self.to_size))

    def input_back_fn(self, grad: Tensor) -> Tensor:
        return Tensor(grad.array @ self.weights.array.T, is_batched=True)


class LayerNorm(Layer):
    weights_ = ("gamma", "beta")

    def __init__(self, embedding_dim: int, eps: float = 1e-5) -> None:
        self.eps = eps
        self.gamma, self.beta = Tensor(np.ones(embedding_dim)), Tensor(np.zeros(embedding_dim))

    def forward(self, tensor: Tensor) -> Tensor:
        x = tensor.array.astype(np.float32)
        self._scale = (x.var(-1, keepdims=True) + self.eps) ** -0.5
        self._normed = (x - x.mean(-1, keepdims=True)) * self._scale
        return Tensor(
            self._normed * self.gamma.array + self.beta.array,
            is_batched=tensor.is_batched,
            requires_grad=tensor.requires_grad,
            args=(tensor, self.beta, self.gamma),
            back_fns=(self.input_back_fn, self.beta_back_fn, self.gamma_back_fn),
        )

    def input_back_fn(self, grad: Tensor) -> Tensor:
        scaled, normed = grad.array * self.gamma.array, self._normed
        along = (scaled * normed).mean(-1, keepdims=True)
        return Tensor(self._scale * (scaled - scaled.mean(-1, keepdims=True) - normed * along), is_batched=True)

    def beta_back_fn(self, grad: Tensor) -> Tensor:
        return Tensor(grad.array.reshape(-1, grad.shape[-1]).sum(0))

    def gamma_back_fn(self, grad: Tensor) -> Tensor:
        return Tensor((grad.array * self._normed).reshape(-1, grad.shape[-1]).sum(0))


class RMSNorm(Layer):
    weights_ = ("weights",)

    def __init__(self, embedding_dim: int) -> None:
        self.weights = Tensor(np.ones(embedding_dim))


class Dropout(Layer):
    def __init__(self, probability: float) -> None:
        self.probability = probability

    def forward(self, tensor: Tensor) -> Tensor:
        assert self.probability == 0, "the stand-in drops nothing"
        return tensor


class Sequential(Layer):
    def __init__(self, *layers: Layer) -> None:
        self.layers = layers

    def forward(self, tensor: Tensor) -> Tensor:
        for layer in self.layers:
            tensor = layer(tensor)
        return tensor


_SCALE, _CUBIC = (2 / np.pi) ** 0.5, 0.044715


class GeLU(Layer):
    def __init__(self, *, approximate: bool = False) -> None:
        self.approximate = approximate

    def forward(self, tensor: Tensor) -> Tensor:
        x = self._input = tensor.array.astype(np.float32)
        out = x / 2 * (1 + np.tanh(_SCALE * (x + _CUBIC * x**3)))
        requires, batched = tensor.requires_grad, tensor.is_batched
        return Tensor(out, requires_grad=requires, is_batched=batched, args=(tensor,), back_fns=(self.back_fn,))

    def back_fn(self, grad: Tensor) -> Tensor:
        x = self._input
        t = np.tanh(_SCALE * (x + _CUBIC * x**3))
        slope = (1 + t) / 2 + x / 2 * (1 - t * t) * _SCALE * (1 + 3 * _CUBIC * x * x)
        return Tensor(grad.array * slope, is_batched=grad.is_batched)


class ReLU(Layer):
    def forward(self, tensor: Tensor) -> Tensor:
        positive = tensor.array > 0
        return Tensor(
            tensor.array * positive,
            is_batched=tensor.is_batched,
            args=(tensor,),
            back_fns=(lambda grad: Tensor(grad.array * positive, is_batched=grad.is_batched),),
        )


def softmax(scores: Any) -> Any:
    exponents = np.exp(scores - scores.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


class Softmax(Op):
    def forward(self, tensor: Tensor) -> Tensor:
        self._out = softmax(tensor.array.astype(np.float32))
        return Tensor(self._out, is_batched=tensor.is_batched, args=(tensor,), back_fns=(self.back_fn,))

    def back_fn(self, grad: Tensor) -> Tensor:
        weighted = grad.array * self._out
        return Tensor(weighted - self._out * weighted.sum(-1, keepdims=True), is_batched=grad.is_batched)


class Attention(Op):
    def __init__(self, embedding_dim: int, n_heads: int, context_window: int) -> None:
        self.embedding_dim, self.n_heads, self.context_window = embedding_dim, n_heads, context_window
        self.mask = np.triu(np.ones((context_window, context_window), bool), 1)

    def forward(self, tensor: Tensor) -> Tensor:
        batch, tokens, _ = tensor.shape
        parts = tensor.array.astype(np.float32).reshape(batch, tokens, 3, self.n_heads, -1)
        self._parts = [parts[:, :, part].swapaxes(1, 2) for part in range(3)]
        query, key, value = self._parts
        scores = query @ key.swapaxes(2, 3) * query.shape[-1] ** -0.5
        self._weights = softmax(scores - tensor.xp.asarray(self.mask[:tokens, :tokens] * np.float32(1e9)))
        out = (self._weights @ value).swapaxes(1, 2).reshape(batch, tokens, -1)
        return Tensor(out, is_batched=True, args=(tensor,), back_fns=(self.back_fn,))

    def back_fn(self, grad: Tensor) -> Tensor:
        batch, tokens, _ = grad.shape
        query, key, value = self._parts
        dout = grad.array.reshape(batch, tokens, self.n_heads, -1).swapaxes(1, 2)
        dweights = dout @ value.swapaxes(2, 3)
        inner = (dweights * self._weights).sum(-1, keepdims=True)
        dscores = self._weights * (dweights - inner) * query.shape[-1] ** -0.5
        found = dscores @ key, dscores.swapaxes(2, 3) @ query, self._weights.swapaxes(2, 3) @ dout
        return Tensor(grad.xp.stack([one.swapaxes(1, 2) for one in found], axis=2).reshape(batch, tokens, -1))

    def to_gpu(self, device: int = 0) -> None:
        """Keep the mask where it is: it is moved at each call."""


class CrossEntropy(Op):
    def forward(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        logits = y_pred.array.astype(np.float32)
        shifted = logits - logits.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        self._one_hot = y_pred.xp.eye(logits.shape[-1], dtype=np.float32)[y_true.array]
        self._logs = logs
        loss = -(logs * self._one_hot).sum(-1).mean()
        if TRICYCLE_CONTEXT.use_mixed_precision:
            loss = loss.astype(np.float16) * TRICYCLE_CONTEXT.loss_scale_factor
        return Tensor(y_pred.xp.asarray(loss), args=(y_pred,), back_fns=(self.back_fn,))

    def back_fn(self, grad: Tensor) -> Tensor:
        rows = self._logs.size // self._logs.shape[-1]
        return Tensor((np.exp(self._logs) - self._one_hot) * (grad.array / rows))


class Block(Layer):
    """A transformer's block: it names its layers and keeps them in a list too."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        self.norm_1, self.norm_2 = LayerNorm(width), LayerNorm(width)
        self.in_projection, self.out_projection = Dense(width, 3 * width), Dense(width, width)
        self.attention = Attention(width, heads, window)
        self.linear_1, self.linear_2 = Dense(width, 4 * width), Dense(4 * width, width)
        self.activation_fn, self.dropout = GeLU(), Dropout(0)
        self.layers = [self.norm_1, self.in_projection, self.out_projection, self.norm_2, self.linear_1,
                       self.activation_fn, self.linear_2, self.dropout]  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.out_projection(self.attention(self.in_projection(self.norm_1(x)))) + x
        return self.dropout(self.linear_2(self.activation_fn(self.linear_1(self.norm_2(x))))) + x


class Model(Layer):
    """Blocks and a head on rows of numbers."""

    def __init__(self, width: int = 16, heads: int = 2, window: int = 8, classes: int = 11, depth: int = 2) -> None:
        self.blocks = [Block(width, heads, window) for _ in range(depth)]
        self.norm, self.head = LayerNorm(width), Dense(width, classes)
        self.layers = [*self.blocks, self.norm, self.head]

    def forward(self, tensor: Tensor) -> Tensor:
        for block in self.blocks:
            tensor = block(tensor)
        return self.head(self.norm(tensor))


class Descent:
    """Gradient descent that gives back the tensor that it is handed, or with ``renews`` another one."""

    def __init__(self, rate: float = 0.1, renews: bool = False) -> None:
        self.rate, self.renews = rate, renews

    def __call__(self, tensor: Tensor) -> Tensor:
        assert tensor.grad is not None
        assert not tensor.grad.is_batched
        updated = tensor.array - self.rate * tensor.grad.array.astype(tensor.dtype)
        if self.renews:
            return Tensor(updated, dtype=np.float32, name=tensor.name)
        tensor.array, tensor.grad = updated, None
        return tensor


_MODULES = {
    "activation": (GeLU, ReLU),
    "attention": (Attention,),
    "functions": (Softmax,),
    "layers": (Layer, Dense, LayerNorm, RMSNorm, Dropout, Sequential),
    "loss": (CrossEntropy,),
    "ops": (Op,),
    "tensor": (Tensor,),
}


def modules() -> dict[str, types.ModuleType]:
    """The modules of a package ``tricycle`` with these classes, by their full names."""
    package = types.ModuleType("tricycle")
    package.__path__ = []
    found = {"tricycle": package}
    for name, classes in _MODULES.items():
        module = found[f"tricycle.{name}"] = types.ModuleType(f"tricycle.{name}")
        for one in classes:
            setattr(module, one.__name__, one)
    found["tricycle.context"] = types.ModuleType("tricycle.context")
    found["tricycle.context"].TRICYCLE_CONTEXT = TRICYCLE_CONTEXT  # type: ignore[attr-defined]
    for name, module in found.items():
        if name != "tricycle":
            setattr(package, name.rpartition(".")[2], module)
    return found


@contextmanager
def mixed_precision(factor: float = 128) -> Iterator[None]:
    """Let Tricycle compute in float16 while the context lasts."""
    TRICYCLE_CONTEXT.use_mixed_precision, TRICYCLE_CONTEXT.loss_scale_factor = True, factor
    try:
        yield
    finally:
        TRICYCLE_CONTEXT.use_mixed_precision = False
