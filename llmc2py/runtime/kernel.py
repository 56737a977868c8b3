"""Kernels as Python objects: ``kernel[grid, block](*arrays)``, templates instantiated from dtypes."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import Place, backend_named
from llmc2py.runtime.backends import CompiledKernel
from llmc2py.runtime.callsite import CallSite, Uncopied
from llmc2py.runtime.configuration import Dims, checked_configuration, dim3, is_plain
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import PrecisionError
from llmc2py.runtime.params import (
    DEFAULT_PRECISION,
    Binding,
    Param,
    TemplateParam,
    TemplateValue,
    cpp_argument,
    template_values,
)
from llmc2py.runtime.plan import INDEX_LIMIT, Plan
from llmc2py.runtime.relaunch import FreeLaunch, only_launch
from llmc2py.runtime.signatures import SignatureOf, signature_of
from llmc2py.runtime.source import KernelRequest, KernelSource

_WIDE_INTEGERS = ("long", "unsigned long", "long long", "unsigned long long")
_MAX_CONFIGURATIONS = 256
#: Calls that are remembered to have come once.
_MAX_MET = 64


@dataclass(frozen=True)
class Instance:
    """A kernel with its template arguments and precision decided."""

    kernel: Kernel
    binding: Binding

    @property
    def name(self) -> str:
        """The C++ name expression."""
        kernel = self.kernel
        name = f"{kernel.namespace}::{kernel.name}" if kernel.namespace else kernel.name
        return _expression(name, self.binding.template, self.binding.precision)

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


class Kernel(Uncopied):
    """A ``__global__`` function.

    ``kernel[grid, block](*args)`` or ``kernel[grid, block, shared_bytes](*args)`` launches it on NumPy arrays (on the
    CPU) or CuPy arrays (on CUDA); ``grid`` and ``block`` are integers or tuples of one to three. Template types follow
    from the arrays' dtypes; other template arguments are given as ``kernel[numpy.float32, 8][grid, block]`` or by
    ``instantiate``. Where all of them follow from arrays or have defaults, two or three integers are a configuration.
    ``wide_indices`` says that the kernel's indices have 64 bits; without it, it is taken to have them
    where it takes a 64-bit integer, and arrays of 2^31 elements are refused otherwise. The source has the kernel in
    ``precisions``; a ``cooperative`` one waits for its whole grid, so that all blocks must fit on the device at once.
    ``namespace`` is what the source has it in (``a::b``).
    """

    def __init__(
        self,
        source: KernelSource,
        name: str,
        params: Sequence[Param],
        *,
        origin: str | None = None,
        namespace: str = "",
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
        self.namespace = namespace
        self.template = tuple(template)
        self.precisions = tuple(precisions)
        self.cooperative = cooperative
        self.selector = selector or f"SLICE_{name}"
        has_wide_integer = any(not p.is_pointer and p.base in _WIDE_INTEGERS for p in self.params)
        self.wide_indices = has_wide_integer if wide_indices is None else wide_indices
        self._instances: dict[Any, KernelInstance] = {}
        self._plain = KernelInstance(self, (), None)
        self.__doc__ = _described(self)

    __signature__ = SignatureOf(lambda kernel: kernel.signature)

    def __repr__(self) -> str:
        return _shown(self, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the declaration: what calls have prepared is of this process."""
        names = ("origin", "namespace", "template", "selector", "wide_indices", "precisions", "cooperative")
        declared = {name: getattr(self, name) for name in names}
        return functools.partial(Kernel, **declared), (self.source, self.name, self.params)

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of a launch, with their C types."""
        return signature_of(self.params)

    def __getitem__(self, index: Any) -> Any:
        """Return the kernel with a launch configuration, or with template arguments.

        Raises TypeError for what is neither.
        """
        configured = self._plain.known(index)
        if configured is not None:
            return configured
        if not self.template:
            return self._plain[index]
        items = index if isinstance(index, tuple) else (index,)
        names_types = any(isinstance(item, (str, bool, type, np.dtype)) for item in items)
        if not names_types and len(items) in (2, 3) and self._follows_from_arguments():
            return self._plain[index]
        try:
            return self.instantiate(*items)
        except TypeError as error:
            given = ", ".join(parameter.name for parameter in self.template)
            raise TypeError(
                f"{error}. [{', '.join(map(repr, items))}] was taken for template arguments; "
                f"with them the kernel is launched as {self.name}[{given}][grid, block](...)"
            ) from None

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError: a kernel is launched with a grid and a block."""
        raise TypeError(f"{self.name} needs a launch configuration: {self.name}[grid, block](...)")

    def instantiate(self, *template: Any, precision: str | None = None) -> KernelInstance:
        """Return the kernel with these template arguments (types as dtypes or C names).

        ``precision`` decides what ``floatX`` is inside a kernel that takes no ``floatX`` array (float32 otherwise).
        Raises TypeError for arguments that the template has not.
        """
        key = template_values(self.name, self.template, template), precision
        # To a dict, True and 1 are one key.
        return self._instances.setdefault((key, repr(key)), KernelInstance(self, *key))

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


