"""The generated package, the two array modules, and what runs a layer and compares it with its reference."""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Function, Parameter, Tensor, host
from llmc2py.runtime.cuda.device import CudaKernel
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.layer import OpSpec
from llmc2py.runtime.poison import poisoned_arrays
from llmc2py.runtime.references import Reference
from llmc2py.verify.cases import Case
from llmc2py.verify.oracles import bound, expected_gradients, expected_outputs
from llmc2py.verify.tolerance import allowed_error, compare

Arrays = Mapping[str, Any]

#: Letters and options that the shape of a layer's first input does not give, from those that it gives.
BESIDE: dict[str, dict[str, Callable[[Mapping[str, int]], int]]] = {
    "attention": {"NH": lambda given: 1 + (given["C"] % 2 == 0)},
    "classifier": {"V": lambda given: given["Vp"] - given["Vp"] // 4},
    "encoder": {"V": lambda given: 7, "C": lambda given: 24, "L": lambda given: given["T"] + 2},
    "linear": {"OC": lambda given: given["C"] + 8},
    "linear_gelu": {"OC": lambda given: given["C"] + 8},
    "mlp": {"H": lambda given: given["C"] + 8},
}
#: The spread of inputs where the usual one would leave one weight of each row alone.
SPREADS = {"attention": 0.9}


class Package:
    """A generated package: its modules by their names in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, module: str) -> Any:
        return importlib.import_module(f"{self.name}.{module}")


@pytest.fixture(scope="session")
def package(generated_package: types.ModuleType) -> Package:
    """The committed package."""
    return Package(generated_package.__name__)


@pytest.fixture(autouse=True)
def _new_memory_is_nan() -> Iterator[None]:
    """Let new output and scratch arrays start as NaN, so that what no kernel writes shows."""
    with poisoned_arrays():
        yield


class _Join(Function):
    """One scalar that several tensors go into, with gradients for them that are known beforehand."""

    @staticmethod
    def forward(ctx: Any, grads: tuple[Any, ...], *outputs: Any) -> Any:
        ctx.save(*grads)
        return outputs[0].reshape(-1)[:0].sum()

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        return (None, *ctx.saved)


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    return array if isinstance(array, np.ndarray) else array.get()


def to_double(array: Any) -> np.ndarray[Any, Any]:
    return to_numpy(array).astype(np.float64)


def layernorm_of(arrays: Arrays, residual: Any) -> dict[str, Any]:
    return {"inp": residual, "weight": arrays["weight"], "bias": arrays["bias"]}


def rounding_of_cancelling_terms(inp: Any, weight: Any, dout: Any, **others: Any) -> Any:
    """What float32 rounds off the terms of LayerNorm's input gradient, two steps each.

    In a row of one element they cancel to zero but for this, where a GPU fuses a product with a difference.
    """
    scale = 1 / np.sqrt(inp.var(axis=-1, keepdims=True) + 1e-5)
    norm = np.abs(inp - inp.mean(axis=-1, keepdims=True)) * scale
    terms = np.abs(dout * weight)
    sizes = terms + terms.mean(axis=-1, keepdims=True) + norm * (terms * norm).mean(axis=-1, keepdims=True)
    return 2 * np.finfo(np.float32).eps * scale * sizes


class Bench:
    """Makes inputs for the layers of a package, runs them forward and backward, and compares with the references."""

    def __init__(self, package: Package, xp: Any) -> None:
        self.xp = xp
        self.layers = package["layers"]
        self.references = package["references"].REFERENCES

    numpy = staticmethod(to_numpy)

    def layer_class(self, op: str) -> Any:
        return getattr(self.layers, self.references[op].layer)

    def array(self, shape: tuple[int, ...], precision: str, seed: Any = 0, mean: float = 0.5, spread: float = 2) -> Any:
        """Random numbers, representable in the precision, with a mean and spread that tell terms apart."""
        drawn = np.random.default_rng(seed).normal(mean, spread, shape)
        return self.xp.asarray(drawn.astype(PRECISIONS[precision]))

    def case(self, op: str, shape: tuple[int, ...], **sizes: Any) -> Case:
        """Sizes and options for a shape of the op's first input, which is filled up to what the op takes.

        ``sizes`` are those that are not the usual ones.
        """
        spec = self.layer_class(op).spec
        dims = next(iter(spec.inputs.values()))[1:]
        shape = (1,) * (len(dims) - len(shape)) + shape
        found = dict(zip(map(_letter, dims), map(_size, dims, shape[len(shape) - len(dims) :]), strict=True))
        found |= {letter: choose(found) for letter, choose in BESIDE.get(op, {}).items()} | sizes
        options = {name: found[name] for name in (*spec.options, *spec.optional) if name in found}
        return Case(shape[: len(shape) - len(dims)], found, options=options)

    def case_of(self, op: str, arrays: Arrays, options: Arrays) -> Case:
        """Sizes and options of a call with these arrays."""
        spec = self.layer_class(op).spec
        shape = next(arrays[name].shape for name in spec.inputs)
        sizes: dict[str, Any] = {name: False for name in spec.optional if name not in arrays}
        for name in spec.parameters.keys() & arrays.keys():
            sizes |= zip(spec.parameters[name], arrays[name].shape, strict=True)
        return self.case(op, shape, **sizes, **options)

    def inputs(self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0, **sizes: Any) -> dict[str, Any]:
        """Inputs and parameters of a layer by name, for a shape of the first."""
        spec, case = self.layer_class(op).spec, self.case(op, shape, **sizes)
        made = {}
        for i, (name, dims) in enumerate(spec.inputs.items()):
            if name in spec.indices:
                drawn = np.random.default_rng([seed, i]).integers(0, case.sizes[spec.indices[name]], case.shape(dims))
                made[name] = self.xp.asarray(drawn.astype(np.int32))
            else:
                made[name] = self.array(case.shape(dims), precision, [seed, i], 0.5, SPREADS.get(op, 2))
        for i, (name, dims) in enumerate(spec.parameters.items()):
            if case.options.get(name, True):
                own = case.shape(dims)
                scale = 1.0 if len(own) == 1 else 1 / max(1.0, own[-1] / 4) ** 0.5
                made[name] = self.array(own, precision, [seed, 10 + i], scale, scale / 2)
        return made

    def gradients(self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0, **sizes: Any) -> dict[str, Any]:
        """Incoming gradients by the outputs' names."""
        spec, case = self.layer_class(op).spec, self.case(op, shape, **sizes)
        return {
            name: self.array(case.shape(dims), spec.dtype_of.get(name, precision), [seed, 20 + i], 0.25, 1.0)
            for i, (name, dims) in enumerate(spec.outputs.items())
        }

    def make(self, op: str, arrays: Arrays, **options: Any) -> Any:
        """A layer with these parameters and options."""
        layer_class, case = self.layer_class(op), self.case_of(op, arrays, options)
        spec = layer_class.spec
        like = {"like": next(arrays[name] for name in spec.parameters)} if spec.parameters else {}
        layer = layer_class(**{letter: case.sizes[letter] for letter in spec.letters}, **case.options, **like)
        for name in spec.parameters:
            if name in arrays:
                setattr(layer, name, Parameter(arrays[name].copy()))
        return layer

    def forward(self, layer: Any, arrays: Arrays) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Leaves and outputs of one call, by name."""
        given = {name: Tensor(arrays[name]) for name in layer.spec.inputs}
        outputs = layer(*given.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        leaves = {name: tensor for name, tensor in given.items() if name not in layer.spec.indices}
        leaves |= {name: getattr(layer, name) for name in self.learnt(layer)}
        return leaves, dict(zip(layer.spec.outputs, outputs, strict=True))

    def differentiable(self, op: str) -> list[str]:
        """The names of the inputs that have gradients."""
        spec = self.layer_class(op).spec
        return [name for name in spec.inputs if name not in spec.indices]

    @staticmethod
    def learnt(layer: Any) -> list[str]:
        """The names of the parameters that a layer has."""
        return [name for name in layer.spec.parameters if getattr(layer, name) is not None]

    @staticmethod
    def backward(outputs: dict[str, Tensor], gradients: Arrays) -> None:
        """Go back from all outputs at once."""
        if len(outputs) == 1:
            ((name, output),) = outputs.items()
            output.backward(gradients[name])
        else:
            _Join.apply(tuple(gradients[name] for name in outputs), *outputs.values()).backward()

    def run(self, op: str, arrays: Arrays, gradients: Arrays, layer: Any = None, **options: Any) -> dict[str, Any]:
        """Outputs, and gradients as ``d<input>``; nothing that was given may change."""
        before = {id(array): (array, to_numpy(array).copy()) for array in (*arrays.values(), *gradients.values())}
        leaves, outputs = self.forward(layer or self.make(op, arrays, **options), arrays)
        self.backward(outputs, gradients)
        for array, copy in before.values():
            np.testing.assert_array_equal(to_numpy(array), copy, err_msg="an array of the caller was written to")
        return {name: t.data for name, t in outputs.items()} | {f"d{name}": t.grad for name, t in leaves.items()}

    def expected(
        self, op: str, arrays: Arrays, gradients: Arrays, results: Arrays, **options: Any
    ) -> tuple[Arrays, Arrays]:
        """The float64 reference and the allowed errors.

        What fused_residual normalises is the sum as it is stored, so that is what its reference starts from.
        """
        if op == "fused_residual":
            summed, allowed = self._evaluate("residual", {n: arrays[n] for n in ("inp1", "inp2")}, {})
            given = layernorm_of(arrays, results["residual"])
            normed, more = self._evaluate("layernorm", given, {"out": gradients["normed"]}, gradients["residual"])
            rename = {"out": "normed", "dinp": "dinp1"}
            values = {rename.get(name, name): value for name, value in normed.items()}
            limits = {rename.get(name, name): limit for name, limit in more.items()}
            values |= {"residual": summed["out"], "dinp2": values["dinp1"]}
            return values, limits | {"residual": allowed["out"], "dinp2": limits["dinp1"]}
        return self._evaluate(op, arrays, gradients, **options)

    def _evaluate(
        self, op: str, arrays: Arrays, gradients: Arrays, added: Any = None, **options: Any
    ) -> tuple[Arrays, Arrays]:
        spec, case = self.layer_class(op).spec, self.case_of(op, arrays, options)
        reference = bound(self.references[op], spec, case)
        if added is not None:
            reference = with_addend(reference, to_double(added))
        dtype = dtype_of_call(spec, arrays)
        given = {name: (to_numpy if name in spec.indices else to_double)(array) for name, array in arrays.items()}
        forward = expected_outputs(reference, spec, given, dtype, case)
        values, allowed = dict(forward.values), dict(forward.allowed)
        if gradients:
            incoming = {name: to_double(array) for name, array in gradients.items()}
            back = expected_gradients(reference, spec, given, incoming, dtype, case)
            values |= {f"d{name}": value for name, value in back.values.items()}
            allowed |= {f"d{name}": limit for name, limit in back.allowed.items()}
        if op == "layernorm" and gradients:
            allowed["dinp"] = allowed["dinp"] + rounding_of_cancelling_terms(**given, dout=to_double(gradients["out"]))
        return values, allowed

    def check(self, op: str, arrays: Arrays, gradients: Arrays, results: Arrays, **options: Any) -> None:
        """Compare what a run gave with the reference."""
        values, allowed = self.expected(op, arrays, gradients, results, **options)
        spec = self.layer_class(op).spec
        dtype = dtype_of_call(spec, arrays)
        assert set(results) == set(values)
        for name, value in values.items():
            assert results[name].dtype == PRECISIONS.get(spec.dtype_of.get(name, ""), dtype)
            assert type(results[name]) is self.xp.ndarray
            outcome = compare(to_numpy(results[name]), value, allowed[name])
            assert outcome.ok, f"{op} {dtype} {first_shape(arrays)} {options} {name}: {outcome}"

    def nan(self, count: int, precision: str = "float32") -> Any:
        """An output array that starts as NaN."""
        return self.xp.full(count, np.nan, PRECISIONS[precision])

    def check_arrays(
        self,
        reference: Callable[[dict[str, Any]], dict[str, Any]],
        inputs: Arrays,
        results: Arrays,
        reduction: int = 1,
        slack: Arrays | None = None,
    ) -> None:
        """Compare arrays with a float64 function of the inputs; what lies behind an output must still be NaN."""
        doubles = {name: to_double(array) for name, array in inputs.items()}
        dtypes = {name: array.dtype for name, array in results.items()}
        first = next(iter(inputs.values()))
        values = reference(doubles)
        allowed = allowed_error(reference, doubles, first.dtype, reduction, dtypes=dtypes)
        for name, value in values.items():
            result = to_numpy(results[name]).reshape(-1)
            got, behind = result[: value.size].reshape(value.shape), result[value.size :]
            outcome = compare(got, value, allowed[name] + (slack or {}).get(name, 0))
            assert outcome.ok, f"{name}: {outcome}"
            assert np.isnan(behind.astype(np.float32)).all(), f"{name} is written behind its end"

    def run_and_check(
        self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0, **sizes: Any
    ) -> dict[str, Any]:
        """Run a layer on new inputs of a shape and compare it with the reference."""
        arrays, gradients = (make(op, shape, precision, seed, **sizes) for make in (self.inputs, self.gradients))
        options = {name: value for name, value in sizes.items() if name in self.layer_class(op).spec.options}
        results = self.run(op, arrays, gradients, **options)
        self.check(op, arrays, gradients, results, **options)
        return results


def dtype_of_call(spec: OpSpec, arrays: Arrays) -> np.dtype[Any]:
    """The precision of a call: that of the first array that is no array of indices."""
    dtype: np.dtype[Any] = next(array.dtype for name, array in arrays.items() if name not in spec.indices)
    return dtype


def with_addend(reference: Reference, addend: Any) -> Reference:
    """A reference whose gradient of the input has something added to it."""
    backward = reference.backward
    assert backward is not None

    def both(**given: Any) -> dict[str, Any]:
        found = backward(**given)
        return found | {"inp": found["inp"] + addend.astype(found["inp"].dtype)}

    return dataclasses.replace(reference, backward=both)


def _letter(axis: str) -> str:
    return axis.lstrip("0123456789")


def _size(axis: str, length: int) -> int:
    """``3C`` of length 10 gives 4: lengths are rounded up to what the axis can be."""
    return -(-length // int(axis[: len(axis) - len(_letter(axis))] or 1))


def first_shape(arrays: Arrays) -> tuple[int, ...]:
    shape: tuple[int, ...] = next(iter(arrays.values())).shape
    return shape


@pytest.fixture
def bench(package: Package, xp: Any) -> Bench:
    """Runs layers on the arrays of ``xp``."""
    return Bench(package, xp)


@pytest.fixture
def count_launches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that begins to note the kernels that plans prepared from then on launch."""

    def begin() -> list[str]:
        names: list[str] = []
        for kind in (host.HostKernel, CudaKernel):
            launch = kind.launch

            def noted(self: Any, *args: Any, _launch: Any = launch) -> None:
                names.append(self.name)
                _launch(self, *args)

            monkeypatch.setattr(kind, "launch", noted)
        return names

    return begin
