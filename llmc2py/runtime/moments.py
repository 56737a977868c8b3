"""What AdamW keeps for one parameter, and the step of one parameter."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.arrays import array_module, device_scope, has_several_devices, moved, place_of, pointer_of
from llmc2py.runtime.autograd import Tensor
from llmc2py.runtime.csemantics import c_cast
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.ops import is_packed
from llmc2py.runtime.plan import Launch
from llmc2py.runtime.relaunch import Cells, Relaunch, has_scalars, only_launch, scalar_cells

_FLOAT32 = np.dtype(np.float32)


class StepScalars:
    """The scalars that all parameters of a group share in a step, each a value that float holds."""

    def __init__(
        self, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, grad_scale: float
    ) -> None:
        self.learning_rate, (self.beta1, self.beta2), self.eps = lr, betas, eps
        self.weight_decay, self.grad_scale = weight_decay, grad_scale
        self._cells: dict[tuple[int, int], Cells] = {}

    def named(self, t: int) -> dict[str, float]:
        """Return what adamw_kernel3 is given at a parameter's step number ``t``, by the names of its parameters.

        The corrections are computed in float, as llm.c's launcher does.
        """
        return {
            "learning_rate": self.learning_rate,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "beta1_correction": 1.0 - c_cast(math.pow(self.beta1, t), "float"),
            "beta2_correction": 1.0 - c_cast(math.pow(self.beta2, t), "float"),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "grad_scale": self.grad_scale,
        }

    def cells(self, launch: Launch, t: int) -> Cells:
        """Return the cells of these scalars in the argument block of a launch."""
        key = id(launch.instance.kernel), t
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = scalar_cells(launch, self.named(t))
        return found


#: Scalars like those of no other step, to see whether a launcher passes on what it is given.
_PROBE, _PROBE_STEP, _PROBE_SEED = StepScalars(0.375, (0.8125, 0.9375), 2.0**-15, 0.21875, 0.71875), 7, 123_457


class _Prepared(NamedTuple):
    """A launch on the arrays of a parameter; the gradient's address is that of each step."""

    relaunch: Relaunch
    launch: Launch
    pointers: list[int]
    gradient: int
    seed_cell: int


