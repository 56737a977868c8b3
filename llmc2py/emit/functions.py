"""The autograd function of an op, as values for the module template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from llmc2py.emit.text import indent, prose
from llmc2py.ir.plans import ArraySpec, ModulePlan, OpPlan

#: Functions of ``llmc2py.runtime.ops`` that generated code may use.
OPS = frozenset(
    {
        "accumulator",
        "as_float32",
        "cast",
        "contiguous",
        "copy",
        "device_of",
        "empty",
        "empty_like",
        "rows",
        "take",
        "take_like",
        "zeros",
        "zeros_like",
    }
)
#: Dtypes of ``llmc2py.runtime.dtypes`` that a recipe may name.
_DTYPES = frozenset({"float32", "int32", "boolean"})


def function_values(module: ModulePlan, op: OpPlan) -> dict[str, Any]:
    """Return what the template needs for the op's forward and backward pass."""
    inputs = [*op.inputs, *op.parameters]
    forward = [*_forward_prelude(op), *op.forward.lines]
    backward = [*_backward_prelude(op), *op.backward.lines]
    names = {"take", *op.forward.names, *op.backward.names}
    text = "\n".join([*forward, *backward])
    names |= {name for name in OPS if re.search(rf"\b{name}\(", text)}
    dtypes = set(op.precisions) | (names & _DTYPES)
    return {
        "op": op,
        "names": names,
        "dtypes": dtypes,
        "precisions": tuple_text(op.precisions),
        "quanta": _quanta(op),
        "inputs": ", ".join(one.name for one in inputs),
        "typed_inputs": ", ".join(f"{one.name}: Array" for one in inputs),
        "tensor_inputs": ", ".join(f"{one.name}: Tensor | Array" for one in inputs),
        "incoming": ", ".join(f"d{one.name}: Array" for one in op.outputs),
        "returns": "Array" if len(op.outputs) == 1 else f"tuple[{', '.join('Array' for _ in op.outputs)}]",
        "tensor_returns": "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]",
        "gradient_returns": "Array" if len(inputs) == 1 else f"tuple[{', '.join('Array' for _ in inputs)}]",
        "summary": prose(op.summary, 108),
        "details": prose(op.details, 112),
        "forward": indent(forward, 2),
        "backward": indent(backward, 2),
        "saves": ", ".join(op.saves),
        "outputs": ", ".join(one.name for one in op.outputs),
        "gradients": ", ".join(op.gradients[one.name] for one in inputs) if op.gradients else "",
        "origin": module.origin,
        "array_docs": [line for one in inputs + list(op.outputs) for line in _array_doc(one)],
    }


def _array_doc(spec: ArraySpec) -> list[str]:
    shape = ", ".join("..." if letter == "*" else letter for letter in spec.shape)
    return prose(f"{spec.name}: ({shape}){': ' + spec.doc if spec.doc else ''}", 104)


def tuple_text(items: Iterable[str]) -> str:
    """Return a tuple display of expressions."""
    found = list(items)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def _quanta(op: OpPlan) -> list[str]:
    """``GELU_FORWARD_QUANTUM = {float32: 2048, …}`` for each launcher that wants whole blocks."""
    quanta = op.forward.quanta | op.backward.quanta
    return [
        f"{name} = {{{', '.join(f'{one}: {sizes[one]}' for one in op.precisions)}}}"
        for name, sizes in sorted(quanta.items())
    ]


def _forward_prelude(op: OpPlan) -> list[str]:
    first = op.inputs[0]
    lines = [
        f'{first.name} = take("{op.layer}", "{first.name}", {first.name}, DTYPES)',
        *_sizes(op, first.name, first.shape),
    ]
    lines += [_taken_like(op, one.name, f"{first.name}.shape") for one in op.inputs[1:]]
    lines += [_taken_like(op, one.name, tuple_text(one.shape)) for one in op.parameters]
    return lines + _vector(op.forward.names, first.name)


def _taken_like(op: OpPlan, name: str, shape: str) -> str:
    first = op.inputs[0].name
    return f'{name} = take_like("{op.layer}", "{name}", {name}, {shape}, "{first}", {first})'


def _backward_prelude(op: OpPlan) -> list[str]:
    lines = [f"{_targets(op.saves)} = ctx.saved"] if op.saves else []
    lines += [f"d{one.name} = contiguous(d{one.name})" for one in op.outputs]
    first = op.outputs[0]
    return (
        lines + _sizes(op, f"d{first.name}", first.shape, checked=False) + _vector(op.backward.names, f"d{first.name}")
    )


def _targets(names: tuple[str, ...]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def _sizes(op: OpPlan, name: str, shape: tuple[str, ...], *, checked: bool = True) -> list[str]:
    lines = op.backward.lines if not checked else op.forward.lines
    uses = set(re.findall(r"\b[A-Z]\w*\b", "\n".join(lines)))
    if shape == ("*",):
        return [f"N = {name}.size"] if "N" in uses else []
    if checked or {"N", *shape[1:]} & uses:
        return [f'N, {", ".join(shape[1:])} = rows("{op.layer}", "{name}", {name})']
    return []


def _vector(names: frozenset[str], first: str) -> list[str]:
    return [f"vector = 16 // {first}.dtype.itemsize"] if "vector" in names else []
