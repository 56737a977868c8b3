"""Layers: objects with parameters, placed where their first input is."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from llmc2py.runtime.arrays import Place, backend_named, device_scope, is_array, place_of
from llmc2py.runtime.autograd import FLOATING, Tensor
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.interop import as_array
from llmc2py.runtime.signatures import SignatureOf

Dims = tuple[str, ...]
#: Attributes of these types are options, which the representation of a layer shows.
_SHOWN = (bool, int, float, str)


@dataclass(frozen=True)
class OpSpec:
    """What an operation takes and gives: for each array its dimensions by letters, ``"..."`` for any leading ones.

    Attributes
    ----------
    indices
        Integer inputs, and the size (a letter or option) that their values are below.
    dtype_of
        Arrays whose dtype is not the one of the call.
    optional
        Parameters that a layer may be without (None).
    positive
        Inputs whose values have to be positive.
    options
        Scalars after the arrays of a call, with their defaults (``...`` for those that have none).
    saves
        What the forward pass saves for the backward pass, in order.
    saved
        Of these, the arrays that are neither inputs nor outputs: dimensions (``N`` is the product of the leading axes,
        ``3C`` a multiple) and dtype (None: that of the call).
    """

    name: str
    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]
    parameters: Mapping[str, Dims] = field(default_factory=dict)
    dtypes: tuple[str, ...] = tuple(PRECISIONS)
    doc: str = ""
    origin: str = ""
    indices: Mapping[str, str] = field(default_factory=dict)
    dtype_of: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    saves: tuple[str, ...] = ()
    saved: Mapping[str, tuple[Dims, str | None]] = field(default_factory=dict)

    @property
    def letters(self) -> tuple[str, ...]:
        """The sizes that the layer is made with: those of its parameters, in the order in which arrays name them."""
        own = {letter for dims in self.parameters.values() for letter in dims}
        named = (letter for dims in (*self.inputs.values(), *self.parameters.values()) for letter in dims)
        return tuple(dict.fromkeys(letter for letter in named if letter in own))


class Parameter(Tensor):
    """A tensor that a layer learns. Its ``data`` is replaced when the layer is moved; the object stays."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)


