"""The optimiser: AdamW with gradients in any precision, float32 moments and master weights.

A generated package's ``optim.py`` binds `AdamW` and `GradientNorm` to the launchers of its source tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from llmc2py.runtime.autograd import Tensor
from llmc2py.runtime.csemantics import c_float
from llmc2py.runtime.cuda.graphs import refuse_capture_of
from llmc2py.runtime.gradnorm import ClippedNorm, GradientNorm
from llmc2py.runtime.moments import Moments, StepScalars

__all__ = ["AdamW", "ClippedNorm", "GradientNorm", "ParameterGroup"]

_GROUP_KEYS = frozenset({"params", "lr", "weight_decay"})


class ParameterGroup:
    """Parameters that share a learning rate and a weight decay, both of which may be set between steps.

    Attributes
    ----------
    parameters
        The tensors.
    lr, weight_decay
        None: those of the optimiser.
    """

    def __init__(self, parameters: Iterable[Any], lr: float | None = None, weight_decay: float | None = None) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.weight_decay = weight_decay


class AdamW:
    """AdamW: Adam with weight decay that does not pass through the moments.

    With g the gradient times ``grad_scale`` and t the number of the parameter's step::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        p = p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p)

    The moments are float32. A parameter of 16 bits is rounded from its master weights, bfloat16 up or down at random so
    that the mean is right, with a seed of its own for each step and parameter. State is made at a parameter's first
    step, where the parameter is then; it follows a parameter that is moved.

    Parameters
    ----------
    parameters
        Tensors with gradients (``layer.parameters()``), or groups of them: ``{"params": [...], "weight_decay": 0.0}``,
        where ``lr`` and ``weight_decay`` may be left out. GPT-2 decays matrices alone.
    lr, betas, eps, weight_decay
        As in the formula. ``lr`` and ``weight_decay`` may be set between steps, for all groups without their own.
    master_weights
        Whether parameters have a copy in float32 that takes the steps. None: those of 16 bits have.
    seed
        What the seeds of the random rounding are drawn from.

    Attributes
    ----------
    groups
        The `ParameterGroup` objects, in the order given.
    steps
        The number of calls of `step`.

    Raises TypeError for what is no tensor or number, ValueError for no parameters, for one that comes twice, and for
    numbers out of range (``lr``, ``eps``, ``weight_decay`` are at least 0, ``betas`` in [0, 1)).
    """

    #: The launchers of a source tree; a generated package has a subclass that names them.
    update: ClassVar[Any] = None
    init_from_master: ClassVar[Any] = None

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        master_weights: bool | None = None,
        seed: int = 0,
    ) -> None:
        if self.update is None or self.init_from_master is None:
            raise TypeError("AdamW has no launchers of its own; take the class of a generated package's optim module")
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.seed = _checked_integer("seed", seed)
        self.steps = 0
        self.groups = _groups(list(parameters))
        names = iter(range(sum(len(group.parameters) for group in self.groups)))
        self._states = [
            [Moments(f"parameter {next(names)}", one, master_weights) for one in group.parameters]
            for group in self.groups
        ]
        for group in self.groups:
            self._scalars(group, 1.0)

    @property
    def parameters(self) -> list[Any]:
        """All parameters, group after group."""
        return [state.parameter for state in self._all_states()]

    def step(self, grad_scale: float = 1.0) -> None:
        """Take a step for every parameter that has a gradient, which is multiplied by ``grad_scale`` first.

        `GradientNorm.clip_global_norm` gives a ``grad_scale`` that clips. Gradients are not written.

        Raises ValueError for a ``grad_scale``, or settings, that are out of range or not finite; TypeError and
        ValueError for gradients that do not fit their parameters; RuntimeError while a CUDA graph is captured, as each
        step has numbers of its own. No parameter has been changed then.
        """
        present = (parameter.grad for parameter in self.parameters if parameter.grad is not None)
        refuse_capture_of(next(present, None), "AdamW.step gives each step other numbers, which no graph can repeat")
        if not math.isfinite(grad_scale):
            raise ValueError(
                f"AdamW.step: grad_scale is {grad_scale}; where the norm of the gradients is not finite, leave the "
                f"step out"
            )
        scale = c_float(grad_scale, "float", "grad_scale", "AdamW.step")
        scalars = [self._scalars(group, scale) for group in self.groups]
        update = self.update
        for state in self._all_states():
            if state.parameter.grad is not None:
                state.settle(update)
        self.steps += 1
        seeds = iter(np.random.SeedSequence((self.seed, self.steps)).generate_state(len(self._all_states())).tolist())
        for states, shared in zip(self._states, scalars, strict=True):
            # Each parameter has its seed, whether it takes the step or not.
            for state, seed in zip(states, seeds, strict=False):
                if state.parameter.grad is not None:
                    state.step(update, shared, seed)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or with ``set_to_none=False`` fill them with zeros."""
        for state in self._all_states():
            if set_to_none:
                state.parameter.grad = None
            elif state.parameter.grad is not None:
                state.parameter.grad[...] = 0

    def reset_master_weights(self) -> None:
        """Take master weights from the parameters again: for when these were given other values than a step's."""
        for state in self._all_states():
            state.reset_master()

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of everything that training goes on from, as NumPy arrays (numbers: without axes).

        Fit for ``numpy.savez(file, **state)`` and ``load_state_dict(numpy.load(file))``. Parameters are numbered in
        the order that they were given in: ``"0.m"``, ``"0.v"``, ``"0.master"`` … Their values are no part of it, but
        for the master weights.
        """
        found = {name: np.array(value) for name, value in self._settings().items()}
        for index, state in enumerate(self._all_states()):
            found |= {f"{index}.t": np.array(state.t), f"{index}.seed": np.array(state.seed)}
            found[f"{index}.dtype"] = np.array(state.parameter.dtype.name)
            for name in ("m", "v", "master"):
                array = getattr(state, name)
                if array is not None:
                    found[f"{index}.{name}"] = np.array(array if isinstance(array, np.ndarray) else array.get())
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`: the next step has the bits that it would have had.

        Parameters with master weights, and the dtype that they had, are rounded from these again, to the bits that they
        had. Others keep their values: load those before or after.

        Raises ValueError, naming all that is wrong, for a state that is not of these parameters; nothing is changed
        then.
        """
        states = self._all_states()
        problems = self._problems(state, states)
        if problems:
            raise ValueError("the state does not fit these parameters: " + "; ".join(problems))
        self._set(state)
        for index, one in enumerate(states):
            one.reset_master()
            one.t, one.seed = int(state[f"{index}.t"]), int(state[f"{index}.seed"])
            one.m, one.v, one.master = (
                np.array(state[key], np.float32) if (key := f"{index}.{name}") in state else None
                for name in ("m", "v", "master")
            )
            if one.master is not None and str(state[f"{index}.dtype"]) == one.parameter.dtype.name:
                one.place_beside(one.parameter.data)
                one.restore(self.init_from_master)

    def _all_states(self) -> list[Moments]:
        return [state for states in self._states for state in states]

    def _scalars(self, group: ParameterGroup, grad_scale: float) -> StepScalars:
        """Check the numbers of a group as they are now."""
        lr = _checked("lr", self.lr if group.lr is None else group.lr)
        decay = _checked("weight_decay", self.weight_decay if group.weight_decay is None else group.weight_decay)
        beta1, beta2 = (_checked("betas", beta, below=1.0) for beta in self.betas)
        return StepScalars(lr, (beta1, beta2), _checked("eps", self.eps), decay, grad_scale)

    def _settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {"steps": self.steps, "seed": self.seed, "betas": self.betas, "eps": self.eps}
        found |= {"lr": self.lr, "weight_decay": self.weight_decay}
        for index, group in enumerate(self.groups):
            own = {"lr": group.lr, "weight_decay": group.weight_decay}
            found |= {f"group {index}.{name}": value for name, value in own.items() if value is not None}
        return found

    def _set(self, state: Mapping[str, Any]) -> None:
        self.steps, self.seed = int(state["steps"]), int(state["seed"])
        self.lr, self.weight_decay, self.eps = (float(state[name]) for name in ("lr", "weight_decay", "eps"))
        beta1, beta2 = state["betas"]
        self.betas = float(beta1), float(beta2)
        for index, group in enumerate(self.groups):
            for name in ("lr", "weight_decay"):
                key = f"group {index}.{name}"
                setattr(group, name, float(state[key]) if key in state else None)

    def _problems(self, state: Mapping[str, Any], states: list[Moments]) -> list[str]:
        """Return what is missing, what is too much, and which array has another size."""
        needed = {"steps", "seed", "lr", "weight_decay", "betas", "eps"}
        needed |= {f"{index}.{name}" for index in range(len(states)) for name in ("t", "seed", "dtype")}
        arrays = {f"{index}.{name}": index for index in range(len(states)) for name in ("m", "v", "master")}
        possible = needed | set(arrays)
        possible |= {f"group {index}.{name}" for index in range(len(self.groups)) for name in ("lr", "weight_decay")}
        needed |= {f"{index}.{name}" for index in _begun(state, len(states)) for name in ("m", "v")}
        found = [f"missing: {name}" for name in sorted(needed - set(state))]
        found += [f"unexpected: {name}" for name in sorted(set(state) - possible)]
        for key, index in arrays.items():
            size = states[index].parameter.data.size
            if key in state and np.size(state[key]) != size:
                found.append(f"{key} has {np.size(state[key])} elements, the parameter has {size}")
        return found


