"""The checks of one layer in one precision: run it on the shapes of its cases and compare it with its reference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.autograd import Context, Function, Tensor
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.layer import Layer, OpSpec, Parameter
from llmc2py.runtime.references import Reference
from llmc2py.verify.bounds import Watch, placed
from llmc2py.verify.cases import Arrays, Case, dtype_of, gradient_values, input_values, parameter_values
from llmc2py.verify.layouts import LAYOUTS, PARAMETER_LAYOUTS, Snapshot, as_numpy
from llmc2py.verify.oracles import Expected, bound, expected_gradients, expected_outputs
from llmc2py.verify.rows import VerifyRow, worst_of
from llmc2py.verify.tolerance import Comparison, half_spacing

Device = dict[str, Any]
Verdict = tuple[bool, float, float, str]

_ACCUMULATED_ROUNDING = 1.5
#: Options that let a layer write over its inputs: what is looked at then are the results of one call.
_WRITING_OPTIONS = ("inplace",)


class _Join(Function):
    """Several outputs as one, so that one backward pass starts from all of them with the gradients given."""

    @staticmethod
    def forward(ctx: Context, *arrays: Any) -> Any:
        """Take tensors, then as many gradients; return one element."""
        ctx.save(*arrays[len(arrays) // 2 :])
        return array_module(arrays[0]).zeros((1,), arrays[0].dtype)

    @staticmethod
    def backward(ctx: Context, *_grads: Any) -> Any:
        """Return the gradients that were given."""
        return (*ctx.saved, *[None] * len(ctx.saved))


@dataclass(frozen=True)
class Subject:
    """A layer in one precision on one backend (``xp`` is NumPy or CuPy), with what it is compared with."""

    name: str
    layer: type[Layer]
    spec: OpSpec
    reference: Reference
    precision: str
    xp: Any

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the precision."""
        dtype: np.dtype[Any] = PRECISIONS[self.precision]
        return dtype

    def place(self, values: Mapping[str, NDArray[Any]]) -> Device:
        """Return values as arrays on the backend: of the precision, or of their own dtype."""
        dtypes = {name: dtype_of(self.spec, name, self.dtype) for name in values}
        return {
            name: placed(self.xp, array if array.dtype.kind == "i" else array.astype(dtypes[name]))
            for name, array in values.items()
        }

    def new_layer(self, case: Case) -> Layer:
        """Return a layer whose parameters lie where the arrays will."""
        options: dict[str, Any] = {}
        if self.spec.parameters:
            options = {"dtype": self.precision, "like": self.xp.zeros((1,), self.dtype)}
        given = {name: case.sizes.get(name) for name, default in self.spec.options.items() if default is ...}
        sizes = [case.sizes[letter] for letter in self.spec.letters]
        return self.layer(*sizes, **{**given, **case.options, **options})


