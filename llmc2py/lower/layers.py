"""Catalogue entries, checked against a source tree, as plans of layers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.plans import ArraySpec, OpPlan
from llmc2py.lower.recipes import Callable, RecipeLowering

LEADING = "*"


def lower_entry(
    entry: CatalogEntry, callables: Mapping[str, Callable], precisions: tuple[str, ...], origin: str
) -> OpPlan:
    """Return the plan of one op. Raises SourceError that names the entry's file and what does not fit the source."""
    _check_arrays(entry)
    _check_options(entry)
    inputs = [*entry.inputs, *entry.parameters]
    names = {one.name for one in inputs}
    indices = {one.name: index for index, one in enumerate(inputs)}
    values = _values(entry)

    known = set(names)
    anchor = anchor_of(entry.inputs, entry.parameters).name
    place = partial(entry.places.within, ("forward", "recipe"))
    lowering = RecipeLowering(place, entry.layer, callables, anchor, frozenset(names), indices, values)
    forward = lowering.lower(entry.forward.recipe, known)
    _check_known(entry, known, [one.name for one in entry.outputs], "forward computes no")
    _check_known(entry, known, list(entry.forward.saves), "forward has no")

    incoming = [f"d{one.name}" for one in entry.outputs]
    known = {*entry.forward.saves, *incoming}
    # What the forward pass made for the backward pass alone may be written to: a graph is gone through once.
    protected = frozenset(known - {one.name for one in entry.intermediates})
    place = partial(entry.places.within, ("backward", "recipe"))
    lowering = RecipeLowering(place, entry.layer, callables, incoming[0], protected, indices, values)
    backward = lowering.lower(entry.backward.recipe, known)
    gradients = dict(entry.backward.gradients)
    _check_known(entry, known, list(gradients.values()), "backward computes no")
    wanted = {one.name for one in inputs if one.below is None}
    if gradients and set(gradients) != wanted:
        raise _error(entry, f"backward gives gradients of {sorted(gradients)}, the inputs are {sorted(wanted)}")
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
        options=entry.options,
        intermediates=entry.intermediates,
        cases=entry.cases,
        sizes=entry.sizes,
        lead=entry.lead,
        stochastic=entry.stochastic,
        either_way=entry.either_way,
        origin=origin,
        autocast=entry.autocast,
    )


def anchor_of(inputs: tuple[ArraySpec, ...], parameters: tuple[ArraySpec, ...]) -> ArraySpec:
    """Return the array that decides the precision: the first one, of inputs before parameters, that has it."""
    return next(one for one in (*inputs, *parameters) if one.below is None and one.dtype is None)


def _values(entry: CatalogEntry) -> frozenset[str]:
    arrays = (*entry.inputs, *entry.parameters)
    letters = {letter for one in arrays for letter in one.letters}
    return frozenset({"N", "lead", "dtype", *letters, *(one.name for one in entry.options)})


def _check_arrays(entry: CatalogEntry) -> None:
    if not entry.inputs or not entry.outputs:
        raise _error(entry, "an op has at least one input and one output")
    for one in (*entry.inputs, *entry.outputs):
        if one.shape and (one.shape[0] != LEADING or LEADING in one.shape[1:]):
            raise _error(
                entry, f"shape of {one.name}: inputs and outputs begin with {LEADING!r}, all leading axes together"
            )
    if not entry.inputs[0].shape:
        raise _error(entry, f"shape of {entry.inputs[0].name}: the first input begins with {LEADING!r}")
    for one in entry.parameters:
        if not all(axis.isidentifier() for axis in one.shape):
            raise _error(entry, f"shape of parameter {one.name}: its axes are letters alone")
    if all(one.below or one.dtype for one in (*entry.inputs, *entry.parameters)):
        raise _error(entry, "no input or parameter has the precision of the op")


def _check_options(entry: CatalogEntry) -> None:
    known = {letter for one in (*entry.inputs, *entry.parameters) for letter in one.letters}
    known |= {one.name for one in (*entry.inputs, *entry.parameters)} | {one.name for one in entry.options} | {"lead"}
    for case in entry.cases:
        for name in case:
            if name not in known:
                raise _error(entry, f"cases: {name} is neither `lead` nor a letter or option of the op")


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
