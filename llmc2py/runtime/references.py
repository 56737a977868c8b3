"""References that come with a generated package: what ``llmc2py verify`` compares its layers with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arrays = dict[str, Any]


@dataclass(frozen=True)
class CReference:
    """A C function that computes in double: its file in the package, its parameters, and how the op's names go in.

    ``parameters`` are pairs of name and C type, ``arguments`` the expressions for them in terms of the op's arrays and
    sizes.
    """

    file: str
    function: str
    parameters: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class Reference:
    """Float64 forward and backward of one op, by keyword: arrays in, a dict of outputs or gradients out.

    ``reduction`` is the letter of the axis that sums run over, if there is one.
    """

    op: str
    layer: str
    forward: Callable[..., Arrays]
    backward: Callable[..., Arrays] | None
    c: tuple[CReference, ...] = ()
    reduction: str | None = None
