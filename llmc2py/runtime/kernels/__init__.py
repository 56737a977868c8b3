"""Kernels of the runtime's own, for what recipes need and llm.c has no kernel for; launchers that choose their blocks.

They run on both backends and are called as generated launchers are.
"""

from __future__ import annotations

from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

__all__ = ["convert", "crossentropy_gradient", "mend_losses", "scale_by", "softmax", "softmax_gradient"]

SOURCE = KernelSource.beside(__file__, "kernels.cu")

#: Threads of a block where no row has to fit; what kernels.cu calls KEPT and MOST_THREADS.
_BLOCK, _KEPT, _MOST_THREADS = 256, 4, 512
_CONVERTED = [Param("out", "To*", intent="out"), Param("inp", "const From*", intent="in"), Param("count", "long long")]
_TYPES = [TemplateParam("To", "type"), TemplateParam("From", "type")]
_SCALED = [
    Param("array", "floatX*", intent="inout"),
    Param("factor", "const float*", intent="in"),
    Param("count", "long long"),
]
_SOFTMAX = [Param("out", "floatX*", intent="out"), Param("inp", "const floatX*", intent="in"), Param("C", "int")]
_SOFTMAX_GRADIENT = [
    Param("dinp", "floatX*", intent="out"),
    Param("out", "const floatX*", intent="in"),
    Param("dout", "const floatX*", intent="in"),
    Param("C", "int"),
]
_CROSSENTROPY_GRADIENT = [
    Param("dlogits", "floatX*", intent="out"),
    Param("logits", "const floatX*", intent="in"),
    Param("losses", "const float*", intent="in"),
    Param("targets", "const int*", intent="in"),
    Param("dlosses", "const float*", intent="in"),
    Param("dloss_step", "int"),
    Param("share", "float"),
    Param("V", "int"),
    Param("P", "int"),
]
_MENDED = [
    Param("losses", "float*", intent="inout"),
    Param("logits", "const floatX*", intent="in"),
    Param("targets", "const int*", intent="in"),
    Param("N", "int"),
    Param("V", "int"),
    Param("P", "int"),
]
_ROWS = Param("N", "int")
_WHOLE = [TemplateParam("Whole", "bool")]

convert_kernel = Kernel(SOURCE, "convert_kernel", _CONVERTED, template=_TYPES)
scale_kernel = Kernel(SOURCE, "scale_kernel", _SCALED)
softmax_kernel = Kernel(SOURCE, "softmax_kernel", _SOFTMAX, template=_WHOLE, wide_indices=True)
softmax_gradient_kernel = Kernel(
    SOURCE, "softmax_gradient_kernel", _SOFTMAX_GRADIENT, template=_WHOLE, wide_indices=True
)
mend_losses_kernel = Kernel(SOURCE, "mend_losses_kernel", _MENDED, wide_indices=True)
crossentropy_gradient_kernel = Kernel(
    SOURCE, "crossentropy_gradient_kernel", _CROSSENTROPY_GRADIENT, template=_WHOLE, wide_indices=True
)


def _vector(plan: Plan) -> int:
    return 16 // plan.sizeof("floatX")


def _threads(plan: Plan, columns: int) -> int:
    """Return the threads of a block that keep a row in registers, or the most that there may be."""
    return min(_MOST_THREADS, 32 * ceil_div(max(columns, 1), 32 * _KEPT * _vector(plan)))


def _align(plan: Plan, *arrays: Pointer) -> None:
    """Have arrays that do not begin at a multiple of 16 bytes copied."""
    for array in arrays:
        plan.misalignment(array, 16)


def _check_rows(plan: Plan, count: int, text: str, columns: int, *arrays: Pointer) -> bool:
    """Check the sizes of arrays of rows and return whether the rows are whole packets."""
    for array in arrays:
        plan.check_extent(array, count, text)
    whole = columns % _vector(plan) == 0
    if whole:
        _align(plan, *arrays)
    return whole


