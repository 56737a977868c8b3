"""What a backend offers. There are two, ``runtime.cuda`` and ``runtime.host``, with one semantics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from llmc2py.runtime.source import KernelRequest

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class DeviceProperties:
    """The fields of ``cudaDeviceProp`` that launchers read, under their CUDA names (sizes in bytes)."""

    name: str
    major: int
    minor: int
    multiProcessorCount: int  # noqa: N815
    maxThreadsPerMultiProcessor: int  # noqa: N815
    maxThreadsPerBlock: int  # noqa: N815
    warpSize: int  # noqa: N815
    sharedMemPerBlock: int  # noqa: N815
    sharedMemPerBlockOptin: int  # noqa: N815
    sharedMemPerMultiprocessor: int  # noqa: N815
    regsPerBlock: int  # noqa: N815
    l2CacheSize: int  # noqa: N815
    totalGlobalMem: int  # noqa: N815
    maxGridSize: Dim3  # noqa: N815


class CompiledKernel(Protocol):
    """One kernel instantiation, compiled and loaded on one device."""

    name: str
    max_threads_per_block: int
    num_regs: int
    static_shared_bytes: int

    def reserve_shared(self, dynamic_bytes: int) -> bool:
        """Allow launches with this much dynamic shared memory; False where the device has not that much."""

    def max_active_blocks(self, block_size: int, dynamic_bytes: int) -> int:
        """Return how many blocks of this kernel fit on one multiprocessor."""

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: int, args: int) -> None:
        """Launch; ``args`` is the address of an array of pointers to the argument values, as cuLaunchKernel takes it.

        The argument values are read before this returns. ``stream`` is a CUDA stream handle (the CPU backend runs the
        kernel before it returns and ignores it).
        """


class Backend(Protocol):
    """A place where arrays live and kernels run. Modules fulfil this protocol."""

    name: str

    def kernel(self, request: KernelRequest, device: int) -> CompiledKernel:
        """Compile (or find in the cache) and load one kernel. Thread-safe; compiles once. Raises CompileError."""

    def properties(self, device: int) -> DeviceProperties:
        """Return the properties of a device, read once."""

    def current_stream(self) -> int:
        """Return the handle of the caller's current stream (0 on the CPU)."""

    def is_capturing(self) -> bool:
        """Return whether the caller's current stream is being captured into a CUDA graph."""

    def memset(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        """Set ``nbytes`` bytes, in stream order."""

    def memcpy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy ``nbytes`` bytes within the backend, in stream order."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new contiguous array on the current device, aligned to at least 256 bytes."""
