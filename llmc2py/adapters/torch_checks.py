"""What operators for PyTorch refuse: what is no tensor, tensors that do not go together, derivatives not computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from llmc2py.adapters.shapes import shape_of
from llmc2py.runtime import OpSpec

_NO_FORWARD_MODE = (
    "derivatives in forward mode (jvp, jacfwd, linearize, dual tensors) are not computed; in reverse mode they are: "
    "`torch.autograd.grad`, `torch.autograd.functional.jacobian`"
)
NO_SECOND_ORDER = "gradients of gradients are not computed"
NO_TRANSFORMS = (
    "PyTorch cannot transform its operators with `torch.func` (grad, vjp, jacrev, hessian); use "
    "`torch.autograd.grad` or `torch.autograd.functional.jacobian`"
)


def device_of(callee: str, arrays: Iterable[tuple[str, Any]], optional: Collection[str]) -> str | None:
    """Return the kind of device of the arrays (name, tensor) of a call, of which the ``optional`` may be None.

    None where one stands for a tensor that a tracer of `torch.fx` will get. Raises TypeError for what is no tensor and
    for tensors on two devices, and NotImplementedError for tensors with a tangent, which PyTorch would drop without a
    word.
    """
    first: tuple[str, Any] | None = None
    for name, one in arrays:
        if one is None and name in optional:
            continue
        if not isinstance(one, torch.Tensor):
            if isinstance(one, torch.fx.Proxy):
                return None
            raise TypeError(f"{callee}: `{name}` is {_named(one)}; a tensor of PyTorch is taken")
        if first is None:
            first = name, one.device
        elif one.device != first[1]:
            raise TypeError(
                f"{callee}: `{first[0]}` is on {first[1]} and `{name}` is on {one.device}; the tensors of a call live "
                "on one device: move one with `.to`"
            )
        # The attribute alone spares a call where, as nearly always, there is no forward mode.
        if getattr(forward_ad, "_current_level", 0) >= 0 and _has_tangent(one):
            raise NotImplementedError(f"{callee}: {_NO_FORWARD_MODE}")
    return str(first[1].type) if first is not None else "cpu"


def _has_tangent(tensor: Any) -> bool:
    try:
        return forward_ad.unpack_dual(tensor).tangent is not None
    except RuntimeError:
        # PyTorch cannot look into tensors of `vmap`.
        return True


def check_forms(
    callee: str,
    spec: OpSpec,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    lead: Sequence[Any],
    sizes: Mapping[str, Any],
    dtype: Any,
) -> None:
    """Check a call by shapes, dtypes and options alone, as a call with data is checked; sizes may be symbols.

    ``given``: the tensors by name, of which ``sizes`` by letter, leading axes and the ``dtype`` of the call were had.
    Raises TypeError and ValueError. What a recipe asks of sizes beside that is seen when it runs.
    """
    if _name(dtype) not in spec.dtypes:
        name = next(name for name, one in given.items() if one is not None and one.dtype == dtype)
        raise TypeError(f"{callee}: `{name}` is {_name(dtype)}; {' or '.join(spec.dtypes)} is taken")
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name in spec.indices:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
                raise TypeError(f"{callee}: `{name}` is {_name(tensor.dtype)}; integers are taken")
        elif _name(tensor.dtype) != (wanted := spec.dtype_of.get(name, _name(dtype))):
            raise TypeError(f"{callee}: `{name}` is {_name(tensor.dtype)}; beside the others it has to be {wanted}")
        shape = shape_of({**spec.inputs, **spec.parameters}[name], lead, sizes)
        if len(tensor.shape) != len(shape) or any(a != b for a, b in zip(tensor.shape, shape, strict=True)):
            raise ValueError(f"{callee}: `{name}` has shape {tuple(tensor.shape)}; beside the others it needs {shape}")
    for name, value in options.items():
        if name in spec.choices and value not in spec.choices[name]:
            raise ValueError(f"{callee}: {name} is {value!r}; it is one of {', '.join(map(repr, spec.choices[name]))}")
        if name in spec.least and value < spec.least[name]:
            raise ValueError(f"{callee}: {name} is {value}; it is at least {spec.least[name]}")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def is_transformed(error: RuntimeError) -> bool:
    """Whether an error says that an operator was called by a transform of ``torch.func``: in words that help nobody."""
    return "setup_context" in str(error)


def _named(value: Any) -> str:
    """Return what a value is, in words."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if value is None:
        return "None"
    if package == "numpy":
        return f"a numpy.{kind.__name__} (`torch.from_numpy` makes a tensor of an array)"
    return f"a {kind.__name__}" if package == "builtins" else f"a {package}.{kind.__name__}"
