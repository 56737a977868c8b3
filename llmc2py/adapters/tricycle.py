"""Generated layers inside Tricycle, the deep learning library on CuPy: its tensors in and out, its backward pass.

`enable` swaps the layers of a built model for those of a package that was generated with ``--target tricycle``;
`disable` puts them back. Classes of that package are also used directly: `GeneratedLayer`, `Replacement` and `call` are
what they are made of.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from llmc2py import runtime
from llmc2py.runtime.arrays import array_module, device_scope, has_several_devices, place_of, pointer_of
from llmc2py.runtime.autograd import FLOATING, Context, Function

try:
    from tricycle.context import TRICYCLE_CONTEXT
    from tricycle.layers import Layer
    from tricycle.ops import Op
    from tricycle.tensor import Tensor
except ImportError as error:
    raise ImportError(
        f"llmc2py.adapters.tricycle needs Tricycle, which is in no registry ({error}): clone "
        "https://github.com/bclarkson-code/Tricycle and install it with `pip install -e`, and what it imports"
    ) from error

__all__ = ["GeneratedLayer", "Replacement", "Report", "call", "disable", "enable", "precision", "scaled_loss"]

#: The module that ``--target tricycle`` adds to a package.
MODULE = "tricycle_layers"

_NOTHING = np.zeros((), np.float32)


def precision() -> np.dtype[Any]:
    """Return the dtype that Tricycle computes in at the moment: float16 in mixed precision, else float32."""
    return np.dtype(np.float16 if TRICYCLE_CONTEXT.use_mixed_precision else np.float32)


# --- calls


def call(function: type[Function], *inputs: Any, name: str, dtype: Any = None) -> Any:
    """Run a generated function on Tricycle's tensors and other values; return a tensor, or a tuple of them.

    Floating point tensors are taken in ``dtype``, or else in Tricycle's present `precision`, which gradients are given
    in too. What the backward pass needs belongs to the call, not to the layer, and is freed by it. Outputs are batched
    where an input is, and require a gradient where an input does.

    Raises what the function raises for arrays that do not fit (TypeError, ValueError, IndexError).
    """
    dtype = precision() if dtype is None else np.dtype(dtype)
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    results = function.apply(*(_leaf(value, dtype) if isinstance(value, Tensor) else value for value in inputs))
    outputs = results if isinstance(results, tuple) else (results,)
    is_batched = any(tensor.is_batched for tensor in tensors)
    node = next((output.node for output in outputs if output.node is not None), None)
    if node is None:
        made = [_tensor(output.data, is_batched=is_batched, requires_grad=False, name=name) for output in outputs]
    else:
        made = _recorded(_Backward(function, node, inputs, outputs), outputs, is_batched, name)
    return tuple(made) if isinstance(results, tuple) else made[0]


def _leaf(tensor: Any, dtype: np.dtype[Any]) -> runtime.Tensor:
    array = tensor.array
    floating = array.dtype in FLOATING
    if floating and array.dtype != dtype:
        array = array.astype(dtype)
    return runtime.Tensor(array, requires_grad=floating and tensor.requires_grad)


def _recorded(backward: _Backward, outputs: tuple[Any, ...], is_batched: bool, name: str) -> list[Any]:
    """Return the outputs as nodes of Tricycle's graph.

    Its nodes have one output each. Where there are several, they come from a node of their own: each hands it its
    gradient, and Tricycle turns to it once all have.
    """
    args, back_fns = backward.edges()
    if len(outputs) == 1:
        return [_node(outputs[0].data, is_batched, name, args, back_fns)]
    joint = _node(_NOTHING, False, f"{name}_joint", args, back_fns)
    receivers = [functools.partial(backward.receive, index) for index in range(len(outputs))]
    return [
        _node(output.data, is_batched, name, (joint,), (receive,))
        for output, receive in zip(outputs, receivers, strict=True)
    ]


def _node(array: Any, is_batched: bool, name: str, args: tuple[Any, ...], back_fns: tuple[Any, ...]) -> Any:
    return _tensor(array, requires_grad=True, is_batched=is_batched, name=name, args=args, back_fns=back_fns)


def _tensor(array: Any, **attributes: Any) -> Any:
    """Return a Tricycle tensor on an array. Its constructor would copy the array and choose the dtype."""
    tensor = Tensor(_NOTHING, **attributes)
    tensor.array = array
    return tensor


class _Backward:
    """The backward pass of one call. Tricycle asks for one gradient after the other; one run computes them all.

    The run frees what was saved, so there is no second one.
    """

    def __init__(
        self, function: type[Function], node: Context, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> None:
        self._function = function
        self._node: Context | None = node
        self._forms = [(output.shape, output.dtype) for output in outputs]
        self._received: list[Any] = [None] * len(outputs)
        self._pending: dict[int, Any] = {}
        # Tricycle goes from a node to an input once, so an input that was given twice is one edge.
        places: dict[int, tuple[Any, list[int]]] = {}
        for position, needed in enumerate(node.needs_grad):
            if needed:
                places.setdefault(id(inputs[position]), (inputs[position], []))[1].append(position)
        self._places = list(places.values())

    def edges(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return ``args`` and ``back_fns`` of the node: the inputs that need gradients, and who computes them."""
        back_fns = tuple(functools.partial(self._gradient, index) for index in range(len(self._places)))
        return tuple(tensor for tensor, _ in self._places), back_fns

    def receive(self, output: int, grad: Any) -> Any:
        """Keep the gradient of one of several outputs; the gradient of the node behind them says nothing."""
        self._received[output] = grad.array
        return _tensor(np.zeros((), np.float32), requires_grad=False, is_batched=False)

    def _gradient(self, index: int, grad: Any) -> Any:
        if index not in self._pending:
            given = [grad.array] if len(self._forms) == 1 else self._received
            self._pending = self._compute(given)
            self._received = [None] * len(self._forms)
        tensor, _ = self._places[index]
        array = self._pending.pop(index)
        return _tensor(array, requires_grad=grad.requires_grad, is_batched=tensor.is_batched)

    def _compute(self, given: list[Any]) -> dict[int, Any]:
        node, self._node = self._node, None
        if node is None:
            raise RuntimeError(
                f"{self._function.__name__}: the graph was freed by an earlier backward pass; compute the loss again"
            )
        like = next(array for array in given if array is not None)
        scope = device_scope(place_of(like, "grad")) if has_several_devices() else contextlib.nullcontext()
        with scope:
            douts = [_fitting(array, *form, like) for array, form in zip(given, self._forms, strict=True)]
            result = self._function.backward(node, *douts)
        grads = result if isinstance(result, (tuple, list)) else (result,)
        # Tricycle adds to the first gradient that it is given in place: each must have memory of its own.
        taken = {pointer_of(array) for array in (*given, *douts) if array is not None}
        dtype = precision()
        found = {}
        for index, (_, positions) in enumerate(self._places):
            array = functools.reduce(lambda total, part: total + part, [grads[position] for position in positions])
            array = array if array.dtype == dtype else array.astype(dtype)
            found[index] = array.copy() if pointer_of(array) in taken else array
            taken.add(pointer_of(found[index]))
        return found


