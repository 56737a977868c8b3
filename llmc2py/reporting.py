"""What of a source tree can be used, and what not and why: the record behind ``llmc2py report``."""

from __future__ import annotations

import pathlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from llmc2py import listing
from llmc2py.diagnostics import Diagnostic, has_errors
from llmc2py.emit.writer import write_package
from llmc2py.ir import conditions
from llmc2py.ir.library import Kernel, Reference
from llmc2py.listing import Record
from llmc2py.pipeline import Generated, plain_references

if TYPE_CHECKING:
    from llmc2py.verify.compile_worker import CompileRow

#: What is compiled for unless the user asks for other architectures.
DEFAULT_ARCHITECTURE = "sm_90"
ALL_PRECISIONS = conditions.PRECISIONS
#: Called with the number of rows done and the number of all.
Progress = Callable[[int, int, "CompileRow"], None]

_CPU = "cpu"
_UNSAID = "is left out, and no diagnostic says why"
_UNREADABLE = re.compile(r"reference (?P<name>\w+) cannot be read: (?P<reason>.*)", re.DOTALL)
# What compilers' messages begin with: the kernel, and how it was compiled.
_HEAD = re.compile(r"kernel .* does not compile.*:\n")
# A slice that lacks something fails with these, whatever the source is like.
_LACKING = re.compile(r"undefined|not declared|Unresolved extern|does not name a type|cannot open|No such file")


def report(
    source: pathlib.Path,
    made: Generated,
    *,
    architectures: Sequence[str] = (DEFAULT_ARCHITECTURE,),
    precisions: Sequence[str] = ALL_PRECISIONS,
    compiles: bool = True,
    progress: Progress | None = None,
) -> Record:
    """Return the coverage of a source tree that has been generated from, as plain values.

    Parameters
    ----------
    source
        What ``made`` was generated from.
    architectures, precisions
        What to compile for beside the CPU, and in what; kernels that know no precision are compiled once.
    compiles
        Without it nothing is compiled and the counts of compiled kernels are left out.
    progress
        Called as kernels are compiled.

    Returns
    -------
    dict
        ``kernels``, ``launchers`` and ``references`` with one record each, ``totals`` of them and of ``launch_sites``,
        ``diagnostics``, and under ``unexplained`` a line for everything that is not accounted for. A kernel that knows
        no precision (``fixed``) has one outcome for each target, under "float32"; in totals it counts for each.
    """
    targets = [*architectures, _CPU] if compiles else []
    rows = _compiled(made, architectures, precisions, progress) if compiles else []
    listed = listing.listing(made)
    kernels = [_kernel(made, record, rows, targets, precisions) for record in _listed(made, listed["kernels"])]
    launchers = _launchers(made, listed["launchers"])
    references = _references(made, *plain_references(source))
    record = {
        "architectures": list(architectures),
        "precisions": list(precisions),
        "compiled": compiles,
        "kernels": kernels,
        "launchers": launchers,
        "references": references,
        "diagnostics": [listing.diagnostic_record(item) for item in made.diagnostics],
    }
    sites = [item for item in launchers if item["launch_sites"]]
    record["totals"] = {
        "kernels": _kernel_totals(kernels, architectures, precisions, targets),
        "launchers": _by_status(sites, lambda _: 1),
        "launch_sites": _by_status(sites, lambda item: int(item["launch_sites"])),
        "callers": _by_status((item for item in launchers if not item["launch_sites"]), lambda _: 1),
        "references": {
            "found": len(references),
            "usable": sum(item["usable"] for item in references),
        },
    }
    record["unexplained"] = _unexplained(kernels, references, made.diagnostics)
    return record


# --- kernels


def _compiled(
    made: Generated, architectures: Sequence[str], precisions: Sequence[str], progress: Progress | None
) -> list[CompileRow]:
    """Compile every kernel of the package, which is written to a folder that is removed again."""
    from llmc2py.verify.compile_check import compile_check

    done, total = 0, 0

    def announce(number: int) -> None:
        nonlocal total
        total = number

    def step(row: CompileRow) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, max(total, done), row)

    if not any(module.kernels for module in made.plan.modules):
        return []  # a package without modules cannot be imported
    with tempfile.TemporaryDirectory(prefix="llmc2py-report-") as folder:
        package = pathlib.Path(folder) / "generated"
        write_package(package, made.files)
        return compile_check(str(package), architectures, precisions=precisions, progress=step, announce=announce)


