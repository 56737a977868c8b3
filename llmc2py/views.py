"""How the records of ``listing`` and ``verify`` look to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from llmc2py.console import write, write_code, write_error, write_table

if TYPE_CHECKING:
    from llmc2py.diagnostics import Diagnostic
    from llmc2py.listing import Record
    from llmc2py.runtime.environment import Finding
    from llmc2py.verify.report import VerifyRow

#: Kernels of which one thing is not said one by one.
_MANY = 8


def show_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    """Write diagnostics to the standard error as ``file:line:col: severity: message``."""
    for item in diagnostics:
        write_error(str(item))


def show_summary(record: Record, output: str, done: str, *, verbose: bool) -> None:
    """Write the table of a package's modules, the totals, and what is not in it."""
    rows = [
        (
            item["module"], item["source"], str(len(item["kernels"])), str(len(item["launchers"])),
            item["layer"] or "-", ", ".join(item["precisions"]),
        )
        for item in record["modules"]
    ]  # fmt: skip
    write_table(
        ("module", "source", "kernels", "launchers", "layer", "precisions"), rows, numbers=("kernels", "launchers")
    )
    totals = record["totals"]
    write()
    write(
        f"{_count(totals['kernels'], 'kernel')}, {_count(totals['launchers'], 'launcher')} and "
        f"{_count(totals['layers'], 'layer')} in {_count(totals['modules'], 'module')}: {output} {done}"
    )
    _show_left_out(record, verbose=verbose)


