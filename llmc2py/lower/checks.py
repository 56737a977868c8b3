"""Catalogue entries without a layer, checked, as plans of what their launchers are compared with."""

from __future__ import annotations

import ast

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.plans import CheckPlan
from llmc2py.lower.entrynames import check_arguments


def lower_check(entry: CatalogEntry) -> CheckPlan:
    """Return the plan of an op without a layer. Raises SourceError that names the entry's file and what is wrong."""
    if not entry.inputs or not entry.outputs:
        raise _error(entry, "an op has at least one input and one output")
    check_arguments(entry)
    letters = {letter for letter, _ in entry.sizes}
    for one in (*entry.inputs, *entry.outputs):
        for letter in (*one.shape, *([one.below] if one.below else [])):
            if letter not in letters and not letter.isdigit():
                raise _error(entry, f"shape of {one.name}: sizes has no {letter}")
    for key, text in (("forward", entry.reference_forward), ("backward", entry.reference_backward)):
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise _error(entry, f"reference.{key}: {error.msg}, line {error.lineno}") from error
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


def _error(entry: CatalogEntry, message: str) -> SourceError:
    return SourceError(SourceSpan(entry.file, 1), f"{entry.name}: {message}")