class KernelInstance(Uncopied):
    """A kernel with its template arguments; ``[grid, block]`` or ``[grid, block, shared_bytes]`` configures it."""

    def __init__(self, kernel: Kernel, template: tuple[TemplateValue, ...], precision: str | None) -> None:
        self.kernel = kernel
        self.name = _expression(kernel.name, template, precision)
        self._template = template
        self._precision = precision
        self._configured: dict[Any, ConfiguredKernel] = {}
        #: By the kind of a call's arrays, what launches on them with any grid and scalars; True where there was one
        #: call, False where such arrays are copied.
        self.free: dict[tuple[Any, ...], FreeLaunch | bool] = {}
        self.__doc__ = kernel.__doc__

    __signature__ = SignatureOf(lambda kernel: kernel.signature)

    def __repr__(self) -> str:
        return _shown(self.kernel, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the kernel and its template arguments."""
        return KernelInstance, (self.kernel, self._template, self._precision)

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of a launch, with their C types."""
        return self.kernel.signature

    def __getitem__(self, index: tuple[Dims, Dims] | tuple[Dims, Dims, int]) -> ConfiguredKernel:
        """Return the kernel with a launch configuration. Raises TypeError for what is none."""
        return self.known(index) or self._configure(index)

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError: a kernel is launched with a grid and a block."""
        given = " has its template arguments, and" if self._template else ""
        raise TypeError(f"{self.name}{given} needs a launch configuration: [grid, block](...)")

    def known(self, index: Any) -> ConfiguredKernel | None:
        """Return the kernel with a launch configuration that has been asked for before, else None."""
        try:
            found = self._configured[index]
        except (KeyError, TypeError):
            return None
        return found if is_plain(index) else None

    def _configure(self, index: Any) -> ConfiguredKernel:
        key = checked_configuration(self.kernel.name, index)
        found = self.known(key)
        if found is None:
            found = ConfiguredKernel(self, *key, self._template, self._precision)
            if len(self._configured) >= _MAX_CONFIGURATIONS:
                self._configured.clear()
            self._configured[key] = self._configured[key[: len(index)]] = found
        return found


class ConfiguredKernel(CallSite):
    """A kernel with its launch configuration, to be called with its arguments.

    A plan is recorded for a call that comes again. What a kernel's plan depends on is the kind of its arrays alone:
    calls on a kind that came before, with a grid, sizes or scalars that have not, are launched without one.
    """

    def __init__(
        self,
        instance: KernelInstance,
        grid: Dims,
        block: Dims,
        shared_bytes: int,
        template: tuple[TemplateValue, ...],
        precision: str | None,
    ) -> None:
        kernel = instance.kernel

        def launch(plan: Plan, *args: Any) -> None:
            plan.launch(kernel, grid, block, shared_bytes, *args, template=template)

        super().__init__(
            kernel.name, kernel.origin, kernel.params, kernel.template, launch, given=template, precision=precision
        )
        self._shown = f"{instance.name}[{grid}, {block}{f', {shared_bytes}' if shared_bytes else ''}]"
        self._kernel = kernel
        self._instance = instance
        self._configuration = grid, block, shared_bytes
        self._grid = dim3(kernel.name, "grid", grid)
        self._met: set[tuple[Any, ...]] = set()
        self.__doc__ = kernel.__doc__

    def __repr__(self) -> str:
        return _shown(self._kernel, self._shown)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the kernel and its configuration."""
        return operator.getitem, (self._instance, self._configuration)

    def _first_call(self, key: tuple[Any, ...], args: Sequence[Any], pointers: list[int]) -> None:
        kind = None if key in self._met else self._kind_of(args, pointers)
        launch = None if kind is None else self._free_launch(kind, args, pointers)
        if launch is None:
            return super()._first_call(key, args, pointers)
        if len(self._met) >= _MAX_MET:
            self._met.clear()
        self._met.add(key)
        return launch(self._grid, args, pointers)

    def _free_launch(self, kind: tuple[Any, ...], args: Sequence[Any], pointers: list[int]) -> FreeLaunch | None:
        """Return what launches on arrays of a kind that came before; None for a new kind, or one that is copied."""
        known = self._instance.free
        found = known.get(kind)
        if found is None:
            if len(known) >= _MAX_CONFIGURATIONS:
                known.clear()
            known[kind] = True
        elif found is True:
            plan = self._record(args)
            launch = only_launch(plan)
            if launch is not None:
                known[kind] = found = not self._misplaced(plan, args, pointers) and FreeLaunch(plan, launch)
        return found if isinstance(found, FreeLaunch) else None

    def _kind_of(self, args: Sequence[Any], pointers: list[int]) -> tuple[Any, ...] | None:
        """Return what a plan depends on but for grid, sizes and scalars; None where it depends on these too."""
        arrays = self._arrays(args)
        # A kernel may take an array for one of bytes: where these are too many, a plan tells.
        has_usual_sizes = all(0 < array.nbytes < INDEX_LIMIT for array in arrays)
        if self._kernel.cooperative or self._has_open_scalars or not has_usual_sizes:
            return None
        kind: list[Any] = [self._configuration[1:]]
        for array, address in zip(arrays, pointers, strict=True):
            is_cpu = isinstance(array, np.ndarray)
            layout = (-1, array.flags.num) if is_cpu else (array.data.device_id, array.flags.c_contiguous)
            kind += (array.dtype, layout, address & 15)
        return (*kind, *(arg is None for arg in args))


def _expression(name: str, template: Sequence[TemplateValue], precision: str | None) -> str:
    """Return a kernel's name with template arguments as C++ has them; ``floatX`` stays where no precision is given."""
    open_type = None if precision else "floatX"
    args = [
        open_type if value == open_type else cpp_argument(value, precision or DEFAULT_PRECISION) for value in template
    ]
    return f"{name}<{', '.join(map(str, args))}>" if args else name


def _shown(kernel: Kernel, name: str) -> str:
    where = f" of {kernel.origin}" if kernel.origin else ""
    return f"<Kernel {name}({', '.join(map(_declared, kernel.params))}){where}>"


def _declared(param: Param) -> str:
    default = "" if param.default is inspect.Parameter.empty else f" = {param.default}"
    return f"{param.ctype} {param.name}{default}"


def _described(kernel: Kernel) -> str:
    """Return what ``help`` says of a kernel."""
    where = f" of {kernel.origin}" if kernel.origin else ""
    given = ", ".join(p.name for p in kernel.params)
    lines = [f"CUDA kernel{where}.", "", f"``{kernel.name}[grid, block]({given})`` launches it. Its parameters:", ""]
    lines += [f"    {_declared(p)}{f' ({p.intent})' if p.intent else ''}" for p in kernel.params]
    if kernel.template:
        template = [f"{t.kind} {t.name}{'' if t.default is None else f' = {t.default}'}" for t in kernel.template]
        names = ", ".join(t.name for t in kernel.template)
        lines += [
            "",
            f"Template: {', '.join(template)}. ``{kernel.name}[{names}][grid, block]`` gives arguments for it.",
        ]
    return "\n".join(lines)
