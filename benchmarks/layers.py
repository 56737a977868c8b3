"""Every generated layer, forward and backward, against PyTorch eager and compiled, in one run on one GPU.

GPU time is that between CUDA events around replays of a captured graph. Inputs that a cache would hold are there
several times, and a graph goes through all of them. Achieved GB/s and TFLOP/s are set against ceilings measured in the
same run.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.layer_cases import CASES, DTYPES, Case, Data, make_data
from benchmarks.layer_programs import PROGRAMS, Call, Cpu, Cuda, Device, OutOfMemoryError, ceilings, out_of_memory
from benchmarks.outputs import Output

LEGEND = (
    "GB/s: each input read once and each output written once, whatever a pass really moves; a gradient that nobody "
    "else has in a model is added to where it is. TFLOP/s: 2 for each product and sum of a matrix product; attention "
    "counts the half of a square that is not masked. Ceilings: a device copy (bytes read plus written) and a large "
    "matrix product. x: time of PyTorch over ours. -: the pass launches nothing, as it hands on what is there."
)
PASSES = ("forward", "backward", "both")
#: How far results may be apart, relative to the largest of an array.
AGREEMENT = {"fp32": 1e-3, "bf16": 4e-2}
#: What no layer that memory bounds may fall below, as a share of a device copy, at this size.
TARGET, TARGET_MEBIBYTES = 0.7, 256.0
Row = dict[str, Any]


def measure(calls: dict[str, Call | None], data: Data, device: Device, budget: float) -> list[Row]:
    """Return a row for each pass of a program."""
    rows: list[Row] = []
    for index, (name, call) in enumerate(calls.items()):
        row: Row = {"pass": name, "us": None}
        if call is not None:
            row["us"] = 1e6 * device.seconds(call, budget) / data.copies
            row |= rates(data, index, row["us"])
        rows.append(row)
    return [*rows, {"pass": "both", "us": sum(row["us"] or 0 for row in rows)}]


def rates(data: Data, index: int, microseconds: float) -> Row:
    """Return what a pass reaches."""
    row: Row = {"bytes": data.bytes_moved[index], "gb_s": data.bytes_moved[index] / microseconds * 1e-3}
    if data.operations is not None:
        row |= {"operations": data.operations[index], "tflop_s": data.operations[index] / microseconds * 1e-6}
    return row


def disagreement(results: list[Any], expected: list[Any]) -> float:
    """Return how far arrays are apart, relative to the largest value of each; infinity where one has other sizes."""
    if [one.shape for one in results] != [one.shape for one in expected]:
        return float("inf")
    pairs = zip(results, expected, strict=True)
    found = [float(np.abs(a - b).max(initial=0) / max(float(np.abs(b).max(initial=0)), 1e-30)) for a, b in pairs]
    return max((value if value == value else float("inf") for value in found), default=0.0)


def names_of(case: Case, dtype: str, device: Device, compiled: bool) -> list[str]:
    """Return the programs that run a case."""
    names = [f"llmc2py {name}".strip() for name in case.programs(dtype) if not name or device.xp is not np]
    if importlib.util.find_spec("torch"):
        names += ["torch eager", "torch compile"] if compiled else ["torch eager"]
    return names


def run_program(name: str, data: Data, device: Device, budget: float, expected: list[Any]) -> list[Row]:
    """Return the rows of one program, or one that says why there are none; the first program fills ``expected``."""
    try:
        with out_of_memory():
            program = PROGRAMS[name](data, device)
            calls = {"forward": program.forward(), "backward": program.backward()}
            results = program.results()
            rows = measure(calls, data, device, budget)
    except OutOfMemoryError:
        return [{"pass": "both", "failed": "out of memory"}]
    except Exception as error:
        # What one program cannot do (a tool that is missing, a size that is refused) is a row of the table.
        return [
            {"pass": "both", "failed": f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:160]}"}
        ]
    if not expected:
        expected += results
    elif (apart := disagreement(results, expected)) > AGREEMENT[data.dtype]:
        rows[-1]["disagrees"] = apart
    return rows


def run_case(case: Case, dtype: str, size: float, device: Device, budget: float, compiled: bool) -> Iterator[Row]:
    """Yield the rows of a layer at one size and precision."""
    shared: Row = {"layer": case.name, "dtype": dtype, "mib": size}
    try:
        with out_of_memory():
            data = make_data(case, size, dtype, device.xp, device.cache_bytes)
    except OutOfMemoryError:
        yield shared | {"program": "llmc2py", "pass": "both", "failed": "out of memory"}
        return
    shared |= {"sizes": data.sizes, "copies": data.copies}
    expected: list[Any] = []
    for name in names_of(case, dtype, device, compiled):
        for row in run_program(name, data, device, budget, expected):
            yield shared | {"program": name} | row
        device.free()


def add_shares(rows: list[Row], found: dict[str, float]) -> None:
    """Add the share of the ceiling to each row that has a rate."""
    for row in rows:
        if "tflop_s" in row:
            row["of_ceiling"] = row["tflop_s"] / found[row["dtype"]]
        elif "gb_s" in row:
            row["of_ceiling"] = row["gb_s"] / found["copy"]


def below_target(rows: list[Row]) -> list[Row]:
    """Return the rows of our layers that memory bounds, and that miss the target at the size that it is for."""
    return [
        row
        for row in rows
        if row["program"] == "llmc2py"
        and row["mib"] == TARGET_MEBIBYTES
        and "gb_s" in row
        and "tflop_s" not in row
        and row["of_ceiling"] < TARGET
    ]


def cells(row: Row, others: dict[str, Row]) -> list[str]:
    """Return a row of ours as text, beside PyTorch's ``others`` of the same pass, by program."""
    head = [row["layer"] + row["program"].removeprefix("llmc2py"), row["dtype"], f"{row['mib']:g}", row["pass"]]
    if "failed" in row:
        return [
            *head,
            row["failed"],
            "",
            "",
            *(_time(others.get(name), None) for name in ("torch eager", "torch compile")),
        ]
    rate = f"{row['tflop_s']:.1f} TF" if "tflop_s" in row else f"{row['gb_s']:.0f} GB" if "gb_s" in row else ""
    share = f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else ""
    torch = [_time(others.get(name), row["us"]) for name in ("torch eager", "torch compile")]
    return [*head, _time(row, None), rate, share, *torch]


