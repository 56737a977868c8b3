"""Compile every kernel of a generated package, for GPUs that need not be there and for the CPU."""

from __future__ import annotations

import ast
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from llmc2py.runtime.cuda import compile_cubin
from llmc2py.runtime.cuda.nvrtc import supported_architectures
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.host.compiler import build_kernel
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.params import Binding, TemplateParam, TemplateValue
from llmc2py.runtime.source import KernelRequest
from llmc2py.verify.packages import Package, load_package

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_CPU = "cpu"

# typedef float floatX; ... is in every slice whose file chooses a precision, and uses none itself.
_TYPEDEF = re.compile(r"\btypedef\b[^;]*\bfloatX\s*;|\busing\s+floatX\s*=[^;]*;")
_GUARD = re.compile(r"\s*#\s*(?P<word>if|ifdef|ifndef|endif)\b(?P<condition>.*)")


@dataclass(frozen=True)
class CompileRow:
    """One kernel in one precision, compiled for one target (an architecture, or ``cpu``).

    ``skipped`` says that it was not compiled at all; ``detail`` says why, or holds the compiler's errors.
    """

    module: str
    kernel: str
    precision: str
    target: str
    ok: bool
    skipped: bool
    seconds: float
    detail: str


@dataclass(frozen=True)
class _Job:
    module: str
    request: KernelRequest
    target: str


def compile_check(
    package: str,
    architectures: Sequence[str] = ARCHITECTURES,
    *,
    cpu: bool = True,
    progress: Callable[[CompileRow], None] | None = None,
) -> list[CompileRow]:
    """Compile every kernel of a package in every precision that it has. Needs no GPU; finished kernels are cached.

    Parameters
    ----------
    package
        A folder, or the name of a module.
    architectures
        What NVRTC compiles for. Where NVRTC is missing, or does not know one, its rows are marked as skipped.
    cpu
        Whether to compile for the CPU backend too.
    progress
        Called with each row, in the order of the result.

    Raises
    ------
    UsageError
        There is no such package.
    """
    loaded = load_package(package)
    rows: list[CompileRow] = []
    missing = _unusable([*architectures, *([_CPU] if cpu else [])])
    jobs = [job for target in (*architectures, *([_CPU] if cpu else [])) for job in _jobs(loaded, target, rows)]
    rows.sort(key=lambda row: (row.module, row.kernel))
    for row in rows:
        if progress is not None:
            progress(row)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for row in pool.map(lambda job: _compile(job, missing.get(job.target)), jobs):
            rows.append(row)
            if progress is not None:
                progress(row)
    return rows


def _compile(job: _Job, missing: str | None) -> CompileRow:
    request = job.request
    started = time.perf_counter()

    def row(ok: bool, skipped: bool, detail: str) -> CompileRow:
        seconds = time.perf_counter() - started
        return CompileRow(job.module, request.name, request.precision, job.target, ok, skipped, seconds, detail)

    if missing:
        return row(False, True, missing)
    try:
        if job.target == _CPU:
            build_kernel(request)
        else:
            compile_cubin(request, job.target)
    except ToolMissingError as error:
        return row(False, True, str(error))
    except CompileError as error:
        return row(False, False, str(error))
    return row(True, False, "")


def _unusable(targets: Iterable[str]) -> dict[str, str]:
    """Return why targets cannot be compiled for, by target."""
    wanted = [target for target in targets if target != _CPU]
    try:
        known = supported_architectures()
    except ToolMissingError as error:
        return dict.fromkeys(wanted, str(error))
    return {target: f"this NVRTC does not know {target}" for target in wanted if target not in known}


# --- what there is to compile


def _jobs(package: Package, target: str, rows: list[CompileRow]) -> Iterator[_Job]:
    """Yield every kernel, instantiation and precision; kernels that cannot be instantiated become rows."""
    for module in package.modules():
        values = _launched_values(module)
        for kernel in kernels_of(module):
            name = package.name_of(module)
            for precision in precisions_of(kernel):
                bindings = list(_bindings(kernel, precision, values.get(kernel.name, [])))
                for binding in bindings:
                    yield _Job(name, kernel.instance(binding).request, target)
                if not bindings:
                    detail = "no launcher gives its template arguments"
                    rows.append(CompileRow(name, kernel.name, precision, target, False, True, 0.0, detail))


def kernels_of(module: ModuleType) -> list[Kernel]:
    """Return the kernels that a module defines, in order; those that it imports are another module's."""
    source = getattr(module, "SOURCE", None)
    found = (value for value in vars(module).values() if isinstance(value, Kernel) and value.source is source)
    return list(dict.fromkeys(found))


def precisions_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the precisions that make a difference to a kernel: all, or float32 alone.

    They do where the kernel's slice uses ``floatX``, or where a template parameter is a type.
    """
    is_open = any(parameter.kind == "type" for parameter in kernel.template)
    text = _TYPEDEF.sub("", slice_text(kernel.source.text, kernel.selector))
    return tuple(PRECISIONS) if is_open or re.search(r"\bfloatX\b", text) else ("float32",)


def slice_text(text: str, selector: str) -> str:
    """Return the lines of a source that belong to one slice, other conditionals left as they are."""
    kept: list[str] = []
    guards: list[bool | None] = []
    for line in text.splitlines():
        directive = _GUARD.match(line)
        word = directive["word"] if directive else ""
        if word == "endif":
            is_guard = guards.pop() is not None if guards else False
        elif word:
            names = re.findall(r"defined\s*\(\s*(SLICE_\w+)\s*\)", directive["condition"]) if directive else []
            is_guard = bool(names)
            guards.append(selector in names if names else None)
        else:
            is_guard = False
        if not is_guard and False not in guards:
            kept.append(line)
    return "\n".join(kept)


def _bindings(kernel: Kernel, precision: str, launched: list[tuple[Any, ...]]) -> Iterator[Binding]:
    """Yield the template arguments that launchers give: types of the precision, and the values named at launches."""
    element = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}[precision]
    choices = [_choices(one, index, element, launched) for index, one in enumerate(kernel.template)]
    for values in itertools.product(*choices):
        types = {one.name: str(value) for one, value in zip(kernel.template, values, strict=True) if one.kind == "type"}
        yield Binding(precision, values, types)


def _choices(
    parameter: TemplateParam, index: int, element: str, launched: list[tuple[Any, ...]]
) -> list[TemplateValue]:
    if parameter.kind == "type":
        return [element]
    if parameter.kind == "bool":
        return [False, True]
    given = [values[index] for values in launched if index < len(values) and isinstance(values[index], int)]
    if parameter.default is not None:
        given.append(int(parameter.default))
    return sorted(set(given))


def _launched_values(module: ModuleType) -> dict[str, list[tuple[Any, ...]]]:
    """Return the constants among the template arguments of a module's launches, by kernel; others are None."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    loader: Any = module.__loader__
    for node in ast.walk(ast.parse(loader.get_source(module.__name__))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
            for keyword in node.keywords:
                if keyword.arg == "template" and isinstance(keyword.value, ast.Tuple):
                    values = tuple(one.value if isinstance(one, ast.Constant) else None for one in keyword.value.elts)
                    found.setdefault(node.args[0].id, []).append(values)
    return found
