"""What ``list``, ``show`` and ``generate`` tell of a source tree, as plain values that become tables or JSON."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from typing import Any

from llmc2py.diagnostics import Diagnostic, UsageError
from llmc2py.emit.sources import emit_source
from llmc2py.ir.library import Kernel, Launcher, Parameter, Reference, TemplateParameter
from llmc2py.ir.plans import LaunchPlan, ModulePlan, NotLowered
from llmc2py.pipeline import Generated

Record = dict[str, Any]
#: What the front end says of a definition that it takes no kernel from.
_SECOND = re.compile(r"kernel \S+ is also defined at \S+; this definition is left out")


def summary(generated: Generated) -> Record:
    """Return the modules of a package, the totals, and what is not in it with the reasons."""
    modules = [_module_record(module) for module in generated.plan.modules]
    taken = {(module.source, kernel.name) for module in generated.plan.modules for kernel in module.kernels}
    return {
        "modules": modules,
        "totals": {
            "modules": len(modules),
            "kernels": sum(len(module["kernels"]) for module in modules),
            "launchers": sum(len(module["launchers"]) for module in modules),
            "layers": sum(module["layer"] is not None for module in modules),
        },
        "kernels_left_out": [
            {"name": kernel.name, "file": kernel.span.file, "line": kernel.span.line}
            for kernel in generated.library.kernels
            if (kernel.span.file, kernel.name) not in taken
        ]
        + [
            {"name": item.kernel, "file": item.span.file, "line": item.span.line}
            for item in generated.diagnostics
            if _SECOND.fullmatch(item.message)
        ],
        "not_lowered": [_not_lowered_record(item) for item in generated.plan.not_lowered],
        "diagnostics": [diagnostic_record(item) for item in generated.diagnostics],
    }


def diagnostic_record(item: Diagnostic) -> Record:
    """Return a diagnostic as plain values."""
    return {
        "severity": str(item.severity),
        "file": item.span.file,
        "line": item.span.line,
        "column": item.span.column,
        "message": item.message,
    }


def listing(generated: Generated) -> Record:
    """Return all kernels, launchers and references of a source tree, in the order of files and lines."""
    index = _Index(generated)
    return {
        "kernels": _in_order(map(index.kernel, generated.library.kernels)),
        "launchers": _in_order(map(index.launcher, generated.library.launchers)),
        "references": _in_order(map(index.reference, generated.library.references)),
        "diagnostics": [diagnostic_record(item) for item in generated.diagnostics],
    }


def _in_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda item: (item["file"], item["line"], item["name"]))


def find(generated: Generated, name: str) -> list[Record]:
    """Return everything of a name, with its source and the Python made of it.

    ``name`` is that of a kernel, launcher, reference, op or layer, after ``file:`` where that is to be told apart; the
    end of the file's path is enough. Raises UsageError, with names like it, where there is none.
    """
    file, bare = _place_and_name(name)
    index = _Index(generated)
    found = [
        *(index.kernel_details(item) for item in generated.library.kernels if item.name == bare),
        *(index.launcher_details(item) for item in generated.library.launchers if item.name == bare),
        *(index.reference_details(item) for item in generated.library.references if item.name == bare),
        *(
            index.layer_details(item)
            for item in generated.plan.ops
            if item.op and bare in (item.op.name, item.op.layer)
        ),
    ]
    chosen = [item for item in found if not file or item["file"] == file or item["file"].endswith(f"/{file}")]
    if not chosen:
        raise UsageError(_unknown(generated, name, [item["file"] for item in found]))
    return chosen


def _place_and_name(name: str) -> tuple[str, str]:
    """``file:name``, or a name alone, which may be qualified: ``S::f``."""
    found = re.fullmatch(r"(?:(.*[^:]):)?((?:[^:]|::)+)", name)
    return (found[1] or "", found[2]) if found is not None else ("", name)


def _unknown(generated: Generated, name: str, elsewhere: list[str]) -> str:
    bare = _place_and_name(name)[1]
    if elsewhere:
        return f"{name}: no such file has {bare}; it is in {', '.join(sorted(set(elsewhere)))}"
    library = generated.library
    names = {item.name for item in library.kernels} | {item.name for item in library.launchers}
    names |= {item.name for item in library.references}
    names |= {spelling for item in generated.plan.ops if item.op for spelling in (item.op.name, item.op.layer)}
    folded = {item.casefold(): item for item in sorted(names)}
    near = [folded[item] for item in difflib.get_close_matches(bare.casefold(), folded, n=5, cutoff=0.5)]
    hint = f"did you mean {', '.join(near)}?" if near else "`llmc2py list` shows the names"
    return f"{name}: no kernel, launcher, reference, op or layer has this name; {hint}"


class _Index:
    """The plans of a run by the places of what they were made from."""

    def __init__(self, generated: Generated) -> None:
        self.files = generated.files
        self.plans: dict[tuple[str, str], LaunchPlan] = {}
        self.kernel_homes: dict[tuple[str, str], ModulePlan] = {}
        self.launcher_homes: dict[tuple[str, str], ModulePlan] = {}
        for module in generated.plan.modules:
            for kernel in module.kernels:
                self.kernel_homes[module.source, kernel.name] = module
            for plan in module.launchers:
                self.plans[module.source, plan.name] = plan
                self.launcher_homes[module.source, plan.name] = module
        self.reasons = {(item.launcher.span, item.launcher.name): item for item in generated.plan.not_lowered}
        self.uses = _uses(generated)

    def kernel(self, kernel: Kernel) -> Record:
        home = self.kernel_homes.get((kernel.span.file, kernel.name))
        return {
            "kind": "kernel",
            "name": kernel.name,
            "file": kernel.span.file,
            "line": kernel.span.line,
            "signature": _signature(kernel, "__global__ void"),
            "template": [_template_record(item) for item in kernel.template],
            "parameters": [_parameter_record(item) for item in kernel.parameters],
            "precisions": list(kernel.precisions),
            "launches": self.uses.get((kernel.span.file, kernel.name), []),
            "module": home.path if home is not None else None,
        }

    def kernel_details(self, kernel: Kernel) -> Record:
        record = self.kernel(kernel)
        home = self.kernel_homes.get((kernel.span.file, kernel.name))
        record["slice"] = emit_source([kernel], kernel.span.file) if kernel.slice is not None else None
        record["python"] = self._python(home, [home.symbols[kernel.name]]) if home is not None else {}
        return record

    def launcher(self, launcher: Launcher) -> Record:
        key = (launcher.span.file, launcher.name)
        reason = self.reasons.get((launcher.span, launcher.name))
        plan = self.plans.get(key) if reason is None else None
        home = self.launcher_homes.get(key) if plan is not None else None
        parameters = plan.parameters if plan is not None else launcher.parameters
        return {
            "kind": "launcher",
            "name": launcher.name,
            "file": launcher.span.file,
            "line": launcher.span.line,
            "signature": _signature(launcher, str(launcher.returns)),
            "template": [_template_record(item) for item in launcher.template],
            "parameters": [_parameter_record(item) for item in parameters],
            "launches": list(dict.fromkeys(plan.launches)) if plan is not None else [],
            "calls": list(plan.calls) if plan is not None else [],
            "module": home.path if home is not None else None,
            "not_lowered": f"{reason.span}: {reason.reason}" if reason is not None else None,
        }

    def launcher_details(self, launcher: Launcher) -> Record:
        record = self.launcher(launcher)
        home = self.launcher_homes.get((launcher.span.file, launcher.name))
        record["python"] = self._python(home, [launcher.name]) if home is not None and record["module"] else {}
        return record

    def reference(self, reference: Reference) -> Record:
        return {
            "kind": "reference",
            "name": reference.name,
            "file": reference.span.file,
            "line": reference.span.line,
            "parameters": [{"name": name, "type": ctype} for name, ctype in reference.parameters],
        }

    def reference_details(self, reference: Reference) -> Record:
        return self.reference(reference) | {"source": reference.double_source}

    def layer_details(self, module: ModulePlan) -> Record:
        op = module.op
        assert op is not None
        arrays = {
            role: {item.name: " ".join(item.shape).replace("*", "...") for item in items}
            for role, items in (("inputs", op.inputs), ("parameters", op.parameters), ("outputs", op.outputs))
        }
        names = [f"{op.layer}Function", op.name]
        return {
            "kind": "layer",
            "name": op.layer,
            "op": op.name,
            "file": module.source,
            "summary": op.summary,
            "precisions": list(op.precisions),
            **arrays,
            "saves": list(op.saves),
            "gradients": dict(op.gradients),
            "fast_sizes": op.fast_sizes,
            "launchers": [plan.name for plan in module.launchers],
            "kernels": [kernel.name for kernel in module.kernels],
            "module": module.path,
            "python": self._python(module, names) | {"layers.py": _definitions(self.files["layers.py"], [op.layer])},
        }

    def _python(self, module: ModulePlan, names: list[str]) -> dict[str, str]:
        file = f"{module.path}.py"
        return {file: _definitions(self.files[file], names)}


def _uses(generated: Generated) -> dict[tuple[str, str], list[Record]]:
    """Return for each kernel, by file and name, who launches it and how."""
    uses: dict[tuple[str, str], list[Record]] = {}
    scopes = {file.path: file.scope for file in generated.library.files}
    for module in generated.plan.modules:
        for plan in module.launchers:
            for text in dict.fromkeys(plan.launches):
                name = re.split(r"<", text, maxsplit=1)[0]
                kernel = scopes[module.source].kernels.get(name)
                if kernel is not None:
                    use = _use_record("launcher", plan.name, module.source, text)
                    uses.setdefault((kernel.span.file, kernel.name), []).append(use)
    for module in generated.plan.ops:
        if module.op is not None:
            for name, configuration in _recipe_launches(module):
                use = _use_record("layer", module.op.layer, module.source, configuration)
                uses.setdefault((module.source, name), []).append(use)
    return uses


def _use_record(kind: str, name: str, file: str, configuration: str) -> Record:
    return {"by": name, "kind": kind, "file": file, "configuration": configuration}


def _recipe_launches(module: ModulePlan) -> Iterable[tuple[str, str]]:
    """Yield the kernels that an op's recipes launch without a launcher: ``kernel[grid, block](…)``."""
    op = module.op
    assert op is not None
    for line in dict.fromkeys((*op.forward.lines, *op.backward.lines)):
        for kernel in module.kernels:
            found = re.search(rf"\b{re.escape(module.symbols[kernel.name])}\[.*?\](?=\()", line)
            if found:
                yield kernel.name, found[0]


