"""Finding and loading cuDNN and its frontend. Importing this module loads neither."""

from __future__ import annotations

import ctypes
import functools
import importlib
import pathlib
import sys
import sysconfig
from typing import Any

from llmc2py.runtime.errors import ToolMissingError

#: The first cuDNN whose backward pass takes every length without copying from the host, which no capture could repeat.
_OLDEST = (9, 16)
_INSTALL_HINT = 'pip install "llmc2py[cudnn]" (or "llmc2py[cudnn12]" for a driver older than CUDA 13)'


@functools.cache
def frontend_module() -> Any:
    """Return the module ``cudnn``. Raises ToolMissingError where it, the library or what that needs is not there."""
    try:
        load_libraries()
        frontend = importlib.import_module("cudnn")
        number = int(frontend.backend_version())
    except (ImportError, OSError, RuntimeError) as error:
        raise ToolMissingError(f"cuDNN cannot be loaded ({error}); {_INSTALL_HINT}") from error
    version = number // 10000, number // 100 % 100
    if version < _OLDEST:
        found, oldest = (".".join(map(str, one)) for one in (version, _OLDEST))
        raise ToolMissingError(f"cuDNN is {found}, and {oldest} or newer is needed; {_INSTALL_HINT}")
    return frontend


def load_libraries() -> None:
    """Load the libraries that cuDNN looks for by their bare names; it ends the process where cuBLASLt is not found."""
    pathfinder = importlib.import_module("cuda.pathfinder")
    for name in ("nvrtc", "cublasLt"):
        pathfinder.load_nvidia_dynamic_lib(name)
    if sys.platform == "linux":
        load_cudnn(sysconfig.get_path("purelib"), sys.path)


def load_cudnn(home: str, python_path: list[str]) -> None:
    """Load ``libcudnn`` where the frontend does not look: it knows the interpreter's own packages and the system."""
    name = "libcudnn.so.9"
    in_packages = pathlib.Path("nvidia", "cudnn", "lib", name)
    if (home / in_packages).is_file():
        return
    for entry in python_path:
        if (library := pathlib.Path(entry or ".") / in_packages).is_file():
            # Once loaded, it is what the system finds by its name.
            ctypes.CDLL(str(library.resolve()))
            return
    ctypes.CDLL(name)
