"""The module of references, as values for its template, and the C references beside it."""

from __future__ import annotations

import fnmatch
import pathlib
from typing import Any

from llmc2py.emit.functions import tuple_text
from llmc2py.emit.layers import mapping_text, spec_values
from llmc2py.emit.text import indent, quoted, split_arguments
from llmc2py.ir.library import Reference
from llmc2py.ir.plans import CheckPlan, CReferenceCall, LaunchPlan, OpPlan, PackagePlan, VariantCall


def references_values(plan: PackagePlan) -> dict[str, Any]:
    """Return what the template of `references.py` needs: references, sizes of variants, and the variants."""
    found = []
    for op in _referenced(plan):
        options = [f"{one.name}: {one.kind}" for one in op.options]
        inputs = [f"{one.name}: {'Array | None' if one.optional else 'Array'}" for one in (*op.inputs, *op.parameters)]
        differentiable = [one.name for one in (*op.inputs, *op.parameters) if one.below is None]
        found.append(
            {
                "op": op,
                "forward_signature": ", ".join([*inputs, *options]),
                "backward_signature": ", ".join([*inputs, *options, *(f"d{one.name}: Array" for one in op.outputs)]),
                "reduction": tuple_text(map(quoted, op.reduction)),
                "stochastic": tuple_text(map(quoted, op.stochastic if isinstance(op, OpPlan) else ())),
                "cases": tuple_text(map(_case, op.cases if isinstance(op, OpPlan) else ())),
                "forward": indent(op.reference_forward, 1),
                "backward": indent(op.reference_backward, 1),
                "outputs": f"{{{', '.join(f'{quoted(one.name)}: {one.name}' for one in op.outputs)}}}",
                "gradients": f"{{{', '.join(f'{quoted(name)}: d{name}' for name in differentiable)}}}",
                "c": [
                    _c_reference(plan, one) for one in op.c_references if (one.file, one.function) in plan.references
                ],
            }
        )
    sized = [op for op in _referenced(plan) if op.sizes]
    return {
        "references": found,
        "checks": [_check(op) for op in sized],
        "needs_spec": any(isinstance(op, CheckPlan) for op in sized),
        "variants": _variants(plan),
    }


def _case(case: dict[str, Any]) -> str:
    sizes = {name: value for name, value in case.items() if name != "lead"}
    given = ", ".join(f"{quoted(name)}: {value!r}" for name, value in sizes.items())
    return f"({tuple_text(map(str, case.get('lead', ())))}, {{{given}}})"


def _referenced(plan: PackagePlan) -> list[OpPlan | CheckPlan]:
    """Return all ops that have references: those with layers first."""
    return [*(module.op for module in plan.ops if module.op is not None), *plan.checks]


def _check(op: OpPlan | CheckPlan) -> str:
    sizes = mapping_text({letter: quoted(size) for letter, size in op.sizes})
    if isinstance(op, OpPlan):
        return f"{quoted(op.name)}: Check({sizes}, lead={tuple_text(map(quoted, op.lead))})"
    spec = ", ".join(f"{key}={value}" for key, value in spec_values(op).items())
    return f"{quoted(op.name)}: Check({sizes}, OpSpec({spec}))"


def _variants(plan: PackagePlan) -> list[str]:
    """Return the launchers that compute an op's pass beside those that its layer uses, as the catalogue names them."""
    found = []
    for op in _referenced(plan):
        for one in op.variants:
            given = split_arguments(one.call[1:-1])
            end = f"{quoted(one.file)}{_variant_limits(one)}"
            found += [
                f"Variant({quoted(op.name)}, {quoted(one.reference)}, {quoted(module.path.replace('/', '.'))}, "
                f"{quoted(launcher.name)}, {_variant_arguments(launcher, given)}, {end})"
                for module in plan.modules
                for launcher in module.launchers
                if module.source == one.file and fnmatch.fnmatchcase(launcher.name, one.launchers)
            ]
    return found


def _variant_arguments(launcher: LaunchPlan, given: list[str]) -> str:
    """Return a call's arguments with what the launcher asks its callers for, under its own name if none is given."""
    asked = launcher.asked[max(len(given) - len(launcher.parameters), 0) :]
    return tuple_text(quoted(item) for item in [*given, *(one.name for one in asked)])


def _variant_limits(variant: VariantCall) -> str:
    limits = {
        "blocks": map(str, variant.blocks),
        "precisions": map(quoted, variant.precisions),
        "zeros": map(quoted, variant.zeros),
    }
    texts = {key: tuple_text(values) for key, values in limits.items()}
    return "".join(f", {key}={text}" for key, text in texts.items() if text != "()")


def _c_path(file: str, function: str) -> str:
    return f"references_c/{pathlib.PurePosixPath(file).with_suffix('')}/{function}.c"


def _c_reference(plan: PackagePlan, one: CReferenceCall) -> str:
    file, function, call = one.file, one.function, one.call
    reference: Reference = plan.references[file, function]
    zeros = f", {tuple_text(map(quoted, one.zeros))}" if one.zeros else ""
    arguments = split_arguments(call[call.index("(") + 1 : call.rindex(")")])
    parameters = tuple_text(f"({quoted(name)}, {quoted(ctype)})" for name, ctype in reference.parameters)
    return (
        f"CReference({quoted(_c_path(file, function))}, {quoted(function)}, {parameters}, "
        f"{tuple_text(quoted(one) for one in arguments)}, {quoted(reference.span.origin)}{zeros})"
    )


def c_sources(plan: PackagePlan) -> dict[str, str]:
    """Return the C references that ops name, in double, by their paths in the package."""
    wanted = {(one.file, one.function) for op in _referenced(plan) for one in op.c_references}
    return {_c_path(*key): _c_source(plan.references[key], *key) for key in sorted(wanted) if key in plan.references}


def _c_source(reference: Reference, file: str, function: str) -> str:
    return f"/* {function} of {file}, in double. Generated by llmc2py; do not edit. */\n{reference.double_source}"
