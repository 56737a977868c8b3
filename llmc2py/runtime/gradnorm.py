"""The norm of all gradients, and the factor that clips them by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.arrays import array_module, backend_named, common_place, device_scope, place_of
from llmc2py.runtime.autograd import Tensor
from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.interop import as_array

_FLOAT32 = np.dtype(np.float32)
#: The block of global_norm_squared_kernel, and that of global_norm_aggregate_kernel, which is one.
_BLOCK, _ONE_BLOCK = 512, 1024


class ClippedNorm(NamedTuple):
    """What `GradientNorm.clip_global_norm` returns.

    Attributes
    ----------
    norm
        The norm of the gradients before clipping.
    grad_scale
        What ``AdamW.step`` is to multiply them by; NaN, which it refuses, where the norm is not finite.
    """

    norm: float
    grad_scale: float

    @property
    def is_finite(self) -> bool:
        """Whether the norm is a number, so that a step can be taken."""
        return math.isfinite(self.norm)


class GradientNorm:
    """The norm by a launcher that leaves sums of squares, one for each block, and a kernel that adds them up.

    Parameters
    ----------
    squared
        The launcher ``global_norm_squared`` of a generated package.
    aggregate
        Its kernel ``global_norm_aggregate_kernel``.
    """

    def __init__(self, squared: Any, aggregate: Any) -> None:
        self._squared = squared
        self._aggregate = aggregate

    def global_norm(self, gradients: Iterable[Any]) -> Any:
        """Return the root of the sum of the squares of all gradients.

        Parameters
        ----------
        gradients
            Parameters, of which those without a gradient count as 0, or arrays: float32, float16 or bfloat16, which may
            be mixed, on one device.

        Returns
        -------
        A float32 array without axes, where the gradients are. Nothing waits for the device.

        Raises TypeError for other dtypes and for arrays on two devices, ValueError where there is nothing at all.
        """
        items = list(gradients)
        if not items:
            raise ValueError("global_norm: there are no parameters or arrays to take the norm of")
        present = [
            (f"gradient {index}", item.grad if isinstance(item, Tensor) else as_array(item, f"gradient {index}"))
            for index, item in enumerate(items)
            if not (isinstance(item, Tensor) and item.grad is None)
        ]
        place = common_place("global_norm", present) or place_of(items[0].data, "parameter 0")
        for name, array in present:
            if array.dtype not in PRECISIONS.values():
                raise TypeError(f"global_norm: {name} is {array.dtype}; one of {', '.join(PRECISIONS)} is taken")
        backend = backend_named(place.backend)
        device = backend.properties(place.device)
        # As many blocks as the device runs at once; llm.c's launcher takes no more for one slice.
        blocks = ceil_div(device.multiProcessorCount * device.maxThreadsPerMultiProcessor, _BLOCK)
        with device_scope(place):
            sums = backend.empty((blocks,), _FLOAT32)
            sums.fill(0)
            for _, array in present:
                if array.size:
                    self._squared(sums, array, array.size, 0, 1, blocks, False)
            self._aggregate[1, _ONE_BLOCK](sums, blocks)
            xp = array_module(sums)
            return xp.asarray(xp.sqrt(sums[0]))

    def clip_global_norm(self, parameters: Iterable[Any], max_norm: float) -> ClippedNorm:
        """Return the norm of the gradients, and the factor that brings it down to ``max_norm``.

        The gradients are left as they are: ``AdamW.step(grad_scale)`` multiplies while it reads them. The factor is
        ``max_norm / norm``, or 1 where the norm is not above ``max_norm``. This waits for the device.

        Raises ValueError unless ``max_norm`` is above 0, and what `global_norm` raises.
        """
        if not max_norm > 0:
            raise ValueError(f"clip_global_norm: max_norm is {max_norm}; it has to be above 0")
        norm = float(self.global_norm(parameters))
        if not math.isfinite(norm):
            return ClippedNorm(norm, math.nan)
        return ClippedNorm(norm, max_norm / norm if norm > max_norm else 1.0)
