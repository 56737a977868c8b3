"""The generated package, the two array modules, and what runs a layer and compares it with its reference."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Function, Parameter, Tensor, host
from llmc2py.runtime.cuda.device import CudaKernel
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.poison import poisoned_arrays
from llmc2py.verify.tolerance import allowed_error, compare

Arrays = Mapping[str, Any]


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

    def inputs(self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0) -> dict[str, Any]:
        """Inputs and parameters of a layer by name."""
        spec = self.layer_class(op).spec
        made = {name: self.array(shape, precision, [seed, i]) for i, name in enumerate(spec.inputs)}
        for i, name in enumerate(spec.parameters):
            made[name] = self.array(shape[-1:], precision, [seed, 10 + i], 1.0, 0.5)
        return made

    def gradients(self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0) -> dict[str, Any]:
        """Incoming gradients by the outputs' names."""
        outputs = self.layer_class(op).spec.outputs
        return {name: self.array(shape, precision, [seed, 20 + i], 0.25, 1.0) for i, name in enumerate(outputs)}

    def make(self, op: str, arrays: Arrays) -> Any:
        """A layer with these parameters."""
        spec = self.layer_class(op).spec
        if not spec.parameters:
            return self.layer_class(op)()
        like = arrays[next(iter(spec.parameters))]
        layer = self.layer_class(op)(like.shape[0], like=like)
        for name in spec.parameters:
            setattr(layer, name, Parameter(arrays[name].copy()))
        return layer

    def forward(self, layer: Any, arrays: Arrays) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Leaves and outputs of one call, by name."""
        leaves = {name: Tensor(arrays[name]) for name in layer.spec.inputs}
        outputs = layer(*leaves.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        leaves |= {name: getattr(layer, name) for name in layer.spec.parameters}
        return leaves, dict(zip(layer.spec.outputs, outputs, strict=True))

    @staticmethod
    def backward(outputs: dict[str, Tensor], gradients: Arrays) -> None:
        """Go back from all outputs at once."""
        if len(outputs) == 1:
            ((name, output),) = outputs.items()
            output.backward(gradients[name])
        else:
            _Join.apply(tuple(gradients[name] for name in outputs), *outputs.values()).backward()

    def run(self, op: str, arrays: Arrays, gradients: Arrays, layer: Any = None) -> dict[str, Any]:
        """Outputs, and gradients as ``d<input>``; nothing that was given may change."""
        before = {id(array): (array, to_numpy(array).copy()) for array in (*arrays.values(), *gradients.values())}
        leaves, outputs = self.forward(layer or self.make(op, arrays), arrays)
        self.backward(outputs, gradients)
        for array, copy in before.values():
            np.testing.assert_array_equal(to_numpy(array), copy, err_msg="an array of the caller was written to")
        return {name: t.data for name, t in outputs.items()} | {f"d{name}": t.grad for name, t in leaves.items()}

    def expected(self, op: str, arrays: Arrays, gradients: Arrays, results: Arrays) -> tuple[Arrays, Arrays]:
        """The float64 reference and the allowed errors.

        What fused_residual normalises is the sum as it is stored, so that is what its reference starts from.
        """
        if op == "fused_residual":
            summed, allowed = self._evaluate("residual", {n: arrays[n] for n in ("inp1", "inp2")}, {})
            given = layernorm_of(arrays, results["residual"])
            normed, more = self._evaluate("layernorm", given, {"dout": gradients["normed"]}, gradients["residual"])
            rename = {"out": "normed", "dinp": "dinp1"}
            values = {rename.get(name, name): value for name, value in normed.items()}
            limits = {rename.get(name, name): limit for name, limit in more.items()}
            values |= {"residual": summed["out"], "dinp2": values["dinp1"]}
            return values, limits | {"residual": allowed["out"], "dinp2": limits["dinp1"]}
        return self._evaluate(op, arrays, {f"d{name}": array for name, array in gradients.items()})

    def _evaluate(self, op: str, arrays: Arrays, douts: Arrays, added: Any = None) -> tuple[Arrays, Arrays]:
        reference = self.references[op]

        def both(given: dict[str, Any]) -> dict[str, Any]:
            given = dict(given)
            extra = given.pop("added", None)
            results = dict(reference.forward(**{name: given[name] for name in arrays}))
            if douts:
                found = {f"d{name}": value for name, value in reference.backward(**given).items()}
                if extra is not None:
                    found["dinp"] = found["dinp"] + extra
                results |= found
            return results

        doubles = {name: to_double(array) for name, array in (*arrays.items(), *douts.items())}
        if added is not None:
            doubles["added"] = to_double(added)
        first = next(iter(arrays.values()))
        reduction = max(first.shape[-1], first.size // max(first.shape[-1], 1)) if reference.reduction else 1
        allowed = allowed_error(both, doubles, first.dtype, reduction)
        if op == "layernorm" and douts:
            allowed["dinp"] = allowed["dinp"] + rounding_of_cancelling_terms(**doubles)
        return both(doubles), allowed

    def check(self, op: str, arrays: Arrays, gradients: Arrays, results: Arrays) -> None:
        """Compare what a run gave with the reference."""
        values, allowed = self.expected(op, arrays, gradients, results)
        assert set(results) == set(values)
        dtype = next(iter(arrays.values())).dtype
        for name, value in values.items():
            assert results[name].dtype == dtype
            assert type(results[name]) is self.xp.ndarray
            outcome = compare(to_numpy(results[name]), value, allowed[name])
            assert outcome.ok, f"{op} {dtype} {first_shape(arrays)} {name}: {outcome}"

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

    def run_and_check(self, op: str, shape: tuple[int, ...], precision: str, seed: int = 0) -> dict[str, Any]:
        """Run a layer on new inputs of a shape and compare it with the reference."""
        arrays, gradients = self.inputs(op, shape, precision, seed), self.gradients(op, shape, precision, seed)
        results = self.run(op, arrays, gradients)
        self.check(op, arrays, gradients, results)
        return results


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
