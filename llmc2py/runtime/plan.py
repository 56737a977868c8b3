"""Plans: what a launcher does with one set of sizes, as a list of operations that can be looked at and replayed."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from llmc2py.runtime.arrays import Place, backend_named
from llmc2py.runtime.backends import CompiledKernel, DeviceProperties, Dim3
from llmc2py.runtime.configuration import check_limits, dim3
from llmc2py.runtime.csemantics import c_scalar
from llmc2py.runtime.dtypes import c_dtype
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.gemm import MATRIX_DTYPES, Gemm, Matrix, problem_of
from llmc2py.runtime.params import (
    Binding,
    Param,
    TemplateParam,
    TemplateValue,
    array_dtype,
    bind,
    element_size,
    scalar_type,
)

if TYPE_CHECKING:
    from llmc2py.runtime.kernel import Instance, Kernel
    from llmc2py.runtime.launcher import Launcher

#: Arrays from this size on have elements that a 32-bit index does not reach.
INDEX_LIMIT = 2**31


@dataclass(frozen=True)
class Pointer:
    """A place in an array of the call: slot number, offset in bytes, and the C type that it points with."""

    slot: int
    byte_offset: int
    ctype: str
    precision: str = field(default="float32", repr=False, compare=False)

    @property
    def base(self) -> str:
        """The C type that is pointed to."""
        return self.ctype[:-1]

    @property
    def itemsize(self) -> int:
        """The size of what is pointed to, in bytes."""
        return element_size(self.base, self.precision)

    def __add__(self, count: int) -> Pointer:
        return replace(self, byte_offset=self.byte_offset + count * self.itemsize)

    def __sub__(self, count: int) -> Pointer:
        return self + -count

    def cast(self, ctype: str) -> Pointer:
        """Return the same place as a pointer of another type, such as ``"float*"``."""
        return replace(self, ctype=ctype.removeprefix("const ").replace(" *", "*"))


Argument = Pointer | int | float | bool | None


@dataclass(frozen=True)
class Launch:
    """A kernel launch: name, template arguments, launch configuration and arguments."""

    kernel: str
    template: tuple[TemplateValue, ...]
    grid: Dim3
    block: Dim3
    shared: int
    args: tuple[Argument, ...]
    instance: Instance = field(repr=False, compare=False)


@dataclass(frozen=True)
class Memset:
    """``cudaMemsetAsync``: every byte gets ``value``."""

    target: Pointer
    value: int
    nbytes: int


@dataclass(frozen=True)
class Memcpy:
    """``cudaMemcpyAsync`` within the device."""

    target: Pointer
    source: Pointer
    nbytes: int


Operation = Launch | Memset | Memcpy | Gemm


@dataclass
class Slot:
    """The memory behind a pointer: an array of the caller, or scratch that each call gets anew."""

    name: str
    dtype: np.dtype[Any]
    size: int
    is_scratch: bool = False
    align: int = 1

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize


class Callee(Protocol):
    """What a plan is recorded for, a launcher or a kernel."""

    name: str
    origin: str | None
    template: tuple[TemplateParam, ...]


class Plan:
    """What one call does. A launcher's Python function fills it; it is replayed from then on.

    Attributes: ``precision``, ``device`` (properties of the device), ``template`` (template arguments of the launcher
    by name), ``operations``, ``slots``.
    """

    def __init__(self, callee: Callee, place: Place, binding: Binding) -> None:
        self.callee = callee
        self.place = place
        self.binding = binding
        self.precision = binding.precision
        self.backend = backend_named(place.backend)
        self.operations: list[Operation] = []
        self.slots: list[Slot] = []
        self.template = dict(zip((t.name for t in callee.template), binding.template, strict=True))

    @property
    def device(self) -> DeviceProperties:
        """The properties of the device that the arrays are on, under the names of ``cudaDeviceProp``."""
        return self.backend.properties(self.place.device)

    def sizeof(self, ctype: str) -> int:
        """Return the size of a C type in bytes."""
        return element_size(self.binding.ctype(ctype), self.precision)

    def ctype(self, ctype: str) -> str:
        """Return the concrete C type of a scalar: what ``floatX`` and template parameters stand for in this call."""
        return scalar_type(self.binding.ctype(ctype), self.precision)

    def add_array(self, param: Param, dtype: np.dtype[Any], size: int) -> Pointer:
        """Give an array of the caller its slot and return the pointer to it."""
        self.slots.append(Slot(param.name, dtype, size, align=max(param.align, dtype.itemsize)))
        return Pointer(len(self.slots) - 1, 0, self.binding.ctype(param.ctype), self.precision)

    def require(self, holds: bool, condition: str, /, **values: Any) -> None:
        """Raise ValueError, with the condition as the launcher has it and the values, unless it holds."""
        if not holds:
            shown = ", ".join(f"{name} = {value}" for name, value in values.items())
            raise ValueError(f"{self.callee.name} needs {condition}{f', but {shown}' if shown else ''}{self._origin()}")

    def check_extent(self, pointer: Pointer | None, count: int, text: str) -> None:
        """Raise ValueError where an array has fewer than ``count`` (in words: ``text``) elements. Null passes."""
        if pointer is None:
            return
        slot = self.slots[pointer.slot]
        available = (slot.nbytes - pointer.byte_offset) // pointer.itemsize
        if count > available:
            needed = text if text == str(count) else f"{text} = {count}"
            raise ValueError(
                f"{self.callee.name}: `{slot.name}` has {max(available, 0)} elements, "
                f"{needed} are needed{self._origin()}"
            )

    def launch(
        self,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared_bytes: int,
        *args: Argument,
        template: Sequence[Any] = (),
    ) -> None:
        """Launch a kernel; a grid of no blocks launches nothing.

        Raises LaunchError for a configuration that the device has not, TypeError for arguments of a wrong type,
        OverflowError for scalars out of range.
        """
        grid3, block3 = dim3(kernel.name, "grid", grid), dim3(kernel.name, "block", block)
        check_limits(kernel.name, self.device, grid3, block3, shared_bytes)
        instance, passed = self._bind_arguments(kernel, args, template)
        if 0 not in grid3:
            if kernel.cooperative:
                self._check_cooperative(instance, grid3, block3, shared_bytes)
            launch = Launch(kernel.name, instance.binding.template, grid3, block3, shared_bytes, passed, instance)
            self.operations.append(launch)

    def set_max_dynamic_shared(self, kernel: Kernel, nbytes: int, template: Sequence[Any] = ()) -> bool:
        """Allow a kernel this much dynamic shared memory; False where the device has not that much."""
        return self._compiled(kernel, template).reserve_shared(nbytes)

    def max_active_blocks(
        self, kernel: Kernel, block_size: int, dynamic_bytes: int = 0, template: Sequence[Any] = ()
    ) -> int:
        """Return how many blocks of a kernel fit on one multiprocessor."""
        return self._compiled(kernel, template).max_active_blocks(block_size, dynamic_bytes)

    def memset(self, pointer: Pointer, value: int, nbytes: int) -> None:
        """Set bytes. Raises ValueError where the array has fewer."""
        self._check_bytes(pointer, nbytes)
        if nbytes:
            self.operations.append(Memset(pointer, value & 0xFF, nbytes))

    def memcpy(self, target: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy bytes. Raises ValueError where one of the arrays has fewer."""
        self._check_bytes(target, nbytes)
        self._check_bytes(source, nbytes)
        if nbytes:
            self.operations.append(Memcpy(target, source, nbytes))

    def gemm(self, gemm: Gemm) -> None:
        """Multiply matrices; with no rows, columns or matrices there is nothing to do.

        Raises ValueError for sizes that do not fit each other or the arrays, TypeError for arrays of another type.
        """
        problem = problem_of(gemm, self._matrix_problem)
        if problem is not None:
            raise ValueError(f"{self.callee.name}, matrix product: {problem}{self._origin()}")
        if not gemm.is_empty:
            self.operations.append(gemm)

    def misalignment(self, pointer: Pointer | None, alignment: int) -> int:
        """Return ``(uintptr_t)pointer % alignment``, for alignments of up to 16 bytes.

        Asking makes it so for the start of the array: one that lies otherwise is copied for the call.
        """
        if pointer is None:
            return 0
        slot = self.slots[pointer.slot]
        slot.align = max(slot.align, alignment)
        return pointer.byte_offset % alignment

    def scratch(self, ctype: str, count: int) -> Pointer:
        """Return uninitialised memory that every call allocates anew and that lives until it ends in stream order."""
        ctype = self.binding.ctype(ctype.rstrip("* "))
        dtype = c_dtype(ctype, self.precision)
        self.slots.append(Slot(f"scratch {len(self.slots)}", dtype, count, is_scratch=True))
        return Pointer(len(self.slots) - 1, 0, f"{ctype}*", self.precision)

    def call(
        self, launcher: Launcher | types.FunctionType, /, *args: Any, template: Sequence[Any] = (), **named: Any
    ) -> None:
        """Do here what another launcher, or a local function, does with these arguments. Raises what it raises."""
        if isinstance(launcher, types.FunctionType):
            launcher(*args, **named)
            return
        if named:
            bound = launcher.signature.bind(*args, **named)
            bound.apply_defaults()
            args = bound.args
        params = launcher.params[: len(args)]
        dtypes = [self._pointed_dtype(arg) for arg in args]
        binding = bind(launcher.name, params, dtypes, launcher.template, template, self.precision, args)
        inner = Plan(launcher, self.place, binding)
        inner.operations, inner.slots = self.operations, self.slots
        values = (inner._pass(launcher.name, p, arg, binding) for p, arg in zip(params, args, strict=True))
        launcher.function(inner, *values)

    def cast(self, pointer: Pointer | None, ctype: str) -> Pointer | None:
        """Return the same place as a pointer of another type; null stays null."""
        return None if pointer is None else pointer.cast(ctype)

    def _bind_arguments(
        self, kernel: Kernel, args: Sequence[Argument], template: Sequence[Any]
    ) -> tuple[Instance, tuple[Argument, ...]]:
        if len(args) != len(kernel.params):
            raise TypeError(f"{kernel.name} takes {len(kernel.params)} arguments, {len(args)} are given")
        dtypes = [self._pointed_dtype(arg) for arg in args]
        given = [self.binding.types.get(item, item) if isinstance(item, str) else item for item in template]
        binding = bind(kernel.name, kernel.params, dtypes, kernel.template, given, self.precision, args)
        instance = kernel.instance(binding)
        passed = tuple(
            self._pass(kernel.name, param, arg, instance.binding)
            for param, arg in zip(kernel.params, args, strict=True)
        )
        for param, arg in zip(kernel.params, passed, strict=True):
            if isinstance(arg, Pointer):
                self._check_pointer(kernel, param, arg)
        return instance, passed

    def _pass(self, callee: str, param: Param, arg: Argument, binding: Binding) -> Argument:
        """Convert an argument to a parameter's type; TypeError where C++ would not."""
        label = f"{callee}: `{param.name}`"
        if param.tag is not None or param.is_launcher:
            return arg
        if not param.is_pointer:
            return c_scalar(arg, scalar_type(binding.ctype(param.base), self.precision), param.name, callee)
        if arg is None:
            # The source's own text passes null here; what callers may leave out is checked where they call.
            return None
        if not isinstance(arg, Pointer):
            raise TypeError(f"{label} is {arg!r}; {param.ctype} takes an array")
        wanted, given = param.dtype(self.precision, binding.types), self._pointed_dtype(arg)
        if wanted is not None and given is not None and wanted != given:
            raise TypeError(f"{label} is {arg.ctype} ({given}), but {param.ctype} takes {wanted}; cast the pointer")
        return arg.cast(binding.ctype(param.ctype))

    def _pointed_dtype(self, arg: Argument) -> np.dtype[Any] | None:
        if not isinstance(arg, Pointer):
            return None
        try:
            return array_dtype(arg.base, self.precision)
        except KeyError:
            raise TypeError(f"{self.callee.name}: {arg.ctype} is no pointer to numbers{self._origin()}") from None

    def _check_pointer(self, kernel: Kernel, param: Param, pointer: Pointer) -> None:
        """Alignment of the offset (the slot's own is seen to at the call), and reach of 32-bit indices (CASES A12)."""
        slot = self.slots[pointer.slot]
        align = max(param.align, 1)
        if pointer.byte_offset % align:
            raise ValueError(
                f"{kernel.name}: `{param.name}` needs {align}-byte alignment for its loads, but starts "
                f"{pointer.byte_offset} bytes into `{slot.name}`{self._origin()}"
            )
        slot.align = max(slot.align, align)
        count = slot.nbytes // pointer.itemsize
        if count >= INDEX_LIMIT and not kernel.wide_indices:
            raise OverflowError(
                f"{kernel.name}: `{slot.name}` has {count} elements, but the kernel indexes with 32 bits "
                f"(at most {INDEX_LIMIT - 1}); split the call{self._origin()}"
            )

    def _matrix_problem(self, matrix: Matrix, name: str, count: int) -> str | None:
        """Return what is wrong with the array that ``count`` elements of a matrix lie in; TypeError for its type."""
        pointer, dtype = matrix.pointer, MATRIX_DTYPES[matrix.dtype]
        if not isinstance(pointer, Pointer):
            raise TypeError(f"{self.callee.name}, matrix product: {name} is null{self._origin()}")
        slot = self.slots[pointer.slot]
        given = self._pointed_dtype(pointer)
        if (given or slot.dtype) != dtype:
            raise TypeError(
                f"{self.callee.name}, matrix product: {name} is {pointer.ctype} ({given or slot.dtype}), "
                f"but {matrix.dtype} is {dtype}{self._origin()}"
            )
        available = (slot.nbytes - pointer.byte_offset) // dtype.itemsize
        if pointer.byte_offset < 0 or pointer.byte_offset % dtype.itemsize:
            return f"{name} starts {pointer.byte_offset} bytes into `{slot.name}`"
        if count > available:
            return f"{name} has {count} elements, `{slot.name}` has {max(available, 0)} from there on"
        slot.align = max(slot.align, dtype.itemsize)
        return None

    def _check_bytes(self, pointer: Pointer, nbytes: int) -> None:
        slot = self.slots[pointer.slot]
        available = slot.nbytes - pointer.byte_offset
        if nbytes < 0 or pointer.byte_offset < 0 or nbytes > available:
            raise ValueError(
                f"{self.callee.name}: {nbytes} bytes from offset {pointer.byte_offset} of `{slot.name}` are touched, "
                f"which has {slot.nbytes}{self._origin()}"
            )

    def _check_cooperative(self, instance: Instance, grid: Dim3, block: Dim3, shared: int) -> None:
        blocks = math.prod(grid)
        per_processor = instance.compiled(self.place).max_active_blocks(math.prod(block), shared)
        most = per_processor * self.device.multiProcessorCount
        if blocks > most:
            raise LaunchError(
                f"{instance.name}: a kernel that waits for its whole grid needs all {blocks} blocks at once, and "
                f"{self.device.name} runs at most {most} of {math.prod(block)} threads ({per_processor} on each of "
                f"{self.device.multiProcessorCount} multiprocessors)"
            )

    def _compiled(self, kernel: Kernel, template: Sequence[Any]) -> CompiledKernel:
        given = [self.binding.types.get(item, item) if isinstance(item, str) else item for item in template]
        nothing = [None] * len(kernel.params)
        binding = bind(kernel.name, kernel.params, nothing, kernel.template, given, self.precision)
        return kernel.instance(binding).compiled(self.place)

    def _origin(self) -> str:
        return f" ({self.callee.origin})" if self.callee.origin else ""
