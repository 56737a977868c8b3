"""What layers are compared with: the float64 references, and what vouches for these (C references, derivatives)."""

from __future__ import annotations

import ast
import ctypes
import functools
import operator
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc2py.runtime.host.compiler import compile_c
from llmc2py.runtime.layer import OpSpec
from llmc2py.runtime.references import CReference, Reference, Stored, unchanged
from llmc2py.verify.cases import Arrays, Case, gradient_values, input_values, parameter_values
from llmc2py.verify.gradcheck import ConvergenceError, GradcheckReport, gradcheck
from llmc2py.verify.rows import VerifyRow, worst_of
from llmc2py.verify.tolerance import Comparison, allowed_error, compare, float32_tolerance, half_spacing

#: How much of the result's scale a C reference in double may differ from the NumPy one.
C_TOLERANCE = 1e-12
#: Finite differences cost two forward passes a direction, so they take small shapes.
_GRADCHECK_SIZE = 300
#: At how many points a derivative is tried where differences do not converge.
_POINTS = 4
#: What rounding at random may add to the error of rounding to the nearest, in half spacings, with the margin of these.
_STOCHASTIC = 1.5
#: How often results are computed with what is stored rounded either way, and how much of their spread is allowed.
_ROUNDINGS = 16
_OTHER_WAY = 4.0

_FLOAT64 = np.dtype(np.float64)
_CHOICES: Mapping[str, Callable[[Iterable[int]], int]] = {"min": min, "max": max}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_C_DTYPES: dict[str, np.dtype[Any]] = {"double*": _FLOAT64, "int*": np.dtype(np.int32)}


@dataclass(frozen=True)
class Expected:
    """Float64 results by name, and the error that each of their elements may have.

    ``kept`` is what they would be if nothing were rounded on the way.
    """

    values: Arrays
    allowed: Arrays
    kept: Arrays

    def compared(self, actual: Mapping[str, NDArray[Any]]) -> dict[str, Comparison]:
        """Compare every result. Raises ValueError where a shape differs or a result is missing."""
        missing = [name for name in self.values if name not in actual]
        if missing:
            raise ValueError(f"there is no result for {', '.join(missing)}")
        return {name: compare(actual[name], self.values[name], self.allowed[name]) for name in self.values}


def bound(reference: Reference, spec: OpSpec, case: Case) -> Reference:
    """Return the reference of an op with a case's options filled in, and None for parameters that it goes without."""
    given = {name: case.options.get(name, default) for name, default in spec.options.items()}
    return reference.bound(given | {name: None for name in spec.optional if not case.options.get(name, True)})


def stored_as(dtype: np.dtype[Any]) -> Stored:
    """Return the rounding of a kernel that computes in float32 and stores in ``dtype``."""

    def stored(array: Any) -> Any:
        return array.astype(np.float32).astype(dtype).astype(array.dtype)

    return stored


def _stored_either_way(dtype: np.dtype[Any], rng: np.random.Generator) -> Stored:
    """Return a rounding to one of the two neighbours in ``dtype``, at random, the nearer one more often."""

    def stored(array: Any) -> Any:
        moved = array + 2 * half_spacing(np.asarray(array), dtype) * rng.uniform(-0.5, 0.5, array.shape)
        return moved.astype(dtype).astype(array.dtype)

    return stored


def expected_outputs(reference: Reference, spec: OpSpec, inputs: Arrays, dtype: np.dtype[Any], case: Case) -> Expected:
    """Return the outputs of the float64 forward pass, and what a kernel of a precision may be off."""

    def forward(arrays: Mapping[str, Any], stored: Stored) -> Mapping[str, Any]:
        return reference.forward(**arrays, stored=stored)

    return _expected(forward, spec, inputs, dtype, _reduction(reference, case), reference.either_way)


def expected_gradients(
    reference: Reference, spec: OpSpec, inputs: Arrays, incoming: Arrays, dtype: np.dtype[Any], case: Case
) -> Expected:
    """Return the gradients of the float64 backward pass, and what a kernel of a precision may be off.

    The gradients of inputs are sums over the reference's axes, those of parameters over all rows.
    """
    assert reference.backward is not None
    backward = reference.backward
    given = {**inputs, **{f"d{name}": array for name, array in incoming.items()}}

    def gradients(arrays: Mapping[str, Any], stored: Stored) -> Mapping[str, Any]:
        found = backward(**arrays, stored=stored)
        return {name: gradient for name, gradient in found.items() if name in inputs}

    def of_parameters(arrays: Mapping[str, Any], stored: Stored) -> Mapping[str, Any]:
        return {name: array for name, array in gradients(arrays, stored).items() if name in spec.parameters}

    reduction = _reduction(reference, case)
    expected = _expected(gradients, spec, given, dtype, reduction, reference.either_way)
    allowed = expected.allowed
    if spec.parameters and float32_tolerance(case.rows) != float32_tolerance(reduction):
        allowed = allowed | _expected(of_parameters, spec, given, dtype, case.rows, reference.either_way).allowed
    for name in reference.stochastic:
        # Rounding at random goes to either neighbour, rounding to the nearest at most half as far.
        allowed[name] = allowed[name] + _STOCHASTIC * half_spacing(expected.values[name], dtype)
    return Expected(expected.values, allowed, expected.kept)


