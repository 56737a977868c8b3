"""The shapes that every layer is run on, and the values that its arrays get."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.layer import Dims, OpSpec
from llmc2py.runtime.references import Check

Arrays = dict[str, NDArray[Any]]

_ANY = "..."
_SMALL = 0.03
_ROWS_FOR_EACH = 64


@dataclass(frozen=True)
class Case:
    """Sizes of one run: the leading axes, and one size for each letter of the op.

    ``layouts`` says whether the run is repeated on strided and misaligned arrays and with the layer used twice.
    """

    lead: tuple[int, ...]
    sizes: Mapping[str, int]
    layouts: bool = False

    def shape(self, dims: Dims) -> tuple[int, ...]:
        """Return the shape of an array with these dimensions."""
        shape: list[int] = []
        for letter in dims:
            shape += self.lead if letter == _ANY else (int(letter) if letter.isdigit() else self.sizes[letter],)
        return tuple(shape)

    @property
    def rows(self) -> int:
        """The product of the leading axes."""
        return int(np.prod(self.lead, dtype=np.int64))

    def label(self, spec: OpSpec) -> str:
        """Return the shape of the op's first input as text."""
        return str(self.shape(next(iter(spec.inputs.values()))))


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


def cases_for(spec: OpSpec, multiprocessors: int = 4) -> list[Case]:
    """Return the runs of an op: over leading axes alone, or over them and the op's letters.

    The longest of the latter has more short rows than a device of so many multiprocessors takes at once.
    """
    letters = letters_of(spec)
    if not letters:
        return [Case(lead, {}, layouts) for lead, layouts in _ELEMENTWISE]
    *others, last = letters
    fixed = {letter: 2 + index for index, letter in enumerate(others)}
    many = ((_ROWS_FOR_EACH * multiprocessors,), 8, False)
    return [Case(lead, {**fixed, last: size}, layouts) for lead, size, layouts in (*_ROWWISE, many)]


def letters_of(spec: OpSpec) -> list[str]:
    """Return the op's letters in the order in which its layer takes them: those of parameters first."""
    arrays = [*spec.parameters.values(), *spec.inputs.values(), *spec.outputs.values()]
    return list(dict.fromkeys(letter for dims in arrays for letter in dims if letter != _ANY))


def input_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], salt: str = "", *, small_slice: bool = True) -> Arrays:
    """Return float64 values of the inputs, exact in ``dtype``, each with means other than 0 and spreads other than 1.

    The last slice along the first axis is made small, so that what a formula adds to a variance shows.
    """
    found = {}
    for index, (name, dims) in enumerate(spec.inputs.items()):
        mean, spread = ((0.6, 1.7), (-0.9, 0.7), (1.4, 2.3))[index % 3]
        values = _values(f"{spec.name} {name} {salt}", case.shape(dims), mean, spread)
        if small_slice and values.ndim > 1:
            values[-1:] *= _SMALL
        found[name] = _exact(values, dtype)
    return found


def parameter_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], initial: Mapping[str, float]) -> Arrays:
    """Return float64 values of the parameters, exact in ``dtype``, spread around what a new layer has."""
    return {
        name: _exact(_values(f"{spec.name} {name}", case.shape(dims), initial[name] + 0.15, 0.4), dtype)
        for name, dims in spec.parameters.items()
    }


def check_values(name: str, check: Check, case: Case, dtype: np.dtype[Any]) -> Arrays:
    """Return values of the inputs of an op without a layer: int32 ones, float64 ones exact in ``dtype``."""
    found: Arrays = {}
    for index, (key, dims) in enumerate(check.inputs.items()):
        shape = case.shape(dims)
        values = _values(f"{name} {key}", shape, 0.2 - 0.1 * index, 0.9)
        if key in check.below:
            rng = np.random.default_rng(zlib.crc32(f"{name} {key} {shape}".encode()))
            found[key] = rng.integers(0, case.sizes[check.below[key]], shape, dtype=np.int32)
        else:
            found[key] = _exact(np.exp(values) if key in check.positive else values, dtype)
    return found


def gradient_values(spec: OpSpec, case: Case, dtype: np.dtype[Any], salt: str = "") -> Arrays:
    """Return float64 values of the outputs' gradients, exact in ``dtype``."""
    return {
        name: _exact(_values(f"{spec.name} d{name} {salt}", case.shape(dims), 0.3 - 0.5 * index, 0.8), dtype)
        for index, (name, dims) in enumerate(spec.outputs.items())
    }


def _values(key: str, shape: tuple[int, ...], mean: float, spread: float) -> NDArray[np.float64]:
    rng = np.random.default_rng(zlib.crc32(f"{key} {shape}".encode()))
    return np.asarray(rng.normal(mean, spread, shape))


def _exact(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    rounded: NDArray[np.float64] = values.astype(dtype).astype(np.float64)
    return rounded
