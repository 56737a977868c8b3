"""The CUDA backend: kernels compiled with NVRTC, run through CuPy. Importing it touches neither CuPy nor CUDA.

The module fulfils ``runtime.backends.Backend``. ``compile_cubin`` needs NVRTC but no GPU and no driver.
"""

from llmc2py.runtime.cuda.device import current_stream, empty, is_capturing, kernel, memcpy, memset, properties
from llmc2py.runtime.cuda.nvrtc import CompiledCubin, compile_cubin
from llmc2py.runtime.cuda.toolkit import Toolkit, ToolkitMismatchError, find_toolkit

name = "cuda"

__all__ = [
    "CompiledCubin",
    "Toolkit",
    "ToolkitMismatchError",
    "compile_cubin",
    "current_stream",
    "empty",
    "find_toolkit",
    "is_capturing",
    "kernel",
    "memcpy",
    "memset",
    "name",
    "properties",
]