def _expected(
    function: Callable[..., Mapping[str, Any]],
    spec: OpSpec,
    arrays: Arrays,
    dtype: np.dtype[Any],
    reduction: int,
    either_way: bool,
) -> Expected:
    """Return the results of a pass. With ``either_way``, what it stores may have been rounded otherwise."""
    nearest = functools.partial(function, stored=stored_as(dtype))
    own = {**spec.dtype_of, **{f"d{name}": one for name, one in spec.dtype_of.items()}}
    allowed = allowed_error(nearest, arrays, dtype, reduction, dtypes=own)
    values = _evaluated(nearest, arrays)
    kept = _evaluated(functools.partial(function, stored=unchanged), arrays)
    if (
        either_way
        and dtype != np.float32
        and any(not np.array_equal(values[name], kept[name], equal_nan=True) for name in values)
    ):
        for name, deviation in _deviations(function, arrays, values, dtype).items():
            allowed[name] = allowed[name] + _OTHER_WAY * deviation
    return Expected(values, allowed, kept)


def _deviations(
    function: Callable[..., Mapping[str, Any]],
    arrays: Arrays,
    values: Arrays,
    dtype: np.dtype[Any],
) -> Arrays:
    """Return how far results move, in the root mean square, where stored values are rounded either way at random.

    That is the scale of what a single one does that float32's error tips over; which one that is nobody knows.
    """
    rng = np.random.default_rng(0)
    squares = {name: np.zeros(value.shape) for name, value in values.items()}
    for _ in range(_ROUNDINGS):
        moved = _evaluated(functools.partial(function, stored=_stored_either_way(dtype, rng)), arrays)
        for name, value in values.items():
            with np.errstate(invalid="ignore"):
                squares[name] += np.nan_to_num(moved[name] - value) ** 2
    found = {}
    for name, square in squares.items():
        mean = square / _ROUNDINGS
        found[name] = np.sqrt(np.maximum(mean, mean.mean())) if mean.size else mean
    return found


def _evaluated(function: Callable[[Arrays], Mapping[str, Any]], arrays: Arrays) -> Arrays:
    copies = {name: array.copy() for name, array in arrays.items()}
    return {name: np.asarray(result, dtype=np.float64) for name, result in function(copies).items()}


def _reduction(reference: Reference, case: Case) -> int:
    return max((case.sizes[letter] for letter in reference.reduction), default=1)


# --- the references themselves


def reference_values(spec: OpSpec, case: Case, salt: str = "", *, small_slice: bool) -> tuple[Arrays, Arrays]:
    """Return float64 inputs with parameters, and gradients of the outputs; see `input_values`."""
    parameters = parameter_values(spec, case, _FLOAT64, dict.fromkeys(spec.parameters, 1.0))
    inputs = input_values(spec, case, _FLOAT64, salt, small_slice=small_slice)
    return {**inputs, **parameters}, gradient_values(spec, case, _FLOAT64)


def check_derivative(layer: str, spec: OpSpec, reference: Reference, case: Case) -> VerifyRow | None:
    """Compare the float64 backward pass with finite differences of the forward pass; None where there is no use.

    Raises ValueError where the differences converge at none of several points.
    """
    size = max((int(np.prod(case.shape(dims))) for dims in spec.inputs.values()), default=0)
    if reference.backward is None or not 0 < size <= _GRADCHECK_SIZE:
        return None
    report = _gradcheck(spec, reference, reference.backward, case)
    worst = max(report.checks, key=lambda check: (not check.ok, abs(check.got - check.wanted) / (check.allowed or 1.0)))
    error = abs(worst.got - worst.wanted)
    return VerifyRow(layer, "float64", case.label(spec), "derivative", report.ok, error, worst.allowed, str(worst))


def _gradcheck(
    spec: OpSpec, reference: Reference, backward: Callable[..., Mapping[str, Any]], case: Case
) -> GradcheckReport:
    """Check a derivative at a point that lies near no kink, such as that of ReLU."""

    def gradients(arrays: Arrays, grads: Arrays) -> Mapping[str, NDArray[Any]]:
        found = backward(**arrays, **{f"d{name}": grad for name, grad in grads.items()})
        return {name: gradient for name, gradient in found.items() if name in arrays}

    attempt = 0
    while True:
        # One step is taken for a whole array: slices of different sizes would need different ones.
        inputs, _ = reference_values(spec, case, str(attempt), small_slice=False)
        try:
            return gradcheck(lambda arrays: reference.forward(**arrays), gradients, inputs)
        except ConvergenceError:
            attempt += 1
            if attempt == _POINTS:
                raise


