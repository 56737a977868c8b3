"""PyTorch operators over generated functions: the same launch plans on tensors, for eager mode and for compilers.

An `Operator` registers two operators of PyTorch for one generated function: the forward pass, which returns what the
backward pass needs as further outputs, and the backward pass. Both are functional and have fake implementations, so
that ``torch.compile`` and ``torch.export`` take them as they are. Tensors are looked at in place; on CUDA, kernels run
on PyTorch's current stream, and all memory is that of PyTorch's allocator.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from llmc2py.adapters.shapes import bind_sizes, shape_of
from llmc2py.adapters.torch_checks import NO_SECOND_ORDER, NO_TRANSFORMS, check_forms, device_of, is_transformed
from llmc2py.adapters.torch_memory import NUMPY_DTYPES, TORCH_DTYPES, Borrowing
from llmc2py.runtime import Context, Function, OpSpec
from llmc2py.runtime.dtypes import PRECISIONS

#: How autocast treats the arrays of an operator: as those of products (its dtype), of normalisations and losses
#: (float32), or of sums (the widest that is given).
Autocast = Literal["lower", "float32", "widest"]
#: Whether, under these options, an array is saved.
Condition = Callable[[Mapping[str, Any]], bool]

_DEVICES = ("cpu", "cuda")
_SCHEMA_TYPES = {"int": "int", "bool": "bool", "float": "float", "str": "str"}
#: What autocast takes to another of them; it leaves float64 alone.
_CAST = (torch.float32, torch.bfloat16, torch.float16)


class Operator:
    """A generated function as an operator of PyTorch, called with tensors and options.

    Parameters
    ----------
    package
        The generated module that has it (its ``__name__``): the operator is ``torch.ops.<package>.<op>``, with
        underscores for dots.
    function, spec
        The generated function and what it takes and gives.
    gradients
        For each differentiable input or parameter the variable that the backward pass returns for it.
    autocast
        How autocast treats it.
    fixed
        Options that are not the caller's, with their values.
    conditions
        For saved arrays that are not always there, when they are.
    aliases
        For such arrays, what stands in their place otherwise (nothing: None).
    """

    def __init__(
        self,
        package: str,
        function: type[Function],
        spec: OpSpec,
        *,
        gradients: Mapping[str, str],
        autocast: Autocast = "widest",
        fixed: Mapping[str, Any] | None = None,
        conditions: Mapping[str, Condition] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.function = function
        self.spec = spec
        self._callee = function.__name__.removesuffix("Function")
        self.gradients = dict(gradients)
        self.autocast = autocast
        self._fixed = dict(fixed or {})
        self._conditions = dict(conditions or {})
        self._aliases = dict(aliases or {})
        self._arrays = (*spec.inputs, *spec.parameters)
        self._options = tuple(name for name in spec.options if name not in self._fixed)
        self._passed_on = {f"d{name}": index for index, name in enumerate(spec.outputs)}
        computed = [name for name in gradients.values() if name not in self._passed_on]
        self._computed = tuple(dict.fromkeys(computed))
        self._saves = tuple(name for name in spec.saves if name not in spec.options)
        self._register(f"{package.rpartition('.')[0].replace('.', '_')}::{spec.name}")

    def __repr__(self) -> str:
        return f"<Operator {self._op} of {self.spec.origin}>"

    def __call__(self, *arguments: Any) -> Any:
        """Return the outputs for tensors and options by position: a tensor or a tuple of them.

        Raises TypeError, ValueError and IndexError as the generated function does, and NotImplementedError in forward
        mode and in transforms of ``torch.func``.
        """
        arrays = arguments[: len(self._arrays)]
        device = device_of(self._callee, zip(self._arrays, arrays, strict=True), self.spec.optional)
        if device in _DEVICES and torch.is_autocast_enabled(device):
            arguments = (*self._cast(arrays), *arguments[len(self._arrays) :])
        try:
            result = self._op(*arguments)
        except RuntimeError as error:
            if is_transformed(error):
                raise NotImplementedError(f"{self._callee}: {NO_TRANSFORMS}") from error
            raise
        count = len(self.spec.outputs)
        if count + len(self.spec.saved) == 1:
            return result
        return result[0] if count == 1 else tuple(result[index] for index in range(count))

    # --- registration

    def _register(self, name: str) -> None:
        arrays = [f"Tensor{'?' if one in self.spec.optional else ''} {one}" for one in self._arrays]
        options = [self._option_schema(one) for one in self._options]
        count = len(self.spec.outputs) + len(self.spec.saved)
        schema = f"({', '.join([*arrays, *options])}) -> {_tensors(count)}"
        forward = _custom_op(name, self._forward, schema)
        forward.register_fake(self._fake_forward)
        self._op = _overload(name)
        if not self.gradients:
            return
        if self._computed:
            incoming = [f"Tensor d{one}" for one in self.spec.outputs]
            saved = [f"Tensor? {one}" for one in self._saves]
            sizes = ["SymInt[] lead", "SymInt[] sizes", "ScalarType dtype"]
            types = [self._option_schema(one, bare=True) for one in self._options]
            schema = f"({', '.join([*incoming, *saved, *sizes, *types])}) -> {_tensors(len(self._computed))}"
            backward = _custom_op(f"{name}_backward", self._backward, schema)
            backward.register_fake(self._fake_backward)
            backward.register_autograd(self._refuse_second_order)
            self._backward_op = _overload(f"{name}_backward")
        forward.register_autograd(self._differentiate, setup_context=self._set_up)

    def _option_schema(self, name: str, *, bare: bool = False) -> str:
        kind = _SCHEMA_TYPES[inspect.signature(self.function.forward).parameters[name].annotation]
        default = self.spec.options[name]
        if bare or default is ...:
            return f"{kind} {name}"
        return f'{kind} {name}="{default}"' if isinstance(default, str) else f"{kind} {name}={default}"

    # --- forward

    def _forward(self, *arguments: Any) -> Any:
        given, options = self._split(arguments)
        spec = self.spec
        with Borrowing(_device_of(given.values())) as borrowing:
            arrays = {name: borrowing.array(tensor) for name, tensor in given.items()}
            context = Context(self.function, [None] * len(arrays))
            result = self.function.forward(context, *arrays.values(), *(options[name] for name in spec.options))
            outputs = result if isinstance(result, tuple) else (result,)
            saved = dict(zip(spec.saves, context.saved, strict=True))
            self._check_saved(arrays, saved)
            own = [saved[name] if self._is_saved(name, options) else None for name in spec.saved]
            found = [borrowing.tensor(array) for array in outputs]
            found += [self._placeholder(given) if array is None else borrowing.tensor(array) for array in own]
        return found[0] if len(found) == 1 else tuple(found)

    def _fake_forward(self, *arguments: Any) -> Any:
        given, options = self._split(arguments)
        lead, sizes = self._sizes(given, options)
        like, spec = self._anchor(given), self.spec
        check_forms(self._callee, spec, given, options, lead, sizes, like.dtype)
        found = []
        for name, dims in spec.outputs.items():
            found.append(_fake(like, shape_of(dims, lead, sizes), spec.dtype_of.get(name)))
        for name, (dims, own) in spec.saved.items():
            is_saved = self._is_saved(name, options)
            found.append(_fake(like, shape_of(dims, lead, sizes), own) if is_saved else self._placeholder(given))
        return found[0] if len(found) == 1 else tuple(found)

    def _check_saved(self, arrays: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        """Raise RuntimeError where the function saves something else under an input's name: it would be lost."""
        for name, array in saved.items():
            if name in arrays and array is not arrays[name] and name not in self.spec.indices:
                raise RuntimeError(f"{self.function.__name__} saves another array as `{name}` than it was given")

    # --- backward

    def _set_up(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        given, options = self._split(inputs)
        found = output if isinstance(output, tuple) else (output,)
        outputs = dict(zip(self.spec.outputs, found, strict=False))
        own = found[len(outputs) :]
        values = given | outputs | dict(zip(self.spec.saved, own, strict=True))
        ctx.save_for_backward(*(self._saved_value(name, values, options) for name in self._saves))
        ctx.options = options
        ctx.lead, sizes = self._sizes(given, options)
        ctx.sizes = [sizes[letter] for letter in self._letter_names]
        ctx.dtype = self._anchor(given).dtype
        ctx.missing = {name for name, tensor in given.items() if tensor is None}
        ctx.mark_non_differentiable(*own)
        ctx.set_materialize_grads(False)
        ctx.output_forms = [(one.shape, one.dtype, one.device) for one in outputs.values()]

    def _saved_value(self, name: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        if name in self.spec.saved and not self._is_saved(name, options):
            alias = self._aliases.get(name)
            return None if alias is None else values[alias]
        return values[name]

    def _differentiate(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled() and self._hides_inputs(ctx):
            self._refuse_second_order(ctx)
        incoming = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.output_forms, strict=False)
        ]
        computed: dict[str, Any] = {}
        if self._computed:
            options = [ctx.options[name] for name in self._options]
            results = self._backward_op(*incoming, *ctx.saved_tensors, list(ctx.lead), ctx.sizes, ctx.dtype, *options)
            computed = dict(zip(self._computed, results if isinstance(results, tuple) else (results,), strict=True))
        passed_on = {name: incoming[index] for name, index in self._passed_on.items()}
        found = {**passed_on, **computed}
        gradients = [
            found[self.gradients[name]] if name in self.gradients and name not in ctx.missing else None
            for name in self._arrays
        ]
        return (*gradients, *(None for _ in self._options))

    def _hides_inputs(self, ctx: Any) -> bool:
        """Whether the gradient depends on an input that PyTorch does not see in what is saved.

        Of such a gradient of a gradient PyTorch would make zeros, where for others the backward operator refuses.
        """
        own = [one for one in self.spec.saved if self._is_saved(one, ctx.options)]
        if not own or any(name in self.spec.outputs for name in self._saves):
            return False
        wanted = {name for name, needed in zip(self._arrays, ctx.needs_input_grad, strict=False) if needed}
        return not wanted <= set(self._saves)

    def _refuse_second_order(self, ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(f"{self._callee}: {NO_SECOND_ORDER}")

    def _backward(self, *arguments: Any) -> Any:
        spec, count = self.spec, len(self.spec.outputs)
        grads, saved = arguments[:count], dict(zip(self._saves, arguments[count:], strict=False))
        lead, sizes, dtype, *rest = arguments[count + len(saved) :]
        options = dict(zip(self._options, rest, strict=True)) | self._fixed
        with Borrowing(grads[0].device) as borrowing:
            # The pass may write over what it returns as a gradient, and tensors that are saved stay as they are.
            arrays = {
                name: borrowing.array(_index_of(tensor.clone() if name in self._computed else tensor, name, spec))
                for name, tensor in saved.items()
            }
            context = Context(self.function, [None] * len(self._arrays))
            context.saved = tuple(options[name] if name in options else arrays[name] for name in spec.saves)
            values = {**self._letters(sizes), **options, "lead": tuple(lead), "N": math.prod(lead)}
            values["dtype"] = NUMPY_DTYPES[dtype]
            for name, value in values.items():
                setattr(context, name, value)
            results = self.function.backward(context, *(borrowing.array(grad) for grad in grads))
            results = dict(zip(self._arrays, results if isinstance(results, tuple) else (results,), strict=False))
            found = [results[self._first(name)] for name in self._computed]
            tensors = [
                torch.empty(0, dtype=dtype, device=grads[0].device) if array is None else borrowing.tensor(array)
                for array in found
            ]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _fake_backward(self, *arguments: Any) -> Any:
        count = len(self.spec.outputs) + len(self._saves)
        saved = dict(zip(self._saves, arguments[len(self.spec.outputs) :], strict=False))
        lead, sizes, dtype = arguments[count : count + 3]
        options = dict(zip(self._options, arguments[count + 3 :], strict=True)) | self._fixed
        letters = self._letters(sizes) | options
        dims = {**self.spec.inputs, **self.spec.parameters}
        found = []
        for name in self._computed:
            first = self._first(name)
            is_missing = first in self.spec.optional and first in saved and saved[first] is None
            shape = (0,) if is_missing else shape_of(dims[first], lead, letters)
            found.append(arguments[0].new_empty(shape, dtype=dtype))
        return found[0] if len(found) == 1 else tuple(found)

    # --- names and sizes

    def _split(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return tensors and options by name."""
        count = len(self._arrays)
        given = dict(zip(self._arrays, arguments[:count], strict=True))
        # PyTorch's dispatcher leaves out what is equal to a default at the end.
        options = dict(zip(self._options, arguments[count:], strict=False))
        return given, {**self.spec.options, **self._fixed, **options}

    def _sizes(self, given: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        shapes = {name: None if tensor is None else tensor.shape for name, tensor in given.items()}
        lead, sizes = bind_sizes(self.spec, shapes, options)
        return lead, sizes | dict(options)

    def _letters(self, sizes: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._letter_names, sizes, strict=True))

    @functools.cached_property
    def _letter_names(self) -> tuple[str, ...]:
        shapes = {name: (1,) * len(dims) for name, dims in (*self.spec.inputs.items(), *self.spec.parameters.items())}
        return tuple(bind_sizes(self.spec, shapes, dict.fromkeys(self.spec.options))[1])

    def _anchor(self, given: Mapping[str, Any]) -> Any:
        """Return the tensor that has the dtype of the call: the first that has none of its own."""
        own = (*self.spec.indices, *self.spec.dtype_of)
        return next(given[name] for name in self._arrays if name not in own and given[name] is not None)

    def _first(self, gradient: str) -> str:
        return next(name for name, variable in self.gradients.items() if variable == gradient)

    def _is_saved(self, name: str, options: Mapping[str, Any]) -> bool:
        condition = self._conditions.get(name)
        return condition is None or condition(options)

    def _placeholder(self, given: Mapping[str, Any]) -> Any:
        return self._anchor(given).new_empty(0)

    # --- autocast

    def _cast(self, arrays: Sequence[Any]) -> list[Any]:
        floating = [one for one in arrays if one is not None and one.dtype in _CAST]
        if not floating:
            return list(arrays)
        if self.autocast == "lower":
            wanted = torch.get_autocast_dtype(floating[0].device.type)
        elif self.autocast == "float32":
            wanted = torch.float32
        else:
            wanted = functools.reduce(torch.promote_types, (one.dtype for one in floating))
        return [one.to(wanted) if one is not None and one.dtype in _CAST else one for one in arrays]


class Module(torch.nn.Module):  # type: ignore[misc]
    """Base of generated modules: its representation shows the shapes of its parameters and its options."""

    def extra_repr(self) -> str:
        """Return shapes and options."""
        shown = [f"{name}={tuple(one.shape)}" for name, one in self.named_parameters(recurse=False)]
        options = [(name, value) for name, value in vars(self).items() if name[0] != "_" and name != "training"]
        shown += [f"{name}={value!r}" for name, value in options if not isinstance(value, torch.Tensor)]
        return ", ".join(shown)


def parameter(init: str, shape: Sequence[int], dtype: Any = None, device: Any = None) -> Any:
    """Return an ``nn.Parameter`` that starts as ``ones``, ``zeros`` or ``normal`` (GPT-2's deviation of 0.02).

    Raises TypeError for a dtype that layers are not computed in.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in {TORCH_DTYPES[one] for one in PRECISIONS.values()}:
        raise TypeError(f"{dtype} is no precision of the layers; it is one of {', '.join(PRECISIONS)}")
    if init == "normal":
        values = torch.empty(tuple(shape), dtype=dtype, device=device).normal_(std=0.02)
    else:
        values = torch.full(tuple(shape), {"ones": 1, "zeros": 0}[init], dtype=dtype, device=device)
    return torch.nn.Parameter(values)


def _custom_op(name: str, function: Callable[..., Any], schema: str) -> Any:
    return torch.library.custom_op(name, function, mutates_args=(), device_types=_DEVICES, schema=schema)


def _overload(name: str) -> Any:
    namespace, op = name.split("::")
    return getattr(getattr(torch.ops, namespace), op).default


def _tensors(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join('Tensor' for _ in range(count))})"


def _fake(like: Any, shape: Sequence[Any], dtype: str | None) -> Any:
    return like.new_empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype))


def _device_of(tensors: Any) -> Any:
    return next(tensor for tensor in tensors if tensor is not None).device


def _index_of(tensor: Any, name: str, spec: OpSpec) -> Any:
    """Return indices as kernels take them; any other tensor as it is."""
    return tensor.to(torch.int32) if tensor is not None and name in spec.indices else tensor
