"""Arithmetic in which every step is rounded at random, to see how far rounding can move a formula's result.

Rounding to nearest is often lucky: ``a - a`` is exactly 0 whatever came before, but a compiler that fuses a product
into the difference leaves the product's rounding error behind. Here every operation of a formula on float64 arrays
makes a random error of up to half a unit in float32's last place, so that what cancels shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_HALF_UNIT = 2.0**-24


class RandomlyRounded(np.ndarray):
    """A float64 array whose operations make errors of float32's size; ``generator`` decides them."""

    generator: np.random.Generator

    @classmethod
    def of(cls, array: NDArray[Any], generator: np.random.Generator) -> RandomlyRounded:
        """Return an array of this kind with the same values."""
        result = np.array(array, dtype=np.float64).view(cls)
        result.generator = generator
        return result

    def __array_finalize__(self, source: Any) -> None:
        """Hand the generator on to views and results."""
        self.generator = getattr(source, "generator", None) or np.random.default_rng(0)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Carry out an operation and move its result a little."""
        plain = [np.asarray(one) if isinstance(one, RandomlyRounded) else one for one in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        if not isinstance(result, (np.ndarray, np.floating)) or result.dtype.kind != "f":
            return result
        noise = self.generator.uniform(-_HALF_UNIT, _HALF_UNIT, np.shape(result))
        moved = RandomlyRounded.of(np.asarray(result * (1 + noise)), self.generator)
        if out is None:
            return moved
        out[0][...] = np.asarray(moved)
        return out[0]
