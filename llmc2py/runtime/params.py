"""Parameters of kernels and launchers: their C types, and what template parameters stand for in one call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from llmc2py.runtime.csemantics import c_bool, c_int
from llmc2py.runtime.dtypes import C_DTYPES, PRECISIONS, c_dtype

INTENTS = ("in", "out", "inout", "accumulate")
#: How a canonical type is spelled in a C++ name expression.
CPP_SPELLING = {"bfloat16": "__nv_bfloat16"}
DEFAULT_PRECISION = "float32"
#: What stands before the name of a template parameter in the type of a parameter that carries its value.
TAG = "tag:"

TemplateValue = str | int | bool
_NO_TYPES: Mapping[str, str] = MappingProxyType({})
_VECTOR = re.compile(r"(char|uchar|short|ushort|int|uint|long|ulong|longlong|float|double|half|bfloat16)([1234])")
#: What points to bytes of any type, with its size.
_UNTYPED = {"void": 1, "x128": 16, "f128": 16}
_VECTOR_ELEMENTS = {
    "uchar": "unsigned char",
    "ushort": "unsigned short",
    "uint": "unsigned int",
    "ulong": "unsigned long",
    "longlong": "long long",
}
_DTYPE_NAMES: dict[np.dtype[Any], str] = {dtype: ctype for ctype, dtype in reversed(C_DTYPES.items())}


@functools.cache
def array_dtype(base: str, precision: str) -> np.dtype[Any] | None:
    """Return the dtype of arrays of a canonical C type; None for ``void`` and vectors. Raises KeyError for others."""
    return None if base in _UNTYPED or _VECTOR.fullmatch(base) else c_dtype(base, precision)


@functools.cache
def _base_and_star(ctype: str) -> tuple[str, str]:
    return ctype.removeprefix("const ").rstrip("* "), "*" if ctype.endswith("*") else ""


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel or launcher.

    ``ctype`` is canonical C: a name of ``dtypes.C_DTYPES``, ``floatX`` or a template parameter, for arrays with a
    trailing ``*`` and perhaps a leading ``const``. ``intent`` says what the kernel does with the array (``in``,
    ``out``, ``inout``, ``accumulate``); ``align`` is the alignment in bytes that its loads and stores need. ``default``
    is what a call that does not give it passes.
    """

    name: str
    ctype: str
    intent: str | None = None
    align: int = 0
    nullable: bool = False
    default: Any = inspect.Parameter.empty

    def __post_init__(self) -> None:
        """Raise ValueError for an intent, alignment or type that does not exist."""
        if self.intent is not None and self.intent not in INTENTS:
            raise ValueError(f"`{self.name}`: intent {self.intent!r} is none of {', '.join(INTENTS)}")
        if self.align not in (0, 1, 2, 4, 8, 16):
            raise ValueError(f"`{self.name}`: alignment {self.align} is none of 0, 1, 2, 4, 8, 16")
        if self.ctype.count("*") > 1:
            raise ValueError(f"`{self.name}`: {self.ctype} is a pointer to pointers, which no array is")

    @functools.cached_property
    def is_pointer(self) -> bool:
        """Whether the parameter is an array."""
        return self.ctype.endswith("*")

    @functools.cached_property
    def is_const(self) -> bool:
        """Whether the type says that what it points to is not written."""
        return self.ctype.startswith("const ")

    @functools.cached_property
    def base(self) -> str:
        """The C type of the scalar, or of what the pointer points to."""
        return self.ctype.removeprefix("const ").rstrip("* ")

    @functools.cached_property
    def tag(self) -> str | None:
        """The template parameter whose value this parameter carries (``std::bool_constant<Name>``), if it is one."""
        return self.base.removeprefix(TAG) if self.base.startswith(TAG) else None

    @functools.cached_property
    def is_launcher(self) -> bool:
        """Whether the parameter takes another launcher."""
        return self.ctype == "launcher"

    @functools.cached_property
    def is_written(self) -> bool:
        """Whether the array may be written: by its intent or, where that is not known, by not being ``const``."""
        if self.intent is None:
            return self.is_pointer and not self.is_const
        return self.intent != "in"

    def dtype(self, precision: str, types: Mapping[str, str] = _NO_TYPES) -> np.dtype[Any] | None:
        """Return the dtype that arrays of this parameter have; None for ``void*`` and pointers to vectors.

        Raises TypeError for a type that no array has, such as a struct.
        """
        base = types.get(self.base, self.base)
        try:
            return array_dtype(base, precision)
        except KeyError:
            raise TypeError(f"`{self.name}` is {self.ctype}; there are no arrays of {base}") from None


