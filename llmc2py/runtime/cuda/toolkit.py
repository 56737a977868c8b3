"""Which NVRTC there is, which CUDA headers, and whether the two belong together."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llmc2py.runtime.errors import ToolMissingError

Version = tuple[int, int]

INSTALL_HINT = 'pip install "llmc2py[cuda13]" (or "llmc2py[cuda12]" for a driver older than CUDA 13)'


class ToolkitMismatchError(ToolMissingError):
    """The CUDA headers that were found do not fit the NVRTC library that was found."""


@dataclass(frozen=True)
class Nvrtc:
    """The NVRTC library that CuPy loads; ``path`` is None where the system does not say."""

    version: Version
    path: pathlib.Path | None


@dataclass(frozen=True)
class Headers:
    """A folder that holds ``cuda_fp16.h``, and the CUDA version that its ``cuda_runtime_api.h`` states."""

    version: Version
    path: pathlib.Path


@dataclass(frozen=True)
class Toolkit:
    """An NVRTC with headers that fit it; ``headers`` is None where there are none: float kernels still compile."""

    nvrtc: Nvrtc
    headers: Headers | None
    cccl: tuple[pathlib.Path, ...]

    @property
    def include_folders(self) -> tuple[pathlib.Path, ...]:
        """The folders to search for system headers, in order."""
        return (*((self.headers.path,) if self.headers else ()), *self.cccl)


def version_text(version: Version) -> str:
    """Return ``13.0`` for ``(13, 0)``."""
    return f"{version[0]}.{version[1]}"


def nvrtc_library() -> Any:
    """Return CuPy's binding of NVRTC, with the library loaded.

    Raises ToolMissingError where CuPy or the NVRTC library is not installed.
    """
    try:
        binding = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        binding.getVersion()
    except ImportError as error:
        raise ToolMissingError(f"CuPy cannot be imported ({error}); {INSTALL_HINT}") from error
    except Exception as error:
        raise ToolMissingError(f"the NVRTC library cannot be loaded ({error}); {INSTALL_HINT}") from error
    return binding


def find_nvrtc() -> Nvrtc:
    """Return version and path of the NVRTC that compiles kernels. Raises ToolMissingError."""
    major, minor = nvrtc_library().getVersion()
    return Nvrtc((major, minor), _loaded_nvrtc_path(major))


def _loaded_nvrtc_path(major: int) -> pathlib.Path | None:
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists():
        return None
    pattern = re.compile(rf"/\S*/libnvrtc\.so\.{major}\S*$")
    matches = (pattern.search(line) for line in maps.read_text().splitlines())
    return next((pathlib.Path(match.group()) for match in matches if match), None)


def header_version(include: pathlib.Path) -> Version | None:
    """Return the CUDA version of an include folder, or None where it holds no CUDA headers."""
    if not (include / "cuda_fp16.h").is_file():
        return None
    for name, macro in (("cuda_runtime_api.h", "CUDART_VERSION"), ("cuda.h", "CUDA_VERSION")):
        file = include / name
        if file.is_file():
            match = re.search(rf"#define\s+{macro}\s+(\d+)", file.read_text(encoding="utf-8", errors="replace"))
            if match:
                number = int(match.group(1))
                return number // 1000, number % 1000 // 10
    return None


def candidate_folders(nvrtc: Nvrtc, environ: dict[str, str], python_path: Iterable[str]) -> Iterator[pathlib.Path]:
    """Yield the include folders to look at: beside NVRTC, pip packages, CUDA_PATH, conda, the system's CUDA."""
    if nvrtc.path is not None:
        root = nvrtc.path.resolve().parent.parent
        yield root / "include"
    for entry in python_path:
        packages = pathlib.Path(entry or ".") / "nvidia"
        yield packages / f"cu{nvrtc.version[0]}" / "include"
        yield packages / "cuda_runtime" / "include"
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if environ.get(variable):
            yield pathlib.Path(environ[variable]) / "include"
    if environ.get("CONDA_PREFIX"):
        yield from sorted(pathlib.Path(environ["CONDA_PREFIX"]).glob("targets/*/include"))
    yield pathlib.Path(f"/usr/local/cuda-{version_text(nvrtc.version)}/include")
    yield pathlib.Path("/usr/local/cuda/include")


def choose_headers(nvrtc: Nvrtc, folders: Iterable[pathlib.Path]) -> Headers | None:
    """Return the headers of NVRTC's own version, else the first older ones of its major version, else None.

    Raises ToolkitMismatchError where headers were found and none of them fits.
    """
    found = [Headers(version, folder) for folder in folders if (version := header_version(folder)) is not None]
    exact = [headers for headers in found if headers.version == nvrtc.version]
    usable = [h for h in found if h.version[0] == nvrtc.version[0] and h.version <= nvrtc.version]
    if exact or usable:
        return (exact or usable)[0]
    if found:
        unfit = ", ".join(f"{version_text(headers.version)} in {headers.path}" for headers in found)
        wanted = version_text(nvrtc.version)
        raise ToolkitMismatchError(
            f"NVRTC is of CUDA {wanted} ({nvrtc.path or 'path unknown'}), the CUDA headers are of {unfit}. "
            f"Kernels need headers of CUDA {nvrtc.version[0]}, not newer than NVRTC: install "
            f"nvidia-cuda-runtime of CUDA {wanted}, or set CUDA_PATH to a toolkit of that version"
        )
    return None


def find_cccl(headers: Headers | None) -> tuple[pathlib.Path, ...]:
    """Return the folders of ``<cuda/std/...>`` and ``<cub/...>``: the toolkit's, else those that CuPy brings."""
    if headers is not None:
        for folder in (headers.path / "cccl", headers.path):
            if (folder / "cuda" / "std").is_dir():
                return (folder,)
    for entry in sys.path:
        bundled = pathlib.Path(entry or ".") / "cupy" / "_core" / "include" / "cupy" / "_cccl"
        if bundled.is_dir():
            return tuple(bundled / part for part in ("libcudacxx", "cub", "thrust"))
    return ()


@functools.cache
def find_toolkit() -> Toolkit:
    """Return the NVRTC and headers that compile kernels in this process; found once.

    Raises ToolMissingError without CuPy or NVRTC, and ToolkitMismatchError where the headers do not fit.
    """
    nvrtc = find_nvrtc()
    headers = choose_headers(nvrtc, candidate_folders(nvrtc, dict(os.environ), sys.path))
    return Toolkit(nvrtc, headers, find_cccl(headers))


def cccl_version(toolkit: Toolkit) -> str:
    """Return what the CCCL headers state as their version, or ``none``."""
    for folder in toolkit.cccl:
        file = folder / "cuda" / "std" / "__cccl" / "version.h"
        match = re.search(r"#define\s+CCCL_VERSION\s+(\d+)", file.read_text()) if file.is_file() else None
        if match:
            return match.group(1)
    return "none"
