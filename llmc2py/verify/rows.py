"""One row of the table that ``llmc2py verify`` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmc2py.verify.tolerance import Comparison


@dataclass(frozen=True)
class VerifyRow:
    """The outcome of one check: of which layer, in which precision, on which shape of the first input.

    ``error`` and ``allowed`` are those of the worst element, NaN where the check compares no numbers. ``earlier`` says
    that it was not run now, but passed in an earlier run of the same code.
    """

    layer: str
    precision: str
    shape: str
    check: str
    ok: bool
    error: float
    allowed: float
    detail: str
    earlier: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values; a number that JSON has not is None."""
        row = dict(vars(self))
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }


def worst_of(comparisons: Mapping[str, Comparison]) -> tuple[bool, float, float, str]:
    """Return verdict, error, allowed error and detail of the worst of several named comparisons.

    Raises ValueError where there is none: a check without a comparison cannot fail.
    """
    if not comparisons:
        raise ValueError("there is nothing to compare")

    def badness(item: tuple[str, Comparison]) -> tuple[bool, float]:
        one = item[1]
        return not one.ok, math.inf if math.isinf(one.error) else one.error / one.allowed if one.allowed else 0.0

    name, worst = max(comparisons.items(), key=badness)
    failed = [key for key, one in comparisons.items() if not one.ok]
    others = f" (wrong: {', '.join(failed)})" if len(failed) > 1 else ""
    return worst.ok, worst.error, worst.allowed, f"{name}: {worst}{others}"
