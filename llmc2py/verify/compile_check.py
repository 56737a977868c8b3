"""Compile every kernel of a generated package, for GPUs that need not be there and for the CPU."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

from llmc2py.runtime.cuda.nvrtc import supported_architectures
from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.params import Binding, TemplateParam, TemplateValue
from llmc2py.verify.compile_worker import CPU, CompileRow, Job, compile_apart, compile_job
from llmc2py.verify.launched import Values, launched_values
from llmc2py.verify.packages import Package, load_package

__all__ = ["ARCHITECTURES", "CompileRow", "compile_check", "kernels_of", "precisions_of", "slice_text"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

# typedef float floatX; ... is in every slice whose file chooses a precision, and uses none itself.
_TYPEDEF = re.compile(r"\btypedef\b[^;]*\bfloatX\s*;|\busing\s+floatX\s*=[^;]*;")
_GUARD = re.compile(r"\s*#\s*(?P<word>if|ifdef|ifndef|endif)\b(?P<condition>.*)")


def compile_check(
    package: str,
    architectures: Sequence[str] = ARCHITECTURES,
    *,
    cpu: bool = True,
    precisions: Sequence[str] = tuple(PRECISIONS),
    progress: Callable[[CompileRow], None] | None = None,
    announce: Callable[[int], None] | None = None,
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
    precisions
        What to compile kernels in that have a choice; the others are compiled as they are, in float32.
    progress
        Called with each row as it is made.
    announce
        Called before the first row with the number of rows to come; a few more may follow where types do not fit.

    Returns
    -------
    list of CompileRow
        A row for every instantiation. Template types are those of the precision; where a kernel does not take these it
        is tried with float in the place of some, and what does not fit is marked as skipped if something else does.

    Raises
    ------
    UsageError
        There is no such package.
    """
    loaded = load_package(package)
    targets = [*architectures, *([CPU] if cpu else [])]
    missing = _unusable(architectures)
    rows: list[CompileRow] = []
    jobs = [job for target in targets for job in _jobs(loaded, target, missing.get(target, ""), precisions, rows)]
    if announce is not None:
        announce(len(rows) + len(jobs))
    for row in rows:
        if progress is not None:
            progress(row)
    compiled = list(zip(jobs, _compile_all([job for job, _ in jobs], progress), strict=True))
    others = [job for (_, typed), row in compiled if not (row.ok or row.skipped) for job in typed]
    fitting = [row for row in _compile_all(others, progress) if row.ok]
    return [*rows, *(_unfit(row, fitting) for _, row in compiled), *fitting]


def _compile_all(jobs: Sequence[Job], progress: Callable[[CompileRow], None] | None) -> list[CompileRow]:
    """Compile jobs side by side; return their rows in order."""
    workers = os.cpu_count() or 1
    results: list[Future[CompileRow]] = [Future() for _ in jobs]
    rows: list[CompileRow] = []
    with ThreadPoolExecutor(workers) as pool:
        for share in _shares(jobs, workers):
            pool.submit(_run_share, [jobs[index] for index in share], [results[index] for index in share])
        for result in results:
            rows.append(result.result())
            if progress is not None:
                progress(rows[-1])
    return rows


def _unfit(row: CompileRow, fitting: Iterable[CompileRow]) -> CompileRow:
    """Return the row of an instantiation, marked as skipped where other types fit the kernel in its place."""
    if row.ok or row.skipped:
        return row
    place = row.module, row.kernel.split("<")[0], row.precision, row.target
    if any((one.module, one.kernel.split("<")[0], one.precision, one.target) == place for one in fitting):
        return replace(row, skipped=True, detail=f"the kernel does not take these types: {row.detail}")
    return row


def _shares(jobs: Sequence[Job], workers: int) -> list[list[int]]:
    """Return the positions of jobs by the task that does them: NVRTC's for as many processes as there are workers."""
    apart = [index for index, job in enumerate(jobs) if _runs_apart(job)]
    shares = [apart[worker::workers] for worker in range(workers)] if len(apart) > workers else []
    done = {index for share in shares for index in share}
    return [*shares, *([index] for index in range(len(jobs)) if index not in done)]


def _runs_apart(job: Job) -> bool:
    return job.target != CPU and not job.missing


def _run_share(jobs: list[Job], results: list[Future[CompileRow]]) -> None:
    """Compile jobs and set their results, or the exception that ended them."""
    waiting = iter(results)
    try:
        rows = compile_apart(jobs) if len(jobs) > 1 else map(compile_job, jobs)
        for row in rows:
            next(waiting).set_result(row)
    except BaseException as fault:
        for result in waiting:
            result.set_exception(fault)


