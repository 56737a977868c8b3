"""The launchers that compute an op too: each numbered kernel of a file over its block sizes.

A launcher is compared with the NumPy reference of the op and with the C references of its own file. Sizes are whole
blocks, for the launchers of ``dev/cuda`` take these alone (others write out of bounds); what the layers do with other
sizes is checked on the layers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.arrays import backend_named
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.launcher import Launcher
from llmc2py.runtime.layer import OpSpec
from llmc2py.runtime.params import Param
from llmc2py.runtime.references import Check, Reference, Variant
from llmc2py.verify.bounds import Watch, placed
from llmc2py.verify.cases import (
    Arrays,
    Case,
    gradient_values,
    input_values,
    letters_of,
    parameter_values,
)
from llmc2py.verify.layouts import as_numpy
from llmc2py.verify.oracles import CScope, Expected, call_reference, expected_gradients, expected_outputs, size_of
from llmc2py.verify.packages import Package
from llmc2py.verify.rows import VerifyRow, worst_of
from llmc2py.verify.tolerance import Comparison, compare, float32_tolerance, half_spacing

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024)

_NUMPY = "NumPy"
#: The most blocks of a launcher's grid on each multiprocessor, which may keep two rows each in scratch.
_BLOCKS = 32
_STORED_ROUNDING = 1.5
_ROWS, _COLUMNS, _ELEMENTS = 64, 128, 16384
_NAN = float("nan")


class _RefusedError(Exception):
    """A launcher's own assert forbids what it is given."""


@dataclass(frozen=True)
class VariantSubject:
    """A variant in one precision, with the op that it computes and where it runs."""

    variant: Variant
    launcher: Launcher
    spec: OpSpec
    reference: Reference
    package: Package
    precision: str
    xp: Any
    check: Check | None = None

    def row(self, shape: str, check: str, outcome: tuple[bool, float, float, str]) -> VerifyRow:
        """Return a row of the table."""
        pairs = zip(self.launcher.params, self.variant.arguments, strict=False)
        chosen = [text for param, text in pairs if param.base == "launcher" or param.name == "kernel_num"]
        name = f"{self.variant.launcher}({', '.join(chosen)})" if chosen else self.variant.launcher
        return VerifyRow(name, self.precision, shape, check, *outcome)

    def case(self, block_size: int) -> Case:
        """Return the sizes that it runs on in blocks of a size."""
        return variant_case(self.spec, block_size) if self.check is None else check_case(self.check, block_size)

    def values(self, case: Case) -> Arrays:
        """Return float64 inputs with parameters, exact in the precision, and int32 inputs."""
        dtype = PRECISIONS[self.precision]
        parameters = parameter_values(self.spec, case, dtype, dict.fromkeys(self.spec.parameters, 1.0))
        return {**input_values(self.spec, case, dtype), **parameters}


def variant_case(spec: OpSpec, block_size: int = 0) -> Case:
    """Return the sizes that variants of an op run on: a block of rows at least, for kernels may take a thread a row."""
    letters = letters_of(spec)
    *others, last = letters or [""]
    fixed = {letter: 2 + index for index, letter in enumerate(others)}
    return Case((max(_ROWS, block_size),), {**fixed, last: _COLUMNS}) if letters else Case((_ELEMENTS,), {})


def check_case(check: Check, block_size: int = 0) -> Case:
    """Return the sizes that variants of an op run on."""
    sizes = {letter: size_of(size, {"block_size": block_size}) for letter, size in check.sizes.items()}
    return Case(tuple(sizes[letter] for letter in check.lead), sizes)


def variant_subjects(package: Package, name: str, xp: Any) -> Iterator[VariantSubject]:
    """Yield the variants of an op, named by itself or its layer, in each precision that their types leave open."""
    own = package.spec_of(name)
    if own is None or own.name not in package.references:
        return
    spec, check = own, package.checks.get(own.name)
    for variant in package.variants:
        if variant.op != spec.name:
            continue
        module = importlib.import_module(f"{package.module.__name__}.{variant.module}")
        launcher: Launcher = getattr(module, variant.launcher)
        for precision in variant.precisions or _precisions(launcher):
            yield VariantSubject(variant, launcher, spec, package.references[spec.name], package, precision, xp, check)


