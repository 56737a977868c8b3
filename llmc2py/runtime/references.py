"""References that come with a generated package: what ``llmc2py verify`` compares its layers with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmc2py.runtime.layer import OpSpec

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

    ``reduction`` are the letters of the axes that sums run over. ``cases`` are the sizes to verify on (leading axes,
    and letters and options by name), if not the usual ones; ``stochastic`` names the arrays whose gradients are rounded
    at random.
    ``either_way`` says that kernels may round what the reference stores otherwise, or not at all. Options are passed by
    name to both passes.
    """

    op: str
    layer: str
    forward: Callable[..., Arrays]
    backward: Callable[..., Arrays] | None
    c: tuple[CReference, ...] = ()
    reduction: tuple[str, ...] = ()
    cases: tuple[tuple[tuple[int, ...], Mapping[str, Any]], ...] = ()
    stochastic: tuple[str, ...] = ()
    either_way: bool = False

    def bound(self, options: Mapping[str, Any]) -> Reference:
        """Return the reference with options filled in."""
        if not options:
            return self
        backward = None if self.backward is None else functools.partial(self.backward, **options)
        return dataclasses.replace(self, forward=functools.partial(self.forward, **options), backward=backward)


@dataclass(frozen=True)
class Check:
    """The sizes that variants of an op are run on, expressions by letter, which may name ``block_size``.

    ``lead`` are the letters of the leading axes. ``spec`` describes an op without a layer.
    """

    sizes: Mapping[str, str]
    spec: OpSpec | None = None
    lead: tuple[str, ...] = ()


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
