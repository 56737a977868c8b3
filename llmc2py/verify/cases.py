"""The shapes that every layer is run on, and the values that its arrays get."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.layer import Dims, OpSpec
from llmc2py.runtime.references import Reference

Arrays = dict[str, NDArray[Any]]

_ANY = "..."
_SMALL = 0.03
_ROWS_FOR_EACH = 64


@dataclass(frozen=True)
class Case:
    """Sizes of one run: the leading axes, and one size for each letter of the op.

    ``layouts`` says whether the run is repeated on strided and misaligned arrays and with the layer used twice.
    ``options`` are those of the layer that differ from their defaults, among them parameters that it goes without.
    """

    lead: tuple[int, ...]
    sizes: Mapping[str, int]
    layouts: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def shape(self, dims: Dims) -> tuple[int, ...]:
        """Return the shape of an array with these dimensions."""
        shape: list[int] = []
        for letter in dims:
            shape += self.lead if letter == _ANY else (self._length(letter),)
        return tuple(shape)

    def _length(self, axis: str) -> int:
        """Return the length of an axis: ``C``, ``3C``, ``2``."""
        letter = axis.lstrip("0123456789")
        factor = int(axis[: len(axis) - len(letter)] or 1)
        return factor * self.sizes[letter] if letter else factor

    @property
    def rows(self) -> int:
        """The product of the leading axes."""
        return int(np.prod(self.lead, dtype=np.int64))

    @property
    def elements(self) -> int:
        """About how many elements the largest array has."""
        return self.rows * max(self.sizes.values(), default=1)

    def label(self, spec: OpSpec) -> str:
        """Return the shape of the op's first input, and the options, as text."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.shape(next(iter(spec.inputs.values())))}{' ' * bool(options)}{options}"


# 1, primes, just off and exactly on blocks (the fast sizes are multiples of 2048 and 4096), several axes, none, B = 0.
_ELEMENTWISE = (
    ((1,), False),
    ((2,), False),
    ((127,), False),
    ((2048,), False),
    ((8191,), False),
    ((4097,), False),
    ((64, 128), True),
    ((3, 5, 683), True),
    ((2, 1, 7, 11), False),
    ((), False),
    ((0,), False),
    ((3, 0, 5), False),
)

# C of 1, odd, prime, off the 128-bit vectors and on them; 1600 float32 needs more than 48 KB of shared memory, and 4176
# (in the half precisions 8352) more than a block has; 4099 is odd and long. Rows off the groups of 8 and 16 that
# kernels take, and on them.
_ROWWISE = (
    ((3,), 1, False),
    ((5,), 2, False),
    ((7,), 3, False),
    ((1,), 4, False),
    ((8,), 8, False),
    ((), 24, False),
    ((2, 3), 17, True),
    ((4, 8), 40, True),
    ((13,), 129, False),
    ((1,), 768, False),
    ((2, 2, 4), 768, False),
    ((3,), 768, False),
    ((5,), 1600, False),
    ((16,), 1600, False),
    ((257,), 33, False),
    ((16,), 4176, False),
    ((2,), 4099, False),
    ((2,), 8352, False),
    ((0,), 768, False),
    ((2, 0), 17, False),
)


def cases_for(spec: OpSpec, reference: Reference | None = None, multiprocessors: int = 4) -> list[Case]:
    """Return the runs of an op: those of its reference, or over leading axes alone, or over them and its letters.

    The longest of the latter has more short rows than a device of so many multiprocessors takes at once. Of the
    reference's own runs, those with several leading axes are repeated in all layouts.
    """
    if reference is not None and reference.cases:
        return [_own_case(spec, lead, values) for lead, values in reference.cases]
    letters = letters_of(spec)
    if not letters:
        return [Case(lead, {}, layouts) for lead, layouts in _ELEMENTWISE]
    *others, last = letters
    fixed = {letter: 2 + index for index, letter in enumerate(others)}
    many = ((_ROWS_FOR_EACH * multiprocessors,), 8, False)
    return [Case(lead, {**fixed, last: size}, layouts) for lead, size, layouts in (*_ROWWISE, many)]


def _own_case(spec: OpSpec, lead: tuple[int, ...], values: Mapping[str, Any]) -> Case:
    options = {name: value for name, value in values.items() if name in spec.options or name in spec.optional}
    return Case(lead, {**values}, len(lead) > 1, options)


def letters_of(spec: OpSpec) -> list[str]:
    """Return the letters of all arrays of an op."""
    arrays = [*spec.parameters.values(), *spec.inputs.values(), *spec.outputs.values()]
    return list(dict.fromkeys(letter for dims in arrays for letter in dims if letter != _ANY))


def dtype_of(spec: OpSpec, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of an array or its gradient in a call whose precision is ``dtype``."""
    own = spec.dtype_of.get(name) or spec.dtype_of.get(name.removeprefix("d"))
    found: np.dtype[Any] = PRECISIONS[own] if own else dtype
    return found


def input_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], salt: str = "", *, small_slice: bool = True) -> Arrays:
    """Return float64 values of the inputs, exact in ``dtype``, each with means other than 0 and spreads other than 1.

    Indices are int32. The last slice along the first axis is made small, so that what a formula adds to a variance
    shows.
    """
    found: Arrays = {}
    for index, (name, dims) in enumerate(spec.inputs.items()):
        shape = case.shape(dims)
        if name in spec.indices:
            rng = np.random.default_rng(zlib.crc32(f"{spec.name} {name} {shape}".encode()))
            found[name] = rng.integers(0, case.sizes[spec.indices[name]], shape, dtype=np.int32)
            continue
        mean, spread = ((0.6, 1.7), (-0.9, 0.7), (1.4, 2.3))[index % 3]
        values = _values(f"{spec.name} {name} {salt}", shape, mean, spread)
        if small_slice and values.ndim > 1:
            values[-1:] *= _SMALL
        found[name] = _exact(np.exp(values) if name in spec.positive else values, dtype)
    return found


def parameter_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], initial: Mapping[str, float]) -> Arrays:
    """Return float64 values of the parameters, exact in ``dtype``, spread around what a new layer has.

    Those of matrices are the smaller the longer the rows are, so that products stay in the range of their factors.
    """
    found = {}
    for name, dims in spec.parameters.items():
        if not case.options.get(name, True):
            continue
        shape = case.shape(dims)
        size = np.sqrt(max(1.0, shape[-1] / 4)) if len(shape) > 1 else 1.0
        values = _values(f"{spec.name} {name}", shape, (initial[name] + 0.15) / size, 0.4 / size)
        found[name] = _exact(values, dtype)
    return found


def gradient_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], salt: str = "") -> Arrays:
    """Return float64 values of the outputs' gradients, exact in ``dtype``."""
    return {
        name: _exact(
            _values(f"{spec.name} d{name} {salt}", case.shape(dims), 0.3 - 0.5 * index, 0.8),
            dtype_of(spec, name, dtype),
        )
        for index, (name, dims) in enumerate(spec.outputs.items())
    }


def _values(key: str, shape: tuple[int, ...], mean: float, spread: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(zlib.crc32(f"{key} {shape}".encode()))
    return np.asarray(rng.normal(mean, spread, shape))


def _exact(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    rounded: NDArray[np.float64] = values.astype(dtype).astype(np.float64)
    return rounded
