"""Layers: objects with parameters, placed where their first input is."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np

from llmc2py.runtime.arrays import Place, is_array, moved, place_of
from llmc2py.runtime.autograd import FLOATING, Tensor
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.interop import as_array
from llmc2py.runtime.signatures import SignatureOf
from llmc2py.runtime.state import NotLoaded, load_state_dict, state_dict

Dims = tuple[str, ...]

#: Held while a first call places a layer: one for all layers, so that these can be copied and pickled.
_settling = threading.Lock()
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
    kinds, least, choices
        Of options: the name of the type, the least value, the values that one may have.
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
    kinds: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    saves: tuple[str, ...] = ()
    saved: Mapping[str, tuple[Dims, str | None]] = field(default_factory=dict)

    @property
    def letters(self) -> tuple[str, ...]:
        """The sizes that the layer is made with: those of its parameters, in the order in which arrays name them."""
        own = {letter for dims in self.parameters.values() for letter in dims}
        named = (letter for dims in (*self.inputs.values(), *self.parameters.values()) for letter in dims)
        return tuple(dict.fromkeys(letter for letter in named if letter in own))


class Parameter(Tensor):
    """A tensor that a layer learns. Its ``data`` is replaced when the layer is moved; the object stays.

    With the values that its layer was made with, its dtype is open: the first call decides it. It is decided by a
    ``dtype`` that the layer was made with, by ``Layer.to`` with a dtype, and by values of its own: ones that were
    loaded, an array that was assigned to ``data``, or a parameter that was put in another's place. What is written into
    the array in place (``data[...] = values``) does not decide it.
    """

    __slots__ = ("_initial", "_is_used")

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)
        self._initial: Any = None
        self._is_used = False

    @property
    def is_open(self) -> bool:
        """Whether the first call may change the dtype."""
        return self._initial is self.data

    def keep_dtype(self) -> None:
        """Let the dtype be decided."""
        self._initial = None

    def use(self, *, replaces: bool) -> None:
        """Note that the parameter belongs to a layer: with initial values, unless it takes another's place there."""
        if not self._is_used and not replaces:
            self._initial = self.data
        self._is_used = True

    def move(self, place: Place, dtype: np.dtype[Any]) -> None:
        """Move array and gradient to a place and a dtype; an open dtype stays open."""
        is_open = self.is_open
        self.data = moved(self.data, place, dtype)
        if self.grad_ is not None:
            self.grad_ = moved(self.grad_, place, dtype)
        if is_open:
            self._initial = self.data