def _fitting(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Return a gradient in the form of its output; zeros for an output that nothing was computed from."""
    xp = array_module(like)
    if array is None:
        return xp.zeros(shape, dtype)
    array = array if array.dtype == dtype else array.astype(dtype)
    return array if array.shape == shape else xp.broadcast_to(array, shape)


def scaled_loss(loss: Any) -> Any:
    """Return a loss as Tricycle's mixed precision has it: in float16, times the loss scale, its gradient as it was."""
    if TRICYCLE_CONTEXT.use_mixed_precision:
        loss.array = loss.array.astype(np.float16)
        loss.array *= TRICYCLE_CONTEXT.loss_scale_factor
    return loss


# --- layers


class Replacement:
    """Mixin of generated classes in the place of one of Tricycle's, which is the base beside it.

    They add no attributes and keep the parameters: an object of one class can become one of the other. Python allows
    that where Tricycle's class is the first of the bases and this one has nothing in its objects.
    """

    __slots__ = ()

    @classmethod
    def objection(cls, layer: Any) -> str:
        """Return why a layer of Tricycle's cannot be swapped; empty where it can."""
        return ""

    @classmethod
    def replaces(cls) -> type:
        """Return Tricycle's class."""
        return cls.__bases__[0]


class GeneratedLayer(Layer):  # type: ignore[misc]
    """Base of generated layers that Tricycle has no counterpart of.

    The constructor takes what that of the generated layer ``generated`` takes. Parameters become Tricycle's tensors,
    as attributes and in ``tensors``; other attributes are kept.
    """

    generated: ClassVar[type[runtime.Layer]]

    def __init__(self, /, *sizes: Any, **options: Any) -> None:
        made = self.generated(*sizes, **options)
        self.tensors = {}
        for name, value in vars(made).items():
            if isinstance(value, runtime.Parameter):
                self.tensors[name] = _tensor(value.data, requires_grad=True, is_batched=False, name=name)
                setattr(self, name, self.tensors[name])
            elif not name.startswith("_"):
                setattr(self, name, value)

    def update(self, optimiser: Any) -> None:
        """Let an optimiser update the parameters."""
        for name, tensor in self.tensors.items():
            self.tensors[name] = optimiser(tensor)
            setattr(self, name, self.tensors[name])

    def zero_grad(self) -> None:
        """Forget the gradients of the parameters."""
        for tensor in self.tensors.values():
            tensor.grad = None

    def to_gpu(self, device: int = 0) -> GeneratedLayer:
        """Move the parameters to a GPU; return the layer."""
        for tensor in self.tensors.values():
            tensor.to_gpu(device)
        return self

    def from_gpu(self) -> GeneratedLayer:
        """Move the parameters to the CPU; return the layer."""
        for tensor in self.tensors.values():
            tensor.from_gpu()
        return self


# --- models


@dataclass(frozen=True)
class Report:
    """What `enable` did: names within the model.

    ``swapped`` holds names and Tricycle's classes, ``kept`` names, classes and why they were left as they are.
    """

    swapped: tuple[tuple[str, str], ...]
    kept: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} layers swapped for generated ones, {len(self.kept)} kept"]
        lines += [f"  swapped  {name}: {kind}" for name, kind in self.swapped]
        lines += [f"  kept     {name}: {kind}: {why}" for name, kind, why in self.kept]
        return "\n".join(lines)


