"""C types as the generator sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class CType:
    """A C type in canonical form.

    ``base`` is a canonical scalar name (``unsigned int``, ``float``, ``bfloat16``), ``floatX`` for the type that the
    precision macros choose, a template parameter, or the name of a class; ``pointers`` counts the stars; ``const``
    speaks of what the last star points to (of the value itself where there is none).
    """

    base: str
    pointers: int = 0
    const: bool = False

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.base}{'*' * self.pointers}"

    @property
    def is_pointer(self) -> bool:
        return self.pointers > 0

    @property
    def is_integer(self) -> bool:
        return not self.pointers and self.base in INTEGER_TYPES

    @property
    def is_floating(self) -> bool:
        return not self.pointers and self.base in FLOATING_TYPES

    @property
    def is_unsigned(self) -> bool:
        return self.is_integer and (self.base.startswith("unsigned") or self.base == "bool")

    @property
    def tag(self) -> str | None:
        """The template parameter that this type carries as a value: ``std::bool_constant<Name>``."""
        return self.base.removeprefix("tag:") if self.base.startswith("tag:") and not self.pointers else None

    @property
    def pointee(self) -> CType:
        """The type that this pointer points to."""
        return replace(self, pointers=self.pointers - 1)

    @property
    def value(self) -> CType:
        """The type without its top-level const."""
        return self if self.pointers else replace(self, const=False)


INTEGER_TYPES = {
    "bool": 0,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "short": 2,
    "unsigned short": 2,
    "int": 4,
    "unsigned int": 5,
    "long": 6,
    "unsigned long": 7,
    "long long": 8,
    "unsigned long long": 9,
}
FLOATING_TYPES = frozenset({"float", "double", "half", "bfloat16", "floatX"})
_ELEMENTS = (
    "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "double", "half", "bfloat16",
)  # fmt: skip
#: CUDA's vectors: ``float4``, ``uint2``.
VECTOR_TYPES = frozenset(f"{element}{size}" for element in _ELEMENTS for size in (1, 2, 3, 4))

#: The type of a parameter that takes a launcher (a template parameter that the source calls like a function).
LAUNCHER = CType("launcher")
INT = CType("int")
FLOAT = CType("float")
BOOL = CType("bool")
LONG = CType("long")
SIZE_T = CType("unsigned long")
DOUBLE = CType("double")

#: Spellings that mean the same type, on the 64-bit platforms that CUDA runs on.
CANONICAL_NAMES = {
    "unsigned": "unsigned int",
    "signed": "int",
    "signed int": "int",
    "uint": "unsigned int",
    "uchar": "unsigned char",
    "ushort": "unsigned short",
    "ulong": "unsigned long",
    "short int": "short",
    "long int": "long",
    "unsigned long int": "unsigned long",
    "unsigned short int": "unsigned short",
    "long long int": "long long",
    "unsigned long long int": "unsigned long long",
    "long unsigned int": "unsigned long",
    "size_t": "unsigned long",
    "std::size_t": "unsigned long",
    "ssize_t": "long",
    "ptrdiff_t": "long",
    "std::ptrdiff_t": "long",
    "intptr_t": "long",
    "uintptr_t": "unsigned long",
    "int8_t": "signed char",
    "int16_t": "short",
    "int32_t": "int",
    "int64_t": "long",
    "uint8_t": "unsigned char",
    "uint16_t": "unsigned short",
    "uint32_t": "unsigned int",
    "uint64_t": "unsigned long",
    "__half": "half",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16_raw": "unsigned short",
}


def canonical_name(spelling: str) -> str:
    """Return the canonical name of a type specifier, white space folded."""
    folded = " ".join(spelling.split())
    return CANONICAL_NAMES.get(folded, CANONICAL_NAMES.get(folded.removeprefix("std::"), folded))


def promote(left: CType, right: CType) -> CType:
    """C's usual arithmetic conversions for two scalar types."""
    if left.is_floating or right.is_floating:
        return CType("double") if "double" in (left.base, right.base) else CType("float")
    rank = max(INTEGER_TYPES.get(left.base, 4), INTEGER_TYPES.get(right.base, 4), 4)
    return next(CType(name) for name, value in INTEGER_TYPES.items() if value == rank)