@dataclass(frozen=True)
class TemplateParam:
    """A template parameter: a type (deduced from array dtypes where it can be), a number, a truth value, a function.

    ``kind`` is ``"type"``, ``"int"``, ``"bool"``, ``"function"`` (the name of a device function of the source) or, for
    the number of an enumerator, ``"enum "`` and the enumeration as C++ names it. The ``default`` is a value or, of a
    type, a canonical C name or that of a type parameter before it.
    """

    name: str
    kind: str = "type"
    default: Any = None

    def value(self, given: Any, callee: str) -> TemplateValue:
        """Return a template argument in its normal form, types as canonical C. Raises TypeError."""
        if self.kind == "int":
            return c_int(given, "long long", self.name, callee)
        if self.kind == "bool":
            return c_bool(given, self.name, callee)
        if self.kind.startswith("enum "):
            # C++ makes no enumerator of a number by itself.
            cast = f"({self.kind.removeprefix('enum ')})"
            number = given.removeprefix(cast) if isinstance(given, str) else given
            is_made = number is not given and number.removeprefix("-").isdigit()
            return f"{cast}{c_int(int(number) if is_made else number, 'long long', self.name, callee)}"
        if self.kind == "function":
            if isinstance(given, str) and all(part.isidentifier() for part in given.split("::")):
                return given
            raise TypeError(f"{callee}: template parameter `{self.name}` is {given!r}; it takes a function's name")
        return type_name(given, f"{callee}: template parameter `{self.name}`")


@dataclass(frozen=True)
class Binding:
    """What ``floatX`` and the template parameters stand for in one call."""

    precision: str
    template: tuple[TemplateValue, ...]
    types: Mapping[str, str]

    def ctype(self, ctype: str) -> str:
        """Return a C type without ``const``, with template parameters replaced."""
        base, star = _base_and_star(ctype)
        return self.types.get(base, base) + star


def type_name(given: Any, label: str) -> str:
    """Return the canonical C name of a C type name, dtype or NumPy scalar type. Raises TypeError."""
    if isinstance(given, str) and (given in C_DTYPES or given == "floatX"):
        return given
    if given is not None:
        try:
            return _DTYPE_NAMES[np.dtype(given)]
        except (TypeError, KeyError):
            pass
    raise TypeError(f"{label} is {given!r}; it takes a type such as numpy.float32 or 'float'")


def dtype_name(dtype: np.dtype[Any], label: str) -> str:
    """Return the canonical C name of an array's dtype. Raises TypeError for one that C has not."""
    try:
        return _DTYPE_NAMES[dtype]
    except KeyError:
        raise TypeError(f"{label} is {dtype}, which no C type of a kernel stands for") from None


@functools.cache
def element_size(base: str, precision: str) -> int:
    """Return the size of a canonical C type in bytes; vectors such as ``float4`` and ``x128`` included."""
    if base.endswith("*"):
        return 8
    if base in _UNTYPED:
        return _UNTYPED[base]
    if vector := _VECTOR.fullmatch(base):
        element, count = vector.groups()
        return C_DTYPES[_VECTOR_ELEMENTS.get(element, element)].itemsize * int(count)
    return c_dtype(base, precision).itemsize


def scalar_type(ctype: str, precision: str) -> str:
    """Return the concrete C type of a scalar; ``floatX`` is the type of the precision."""
    return _DTYPE_NAMES[PRECISIONS[precision]] if ctype == "floatX" else ctype


