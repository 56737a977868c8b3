"""What operators for PyTorch refuse: what is no tensor, tensors on two devices, derivatives that are not computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

_NO_FORWARD_MODE = (
    "derivatives in forward mode (jvp, jacfwd, linearize, dual tensors) are not computed; in reverse mode they are: "
    "`torch.autograd.grad`, `torch.autograd.functional.jacobian`"
)
NO_SECOND_ORDER = "gradients of gradients are not computed"
NO_TRANSFORMS = (
    "PyTorch cannot transform its operators with `torch.func` (grad, vjp, jacrev, hessian); use "
    "`torch.autograd.grad` or `torch.autograd.functional.jacobian`"
)


def device_of(callee: str, arrays: Iterable[tuple[str, Any]], optional: Collection[str]) -> Any:
    """Return the device of the arrays (name, tensor) of a call, of which the ``optional`` may be None.

    Raises TypeError for what is no tensor and for tensors on two devices, and NotImplementedError for tensors with a
    tangent, which PyTorch would drop without a word.
    """
    first: tuple[str, Any] | None = None
    for name, one in arrays:
        if one is None and name in optional:
            continue
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"{callee}: `{name}` is {_named(one)}; a tensor of PyTorch is taken")
        if first is None:
            first = name, one.device
        elif one.device != first[1]:
            raise TypeError(
                f"{callee}: `{first[0]}` is on {first[1]} and `{name}` is on {one.device}; the tensors of a call live "
                "on one device: move one with `.to`"
            )
        # The attribute alone spares a call where, as nearly always, there is no forward mode.
        if getattr(forward_ad, "_current_level", 0) >= 0 and forward_ad.unpack_dual(one).tangent is not None:
            raise NotImplementedError(f"{callee}: {_NO_FORWARD_MODE}")
    return first[1] if first is not None else torch.device("cpu")


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
