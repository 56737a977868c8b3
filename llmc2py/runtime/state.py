"""The parameters of a layer by name, out of it and back into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llmc2py.runtime.arrays import is_array, moved, place_of
from llmc2py.runtime.autograd import FLOATING, Tensor
from llmc2py.runtime.dtypes import PRECISIONS, bfloat16
from llmc2py.runtime.interop import as_array

if TYPE_CHECKING:
    from llmc2py.runtime.layer import Layer, Parameter

#: What NumPy's file format makes of bfloat16, which it does not know.
_STORED_BFLOAT16 = np.dtype("V2")


class NotLoaded(NamedTuple):
    """What `load_state_dict` left out.

    Attributes
    ----------
    missing
        Names of parameters that the state has no array for.
    unexpected
        Names in the state that no parameter has.
    """

    missing: list[str]
    unexpected: list[str]


def state_dict(layer: Layer) -> dict[str, np.ndarray[Any, Any]]:
    """Return copies of all parameters, also those of inner layers, as NumPy arrays by their dotted names.

    A parameter that several layers share appears once, under the first name. dtypes are those of the parameters. Fit
    for ``numpy.savez(file, **state)`` and ``load_state_dict(numpy.load(file))``.
    """
    return {name: np.array(parameter.numpy()) for name, parameter in layer.named_parameters()}


def load_state_dict(layer: Layer, state: Mapping[str, Any], strict: bool = True) -> NotLoaded:
    """Copy arrays (or tensors) into the parameters of their names, which keep their places and, from now on, dtypes.

    A parameter whose dtype is open still (see `Parameter`) takes that of its array first, where this is a precision.
    With ``strict=False``, parameters without an array and arrays without a parameter are left out; what is returned
    says which.

    Raises ValueError that names every parameter without an array, every array without a parameter and every array of
    another shape, and TypeError for an array that is not floating point. Nothing is changed then.
    """
    parameters = dict(layer.named_parameters())
    left_out = NotLoaded(
        [name for name in parameters if name not in state], [name for name in state if name not in parameters]
    )
    values = {name: _array(name, state[name]) for name in parameters if name in state}
    problems = [
        f"{name} has shape {array.shape}, the parameter has {parameters[name].shape}"
        for name, array in values.items()
        if array.shape != parameters[name].shape
    ]
    if strict:
        absent = [f"missing: {name}" for name in left_out.missing]
        problems = [*absent, *(f"unexpected: {name}" for name in left_out.unexpected), *problems]
    if problems:
        raise ValueError(f"the state does not fit {type(layer).__name__}: " + "; ".join(problems))
    for name, array in values.items():
        _load(parameters[name], array)
    return left_out


def write_values(parameter: Parameter, values: Any) -> None:
    """Write an array of either backend into that of a parameter, in its dtype."""
    data = parameter.data
    if isinstance(data, np.ndarray):
        data[...] = values if isinstance(values, np.ndarray) else values.get()
    elif isinstance(values, np.ndarray):
        data.set(values.astype(data.dtype, copy=False))
    else:
        data[...] = values


def _load(parameter: Parameter, array: Any) -> None:
    if parameter.is_open and array.dtype != parameter.dtype and array.dtype in PRECISIONS.values():
        parameter.data = moved(parameter.data, place_of(parameter.data, "parameter"), array.dtype)
    write_values(parameter, array)
    parameter.keep_dtype()


def _array(name: str, value: Any) -> Any:
    array = value.data if isinstance(value, Tensor) else as_array(value, name, "load_state_dict")
    if is_array(array) and array.dtype == _STORED_BFLOAT16:
        array = array.view(bfloat16)
    if not is_array(array) or array.dtype not in FLOATING:
        given = array.dtype if is_array(array) else type(value).__name__
        raise TypeError(f"{name}: a floating point array is taken, not {given}")
    return array