def cpp_argument(value: TemplateValue, precision: str) -> str:
    """Return a template argument as C++ spells it in a name expression."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    ctype = scalar_type(value, precision)
    return CPP_SPELLING.get(ctype, ctype)


def bind(
    callee: str,
    params: Sequence[Param],
    dtypes: Sequence[np.dtype[Any] | None],
    template: Sequence[TemplateParam] = (),
    given: Sequence[Any] = (),
    precision: str | None = None,
    args: Sequence[Any] = (),
) -> Binding:
    """Find what ``floatX`` and the template parameters are from the dtypes of the arrays (None: no array there).

    ``args`` are the arguments themselves; those of tag parameters decide the template parameters that they carry.

    Where no array is of ``floatX``, it is the one 16-bit type that template parameters stand for, if there is one.

    Raises TypeError where arrays disagree, where ``floatX`` is no precision, or where an argument is missing.
    """
    _check_count(callee, template, given)
    agreed = _agreed_types(callee, params, dtypes, {"floatX", *(t.name for t in template if t.kind == "type")})
    found = agreed.get("floatX")
    if found is not None and precision is None:
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == C_DTYPES[found])
    values: list[TemplateValue] = []
    types: dict[str, str] = {}
    tags = {param.tag: arg for param, arg in zip(params, args, strict=False) if param.tag is not None}
    for index, parameter in enumerate(template):
        # A type's default may be a type parameter before it.
        default = types.get(parameter.default, parameter.default)
        fallback = agreed.get(parameter.name, default)
        chosen = given[index] if index < len(given) else tags.get(parameter.name, fallback)
        if chosen is None:
            raise TypeError(f"{callee}: template parameter {parameter.name} follows from no array; instantiate() it")
        values.append(parameter.value(chosen, callee))
        if parameter.kind == "type":
            types[parameter.name] = str(values[-1])
    return Binding(precision or _narrow_precision(types) or DEFAULT_PRECISION, tuple(values), types)


def template_values(callee: str, template: Sequence[TemplateParam], given: Sequence[Any]) -> tuple[TemplateValue, ...]:
    """Return template arguments, perhaps fewer than there are parameters, in their normal form. Raises TypeError."""
    _check_count(callee, template, given)
    return tuple(parameter.value(value, callee) for parameter, value in zip(template, given, strict=False))


def _check_count(callee: str, template: Sequence[TemplateParam], given: Sequence[Any]) -> None:
    if len(given) > len(template):
        arguments = "argument" if len(template) == 1 else "arguments"
        raise TypeError(f"{callee} takes {len(template)} template {arguments}, {len(given)} are given")


def _narrow_precision(types: Mapping[str, str]) -> str | None:
    """Return the only 16-bit precision among types: a template launcher may call kernels that are fixed to floatX."""
    narrow = {
        name for name, dtype in PRECISIONS.items() if dtype.itemsize == 2 and _DTYPE_NAMES[dtype] in types.values()
    }
    return narrow.pop() if len(narrow) == 1 else None


def _agreed_types(
    callee: str, params: Sequence[Param], dtypes: Sequence[np.dtype[Any] | None], open_types: set[str]
) -> dict[str, str]:
    """Return the C type of each open type that arrays decide; TypeError where two arrays disagree."""
    agreed: dict[str, str] = {}
    source: dict[str, str] = {}
    for param, dtype in zip(params, dtypes, strict=True):
        base = param.base
        if dtype is None or not param.is_pointer or base not in open_types:
            continue
        if base == "floatX" and dtype not in PRECISIONS.values():
            choices = ", ".join(PRECISIONS)
            raise TypeError(
                f"{callee}: `{param.name}` is {dtype}, but {param.ctype} takes one of {choices}; "
                f"convert it with `.astype(numpy.float32)`"
            )
        ctype = dtype_name(dtype, f"{callee}: `{param.name}`")
        if agreed.setdefault(base, ctype) != ctype:
            first = source[base]
            raise TypeError(
                f"{callee}: `{first}` is {C_DTYPES[agreed[base]]} and `{param.name}` is {dtype}; "
                f"all {base} arrays of a call have one dtype: convert one with `.astype`"
            )
        source.setdefault(base, param.name)
    return agreed