@launcher(_CONVERTED, template=_TYPES)
def convert(plan: Plan, out: Pointer, inp: Pointer, count: int) -> None:
    """Write `count` elements of `inp` to `out`, rounded to the nearest of its type."""
    plan.check_extent(out, count, "count")
    plan.check_extent(inp, count, "count")
    _align(plan, out, inp)
    plan.launch(convert_kernel, ceil_div(count, 8 * _BLOCK), _BLOCK, 0, out, inp, count)


@launcher(_SCALED)
def scale_by(plan: Plan, array: Pointer, factor: Pointer, count: int) -> None:
    """Multiply `count` elements by the number in `factor`."""
    plan.check_extent(array, count, "count")
    plan.check_extent(factor, 1, "1")
    _align(plan, array)
    plan.launch(scale_kernel, ceil_div(count, _vector(plan) * _BLOCK), _BLOCK, 0, array, factor, count)


@launcher([*_SOFTMAX[:2], _ROWS, _SOFTMAX[2]])
def softmax(plan: Plan, out: Pointer, inp: Pointer, N: int, C: int) -> None:
    """Write the softmax of each of `N` rows of `C` elements."""
    whole = _check_rows(plan, N * C, "N * C", C, out, inp)
    plan.launch(softmax_kernel, N, _threads(plan, C), 0, out, inp, C, template=(whole,))


@launcher([*_SOFTMAX_GRADIENT[:3], _ROWS, _SOFTMAX_GRADIENT[3]])
def softmax_gradient(plan: Plan, dinp: Pointer, out: Pointer, dout: Pointer, N: int, C: int) -> None:
    """Write the gradient of what a softmax of `N` rows gave `out` for."""
    whole = _check_rows(plan, N * C, "N * C", C, dinp, out, dout)
    plan.launch(softmax_gradient_kernel, N, _threads(plan, C), 0, dinp, out, dout, C, template=(whole,))


@launcher(_MENDED)
def mend_losses(plan: Plan, losses: Pointer, logits: Pointer, targets: Pointer, N: int, V: int, P: int) -> None:
    """Compute those of `N` cross entropies anew, from rows of `P` logits of which `V` count, that are not exact enough.

    They are logarithms of probabilities near the smallest of their type, or of 0.
    """
    plan.require(0 < V <= P, "0 < V <= P", V=V, P=P)
    plan.check_extent(logits, N * P, "N * P")
    for array in (losses, targets):
        plan.check_extent(array, N, "N")
    plan.launch(mend_losses_kernel, ceil_div(N, _BLOCK), _BLOCK, 0, losses, logits, targets, N, V, P)


@launcher([*_CROSSENTROPY_GRADIENT[:5], Param("share", "float"), _ROWS, *_CROSSENTROPY_GRADIENT[7:]])
def crossentropy_gradient(
    plan: Plan,
    dlogits: Pointer,
    logits: Pointer,
    losses: Pointer,
    targets: Pointer,
    dlosses: Pointer,
    share: float,
    N: int,
    V: int,
    P: int,
) -> None:
    """Write the gradient of `N` rows of `P` logits, of which the first `V` count, from the losses of the rows.

    `dlosses` has one element for each row, or one for all. All are multiplied by `share`.
    """
    plan.require(0 < V <= P, "0 < V <= P", V=V, P=P)
    whole = _check_rows(plan, N * P, "N * P", P, dlogits, logits)
    for array in (losses, targets):
        plan.check_extent(array, N, "N")
    step = int(plan.slots[dlosses.slot].size != 1)
    plan.check_extent(dlosses, N if step else 1, "N")
    threads = min(_BLOCK, _threads(plan, P))
    stripes = ceil_div(P, threads * _KEPT * _vector(plan))
    plan.launch(
        crossentropy_gradient_kernel,
        (N, stripes),
        threads,
        0,
        dlogits,
        logits,
        losses,
        targets,
        dlosses,
        step,
        share,
        V,
        P,
        template=(whole,),
    )
