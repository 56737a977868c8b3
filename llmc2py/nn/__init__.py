"""Modules: layers that are made of generated layers, with named state and initial values.

A `Module` is a runtime layer that can also be saved and loaded; everything else (``parameters()``, ``zero_grad()``,
``to(...)``) it has from `llmc2py.runtime.Layer`. Generated layers are put into modules as they are.
"""

from llmc2py.nn.init import GPT2_STD, fill, normal, residual_std
from llmc2py.nn.module import Module, ModuleList
from llmc2py.nn.state import load_state_dict, state_dict
from llmc2py.runtime import Layer, Parameter, Tensor, no_grad

__all__ = [
    "GPT2_STD",
    "Layer",
    "Module",
    "ModuleList",
    "Parameter",
    "Tensor",
    "fill",
    "load_state_dict",
    "no_grad",
    "normal",
    "residual_std",
    "state_dict",
]
