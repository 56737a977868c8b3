"""What decides the outcome of checks beside the package that is checked: our own code, the libraries, the machine."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import llmc2py
from llmc2py.caching import code_key, content_key
from llmc2py.runtime.arrays import backend_named
from llmc2py.runtime.cuda import toolkit
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.host.compiler import Compiler, find_c_compiler, find_compiler

_HERE = pathlib.Path(llmc2py.__file__).parent
#: Installed libraries, by how their names begin, and settings of theirs and ours that may change numbers.
_LIBRARIES = ("numpy-", "ml_dtypes-", "cupy", "nvidia_", "nvmath", "cuda_")
_SETTINGS = ("LLMC2PY_", "CUBLAS", "CUDA_", "CUDNN_", "CUPY_", "MKL_", "NVIDIA_", "OMP_", "OPENBLAS_")
_NO_MATTER = frozenset({"LLMC2PY_CACHE_DIR", "LLMC2PY_DEBUG", "LLMC2PY_JOBS"})
_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
_PROCESSORS = pathlib.Path("/proc/cpuinfo")


def code_files() -> list[pathlib.Path]:
    """Return the files of ours that checks run: the runtime, its headers and sources, and the checks."""
    folders = (_HERE / "runtime", _HERE / "verify")
    found = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return sorted([_HERE / "caching.py", *(path for path in found if path.is_file())])


def machine_key(backend: str) -> str:
    """Return a digest of all that decides what checks give on ``cpu`` or ``cuda``, but for the package."""
    parts = [backend, *_python(), *(_cuda() if backend == "cuda" else ())]
    return content_key(code_key(code_files()), *parts)


def _python() -> Iterator[str]:
    """Yield what computes the references, and what compiles them and the kernels of the CPU backend."""
    yield from (platform.machine(), *platform.libc_ver(), _processor(), str(_cores()))
    yield from sorted(_installed())
    for name, value in sorted(os.environ.items()):
        if name.startswith(_SETTINGS) and name not in _NO_MATTER:
            yield f"{name}={value}"
    yield _told(find_compiler)
    yield _told(find_c_compiler)


def _cuda() -> Iterator[str]:
    """Yield what compiles and runs kernels on the current device."""
    runtime: Any = importlib.import_module("cupy_backends.cuda.api.runtime")
    yield repr(backend_named("cuda").properties(runtime.getDevice()))
    yield f"{runtime.driverGetVersion()} {runtime.runtimeGetVersion()}"
    with contextlib.suppress(OSError):
        yield _DRIVER.read_text(encoding="utf-8", errors="replace")
    tools = toolkit.find_toolkit()
    yield f"{tools} {toolkit.cccl_version(tools)}"


def _installed() -> Iterator[str]:
    """Yield names with versions, from the names of folders: importlib.metadata would read every package."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.endswith(".dist-info") and name.lower().startswith(_LIBRARIES):
                    yield name


def _processor() -> str:
    """Return the model of the processor: libraries choose their code by what it can do."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _told(find: Callable[[], Compiler]) -> str:
    try:
        return str(find())
    except ToolMissingError as error:
        return str(error)