def _listed(made: Generated, kernels: Iterable[Record]) -> list[tuple[Kernel, Record]]:
    records = {(item["file"], item["name"]): item for item in kernels}
    found = sorted(made.library.kernels, key=lambda one: (one.span.file, one.span.line, one.name))
    return [(kernel, records[kernel.span.file, kernel.name]) for kernel in found]


def _kernel(
    made: Generated,
    listed: tuple[Kernel, Record],
    rows: Iterable[CompileRow],
    targets: Sequence[str],
    precisions: Sequence[str],
) -> Record:
    kernel, record = listed
    fixed = not knows_precision(kernel)
    allowed = ("float32",) if fixed else conditions.precisions_of(kernel.conditions)
    reason = _reason(made, kernel, record)
    home = (record["module"] or "").replace("/", ".")
    own = [row for row in rows if row.module == home and _last_name(row.kernel) == kernel.name]
    compiled = {
        target: {
            precision: _outcome(own, target, precision, reason)
            for precision in (allowed if fixed else precisions)
            if precision in allowed
        }
        for target in targets
    }
    _refuse(compiled, allowed)
    return {
        "name": kernel.name,
        "file": kernel.span.file,
        "line": kernel.span.line,
        "template": record["template"],
        "parameters": record["parameters"],
        "module": record["module"],
        "found": True,
        "sliced": kernel.slice is not None,
        "fixed": fixed,
        "allowed": list(allowed),
        "compiled": compiled,
        "reason": reason,
        "remarks": _remarks(compiled, reason, fixed=fixed),
    }


def knows_precision(kernel: Kernel) -> bool:
    """Whether a kernel is another one in each precision: by ``floatX``, a condition, or a type as template argument."""
    if kernel.slice is None or any(one.kind == "type" for one in kernel.template):
        return True
    if kernel.slice.uses_precision and len(kernel.precisions) < len(ALL_PRECISIONS):
        return True
    return any("floatX" in item.uses and "floatX" not in item.defines for item in kernel.slice.items)


def _last_name(expression: str) -> str:
    """``a::kernel<float>``: return the kernel."""
    return expression.split("<")[0].rpartition("::")[2]


def _outcome(rows: Iterable[CompileRow], target: str, precision: str, reason: str | None) -> Record:
    """Return how a kernel fared; ``reason`` is why it is not in the package, so that nothing was compiled."""
    here = [row for row in rows if row.target == target and row.precision == precision]
    tried = [row for row in here if not row.skipped]
    bad = next((row for row in tried if not row.ok), None)
    status = "failed" if bad is not None else "ok" if tried else "skipped"
    why = bad if bad is not None else next((row for row in here if row.skipped), None)
    return {
        "status": status,
        "instances": [row.kernel for row in tried],
        "seconds": round(sum(row.seconds for row in tried), 3),
        "detail": why.detail.strip() if why is not None else "" if tried else reason or "",
    }


def _remarks(compiled: dict[str, dict[str, Record]], reason: str | None, *, fixed: bool) -> list[str]:
    """Return what there is to say of a kernel beside its failures: each reason once, with all that it is for."""
    found = [f"left out: {reason}"] if reason is not None else []
    for status in ("refused", "skipped"):
        found += [
            f"{status} ({places}): {' '.join(detail.split())[:300]}"
            for detail, places in _by_detail(compiled, status, fixed=fixed)
            if detail != reason
        ]
    return found


def _by_detail(compiled: dict[str, dict[str, Record]], status: str, *, fixed: bool) -> Iterator[tuple[str, str]]:
    """Yield what was said of a kernel's outcomes, each once, with the precisions and targets that it was said of."""
    found: dict[str, dict[str, list[str]]] = {}
    for target, outcomes in compiled.items():
        for precision, one in outcomes.items():
            if one["status"] == status:
                detail = _HEAD.sub("", one["detail"], count=1)
                found.setdefault(detail, {}).setdefault(target, []).append(precision)
    for detail, places in found.items():
        alike: dict[str, list[str]] = {}
        for target, precisions in places.items():
            alike.setdefault("" if fixed else f"{', '.join(precisions)} for ", []).append(target)
        yield detail, "; ".join(f"{which}{', '.join(targets)}" for which, targets in alike.items())


def _refuse(compiled: dict[str, dict[str, Record]], allowed: Sequence[str]) -> None:
    """Mark as refused what the source itself cannot be compiled in.

    It is what every compiler rejects in one precision for its types and accepts in another.
    """
    for precision in allowed:
        outcomes = [by_precision[precision] for by_precision in compiled.values() if precision in by_precision]
        others = [one for by_precision in compiled.values() for name, one in by_precision.items() if name != precision]
        is_refused = (
            len(outcomes) > 1
            and all(one["status"] == "failed" and not _LACKING.search(one["detail"]) for one in outcomes)
            and any(one["status"] == "ok" for one in others)
        )
        for one in outcomes if is_refused else ():
            one["status"] = "refused"


