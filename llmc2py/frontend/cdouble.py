"""Rewrite a parsed C translation unit from float to double, and print it as a C99 source of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pycparser import c_ast, c_generator

from llmc2py.frontend.cnames import REAL_TYPES, UnreadableError


def _words(text: str) -> list[str]:
    return text.split()


_SUFFIXED = _words(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma "
    "fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan "
    "nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc"
)
_LIMITS = _words("DIG EPSILON MANT_DIG MAX MAX_10_EXP MAX_EXP MIN MIN_10_EXP MIN_EXP TRUE_MIN DECIMAL_DIG")

#: The double spelling of what the C library and CUDA's host headers have for float.
DOUBLE_NAMES = {
    **{f"{name}f": name for name in _SUFFIXED},
    **{f"FLT_{name}": f"DBL_{name}" for name in _LIMITS},
    **{f"__{name}f": name for name in ("cos", "exp", "log", "log2", "log10", "pow", "sin", "tan")},
    "HUGE_VALF": "HUGE_VAL",
    "strtof": "strtod",
    "rsqrtf": "llmc2py_rsqrt",
    "rsqrt": "llmc2py_rsqrt",
}

#: What a reference may use without defining it.
LIBRARY_NAMES = frozenset(
    {*_SUFFIXED, *DOUBLE_NAMES, *DOUBLE_NAMES.values()}
    | set(_words("INFINITY NAN HUGE_VAL FLT_RADIX NULL true false RAND_MAX EXIT_SUCCESS EXIT_FAILURE stdout stderr"))
    | {f"M_{name}" for name in _words("E LOG2E LOG10E LN2 LN10 PI PI_2 PI_4 1_PI 2_PI 2_SQRTPI SQRT2 SQRT1_2")}
    | {f"{kind}_{end}" for kind in _words("SCHAR CHAR SHRT INT LONG LLONG") for end in ("MIN", "MAX")}
    | {f"{kind}_MAX" for kind in _words("UCHAR USHRT UINT ULONG ULLONG SIZE")}
    | {f"{sign}INT{bits}_MAX" for sign in ("", "U") for bits in (8, 16, 32, 64)}
    | {f"INT{bits}_MIN" for bits in (8, 16, 32, 64)}
    | set(_words("isnan isinf isfinite isnormal signbit abs labs llabs malloc calloc realloc free memcpy memset"))
    | set(_words("memmove printf fprintf puts fflush assert abort exit rand srand qsort strtod __builtin_expect"))
)

_EXTREMA = {"llmc2py_max": ">", "llmc2py_min": "<", "max": ">", "min": "<"}

_HEADER = """\
#define _DEFAULT_SOURCE
#ifndef NDEBUG
#define NDEBUG
#endif
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
"""
_CONSTANTS = {
    "M_E": "2.71828182845904523536",
    "M_LN2": "0.693147180559945309417",
    "M_PI": "3.14159265358979323846",
    "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.707106781186547524401",
}
_RSQRT = "static double llmc2py_rsqrt(double x)\n{\n  return 1.0 / sqrt(x);\n}\n"


def double_unit(unit: c_ast.FileAST, name: str, operands: dict[str, c_ast.Node], *, abs_is_generic: bool) -> str:
    """Return the C99 source in which ``name`` of a parsed unit, and all that it uses, computes in double.

    The unit is changed. ``operands`` are the operands of ``__typeof__`` by the type name that stands for each.
    ``abs_is_generic`` tells that a plain ``abs`` is C++'s, which keeps its argument's type.
    """
    used, declared = _names(unit, operands.values())
    missing = sorted(set(used) - declared - LIBRARY_NAMES - set(_EXTREMA) - {"llmc2py_abs"})
    if missing:
        raise UnreadableError(f"it uses {', '.join(missing)}, which this file does not define", used[missing[0]])
    generic = {"llmc2py_abs", *(["abs"] if abs_is_generic else [])} - declared
    rewrite = _Rewriter(declared, generic)
    printer = c_generator.CGenerator()
    for placeholder, operand in operands.items():
        rewrite.types[placeholder] = f"__typeof__({printer.visit(_map(operand, rewrite))})"
    externals = [_with_linkage(_map(external, rewrite), name) for external in unit.ext]
    functions = [external for external in externals if isinstance(external, c_ast.FuncDef)]
    others = [external for external in externals if not isinstance(external, c_ast.FuncDef)]
    prototypes = [function.decl for function in functions if function.decl.name != name]
    lines = [f"{printer.visit(node)};" for node in (*others, *prototypes)]
    texts = [_HEADER]
    constants = sorted(set(used) & set(_CONSTANTS))
    texts += [f"#ifndef {key}\n#define {key} {_CONSTANTS[key]}\n#endif\n" for key in constants]
    if {"rsqrt", "rsqrtf"} & set(used):
        texts.append(_RSQRT)
    return "\n".join([*texts, *lines, *(printer.visit(function) for function in functions)])


class _Rewriter:
    """Rewrites one node whose children are rewritten already; returns it or what replaces it."""

    def __init__(self, declared: set[str], generic_abs: set[str]) -> None:
        self.declared = declared
        self.generic_abs = generic_abs
        self.types = {**dict.fromkeys(REAL_TYPES, "double"), "uint": "unsigned int", "ulong": "unsigned long"}

    def __call__(self, node: c_ast.Node) -> c_ast.Node:
        handler: Callable[[Any], Any] | None = getattr(self, f"rewrite_{type(node).__name__}", None)
        return node if handler is None else handler(node)

    def rewrite_IdentifierType(self, node: Any) -> Any:  # noqa: N802
        node.names = [self.types.get(name, name) for name in node.names]
        return node

    def rewrite_Constant(self, node: Any) -> Any:  # noqa: N802
        if node.type == "float":
            node.type, node.value = "double", node.value.rstrip("fF")
        return node

    def rewrite_ID(self, node: Any) -> Any:  # noqa: N802
        if node.name not in self.declared:
            node.name = DOUBLE_NAMES.get(node.name, node.name)
        return node

    # std::max(a, b)   std::abs(x)   memcpy(&bits, &value, 4)
    def rewrite_FuncCall(self, node: Any) -> Any:  # noqa: N802
        if not isinstance(node.name, c_ast.ID) or node.name.name in self.declared:
            return node
        name, arguments = node.name.name, node.args.exprs if node.args else []
        if name in _EXTREMA and len(arguments) == 2:
            first, second = _pure(arguments, name)
            test = c_ast.BinaryOp(_EXTREMA[name], first, second)
            return c_ast.TernaryOp(test, copy.deepcopy(first), copy.deepcopy(second), node.coord)
        if name in self.generic_abs and len(arguments) == 1:
            (value,) = _pure(arguments, name)
            test = c_ast.BinaryOp("<", value, c_ast.Constant("int", "0"))
            return c_ast.TernaryOp(test, c_ast.UnaryOp("-", copy.deepcopy(value)), copy.deepcopy(value), node.coord)
        if name == "memcpy" and any(_is_address(argument) for argument in arguments):
            raise UnreadableError("it copies the bytes of one variable into another", node.coord)
        return node

    # *(int*)&x
    def rewrite_Cast(self, node: Any) -> Any:  # noqa: N802
        target = getattr(node.to_type.type, "type", None)
        names = getattr(getattr(target, "type", None), "names", ["void"])
        is_number = not {"void", "double"} & set(names)
        if isinstance(node.to_type.type, c_ast.PtrDecl) and is_number and _is_address(node.expr):
            raise UnreadableError("it reads the bits of one type as another", node.coord)
        return node

    def rewrite_Union(self, node: Any) -> Any:  # noqa: N802
        raise UnreadableError("it uses a union, whose layout changes with double", node.coord)


def _is_address(node: Any) -> bool:
    while isinstance(node, c_ast.Cast):
        node = node.expr
    return isinstance(node, c_ast.UnaryOp) and node.op == "&"


def _pure(arguments: list[Any], name: str) -> list[Any]:
    """Return the arguments of a call that is about to evaluate them twice, if that makes no difference."""
    for argument in arguments:
        for node in walk(argument):
            steps = isinstance(node, c_ast.UnaryOp) and node.op in ("++", "--", "p++", "p--")
            if steps or isinstance(node, c_ast.Assignment):
                raise UnreadableError(f"an argument of {name.removeprefix('llmc2py_')} has a side effect", node.coord)
    return arguments


def _with_linkage(external: Any, name: str) -> Any:
    """Give the reference external linkage and everything beside it internal linkage."""
    decl = external.decl if isinstance(external, c_ast.FuncDef) else external
    if not isinstance(decl, c_ast.Decl) or decl.name is None:
        return external
    if "extern" in decl.storage and not isinstance(external, c_ast.FuncDef):
        raise UnreadableError(f"it uses {decl.name}, which another file defines", decl.coord)
    decl.storage = [] if decl.name == name else ["static"]
    decl.funcspec = []
    return external


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and everything below it, parents first."""
    yield node
    for _, child in node.children():
        yield from walk(child)


def _map(node: Any, rewrite: _Rewriter) -> Any:
    """Rewrite a tree from the leaves up, in place where it can be."""
    for slot in node.__slots__:
        value = getattr(node, slot, None)
        if isinstance(value, c_ast.Node):
            setattr(node, slot, _map(value, rewrite))
        elif isinstance(value, list):
            setattr(node, slot, [_map(item, rewrite) if isinstance(item, c_ast.Node) else item for item in value])
    return rewrite(node)


def _names(unit: Any, operands: Iterable[Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the identifiers that expressions use, each with its first coordinate, and the names declared."""
    used: dict[str, Any] = {}
    declared: set[str] = set()
    pending = [unit, *operands]
    while pending:
        node = pending.pop()
        if isinstance(node, c_ast.ID):
            used.setdefault(node.name, node.coord)
        elif isinstance(node, (c_ast.Decl, c_ast.Enumerator, c_ast.Typedef)) and node.name:
            declared.add(node.name)
        if isinstance(node, c_ast.StructRef):
            pending.append(node.name)
        elif isinstance(node, c_ast.NamedInitializer):
            pending.append(node.expr)
        else:
            pending += reversed([child for _, child in node.children()])
    return used, declared
