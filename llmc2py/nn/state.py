"""The parameters of a layer by name, out of it and back into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmc2py.nn.init import assign
from llmc2py.runtime import Layer, Parameter, Tensor
from llmc2py.runtime.autograd import FLOATING


def state_dict(layer: Layer) -> dict[str, np.ndarray[Any, Any]]:
    """Return copies of all parameters, also those of inner layers, as NumPy arrays by their dotted names.

    A parameter that several layers share appears once, under the first name. dtypes are those of the parameters.
    """
    return {name: np.array(parameter.numpy()) for name, parameter in layer.named_parameters()}


def load_state_dict(layer: Layer, state: Mapping[str, Any]) -> None:
    """Copy arrays (or tensors) into the parameters of their names; the parameters keep their places and dtypes.

    Raises ValueError that names every parameter without an array, every array without a parameter and every array of
    another shape, and TypeError for an array that is not floating point. Nothing is changed then.
    """
    parameters = dict(layer.named_parameters())
    problems = [f"missing: {name}" for name in parameters if name not in state]
    problems += [f"unexpected: {name}" for name in state if name not in parameters]
    values = {name: _array(name, state[name]) for name in parameters if name in state}
    problems += [
        f"{name} has shape {values[name].shape}, the parameter has {parameter.shape}"
        for name, parameter in parameters.items()
        if name in values and values[name].shape != parameter.shape
    ]
    if problems:
        raise ValueError(f"the state does not fit {type(layer).__name__}: " + "; ".join(problems))
    for name, parameter in parameters.items():
        _copy(parameter, values[name])


def _array(name: str, value: Any) -> Any:
    array = value.data if isinstance(value, Tensor) else value
    if getattr(array, "dtype", None) not in FLOATING:
        raise TypeError(f"{name}: a floating point array is taken, not {getattr(array, 'dtype', type(value).__name__)}")
    return array


def _copy(parameter: Parameter, array: Any) -> None:
    if isinstance(array, np.ndarray):
        assign(parameter, array)
    elif isinstance(parameter.data, np.ndarray):
        assign(parameter, array.get())
    else:
        parameter.data[...] = array
