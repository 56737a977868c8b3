"""Names of types that a function of plain C may use without defining them, and the error for what is no plain C."""

from __future__ import annotations

from typing import Any

INTEGER_TYPES = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long",
    "uint64_t": "unsigned long",
    "size_t": "unsigned long",
    "ssize_t": "long",
    "ptrdiff_t": "long",
    "intptr_t": "long",
    "uintptr_t": "unsigned long",
    "uint": "unsigned int",
    "ulong": "unsigned long",
    "bool": "_Bool",
    "clock_t": "long",
    "time_t": "long",
    "FILE": "int",
}

#: Types that become double. They are typedefs to pycparser, but no name of the printed source.
REAL_TYPES = {
    "float": "float",
    "floatX": "floatX",
    "_Float16": "half",
    "__fp16": "half",
    "half": "half",
    "__half": "half",
    "__bf16": "bfloat16",
    "bf16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "float_t": "float",
}

SUPPLIED = frozenset({*INTEGER_TYPES, *REAL_TYPES})


class UnreadableError(Exception):
    """A construct that is no plain C or cannot be carried over to double.

    ``place`` is its line and column in the text, if known; a coordinate of pycparser's says it as well.
    """

    def __init__(self, message: str, coord: Any = None) -> None:
        super().__init__(message)
        place = coord if coord is None or isinstance(coord, tuple) else (coord.line, coord.column or 1)
        self.place: tuple[int, int] | None = place