class Layer:
    """Base of layers. Subclasses assign `Parameter` objects and layers to attributes and define ``forward``.

    Parameters
    ----------
    dtype:
        Precision of the parameters: ``"float32"``, ``"float16"``, ``"bfloat16"`` or a dtype. By default that of the
        first input.
    like:
        An array or tensor: the parameters go to its backend and device (and take its dtype) at once. By default they
        start as NumPy float32 and go where the first input is at the first call.
    """

    #: Shapes and source of the operation, for verification; None for layers made of others.
    spec: ClassVar[OpSpec | None] = None

    def __init__(self, *, dtype: Any = None, like: Any = None) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._layers: dict[str, Layer] = {}
        self._lock = threading.Lock()
        data = like.data if isinstance(like, Tensor) else as_array(like, "like", type(self).__name__)
        self._place: Place | None = None if data is None else place_of(data, "like")
        self._dtype: np.dtype[Any] | None = None if dtype is None else precision_dtype(dtype)
        if self._dtype is None and data is not None and data.dtype in FLOATING:
            self._dtype = data.dtype

    __signature__ = SignatureOf(lambda layer: inspect.signature(layer.forward))

    def __repr__(self) -> str:
        """Return the class with shapes of parameters, options, and the layers inside, as PyTorch's modules do."""
        parameters, layers = (self.__dict__.get(table, {}) for table in ("_parameters", "_layers"))
        shown = [f"{name}={tuple(one.data.shape)}" for name, one in parameters.items()]
        shown += [f"{n}={v!r}" for n, v in vars(self).items() if n[0] != "_" and (v is None or isinstance(v, _SHOWN))]
        inside = [f"({name}): {layer!r}".replace("\n", "\n  ") for name, layer in layers.items()]
        text = "".join(f"\n  {line}" for line in ([", ".join(shown)] if shown else []) + inside) + "\n"
        return f"{type(self).__name__}({text if inside else ', '.join(shown)})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Register parameters and layers; a parameter of a placed layer is moved to it."""
        if isinstance(value, Parameter):
            self._parameters[name] = value
            _move(value, self._place or Place("cpu", 0), self._dtype or value.dtype)
        elif isinstance(value, Layer):
            self._layers[name] = value
        else:
            for table in ("_parameters", "_layers"):
                self.__dict__.get(table, {}).pop(name, None)
        object.__setattr__(self, name, value)

    def __call__(self, /, *inputs: Any, **options: Any) -> Any:
        """Return ``forward`` of the inputs (tensors, or arrays as constants).

        The first call puts the parameters where the inputs are. Raises TypeError for inputs that are elsewhere, or of
        another dtype, than the parameters.
        """
        if self._parameters:
            self._meet(inputs)
        return self.forward(*inputs, **options)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the outputs; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def parameters(self) -> list[Parameter]:
        """Return the parameters of this layer and of the layers in it."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield names, dotted through inner layers, and parameters; each parameter once."""
        seen: set[int] = set()
        yield from self._named_parameters(prefix, seen)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters, or with ``set_to_none=False`` fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad[...] = 0

    def to(self, like: Any = None, dtype: Any = None) -> Layer:
        """Move the parameters, and their gradients, to a place and a dtype; return the layer.

        ``like`` is an array, a tensor, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; without ``dtype``, an array's dtype is
        taken. Raises TypeError for anything else, ToolMissingError where CUDA cannot be used, ValueError for a device
        that is not there; nothing is moved then.
        """
        place, like_dtype = _target(like)
        wanted = like_dtype if dtype is None else precision_dtype(dtype)
        for layer in self._layers.values():
            layer.to(like, dtype)
        self._place = place or self._place
        self._dtype = wanted or self._dtype
        for parameter in self._parameters.values():
            _move(parameter, place or place_of(parameter.data, "data"), wanted or parameter.dtype)
        return self

    def _named_parameters(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Parameter]]:
        for name, parameter in self._parameters.items():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter
        for name, layer in self._layers.items():
            yield from layer._named_parameters(f"{prefix}{name}.", seen)

    def _meet(self, inputs: tuple[Any, ...]) -> None:
        """Check the inputs against the parameters, or place the parameters."""
        array = dtype = None
        for value in inputs:
            data = value.data if isinstance(value, Tensor) else as_array(value, "input", type(self).__name__)
            if is_array(data):
                array = data if array is None else array
                if data.dtype in FLOATING:
                    array, dtype = data, data.dtype
                    break
        if array is None:
            return
        place = place_of(array, "input")
        if place != self._place or (dtype is not None and dtype != self._dtype):
            self._settle(place, dtype)

    def _settle(self, place: Place, dtype: np.dtype[Any] | None) -> None:
        with self._lock:
            present = self._dtype or np.dtype(np.float32)
            other_place = self._place is not None and place != self._place
            other_dtype = self._dtype is not None and dtype is not None and dtype != self._dtype
            if other_place or other_dtype:
                raise TypeError(
                    f"{type(self).__name__}: the parameters are {present} on {self._place or place}, the input is "
                    f"{dtype or present} on {place}; move the layer with `.to(x)` or convert the input"
                )
            if dtype is not None and dtype not in PRECISIONS.values():
                raise TypeError(f"{type(self).__name__}: the input is {dtype}; it is one of {', '.join(PRECISIONS)}")
            for parameter in self._parameters.values():
                _move(parameter, place, dtype or parameter.dtype)
            self._dtype = dtype or self._dtype
            self._place = place


def precision_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a precision (a name of ``PRECISIONS`` or a dtype) as a dtype. Raises TypeError for any other."""
    wanted: np.dtype[Any] | None = PRECISIONS.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if wanted is None or wanted not in PRECISIONS.values():
        raise TypeError(f"{dtype!r} is no precision; it is one of {', '.join(PRECISIONS)}")
    return wanted


def _target(like: Any) -> tuple[Place | None, np.dtype[Any] | None]:
    if like is None:
        return None, None
    if isinstance(like, str):
        backend, _, device = like.partition(":")
        if backend not in ("cpu", "cuda") or (device and not device.isdecimal()):
            raise TypeError(f"{like!r} is no place; it is an array, 'cpu', 'cuda' or 'cuda:1'")
        if backend == "cuda":
            # Before anything is moved: CuPy would say in words of its own that there is no driver, or no such device.
            from llmc2py.runtime.cuda.device import usable_cupy

            usable_cupy(int(device or 0))
        return Place(backend, int(device or 0)), None
    data = like.data if isinstance(like, Tensor) else as_array(like, "like")
    return place_of(data, "like"), data.dtype if data.dtype in FLOATING else None


def _move(parameter: Parameter, place: Place, dtype: np.dtype[Any]) -> None:
    parameter.data = _moved(parameter.data, place, dtype)
    if parameter.grad is not None:
        parameter.grad = _moved(parameter.grad, place, dtype)


def _moved(array: Any, place: Place, dtype: np.dtype[Any]) -> Any:
    """Return an array with a place and dtype; the same one where it has them."""
    if array.dtype == dtype and place_of(array, "parameter") == place:
        return array
    if place.backend == "cuda":
        import cupy

        with device_scope(place):
            return cupy.asarray(array.astype(dtype, copy=False))
    values = array if isinstance(array, np.ndarray) else array.get()
    aligned = backend_named("cpu").empty(values.shape, dtype)
    aligned[...] = values
    return aligned
