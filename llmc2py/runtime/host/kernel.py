"""A kernel that is compiled for the CPU, and how it is launched."""

from __future__ import annotations

import ctypes
import functools
import os

from llmc2py.runtime.backends import DeviceProperties, Dim3
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.host import checker, compiler
from llmc2py.runtime.host.faults import FAULTS
from llmc2py.runtime.source import KernelRequest

#: A small device that no machine changes, so that launch configurations are the same everywhere.
PROPERTIES = DeviceProperties(
    name="cpu",
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
    l2CacheSize=4 << 20,
    totalGlobalMem=16 << 30,
    maxGridSize=(2147483647, 65535, 65535),
)


class _Kernel(ctypes.Structure):
    """Mirrors ``llmc2py::Kernel`` of src/worker.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("touch", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("workers", ctypes.c_int32),
    )


@functools.cache
def _workers() -> int:
    chosen = os.environ.get("LLMC2PY_THREADS")
    if chosen:
        return max(1, int(chosen))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def launch_function(runtime: ctypes.CDLL) -> ctypes._NamedFuncPointer:
    """Return the runtime's ``llmc2py_launch`` with its signature declared."""
    function = runtime.llmc2py_launch
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    function.argtypes = (pointer, pointer, *[number] * 6, ctypes.c_uint64, pointer)
    function.restype = ctypes.c_int
    runtime.llmc2py_last_fault.restype = ctypes.c_char_p
    return function


class HostKernel:
    """One kernel instantiation as machine code of this computer; fulfils ``CompiledKernel``."""

    num_regs = 0
    static_shared_bytes = 0
    max_threads_per_block = PROPERTIES.maxThreadsPerBlock

    def __init__(self, request: KernelRequest, *, checked: bool = False) -> None:
        library, self.path = compiler.load_kernel(request, checked=checked)
        self.name = request.name
        self.request = request
        self._library = library
        self._runtime = compiler.runtime_library()
        self._launch = launch_function(self._runtime)
        address = ctypes.c_void_p
        self._kernel = _Kernel(
            address.from_buffer(library.llmc2py_kernel).value,
            address.from_buffer(library.llmc2py_touch).value,
            request.name.encode(),
            _workers(),
        )
        self._handle = ctypes.addressof(self._kernel)
        self._runtime.llmc2py_module_base.restype = ctypes.c_uint64
        #: Where the library is loaded: what addresses of its code are counted from.
        self.base = int(self._runtime.llmc2py_module_base(ctypes.c_void_p(self._kernel.entry)))

    @functools.cached_property
    def _checked_twin(self) -> HostKernel:
        return HostKernel(self.request, checked=True)

    def reserve_shared(self, dynamic_bytes: int) -> bool:
        """Return whether the device has this much dynamic shared memory for a block."""
        return dynamic_bytes <= PROPERTIES.sharedMemPerBlockOptin

    def max_active_blocks(self, block_size: int, dynamic_bytes: int) -> int:
        """Return how many blocks fit on one multiprocessor, by threads and by shared memory."""
        by_threads = PROPERTIES.maxThreadsPerMultiProcessor // max(1, block_size)
        by_shared = PROPERTIES.sharedMemPerMultiprocessor // dynamic_bytes if dynamic_bytes else 32
        return min(32, by_threads, by_shared)

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, stream: int, args: int) -> None:
        """Run the kernel to its end; see ``CompiledKernel.launch``.

        Raises LaunchError for a block of more than 1024 threads, KernelAssertionError where an ``assert`` in the kernel
        fails, DivergentBarrierError where threads of a block miss a barrier, and KernelError for deadlocks, traps and
        what the processor refuses to do.
        """
        if checker.is_checking():
            checker.launch_checked(self._checked_twin, grid, block, shared_bytes, args)
        else:
            self.launch_with(grid, block, shared_bytes, args, 0)

    def launch_with(self, grid: Dim3, block: Dim3, shared_bytes: int, args: int, checker_handle: int) -> None:
        """Launch under a checker of the runtime library (its address, or 0)."""
        gx, gy, gz = grid
        bx, by, bz = block
        if gx * gy * gz == 0:
            return
        if not 0 < bx * by * bz <= 1024:
            raise LaunchError(f"kernel {self.name}: a block of {bx}x{by}x{bz} threads, where 1 to 1024 are allowed")
        fault = self._launch(self._handle, args, gx, gy, gz, bx, by, bz, shared_bytes, checker_handle)
        if fault:
            message = self._runtime.llmc2py_last_fault()
            raise FAULTS[fault](message.decode(errors="replace"))