def _precisions(launcher: Launcher) -> list[str]:
    is_open = not launcher.template and any(one.is_pointer and one.base == "floatX" for one in launcher.params)
    return list(PRECISIONS) if is_open else ["float32"]


def check_variant(subject: VariantSubject) -> list[VerifyRow]:
    """Run one variant in blocks of every size and return its rows.

    A size of block that the launcher's own asserts refuse is passed over; that it refuses all is a row that failed.
    """
    rows: list[VerifyRow] = []
    refused, shape = "", ""
    expectations: dict[str, _Expectation] = {}
    watch = Watch(subject.xp)
    takes_block_size = any("block_size" in argument for argument in subject.variant.arguments)
    for block_size in (subject.variant.blocks or BLOCK_SIZES) if takes_block_size else (0,):
        case = subject.case(block_size)
        shape, check = case.label(subject.spec), f"block {block_size}" if block_size else "launch"
        try:
            expected = expectations[shape] if shape in expectations else _Expectation(subject, case)
            expectations[shape] = expected
            with watch.arrays():
                run = functools.partial(_run, subject, case, expected, block_size)
                outcomes = expected.outcomes(watch.call(run, case.elements))
            rows += [subject.row(shape, f"{check}, {name}", outcome) for name, outcome in outcomes]
        except (ToolMissingError, CompileError):
            raise
        except _RefusedError as fault:
            refused = str(fault)
        except Exception as fault:
            rows.append(subject.row(shape, check, _raised(fault)))
    if not rows:
        rows.append(subject.row(shape, "launch", (False, _NAN, _NAN, f"every block is refused: {refused}")))
    return rows


def _raised(fault: Exception) -> tuple[bool, float, float, str]:
    return False, _NAN, _NAN, f"{type(fault).__name__}: {fault}"


class _Expectation:
    """What a variant reads, and what it must write: by NumPy, and by the C references of its file."""

    def __init__(self, subject: VariantSubject, case: Case) -> None:
        spec, reference = subject.spec, subject.reference
        self.is_check = subject.check is not None
        self.saved: Arrays = {}
        dtype = PRECISIONS[subject.precision]
        self.inputs = subject.values(case)
        self.incoming = {f"d{name}": array for name, array in gradient_values(spec, case, dtype).items()}
        incoming = {name.removeprefix("d"): array for name, array in self.incoming.items()}
        if subject.variant.reference == "forward":
            self.numpy = expected_outputs(reference, spec, self.inputs, dtype, case)
        else:
            found = expected_gradients(reference, spec, self.inputs, incoming, dtype, case)
            self.saved = expected_outputs(reference, spec, self.inputs, dtype, case).values if self.is_check else {}
            self.numpy = Expected(*map(_gradients, (found.values, found.allowed, found.kept)))
        scope = CScope(case, spec, self.inputs, incoming)
        self.beside: dict[str, Arrays] = {}
        for item in reference.c:
            written = call_reference(item, scope, subject.package.folder)
            if item.origin.startswith(f"{subject.variant.file}:"):
                self.beside[item.function] = {name: scope.arrays[name].copy() for name in written}
        self.arrays = scope.arrays

    def outcomes(self, results: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, tuple[bool, float, float, str]]]:
        """Yield the comparison with each reference that gives what the variant writes. Raises LookupError for none."""
        numpy = {
            name: self._against_numpy(results[name].reshape(wanted.shape), wanted, self.numpy.allowed[name])
            for name, wanted in self.numpy.values.items()
            if name in results
        }
        if not numpy:
            raise LookupError(f"the launcher writes none of {', '.join(self.numpy.values)}")
        yield _NUMPY, worst_of(numpy)
        for function, written in self.beside.items():
            compared = {
                name: self._compared(name, results[name], wanted)
                for name, wanted in written.items()
                if name in results and not np.isnan(wanted).all()
            }
            if compared:
                yield function, worst_of(compared)

    def _against_numpy(
        self, actual: NDArray[Any], wanted: NDArray[np.float64], allowed: NDArray[np.float64]
    ) -> Comparison:
        """Compare with what NumPy gives; where that is NaN for an op without a layer, any result is right.

        Raises ValueError where that is everywhere.
        """
        free = np.isnan(wanted) & self.is_check
        if free.all():
            raise ValueError("the reference gives NaN alone")
        return compare(np.where(free, 0, actual), np.where(free, 0, wanted), np.where(free, 0, allowed))

    def _compared(self, name: str, actual: NDArray[Any], wanted: NDArray[Any]) -> Comparison:
        """Compare with what a C reference wrote; what it left as NaN is room behind a smaller result."""
        place = ~np.isnan(wanted.reshape(-1))
        values = wanted.reshape(-1)[place]
        if name in self.numpy.allowed:
            # A C reference stores nothing on the way.
            stored = np.nan_to_num(np.abs(self.numpy.values[name] - self.numpy.kept[name]))
            allowed = (self.numpy.allowed[name] + stored).reshape(-1)[place]
        else:
            scale = float(np.sqrt(np.mean(np.square(values))))
            allowed = float32_tolerance(_COLUMNS) * np.maximum(np.abs(values), scale)
            if actual.dtype != np.float32:
                # It is rounded where it is stored, and so, before it is averaged, is what it is computed from.
                sizes = np.abs(values), np.full_like(values, scale)
                allowed += sum(_STORED_ROUNDING * half_spacing(size, actual.dtype) for size in sizes)
        return compare(actual.reshape(-1)[: place.size][place], values, allowed)