class _NotMade:
    """Stands for what ``Layer.__init__`` makes, in a layer whose own ``__init__`` has not called it yet."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        raise AttributeError(
            f"{owner.__name__}: `super().__init__()` has not been called; a layer's `__init__` calls it first"
        )


class Layer:
    """Base of layers. Subclasses assign `Parameter` objects and layers to attributes and define ``forward``.

    Layers can be copied (``copy.deepcopy``) and pickled, with their parameters and gradients.

    Parameters
    ----------
    dtype:
        Precision of the parameters: ``"float32"``, ``"float16"``, ``"bfloat16"`` or a dtype. By default that of the
        first input, for parameters that have the values that they were made with; see `Parameter`.
    like:
        An array or tensor: the parameters go to its backend and device (and take its dtype) at once; or ``"cpu"``,
        ``"cuda"``, ``"cuda:1"``. By default they start as NumPy float32 and go where the first input is at the first
        call.
    """

    #: Shapes and source of the operation, for verification; None for layers made of others.
    spec: ClassVar[OpSpec | None] = None
    #: The inputs that are indices, by position and by name.
    _indices: ClassVar[frozenset[int | str]] = frozenset()

    _parameters: dict[str, Parameter] = cast(Any, _NotMade())
    _layers: dict[str, Layer] = cast(Any, _NotMade())

    def __init_subclass__(cls, **options: Any) -> None:
        """Note which inputs are indices."""
        super().__init_subclass__(**options)
        inputs = enumerate(cls.spec.inputs) if cls.spec is not None else ()
        cls._indices = frozenset(
            key for at, name in inputs if cls.spec is not None and name in cls.spec.indices for key in (at, name)
        )

    def __init__(self, *, dtype: Any = None, like: Any = None) -> None:
        self._parameters = {}
        self._layers = {}
        self._place: Place | None
        self._dtype: np.dtype[Any] | None
        self._place, self._dtype = _target(like, dtype, type(self).__name__)

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
        """Register parameters and layers; a parameter of a placed layer is moved to it.

        Raises TypeError for a parameter with values and a dtype of its own that is not the layer's, and where something
        else than a parameter or None is to take the place of a parameter (or a layer).
        """
        if isinstance(value, Parameter):
            self._add(name, value)
            self._layers.pop(name, None)
        elif isinstance(value, Layer):
            self._layers[name] = value
            self._parameters.pop(name, None)
        else:
            for kind, table in (("Parameter", "_parameters"), ("Layer", "_layers")):
                members = self.__dict__.get(table, {})
                if name in members and value is not None:
                    hint = f"; `{name}.data[...] = values` writes values" if kind == "Parameter" else ""
                    raise TypeError(
                        f"{type(self).__name__}: `{name}` is a {kind}, and a {type(value).__name__} cannot take its "
                        f"place; assign a {kind}, or None{hint}"
                    )
                members.pop(name, None)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Forget a parameter or layer too."""
        object.__delattr__(self, name)
        self._parameters.pop(name, None)
        self._layers.pop(name, None)

    def __call__(self, /, *inputs: Any, **options: Any) -> Any:
        """Return ``forward`` of the inputs (tensors, or arrays as constants).

        The first call puts the parameters where the inputs are. Raises TypeError for inputs that are elsewhere, or of
        another dtype, than the parameters.
        """
        if self._parameters:
            self._meet(inputs, options)
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

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of all parameters as NumPy arrays by name; see `llmc2py.nn.state_dict`."""
        return state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> NotLoaded:
        """Copy arrays into the parameters by name; see `llmc2py.nn.load_state_dict`."""
        return load_state_dict(self, state, strict)

    def to(self, like: Any = None, dtype: Any = None) -> Self:
        """Move the parameters, and their gradients, to a place and a dtype; return the layer.

        ``like`` is an array, a tensor, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; without ``dtype``, an array's dtype is
        taken. Raises TypeError for anything else; ToolMissingError and ValueError where there is no such device, and
        nothing is moved then.
        """
        place, wanted = _target(like, dtype, type(self).__name__)
        self._move(place, wanted)
        return self

    def _add(self, name: str, parameter: Parameter) -> None:
        parameters, dtype = self._parameters, self._dtype
        parameter.use(replaces=name in parameters and parameters[name] is not parameter)
        if dtype is not None and parameter.dtype != dtype and not parameter.is_open:
            raise TypeError(
                f"{type(self).__name__}: `{name}` is {parameter.dtype}, and the layer is {dtype}; convert its array "
                f"with `.astype`, or move the layer with `.to(dtype={parameter.dtype.name!r})` first"
            )
        place = self._place or place_of(parameter.data, name)
        parameter.move(place, dtype or parameter.dtype)
        if dtype is not None:
            parameter.keep_dtype()
        parameters[name] = parameter

    def _move(self, place: Place | None, dtype: np.dtype[Any] | None) -> None:
        for layer in self._layers.values():
            layer._move(place, dtype)
        for name, parameter in self._parameters.items():
            parameter.move(place or place_of(parameter.data, name), dtype or parameter.dtype)
            if dtype is not None:
                parameter.keep_dtype()
        self._place = place or self._place
        self._dtype = dtype or self._dtype

    def _named_parameters(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, Parameter]]:
        for name, parameter in self._parameters.items():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter
        for name, layer in self._layers.items():
            yield from layer._named_parameters(f"{prefix}{name}.", seen)

    def _meet(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Check the inputs against the parameters, or place the parameters."""
        array = dtype = None
        given: Iterable[tuple[int | str, Any]] = enumerate(inputs)
        for key, value in (*given, *named.items()) if named else given:
            data = value.data if isinstance(value, Tensor) else as_array(value, "input", type(self).__name__)
            if is_array(data):
                array = data if array is None else array
                if data.dtype in FLOATING and key not in self._indices:
                    array, dtype = data, data.dtype
                    break
        if array is None:
            return
        place = place_of(array, "input")
        if place != self._place or (dtype is not None and dtype != self._dtype):
            self._settle(place, dtype)

    def _settle(self, place: Place, dtype: np.dtype[Any] | None) -> None:
        with _settling:
            decided = (parameter.dtype for parameter in self._parameters.values() if not parameter.is_open)
            kept = [self._dtype] if self._dtype is not None else list(dict.fromkeys(decided))
            other_place = self._place is not None and place != self._place
            if other_place or any(dtype is not None and dtype != one for one in kept):
                present = " and ".join(map(str, kept)) or "float32"
                raise TypeError(
                    f"{type(self).__name__}: the parameters are {present} on {self._place or place}, the input is "
                    f"{dtype or present} on {place}; move the layer with `.to(x)`, or convert the input (`.astype`)"
                )
            if dtype is not None and dtype not in PRECISIONS.values():
                raise TypeError(f"{type(self).__name__}: the input is {dtype}; it is one of {', '.join(PRECISIONS)}")
            for parameter in self._parameters.values():
                parameter.move(place, dtype or parameter.dtype)
                if dtype is not None:
                    parameter.keep_dtype()
            self._dtype = dtype or self._dtype
            self._place = place


def precision_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a precision (a name of ``PRECISIONS`` or a dtype) as a dtype. Raises TypeError for any other."""
    wanted: np.dtype[Any] | None = PRECISIONS.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if wanted is None or wanted not in PRECISIONS.values():
        raise TypeError(f"{dtype!r} is no precision; it is one of {', '.join(PRECISIONS)}")
    return wanted


def _target(like: Any, dtype: Any, callee: str) -> tuple[Place | None, np.dtype[Any] | None]:
    """Return the place and the precision that are asked for; None for what is not."""
    wanted = None if dtype is None else precision_dtype(dtype)
    if like is None:
        return None, wanted
    if isinstance(like, str):
        backend, _, device = like.partition(":")
        if backend not in ("cpu", "cuda") or (device and not device.isdecimal()):
            raise TypeError(f"{like!r} is no place; it is an array, 'cpu', 'cuda' or 'cuda:1'")
        place = Place(backend, int(device or 0))
        if backend == "cuda":
            from llmc2py.runtime.cuda.device import usable_cupy

            usable_cupy(place.device)
        return place, wanted
    data = like.data if isinstance(like, Tensor) else as_array(like, "like", callee)
    place = place_of(data, "like", callee)
    return place, precision_dtype(data.dtype) if wanted is None and data.dtype in FLOATING else wanted