def _definitions(text: str, names: list[str]) -> str:
    """Return the statements of a Python text that define these names, as they stand there."""
    lines = text.split("\n")
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined = [node.name]
        elif isinstance(node, ast.Assign):
            defined = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        if set(defined) & set(names):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(item.lineno for item in decorators)])
            found.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n\n\n".join(found)


def _module_record(module: ModulePlan) -> Record:
    precisions = (
        module.op.precisions
        if module.op is not None
        else dict.fromkeys(one for kernel in module.kernels for one in kernel.precisions)
    )
    return {
        "module": module.path,
        "source": module.source,
        "kernels": [kernel.name for kernel in module.kernels],
        "launchers": [plan.name for plan in module.launchers],
        "layer": module.op.layer if module.op is not None else None,
        "precisions": list(precisions),
    }


def _not_lowered_record(item: NotLowered) -> Record:
    return {
        "name": item.launcher.name,
        "file": item.span.file,
        "line": item.span.line,
        "column": item.span.column,
        "reason": item.reason,
    }


def _parameter_record(parameter: Parameter) -> Record:
    return {
        "name": parameter.name,
        "type": str(parameter.type),
        "intent": str(parameter.intent) if parameter.intent is not None else None,
        "alignment": parameter.alignment if parameter.type.is_pointer else None,
        "nullable": parameter.nullable if parameter.type.is_pointer else None,
    }


def _template_record(parameter: TemplateParameter) -> Record:
    return {"name": parameter.name, "kind": parameter.kind, "default": parameter.default}


def _template_text(parameters: Iterable[TemplateParameter]) -> str:
    texts = [
        f"{'typename' if item.kind == 'type' else item.kind} {item.name}{f' = {item.default}' if item.default else ''}"
        for item in parameters
    ]
    return f"template <{', '.join(texts)}> " if texts else ""


def _signature(item: Kernel | Launcher, returns: str) -> str:
    parameters = ", ".join(f"{one.type} {one.name}".rstrip() for one in item.parameters)
    return f"{_template_text(item.template)}{returns} {item.name}({parameters})"