@dataclass
class Run:
    """One forward and backward pass: arrays that went in, and what came out."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    layer: Layer

    def output_arrays(self) -> Arrays:
        """Return the outputs as NumPy arrays."""
        return {name: as_numpy(tensor.data) for name, tensor in self.outputs.items()}

    def gradient_arrays(self, names: Sequence[str]) -> Arrays:
        """Return the gradients of inputs and parameters as NumPy arrays. Raises ValueError where one is missing."""
        tensors = {name: self.inputs[name] if name in self.inputs else getattr(self.layer, name) for name in names}
        missing = [name for name, tensor in tensors.items() if tensor.grad is None]
        if missing:
            raise ValueError(f"the backward pass left no gradient for {', '.join(missing)}")
        return {name: as_numpy(tensor.grad).copy() for name, tensor in tensors.items()}


class CaseCheck:
    """The checks of one case. Every method is one row of the table."""

    def __init__(self, subject: Subject, case: Case, layer: Layer, watch: Watch) -> None:
        self.case, self.layer, self.watch = case, layer, watch
        self.subject = subject = dataclasses.replace(subject, reference=bound(subject.reference, subject.spec, case))
        spec, dtype = subject.spec, subject.dtype
        layer.zero_grad()
        new = subject.new_layer(case)
        self.names = [name for name in spec.parameters if getattr(new, name) is not None]
        other = subject.new_layer(case)
        initial = {name: _initial(getattr(new, name), getattr(other, name)) for name in self.names}
        self.parameters = parameter_values(spec, case, dtype, initial)
        self.values = input_values(spec, case, dtype)
        self.incoming = gradient_values(spec, case, dtype)
        self.set_parameters(subject.place(self.parameters))

    def set_parameters(self, arrays: Device) -> None:
        """Give the layer these arrays as parameters."""
        for name, array in arrays.items():
            setattr(self.layer, name, Parameter(array))

    def rows(self) -> Iterator[VerifyRow]:
        """Run the checks. A check that raises is a failed row; the others still run.

        But for one that shows an access out of bounds: those that follow could do so where nothing is guarded.
        """
        for check, run in self._checks():
            yield self._row(check, run)
            if self.watch.found:
                return

    def _checks(self) -> Iterator[tuple[str, Callable[[], Verdict]]]:
        yield "forward", self.forward
        if self.subject.reference.backward is None:
            return
        yield "backward", self.backward
        if any(self.case.options.get(name) for name in _WRITING_OPTIONS):
            return
        yield "arrays unchanged", self.unchanged
        yield "accumulation", self.accumulation
        if self.case.layouts:
            for kind in LAYOUTS:
                yield f"{kind} arrays", functools.partial(self.layout, kind)
            if self._follow_ups():
                yield "used twice", self.used_twice
            if len(self.subject.spec.outputs) > 1:
                for name in self.subject.spec.outputs:
                    yield f"backward of {name} alone", functools.partial(self.backward_of_one, name)

    def _row(self, check: str, run: Callable[[], Verdict]) -> VerifyRow:
        elements = self.case.elements
        try:
            ok, error, allowed, detail = self.watch.call(run, elements)
            if not ok and np.isinf(error):
                # It may come from what lies beside an array, or is not there yet.
                detail = "; ".join([detail, *self.watch.findings(run, elements)])
        except ToolMissingError:
            raise
        except Exception as fault:
            ok, error, allowed, detail = False, float("nan"), float("nan"), f"{type(fault).__name__}: {fault}"
        subject = self.subject
        return VerifyRow(
            subject.name, subject.precision, self.case.label(subject.spec), check, ok, error, allowed, detail
        )

    # --- running

    def run(self, inputs: Device, incoming: Device | None = None) -> Run:
        """Call the layer on arrays and, with gradients of the outputs, go back from them."""
        tensors = {name: Tensor(array) for name, array in inputs.items()}
        outputs = self._call(list(tensors.values()))
        if incoming is not None:
            self._go_back(outputs, incoming)
        return Run(tensors, outputs, self.layer)

    def _call(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        result = self.layer(*tensors)
        results = result if isinstance(result, tuple) else (result,)
        return dict(zip(self.subject.spec.outputs, results, strict=True))

    def _go_back(self, outputs: Mapping[str, Tensor], incoming: Device) -> None:
        if len(incoming) == 1:
            name = next(iter(incoming))
            outputs[name].backward(incoming[name])
        else:
            _Join.apply(*(outputs[name] for name in incoming), *incoming.values()).backward()

    def _gradients(self, run: Run) -> Arrays:
        inputs = [name for name in self.subject.spec.inputs if name not in self.subject.spec.indices]
        return run.gradient_arrays([*inputs, *self.names])

    def _expected_gradients(self, inputs: Arrays, incoming: Arrays) -> Expected:
        subject = self.subject
        given = {**inputs, **self.parameters}
        return expected_gradients(subject.reference, subject.spec, given, incoming, subject.dtype, self.case)

    @functools.cached_property
    def expected(self) -> Expected:
        """The gradients of the case's own values."""
        return self._expected_gradients(self.values, self.incoming)

    @functools.cached_property
    def expected_outputs(self) -> Expected:
        """The outputs of the case's own values."""
        return self._expected_outputs(self.values)

    def _expected_outputs(self, inputs: Arrays) -> Expected:
        subject = self.subject
        given = {**inputs, **self.parameters}
        return expected_outputs(subject.reference, subject.spec, given, subject.dtype, self.case)

    # --- the checks

    def forward(self) -> Verdict:
        """Compare all outputs."""
        run = self.run(self.subject.place(self.values))
        return worst_of(self.expected_outputs.compared(run.output_arrays()))

    def backward(self) -> Verdict:
        """Compare the gradients of all inputs and parameters."""
        run = self.run(self.subject.place(self.values), self.subject.place(self.incoming))
        return worst_of(self.expected.compared(self._gradients(run)))

    def unchanged(self) -> Verdict:
        """Look at every byte of inputs, parameters, incoming gradients and outputs after both passes."""
        inputs, incoming = self.subject.place(self.values), self.subject.place(self.incoming)
        own = {name: getattr(self.layer, name).data for name in self.names}
        before = Snapshot({**inputs, **own, **{f"the gradient of {name}": array for name, array in incoming.items()}})
        run = self.run(inputs)
        outputs = Snapshot({name: tensor.data for name, tensor in run.outputs.items()})
        self._go_back(run.outputs, incoming)
        return _unchanged([*before.changed(), *outputs.changed()])

    def accumulation(self) -> Verdict:
        """Go forward and back twice from the same leaves: the second gradients are added to the first."""
        self.layer.zero_grad()
        inputs, incoming = self.subject.place(self.values), self.subject.place(self.incoming)
        run = self.run(inputs, incoming)
        first = self._gradients(run)
        self._go_back(self._call(list(run.inputs.values())), incoming)
        return worst_of(self._sum_of(first, self.expected).compared(self._gradients(run)))

    def _sum_of(self, present: Mapping[str, NDArray[Any]], added: Expected) -> Expected:
        """Return what comes of adding gradients to those that are there, rounded once more."""
        values, allowed = {}, {}
        for name, value in added.values.items():
            values[name] = present[name].astype(np.float64) + value
            size = np.abs(values[name]) + added.allowed[name]
            allowed[name] = added.allowed[name] + _ACCUMULATED_ROUNDING * half_spacing(size, self.subject.dtype)
        return Expected(values, allowed, added.kept)

    def layout(self, kind: str) -> Verdict:
        """Run on arrays that do not lie packed, and compare with the reference of the same values."""
        self.layer.zero_grad()
        lay_out, repeat = LAYOUTS[kind], kind == "broadcast"
        values = {name: _repeated(array) if repeat else array for name, array in self.values.items()}
        grads = {name: _repeated(array) if repeat else array for name, array in self.incoming.items()}
        inputs = {name: lay_out(self.subject.xp, array) for name, array in self.subject.place(values).items()}
        placed = self.subject.place(grads)
        incoming = {name: lay_out(self.subject.xp, array) if array.ndim else array for name, array in placed.items()}
        packed = self.subject.place(self.parameters)
        if kind in PARAMETER_LAYOUTS:
            self.set_parameters({name: lay_out(self.subject.xp, array) for name, array in packed.items()})
        before = Snapshot({**inputs, **{f"the gradient of {name}": array for name, array in incoming.items()}})
        try:
            run = self.run(inputs, incoming)
            outputs = self._expected_outputs(values) if repeat else self.expected_outputs
            expected = self._expected_gradients(values, grads) if repeat else self.expected
            compared, gradients = outputs.compared(run.output_arrays()), expected.compared(self._gradients(run))
        finally:
            self.set_parameters(packed)
        changed = before.changed()
        return _unchanged(changed) if changed else worst_of({**compared, **_titled(gradients)})

    def backward_of_one(self, name: str) -> Verdict:
        """Go back from one output of several; the others' gradients are zero."""
        self.layer.zero_grad()
        run = self.run(self.subject.place(self.values), self.subject.place({name: self.incoming[name]}))
        incoming = {key: grad if key == name else np.zeros_like(grad) for key, grad in self.incoming.items()}
        return worst_of(self._expected_gradients(self.values, incoming).compared(self._gradients(run)))

    def _follow_ups(self) -> dict[str, str]:
        """Return which outputs can be given to the layer again, by the input that takes each."""
        spec = self.subject.spec
        left = dict(spec.outputs)
        chosen: dict[str, str] = {}
        for name, dims in spec.inputs.items():
            if name in spec.indices:
                continue
            fitting = [output for output, given in left.items() if given == dims and output not in spec.dtype_of]
            if fitting:
                chosen[name] = fitting[0]
                del left[fitting[0]]
        return chosen

    def used_twice(self) -> Verdict:
        """Feed the layer its own outputs, go back through both uses, and compare with the two uses one by one."""
        self.layer.zero_grad()
        subject, follow_ups = self.subject, self._follow_ups()
        incoming = subject.place(self.incoming)
        others = subject.place(input_values(subject.spec, self.case, subject.dtype, "second"))
        first = self.run(subject.place(self.values))
        again = {
            name: first.outputs[follow_ups[name]] if name in follow_ups else Tensor(others[name]) for name in others
        }
        self._go_back(self._call(list(again.values())), incoming)
        both = self._gradients(first)

        self.layer.zero_grad()
        middle = {name: tensor.data.copy() for name, tensor in again.items()}
        second = self.run(middle, incoming)
        passed_on = {out: as_numpy(second.inputs[name].grad).astype(np.float64) for name, out in follow_ups.items()}
        between = {name: passed_on.get(name, np.zeros(self.case.shape(d))) for name, d in subject.spec.outputs.items()}
        expected = self._expected_gradients(self.values, between)
        later = self._expected_gradients(
            {name: as_numpy(array).astype(np.float64) for name, array in middle.items()}, self.incoming
        )
        return worst_of(_both_uses(expected, later, subject).compared(both))