def _time(row: Row | None, ours: float | None) -> str:
    if row is None:
        return ""
    if "failed" in row:
        return str(row["failed"])[:40]
    if row["us"] is None:
        return "-"
    ratio = f" ({row['us'] / ours:.2f}x)" if ours else ""
    return f"{row['us']:.1f}{ratio}" + (" DISAGREES" if "disagrees" in row else "")


def table_rows(rows: list[Row]) -> list[list[str]]:
    """Return the rows of our programs as text, by layer, precision, size and pass."""
    order = {case.name: index for index, case in enumerate(CASES)}
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["layer"], row["dtype"], row["mib"], row["pass"]), {})[row["program"]] = row
    keys = sorted(found, key=lambda key: (order[key[0]], key[1], key[2], PASSES.index(key[3])))
    return [cells(row, found[key]) for key in keys for name, row in found[key].items() if name.startswith("llmc2py")]


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    found = report["ceilings"]
    title = (
        f"{report['device']}: copy {found['copy']:.0f} GB/s, fp32 {found['fp32']:.1f}, bf16 {found['bf16']:.0f} TFLOP/s"
    )
    table = Table(title=title, caption=LEGEND)
    for heading in ("layer", "dtype", "MiB", "pass", "µs", "rate", "of ceiling", "eager µs", "compiled µs"):
        table.add_column(heading)
    for row in table_rows(report["rows"]):
        table.add_row(*row)
    console.print(table)
    for row in below_target(report["rows"]):
        place = f"{row['layer']} {row['dtype']} {row['pass']} at {row['mib']:g} MiB"
        console.print(f"below {TARGET:.0%} of a copy: {place}, {row['of_ceiling']:.0%}")


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are measured."""
    found = {}
    for name in ("cupy-cuda13x", "cupy-cuda12x", "torch", "nvidia-cudnn-frontend", "nvmath-python"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(report: dict[str, Any], path: Path | None) -> None:
    """Write the report, after each case: what was measured stays, whatever comes after."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def plan(names: tuple[str, ...], dtypes: tuple[str, ...], sizes: tuple[float, ...]) -> list[tuple[Case, str, float]]:
    """Return the cases to run, size after size in the order given."""
    chosen = [case for case in CASES if not names or case.name in names]
    return [(case, dtype, size) for size in sizes for case in chosen for dtype in dtypes]


