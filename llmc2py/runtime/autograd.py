"""Reverse-mode differentiation over functions that run kernels."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np

from llmc2py.runtime.arrays import array_module, device_scope, has_several_devices, is_array, place_of
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.engine import check_form, run_backward
from llmc2py.runtime.interop import Lender, as_array, hand_back, is_foreign

#: The dtypes that gradients exist for.
FLOATING = frozenset((*PRECISIONS.values(), np.dtype(np.float64)))


class _Mode(threading.local):
    enabled = True


_mode = _Mode()


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Build no graph in this thread while the context lasts."""
    before = _mode.enabled
    _mode.enabled = False
    try:
        yield
    finally:
        _mode.enabled = before


class Tensor(Lender):
    """An array that gradients are computed for.

    Layers and functions compute with tensors; ``+`` and the like raise TypeError. One that requires no gradient is
    given to other libraries without a copy: ``numpy.asarray``, ``__dlpack__`` and, on CUDA,
    ``__cuda_array_interface__``.

    An array that was saved for a backward pass is not to be changed in place before: arrays count no versions, so
    that nothing can notice it, and the gradients would be wrong.

    Parameters
    ----------
    data:
        NumPy or CuPy array, or what shares its memory by ``__dlpack__`` or ``__cuda_array_interface__``; it is kept,
        not copied.
    requires_grad:
        Whether ``backward`` leaves a gradient in ``grad``; by default, for floating point arrays.

    Raises TypeError for what is no array, or for ``requires_grad=True`` on integers.
    """

    __slots__ = ("__weakref__", "data", "grad_", "node", "output", "requires_grad")
    #: NumPy and CuPy are not to take a tensor for an array of objects when it is added to one of theirs.
    __array_ufunc__ = None

    def __init__(self, data: Any, requires_grad: bool | None = None) -> None:
        data = as_array(data, "data")
        place_of(data, "data")
        floating = data.dtype in FLOATING
        if requires_grad and not floating:
            raise TypeError(f"only floating point arrays have gradients, not {data.dtype}; pass requires_grad=False")
        self.data = data
        self.grad_: Any = None
        self.requires_grad = floating if requires_grad is None else requires_grad
        self.node: Context | None = None
        self.output = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data!r}, requires_grad={self.requires_grad})"

    def __getstate__(self) -> Any:
        """Raise TypeError for a tensor that was computed: a graph is not copied or pickled."""
        if self.node is not None:
            raise TypeError(
                f"a tensor that {self.node.function_.__name__} computed cannot be copied; `detach()` it first"
            )
        return super().__getstate__()

    @property
    def grad(self) -> Any:
        """The gradient, an array, or None.

        It may be set to an array (or tensor) of the same shape and place, in any floating point dtype. Raises TypeError
        and ValueError for another.
        """
        return self.grad_

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            value = value.data if isinstance(value, Tensor) else as_array(value, "grad")
            where = place_of(self.data, "data")
            if place_of(value, "grad") != where:
                raise TypeError(f"grad: the gradient of an array on {where} is given on {place_of(value, 'grad')}")
            check_form(value, self.data.shape, value.dtype, "grad")
            if value.dtype not in FLOATING:
                raise TypeError(f"grad: the gradient is {value.dtype}; a gradient is floating point")
        self.grad_ = value

    def lent(self) -> Any:
        """Return the array, for other libraries. Raises TypeError where its gradient would be lost."""
        if self.requires_grad:
            raise TypeError("requires a gradient, which would be lost; pass `x.detach()` or `x.data`")
        return self.data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the array as NumPy asks for it. Raises TypeError on CUDA and for one that requires a gradient."""
        array = self._array_for("numpy.asarray")
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"numpy.asarray: the tensor is on {place_of(array, 'data')}; `numpy()` copies it to the CPU"
            )
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        if copy is False:
            raise ValueError(f"numpy.asarray: {array.dtype} cannot become {np.dtype(dtype)} without a copy")
        return array.astype(dtype)

    def __dlpack__(self, **asked: Any) -> Any:
        """Return the array as a capsule of DLPack. Raises as the array does, and TypeError as `lent`."""
        return self._array_for("__dlpack__").__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's name of the device."""
        kind, number = self.data.__dlpack_device__()
        return int(kind), int(number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for libraries that use CUDA. Raises AttributeError on the CPU, and TypeError as `lent`."""
        if isinstance(self.data, np.ndarray):
            raise AttributeError("a tensor on the CPU has no __cuda_array_interface__")
        interface: dict[str, Any] = self._array_for("__cuda_array_interface__").__cuda_array_interface__
        return interface

    def _refuse(self, other: Any) -> NoReturn:
        raise TypeError(
            f"there is no arithmetic on tensors, as here with a {type(other).__name__}: compute with layers "
            f"(`Residual` adds two) and functions, or without gradients with `data`"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = _refuse

    def _array_for(self, what: str) -> Any:
        try:
            return self.lent()
        except TypeError as error:
            raise TypeError(f"{what}: the tensor {error}") from None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the array on the CPU (a copy where it is elsewhere)."""
        data = self.data
        result: np.ndarray[Any, Any] = data if isinstance(data, np.ndarray) else data.get()
        return result

    def detach(self) -> Tensor:
        """Return a tensor on the same array outside the graph."""
        return Tensor(self.data, requires_grad=False)

    def backward(self, grad: Any = None) -> None:
        """Add the gradient of this tensor, times ``grad``, to ``grad`` of every leaf that it was computed from.

        ``grad`` has this tensor's shape and dtype and may be left out where it has one element. It is not written.

        Raises RuntimeError where nothing requires a gradient, or where the graph was gone through before; ValueError
        and TypeError for a ``grad`` that does not fit; NotImplementedError for an operation without a backward pass.
        """
        if not self.requires_grad:
            raise RuntimeError("backward: this tensor does not require a gradient; nothing that it comes from does")
        if grad is None:
            if self.data.size != 1:
                raise RuntimeError(f"backward: a tensor of shape {self.shape} needs a gradient: backward(grad)")
            grad = array_module(self.data).ones_like(self.data)
            if self.node is not None:
                self.node.starts_alone = True
        else:
            grad = grad.data if isinstance(grad, Tensor) else as_array(grad, "grad", "backward")
            _check_gradient(grad, self.data, "backward")
        if has_several_devices():
            with device_scope(place_of(self.data, "data")):
                run_backward(self, grad)
        else:
            run_backward(self, grad)


class Context:
    """One call of a function: what its backward pass needs. Attributes can be set freely.

    Attributes
    ----------
    saved:
        The arrays given to `save`.
    starts_alone:
        Whether the backward pass starts here, with a gradient of 1 that nobody gave.
    """

    def __init__(self, function: type[Function], edges: list[Tensor | tuple[Context, int] | None]) -> None:
        self.saved: tuple[Any, ...] = ()
        self.starts_alone = False
        self.owned_: list[Any] = []
        self.function_ = function
        self.edges_: list[Tensor | tuple[Context, int] | None] | None = edges
        self.outputs_: list[Any] = []

    @property
    def needs_grad(self) -> tuple[bool, ...]:
        """For each input, whether it needs a gradient; empty once the backward pass has gone through."""
        return tuple(edge is not None for edge in self.edges_ or ())

    def save(self, *arrays: Any) -> None:
        """Keep arrays for the backward pass; they belong to this call and are freed by it."""
        self.saved = arrays

    def accumulator(self, index: int) -> Any:
        """Return the array that the gradient of input ``index`` is to be added to, or None.

        It is the ``grad`` of a leaf that has one already, for kernels that accumulate (``dweight += ...``). Return the
        same array from ``backward``: the engine sees that it is in already. Where it is None, return a new array.
        """
        edge = self.edges_[index] if self.edges_ is not None else None
        return edge.grad_ if isinstance(edge, Tensor) else None


class Function:
    """An operation with a derivative. Subclasses define ``forward`` and ``backward`` as static methods.

    ``forward(ctx, *inputs)`` is given arrays (and other values as they are) and returns an array or a tuple of arrays.
    ``backward(ctx, *grads)`` is given the gradient of each output and returns one for each input, None for inputs that
    need none. It does not write into what it is given, and may return it; `ops.own` makes an exception of gradients
    whose numbers are in ``overwrites``, where nobody else has them.
    """

    #: Incoming gradients that ``backward`` writes over if it may.
    overwrites: ClassVar[tuple[int, ...]] = ()

    #: Where the operation comes from, for messages.
    origin: ClassVar[str] = ""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("a Function defines forward")

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Compute the gradients of the inputs."""
        origin = f" ({ctx.function_.origin})" if ctx.function_.origin else ""
        raise NotImplementedError(f"{ctx.function_.__name__}{origin} has no verified backward pass")

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        """Call the function on tensors, arrays (constants) and other values; return a tensor or a tuple of them."""
        enabled = _mode.enabled
        recording = borrowed = False
        arrays: list[Any] = []
        edges: list[Tensor | tuple[Context, int] | None] = []
        for value in inputs:
            edge: Tensor | tuple[Context, int] | None = None
            if isinstance(value, Tensor):
                arrays.append(value.data)
                if enabled and value.requires_grad:
                    node = value.node
                    edge = value if node is None else (node, value.output)
                    recording = True
            elif is_foreign(value):
                arrays.append(_constant(cls, len(arrays), value))
                borrowed = True
            else:
                arrays.append(value)
            edges.append(edge)
        ctx = Context(cls, edges)
        if has_several_devices():
            with _scope(arrays):
                result = cls.forward(ctx, *arrays)
        else:
            result = cls.forward(ctx, *arrays)
        if borrowed:
            hand_back(inputs)
        if result.__class__ is not tuple and result.__class__ is not list:
            return _output(result, ctx, 0, recording)
        return tuple(_output(array, ctx, index, recording) for index, array in enumerate(result))


def _constant(function: type[Function], index: int, value: Any) -> Any:
    name = list(inspect.signature(function.forward).parameters)[1:][index]
    return as_array(value, name, function.__name__.removesuffix("Function"))


def _scope(values: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """Make the device of the first array the current one, so that new arrays are beside it (CASES B10)."""
    array = next((value for value in values if is_array(value)), None)
    return contextlib.nullcontext() if array is None else device_scope(place_of(array, "input"))


def _output(array: Any, ctx: Context, index: int, recording: bool) -> Any:
    if array is None:
        if recording:
            ctx.outputs_.append(None)
        return None
    if array.__class__ is not np.ndarray and isinstance(array, np.generic):
        # NumPy's reductions to no axes give scalars, which are no arrays.
        array = np.asarray(array)
    tensor = Tensor.__new__(Tensor)
    tensor.data = array
    tensor.grad_ = None
    tensor.output = index
    if recording:
        dtype = array.dtype
        ctx.outputs_.append((array.shape, dtype))
        floating = dtype in FLOATING
        tensor.requires_grad = floating
        tensor.node = ctx if floating else None
    else:
        tensor.requires_grad = False
        tensor.node = None
    return tensor


def _check_gradient(grad: Any, like: Any, what: str) -> None:
    """Raise TypeError or ValueError unless a gradient has the backend, device, dtype and shape of its array."""
    same_kind = grad.__class__ is like.__class__ and grad.shape == like.shape and grad.dtype == like.dtype
    if same_kind and (
        isinstance(like, np.ndarray) or not has_several_devices() or grad.data.device_id == like.data.device_id
    ):
        return
    if not is_array(grad) or place_of(grad, "grad") != place_of(like, "data"):
        where = place_of(like, "data")
        given = place_of(grad, "grad") if is_array(grad) else f"a {type(grad).__name__}"
        raise TypeError(f"{what}: the gradient of an array on {where} is given as {given}")
    check_form(grad, like.shape, like.dtype, what)
