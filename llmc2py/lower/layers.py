"""Catalogue entries, checked against a source tree, as plans of layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.plans import ArraySpec, OpPlan
from llmc2py.lower.entrychecks import (
    check_arrays,
    check_gradients,
    check_intermediates,
    check_names,
    check_options,
    check_sizes,
    letters_of,
)
from llmc2py.lower.recipes import Callable, RecipeLowering
from llmc2py.lower.refcode import check_reference


def lower_entry(
    entry: CatalogEntry, callables: Mapping[str, Callable], precisions: tuple[str, ...], origin: str
) -> OpPlan:
    """Return the plan of one op. Raises SourceError that names the entry's file and what does not fit the source."""
    check_arrays(entry)
    check_options(entry)
    check_sizes(entry)
    inputs = [*entry.inputs, *entry.parameters]
    names = {one.name for one in inputs}
    indices = {one.name: index for index, one in enumerate(inputs)}
    values = _values(entry)
    floats = frozenset(one.name for one in entry.options if one.kind == "float")
    known = set(names)
    anchor = anchor_of(entry.inputs, entry.parameters).name
    place = partial(entry.places.within, ("forward", "recipe"))
    lowering = RecipeLowering(place, entry.layer, callables, anchor, frozenset(names), indices, values, floats)
    forward = lowering.lower(entry.forward.recipe, known)
    check_names(entry, {one.name: ("forward", "recipe") for one in entry.outputs}, known, "forward computes no {}")
    saved = {name: ("forward", "saves", index) for index, name in enumerate(entry.forward.saves)}
    check_names(entry, saved, known, "forward has no {}")
    check_intermediates(entry)

    incoming = [f"d{one.name}" for one in entry.outputs]
    known = {*entry.forward.saves, *incoming}
    # What the forward pass made for the backward pass alone may be written to: a graph is gone through once.
    protected = frozenset(known - {one.name for one in entry.intermediates})
    place = partial(entry.places.within, ("backward", "recipe"))
    lowering = RecipeLowering(place, entry.layer, callables, incoming[0], protected, indices, values, floats)
    backward = lowering.lower(entry.backward.recipe, known)
    gradients = dict(entry.backward.gradients)
    check_gradients(entry)
    given = {array: ("backward", "gradients", name) for name, array in gradients.items()}
    check_names(entry, given, known, "backward computes no {}")
    check_reference(entry)
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
    return frozenset({"N", "lead", "dtype", *letters_of(entry), *(one.name for one in entry.options)})
