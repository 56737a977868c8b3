"""How near to the float64 reference a kernel's result must be.

A kernel is given the inputs ``x`` of the reference ``f`` rounded to its precision, ``x'``. It computes in float32 and
rounds its result once. Against ``f(x)`` its error is at most the sum of three, each measured or exact, element by
element:

* ``|f(x') - f(x)|``, what rounding the inputs changes. It is computed, not estimated, and zero where the inputs can be
  represented as they are.
* half the distance of neighbouring numbers of the output's precision at the result: the rounding of the output.
* the error of computing in float32: ``float32_tolerance(reduction)`` times the scale of the result. The scale of an
  element is its own size or the root mean square of the whole output, whichever is larger, for a small result is often
  the difference of large intermediates. Where even that is too small (LayerNorm's input gradient at C = 2 is zero but
  for epsilon) the float32 error of the reference's own formula is observed, at points nearby and with every
  step rounded at random (see `stochastic`), and used instead.

The first two, taken 1.5 times, are all that float16 and bfloat16 get: there is no blanket tolerance. A factor below 1.5
would leave no room for the last bit of a tie that the float32 error tips over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmc2py.verify.stochastic import RandomlyRounded

Arrays = Mapping[str, NDArray[Any]]
Reference = Callable[[dict[str, NDArray[Any]]], Arrays]

#: The number of terms up to which a float32 sum is held to the forward tolerance.
SHORT_REDUCTION = 1024

_FORWARD_TOLERANCE = 1e-5
_REDUCTION_TOLERANCE = 1e-4
_ROUNDING_FACTOR = 1.5
_OBSERVED_FACTOR = 8.0
_RANDOM_ROUNDINGS = 4
_NEAREST, _FARTHEST = 2.0**-20, 2.0**-7
#: bfloat16's rounding, 1.5 times, and as much again for the rounding of inputs.
_NEAR_OVERFLOW = 3 * 2.0**-8


@dataclass(frozen=True)
class Comparison:
    """The outcome of ``compare``: the element that is worst by error over allowed error.

    ``index`` is None for empty arrays. ``str()`` says it in one line.
    """

    ok: bool
    index: tuple[int, ...] | None
    got: float
    wanted: float
    error: float
    allowed: float

    def __str__(self) -> str:
        if self.index is None:
            return "equal: nothing to compare"
        verdict = "within" if self.ok else "beyond"
        place = ", ".join(map(str, self.index))
        return (
            f"{verdict} tolerance at [{place}]: got {self.got:.9g}, wanted {self.wanted:.9g}, "
            f"error {self.error:.3g}, allowed {self.allowed:.3g}"
        )


def float32_tolerance(reduction: int = 1) -> float:
    """Return the float32 error allowed relative to the result's scale, for sums of ``reduction`` terms.

    1e-5 up to ``SHORT_REDUCTION`` terms, then growing as the error of a sum does, with the square root, up to 1e-4.
    """
    growth = math.sqrt(max(reduction, 1) / SHORT_REDUCTION)
    return min(max(_FORWARD_TOLERANCE, _FORWARD_TOLERANCE * growth), _REDUCTION_TOLERANCE)


def allowed_error(
    reference_fn: Reference,
    inputs64: Arrays,
    dtype: DTypeLike,
    reduction: int = 1,
    *,
    dtypes: Mapping[str, DTypeLike] | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Return the error that a kernel of precision ``dtype`` may make, for every element of every output.

    Parameters
    ----------
    reference_fn
        Takes a dict of arrays, returns a dict of arrays. Statistics that the kernel derives from its inputs (mean,
        rstd) are to be computed inside, so that they follow the rounded inputs. It is called with float64 arrays, and
        with float32 arrays to observe float32's error; a reference that always computes in float64 forgoes the latter.
    inputs64
        float64 arrays, of any shape, and integer arrays, which are passed as they are.
    dtype
        float32, float16 or bfloat16: the precision of every floating-point input and output without one of its own.
    reduction
        The number of terms of the longest sum.
    dtypes
        Names of inputs and outputs that have a precision of their own (``{"mean": "float32"}``).

    Returns
    -------
    dict
        One float64 array per output, of the output's shape. Infinite where the result overflows ``dtype``.
    """
    precisions = {name: np.dtype(given) for name, given in (dtypes or {}).items()}
    default = np.dtype(dtype)
    exact = _evaluate(reference_fn, inputs64, np.float64)
    rounded_inputs = {name: _rounded(array, precisions.get(name, default)) for name, array in inputs64.items()}
    rounded = _evaluate(reference_fn, rounded_inputs, np.float64)
    observed = _observed_float32_error(reference_fn, rounded_inputs, exact)
    allowed = {}
    for name, result in exact.items():
        precision = precisions.get(name, default)
        size = np.maximum(np.abs(result), np.abs(rounded[name]))
        computing = np.maximum(float32_tolerance(reduction) * _scale(result), _OBSERVED_FACTOR * observed[name])
        with np.errstate(invalid="ignore"):
            rounding = np.abs(rounded[name] - result) + half_spacing(size, precision)
        total = np.where(size < _overflow(precision), _ROUNDING_FACTOR * rounding + computing, np.inf)
        allowed[name] = np.where(np.isfinite(result), total, 0.0)
    return allowed