def enable(model: Any, package: str | ModuleType = "generated", only: Collection[str] | None = None) -> Report:
    """Swap the layers of a built model, and of everything in it, for generated ones.

    The objects stay what they are, with their weights, under their names; only their class changes. So optimisers and
    their state, references to single layers and the methods of the model stay valid, and so do graphs that were made
    before. What was swapped earlier is put back first. A loss function is given the same way: ``enable(loss_fn)``.

    Parameters
    ----------
    model
        A layer or operation of Tricycle.
    package
        A package generated with ``--target tricycle``: its name or the module.
    only
        Names of Tricycle's classes (``"Dense"``); by default all that the package has a layer for.

    Raises
    ------
    ImportError
        There is no such package, or it has no layers for Tricycle.
    TypeError
        The model is no layer or operation of Tricycle.
    ValueError
        The package has no layer for a class in ``only``.
    """
    replacements = _replacements(package)
    _check_names(only, replacements)
    disable(model)
    swapped, kept = [], []
    for name, layer, is_container in _walk(model):
        kind = type(layer)
        why = _why_not(layer, replacements, only)
        if not why:
            layer.__class__ = replacements[kind]
            swapped.append((name, kind.__name__))
        elif not is_container:
            kept.append((name, kind.__name__, why))
    return Report(tuple(swapped), tuple(kept))


def disable(model: Any) -> list[str]:
    """Put Tricycle's own layers back into a model; return the names of those that were swapped.

    Raises TypeError where the model is no layer or operation of Tricycle.
    """
    restored = []
    for name, layer, _ in _walk(model):
        if isinstance(layer, Replacement):
            restored.append(name)
            layer.__class__ = type(layer).replaces()
    return restored


def _replacements(package: str | ModuleType) -> dict[type, type[Replacement]]:
    name = package if isinstance(package, str) else package.__name__
    try:
        module = importlib.import_module(f"{name}.{MODULE}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.{MODULE}".startswith(error.name):
            raise
        raise ImportError(
            f"{error}: `llmc2py generate SOURCE --output {name.rpartition('.')[2]} --target tricycle` makes the layers "
            "for Tricycle; the folder that the package is in has to be on Python's path"
        ) from error
    found = [getattr(module, one) for one in module.__all__]
    return {one.replaces(): one for one in found if issubclass(one, Replacement)}


def _check_names(only: Collection[str] | None, replacements: dict[type, type[Replacement]]) -> None:
    names = sorted(kind.__name__ for kind in replacements)
    for name in only or ():
        if name not in names:
            raise ValueError(f"only: the package has no layer for {name}; it has some for {', '.join(names)}")


def _why_not(layer: Any, replacements: dict[type, type[Replacement]], only: Collection[str] | None) -> str:
    kind = type(layer)
    if kind in replacements:
        asked = only is None or kind.__name__ in only
        return replacements[kind].objection(layer) if asked else "it was not asked for"
    base = next((one for one in kind.__mro__ if one in replacements), None)
    if base is not None:
        return f"it is a subclass of {base.__name__}, which may compute something else"
    return "the package has no layer for it"


def _walk(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield a name for, and each of, the layers and operations in a model once, and whether there are others in it."""
    if not isinstance(model, (Layer, Op)):
        raise TypeError(f"{type(model).__name__} is no layer or operation of Tricycle")
    seen = {id(model)}
    stack = [("model", model)]
    while stack:
        name, layer = stack.pop()
        children = list(_children(layer, name))
        yield name, layer, bool(children)
        new = []
        for path, child in children:
            if id(child) not in seen:
                seen.add(id(child))
                new.append((path, child))
        stack += reversed(new)


def _children(layer: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield layers and operations in the attributes of one, those in ``layers``, which repeats others, last."""
    attributes = sorted(vars(layer).items(), key=lambda item: item[0] == "layers")
    for attribute, value in attributes:
        yield from _found(value, f"{name}.{attribute}")


def _found(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Layer, Op)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _found(item, f"{name}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _found(item, f"{name}[{key!r}]")
