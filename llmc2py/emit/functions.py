"""The autograd function of an op, as values for the module template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from llmc2py.emit.text import indent, prose
from llmc2py.ir.plans import ArraySpec, OpPlan, OptionSpec, Recipe

#: Functions of ``llmc2py.runtime.ops`` that generated code may use.
OPS = frozenset(
    {
        "accumulator", "as_float32", "as_type", "assign", "cast", "clear", "contiguous", "copy", "cropped",
        "crossentropy_gradient", "device_of", "empty", "empty_like", "fitted", "length", "mend_losses", "ones", "own",
        "part", "put", "require", "rows", "scale", "softmax_gradient", "softmax_of", "take", "take_indices",
        "take_like", "writable", "zeros", "zeros_like",
    }
)  # fmt: skip
#: Dtypes of ``llmc2py.runtime.dtypes`` that a recipe may name.
_DTYPES = frozenset({"float32", "int32", "boolean"})
_LEADING = "*"


def function_values(op: OpPlan) -> dict[str, Any]:
    """Return what the template needs for the op's forward and backward pass."""
    inputs = [*op.inputs, *op.parameters]
    arguments = [*(one.name for one in inputs), *(one.name for one in op.options)]
    prelude, kept = _backward_prelude(op)
    forward = _requirements_first(_forward_prelude(op, kept), op)
    backward = [*prelude, *op.backward.lines]
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
        "inputs": ", ".join(arguments),
        "differentiable": ", ".join(one.name for one in inputs if one.below is None),
        "typed_inputs": ", ".join([*(_typed(one, "Array") for one in inputs), *map(_typed_option, op.options)]),
        "tensor_inputs": ", ".join(
            [*(_typed(one, "Tensor | Array") for one in inputs), *map(_typed_option, op.options)]
        ),
        "incoming": ", ".join(f"d{one.name}: Array" for one in op.outputs),
        "returns": "Array" if len(op.outputs) == 1 else f"tuple[{', '.join('Array' for _ in op.outputs)}]",
        "tensor_returns": "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]",
        "gradient_returns": "Array" if len(arguments) == 1 else f"tuple[{', '.join(_returned(op))}]",
        "summary": prose(op.summary, 108),
        "details": prose(op.details, 112),
        "forward": indent(forward, 2),
        "backward": indent(backward, 2),
        "saves": ", ".join(op.saves),
        "overwrites": tuple_text(
            str(index) for index, one in enumerate(op.outputs) if f"own(ctx, d{one.name})" in text
        ),
        "outputs": ", ".join(one.name for one in op.outputs),
        "gradients": ", ".join(op.gradients.get(name, "None") for name in arguments) if op.gradients else "",
        "origin": op.origin,
        "array_docs": [
            *(line for one in inputs for line in _array_doc(one)),
            *(line for option in op.options for line in _option_doc(option)),
            *(line for one in op.outputs for line in _array_doc(one)),
        ],
    }


def _typed(spec: ArraySpec, kind: str) -> str:
    return f"{spec.name}: {kind}{' | None' if spec.optional else ''}"


def _typed_option(option: OptionSpec) -> str:
    return f"{option.name}: {option.kind}{f' = {option.default}' if option.default is not None else ''}"


def _returned(op: OpPlan) -> list[str]:
    """Return the types of what backward returns, one for each argument of forward."""
    own = [one.below is None for one in (*op.inputs, *op.parameters)]
    return ["Array" if differentiable else "None" for differentiable in [*own, *(False for _ in op.options)]]


def _array_doc(spec: ArraySpec) -> list[str]:
    shape = ", ".join("..." if letter == _LEADING else letter for letter in spec.shape)
    kind = f" int, below {spec.below}" if spec.below else f" {spec.dtype}" if spec.dtype else ""
    return prose(f"{spec.name}: ({shape}){kind}{': ' + spec.doc if spec.doc else ''}", 104)


def _option_doc(option: OptionSpec) -> list[str]:
    return prose(f"{option.name}: {option.doc or option.kind}", 104)


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


def _forward_prelude(op: OpPlan, kept: list[str]) -> list[str]:
    """Check the inputs, name their sizes, and keep what the backward pass cannot tell from the gradient."""
    arrays = [*op.inputs, *op.parameters]
    anchor = next(one for one in arrays if one.below is None and one.dtype is None)
    known: set[str] = set()
    lines = [f'{anchor.name} = take("{op.layer}", "{anchor.name}", {anchor.name}, DTYPES)']
    lines += _lead_sizes(op, known)
    for one in op.parameters:
        lines += _parameter_sizes(op, one, known)
    lines += [_taken(op, one, anchor) for one in arrays if one is not anchor]
    used = op.forward.values | set(kept)
    first = op.inputs[0]
    if "lead" in used:
        lines.append(f"lead = {_lead(first)}")
    if "dtype" in used:
        lines.append(f"dtype = {anchor.name}.dtype")
    return lines + _vector(op.forward) + [f"ctx.{name} = {name}" for name in kept]