def _reason(made: Generated, kernel: Kernel, record: Record) -> str | None:
    """Return why a kernel is not in the package."""
    if record["module"] is not None and kernel.slice is not None:
        return None
    said = [
        f"{item.span}: {item.message}"
        for item in made.diagnostics
        if item.kernel == kernel.name or item.span == kernel.span
    ]
    return "; ".join(dict.fromkeys(said)) or _UNSAID


def _kernel_totals(
    kernels: Sequence[Record], architectures: Sequence[str], precisions: Sequence[str], targets: Sequence[str]
) -> Record:
    totals: Record = {"found": len(kernels), "sliced": sum(item["sliced"] for item in kernels)}
    for precision in precisions:
        totals[f"allowed_{precision}"] = sum(item["fixed"] or precision in item["allowed"] for item in kernels)
    for target in targets:
        for precision in precisions if target in architectures else ():
            totals[f"compiled_{target}_{precision}"] = sum(
                item["compiled"][target].get("float32" if item["fixed"] else precision, {}).get("status") == "ok"
                for item in kernels
            )
        if target == _CPU:
            totals[f"compiled_{target}"] = sum(_is_compiled(item["compiled"][target]) for item in kernels)
    if targets:
        for status in ("failed", "refused", "skipped"):
            totals[status] = sum(
                any(one["status"] == status for by in item["compiled"].values() for one in by.values())
                for item in kernels
            )
    return totals


def _is_compiled(outcomes: dict[str, Record]) -> bool:
    """Whether a kernel compiles in every precision that it can be compiled in."""
    found = {one["status"] for one in outcomes.values()}
    return "ok" in found and found <= {"ok", "refused"}


# --- launchers


def _launchers(made: Generated, listed: Iterable[Record]) -> list[Record]:
    sites = Counter[tuple[str, str, int]]()
    for launcher in made.library.launchers:
        sites[launcher.span.file, launcher.name, launcher.span.line] += launcher.launch_sites
    replaced = {(one.launcher.span.file, one.launcher.name): one for one in made.plan.replaced}
    found = []
    for item in listed:
        by = replaced.get((item["file"], item["name"]))
        status = "replaced" if by is not None else "lowered" if item["not_lowered"] is None else "not_lowered"
        found.append(
            {
                "name": item["name"],
                "file": item["file"],
                "line": item["line"],
                "parameters": item["parameters"],
                "launch_sites": sites[item["file"], item["name"], item["line"]],
                "launches": item["launches"],
                "calls": item["calls"],
                "module": item["module"],
                "status": status,
                "replaced_by": by.function if by is not None else None,
                "reason": by.reason if by is not None else item["not_lowered"],
            }
        )
    return found


def _by_status(launchers: Iterable[Record], weight: Callable[[Record], int]) -> Record:
    totals = {"found": 0, "lowered": 0, "replaced": 0, "not_lowered": 0}
    for item in launchers:
        totals["found"] += weight(item)
        totals[item["status"]] += weight(item)
    return totals


# --- references


def _references(made: Generated, plain: Sequence[Reference], said: Sequence[Diagnostic]) -> list[Record]:
    readable = [
        {"name": one.name, "file": one.span.file, "line": one.span.line, "usable": True, "reason": None}
        for one in (*made.library.references, *plain)
    ]
    unreadable = [
        {
            "name": match["name"],
            "file": item.span.file,
            "line": item.span.line,
            "usable": False,
            "reason": f"{item.span}: {match['reason']}",
        }
        for item in (*made.diagnostics, *said)
        if (match := _UNREADABLE.fullmatch(item.message))
    ]
    return sorted([*readable, *unreadable], key=lambda one: (str(one["file"]), one["line"], str(one["name"])))


def _unexplained(
    kernels: Iterable[Record], references: Iterable[Record], diagnostics: Iterable[Diagnostic]
) -> list[str]:
    lines = [str(item) for item in diagnostics if item.loses or has_errors([item])]
    for item in kernels:
        if item["reason"] == _UNSAID:
            lines.append(f"{item['file']}:{item['line']}: kernel {item['name']}: {_UNSAID}")
        lines += [
            f"{item['file']}:{item['line']}: kernel {item['name']} ({places}): {detail}"
            for detail, places in _by_detail(item["compiled"], "failed", fixed=item["fixed"])
        ]
    lines += [f"{item['reason']} ({item['name']})" for item in references if not item["usable"]]
    return lines
