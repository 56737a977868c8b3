"""Load compiled kernels on a device and run them, through CuPy's bindings of the CUDA driver and runtime."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from llmc2py.runtime.allocation import has_allocator
from llmc2py.runtime.backends import DeviceProperties, Dim3
from llmc2py.runtime.cuda import nvrtc, toolkit
from llmc2py.runtime.errors import LaunchError, ToolMissingError
from llmc2py.runtime.source import KernelRequest

__all__ = [
    "CudaKernel",
    "architecture_for",
    "current_stream",
    "empty",
    "kernel",
    "memcpy",
    "memset",
    "properties",
    "usable_cupy",
]

_INVALID_VALUE = 1
_OUT_OF_RESOURCES = 701
#: What the driver answers to everything once a kernel has failed: from an illegal address to a failed launch.
_EARLIER_FAILURES = range(700, 720)
#: The handles of the legacy default stream, which cannot be captured and must not be asked whether it is.
_LEGACY_STREAMS = (0, 1)

_LEGACY_SHARED_LIMIT = 48 * 1024


@dataclass(frozen=True)
class _Cuda:
    """CuPy, the two bindings that are called directly, and how many devices there are."""

    cupy: Any
    driver: Any
    runtime: Any
    devices: int = 1


class _Process:
    """What this process may still do with CUDA."""

    forked_after_use = False


def _forget_parent() -> None:
    _Process.forked_after_use = True
    _cuda.cache_clear()


@functools.cache
def _cuda() -> _Cuda:
    if _Process.forked_after_use:
        raise RuntimeError(
            "CUDA was used before this process was forked, and does not survive a fork(): start the process with "
            'multiprocessing.get_context("spawn"), or use CUDA in the child only'
        )
    try:
        cupy = importlib.import_module("cupy")
        driver = importlib.import_module("cupy_backends.cuda.api.driver")
        runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    except ImportError as error:
        raise ToolMissingError(f"CuPy cannot be imported ({error}); {toolkit.INSTALL_HINT}") from error
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise ToolMissingError(
            f"CUDA cannot be used here: {error}. It needs an NVIDIA GPU, a driver that supports the CUDA version of "
            "CuPy, and a process that was not forked after CUDA was used; NumPy arrays run on the CPU"
        ) from error
    if count == 0:
        raise ToolMissingError("there is no CUDA device here; NumPy arrays run on the CPU")
    # Windows has no fork, and no such function.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_parent)
    return _Cuda(cupy, driver, runtime, count)


def usable_cupy(device: int = 0) -> Any:
    """Return CuPy, with which this device can be used: whoever comes from elsewhere than a kernel asks here.

    Raises ToolMissingError without CuPy, a driver or any device, and ValueError where there is no device of the number.
    """
    cuda = _cuda()
    if device >= cuda.devices:
        there = "cuda:0 alone" if cuda.devices == 1 else f"cuda:0 to cuda:{cuda.devices - 1}"
        raise ValueError(f"there is no cuda:{device} here; there is {there}")
    return cuda.cupy


@functools.cache
def properties(device: int) -> DeviceProperties:
    """Return the properties of a device, read once. Raises ToolMissingError without a driver or device."""
    raw = _cuda().runtime.getDeviceProperties(device)
    values = {field.name: raw[field.name] for field in fields(DeviceProperties)}
    name = values["name"].decode() if isinstance(values["name"], bytes) else values["name"]
    return DeviceProperties(**values | {"name": name, "maxGridSize": tuple(values["maxGridSize"])})


class _Thread(threading.local):
    """What a thread has done with CUDA."""

    has_context = False


_thread = _Thread()


def current_stream() -> int:
    """Return the handle of the caller's current stream on the current device, and let the caller's thread launch.

    A thread that has called nothing of the CUDA runtime yet has no context, and what is launched through the driver
    fails there (kernels; cuBLASLt from the second such thread on): it is given that of its current device.
    """
    cuda = _cuda()
    if not _thread.has_context:
        cuda.runtime.setDevice(cuda.runtime.getDevice())
        _thread.has_context = True
    handle: int = cuda.cupy.cuda.get_current_stream().ptr
    return handle


def memset(pointer: int, value: int, nbytes: int, stream: int) -> None:
    """Set ``nbytes`` bytes, in stream order."""
    _cuda().runtime.memsetAsync(pointer, value, nbytes, stream)


def memcpy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy ``nbytes`` bytes between device arrays, in stream order."""
    runtime = _cuda().runtime
    runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new contiguous CuPy array on the current device (CuPy's pool aligns to 512 bytes).

    Raises RuntimeError while the current stream is being captured into a graph, unless an `allocator` is set: the graph
    would go on using memory that the pool gives to others.
    """
    cuda = _cuda()
    if not has_allocator() and _is_capturing(cuda):
        raise RuntimeError(
            "an array would be allocated while the current stream is captured into a CUDA graph: allocate outputs "
            "before the capture and pass them in, or capture with llmc2py.runtime.cuda.graphs.capture"
        )
    return cuda.cupy.ndarray(shape, dtype)


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a graph."""
    return _is_capturing(_cuda())


def _is_capturing(cuda: _Cuda) -> bool:
    stream = cuda.cupy.cuda.get_current_stream().ptr
    return stream not in _LEGACY_STREAMS and bool(cuda.runtime.streamIsCapturing(stream))


def architecture_for(major: int, minor: int, known: tuple[str, ...], device: str) -> str:
    """Return the newest of the ``known`` architectures whose machine code runs on compute capability major.minor.

    Machine code runs on later devices of the same major version only. Raises ToolMissingError where there is none.
    """
    numbers = [int(arch.removeprefix("sm_")) for arch in known]
    runs = [number for number in numbers if number // 10 == major and number % 10 <= minor]
    if runs:
        return f"sm_{max(runs)}"
    if major * 10 + minor < min(numbers):
        advice = 'the device is too old for it: pip install "llmc2py[cuda12]", with an older CUDA'
    else:
        advice = "the device is newer than it: install a newer nvidia-cuda-nvrtc"
    raise ToolMissingError(
        f"{device} has compute capability {major}.{minor}, and NVRTC compiles for {known[0]} to {known[-1]}; {advice}"
    )


def _launch_cooperatively(driver: Any, *arguments: Any) -> None:
    """Launch as ``launchKernel``, whose last argument (for arguments in a buffer) cooperative launches have not."""
    driver.launchCooperativeKernel(*arguments[:-1])


# The text is part of the key: a source that was regenerated and loaded again has its old path.
_Key = tuple[KernelRequest, str, int]
_kernels: dict[_Key, CudaKernel] = {}
_locks: dict[_Key, threading.Lock] = {}
_table_lock = threading.Lock()


def kernel(request: KernelRequest, device: int) -> CudaKernel:
    """Compile (or find in the cache) and load one kernel on a device; thread-safe, once for each of them.

    Raises CompileError, ToolMissingError, and RuntimeError while the current stream is captured into a graph.
    """
    key = (request, request.source.text, device)
    found = _kernels.get(key)
    if found is not None:
        return found
    with _table_lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _kernels:
            _kernels[key] = _load(request, device)
    return _kernels[key]


def _load(request: KernelRequest, device: int) -> CudaKernel:
    cuda = _cuda()
    if _is_capturing(cuda):
        raise RuntimeError(
            f"kernel {request.name!r} would be compiled and loaded while the current stream is captured into a CUDA "
            "graph: call it once, or its warmup(), before the capture"
        )
    found = properties(device)
    arch = architecture_for(found.major, found.minor, nvrtc.supported_architectures(), found.name)
    compiled = nvrtc.compile_cubin(request, arch)
    with cuda.cupy.cuda.Device(device):
        module = cuda.cupy.cuda.Module()
        try:
            module.load(compiled.cubin)
            function = module.get_function(compiled.lowered_name)
            return CudaKernel(request.name, device, module, function, cuda, cooperative=request.cooperative)
        except cuda.driver.CUDADriverError as error:
            if error.status in _EARLIER_FAILURES:
                raise RuntimeError(
                    f"kernel {request.name!r} cannot be loaded: {error}. An earlier kernel failed, and this process "
                    "cannot use CUDA any more"
                ) from error
            version = cuda.runtime.driverGetVersion()
            raise ToolMissingError(
                f"kernel {request.name!r}, compiled for {arch}, cannot be loaded on {found.name} ({error}); the driver "
                f"supports CUDA {version // 1000}.{version % 1000 // 10}, NVRTC is of CUDA "
                f"{toolkit.version_text(toolkit.find_toolkit().nvrtc.version)}"
            ) from error


class CudaKernel:
    """One kernel instantiation, loaded on one device; fulfils ``runtime.backends.CompiledKernel``."""

    def __init__(
        self, name: str, device: int, module: Any, function: Any, cuda: _Cuda, *, cooperative: bool = False
    ) -> None:
        self.name = name
        self.device = device
        self._cuda = cuda
        # The module is unloaded when it is garbage: it has to live as long as the pointer into it.
        self._module = module
        self._pointer: int = function.ptr
        self._launch = (
            functools.partial(_launch_cooperatively, cuda.driver) if cooperative else cuda.driver.launchKernel
        )
        driver = cuda.driver
        read = driver.funcGetAttribute
        self.max_threads_per_block: int = read(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self._pointer)
        self.num_regs: int = read(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, self._pointer)
        self.static_shared_bytes: int = read(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self._pointer)
        self._reserved = _LEGACY_SHARED_LIMIT - self.static_shared_bytes
        self._lock = threading.Lock()

    def reserve_shared(self, dynamic_bytes: int) -> bool:
        """Allow launches with this much dynamic shared memory; False where the device has not that much."""
        if dynamic_bytes <= self._reserved:
            return True
        if self.static_shared_bytes + dynamic_bytes > properties(self.device).sharedMemPerBlockOptin:
            return False
        driver = self._cuda.driver
        with self._lock, self._cuda.cupy.cuda.Device(self.device):
            if dynamic_bytes > self._reserved:
                attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.funcSetAttribute(self._pointer, attribute, dynamic_bytes)
                self._reserved = dynamic_bytes
        return True

    def max_active_blocks(self, block_size: int, dynamic_bytes: int) -> int:
        """Return how many blocks of this kernel fit on one multiprocessor."""
        with self._cuda.cupy.cuda.Device(self.device):
            driver = self._cuda.driver
            blocks: int = driver.occupancyMaxActiveBlocksPerMultiprocessor(self._pointer, block_size, dynamic_bytes)
        return blocks

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: int, args: int) -> None:
        """Launch; ``args`` is the address of an array of pointers to the argument values.

        The kernel's device is current, and ``stream`` is one of its streams, had from `current_stream` in this thread.
        Raises LaunchError for a configuration that the driver refuses, and RuntimeError for any other failure, such as
        that of an earlier kernel.
        """
        self.bind(grid, block, shared_bytes)(stream, args)

    def bind(self, grid: Dim3, block: Dim3, shared_bytes: int) -> Callable[[int, int], None]:
        """Return `launch` with one configuration, a function of stream and arguments, for repeated calls."""
        bound = functools.partial(self._launch, self._pointer, *grid, *block, shared_bytes)
        failure = self._cuda.driver.CUDADriverError

        def launch(stream: int, args: int) -> None:
            try:
                bound(stream, args, 0)
            except failure as error:
                raise self._failure(error, grid, block, shared_bytes) from error

        return launch

    def _failure(self, error: Any, grid: Dim3, block: Dim3, shared_bytes: int) -> Exception:
        launch = f"kernel {self.name!r} with grid {grid}, block {block}, {shared_bytes} bytes of dynamic shared memory"
        if error.status in (_INVALID_VALUE, _OUT_OF_RESOURCES):
            return LaunchError(
                f"{launch} cannot be launched on device {self.device} ({error}): it needs {self.num_regs} registers "
                f"per thread, {self.static_shared_bytes} bytes of static shared memory, and takes at most "
                f"{self.max_threads_per_block} threads per block"
            )
        return RuntimeError(
            f"launching {launch} failed: {error}. If an earlier kernel made an illegal access, this process cannot use "
            "CUDA any more"
        )