@dataclass
class CScope:
    """The arrays and sizes that the arguments of C references name. Arrays live as long as the scope."""

    case: Case
    spec: OpSpec
    inputs: Arrays
    incoming: Arrays
    arrays: Arrays = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays |= self._given

    @property
    def _given(self) -> Arrays:
        return {**self.inputs, **{f"d{name}": array for name, array in self.incoming.items()}}

    @property
    def sizes(self) -> dict[str, int]:
        return {"N": self.case.rows, **self.case.sizes}

    def array(self, name: str, ctype: str) -> NDArray[Any]:
        """Return the array that an argument names, a new one where the function may write it."""
        if ctype.startswith("const "):
            if name not in self.arrays:
                raise ValueError(
                    f"the C reference reads `{name}`, which neither the op nor a reference before it gives"
                )
            return self.arrays[name]
        given = self._given.get(name)
        if given is None and name not in self.spec.outputs and not (name.startswith("d") and name[1:] in self.inputs):
            given = self.arrays.get(name)  # not every array that a function reads alone is const
        array = self._new(name, _C_DTYPES[ctype]) if given is None else given.copy()
        self.arrays[name] = array
        return array

    def _new(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        if name in self.spec.outputs:
            return np.full(self.case.shape(self.spec.outputs[name]), np.nan, dtype)
        # C references add to gradients, so these begin with zeros.
        if name.startswith("d") and name[1:] in self.inputs:
            return np.zeros(self.inputs[name[1:]].shape, dtype)
        return np.full(max(array.size for array in self.inputs.values()), np.nan if dtype == _FLOAT64 else -1, dtype)


def check_c_references(
    layer: str, spec: OpSpec, reference: Reference, folder: pathlib.Path, case: Case
) -> Iterator[VerifyRow]:
    """Call the op's C references, compiled in double, and compare what they write with the NumPy reference."""
    inputs, incoming = reference_values(spec, case, small_slice=True)
    scope = CScope(case, spec, inputs, incoming)
    wanted = _evaluated(lambda arrays: reference.forward(**arrays), inputs)
    if reference.backward is not None:
        backward = reference.backward
        given = {**inputs, **{f"d{name}": array for name, array in incoming.items()}}
        gradients = _evaluated(lambda arrays: backward(**arrays), given)
        wanted |= {f"d{name}": array for name, array in gradients.items() if name in inputs}
    for item in reference.c:
        check = f"C reference {item.function}"
        written = call_reference(item, scope, folder)
        compared = {
            name: compare(scope.arrays[name].reshape(wanted[name].shape), wanted[name], _c_allowed(wanted[name]))
            for name in written
            if name in wanted
        }
        if case.rows == 0 or not compared:
            continue
        ok, error, allowed, detail = worst_of(compared)
        yield VerifyRow(layer, "float64", case.label(spec), check, ok, error, allowed, f"{item.origin}: {detail}")


def _c_allowed(wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = float(np.sqrt(np.mean(np.square(wanted)))) if wanted.size else 0.0
    return C_TOLERANCE * np.maximum(np.abs(wanted), max(scale, 1.0))


def call_reference(item: CReference, scope: CScope, folder: pathlib.Path) -> list[str]:
    """Call a C reference and return the names of the arrays that it may have written."""
    source = (folder / item.file).read_text(encoding="utf-8")
    function = getattr(compile_c(source, item.file), item.function)
    function.restype = None
    passed: list[Any] = []
    written = []
    for (_, ctype), argument in zip(item.parameters, item.arguments, strict=True):
        if argument in scope.spec.optional and argument not in scope.inputs:
            passed.append(None)
        elif ctype.endswith("*"):
            array = scope.array(argument, ctype)
            if argument in item.zeros:
                array[...] = 0
            passed.append(ctypes.c_void_p(array.ctypes.data))
            if not ctype.startswith("const "):
                written.append(argument)
        elif ctype in ("double", "float"):
            passed.append(ctypes.c_double(float(argument)))
        else:
            integer = ctypes.c_size_t if ctype in ("long", "size_t") else ctypes.c_int
            passed.append(integer(size_of(argument, scope.sizes)))
    function(*passed)
    return written


def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """Evaluate an expression of sizes such as ``2 * C`` or ``max(C, 64)``. Raises ValueError for anything else."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_] as arguments, keywords=[]):
                return _CHOICES[name](map(value, arguments))
        raise ValueError(f"argument `{text}` is no expression of the sizes {', '.join(sizes)}")

    return value(ast.parse(text, mode="eval").body)
