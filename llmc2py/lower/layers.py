"""Catalogue entries, checked against a source tree, as plans of layers."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.plans import OpPlan
from llmc2py.lower.recipes import Callable, RecipeLowering

_LEADING = "*"


def lower_entry(entry: CatalogEntry, callables: Mapping[str, Callable], precisions: tuple[str, ...]) -> OpPlan:
    """Return the plan of one op. Raises SourceError that names the entry's file and what does not fit the source."""
    _check_shapes(entry)
    inputs = [*entry.inputs, *entry.parameters]
    names = {one.name for one in inputs}
    indices = {one.name: index for index, one in enumerate(inputs)}
    letters = {letter for one in inputs for letter in one.shape if letter != _LEADING}

    first = entry.inputs[0].name
    known = names | letters | {"N"}
    lowering = RecipeLowering(entry.file, callables, first, frozenset(names), indices)
    forward = lowering.lower(entry.forward.recipe, known, entry.forward.line)
    _check_known(entry, known, [one.name for one in entry.outputs], "forward computes no")
    _check_known(entry, known, list(entry.forward.saves), "forward has no")

    incoming = [f"d{one.name}" for one in entry.outputs]
    known = {*entry.forward.saves, *incoming, *letters, "N"}
    protected = frozenset(known)
    lowering = RecipeLowering(entry.file, callables, incoming[0], protected, indices)
    backward = lowering.lower(entry.backward.recipe, known, entry.backward.line)
    gradients = dict(entry.backward.gradients)
    _check_known(entry, known, list(gradients.values()), "backward computes no")
    if gradients and set(gradients) != names:
        raise _error(entry, f"backward gives gradients of {sorted(gradients)}, the inputs are {sorted(names)}")
    _check_code(entry, entry.reference_forward, "reference.forward")
    _check_code(entry, entry.reference_backward, "reference.backward")
    return OpPlan(
        name=entry.name,
        layer=entry.layer,
        summary=entry.summary,
        details=entry.details,
        source=entry.source,
        precisions=precisions,
        inputs=entry.inputs,
        parameters=entry.parameters,
        outputs=entry.outputs,
        saves=entry.forward.saves,
        gradients=gradients,
        forward=forward,
        backward=backward,
        reference_forward=tuple(entry.reference_forward.splitlines()),
        reference_backward=tuple(entry.reference_backward.splitlines()),
        c_references=entry.c_references,
        fast_sizes=entry.fast_sizes,
        reduction=entry.reduction,
        variants=entry.variants,
    )


def _check_shapes(entry: CatalogEntry) -> None:
    if not entry.inputs or not entry.outputs:
        raise _error(entry, "an op has at least one input and one output")
    for one in (*entry.inputs, *entry.outputs):
        if not one.shape or one.shape[0] != _LEADING:
            raise _error(
                entry, f"shape of {one.name}: inputs and outputs begin with {_LEADING!r}, all leading axes together"
            )
    for one in entry.parameters:
        if _LEADING in one.shape:
            raise _error(entry, f"shape of parameter {one.name}: its axes are letters alone")


def _check_known(entry: CatalogEntry, known: set[str], wanted: list[str], message: str) -> None:
    for name in wanted:
        if name not in known:
            raise _error(entry, f"{message} {name}")


def _check_code(entry: CatalogEntry, text: str, key: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise _error(entry, f"{key}: {error.msg}, line {error.lineno}") from error


def _error(entry: CatalogEntry, message: str) -> SourceError:
    return SourceError(SourceSpan(entry.file, 1), f"{entry.name}: {message}")
