"""Verification of a generated package: every layer, precision, shape and check as one table."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from llmc2py.diagnostics import UsageError
from llmc2py.runtime.arrays import backend_named
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.runtime.layer import OpSpec
from llmc2py.runtime.poison import poisoned_arrays
from llmc2py.runtime.references import Reference
from llmc2py.verify.cases import Case, cases_for
from llmc2py.verify.checks import Subject, check_layer
from llmc2py.verify.kept import Earlier, Footprint, Footprints, Run, rows_of
from llmc2py.verify.oracles import bound, check_c_references, check_derivative
from llmc2py.verify.packages import Package, load_package
from llmc2py.verify.rows import VerifyRow
from llmc2py.verify.variants import VariantSubject, check_variant, variant_subjects

__all__ = ["VerifyRow", "resolve_backend", "verify_package"]

_MAX_WORKERS = 4
#: References in double are called on shapes of up to this many elements.
_REFERENCE_SIZE = 1 << 14

Cases = Callable[[OpSpec], Sequence[Case]]


@dataclass(frozen=True)
class Task:
    """A part of a verification, run and kept as one, and what gives its footprint."""

    run: Run
    footprint: Callable[[Footprints], Footprint | None]


def verify_package(
    package: str,
    backend: str = "auto",
    only: Sequence[str] = (),
    progress: Callable[[VerifyRow], None] | None = None,
    *,
    precisions: Sequence[str] | None = None,
    cases: Cases | None = None,
    variants: bool = True,
    earlier: Earlier = "ignored",
    workers: int = _MAX_WORKERS,
) -> list[VerifyRow]:
    """Run every layer of a generated package, and the variants of its op, and compare them with their references.

    Parameters
    ----------
    package
        A folder, or the name of a module.
    backend
        ``cpu``, ``cuda``, or ``auto``: CUDA where there is a device, else the CPU.
    only
        Patterns (``*``, ``?``) of layer or op names; all by default.
    progress
        Called with each row, in the order of the result.
    precisions
        The precisions to run; all that a layer has by default.
    cases
        Gives the shapes for an op; `cases_for` by default.
    variants
        Whether to run the variants of the ops too. Where they add with atomics, errors differ from run to run.
    earlier
        ``ignored``: run everything and keep nothing. ``taken``: do not run checks that passed in an earlier run of the
        same code on the same machine, and keep those that pass now. ``renewed``: run everything, and keep what passes.
    workers
        The most threads that run checks at once; no more than there are cores.

    Returns
    -------
    list of VerifyRow
        One row per layer, precision, shape and check; rows of variants have the launcher's name for the layer's.
        Checks of the references themselves have the precision ``float64``. A check that raises is a row that failed.

    Raises
    ------
    UsageError
        There is no such package or backend, or no layer that a pattern names.
    ToolMissingError
        A compiler, CuPy or a device is not there.
    """
    loaded = load_package(package)
    place = resolve_backend(backend)
    xp = importlib.import_module("cupy" if place == "cuda" else "numpy")
    if cases is None:
        multiprocessors = backend_named(place).properties(0).multiProcessorCount

        def cases(spec: OpSpec) -> list[Case]:
            return cases_for(spec, loaded.references.get(spec.name), multiprocessors)

    names = _chosen(loaded, only, package)
    tasks = [task for name in names if name in loaded.layers for task in _tasks(loaded, name, xp, precisions, cases)]
    if variants:
        subjects = (one for name in names for one in variant_subjects(loaded, name, xp))
        tasks += [_variant_task(one) for one in subjects if precisions is None or one.precision in precisions]
    if earlier == "ignored":
        return _run([task.run for task in tasks], progress, workers)
    of = Footprints(loaded, place)
    runs = [functools.partial(rows_of, task.run, task.footprint(of), earlier) for task in tasks]
    return _run(runs, progress, workers)


def _run(runs: Iterable[Run], progress: Callable[[VerifyRow], None] | None, workers: int) -> list[VerifyRow]:
    rows: list[VerifyRow] = []
    with poisoned_arrays(), ThreadPoolExecutor(min(workers, os.cpu_count() or 1)) as pool:
        futures = [pool.submit(run) for run in runs]
        try:
            _collect(futures, rows, progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return rows


def resolve_backend(backend: str) -> str:
    """Return ``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``.

    Raises UsageError for any other name, and ToolMissingError for ``cuda`` where there is no device.
    """
    if backend == "cpu":
        return backend
    if backend not in ("auto", "cuda"):
        raise UsageError(f"{backend!r} is no backend; it is one of auto, cpu, cuda")
    problem = _cuda_problem()
    if problem and backend == "cuda":
        raise ToolMissingError(f"there is no CUDA device to verify on: {problem}; `llmc2py doctor` says more")
    return "cpu" if problem else "cuda"


def _cuda_problem() -> str:
    """Return why CUDA cannot be used; "" where it can."""
    try:
        runtime: Any = importlib.import_module("cupy_backends.cuda.api.runtime")
    except ImportError as error:
        return f"CuPy cannot be imported ({error})"
    try:
        return "" if runtime.getDeviceCount() else "the driver names no device"
    except runtime.CUDARuntimeError as error:
        return str(error)


def _chosen(package: Package, only: Sequence[str], given: str) -> list[str]:
    """Return the layers, and ops without one, that the patterns choose. Raises UsageError where that is none."""

    def is_named(pattern: str, name: str) -> bool:
        spec = package.layers[name].spec if name in package.layers else None
        return any(fnmatch.fnmatchcase(one, pattern) for one in (name, spec.name if spec else name))

    names = [*package.layers, *(name for name, check in package.checks.items() if check.spec is not None)]
    known = ", ".join(names) or "none"
    for pattern in only:
        if not any(is_named(pattern, name) for name in names):
            raise UsageError(f"{given}: no layer is named {pattern!r}; its layers are: {known}")
    if not names:
        raise UsageError(f"{given}: the package has no layers to verify")
    return [name for name in names if not only or any(is_named(pattern, name) for pattern in only)]


def _collect(
    futures: Iterable[Future[list[VerifyRow]]], rows: list[VerifyRow], progress: Callable[[VerifyRow], None] | None
) -> None:
    for future in futures:
        for row in future.result():
            rows.append(row)
            if progress is not None:
                progress(row)


def _tasks(package: Package, name: str, xp: Any, precisions: Sequence[str] | None, cases: Cases) -> list[Task]:
    """Return what can run side by side for one layer: its references, and each precision."""
    layer = package.layers[name]
    spec = layer.spec
    if spec is None:
        return []
    reference = package.references.get(spec.name)
    if reference is None:
        detail = f"the package has no reference for {spec.name}"
        row = VerifyRow(name, "float64", "", "reference", False, float("nan"), float("nan"), detail)
        return [Task(lambda: [row], lambda of: None)]
    shapes = cases(spec)
    tasks = [
        Task(
            lambda: _reference_rows(package, name, spec, reference, shapes),
            lambda of: of.reference(name, spec, reference, shapes),
        )
    ]
    for precision in spec.dtypes:
        if precisions is None or precision in precisions:
            tasks.append(_layer_task(Subject(name, layer, spec, reference, precision, xp), shapes))
    return tasks


def _layer_task(subject: Subject, cases: Sequence[Case]) -> Task:
    return Task(lambda: list(check_layer(subject, cases)), lambda of: of.layer(subject, cases))


def _variant_task(subject: VariantSubject) -> Task:
    return Task(lambda: check_variant(subject), lambda of: of.variant(subject))


def _reference_rows(
    package: Package, name: str, spec: OpSpec, reference: Reference, cases: Sequence[Case]
) -> list[VerifyRow]:
    """Check a layer's reference: against its derivative, and against C references of the same op."""
    rows: list[VerifyRow] = []
    for case in cases:
        if not 0 < case.elements <= _REFERENCE_SIZE:
            continue
        try:
            own = bound(reference, spec, case)
            derivative = check_derivative(name, spec, own, case)
            rows += [derivative] if derivative else []
            rows += check_c_references(name, spec, own, package.folder, case)
        except ToolMissingError:
            raise
        except Exception as fault:
            detail = f"{type(fault).__name__}: {fault}"
            nan = float("nan")
            rows.append(VerifyRow(name, "float64", case.label(spec), "reference", False, nan, nan, detail))
    return rows