def _requirements_first(prelude: list[str], op: OpPlan) -> list[str]:
    """Join prelude and recipe; what the recipe begins by requiring of sizes is asked before indices are looked at.

    Whether an index is too large is no question where the size that it is below is wrong itself.
    """
    lines = list(op.forward.lines)
    place = next((number for number, line in enumerate(prelude) if " = take_indices(" in line), len(prelude))
    known = {name for line in prelude[:place] for name in line.partition(" = ")[0].split(", ")}
    known |= {one.name for one in op.options}
    while lines and lines[0].startswith("require(") and known.issuperset(re.findall(r", (\w+)=\1\b", lines[0])):
        prelude = [*prelude[:place], lines.pop(0), *prelude[place:]]
        place += 1
    return prelude + lines


def _lead_sizes(op: OpPlan, known: set[str]) -> list[str]:
    """Name the sizes of the first input: ``N, T, C = rows(…)``; ``3C`` is divided."""
    first = op.inputs[0]
    letters = first.shape[1:]
    if not letters:
        return [f"N = {first.name}.size"] if "N" in op.forward.values | _kept_values(op) else []
    names = [letter if letter.isidentifier() else f"{first.name}_{_factor(letter)[1]}" for letter in letters]
    lines = [_rows(op.layer, first.name, names)]
    for letter, name in zip(letters, names, strict=True):
        if not letter.isidentifier():
            factor, own = _factor(letter)
            lines.append(f'{own} = part("{op.layer}", "{first.name}", {name}, {factor}, "{own}")')
            known.add(own)
        else:
            known.add(letter)
    return lines


def _rows(layer: str, name: str, sizes: list[str]) -> str:
    more = f", {len(sizes)}" if len(sizes) > 1 else ""
    return f'N, {", ".join(sizes)} = rows("{layer}", "{name}", {name}{more})'


def _parameter_sizes(op: OpPlan, one: ArraySpec, known: set[str]) -> list[str]:
    lines = []
    for axis, letter in enumerate(one.shape):
        if letter.isidentifier() and letter not in known:
            known.add(letter)
            lines.append(f'{letter} = length("{op.layer}", "{one.name}", {one.name}, {axis}, {len(one.shape)})')
    return lines


def _taken(op: OpPlan, one: ArraySpec, anchor: ArraySpec) -> str:
    first = op.inputs[0]
    if one.shape[:1] != (_LEADING,):
        shape = tuple_text(map(_size, one.shape))
    elif one.shape == first.shape:
        shape = f"{first.name}.shape"
    elif len(one.shape) == 1:
        shape = _lead(first)
    else:
        shape = f"(*{_lead(first)}, {', '.join(map(_size, one.shape[1:]))})"
    like = f'"{anchor.name}", {anchor.name}'
    if one.below is not None:
        return f'{one.name} = take_indices("{op.layer}", "{one.name}", {one.name}, {shape}, {one.below}, {like})'
    taken = f'take_like("{op.layer}", "{one.name}", {one.name}, {shape}, {like})'
    return f"{one.name} = None if {one.name} is None else {taken}" if one.optional else f"{one.name} = {taken}"


def _lead(first: ArraySpec) -> str:
    """Return the shape of the leading axes of an array as an expression."""
    trailing = len(first.shape) - 1
    return f"{first.name}.shape[:-{trailing}]" if trailing else f"{first.name}.shape"


def _size(axis: str) -> str:
    """Return the length of an axis as an expression: ``C``, ``3 * C``, ``2``."""
    factor, letter = _factor(axis)
    return axis if not factor or not letter else f"{factor} * {letter}"


def _factor(axis: str) -> tuple[str, str]:
    letter = axis.lstrip("0123456789")
    return axis[: len(axis) - len(letter)], letter


def _kept_values(op: OpPlan) -> set[str]:
    """Return what the backward pass uses that its first incoming gradient does not tell."""
    first = op.outputs[0]
    told = {"dtype"} if first.dtype is None else set()
    if first.shape[:1] == (_LEADING,):
        told |= {"N", "lead", *(axis for axis in first.shape[1:] if axis.isidentifier())}
    return set(op.backward.values) - told


def _backward_prelude(op: OpPlan) -> tuple[list[str], list[str]]:
    """Return the first lines of backward, and the names of the values that forward keeps for it."""
    lines = [f"{_targets(op.saves)} = ctx.saved"] if op.saves else []
    lines += [f"d{one.name} = contiguous(d{one.name})" for one in op.outputs]
    kept = sorted(_kept_values(op))
    lines += [f"{name} = ctx.{name}" for name in kept]
    first = ArraySpec(f"d{op.outputs[0].name}", op.outputs[0].shape)
    used = op.backward.values - set(kept)
    letters = [axis if axis.isidentifier() else "_" for axis in first.shape[1:]]
    if used & {"N", *letters}:
        lines.append(_rows(op.layer, first.name, letters) if letters else f"N = {first.name}.size")
    if "lead" in used:
        lines.append(f"lead = {_lead(first)}")
    if "dtype" in used:
        lines.append(f"dtype = {first.name}.dtype")
    return lines + _vector(op.backward), kept


def _targets(names: tuple[str, ...]) -> str:
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def _vector(recipe: Recipe) -> list[str]:
    return ["vector = 16 // dtype.itemsize"] if "vector" in recipe.names else []
