"""Turn a recorded plan into a function that does it: kernels compiled, limits checked, argument blocks laid out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llmc2py.runtime.arrays import check_writable, device_scope, needs_scope, packed_copy, pointer_of
from llmc2py.runtime.backends import CompiledKernel
from llmc2py.runtime.csemantics import scalar_bits
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.gemm import Gemm
from llmc2py.runtime.params import Param, scalar_type
from llmc2py.runtime.plan import Launch, Memset, Operation, Plan, Pointer, Slot
from llmc2py.runtime.poison import poison
from llmc2py.runtime.products import product_step

#: What a call runs: takes the addresses of its arrays, slot by slot. The list may be extended.
Run = Callable[[list[int]], None]
Step = Callable[[list[int], int], None]

#: Dynamic shared memory up to here needs no attribute on any device.
FREE_SHARED_BYTES = 48 * 1024


def prepare(plan: Plan) -> Run:
    """Compile the kernels of a plan and return the function that runs it. Raises CompileError, LaunchError."""
    steps = [_step(plan, operation) for operation in plan.operations]
    current_stream = plan.backend.current_stream

    def run_all(pointers: list[int]) -> None:
        stream = current_stream()
        for step in steps:
            step(pointers, stream)

    # Most launchers launch one kernel, and every call of Python's costs.
    def run_one(pointers: list[int]) -> None:
        first(pointers, current_stream())

    if not steps:
        return _run_nothing
    first = steps[0]
    run = run_all if len(steps) > 1 else run_one
    watched = watched_run(plan, run) if hasattr(plan.backend, "is_checking") else run
    scratch = [slot for slot in plan.slots if slot.is_scratch]
    return scoped(plan, _with_scratch(plan, watched, scratch) if scratch else watched)


def stage(
    plan: Plan, run: Run, params: Sequence[Param], misplaced: Sequence[int]
) -> Callable[[list[int], list[Any]], None]:
    """Return a variant of ``run`` that passes packed copies of the arrays in the ``misplaced`` slots.

    Copies of arrays that are written (``params``: those of the slots) are copied back after the call.
    """

    def run_staged(pointers: list[int], arrays: list[Any]) -> None:
        for slot in misplaced:
            if params[slot].is_written:
                check_writable(arrays[slot], params[slot].name, plan.callee.name)
        with device_scope(plan.place):
            copies = {slot: packed_copy(arrays[slot], plan.backend) for slot in misplaced}
            for slot, copy in copies.items():
                pointers[slot] = pointer_of(copy)
            run(pointers)
            for slot, copy in copies.items():
                if params[slot].is_written:
                    arrays[slot][...] = copy

    return run_staged


def _run_nothing(pointers: list[int]) -> None:
    """Run a plan without operations."""


def watched_run(plan: Plan, run: Run) -> Run:
    """Tell a backend that checks memory accesses which arrays the launches get, while it does."""
    backend: Any = plan.backend
    is_checking, register_buffers = backend.is_checking, backend.register_buffers
    sizes = [(slot.name, slot.nbytes) for slot in plan.slots]

    def run_watched(pointers: list[int]) -> None:
        if is_checking():
            register_buffers([(name, address, n) for (name, n), address in zip(sizes, pointers, strict=True)])
        run(pointers)

    return run_watched


def scoped(plan: Plan, run: Run) -> Run:
    """With several GPUs, make the arrays' device the current one for the call (CASES B10)."""
    place = plan.place
    if not needs_scope(place):
        return run

    def run_on_device(pointers: list[int]) -> None:
        with device_scope(place):
            run(pointers)

    return run_on_device


def _with_scratch(plan: Plan, run: Run, scratch: Sequence[Slot]) -> Run:
    empty = plan.backend.empty
    positions = [index for index, slot in enumerate(plan.slots) if slot.is_scratch]

    def run_with_scratch(pointers: list[int]) -> None:
        # The arrays live until the call ends; CuPy's pool hands their memory on in stream order.
        arrays = [poison(empty((slot.size,), slot.dtype)) for slot in scratch]
        for position, array in zip(positions, arrays, strict=True):
            pointers.insert(position, pointer_of(array))
        run(pointers)

    return run_with_scratch


