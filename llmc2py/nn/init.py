"""Initial values of parameters, drawn on the CPU so that one seed gives one model on every backend."""

from __future__ import annotations

import math

import numpy as np

from llmc2py.runtime import Parameter
from llmc2py.runtime.state import write_values

#: The standard deviation that GPT-2 starts its matrices with.
GPT2_STD = 0.02


def residual_std(layers: int, std: float = GPT2_STD) -> float:
    """Return the standard deviation for projections that are added to the residual stream of ``layers`` blocks.

    Each block adds twice, so ``std / sqrt(2 * layers)`` keeps the variance of the sum. Raises ValueError for no layers.
    """
    if layers < 1:
        raise ValueError(f"a residual stream has at least one block, not {layers}")
    return std / math.sqrt(2 * layers)


def normal(parameter: Parameter, random: np.random.Generator, std: float = GPT2_STD, mean: float = 0.0) -> None:
    """Fill a parameter with normally distributed values; its place and dtype stay. Raises ValueError for a bad std."""
    if not std >= 0:
        raise ValueError(f"a standard deviation is not negative, got {std}")
    values = random.standard_normal(parameter.shape, dtype=np.float32)
    write_values(parameter, values * np.float32(std) + np.float32(mean))


def fill(parameter: Parameter, value: float) -> None:
    """Fill a parameter with one value."""
    parameter.data[...] = value
