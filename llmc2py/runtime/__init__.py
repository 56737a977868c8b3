"""What generated code imports: arrays, kernels, launch plans and autograd over two backends (CUDA and the CPU)."""

from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.autograd import Context, Function, Tensor, no_grad
from llmc2py.runtime.csemantics import c_bool, c_cast, c_float, c_int, ceil_div, idiv, imod, wrap
from llmc2py.runtime.errors import CompileError, LaunchError, ToolMissingError
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import Launcher, launcher
from llmc2py.runtime.layer import Layer, OpSpec, Parameter
from llmc2py.runtime.padding import elementwise
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Launch, Memcpy, Memset, Plan, Pointer
from llmc2py.runtime.source import KernelSource

__all__ = [
    "CompileError",
    "Context",
    "Function",
    "Kernel",
    "KernelSource",
    "Launch",
    "LaunchError",
    "Launcher",
    "Layer",
    "Memcpy",
    "Memset",
    "OpSpec",
    "Param",
    "Parameter",
    "Plan",
    "Pointer",
    "TemplateParam",
    "Tensor",
    "ToolMissingError",
    "array_module",
    "c_bool",
    "c_cast",
    "c_float",
    "c_int",
    "ceil_div",
    "elementwise",
    "idiv",
    "imod",
    "launcher",
    "no_grad",
    "wrap",
]