def _gradients(values: Mapping[str, NDArray[Any]]) -> Arrays:
    return {f"d{name}": array for name, array in values.items()}


def _run(subject: VariantSubject, case: Case, expected: _Expectation, block_size: int) -> Arrays:
    """Call the launcher and return what it may have written."""
    given: list[Any] = []
    written: dict[str, Any] = {}
    types = {one.name: _ELEMENT[subject.precision] for one in subject.launcher.template if one.kind == "type"}
    for param, argument in zip(subject.launcher.params, subject.variant.arguments, strict=True):
        if param.base == "launcher":
            module = importlib.import_module(f"{subject.package.module.__name__}.{subject.variant.module}")
            given.append(getattr(module, argument))
            continue
        if not param.is_pointer:
            given.append(_scalar(argument, case, block_size, param))
            continue
        dtype = param.dtype(subject.precision, types)
        assert dtype is not None
        array = placed(subject.xp, _values(subject, expected, param, argument, case).astype(dtype))
        given.append(array)
        if param.is_written:
            written[argument] = array
    try:
        subject.launcher(*given)
    except ValueError as fault:
        raise _RefusedError(str(fault)) from fault
    return {name: as_numpy(array) for name, array in written.items()}


_ELEMENT = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}


def _scalar(argument: str, case: Case, block_size: int, param: Param) -> int | float:
    sizes = {"N": case.rows, **case.sizes, "block_size": block_size}
    return float(argument) if param.base in ("float", "double") else size_of(argument, sizes)


def _values(subject: VariantSubject, expected: _Expectation, param: Param, name: str, case: Case) -> NDArray[Any]:
    """Return what an array holds before the launch: values that are read, NaN or noughts where it is written."""
    spec = subject.spec
    if not param.is_written or name in expected.inputs or name in expected.incoming:
        given = (found.get(name) for found in (expected.inputs, expected.saved, expected.arrays))
        known: NDArray[Any] | None = next((array for array in given if array is not None), None)
        if known is None and param.intent is not None and name not in subject.variant.zeros:
            raise LookupError(f"`{name}` is read, and neither the op nor a C reference gives it")
        if known is not None:
            return np.zeros_like(known) if name in subject.variant.zeros else known
    begins = 0.0 if name in subject.variant.zeros else np.nan
    if name in spec.outputs:
        return np.full(case.shape(spec.outputs[name]), begins)
    if name.startswith("d") and name[1:] in expected.inputs:
        return np.full(expected.inputs[name[1:]].shape, np.nan if param.intent == "out" else 0.0)
    largest = max(array.size for array in expected.inputs.values())
    return np.full(max(largest, _scratch_size(subject.xp)), begins)


def _scratch_size(xp: Any) -> int:
    device = backend_named("cuda" if xp.__name__ == "cupy" else "cpu").properties(0)
    return _BLOCKS * device.multiProcessorCount * (2 * _COLUMNS + 1)
