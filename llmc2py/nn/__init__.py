"""Modules: layers that are made of generated layers, with named state and initial values.

A `Module` is a runtime layer as the generated ones are, which are put into it as they are: ``parameters()``,
``zero_grad()``, ``to(...)``, ``state_dict()`` and ``load_state_dict(...)`` are those of `llmc2py.runtime.Layer`.
"""

from llmc2py.nn.init import GPT2_STD, fill, normal, residual_std
from llmc2py.nn.module import Module, ModuleList
from llmc2py.runtime import Layer, Parameter, Tensor, no_grad
from llmc2py.runtime.state import NotLoaded, load_state_dict, state_dict

__all__ = [
    "GPT2_STD",
    "Layer",
    "Module",
    "ModuleList",
    "NotLoaded",
    "Parameter",
    "Tensor",
    "fill",
    "load_state_dict",
    "no_grad",
    "normal",
    "residual_std",
    "state_dict",
]
