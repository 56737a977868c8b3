"""Recorded launches that run again and again with other scalars, such as a learning rate and a seed.

Plans are kept by their scalars. Where some of these are new at every call, each call would record a plan of its own,
which takes many times as long as to launch a kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmc2py.runtime.arrays import device_scope, needs_scope
from llmc2py.runtime.backends import Dim3
from llmc2py.runtime.configuration import check_limits
from llmc2py.runtime.csemantics import c_scalar, scalar_bits
from llmc2py.runtime.params import scalar_type
from llmc2py.runtime.plan import Launch, Plan, Pointer
from llmc2py.runtime.replay import argument_bits, bound_launch, checked_kernel, scoped, watched_run

#: Cells of an argument block with what goes into them.
Cells = list[tuple[int, int]]


def only_launch(plan: Plan) -> Launch | None:
    """Return the launch that is all that a plan does; None for a plan that does anything else."""
    if len(plan.operations) != 1 or any(slot.is_scratch for slot in plan.slots):
        return None
    (operation,) = plan.operations
    return operation if isinstance(operation, Launch) else None


def scalar_cells(launch: Launch, values: Mapping[str, int | float]) -> Cells:
    """Return the cells of those scalars of a launch that ``values`` has, by the names of the kernel's parameters.

    Raises TypeError and OverflowError for what the parameter's C type does not hold.
    """
    found: Cells = []
    binding, kernel = launch.instance.binding, launch.instance.kernel
    for index, param in enumerate(kernel.params):
        if param.name in values and not param.is_pointer and param.tag is None:
            ctype = scalar_type(binding.ctype(param.base), binding.precision)
            found.append((index, scalar_bits(c_scalar(values[param.name], ctype, param.name, kernel.name), ctype)))
    return found


def has_scalars(launch: Launch, values: Mapping[str, int | float]) -> bool:
    """Whether the scalars of a launch are all in ``values``, and have these values to the last bit."""
    scalars = {index for index, arg in enumerate(launch.args) if not isinstance(arg, Pointer) and arg is not None}
    cells = dict(scalar_cells(launch, values))
    return scalars == set(cells) and all(bits == argument_bits(launch, index) for index, bits in cells.items())


class Relaunch:
    """The one launch of a plan with an argument block of its own, in which scalars can be set.

    ``kernel`` is what is launched, ``cells`` the place of each of its parameters in the block, ``aligned`` the
    alignment that it needs of each array. One thread at a time may use an object. Raises CompileError and LaunchError
    as a call would.
    """

    def __init__(self, plan: Plan, launch: Launch) -> None:
        self.kernel = launch.instance.kernel
        self.cells = {param.name: index for index, param in enumerate(self.kernel.params)}
        self.aligned = [slot.align for slot in plan.slots]
        count = len(launch.args)
        self._start = bound_launch(checked_kernel(plan, launch), launch)
        self._block = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self._block)
        self._table = (ctypes.c_void_p * count)(*(first + 8 * index for index in range(count)))
        self._address = ctypes.addressof(self._table)
        self._pointers = [(i, a.slot, a.byte_offset) for i, a in enumerate(launch.args) if isinstance(a, Pointer)]
        for index, argument in enumerate(launch.args):
            if not isinstance(argument, Pointer):
                self._block[index] = argument_bits(launch, index)
        self._current_stream = plan.backend.current_stream
        watches = hasattr(plan.backend, "is_checking")
        self._run = scoped(plan, watched_run(plan, self._launch) if watches else self._launch)

    def __call__(self, pointers: list[int], cells: Iterable[tuple[int, int]]) -> None:
        """Set cells of the argument block and launch on arrays at these addresses, slot by slot."""
        block = self._block
        for index, bits in cells:
            block[index] = bits
        self._run(pointers)

    def _launch(self, pointers: list[int]) -> None:
        block = self._block
        for index, slot, offset in self._pointers:
            block[index] = pointers[slot] + offset
        self._start(self._current_stream(), self._address)


class FreeLaunch:
    """The launch of a kernel on arrays of one kind, with any grid and any scalars. Threads may share an object.

    ``plan`` was recorded for arrays of this kind, and its one launch has the block and the shared memory of all others.
    Raises CompileError and LaunchError as a call would.
    """

    def __init__(self, plan: Plan, launch: Launch) -> None:
        kernel, binding = launch.instance.kernel, launch.instance.binding
        self._kernel = checked_kernel(plan, launch)
        self._plan, self._launch = plan, launch
        self._ctypes = [
            None if param.is_pointer else scalar_type(binding.ctype(param.base), binding.precision)
            for param in kernel.params
        ]

    def __call__(self, grid: Dim3, args: Sequence[Any], pointers: Sequence[int]) -> None:
        """Launch with these arguments, of whose arrays the addresses are ``pointers``.

        Raises LaunchError for a grid that the device has not, OverflowError for a scalar that its type does not hold.
        """
        plan, launch, kernel = self._plan, self._launch, self._launch.instance.kernel
        count, addresses = len(args), iter(pointers)
        cells = (ctypes.c_uint64 * count)()
        for index, (param, ctype, value) in enumerate(zip(kernel.params, self._ctypes, args, strict=True)):
            if ctype is not None:
                cells[index] = scalar_bits(c_scalar(value, ctype, param.name, kernel.name), ctype)
            elif value is not None:
                cells[index] = next(addresses)
        # In the order of a recorded call, which looks at its arguments even where it launches nothing.
        check_limits(launch.kernel, plan.device, grid, launch.block, launch.shared)
        if 0 in grid:
            return
        first = ctypes.addressof(cells)
        table = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        self._watch(args, pointers)
        with device_scope(plan.place) if needs_scope(plan.place) else contextlib.nullcontext():
            stream = plan.backend.current_stream()
            self._kernel.launch(grid, launch.block, launch.shared, stream, ctypes.addressof(table))

    def _watch(self, args: Sequence[Any], pointers: Sequence[int]) -> None:
        """Tell a backend that checks memory accesses which arrays the launch gets, while it does."""
        backend: Any = self._plan.backend
        if hasattr(backend, "is_checking") and backend.is_checking():
            sizes = [
                arg.nbytes for arg, ctype in zip(args, self._ctypes, strict=True) if ctype is None and arg is not None
            ]
            names = [slot.name for slot in self._plan.slots]
            backend.register_buffers(list(zip(names, pointers, sizes, strict=True)))
