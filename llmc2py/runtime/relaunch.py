"""A recorded launch that runs again and again with other scalars, such as a learning rate and a seed.

Plans are kept by their scalars. Where some of these are new at every call, each call would record a plan of its own,
which takes many times as long as to launch a kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping

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