def _show_left_out(record: Record, *, verbose: bool) -> None:
    kernels, launchers = record["kernels_left_out"], record["not_lowered"]
    if kernels:
        write(f"{_count(len(kernels), 'kernel')} left out: {', '.join(item['name'] for item in kernels)}")
    if launchers:
        write(f"{_count(len(launchers), 'host function')} not lowered{':' if verbose else ' (-v says why)'}")
    for item in launchers if verbose else ():
        write(f"{item['file']}:{item['line']}:{item['column']}: note: {item['name']}: {item['reason']}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- list


def show_listing(record: Record) -> None:
    """Write the tables of kernels, launchers and references of a source tree."""
    kernels = [
        (item["name"], _place(item), _template(item), _uses(item), _parameters(item)) for item in record["kernels"]
    ]
    launchers = [
        (item["name"], _place(item), _template(item), _launches(item), _parameters(item))
        for item in record["launchers"]
    ]
    references = [(item["name"], _place(item), _parameters(item)) for item in record["references"]]
    tables = (
        (("kernel", "place", "template", "launched as", "parameters"), kernels),
        (("launcher", "place", "template", "launches", "parameters"), launchers),
        (("reference", "place", "parameters"), references),
    )
    filled = [(columns, rows) for columns, rows in tables if rows]
    for number, (columns, rows) in enumerate(filled):
        if number:
            write()
        write_table(columns, rows)


def _place(item: Record) -> str:
    return f"{item['file']}:{item['line']}"


def _template(item: Record) -> str:
    return ", ".join(_template_parameter(one) for one in item["template"]) or "-"


def _template_parameter(one: Record) -> str:
    kind = "typename" if one["kind"] == "type" else one["kind"]
    return f"{kind} {one['name']}{' = ' + one['default'] if one['default'] else ''}"


def _parameters(item: Record) -> str:
    return ", ".join(f"{one['type']} {one['name']}".rstrip() for one in item["parameters"])


def _uses(item: Record) -> str:
    return "; ".join(_use(use, item["name"]) for use in item["launches"]) or "-"


def _use(use: Record, name: str) -> str:
    return f"{use['configuration'].removeprefix(name)} by {use['by']}"


def _launches(item: Record) -> str:
    if item["not_lowered"] is not None:
        return f"not lowered: {item['not_lowered']}"
    return "; ".join([*item["launches"], *(f"calls {name}" for name in item["calls"])]) or "-"


# --- show


def show_items(records: Sequence[Record]) -> None:
    """Write everything that is known of the items of one name."""
    for number, record in enumerate(records):
        if number:
            write("\n")
        _SHOW[record["kind"]](record)


def _show_kernel(record: Record) -> None:
    _heading(record)
    write_code(f"{record['signature']};", "cuda")
    _show_parameters(record["parameters"])
    write(f"\nprecisions: {', '.join(record['precisions'])}")
    for use in record["launches"]:
        write(f"launched by {use['kind']} {use['by']} ({use['file']}): {use['configuration']}")
    if not record["launches"]:
        write("launched by no launcher that could be lowered: give grid and block yourself")
    if record["slice"] is not None:
        write("\nslice:")
        write_code(record["slice"], "cuda")
    else:
        write("\nno slice: the diagnostics of `llmc2py list` say why")
    _show_python(record)


def _show_launcher(record: Record) -> None:
    _heading(record)
    write_code(f"{record['signature']};", "cuda")
    _show_parameters(record["parameters"])
    write()
    if record["not_lowered"] is not None:
        write(f"not lowered: {record['not_lowered']}")
    for text in record["launches"]:
        write(f"launches {text}")
    for name in record["calls"]:
        write(f"calls {name}")
    _show_python(record)


def _show_reference(record: Record) -> None:
    _heading(record)
    write("in double:")
    write_code(record["source"], "c")


def _show_layer(record: Record) -> None:
    _heading(record)
    write(record["summary"])
    write()
    rows = [
        (role[:-1], name, shape) for role in ("inputs", "parameters", "outputs") for name, shape in record[role].items()
    ]
    write_table(("role", "array", "shape"), rows)
    write(f"\nprecisions: {', '.join(record['precisions'])}")
    write(f"fast sizes: {record['fast_sizes']}")
    write(f"saves for backward: {', '.join(record['saves']) or 'nothing'}")
    write(f"gradients: {', '.join(record['gradients']) or 'none'}")
    write(f"launchers: {', '.join(record['launchers']) or 'none'}")
    write(f"kernels: {', '.join(record['kernels']) or 'none'}")
    _show_python(record)


_SHOW = {"kernel": _show_kernel, "launcher": _show_launcher, "reference": _show_reference, "layer": _show_layer}


def _heading(record: Record) -> None:
    place = _place(record) if "line" in record else record["file"]
    module = f", module {record['module']}" if record.get("module") else ""
    write(f"{record['kind']} {record['name']} ({place}{module})\n")


def _show_parameters(parameters: Sequence[Record]) -> None:
    rows = [
        (
            one["name"], one["type"], one["intent"] or "-",
            str(one["alignment"]) if one["alignment"] else "-",
            "-" if one["nullable"] is None else "yes" if one["nullable"] else "no",
        )
        for one in parameters
    ]  # fmt: skip
    if rows:
        write()
        write_table(("parameter", "type", "intent", "alignment", "nullable"), rows)


def _show_python(record: Record) -> None:
    for file, text in record["python"].items():
        write(f"\ngenerated Python ({file}):")
        write_code(text, "python")


# --- report


def show_report(record: Record) -> None:
    """Write the tables of what is read, compiled and lowered, the totals, and what is not accounted for."""
    targets = [*record["architectures"], "cpu"] if record["compiled"] else []
    write_table(
        ("kernel", "place", "sliced", *targets, "parameters"),
        [_kernel_row(item, targets, record["precisions"]) for item in record["kernels"]],
    )
    _show_remarks(record["kernels"])
    write()
    write_table(
        ("launcher", "place", "launch sites", "status", "reason"),
        [_launcher_row(item) for item in record["launchers"]],
        numbers=("launch sites",),
    )
    if record["references"]:
        write()
        rows = [
            (item["name"], _place(item), "usable" if item["usable"] else item["reason"])
            for item in record["references"]
        ]
        write_table(("reference", "place", "status"), rows)
    write()
    _show_totals(record)


def _kernel_row(item: Record, targets: Sequence[str], precisions: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a kernel; of each target the precisions that it compiles in, `ok` where these are all."""
    cells = []
    for target in targets:
        outcomes = item["compiled"][target]
        if item["fixed"]:
            cells.append(outcomes["float32"]["status"])
            continue
        done = [name for name in precisions if outcomes.get(name, {}).get("status") == "ok"]
        other = [f"{name} {one['status']}" for name, one in outcomes.items() if one["status"] != "ok"]
        cells.append("ok" if len(done) == len(precisions) else ", ".join([*done, *other]) or "-")
    parameters = ", ".join(f"{one['name']}: {one['intent']}" for one in item["parameters"] if one["intent"])
    return item["name"], _place(item), "yes" if item["sliced"] else "NO", *cells, parameters


def _show_remarks(kernels: Sequence[Record]) -> None:
    """Write what there is to say of kernels that are left out or not compiled: what holds for many of them once."""
    said: dict[str, list[Record]] = {}
    for item in kernels:
        for remark in item["remarks"]:
            said.setdefault(remark, []).append(item)
    for remark, items in said.items():
        if len(items) > _MANY:
            write(f"{len(items)} kernels: {remark}")
            continue
        for item in items:
            write(f"{_place(item)}: {item['name']}: {remark}")


def _launcher_row(item: Record) -> tuple[str, ...]:
    status = f"replaced by {item['replaced_by']}" if item["replaced_by"] else item["status"].replace("_", " ")
    return item["name"], _place(item), str(item["launch_sites"]), status, item["reason"] or "-"


def _show_totals(record: Record) -> None:
    rows = [(what, name, str(count)) for what, counts in record["totals"].items() for name, count in counts.items()]
    write_table(("of", "count", "number"), [(what.replace("_", " "), name, n) for what, name, n in rows],
                numbers=("number",))  # fmt: skip
    left = record["unexplained"]
    write(f"\n{_count(len(left), 'thing')} not accounted for{':' if left else ''}")
    for line in left:
        write(line)


# --- verify and doctor


def show_verification(rows: Sequence[VerifyRow], backend: str, *, verbose: bool) -> None:
    """Write the checks by layer and precision, then each that failed; each of all where verbose."""
    groups: dict[tuple[str, str], list[VerifyRow]] = {}
    for row in rows:
        groups.setdefault((row.layer, row.precision), []).append(row)
    write_table(
        ("layer", "precision", "shapes", "checks", "error/allowed", "result"),
        [(*key, *_group(found)) for key, found in groups.items()],
        numbers=("shapes", "checks", "error/allowed"),
    )
    shown = [row for row in rows if verbose or not row.ok]
    if shown:
        write()
        write_table(
            ("layer", "precision", "shape", "check", "result", "error", "allowed", "detail"),
            [_verify_row(row) for row in shown],
            numbers=("error", "allowed"),
        )
    write(f"\n{_count(len(rows), 'check')} on the {backend.upper()} backend: {_verdict(rows)}")


def _verdict(rows: Sequence[VerifyRow]) -> str:
    failed, earlier = sum(not row.ok for row in rows), sum(row.earlier for row in rows)
    verdict = f"{failed} FAILED" if failed else "all passed"
    if not earlier:
        return verdict
    which = f"{earlier} passed" if failed else f"{earlier} of them"
    return f"{verdict}, {which} in earlier runs of the same code (--again runs them)"


def _group(rows: Sequence[VerifyRow]) -> tuple[str, str, str, str]:
    """Return the number of shapes and checks, the largest error as a part of what is allowed, and the result."""
    parts = [row.error / row.allowed for row in rows if row.allowed > 0 and not math.isnan(row.error)]
    failed = sum(not row.ok for row in rows)
    shapes = len({row.shape for row in rows})
    result = f"{failed} FAILED" if failed else _passed(sum(row.earlier for row in rows), len(rows))
    return str(shapes), str(len(rows)), f"{max(parts):.2f}" if parts else "-", result


def _passed(earlier: int, checks: int) -> str:
    return "ok" if not earlier else "ok (earlier)" if earlier == checks else f"ok ({earlier} earlier)"


def _verify_row(row: VerifyRow) -> tuple[str, ...]:
    result, detail = _passed(int(row.earlier), 1) if row.ok else "FAILED", " ".join(row.detail.split())
    return row.layer, row.precision, row.shape, row.check, result, _number(row.error), _number(row.allowed), detail


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def show_findings(findings: Sequence[Finding]) -> None:
    """Write what ``doctor`` found."""
    rows = [(item.name, item.status, item.value, " ".join(item.hint.split())) for item in findings]
    write_table(("what", "status", "found", "what to do"), rows)
