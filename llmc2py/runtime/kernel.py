"""Kernels as Python objects: ``kernel[grid, block](*arrays)``, templates instantiated from dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import Place, backend_named
from llmc2py.runtime.backends import CompiledKernel
from llmc2py.runtime.callsite import CallSite
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import PrecisionError
from llmc2py.runtime.params import Binding, Param, TemplateParam, TemplateValue, cpp_argument
from llmc2py.runtime.plan import Plan
from llmc2py.runtime.source import KernelRequest, KernelSource

_WIDE_INTEGERS = ("long", "unsigned long", "long long", "unsigned long long")
_MAX_CONFIGURATIONS = 256

Dims = int | tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """A kernel with its template arguments and precision decided."""

    kernel: Kernel
    binding: Binding

    @property
    def name(self) -> str:
        """The C++ name expression."""
        if not self.kernel.template:
            return self.kernel.name
        args = ", ".join(cpp_argument(value, self.binding.precision) for value in self.binding.template)
        return f"{self.kernel.name}<{args}>"

    @property
    def request(self) -> KernelRequest:
        """What a backend is asked to compile."""
        kernel, binding = self.kernel, self.binding
        parameters = tuple(binding.ctype(param.ctype) for param in kernel.params)
        return KernelRequest(
            kernel.source, self.name, kernel.selector, binding.precision, parameters, kernel.cooperative
        )

    def compiled(self, place: Place) -> CompiledKernel:
        """Return this instance compiled and loaded on a device. Raises CompileError."""
        return backend_named(place.backend).kernel(self.request, place.device)


class Kernel:
    """A ``__global__`` function.

    ``kernel[grid, block](*args)`` or ``kernel[grid, block, shared_bytes](*args)`` launches it on NumPy arrays (on the
    CPU) or CuPy arrays (on CUDA); ``grid`` and ``block`` are integers or tuples of one to three. Template types follow
    from the arrays' dtypes; other template arguments are given as ``kernel[numpy.float32, 8][grid, block]`` or by
    ``instantiate``. ``wide_indices`` says that the kernel's indices have 64 bits; without it, it is taken to have them
    where it takes a 64-bit integer, and arrays of 2^31 elements are refused otherwise. The source has the kernel in
    ``precisions``; a ``cooperative`` one waits for its whole grid, so that all blocks must fit on the device at once.
    """

    def __init__(
        self,
        source: KernelSource,
        name: str,
        params: Sequence[Param],
        *,
        origin: str | None = None,
        template: Sequence[TemplateParam] = (),
        selector: str | None = None,
        wide_indices: bool | None = None,
        precisions: Sequence[str] = tuple(PRECISIONS),
        cooperative: bool = False,
    ) -> None:
        self.source = source
        self.name = name
        self.params = tuple(params)
        self.origin = origin
        self.template = tuple(template)
        self.precisions = tuple(precisions)
        self.cooperative = cooperative
        self.selector = selector or f"SLICE_{name}"
        has_wide_integer = any(not p.is_pointer and p.base in _WIDE_INTEGERS for p in self.params)
        self.wide_indices = has_wide_integer if wide_indices is None else wide_indices
        self._plain = KernelInstance(self, (), None)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}({', '.join(f'{p.ctype} {p.name}' for p in self.params)}) of {self.origin}>"

    def __getitem__(self, index: Any) -> Any:
        """Return the kernel with a launch configuration, or with template arguments."""
        try:
            return self._plain.configured[index]
        except (KeyError, TypeError):
            items = index if isinstance(index, tuple) else (index,)
        names_types = any(isinstance(item, (str, bool, type, np.dtype)) for item in items)
        if names_types or not self._follows_from_arguments():
            return self.instantiate(*items)
        return self._plain[index]

    def __call__(self, *args: Any) -> None:
        """Raise TypeError: a kernel is launched with a grid and a block."""
        raise TypeError(f"{self.name} needs a launch configuration: {self.name}[grid, block](...)")

    def instantiate(self, *template: Any, precision: str | None = None) -> KernelInstance:
        """Return the kernel with these template arguments (types as dtypes or C names).

        ``precision`` decides what ``floatX`` is inside a kernel that takes no ``floatX`` array (float32 otherwise).
        Raises TypeError for arguments that the template has not.
        """
        if len(template) > len(self.template):
            raise TypeError(f"{self.name} takes {len(self.template)} template arguments, {len(template)} are given")
        values = tuple(t.value(given, self.name) for t, given in zip(self.template, template, strict=False))
        return KernelInstance(self, values, precision)

    def instance(self, binding: Binding) -> Instance:
        """Return the instance for template arguments and a precision that have been found.

        Raises PrecisionError for a precision that the source does not have the kernel in.
        """
        if binding.precision not in self.precisions:
            where = f" ({self.origin})" if self.origin else ""
            raise PrecisionError(
                f"{self.name} is not there in {binding.precision}: the source{where} has it in "
                f"{', '.join(self.precisions)} alone; give it arrays of such a dtype, or instantiate() it with "
                f"`precision=` where none of its arrays decides"
            )
        return Instance(self, binding)

    def _follows_from_arguments(self) -> bool:
        bases = {param.base for param in self.params if param.is_pointer}
        tags = {param.tag for param in self.params}
        return all(
            t.default is not None or t.name in tags or (t.kind == "type" and t.name in bases) for t in self.template
        )


class KernelInstance:
    """A kernel with its template arguments; ``[grid, block]`` or ``[grid, block, shared_bytes]`` configures it."""

    def __init__(self, kernel: Kernel, template: tuple[TemplateValue, ...], precision: str | None) -> None:
        self.kernel = kernel
        self._template = template
        self._precision = precision
        self.configured: dict[Any, ConfiguredKernel] = {}

    def __getitem__(self, index: tuple[Dims, Dims] | tuple[Dims, Dims, int]) -> ConfiguredKernel:
        """Return the kernel with a launch configuration."""
        try:
            return self.configured[index]
        except (KeyError, TypeError):
            return self._configure(index)

    def _configure(self, index: Any) -> ConfiguredKernel:
        if not isinstance(index, tuple) or len(index) not in (2, 3):
            raise TypeError(f"{self.kernel.name}[{index!r}]: [grid, block] or [grid, block, shared_bytes] is taken")
        grid, block, shared = (*index, 0)[:3]
        key = tuple(tuple(item) if isinstance(item, list) else item for item in index)
        configured = ConfiguredKernel(self.kernel, grid, block, shared, self._template, self._precision)
        if len(self.configured) >= _MAX_CONFIGURATIONS:
            self.configured.clear()
        self.configured[key] = configured
        return configured


class ConfiguredKernel(CallSite):
    """A kernel with its launch configuration, to be called with its arguments."""

    def __init__(
        self,
        kernel: Kernel,
        grid: Dims,
        block: Dims,
        shared_bytes: int,
        template: tuple[TemplateValue, ...],
        precision: str | None,
    ) -> None:
        def launch(plan: Plan, *args: Any) -> None:
            plan.launch(kernel, grid, block, shared_bytes, *args, template=template)

        super().__init__(
            kernel.name, kernel.origin, kernel.params, kernel.template, launch, given=template, precision=precision
        )