def _unusable(architectures: Sequence[str]) -> dict[str, str]:
    """Return why NVRTC cannot compile for architectures, by their names."""
    try:
        known = supported_architectures()
    except ToolMissingError as error:
        return dict.fromkeys(architectures, str(error))
    return {name: f"this NVRTC does not know {name}" for name in architectures if name not in known}


# --- what there is to compile


def _jobs(
    package: Package, target: str, missing: str, precisions: Sequence[str], rows: list[CompileRow]
) -> Iterator[tuple[Job, list[Job]]]:
    """Yield every kernel, instantiation and precision, each with what to try where its types do not fit.

    Kernels that cannot be instantiated become rows.
    """
    modules = {package.name_of(module): module for module in package.modules()}
    values = _launched_values(modules)
    for name, module in modules.items():
        for kernel in kernels_of(module):
            for precision in _chosen(precisions_of(kernel), precisions):
                launched = values.get(id(kernel), [])
                bindings = list(_bindings(kernel, precision, launched))
                for binding in bindings:
                    others = [
                        Job(name, kernel.instance(one).request, target)
                        for one in _bindings(kernel, precision, launched, mixed=True)
                        if _values(kernel, one) == _values(kernel, binding) and one not in bindings
                    ]
                    yield Job(name, kernel.instance(binding).request, target, missing), others
                if not bindings:
                    detail = "no launcher gives its template arguments"
                    rows.append(CompileRow(name, kernel.name, precision, target, False, True, 0.0, detail))


def _chosen(found: tuple[str, ...], wanted: Sequence[str]) -> list[str]:
    return [one for one in found if one in wanted or len(found) == 1]


def _values(kernel: Kernel, binding: Binding) -> list[TemplateValue]:
    """Return the template arguments that are no types."""
    return [value for one, value in zip(kernel.template, binding.template, strict=True) if one.kind != "type"]


def kernels_of(module: ModuleType) -> list[Kernel]:
    """Return the kernels that a module defines, in order; those that it imports are another module's."""
    source = getattr(module, "SOURCE", None)
    found = (value for value in vars(module).values() if isinstance(value, Kernel) and value.source is source)
    return list(dict.fromkeys(found))


def precisions_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the precisions that make a difference to a kernel: all that it is there in, or float32 alone.

    They do where the kernel's slice uses ``floatX``, or where a template parameter is a type.
    """
    is_open = any(parameter.kind == "type" for parameter in kernel.template)
    text = _TYPEDEF.sub("", slice_text(kernel.source.text, kernel.selector))
    is_open = is_open or len(kernel.precisions) < len(PRECISIONS) or re.search(r"\bfloatX\b", text) is not None
    return kernel.precisions if is_open else ("float32",)


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


def _bindings(kernel: Kernel, precision: str, launched: list[Values], *, mixed: bool = False) -> Iterator[Binding]:
    """Yield the template arguments that launchers give: types of the precision, and the values named at launches.

    ``mixed`` lets float stand for any of the types.
    """
    element = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}[precision]
    types = list(dict.fromkeys(["float", element])) if mixed else [element]
    choices = [_choices(one, index, types, launched) for index, one in enumerate(kernel.template)]
    for values in itertools.product(*choices):
        bound = {one.name: str(value) for one, value in zip(kernel.template, values, strict=True) if one.kind == "type"}
        yield Binding(precision, values, bound)


def _choices(parameter: TemplateParam, index: int, types: list[str], launched: list[Values]) -> list[TemplateValue]:
    if parameter.kind == "type":
        return [*types]
    if parameter.kind == "bool":
        return [False, True]
    kind = str if parameter.kind == "function" else int
    given = [value for value in (launched[index] if index < len(launched) else ()) if isinstance(value, kind)]
    if parameter.default is not None:
        given.append(parameter.default)
    return [parameter.value(value, parameter.name) for value in sorted(set(given))]


def _launched_values(modules: Mapping[str, ModuleType]) -> dict[int, list[Values]]:
    """Return the values that template arguments of kernels are launched with, by the ids of the kernels."""
    loaders: dict[str, Any] = {name: module.__loader__ for name, module in modules.items()}
    texts = {name: loaders[name].get_source(module.__name__) for name, module in modules.items()}
    found = {}
    for place, values in launched_values(texts).items():
        home, _, symbol = place.rpartition(".")
        kernel = getattr(modules[home], symbol, None) if home in modules else None
        if kernel is not None:
            found[id(kernel)] = values
    return found
