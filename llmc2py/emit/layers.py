"""The module of layers, as values for its template."""

from __future__ import annotations

from typing import Any

from llmc2py.emit.functions import tuple_text
from llmc2py.emit.text import import_order, prose, quoted
from llmc2py.ir.plans import ArraySpec, CheckPlan, ModulePlan, OpPlan


def layers_values(modules: list[ModulePlan]) -> dict[str, Any]:
    """Return what the template of `layers.py` needs of the modules that have a layer."""
    layers = [_layer(module, module.op) for module in modules if module.op is not None]
    initial = {one.init or "zeros" for layer in layers for one in layer["op"].parameters}
    runtime = {"Layer", "OpSpec", "Tensor"} | ({"Parameter"} if initial else set())
    runtime |= {"normal"} & initial
    runtime |= {"check_made"} if any(layer["checked"] for layer in layers) else set()
    return {
        "layers": layers,
        "names": sorted((layer["op"].layer for layer in layers), key=import_order),
        "runtime": sorted(runtime, key=import_order),
        "needs_numpy": bool(initial - {"normal"}),
    }


def _layer(module: ModulePlan, op: OpPlan) -> dict[str, Any]:
    arguments = [one.name for one in op.inputs]
    arguments += [f"self.{name}" for name in (*(one.name for one in op.parameters), *(one.name for one in op.options))]
    made = [f"{letter}: int" for letter in op.letters]
    made += [f"{one.name}: {one.kind}" for one in op.options if one.default is None]
    by_name = [f"{one.name}: bool = True" for one in op.parameters if one.optional]
    by_name += [f"{one.name}: {one.kind} = {one.default}" for one in op.options if one.default is not None]
    if op.parameters:
        by_name += ["dtype: Any = None", "like: Any = None"]
    return {
        "op": op,
        "module": module.path.replace("/", "."),
        "summary": prose(op.summary, 112),
        "details": prose(op.details, 112),
        "fast": prose(f"Fast sizes: {op.fast_sizes}. Source: {op.origin}.", 112),
        "made": ", ".join(["self", *made, *(["*", *by_name] if by_name else [])]),
        "is_made": bool(made or by_name),
        "made_doc": _made_doc(op),
        "checked": checked_names(op),
        "parameters": [_parameter(one) for one in op.parameters],
        "inputs": ", ".join(f"{one.name}: Tensor | Array" for one in op.inputs),
        "arguments": ", ".join(arguments),
        "returns": "Tensor" if len(op.outputs) == 1 else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]",
        "spec": [f"{key}={value}," for key, value in spec_values(op, op.origin).items()],
    }


def checked_names(op: OpPlan) -> str:
    """Return the sizes, parameters and options that a layer is made with as arguments by their own names."""
    names = [*op.letters, *(one.name for one in op.parameters if one.optional), *(one.name for one in op.options)]
    return ", ".join(f"{name}={name}" for name in names)


def _made_doc(op: OpPlan) -> list[str]:
    names = ", ".join(one.name for one in op.parameters)
    first = f"Make the parameters ({names}); see `Layer` for `dtype` and `like`." if names else "Keep the options."
    docs = [line for one in op.options for line in prose(f"{one.name}: {one.doc or one.kind}", 108)]
    return [first, "", *docs, ""] if docs else [first]


def _parameter(one: ArraySpec) -> str:
    shape = one.shape[0] if len(one.shape) == 1 else f"({', '.join(one.shape)})"
    value = (
        f"normal({tuple_text(one.shape)})" if one.init == "normal" else f"np.{one.init or 'zeros'}({shape}, np.float32)"
    )
    made = f"Parameter({value})"
    if one.optional:
        return f"self.{one.name}: Parameter | None = {made} if {one.name} else None"
    return f"self.{one.name} = {made}"


def spec_values(op: OpPlan | CheckPlan, origin: str = "") -> dict[str, str]:
    """Return the arguments of an OpSpec as text: those that say anything."""
    arrays = (*op.inputs, *op.parameters, *op.outputs)
    found = {"name": quoted(op.name), "inputs": _dims(op.inputs), "parameters": _dims(op.parameters),
             "outputs": _dims(op.outputs)}  # fmt: skip
    found["indices"] = mapping_text({one.name: quoted(one.below) for one in arrays if one.below})
    found["dtype_of"] = mapping_text({one.name: quoted(one.dtype) for one in arrays if one.dtype})
    found["optional"] = tuple_text(quoted(one.name) for one in op.parameters if one.optional)
    found["positive"] = tuple_text(quoted(one.name) for one in arrays if one.positive)
    if isinstance(op, OpPlan):
        found["options"] = mapping_text({one.name: one.default or "..." for one in op.options})
        found["kinds"] = mapping_text({one.name: quoted(one.kind) for one in op.options})
        found["least"] = mapping_text({one.name: str(one.least) for one in op.options if one.least is not None})
        choices = {one.name: tuple_text(map(quoted, one.choices)) for one in op.options if one.choices}
        found["choices"] = mapping_text(choices)
        found["saves"] = tuple_text(map(quoted, op.saves))
        found["saved"] = mapping_text(
            {one.name: f"({_dims_of(one)}, {quoted(one.dtype) if one.dtype else None})" for one in op.intermediates}
        )
        found["dtypes"] = tuple_text(quoted(one) for one in op.precisions)
        found["origin"] = quoted(origin)
    return {key: value for key, value in found.items() if value not in ("{}", "()")}


def mapping_text(values: dict[str, str]) -> str:
    """Return a dict display of names and expressions."""
    return f"{{{', '.join(f'{quoted(key)}: {value}' for key, value in values.items())}}}"


def _dims_of(one: ArraySpec) -> str:
    return tuple_text(quoted("..." if letter == "*" else letter) for letter in one.shape)


def _dims(arrays: tuple[ArraySpec, ...]) -> str:
    return mapping_text({one.name: _dims_of(one) for one in arrays})
