"""Calls of cuBLAS and cuBLASLt in host code, as matrix products of a plan.

Descriptors become objects of the runtime that the Python function fills as the C++ did; handles, workspaces and
algorithms are the runtime's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from llmc2py.diagnostics import SourceError
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.blas import POINTER_ATTRIBUTES, PRODUCT_CALLS, SET_DESCRIPTOR
from llmc2py.ir.library import Intent
from llmc2py.lower.environment import REFERENCE
from llmc2py.lower.lowered import LOR, TERNARY, Lowered

if TYPE_CHECKING:
    from llmc2py.lower.hostcalls import HostCallLowering

#: Calls that leave nothing to do: handles, workspaces and preferences, and the end of descriptors.
_IGNORED = re.compile(
    r"cublas(Lt)?(Create|Destroy)|cublas(Set|Get)(Stream|Workspace)|cublasLtMatmulPreference\w+|"
    r"cublasLt(MatmulDesc|MatrixLayout)Destroy"
)


def lower_cublas(host: HostCallLowering, node: ex.Call) -> list[str] | None:
    """Return the lines of a call of cuBLAS or cuBLASLt; None for a call of anything else.

    Raises SourceError for one that a plan cannot do.
    """
    name = node.function.removesuffix("_v2")
    if not name.startswith("cublas"):
        return None
    if _IGNORED.fullmatch(name):
        return []
    if name in PRODUCT_CALLS:
        return _product(host, node, name)
    if name not in _CALLS:
        raise SourceError(node.span, f"a call of {node.function}() cannot be lowered")
    least, lower = _CALLS[name]
    host.require_arguments(node, least)
    return lower(host, node)


# cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)
def _product(host: HostCallLowering, node: ex.Call, name: str) -> list[str]:
    form = PRODUCT_CALLS[name]
    host.require_arguments(node, form.end)
    parts = [
        reference(host, argument).text if index in (form.alpha, form.beta) else host.text(argument)
        for index, argument in list(enumerate(node.arguments))[form.first : form.end]
    ]
    return [f"plan.gemm({form.function}({', '.join(parts)}))"]


# cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)
def _create_descriptor(host: HostCallLowering, node: ex.Call) -> list[str]:
    name, _ = host.written(node, node.arguments[0])
    return [f"{name} = LtMatmulDesc({', '.join(host.text(one) for one in node.arguments[1:])})"]


# cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, rows, cols, ld)
def _create_layout(host: HostCallLowering, node: ex.Call) -> list[str]:
    name, _ = host.written(node, node.arguments[0])
    return [f"{name} = LtMatrixLayout({', '.join(host.text(one) for one in node.arguments[1:])})"]


# cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &value, sizeof(value))
def _set_attribute(host: HostCallLowering, node: ex.Call) -> list[str]:
    owner, attribute, value = node.arguments[:3]
    return [f"{host.text(owner)}.set({host.text(attribute)}, {reference(host, value).text})"]


# cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, 1, &result, &count)
def _find_algorithm(host: HostCallLowering, node: ex.Call) -> list[str]:
    """The runtime finds its own algorithm, so there always is one."""
    name, _ = host.written(node, node.arguments[-1])
    return [f"{name} = 1"]


# cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH)
def _set_math_mode(host: HostCallLowering, node: ex.Call) -> list[str]:
    mode = node.arguments[-1]
    if isinstance(mode, ex.Name) and mode.name in ("CUBLAS_DEFAULT_MATH", "CUBLAS_PEDANTIC_MATH"):
        return []
    raise SourceError(node.span, "another math mode than CUBLAS_DEFAULT_MATH cannot be lowered")


#: What lowers a call, and of how many arguments it makes sense.
_CALLS: dict[str, tuple[int, Callable[[HostCallLowering, ex.Call], list[str]]]] = {
    "cublasLtMatmulDescCreate": (3, _create_descriptor),
    "cublasLtMatrixLayoutCreate": (5, _create_layout),
    SET_DESCRIPTOR: (3, _set_attribute),
    "cublasLtMatrixLayoutSetAttribute": (3, _set_attribute),
    "cublasLtMatmulAlgoGetHeuristic": (10, _find_algorithm),
    "cublasSetMathMode": (2, _set_math_mode),
}


# &alpha, (const void*)&alpha, c ? &a : &b, or a local pointer that was set to one of these
def reference(host: HostCallLowering, node: ex.Expression) -> Lowered:
    """Return the value of the host variable that a pointer points to. Raises SourceError where that is not known."""
    if isinstance(node, ex.Cast):
        return reference(host, node.operand)
    if isinstance(node, ex.Unary) and node.operator == "&" and isinstance(node.operand, ex.Name):
        return host.lower(node.operand)
    if isinstance(node, ex.Conditional):
        condition = host.lower(node.condition)
        one, other = reference(host, node.consequence), reference(host, node.alternative)
        return Lowered(f"{one.at(LOR)} if {condition.at(LOR)} else {other.at(TERNARY)}", one.type, TERNARY)
    if isinstance(node, ex.Name):
        lowered = host.lower(node)
        if lowered.type == REFERENCE:
            return lowered
    raise SourceError(node.span, "what this points to is not known when a plan is made")


def is_reference(host: HostCallLowering, node: ex.Expression) -> bool:
    """Whether an expression is the address of a local variable, or the choice between several."""
    if isinstance(node, ex.Cast):
        return is_reference(host, node.operand)
    if isinstance(node, ex.Conditional):
        return is_reference(host, node.consequence) and is_reference(host, node.alternative)
    if isinstance(node, ex.Unary) and node.operator == "&" and isinstance(node.operand, ex.Name):
        return node.operand.name in host.environment.variables
    return False


def zero_names(body: ir.Body) -> set[str]:
    """Return the variables that are nought all the time, such as ``const float beta = 0.0f``."""
    changed = {
        statement.target.name
        for statement in ir.walk(body)
        if isinstance(statement, ir.Assign) and isinstance(statement.target, ex.Name)
    }
    return {
        statement.name
        for statement in ir.walk(body)
        if isinstance(statement, ir.Declare) and isinstance(statement.value, ex.Number) and not statement.value.value
    } - changed


def product_effects(statement: ir.Statement, zeros: set[str]) -> Iterator[tuple[ex.Expression, Intent]]:
    """Yield the pointers that a statement gives to cuBLAS and what is done with the memory behind each."""
    for value in vars(statement).values():
        for call in ex.walk(value) if isinstance(value, ex.Expression) else ():
            if isinstance(call, ex.Call):
                yield from _call_effects(call, zeros)


def _call_effects(call: ex.Call, zeros: set[str]) -> Iterator[tuple[ex.Expression, Intent]]:
    arguments = call.arguments
    form = PRODUCT_CALLS.get(call.function.removesuffix("_v2"))
    if form is not None and len(arguments) >= form.end:
        yield arguments[form.a], Intent.IN
        yield arguments[form.b], Intent.IN
        beta = arguments[form.beta]
        is_zero = any(isinstance(part, ex.Name) and part.name in zeros for part in ex.walk(beta))
        if form.c == form.d or arguments[form.c] == arguments[form.d]:
            yield arguments[form.d], Intent.OUT if is_zero else Intent.INOUT
        else:
            yield arguments[form.c], Intent.IN
            yield arguments[form.d], Intent.OUT
    elif call.function == SET_DESCRIPTOR and len(arguments) > 2:
        _, attribute, value = arguments[:3]
        if isinstance(attribute, ex.Name) and attribute.name in POINTER_ATTRIBUTES and isinstance(value, ex.Unary):
            is_bias = attribute.name.endswith("BIAS_POINTER")
            yield value.operand, Intent.IN if is_bias else Intent.INOUT
