"""Layers for PyTorch over the launch plans of a package, as one file."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from llmc2py.emit import render
from llmc2py.emit.functions import tuple_text
from llmc2py.emit.layers import checked_names
from llmc2py.emit.text import prose, quoted
from llmc2py.ir.plans import ArraySpec, ModulePlan, OpPlan, OptionSpec, PackagePlan

_FILE = "torch_layers.py"
#: Options that let an op write to its inputs: operators of PyTorch are functions of their arguments.
_WRITING_OPTIONS = frozenset({"inplace"})


def emit_torch(plan: PackagePlan) -> dict[str, str]:
    """Return the module with an operator and an ``nn.Module`` for each layer; nothing for a package without layers."""
    layers = [_layer(module, module.op) for module in plan.ops if module.op is not None]
    if not layers:
        return {}
    parameters = [one for layer in layers for one in layer["op"].parameters]
    has_parameters, has_optional = bool(parameters), any(one.optional for one in parameters)
    values = {
        "layers": layers,
        "checks": any(layer["checked"] for layer in layers),
        "has_parameters": has_parameters,
        "adapters": ["Module", "Operator", *(["parameter"] if has_parameters else [])],
        "torch": ["Tensor", *(["nn"] if has_optional else [])],
        "exports": sorted((name for layer in layers for name in (layer["op"].layer, layer["op"].name)), key=_order),
    }
    return {_FILE: render.render_file("torch_layers.py.j2", values)}


def _order(name: str) -> tuple[bool, bool, str]:
    """Capitals, classes, functions: the order that isort keeps."""
    return not name.isupper(), name[0].islower(), name


def _layer(module: ModulePlan, op: OpPlan) -> dict[str, Any]:
    options = [one for one in op.options if one.name not in _WRITING_OPTIONS]
    arrays = [*op.inputs, *op.parameters]
    taken: list[ArraySpec | OptionSpec] = [*arrays, *options]
    kept: list[ArraySpec | OptionSpec] = [*op.parameters, *options]
    attributes = [*(_parameter(one) for one in op.parameters), *(f"self.{one.name} = {one.name}" for one in options)]
    passed = [*(one.name for one in op.inputs), *(f"self.{one.name}" for one in kept)]
    return {
        "op": op,
        "module": module.path.replace("/", "."),
        "operator": f"_{op.name.upper()}",
        "settings": _settings(op),
        "summary": prose(op.summary, 112),
        "details": prose(op.details, 112),
        "fast": prose(f"Fast sizes: {op.fast_sizes}. Source: {op.origin}.", 112),
        "docs": [line for one in (*taken, *op.outputs) for line in _doc(one)],
        "signature": _signature(arrays, options),
        "returns": "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]",
        "arguments": ", ".join(one.name for one in taken),
        "made": _made(op, options),
        "made_doc": _made_doc(op, options),
        "checked": checked_names(replace(op, options=tuple(options))),
        "attributes": attributes,
        "inputs": ", ".join(f"{one.name}: Tensor" for one in op.inputs),
        "passed": ", ".join(passed),
    }


def _settings(op: OpPlan) -> list[str]:
    """Return what an operator is told beside its function and spec."""
    gradients = {name: variable for name, variable in op.gradients.items() if variable}
    found = [f"gradients={_mapping({name: quoted(variable) for name, variable in gradients.items()})}"]
    found += [f"autocast={quoted(op.autocast)}"]
    fixed = {one.name: str(one.default) for one in op.options if one.name in _WRITING_OPTIONS}
    conditions = {one.name: _condition(one.when) for one in op.intermediates if one.when is not None}
    aliases = {one.name: quoted(one.otherwise) for one in op.intermediates if one.otherwise is not None}
    for key, values in (("fixed", fixed), ("conditions", conditions), ("aliases", aliases)):
        found += [f"{key}={_mapping(values)}"] * bool(values)
    return found


class _Options(ast.NodeTransformer):
    """Makes names of options look-ups: ``recompute`` becomes ``options["recompute"]``."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("options", ast.Load()), ast.Constant(node.id), ast.Load())


def _condition(text: str) -> str:
    """Return a function of the options that says whether an intermediate is there."""
    expression = ast.unparse(_Options().visit(ast.parse(text, mode="eval")))
    return f"lambda options: {expression}".replace("'", '"')


def _doc(one: ArraySpec | OptionSpec) -> list[str]:
    if isinstance(one, OptionSpec):
        return prose(f"{one.name}: {one.doc or one.kind}", 112)
    shape = ", ".join("..." if letter == "*" else letter for letter in one.shape)
    kind = f" integers below {one.below}" if one.below else f" {one.dtype}" if one.dtype else ""
    return prose(f"{one.name}: ({shape}){kind}{': ' + one.doc if one.doc else ''}", 112)


def _signature(arrays: list[ArraySpec], options: list[OptionSpec]) -> str:
    """Return the parameters of the function; what may be left out has a default where nothing required is behind it."""
    required = [index for index, one in enumerate(arrays) if not one.optional]
    open_end = len(arrays) if any(one.default is None for one in options) else required[-1] + 1
    typed = [_typed(one) + " = None" * (index >= open_end) for index, one in enumerate(arrays)]
    return ", ".join([*typed, *(_typed_option(one) for one in options)])


def _typed(one: ArraySpec) -> str:
    return f"{one.name}: Tensor{' | None' if one.optional else ''}"


def _typed_option(one: OptionSpec) -> str:
    return f"{one.name}: {one.kind}{f' = {one.default}' if one.default is not None else ''}"


def _made(op: OpPlan, options: list[OptionSpec]) -> str:
    """Return the parameters of the module: sizes, options, and for its parameters dtype and device."""
    made = [f"{letter}: int" for letter in op.letters]
    made += [_typed_option(one) for one in options if one.default is None]
    by_name = [f"{one.name}: bool = True" for one in op.parameters if one.optional]
    by_name += [_typed_option(one) for one in options if one.default is not None]
    if op.parameters:
        by_name += ["dtype: Any = None", "device: Any = None"]
    return ", ".join([*made, *(["*", *by_name] if by_name else [])])


def _made_doc(op: OpPlan, options: list[OptionSpec]) -> list[str]:
    names = ", ".join(one.name for one in op.parameters)
    summary = (
        f"Make the parameters ({names}) of a dtype (PyTorch's default) on a device." if names else "Keep the options."
    )
    details = [line for one in options for line in _doc(one)]
    return [summary, *(["", *details, ""] if details else [])]


def _parameter(one: ArraySpec) -> str:
    made = f"parameter({quoted(one.init or 'zeros')}, {tuple_text(one.shape)}, dtype, device)"
    if one.optional:
        return f"self.{one.name}: nn.Parameter | None = {made} if {one.name} else None"
    return f"self.{one.name} = {made}"


def _mapping(values: dict[str, str]) -> str:
    return f"{{{', '.join(f'{quoted(key)}: {value}' for key, value in values.items())}}}"