def _initial(parameter: Tensor, other: Tensor) -> float:
    """Return the mean of what a parameter of two new layers begins with; 0 where that is drawn at random."""
    values = as_numpy(parameter.data)
    return float(np.mean(values)) if np.array_equal(values, as_numpy(other.data)) else 0.0


def _both_uses(first: Expected, second: Expected, subject: Subject) -> Expected:
    """Return the gradients of the first use's inputs, and of parameters over both uses."""
    values, allowed = dict(first.values), dict(first.allowed)
    for name in subject.spec.parameters.keys() & first.values.keys():
        values[name] = first.values[name] + second.values[name]
        sum_rounding = _ACCUMULATED_ROUNDING * half_spacing(np.abs(values[name]), subject.dtype)
        allowed[name] = first.allowed[name] + second.allowed[name] + sum_rounding
    return Expected(values, allowed, first.kept)


def _unchanged(changed: Sequence[str]) -> Verdict:
    nan = float("nan")
    return not changed, nan, nan, f"written to: {', '.join(changed)}" if changed else "every byte is as before"


def _titled(comparisons: Mapping[str, Comparison]) -> dict[str, Comparison]:
    return {f"d{name}": comparison for name, comparison in comparisons.items()}


def _repeated(array: NDArray[Any]) -> NDArray[Any]:
    if not array.ndim:
        return array
    return np.broadcast_to(array[:1], array.shape).copy()


def check_layer(subject: Subject, cases: Sequence[Case]) -> Iterator[VerifyRow]:
    """Run every case; cases with the same letters share one layer, so that shapes change between its calls."""
    layers: dict[tuple[tuple[str, Any], ...], Layer] = {}
    watch = Watch(subject.xp)
    for case in cases:
        key = (*case.sizes.items(), *case.options.items())
        if key not in layers:
            layers[key] = subject.new_layer(case)
        with watch.arrays():
            rows = list(CaseCheck(subject, case, layers[key], watch).rows())
        yield from rows
        if watch.found:
            return
