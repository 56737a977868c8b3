"""A backend without a compiler: it notes launches and runs a Python function where a test gives one for a kernel."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import allocation, arrays
from llmc2py.runtime.backends import DeviceProperties

PROPERTIES = DeviceProperties(
    name="fake",
    major=8,
    minor=0,
    multiProcessorCount=4,
    maxThreadsPerMultiProcessor=2048,
    maxThreadsPerBlock=1024,
    warpSize=32,
    sharedMemPerBlock=49152,
    sharedMemPerBlockOptin=166912,
    sharedMemPerMultiprocessor=167936,
    regsPerBlock=65536,
    l2CacheSize=1 << 22,
    totalGlobalMem=1 << 33,
    maxGridSize=(2**31 - 1, 65535, 65535),
)


class FakeKernel:
    """A kernel that notes (grid, block, shared, argument cells) and runs the backend's function of its name."""

    static_shared_bytes = 0
    num_regs = 40
    max_threads_per_block = 1024

    def __init__(self, backend: FakeBackend, request: Any) -> None:
        self.backend, self.request, self.name = backend, request, request.name
        self.max_threads_per_block = backend.max_threads.get(request.name, 1024)
        self.reserved: list[int] = []

    def reserve_shared(self, dynamic_bytes: int) -> bool:
        self.reserved.append(dynamic_bytes)
        return dynamic_bytes <= PROPERTIES.sharedMemPerBlockOptin

    def max_active_blocks(self, block_size: int, dynamic_bytes: int) -> int:
        return 2048 // block_size

    def launch(self, grid: Any, block: Any, shared: int, stream: int, args: int) -> None:
        # As a real launch, this lets other threads run while it reads its arguments.
        time.sleep(self.backend.launch_seconds)
        count = len(self.request.parameters)
        table = (ctypes.c_void_p * count).from_address(args)
        cells = [ctypes.c_uint64.from_address(pointer).value for pointer in table]
        self.backend.launches.append((self.name, grid, block, shared, cells))
        if function := self.backend.functions.get(self.name):
            function(grid, block, *cells)


class FakeBackend:
    """The protocol of ``runtime.backends.Backend``; memory is NumPy's."""

    def __init__(self) -> None:
        self.name = "cpu"
        self.launches: list[tuple[Any, ...]] = []
        self.functions: dict[str, Callable[..., None]] = {}
        self.kernels: dict[Any, FakeKernel] = {}
        self.max_threads: dict[str, int] = {}
        self.allocations = 0
        self.launch_seconds = 0.0

    def kernel(self, request: Any, device: int) -> FakeKernel:
        return self.kernels.setdefault((request, device), FakeKernel(self, request))

    def properties(self, device: int) -> DeviceProperties:
        return dataclasses.replace(PROPERTIES)

    def current_stream(self) -> int:
        return 0

    def memset(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        ctypes.memset(pointer, value, nbytes)

    def memcpy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        self.allocations += 1
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = np.empty(nbytes + 256, np.uint8)
        start = -raw.ctypes.data % 256
        return raw[start : start + nbytes].view(dtype).reshape(shape)


class FakeDriver:
    """A CUDA driver whose threads have a mode of capture; 0 is the one that forbids most."""

    def __init__(self) -> None:
        self.mode = 0

    def cuThreadExchangeStreamCaptureMode(self, cell: Any) -> None:  # noqa: N802
        self.mode, cell._obj.value = cell._obj.value, self.mode


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Put a driver in place that has nothing but modes of capture."""
    driver = FakeDriver()
    monkeypatch.setattr(allocation, "_driver", lambda: driver)
    return driver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Put the fake backend in the place of the CPU backend."""
    backend = FakeBackend()
    monkeypatch.setitem(arrays.BACKENDS, "cpu", backend)
    return backend


@pytest.fixture
def at_address() -> Callable[..., np.ndarray[Any, Any]]:
    """Return a function that gives the memory at an address as an array."""

    def view(address: int, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        nbytes = count * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=dtype)

    return view
