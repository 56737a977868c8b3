"""What ``llmc2py doctor`` reports: the tools of this machine, whether they fit together, and what to install."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from llmc2py.runtime.cuda import toolkit
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.host.cache import cache_root
from llmc2py.runtime.host.compiler import find_compiler

Status = Literal["ok", "missing", "warning"]

_CPU_ONLY = "without it kernels run on the CPU only"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for; ``hint`` says what to do where the status is not ``ok``."""

    name: str
    value: str
    status: Status = "ok"
    hint: str = ""


def inspect() -> list[Finding]:
    """Look at everything that llmc2py uses. Never raises: a probe that fails becomes a finding of its own."""
    probes: dict[str, Callable[[], list[Finding]]] = {
        "Python": _python,
        "NumPy": lambda: [_package("NumPy", "numpy")],
        "ml_dtypes": lambda: [_package("ml_dtypes", "ml_dtypes")],
        "CuPy": _cupy,
        "NVRTC": _nvrtc_and_headers,
        "CUDA devices": _devices,
        "nvmath-python": _nvmath,
        "C++ compiler": _compiler,
        "cache folder": _cache,
        "PyTorch": _torch,
    }
    return [finding for name, probe in probes.items() for finding in _guarded(name, probe)]


def _guarded(name: str, probe: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return probe()
    except ToolMissingError as error:
        return [Finding(name, "not usable", "missing", str(error))]
    except Exception as error:
        return [Finding(name, "could not be looked at", "warning", f"{type(error).__name__}: {error}")]


def _python() -> list[Finding]:
    return [Finding("Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})")]


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, distribution: str) -> Finding:
    version = _installed(distribution)
    if version is None:
        return Finding(name, "not installed", "missing", f"pip install {distribution}")
    return Finding(name, version)


def _cupy() -> list[Finding]:
    found = {name: _installed(name) for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy")}
    installed = [f"{version} ({name})" for name, version in found.items() if version]
    if not installed:
        return [Finding("CuPy", "not installed", "missing", f"{toolkit.INSTALL_HINT}; {_CPU_ONLY}")]
    if len(installed) > 1:
        return [
            Finding("CuPy", ", ".join(installed), "warning", "uninstall all of them but one: they overwrite each other")
        ]
    importlib.import_module("cupy")
    return [Finding("CuPy", installed[0])]


def _nvrtc_and_headers() -> list[Finding]:
    nvrtc = toolkit.find_nvrtc()
    findings = [Finding("NVRTC", f"{toolkit.version_text(nvrtc.version)} ({nvrtc.path or 'path unknown'})")]
    try:
        tools = toolkit.find_toolkit()
    except toolkit.ToolkitMismatchError as error:
        return [*findings, Finding("CUDA headers", "do not fit NVRTC", "warning", str(error))]
    if tools.headers is None:
        hint = f"kernels that include cuda_bf16.h or cooperative_groups.h do not compile; {toolkit.INSTALL_HINT}"
        return [*findings, Finding("CUDA headers", "not found", "missing", hint)]
    text = f"{toolkit.version_text(tools.headers.version)} ({tools.headers.path})"
    findings.append(Finding("CUDA headers", f"{text}, fit NVRTC {toolkit.version_text(nvrtc.version)}"))
    if tools.cccl:
        return [*findings, Finding("CCCL headers", f"{toolkit.cccl_version(tools)} ({tools.cccl[0]})")]
    hint = "kernels that include <cub/...> or <cuda/std/...> do not compile: pip install nvidia-cuda-cccl"
    return [*findings, Finding("CCCL headers", "not found", "missing", hint)]


def _devices() -> list[Finding]:
    try:
        runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    except ImportError:
        return [Finding("CUDA devices", "not looked for without CuPy", "missing", toolkit.INSTALL_HINT)]
    version = runtime.driverGetVersion()
    if version == 0:
        hint = f"install NVIDIA's driver if this machine has an NVIDIA GPU; {_CPU_ONLY}"
        return [Finding("CUDA driver", "none", "missing", hint)]
    driver = Finding("CUDA driver", f"supports CUDA {version // 1000}.{version % 1000 // 10}")
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return [driver, Finding("CUDA devices", "none usable", "missing", str(error))]
    return [driver, *(_device(number, runtime.getDeviceProperties(number)) for number in range(count))]


def _device(number: int, raw: dict[str, Any]) -> Finding:
    name = raw["name"].decode() if isinstance(raw["name"], bytes) else raw["name"]
    memory = raw["totalGlobalMem"] / 2**30
    return Finding(f"GPU {number}", f"{name}, compute capability {raw['major']}.{raw['minor']}, {memory:.1f} GiB")


def _compiler() -> list[Finding]:
    compiler = find_compiler()
    return [Finding("C++ compiler", f"{compiler.version} ({' '.join(compiler.command)})")]


def _cache() -> list[Finding]:
    folder = cache_root()
    files = [entry for entry in folder.rglob("*") if entry.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    value = f"{folder} ({len(files)} files, {size:.1f} MiB)"
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return [
            Finding("cache folder", value, "warning", "cannot be written: set LLMC2PY_CACHE_DIR to a writable folder")
        ]
    return [Finding("cache folder", value)]


def _nvmath() -> list[Finding]:
    version = _installed("nvmath-python")
    if version is None:
        hint = 'pip install "llmc2py[gemm]": matrix products with bias or GELU are slower on CUDA without it'
        return [Finding("nvmath-python", "not installed (optional)", "missing", hint)]
    return [Finding("nvmath-python", version)]


def _torch() -> list[Finding]:
    version = _installed("torch")
    if version is None:
        return [Finding("PyTorch", "not installed (optional)", "missing", 'pip install "llmc2py[torch]"')]
    return [Finding("PyTorch", version)]
