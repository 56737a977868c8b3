"""What a package offers, as plain values for its lock file: kernels, launchers, references and layers by name."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from llmc2py.caching import Memo, code_key, content_key
from llmc2py.drift import formulas
from llmc2py.drift.formulas import read_body
from llmc2py.ir import expressions as ex
from llmc2py.ir.library import Kernel, Launcher, Library, Parameter, Reference, Slice, TemplateParameter
from llmc2py.ir.names import python_name
from llmc2py.ir.plans import ArraySpec, LaunchPlan, ModulePlan, NotLowered, OpPlan, PackagePlan, ReplacedLauncher

Record = dict[str, Any]
#: Bodies that were taken apart before: most launchers are as they were when a package is generated again.
BODIES = Memo("bodies", lambda: code_key([pathlib.Path(formulas.__file__)]), 4096)


@dataclass(frozen=True)
class ModuleRecords:
    """The records of a module's kernels, and of its launchers and those that are replaced, by ``file:name``."""

    kernels: dict[str, Record]
    launchers: tuple[tuple[str, Record], ...]


def describe(
    library: Library, plan: PackagePlan, module_records: Callable[[ModulePlan], ModuleRecords] | None = None
) -> dict[str, dict[str, Record]]:
    """Return ``kernels``, ``launchers``, ``references`` (all by ``file:name``) and ``layers`` (by name) of a package.

    Values that say nothing (no template, no alignment) are left out. Equal sources give equal records, wherever they
    lie. ``module_records`` gives those of a module, as `records_of` does.
    """
    find = module_records or (lambda module: records_of(module, kernel_names(plan, module)))
    found = [find(module) for module in plan.modules]
    return {
        "kernels": _kernels(library, found),
        "launchers": _launchers(plan, found),
        "references": {
            f"{file}:{name}": _reference(reference) for (file, name), reference in sorted(plan.references.items())
        },
        "layers": {module.op.layer: _layer(module, module.op) for module in plan.ops if module.op is not None},
    }


def precisions_of(library: Library) -> list[str]:
    """Return the precisions that the kernels of a tree can be compiled in."""
    found = dict.fromkeys(name for kernel in library.kernels for name in kernel.precisions)
    return sorted(found)