class Moments:
    """The state of one parameter.

    Attributes
    ----------
    m, v
        First and second moment: float32, one element for each of the parameter's. None before the first step.
    master
        The parameter in float32, which takes the steps; None where there is none.
    t
        The number of steps that this parameter has taken.
    seed
        The seed that the last of them rounded with.
    """

    def __init__(self, name: str, parameter: Tensor, master_weights: bool | None) -> None:
        self.name = name
        self.parameter = parameter
        self.m: Any = None
        self.v: Any = None
        self.master: Any = None
        self.t = 0
        self.seed = 0
        self._master_weights = master_weights
        self._data: Any = None
        self._gradient_dtype: Any = None
        self._prepared: _Prepared | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies and pickles what a step has laid out on this object's arrays; the next does so again."""
        return {**self.__dict__, "_data": None, "_gradient_dtype": None, "_prepared": None}

    def settle(self, update: Any) -> None:
        """Check the parameter and its gradient, and be ready for a step with the launcher ``update``.

        Raises TypeError (dtype, place) and ValueError (shape); nothing is changed then.
        """
        data, grad = self.parameter.data, self.parameter.grad
        is_known = data is self._data and grad.__class__ is data.__class__ and grad.dtype == self._gradient_dtype
        if is_known and grad.shape == data.shape and not has_several_devices():
            return
        self._check(data, grad)
        if is_known:
            return
        self.place_beside(data)
        self._data, self._gradient_dtype = data, grad.dtype
        self._prepared = self._prepare(update, data, grad) if data.size and is_packed(data) else None

    def place_beside(self, data: Any) -> None:
        """Move the state to the parameter, make what is not there yet, drop master weights that are not wanted."""
        place, xp = place_of(data, self.name), array_module(data)
        wants_master = data.dtype.itemsize == 2 if self._master_weights is None else self._master_weights
        with device_scope(place):
            self.m = xp.zeros(data.size, _FLOAT32) if self.m is None else moved(self.m, place, _FLOAT32)
            self.v = xp.zeros(data.size, _FLOAT32) if self.v is None else moved(self.v, place, _FLOAT32)
            if not wants_master:
                self.master = None
            elif self.master is None:
                self.master = data.astype(_FLOAT32).reshape(-1)
            else:
                self.master = moved(self.master, place, _FLOAT32)

    def step(self, update: Any, scalars: StepScalars, seed: int) -> None:
        """Take a step with a gradient that `settle` has seen."""
        self.t, self.seed = self.t + 1, seed
        grad, prepared = self.parameter.grad, self._prepared
        if not grad.size:
            return
        if prepared is not None and is_packed(grad):
            address = pointer_of(grad)
            if address % prepared.relaunch.aligned[prepared.gradient] == 0:
                prepared.pointers[prepared.gradient] = address
                cells = scalars.cells(prepared.launch, self.t)
                prepared.relaunch(prepared.pointers, [*cells, (prepared.seed_cell, seed)])
                return
        update(*self._arguments(grad, scalars, self.t, seed))

    def restore(self, init_from_master: Any) -> None:
        """Round the parameter from its master with the seed of its last step, which gives the bits that this gave."""
        data = self.parameter.data
        if self.master is not None and data.size:
            init_from_master(data, self.master, data.size, data.size, data.size, 1, self.seed)

    def reset_master(self) -> None:
        """Take the master from the parameter at the next step."""
        self.master = self._data = self._prepared = None

    def _check(self, data: Any, grad: Any) -> None:
        place, label = place_of(data, self.name), f"the gradient of {self.name}"
        if place_of(grad, label) != place:
            raise TypeError(f"AdamW: {self.name} is on {place}, its gradient on {place_of(grad, label)}")
        for array, what in ((data, self.name), (grad, label)):
            if array.dtype not in PRECISIONS.values():
                raise TypeError(f"AdamW: {what} is {array.dtype}; one of {', '.join(PRECISIONS)} is taken")
        if grad.shape != data.shape:
            raise ValueError(f"AdamW: {self.name} has shape {data.shape}, its gradient {grad.shape}")
        if self.m is not None and self.m.size != data.size:
            raise ValueError(f"AdamW: {self.name} has {data.size} elements now, its moments have {self.m.size}")

    def _arguments(self, grad: Any, scalars: StepScalars, t: int, seed: int) -> tuple[Any, ...]:
        data = self.parameter.data
        rates = (scalars.learning_rate, scalars.beta1, scalars.beta2, t, scalars.eps)
        sizes = (data.size,) * 4
        scales = (scalars.weight_decay, scalars.grad_scale, seed)
        return (data, self.master, grad, self.m, self.v, *sizes, 1, *rates, *scales)

    def _prepare(self, update: Any, data: Any, grad: Any) -> _Prepared | None:
        """Lay out the launch; None where the launcher is to be called: it does more, or an array is not aligned."""
        plan = update.plan(*self._arguments(grad, _PROBE, _PROBE_STEP, _PROBE_SEED))
        launch = only_launch(plan)
        sizes = dict.fromkeys(("num_parameters", "w_stride", "g_stride", "s_stride"), data.size)
        known = {**_PROBE.named(_PROBE_STEP), **sizes, "seed": _PROBE_SEED}
        if launch is None or not has_scalars(launch, known):
            return None
        arrays = [array for array in (data, self.master, grad, self.m, self.v) if array is not None]
        gradient = 1 if self.master is None else 2
        pointers = [pointer_of(array) for array in arrays]
        relaunch = Relaunch(plan, launch)
        # The gradient is another array in each step, and is looked at then.
        kept = [slot for slot in range(len(arrays)) if slot != gradient]
        if any(pointers[slot] % relaunch.aligned[slot] for slot in kept):
            return None
        return _Prepared(relaunch, launch, pointers, gradient, relaunch.cells["seed"])