def _step(plan: Plan, operation: Operation) -> Step:
    backend = plan.backend
    if isinstance(operation, Launch):
        return _launch_step(operation, checked_kernel(plan, operation))
    if isinstance(operation, Gemm):
        return product_step(operation, backend.name, plan.place.device)
    if isinstance(operation, Memset):
        target, value, nbytes = operation.target, operation.value, operation.nbytes
        return lambda pointers, stream: backend.memset(
            pointers[target.slot] + target.byte_offset, value, nbytes, stream
        )
    to, source, size = operation.target, operation.source, operation.nbytes
    return lambda pointers, stream: backend.memcpy(
        pointers[to.slot] + to.byte_offset, pointers[source.slot] + source.byte_offset, size, stream
    )


def checked_kernel(plan: Plan, launch: Launch) -> CompiledKernel:
    """Compile a launch's kernel and compare its limits with the launch configuration (CASES A9)."""
    kernel = launch.instance.compiled(plan.place)
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > kernel.max_threads_per_block:
        raise LaunchError(
            f"{launch.kernel}: a block of {threads} threads is asked for, but as compiled for {plan.device.name} the "
            f"kernel uses {kernel.num_regs} registers per thread and runs with at most "
            f"{kernel.max_threads_per_block} threads; take a smaller block"
        )
    total = launch.shared + kernel.static_shared_bytes
    if total > FREE_SHARED_BYTES and not kernel.reserve_shared(launch.shared):
        raise LaunchError(
            f"{launch.kernel}: {launch.shared} bytes of dynamic shared memory are asked for (and "
            f"{kernel.static_shared_bytes} static ones), {plan.device.name} has "
            f"{plan.device.sharedMemPerBlockOptin} bytes for a block"
        )
    return kernel


def _launch_step(launch: Launch, kernel: CompiledKernel) -> Step:
    """Lay out the argument block of a launch.

    A launch releases the GIL while the block is read, so that each running call has a block of its own: blocks wait in
    ``idle``, whose ``pop`` and ``append`` are atomic.
    """
    start = bound_launch(kernel, launch)
    patches = [(i, a.slot, a.byte_offset) for i, a in enumerate(launch.args) if isinstance(a, Pointer)]
    constants = [(i, argument_bits(launch, i)) for i, a in enumerate(launch.args) if not isinstance(a, Pointer)]
    count = len(launch.args)
    idle: list[tuple[Any, int, Any]] = []

    def new_block() -> tuple[Any, int, Any]:
        cells = (ctypes.c_uint64 * count)()
        for index, bits in constants:
            cells[index] = bits
        first = ctypes.addressof(cells)
        table = (ctypes.c_void_p * count)(*(first + 8 * index for index in range(count)))
        return cells, ctypes.addressof(table), table

    def step(pointers: list[int], stream: int) -> None:
        arguments = idle.pop() if idle else new_block()
        cells = arguments[0]
        for index, slot, offset in patches:
            cells[index] = pointers[slot] + offset
        start(stream, arguments[1])
        idle.append(arguments)

    return step


def bound_launch(kernel: CompiledKernel, launch: Launch) -> Callable[[int, int], None]:
    """Return a function of stream and arguments; a backend may offer one that costs less than ``launch`` (``bind``)."""
    bind = getattr(kernel, "bind", None)
    if bind is not None:
        bound: Callable[[int, int], None] = bind(launch.grid, launch.block, launch.shared)
        return bound
    grid, block, shared, start = launch.grid, launch.block, launch.shared, kernel.launch
    return lambda stream, args: start(grid, block, shared, stream, args)


def argument_bits(launch: Launch, index: int) -> int:
    value = launch.args[index]
    if value is None or isinstance(value, Pointer) or launch.instance.kernel.params[index].tag is not None:
        return 0
    binding = launch.instance.binding
    ctype = binding.ctype(launch.instance.kernel.params[index].base)
    return scalar_bits(value, scalar_type(ctype, binding.precision))
