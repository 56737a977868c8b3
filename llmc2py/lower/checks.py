"""Catalogue entries without a layer, checked, as plans of what their launchers are compared with."""

from __future__ import annotations

from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.plans import CheckPlan
from llmc2py.lower.entrychecks import check_sizes, entry_error
from llmc2py.lower.entrynames import check_arguments
from llmc2py.lower.refcode import check_reference


def lower_check(entry: CatalogEntry) -> CheckPlan:
    """Return the plan of an op without a layer. Raises SourceError that names the entry's file and what is wrong."""
    if not entry.inputs or not entry.outputs:
        raise entry_error(entry, ("outputs" if entry.inputs else "inputs",), "an op has at least one input and output")
    check_arguments(entry)
    check_sizes(entry)
    letters = {letter for letter, _ in entry.sizes}
    for key, arrays in (("inputs", entry.inputs), ("outputs", entry.outputs)):
        for one in arrays:
            for letter in (*one.shape, *([one.below] if one.below else [])):
                if letter not in letters and not letter.isdigit():
                    raise entry_error(entry, (key, one.name, "shape"), f"shape of {one.name}: sizes has no {letter}")
    check_reference(entry)
    return CheckPlan(
        name=entry.name,
        summary=entry.summary,
        inputs=entry.inputs,
        outputs=entry.outputs,
        sizes=entry.sizes,
        reference_forward=tuple(entry.reference_forward.splitlines()),
        reference_backward=tuple(entry.reference_backward.splitlines()),
        c_references=entry.c_references,
        reduction=entry.reduction,
        variants=entry.variants,
        either_way=entry.either_way,
    )