def digest(value: object) -> str:
    """Return the SHA-256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()


def slice_digest(part: Slice) -> str:
    """Return the SHA-256 of a slice: its items with what encloses each, and its headers."""
    items = [[*item.conditions, *item.scopes, item.text] for item in part.items]
    return digest([list(part.headers), items])


def records_of(module: ModulePlan, names: dict[str, str]) -> ModuleRecords:
    """Return the records of a module; ``names`` are its `kernel_names`."""
    path = module.path.replace("/", ".")
    launchers = [(_key(one.launcher), _launch_plan(one, f"{path}.{one.name}", names)) for one in module.launchers]
    launchers += [(_key(one.launcher), _replaced(one, f"{path}.{one.launcher.name}")) for one in module.replaced]
    kernels = {_key(one): _kernel(one, f"{path}.{module.symbols[one.name]}") for one in module.kernels}
    return ModuleRecords(kernels, tuple(launchers))


def kernel_names(plan: PackagePlan, module: ModulePlan) -> dict[str, str]:
    """Return the names in the source of all kernels that a module knows, by the names that they have there."""
    homes = {one.path: one for one in plan.modules}
    names = {symbol: name for name, symbol in module.symbols.items()}
    for path, taken in module.imports.items():
        symbols = {symbol: name for name, symbol in homes[path].symbols.items()}
        names |= {one: symbols[one] for one in taken if one in symbols}
    return names


def _kernels(library: Library, modules: Iterable[ModuleRecords]) -> dict[str, Record]:
    known = {key: record for module in modules for key, record in module.kernels.items()}
    in_order = sorted(library.kernels, key=lambda one: (one.span.file, one.name))
    return {_key(kernel): known.get(_key(kernel)) or _kernel(kernel, None) for kernel in in_order}


def _kernel(kernel: Kernel, python: str | None) -> Record:
    return _told(
        python=python,
        parameters=_parameters(kernel.parameters),
        template=[_template(one) for one in kernel.template],
        launch_bounds=list(kernel.launch_bounds),
        precisions=list(kernel.precisions),
        slice=slice_digest(kernel.slice) if kernel.slice is not None else None,
    )


def _launchers(plan: PackagePlan, modules: Iterable[ModuleRecords]) -> dict[str, Record]:
    found = [item for module in modules for item in module.launchers]
    found += [(_key(one.launcher), _not_lowered(one)) for one in plan.not_lowered]
    in_order: dict[str, Record] = {}
    for key, record in sorted(found, key=lambda pair: (pair[0], digest(pair[1]))):
        number = 1
        while (numbered := f"{key}#{number}" if number > 1 else key) in in_order:
            number += 1  # functions may be overloaded
        in_order[numbered] = record
    return in_order


def _launch_plan(plan: LaunchPlan, python: str, names: dict[str, str]) -> Record:
    helpers = [line for one in plan.helpers for line in one.body]
    fixed = {python_name(one.name) for one in (*plan.parameters, *plan.asked)}
    key = repr((plan.body, sorted(fixed), sorted(names.items()), plan.calls))
    body = BODIES.get(content_key(key), lambda: read_body(plan.body, fixed, names, plan.calls))
    return _told(
        python=python,
        parameters=_parameters((*plan.parameters, *plan.asked)),
        template=[_template(one) for one in plan.launcher.template],
        launches=[[one.kernel, one.configuration] for one in body.launches],
        requires=list(dict.fromkeys(body.requires)),
        calls=list(plan.calls),
        body=digest([body.digest, helpers]),
        text=digest([list(plan.body), helpers]),
    )


def _replaced(one: ReplacedLauncher, python: str) -> Record:
    return _told(
        python=python,
        parameters=_parameters(one.launcher.parameters),
        replaced_by=one.function,
        body=digest([_plain(statement) for statement in one.launcher.body]),
    )


def _not_lowered(one: NotLowered) -> Record:
    parameters = _parameters(one.launcher.parameters)
    return _told(not_lowered=one.reason, parameters=parameters)


def _plain(value: object) -> object:
    """Return a node of host code as plain values, without what says where in a file it stands."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, ex.Call) and any(isinstance(item, ex.String) for item in value.arguments):
        # cudaCheck(error, __FILE__, __LINE__)
        kept = [item for item in value.arguments if not isinstance(item, (ex.String, ex.Number))]
        return ["Call", value.function, _plain(kept)]
    if hasattr(value, "__dataclass_fields__"):
        return [type(value).__name__, *(_plain(item) for key, item in sorted(vars(value).items()) if key != "span")]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _reference(reference: Reference) -> Record:
    source = " ".join(reference.double_source.split())
    return {"parameters": [f"{ctype} {name}" for name, ctype in reference.parameters], "body": digest(source)}


def _layer(module: ModulePlan, op: OpPlan) -> Record:
    passes = [list(op.forward.lines), list(op.backward.lines), list(op.saves), sorted(op.gradients.items())]
    reference = [list(op.reference_forward), list(op.reference_backward)]
    return _told(
        python=f"layers.{op.layer}",
        op=op.name,
        file=module.source,
        inputs=[_array(one) for one in op.inputs],
        parameters=[_array(one) for one in op.parameters],
        outputs=[_array(one) for one in op.outputs],
        precisions=list(op.precisions),
        modules=sorted({module.path, *module.imports}),
        passes=digest(passes),
        reference=digest(reference),
    )


def _array(spec: ArraySpec) -> str:
    return f"{spec.name} ({' '.join(spec.shape).replace('*', '...')})"


def _parameters(parameters: Iterable[Parameter]) -> list[Record]:
    return [_parameter(one, f"unnamed{index}") for index, one in enumerate(parameters)]


def _parameter(one: Parameter, unnamed: str) -> Record:
    is_pointer = one.type.is_pointer
    return _told(
        name=one.name or unnamed,
        type=str(one.type),
        intent=str(one.intent) if one.intent is not None else None,
        align=one.alignment if is_pointer else 0,
        null=one.nullable if is_pointer else False,
    )


def _template(one: TemplateParameter) -> str:
    kind = "typename" if one.kind == "type" else one.kind
    return f"{kind} {one.name}{f' = {one.default}' if one.default else ''}"


def _key(one: Kernel | Launcher) -> str:
    return f"{one.span.file}:{one.name}"


def _told(**values: Any) -> Record:
    """Leave out what says nothing; parameters stay, for there may be none."""
    return {key: value for key, value in values.items() if value or key == "parameters"}
