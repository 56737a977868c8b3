"""The layers of a package for Tricycle: those in the place of classes of Tricycle's, and the others."""

from __future__ import annotations

from typing import Any

from llmc2py.emit import render
from llmc2py.emit.text import prose, quoted
from llmc2py.ir.plans import ModulePlan, OpPlan, PackagePlan

_FILE = "tricycle_layers.py"
#: Tricycle's operations with one input and no weights: the module of each, and what it calls its results.
_ELEMENTWISE = {
    "GeLU": ("tricycle.activation", "gelu"),
    "ReLU": ("tricycle.activation", "relu"),
    "Sigmoid": ("tricycle.functions", "sigmoid"),
    "Softmax": ("tricycle.functions", "softmax"),
    "Swish": ("tricycle.activation", "swish"),
}
#: Classes of Tricycle's with arguments of their own: a layer of one of these names is emitted in no other form.
_OTHERS = {
    "Attention": "tricycle.attention",
    "CrossEntropy": "tricycle.loss",
    "Dense": "tricycle.layers",
    "LayerNorm": "tricycle.layers",
}
_CLASSIFIER = "FusedClassifier"
_MATMUL = "matmul_cublaslt"
_MATMUL_PARAMETERS = (
    "d", "a", "b", "bias", "m", "n", "k", "transA", "transB", "batch_count", "strideA", "strideB", "strideOut",
    "accumulate", "pre_gelu", "backward",
)  # fmt: skip
_PRECISIONS = ("bfloat16", "float16", "float32")
_WIDTH = 112


def emit_tricycle(plan: PackagePlan) -> dict[str, str]:
    """Return the module of a package's layers for Tricycle, by its file name; nothing where there would be none."""
    ops = {module.op.layer: module for module in plan.ops if module.op is not None}
    homes = {name: home for name, (home, _) in _ELEMENTWISE.items()} | _OTHERS
    values: dict[str, Any] = {
        "dense": _dense(plan),
        "elementwise": [
            _described(ops[name]) | {"label": label, "home": home}
            for name, (home, label) in _ELEMENTWISE.items()
            if name in ops and _is_elementwise(_op(ops[name]))
        ],
        "layernorm": _layernorm(ops.get("LayerNorm")),
        "attention": _with_options(ops.get("Attention"), {"NH": "self.n_heads"}),
        "classifier": _with_options(ops.get(_CLASSIFIER), {"V": "y_pred.shape[-1]"}),
        "layers": [_described(module) | _signature(_op(module)) for name, module in ops.items() if name not in homes],
    }
    values |= _names(values, homes)
    return {_FILE: render.render_file("tricycle_layers.py.j2", values)} if values["exports"] else {}


def _op(module: ModulePlan) -> OpPlan:
    assert module.op is not None
    return module.op


def _described(module: ModulePlan) -> dict[str, Any]:
    op = _op(module)
    return {
        "op": op,
        "module": module.path.replace("/", "."),
        "summary": prose(op.summary, _WIDTH),
        "details": prose(op.details, _WIDTH),
        "fast": prose(f"Fast sizes: {op.fast_sizes}. Source: {op.origin}.", _WIDTH),
        "origin": op.origin,
        # Tricycle computes in float32 or float16, whichever is on.
        "dtype": "" if {"float16", "float32"} <= set(op.precisions) else f", dtype={quoted(op.precisions[0])}",
    }


def _signature(op: OpPlan) -> dict[str, str]:
    own = [f"self.{name}" for name in [one.name for one in op.parameters] + [one.name for one in op.options]]
    return {
        "inputs": ", ".join(f"{one.name}: Tensor" for one in op.inputs),
        "arguments": ", ".join([*(one.name for one in op.inputs), *own]),
        "returns": "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]",
    }


def _is_elementwise(op: OpPlan) -> bool:
    return (len(op.inputs), len(op.outputs)) == (1, 1) and not op.parameters and not op.options


def _layernorm(module: ModulePlan | None) -> dict[str, Any] | None:
    if module is None or [one.name for one in _op(module).parameters] != ["weight", "bias"]:
        return None
    return _described(module)


def _with_options(module: ModulePlan | None, given: dict[str, str]) -> dict[str, Any] | None:
    """Return a layer without parameters whose options without a default are these, or None for another one.

    The other options become attributes of the class, which users can set on an object.
    """
    if module is None:
        return None
    options = _op(module).options
    if _op(module).parameters or [one.name for one in options if one.default is None] != list(given):
        return None
    return _described(module) | {
        "options": ", ".join(given.get(one.name, f"self.{one.name}") for one in options),
        "defaults": [
            line
            for one in options
            if one.default is not None
            for line in (f"#: {one.doc or one.name}", f"{one.name}: {one.kind} = {one.default}")
        ],
    }


def _dense(plan: PackagePlan) -> dict[str, Any] | None:
    """Return what is to be said of Dense, which needs llm.c's product with a choice of transposes."""
    for module in plan.modules:
        for launch in module.launchers:
            if launch.name == _MATMUL and tuple(one.name for one in launch.parameters) == _MATMUL_PARAMETERS:
                origin = launch.launcher.span.origin
                return {"module": module.path.replace("/", "."), "origin": origin, "dtypes": ", ".join(_PRECISIONS)}
    return None


def _as_isort(name: str) -> tuple[bool, str]:
    return not name.isupper(), name


def _names(values: dict[str, Any], homes: dict[str, str]) -> dict[str, Any]:
    """Return what the module imports and exports."""
    single = {"Attention": "attention", "CrossEntropy": "classifier", "Dense": "dense", "LayerNorm": "layernorm"}
    replaced = [one["op"].layer for one in values["elementwise"]]
    replaced += [name for name, key in single.items() if values[key]]
    described = [*values["elementwise"], *values["layers"], *(values[key] for key in single.values())]
    imports: dict[str, set[str]] = {}
    for one in filter(None, described):
        imports.setdefault(one["module"], set()).add(f"{one['op'].layer}Function" if "op" in one else _MATMUL)
    adapters = ["GeneratedLayer"] * bool(values["layers"]) + ["Replacement"] * bool(replaced)
    adapters += ["call"] * bool(imports) + ["scaled_loss"] * bool(values["classifier"])
    return {
        "homes": sorted({homes[name] for name in replaced}),
        "adapters": adapters,
        "imports": {module: sorted(names) for module, names in sorted(imports.items())},
        "exports": sorted([*replaced, *(one["op"].layer for one in values["layers"])], key=_as_isort),
    }
