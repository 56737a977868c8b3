"""Check a backward pass against the derivative of its forward pass, by finite differences in float64.

For random output gradients ``w`` and a random direction ``v`` of one input, ``<backward(w), v>`` must equal the
derivative of ``<w, forward(x + t v)>`` at ``t = 0``. That is taken from central differences of the steps ``h``, ``h/2``
and ``h/4``, extrapolated (Richardson). What the two may differ by is derived from the computation itself: the change
from one extrapolation to the next, finer one bounds the truncation error from above, and the rounding of the forward
pass divided by the step is the rest. Where extrapolations disagree by more than those of a smooth function can, the
answer is not a wide tolerance but an error: a kink lies within the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Forward = Callable[[Arrays], Mapping[str, NDArray[Any]]]
Backward = Callable[[Arrays, Arrays], Mapping[str, NDArray[Any]]]

_EPSILON = float(np.finfo(np.float64).eps)
#: Balances the truncation error, h^4 after extrapolation, with the rounding error, eps/h.
_RELATIVE_STEP = 2 * _EPSILON ** (1 / 5)
#: How many roundings of the size of its result a forward pass is granted.
_ROUNDINGS = 32
#: The largest allowed error relative to the derivative; beyond it the differences have not converged.
_CONVERGED = 1e-5


class GradientError(AssertionError):
    """A backward pass that is not the derivative of its forward pass."""


class ConvergenceError(ValueError):
    """Finite differences that do not converge: there is a kink or a pole close to an input."""


@dataclass(frozen=True)
class DirectionalCheck:
    """One input, one direction: the derivative by the backward pass (``got``) and by differences (``wanted``)."""

    name: str
    direction: int
    got: float
    wanted: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the two agree. A derivative that is not finite never does."""
        return bool(abs(self.got - self.wanted) <= self.allowed)

    def __str__(self) -> str:
        verdict = "agrees" if self.ok else "disagrees"
        return (
            f"gradient of {self.name} {verdict} in direction {self.direction}: backward gives {self.got:.12g}, "
            f"finite differences {self.wanted:.12g}, allowed difference {self.allowed:.2g}"
        )