def compare(actual: NDArray[Any], expected: NDArray[Any], allowed: NDArray[np.float64]) -> Comparison:
    """Compare a result with the float64 reference, element by element.

    A value that is not finite is right only where the reference has the same one (or, an infinity of the right sign,
    where the result was found to overflow, see ``allowed_error``).

    Raises ValueError where the shapes differ.
    """
    if not actual.shape == expected.shape == allowed.shape:
        raise ValueError(f"cannot compare shapes: got {actual.shape}, wanted {expected.shape}, allowed {allowed.shape}")
    if actual.size == 0:
        return Comparison(True, None, 0.0, 0.0, 0.0, 0.0)
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(same, 0.0, np.abs(got - wanted))
        overflow = np.isinf(allowed) & np.isinf(got) & (np.sign(got) == np.sign(wanted))
        error = np.where(overflow, 0.0, np.where(np.isnan(error), np.inf, error))
        # What may overflow may also stay finite, but then it is as near as any other number.
        limit = np.where(np.isinf(allowed), _NEAR_OVERFLOW * np.abs(wanted), allowed)
        bad = ~(error <= limit) | np.isinf(error)
        badness = np.where(error == 0, 0.0, np.where(np.isinf(error), np.inf, error / limit))
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(badness)), badness.shape))
    values = (float(array[index]) for array in (got, wanted, error, allowed))
    return Comparison(not bool(bad.any()), index, *values)


def half_spacing(values: NDArray[np.float64], dtype: DTypeLike) -> NDArray[np.float64]:
    """Return half the distance from each value to the next larger number of a precision; subnormals included."""
    info = _finfo(np.dtype(dtype))
    _, exponent = np.frexp(np.where(np.isfinite(values), values, 1.0))
    smallest = math.frexp(float(info.smallest_normal))[1]
    exponent = np.where(values == 0, smallest, np.maximum(exponent, smallest))
    spacing: NDArray[np.float64] = np.ldexp(0.5 * float(info.eps), exponent - 1)
    return spacing


def _finfo(precision: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(precision)  # type: ignore[no-untyped-call]


def _rounded(array: NDArray[Any], precision: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype.kind in "iub":
        return array
    with np.errstate(over="ignore"):
        return array.astype(precision).astype(np.float64)


def _evaluate(reference_fn: Reference, inputs: Arrays, dtype: DTypeLike) -> dict[str, NDArray[np.float64]]:
    """Call the reference on copies, so that one that works in place harms nobody."""
    given = {name: a.copy() if a.dtype.kind in "iub" else np.array(a, dtype=dtype) for name, a in inputs.items()}
    return {name: np.asarray(result).astype(np.float64) for name, result in reference_fn(given).items()}


def _scale(result: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = result[np.isfinite(result)]
    rms = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    return np.maximum(np.abs(result), rms)


def _overflow(precision: np.dtype[Any]) -> float:
    """Return the size from which rounding, with float32's error before it, may give infinity."""
    return float(_finfo(precision).max) * (1 - 2 * _FORWARD_TOLERANCE)


def _observed_float32_error(reference_fn: Reference, inputs: Arrays, outputs: Arrays) -> dict[str, float]:
    """Return the largest error, over an output, of evaluating the reference in float32 near the inputs.

    Small outputs are given more points, for one point may round luckily. Their distances differ, because the nearest
    keep what cancels in the inputs and the farthest move a coarsely rounded intermediate to another of its values.
    """
    size = max((array.size for array in outputs.values()), default=0)
    points = int(np.clip(4096 // max(size, 1), 4, 32))
    rng = np.random.default_rng(0)
    worst = dict.fromkeys(outputs, 0.0)
    for distance in np.geomspace(_NEAREST, _FARTHEST, points):
        nearby = {
            name: a if a.dtype.kind in "iub" else (a * (1 + distance * rng.uniform(-1, 1, a.shape))).astype(np.float32)
            for name, a in inputs.items()
        }
        with np.errstate(all="ignore"):
            single = _evaluate(reference_fn, nearby, np.float32)
            double = _evaluate(reference_fn, nearby, np.float64)
            errors = {name: np.abs(single[name] - double[name]) for name in outputs}
        _take_worst(worst, errors)
    exact = _evaluate(reference_fn, inputs, np.float64)
    for _ in range(_RANDOM_ROUNDINGS):
        with np.errstate(all="ignore"):
            moved = _evaluate_randomly_rounded(reference_fn, inputs, rng)
            _take_worst(worst, {name: np.abs(moved[name] - exact[name]) for name in outputs})
    return worst


def _take_worst(worst: dict[str, float], errors: Arrays) -> None:
    for name, error in errors.items():
        worst[name] = max(worst[name], float(np.max(error, where=np.isfinite(error), initial=0.0)))


def _evaluate_randomly_rounded(
    reference_fn: Reference, inputs: Arrays, rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Evaluate a reference with a random float32 rounding error in every step."""
    given: dict[str, NDArray[Any]] = {
        name: a.copy() if a.dtype.kind in "iub" else RandomlyRounded.of(a, rng) for name, a in inputs.items()
    }
    return {name: np.array(result, dtype=np.float64) for name, result in reference_fn(given).items()}