@click.command()
@click.option(
    "--layer", "names", type=click.Choice([case.name for case in CASES]), multiple=True, help="[default: all]"
)
@click.option(
    "--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=tuple(DTYPES), show_default=True
)
@click.option(
    "--size", "sizes", type=click.FloatRange(min=0, min_open=True), multiple=True, default=(256, 1, 16, 64, 1024),
    show_default=True, help="MiB of the main activation; measured in the order given.",
)  # fmt: skip
@click.option("--device", "where", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--seconds", type=float, default=0.2, show_default=True, help="Of measuring, per program and pass.")
@click.option("--limit", type=float, help="Begin no further layer after so many seconds.")
@click.option("--compile/--no-compile", "compiled", default=True, show_default=True, help="With torch.compile.")
@click.option("--json", "json_path", type=Output())
@click.option("--plots", "folder", type=Output(file_okay=False, plotted=True), help="Needs matplotlib.")
def main(
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
    sizes: tuple[float, ...],
    where: str,
    seconds: float,
    limit: float | None,
    compiled: bool,
    json_path: Path | None,
    folder: Path | None,
) -> None:
    """Time every layer, forward and backward; exit 1 where ours and PyTorch's results disagree."""
    started = time.monotonic()
    try:
        device: Device = Cpu() if where == "cpu" else Cuda()
    except (ImportError, RuntimeError) as error:
        raise click.UsageError(f"no CUDA device ({error}); --device cpu runs without one") from error
    report: dict[str, Any] = {
        "device": device.name,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "legend": LEGEND,
        "ceilings": ceilings(device, seconds),
        "rows": [],
        "left_out": [],
    }
    for case, dtype, size in plan(names, dtypes, sizes):
        place = f"{case.name} {dtype} {size:g} MiB"
        if limit is not None and time.monotonic() - started > limit:
            report["left_out"].append(place)
            continue
        rows = list(run_case(case, dtype, size, device, seconds, compiled and where == "cuda"))
        device.free()
        add_shares(rows, report["ceilings"])
        report["rows"] += rows
        write(report, json_path)
        click.echo(f"{time.monotonic() - started:6.0f} s  {place}", err=True)
    write(report, json_path)
    finish(report, folder)


def finish(report: dict[str, Any], folder: Path | None) -> None:
    """Show, plot, and exit 1 where results disagree."""
    show(report, Console(width=None if sys.stdout.isatty() else 160))
    if report["left_out"]:
        click.echo(f"left out, for the time is up: {', '.join(report['left_out'])}", err=True)
    if folder is not None:
        importlib.import_module("benchmarks.layer_plots").write_plots(report, folder)
    wrong = [row for row in report["rows"] if "disagrees" in row]
    for row in wrong:
        click.echo(
            f"{row['layer']} {row['dtype']} {row['mib']:g} MiB: {row['program']} is {row['disagrees']:.2g} off",
            err=True,
        )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