@dataclass(frozen=True)
class GradcheckReport:
    """Every directional check of one ``gradcheck``."""

    checks: tuple[DirectionalCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every check agrees."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """The inputs whose gradient is wrong, in order."""
        return tuple(dict.fromkeys(check.name for check in self.checks if not check.ok))

    def raise_if_failed(self) -> None:
        """Raise GradientError with every disagreement."""
        if not self.ok:
            raise GradientError("\n".join(str(check) for check in self.checks if not check.ok))


def gradcheck(
    forward: Forward,
    backward: Backward,
    inputs: Mapping[str, NDArray[Any]],
    *,
    wrt: Sequence[str] | None = None,
    directions: int = 4,
    seed: int = 0,
) -> GradcheckReport:
    """Compare a backward pass with finite differences of the forward pass.

    Parameters
    ----------
    forward
        Takes a dict of arrays, returns a dict of float64 outputs. Pure; smooth near ``inputs``.
    backward
        Takes the inputs and a dict of output gradients, returns a dict of gradients by the name of the input, of the
        input's shape.
    inputs
        float64 arrays of any shape; integer arrays are passed through.
    wrt
        The inputs to check; all float64 ones by default.
    directions
        How many random directions each input is checked in. Every one comes with output gradients of its own.
    seed
        The seed of all that is random.

    Raises
    ------
    TypeError
        An input to be checked is not float64.
    ValueError
        A gradient is missing or has a wrong shape, there is nothing to check, or (ConvergenceError) the differences do
        not converge.
    """
    arrays = {name: np.array(array) for name, array in inputs.items()}
    chosen = [name for name, a in arrays.items() if a.dtype == np.float64 and a.size] if wrt is None else list(wrt)
    if not chosen or directions < 1:
        raise ValueError("there is nothing to check: no float64 input with elements, or no direction")
    for name in chosen:
        if arrays[name].dtype != np.float64:
            raise TypeError(f"input {name} is {arrays[name].dtype}; finite differences need float64")
    rng = np.random.default_rng(seed)
    outputs = _outputs(forward, arrays)
    checks: list[DirectionalCheck] = []
    weights = [{name: rng.standard_normal(output.shape) for name, output in outputs.items()} for _ in range(directions)]
    gradients = [backward(_copies(arrays), _copies(weight)) for weight in weights]
    for name in chosen:
        checks += _check_input(forward, arrays, name, weights, gradients, rng)
    return GradcheckReport(tuple(checks))


def _check_input(
    forward: Forward,
    arrays: Arrays,
    name: str,
    weights: Sequence[Arrays],
    gradients: Sequence[Mapping[str, NDArray[Any]]],
    rng: np.random.Generator,
) -> list[DirectionalCheck]:
    """Check one input in as many directions as there are output gradients."""
    vectors = [rng.standard_normal(arrays[name].shape) for _ in weights]
    slopes = [_slope(forward, arrays, name, v, weight) for v, weight in zip(vectors, weights, strict=True)]
    scale = float(np.sqrt(np.mean([slope**2 for slope, _, _ in slopes])))
    checks = []
    for direction, (slope, truncation, rounding) in enumerate(slopes):
        if not np.isfinite(slope) or truncation > max(_CONVERGED * scale, rounding):
            raise ConvergenceError(
                f"finite differences by {name} do not converge (steps differ by {truncation:.2g} of {scale:.2g}): "
                "the function has a kink or a pole close to this input"
            )
        gradient = _gradient(gradients[direction], name, arrays[name].shape)
        products = gradient * vectors[direction]
        own_rounding = _ROUNDINGS * _EPSILON * float(np.sqrt(np.sum(products**2)))
        allowed = 2 * truncation + rounding + (own_rounding if np.isfinite(own_rounding) else 0.0)
        checks.append(DirectionalCheck(name, direction, float(np.sum(products)), slope, allowed))
    return checks


def _slope(
    forward: Forward, arrays: Arrays, name: str, vector: NDArray[Any], weight: Arrays
) -> tuple[float, float, float]:
    """Return the derivative along a vector, and its truncation and rounding errors."""
    step = _RELATIVE_STEP * _length(arrays[name])
    sizes: list[float] = []

    def value(t: float) -> dict[str, NDArray[Any]]:
        return _outputs(forward, {**arrays, name: arrays[name] + t * vector})

    def difference(h: float) -> float:
        above, below = value(h), value(-h)
        sizes.append(sum(float(np.sum(np.abs(weight[key] * above[key]))) for key in weight))
        # Outputs are subtracted before they are summed, so that what does not change does not round either.
        total = sum(float(np.sum(weight[key] * (above[key] - below[key]))) for key in weight)
        return total / (2 * h)

    coarse, middle, fine = difference(step), difference(step / 2), difference(step / 4)
    slope = (4 * fine - middle) / 3
    rounding = _ROUNDINGS * _EPSILON * max(sizes) / (step / 4)
    return slope, abs(slope - (4 * middle - coarse) / 3), rounding


def _length(array: NDArray[Any]) -> float:
    """Return the length over which a function of the array may be expected to bend: its spread, or else its size."""
    size, spread = float(np.sqrt(np.mean(array**2))), float(np.std(array))
    if size == 0.0:
        return 1.0
    return spread if spread > 1e-3 * size else size


def _outputs(forward: Forward, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(output, dtype=np.float64) for name, output in forward(_copies(arrays)).items()}


def _copies(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}


def _gradient(gradients: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if name not in gradients:
        raise ValueError(f"the backward pass gives no gradient for {name}; it gives {', '.join(sorted(gradients))}")
    gradient = np.asarray(gradients[name], dtype=np.float64)
    if gradient.shape != shape:
        raise ValueError(f"the gradient of {name} has shape {gradient.shape}, the input {shape}")
    return gradient
