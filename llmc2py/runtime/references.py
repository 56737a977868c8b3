"""References that come with a generated package: what ``llmc2py verify`` compares its layers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmc2py.runtime.layer import Dims

Arrays = dict[str, Any]
#: Rounds a value that a kernel keeps in the storage precision before it goes on with it.
Stored = Callable[[Any], Any]


def unchanged(array: Any) -> Any:
    """Return the array as it is: what a reference in float64 stores."""
    return array


@dataclass(frozen=True)
class CReference:
    """A C function that computes in double: its file in the package, its parameters, and how the op's names go in.

    ``parameters`` are pairs of name and C type, ``arguments`` the expressions for them in terms of the op's arrays and
    sizes. ``zeros`` are arrays beside that it adds to.
    """

    file: str
    function: str
    parameters: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    origin: str
    zeros: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reference:
    """Float64 forward and backward of one op, by keyword: arrays in, a dict of outputs or gradients out.

    Both take ``stored`` too, the rounding (none by default) of what the kernels keep in the storage precision and then
    go on with, so that a reference can follow a kernel of any precision closely.

    ``reduction`` is the letter of the axis that sums run over, if there is one.
    """

    op: str
    layer: str
    forward: Callable[..., Arrays]
    backward: Callable[..., Arrays] | None
    c: tuple[CReference, ...] = ()
    reduction: str | None = None


@dataclass(frozen=True)
class Check:
    """An op without a layer, whose launchers are checked: its arrays by letters, and the sizes to run them on.

    ``sizes`` are expressions by letter, which may name ``block_size``. ``below`` names the int32 inputs and the letter
    that their values are below, ``positive`` those whose values have to be so.
    """

    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]
    sizes: Mapping[str, str]
    below: Mapping[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A launcher that computes the pass of an op and is in no layer: one of several kernels for the same thing.

    ``reference`` is ``forward`` or ``backward``; ``module`` the launcher's module within the package, ``file`` its
    source; ``arguments`` the expressions for its parameters in terms of the op's arrays, its sizes and ``block_size``.
    ``blocks`` and ``precisions`` are those to run in, if not all; ``zeros`` the arrays that have to begin with noughts.
    """

    op: str
    reference: str
    module: str
    launcher: str
    arguments: tuple[str, ...]
    file: str
    blocks: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