def _begun(state: Mapping[str, Any], count: int) -> list[int]:
    """Return the numbers of the parameters that have taken a step."""
    return [index for index in range(count) if (key := f"{index}.t") in state and int(state[key]) > 0]


def _groups(items: list[Any]) -> list[ParameterGroup]:
    """Return the groups that were given, or one of all parameters."""
    are_groups = [isinstance(item, (Mapping, ParameterGroup)) for item in items]
    if any(are_groups) and not all(are_groups):
        raise TypeError("AdamW: parameters and groups of them are mixed; put the parameters into a group")
    groups = [_group(item) for item in items] if any(are_groups) else [ParameterGroup(items)]
    parameters = [one for group in groups for one in group.parameters]
    if not parameters:
        raise ValueError("AdamW: there are no parameters")
    for one in parameters:
        if not isinstance(one, Tensor):
            raise TypeError(f"AdamW: a parameter is a Parameter or another Tensor, not a {type(one).__name__}")
    if len({id(one) for one in parameters}) < len(parameters):
        raise ValueError("AdamW: a parameter comes twice; put each into one group, once")
    return groups


def _group(item: Any) -> ParameterGroup:
    if isinstance(item, ParameterGroup):
        return item
    if unknown := sorted(set(item) - _GROUP_KEYS):
        raise ValueError(f"AdamW: a group has no key {', '.join(map(repr, unknown))}; it has {sorted(_GROUP_KEYS)}")
    if "params" not in item:
        raise ValueError("AdamW: a group needs its parameters under the key 'params'")
    return ParameterGroup(item["params"], item.get("lr"), item.get("weight_decay"))


def _checked(name: str, value: Any, below: float = math.inf) -> float:
    """Return a number as the kernel takes it, in float. Raises ValueError for one out of range."""
    number = c_float(value, "float", name, "AdamW")
    if not 0 <= number < below:
        most = "finite" if below == math.inf else f"below {below:g}"
        raise ValueError(f"AdamW: {name} is {value}; it has to be at least 0 and {most}")
    return number


def _checked_integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueError(f"AdamW: {name} is {value!r}; it is an integer of at least 0")
    return int(value)
