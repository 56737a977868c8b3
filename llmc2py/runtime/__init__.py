"""What generated code imports: arrays, kernels, launch plans and autograd over two backends (CUDA and the CPU)."""

from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.autograd import Context, Function, Tensor, no_grad
from llmc2py.runtime.csemantics import c_bool, c_cast, c_float, c_int, ceil_div, idiv, imod, wrap
from llmc2py.runtime.cublaslt import LtMatmulDesc, LtMatrixLayout, lt_matmul
from llmc2py.runtime.errors import CompileError, LaunchError, PrecisionError, ToolMissingError
from llmc2py.runtime.gemm import Gemm, gemm_ex, gemm_strided_batched_ex, sgemm, sgemm_strided_batched
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import Launcher, launcher
from llmc2py.runtime.layer import Layer, OpSpec, Parameter
from llmc2py.runtime.made import check_made
from llmc2py.runtime.padding import elementwise
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Launch, Memcpy, Memset, Plan, Pointer
from llmc2py.runtime.random import manual_seed, next_seed, normal
from llmc2py.runtime.source import KernelSource

__all__ = [
    "CompileError",
    "Context",
    "Function",
    "Gemm",
    "Kernel",
    "KernelSource",
    "Launch",
    "LaunchError",
    "Launcher",
    "Layer",
    "LtMatmulDesc",
    "LtMatrixLayout",
    "Memcpy",
    "Memset",
    "OpSpec",
    "Param",
    "Parameter",
    "Plan",
    "Pointer",
    "PrecisionError",
    "TemplateParam",
    "Tensor",
    "ToolMissingError",
    "array_module",
    "c_bool",
    "c_cast",
    "c_float",
    "c_int",
    "ceil_div",
    "check_made",
    "elementwise",
    "gemm_ex",
    "gemm_strided_batched_ex",
    "idiv",
    "imod",
    "launcher",
    "lt_matmul",
    "manual_seed",
    "next_seed",
    "no_grad",
    "normal",
    "sgemm",
    "sgemm_strided_batched",
    "wrap",
]
