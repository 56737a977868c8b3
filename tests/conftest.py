"""What all tests share: the cache of compiled kernels, the committed package, a visible skip of what needs a GPU."""

from __future__ import annotations

import functools
import importlib
import os
import types
from typing import Any

import pytest

from llmc2py.runtime.host.cache import cache_root


def pytest_configure() -> None:
    # Named once, so that processes that tests start, in another environment, find the same compiled kernels.
    os.environ.setdefault("LLMC2PY_CACHE_DIR", str(cache_root()))


@functools.cache
def missing_gpu() -> str:
    """Return why there is no CUDA device to run on, or "" where there is one.

    Asked when the first GPU test is about to run, not before: a process that has asked the driver cannot fork safely.
    """
    try:
        runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    except ImportError as error:
        return f"no CuPy: {error}"
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return "" if count else "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := missing_gpu()):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def generated_package() -> types.ModuleType:
    """The package that is committed as ``generated/``."""
    return importlib.import_module("generated")


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> Any:
    """The array module: NumPy runs on the CPU, CuPy on CUDA."""
    return importlib.import_module(request.param)
