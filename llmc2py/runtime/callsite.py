"""The path of every call: recognise a call that was prepared before and run it, else check, record and prepare."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from llmc2py.runtime import arrays as arrays_module
from llmc2py.runtime.arrays import Place, check_dtype, check_writable, common_place, is_array, numpy_pointer, place_of
from llmc2py.runtime.csemantics import c_scalar
from llmc2py.runtime.dtypes import C_DTYPES, c_dtype
from llmc2py.runtime.interop import as_array, hand_back, is_foreign
from llmc2py.runtime.params import Binding, Param, TemplateParam, bind, scalar_type
from llmc2py.runtime.plan import Launch, Plan
from llmc2py.runtime.replay import Run, prepare, stage
from llmc2py.runtime.signatures import SignatureOf, signature_of

#: Prepared calls kept per launcher; the oldest goes first. A seed or learning rate makes a new one in every step.
MAX_PREPARED = 512

_ARRAY = object()
_ANY_SCALAR = object()
_SCALARS = (int, float, bool)


class _NoCupy:
    """Stands for ``cupy.ndarray`` as long as nobody has imported CuPy."""


_cupy_array: type = _NoCupy


class Uncopied:
    """What has nothing that a caller could change: its copy is itself, so that what refers to it can be copied."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class CallSite(Uncopied):
    """Something that is called with arrays and scalars and runs kernels on them.

    A call's key is what its plan depends on: dtype, size, contiguity and alignment of each array, the device, and the
    scalars. ``function(plan, *arguments)`` is called once per key.
    """

    def __init__(
        self,
        name: str,
        origin: str | None,
        params: Sequence[Param],
        template: Sequence[TemplateParam],
        function: Callable[..., None],
        *,
        given: Sequence[Any] = (),
        precision: str | None = None,
    ) -> None:
        self.name = name
        self.origin = origin
        self.params = tuple(params)
        self.template = tuple(template)
        self.function = function
        self._given = tuple(given)
        self._precision = precision
        self._kinds = tuple(_kind(param) for param in self.params)
        self._count = len(self._kinds)
        self._has_open_scalars = _ANY_SCALAR in self._kinds
        self._first_array = next((index for index, kind in enumerate(self._kinds) if kind is _ARRAY), 0)
        self._key_functions: dict[type, KeyFunction | None] = {np.ndarray: key_function(self._kinds, on_cuda=False)}
        self._prepared: dict[tuple[Any, ...], Run | None] = {}
        self._staged: dict[tuple[Any, ...], Callable[[list[int], list[Any]], None]] = {}
        self._lock = threading.Lock()

    __signature__ = SignatureOf(lambda site: site.signature)

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Run on arrays (all NumPy or all CuPy, on one device) and scalars.

        Raises TypeError (array type, dtype, device, null), ValueError (sizes), OverflowError (scalars), LaunchError and
        CompileError; nothing has run then.
        """
        if kwargs or len(args) != self._count:
            args = self._bind(args, kwargs)
        key_of = self._key_functions.get(args[self._first_array].__class__) if args else None
        if key_of is not None:
            found = key_of(*args)
            if found is not None:
                run = self._prepared.get(found[0])
                return run(found[1]) if run is not None else self._first_call(found[0], args, found[1])
        return self._call(args)

    def _call(self, args: Sequence[Any]) -> None:
        """Build the key of a call whose arguments are not all of the usual types, and run it."""
        key: list[Any] = []
        pointers: list[int] = []
        for value, kind in zip(args, self._kinds):  # noqa: B905 - the lengths are equal, and strict= costs time here
            cls = value.__class__
            if kind is _ARRAY:
                if cls is np.ndarray:
                    address = numpy_pointer(value)
                    key += (value.dtype, value.size, value.flags.num, address & 15)
                elif cls is _cupy_array:
                    memory = value.data
                    address = memory.ptr
                    key += (value.dtype, value.size, value._c_contiguous, address & 15, memory.device_id)
                elif value is None:
                    key.append(None)
                    continue
                else:
                    return self._call_normalised(args)
                pointers.append(address)
            elif cls is kind:
                # 0.0 and -0.0 are one key to a dict, so zeros go in by their text.
                key.append(value or repr(value))
            elif kind is _ANY_SCALAR and (cls in _SCALARS or isinstance(value, CallSite)):
                key += (cls, repr(value))
            else:
                return self._call_normalised(args)
        entry = tuple(key)
        run = self._prepared.get(entry)
        if run is not None:
            return run(pointers)
        return self._first_call(entry, args, pointers)

    def _call_normalised(self, args: Sequence[Any]) -> None:
        self(*self._normalised(args))
        hand_back(args)

    def plan(self, /, *args: Any, **kwargs: Any) -> Plan:
        """Return what a call with these arguments does, without compiling or running a kernel. Raises as a call."""
        return self._record(self._normal_form(self._bind(args, kwargs)))

    def warmup(self, /, *args: Any, **kwargs: Any) -> None:
        """Compile and load what a call with these arguments needs and run nothing: before a CUDA graph is captured.

        Raises as a call.
        """
        prepare(self.plan(*args, **kwargs))

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of a call."""
        return signature_of(self.params)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None
        bound.apply_defaults()
        return bound.args

    def _first_call(self, key: tuple[Any, ...], args: Sequence[Any], pointers: list[int]) -> None:
        staged = self._staged.get(key)
        if staged is None:
            plan = self._record(args)
            run = prepare(plan)
            misplaced = self._misplaced(plan, args, pointers)
            if not misplaced:
                self._keep(self._prepared, key, run)
                return run(pointers)
            used = [param for param, arg in zip(self.params, args, strict=True) if param.is_pointer and arg is not None]
            staged = stage(plan, run, used, misplaced)
            self._keep(self._staged, key, staged)
        return staged(pointers, self._arrays(args))

    def _keep(self, cache: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> None:
        with self._lock:
            if len(cache) >= MAX_PREPARED:
                del cache[next(iter(cache))]
            cache[key] = value

    def _arrays(self, args: Sequence[Any]) -> list[Any]:
        return [arg for param, arg in zip(self.params, args, strict=True) if param.is_pointer and arg is not None]

    def _misplaced(self, plan: Plan, args: Sequence[Any], pointers: Sequence[int]) -> list[int]:
        """Return the slots whose arrays a kernel cannot take as they lie: strided, or not aligned for its loads."""
        return [
            slot
            for slot, (array, address) in enumerate(zip(self._arrays(args), pointers, strict=True))
            if array.size and (not array.flags.c_contiguous or address % plan.slots[slot].align)
        ]

    def _normalised(self, args: Sequence[Any]) -> list[Any]:
        """Return the normal form of arguments of a call, and be ready for CuPy arrays from now on."""
        global _cupy_array
        _cupy_array = arrays_module.cupy_array_type() or _NoCupy
        self._key_functions[_cupy_array] = key_function(
            self._kinds, on_cuda=True, several_devices=arrays_module.has_several_devices()
        )
        return self._normal_form(args)

    def _normal_form(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments with exact types: base arrays, Python scalars. Raises TypeError, OverflowError."""
        global _cupy_array
        _cupy_array = arrays_module.cupy_array_type() or _NoCupy
        normal: list[Any] = []
        for param, kind, value in zip(self.params, self._kinds, args, strict=True):
            if isinstance(value, CallSite):
                normal.append(value)
            elif kind is _ANY_SCALAR:
                normal.append(_number(value, param.name, self.name))
            elif kind is not _ARRAY:
                normal.append(c_scalar(value, scalar_type(param.base, "float32"), param.name, self.name))
            elif value is None:
                normal.append(None)
            elif is_foreign(value):
                normal.append(as_array(value, param.name, self.name, written=param.is_written))
            elif is_array(value):
                normal.append(value if value.__class__ in (np.ndarray, _cupy_array) else value.view(_cupy_array))
            else:
                place_of(value, param.name, self.name)
        _cupy_array = arrays_module.cupy_array_type() or _NoCupy
        return normal

    def _record(self, args: Sequence[Any]) -> Plan:
        """Check the arguments and let the function fill a plan for them."""
        named = [(p.name, arg) for p, arg in zip(self.params, args, strict=True) if p.is_pointer and arg is not None]
        place = common_place(self.name, named) or Place("cpu", 0)
        dtypes = [
            arg.dtype if p.is_pointer and arg is not None else None for p, arg in zip(self.params, args, strict=True)
        ]
        binding = bind(self.name, self.params, dtypes, self.template, self._given, self._precision, args)
        plan = Plan(self, place, binding)
        values = [self._argument(plan, binding, p, arg) for p, arg in zip(self.params, args, strict=True)]
        try:
            self.function(plan, *values)
        except ZeroDivisionError as error:
            where = f" ({self.origin})" if self.origin else ""
            raise ValueError(f"{self.name}: these sizes lead to a division by zero{where}") from error
        if any(
            p.is_written and arg is not None and arg.size == 0
            for p, arg in zip(self.params, args, strict=True)
            if p.is_pointer
        ):
            # An empty result leaves nothing to compute, whatever the grid says.
            plan.operations = [operation for operation in plan.operations if not isinstance(operation, Launch)]
        return plan

    def _argument(self, plan: Plan, binding: Binding, param: Param, arg: Any) -> Any:
        if param.is_launcher:
            if not isinstance(arg, CallSite):
                raise TypeError(f"{self.name}: `{param.name}` is {arg!r}; it takes a launcher")
            return arg
        if param.tag is not None:
            return arg
        if not param.is_pointer:
            ctype = scalar_type(binding.ctype(param.base), binding.precision)
            return c_scalar(arg, ctype, param.name, self.name)
        if arg is None:
            if param.nullable:
                return None
            raise TypeError(f"{self.name}: `{param.name}` is None, but the kernel needs it; pass an array")
        check_dtype(arg, param.dtype(binding.precision, binding.types), param.name, param.ctype, self.name)
        if param.is_written:
            check_writable(arg, param.name, self.name)
        return plan.add_array(param, arg.dtype, arg.size)


def _number(value: Any, name: str, callee: str) -> int | float | bool:
    """Return a scalar of a template type as a Python number; its type is checked when the template is bound."""
    number = value.item() if isinstance(value, np.generic) else value
    if number.__class__ not in _SCALARS:
        number = c_scalar(value, "double", name, callee)
    return number


KeyFunction = Callable[..., "tuple[tuple[Any, ...], list[int]] | None"]


@functools.cache
def key_function(kinds: tuple[object, ...], *, on_cuda: bool, several_devices: bool = False) -> KeyFunction | None:
    """Return a function that makes the key and the addresses of a call with arrays of one type, written out.

    It does for the usual arguments what `CallSite._call` does for all, without a loop; it returns None for arguments of
    other types. None where a parameter takes scalars of any type.
    """
    if _ANY_SCALAR in kinds:
        return None
    tests, setup, key, pointers = [], [], [], []
    for index, kind in enumerate(kinds):
        name = f"a{index}"
        tests.append(f"{name}.__class__ is {'array_type' if kind is _ARRAY else getattr(kind, '__name__', '')}")
        if kind is not _ARRAY:
            key.append(f"{name} or repr({name})")
            continue
        pointers.append(f"p{index}")
        if on_cuda:
            # With one device there is no other that an array could be on.
            device = f", {name}.data.device_id" if several_devices else ""
            setup.append(f"p{index} = {name}.data.ptr")
            key.append(f"{name}.dtype, {name}.size, {name}._c_contiguous, p{index} & 15{device}")
        else:
            setup.append(f"p{index} = numpy_pointer({name})")
            key.append(f"{name}.dtype, {name}.size, {name}.flags.num, p{index} & 15")
    lines = [
        f"def key_of({', '.join(f'a{index}' for index in range(len(kinds)))}):",
        f"    if {' and '.join(tests) or 'True'}:",
        *(f"        {line}" for line in setup),
        f"        return ({', '.join(key)},), [{', '.join(pointers)}]" if key else "        return (), []",
    ]
    names: dict[str, Any] = {
        "array_type": arrays_module.cupy_array_type() if on_cuda else np.ndarray,
        "numpy_pointer": numpy_pointer,
    }
    exec("\n".join(lines), names)
    function: KeyFunction = names["key_of"]
    return function


def _kind(param: Param) -> object:
    """Return the Python type that a scalar parameter's normal form has, or the marker of an array."""
    if param.is_pointer:
        return _ARRAY
    if param.base not in (*C_DTYPES, "floatX"):
        return _ANY_SCALAR
    kind = c_dtype(param.base, "float32").kind
    return int if kind in "iu" else bool if kind == "b" else float
