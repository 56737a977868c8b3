"""Sizes of a call by their letters, from the shapes of its arrays, whether they are numbers or symbols."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmc2py.runtime import OpSpec

_LEADING = "..."
_SIZE = re.compile(r"(\d*)([A-Za-z]\w*)?(?:~(\d+))?")


def bind_sizes(
    spec: OpSpec, shapes: Mapping[str, Sequence[Any] | None], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the leading axes of a call, and its sizes by letter, with what options add to them.

    ``shapes`` are those of inputs and parameters, None for one that is left out. Raises ValueError, naming an array,
    for one with too few axes.
    """
    lead: tuple[Any, ...] | None = None
    sizes: dict[str, Any] = {}
    for name, dims in (*spec.inputs.items(), *spec.parameters.items()):
        shape = shapes[name]
        if shape is None:
            continue
        letters = dims[1:] if dims[:1] == (_LEADING,) else dims
        if len(shape) < len(letters) or (letters == dims and len(shape) != len(dims)):
            raise ValueError(f"{spec.name}: `{name}` has shape {tuple(shape)}; {' x '.join(dims)} is needed")
        split = len(shape) - len(letters)
        if lead is None and letters != dims:
            lead = tuple(shape[:split])
        for letter, size in zip(letters, shape[split:], strict=True):
            factor, own, _ = _parts(letter)
            if own:
                sizes.setdefault(own, size // factor if factor != 1 else size)
    return lead or (), {letter: size for letter, size in sizes.items() if letter not in options}


def shape_of(dims: Sequence[str], lead: Sequence[Any], sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the shape that dimensions stand for: ``...``, ``N`` (all leading axes), ``C``, ``3C``, ``T~4``."""
    shape: list[Any] = []
    for dim in dims:
        if dim == _LEADING:
            shape += lead
            continue
        factor, letter, multiple = _parts(dim)
        size = math.prod(lead) if letter == "N" and "N" not in sizes else sizes[letter] if letter else 1
        if multiple:
            size = (size + multiple - 1) // multiple * multiple
        shape.append(factor * size)
    return tuple(shape)


@functools.cache
def _parts(dim: str) -> tuple[int, str | None, int]:
    """Return factor, letter and what is rounded up to, of ``3``, ``C``, ``3C`` or ``T~4``."""
    found = _SIZE.fullmatch(dim)
    if found is None or not dim:
        raise ValueError(f"{dim!r} is no dimension; they are written 3, C, 3C or T~4")
    return int(found[1] or 1), found[2], int(found[3] or 0)
