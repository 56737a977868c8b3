"""Training steps of GPT-2 from generated layers against PyTorch, in one run on one GPU.

A step is what training does: forward, backward, the norm of the gradient, clipping, AdamW. Every program starts from
the same weights, sees the same batches, and has to come to the same first loss.
"""

from __future__ import annotations

import datetime
import functools
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpt2_plot import plot_rates
from benchmarks.gpt2_programs import PROGRAMS, Batch, OutOfMemoryError, Program, free_memory, synchronizer
from benchmarks.gpt2_traces import kernel_times, shares
from benchmarks.outputs import Output
from examples.gpt2.model import GPT2_124M, TINY, GPT2Config
from examples.gpt2.prepare import DTYPES, device_of
from examples.gpt2.training import peak_of

#: Sizes by name; the vocabulary is the padded one, so that no program has to leave logits out.
MODELS = {
    name: GPT2Config(c.max_seq_len, c.padded_vocab_size, c.num_layers, c.num_heads, c.channels)
    for name, c in {"124M": GPT2_124M, "tiny": TINY}.items()
}
#: Tokens of the row that Python's own time is measured with.
SHORT = 64
#: How far the first losses may be apart, as a part of the loss.
AGREEMENT = {"fp32": 1e-4, "bf16": 5e-3}


def batches(config: GPT2Config, B: int, T: int, seed: int = 0) -> Iterator[Batch]:
    """Yield batches of tokens at random, without end."""
    random = np.random.default_rng(seed)
    while True:
        ids = random.integers(0, config.vocab_size, (B, T + 1), dtype=np.int32)
        yield np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])


def measure(program: Program, source: Iterator[Batch], seconds: float, wait: Callable[[], None]) -> dict[str, Any]:
    """Return the times of steps: as many as fit into ``seconds``, at least 3 and at most 50, after 3 to warm up."""
    first = program.step(*next(source))
    for _ in range(2):
        program.step(*next(source))
    wait()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 50):
        tokens, targets = next(source)
        wait()
        start = time.perf_counter()
        program.step(tokens, targets)
        wait()
        times.append(time.perf_counter() - start)
    return {
        "first_loss": first,
        "steps": len(times),
        "ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "host_ms": host_time(program, tokens, targets, wait),
        "tokens_per_second": tokens.size / statistics.median(times),
        "peak_bytes": program.peak_bytes(),
    }


def host_time(program: Program, tokens: Any, targets: Any, wait: Callable[[], None]) -> float | None:
    """Return the ms that Python takes for forward and backward, measured where the device has next to nothing to do.

    None for a program that other shapes than those of its steps would be compiled for anew.
    """
    if not program.takes_any_shape:
        return None
    times = []
    for _ in range(4):
        wait()
        start = time.perf_counter()
        program.enqueue(tokens[:1, :SHORT], targets[:1, :SHORT])
        times.append(time.perf_counter() - start)
    wait()
    return min(times) * 1e3


def run_program(name: str, context: dict[str, Any], B: int) -> dict[str, Any]:
    """Return the row of one program and batch size; of one that cannot run, why."""
    config, T, wait = context["config"], context["sequence"], context["wait"]
    row: dict[str, Any] = {"program": name, "B": B, "T": T, "dtype": context["dtype"]}
    try:
        program = PROGRAMS[name](config, context["dtype"], context["device"])
        row |= measure(program, batches(config, B, T), context["seconds"], wait)
        if context["kernels"]:
            row["kernels"] = kernel_times(functools.partial(program.step, *next(batches(config, B, T, 1))), wait)
    except OutOfMemoryError:
        row["failed"] = "out of memory"
    except (ImportError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        # What one program cannot do is a row of the table; the others are still of use.
        row["failed"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return row


def check_agreement(rows: list[dict[str, Any]], limit: float) -> None:
    """Raise ClickException where programs begin with other losses: then they do not do the same."""
    losses = {row["program"]: row["first_loss"] for row in rows if "first_loss" in row}
    if losses and not max(losses.values()) - min(losses.values()) <= limit * min(losses.values()):
        raise click.ClickException(f"the programs disagree about the first loss: {losses}")


def add_rates(rows: list[dict[str, Any]], config: GPT2Config, device_name: str, dtype: str) -> None:
    """Add MFU and the ratio to PyTorch eager of the same batch size, as far as they are known."""
    peak = peak_of(device_name, np.dtype(np.float32 if dtype == "fp32" else np.float16))
    eager = {row["B"]: row["ms"] for row in rows if row["program"] == "torch eager" and "ms" in row}
    for row in rows:
        if "ms" not in row:
            continue
        if peak:
            row["mfu"] = config.flops_per_token(row["T"]) * row["tokens_per_second"] / (peak * 1e12)
        if row["B"] in eager:
            row["speed_to_eager"] = eager[row["B"]] / row["ms"]


HEADINGS = ("B", "program", "tokens/s", "ms/step", "Python ms", "MFU", "to eager", "GiB")


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row as text."""
    if "failed" in row:
        return [str(row["B"]), row["program"], row["failed"], *[""] * 5]
    return [
        str(row["B"]),
        row["program"],
        f"{row['tokens_per_second']:,.0f}",
        f"{row['ms']:.2f}",
        "" if row["host_ms"] is None else f"{row['host_ms']:.1f}",
        f"{row['mfu']:.1%}" if "mfu" in row else "",
        f"{row['speed_to_eager']:.2f}x" if "speed_to_eager" in row else "",
        f"{row['peak_bytes'] / 2**30:.1f}" if row["peak_bytes"] else "",
    ]


def markdown(report: dict[str, Any]) -> str:
    """Return the report as tables of Markdown."""
    lines = [
        f"# GPT-2 {report['model']}, {report['dtype']}, T={report['sequence']}, {report['device']}, {report['date']}",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join(["---"] * len(HEADINGS)) + " |",
        *("| " + " | ".join(cells(row)) + " |" for row in report["rows"]),
        "",
        "A step: forward, backward, norm of the gradient, clipping, AdamW. Python ms: for forward and backward, where",
        f"the device has next to nothing to do (one row of {SHORT} tokens).",
    ]
    for row in report["rows"]:
        if row.get("kernels"):
            lines += ["", f"## Where the time goes: {row['program']}, B={row['B']}", ""]
            lines += ["| kernel | calls | ms | share |", "| --- | --- | --- | --- |"]
            lines += [
                f"| `{name}` | {calls} | {ms:.3f} | {share:.1%} |" for name, calls, ms, share in shares(row["kernels"])
            ]
    return "\n".join(lines) + "\n"


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    table = Table(title=f"GPT-2 {report['model']}, {report['dtype']}, T={report['sequence']}, {report['device']}")
    for heading in HEADINGS:
        table.add_column(heading)
    for row in report["rows"]:
        table.add_row(*cells(row))
    console.print(table)
    for row in report["rows"]:
        if row.get("kernels"):
            kernels = Table("kernel", "calls", "ms", "share", title=f"{row['program']}, B={row['B']}")
            for name, calls, ms, share in shares(row["kernels"], 15):
                kernels.add_row(name, str(calls), f"{ms:.3f}", f"{share:.1%}")
            console.print(kernels)


def device_name(device: str) -> str:
    """Return what the device is called."""
    if device == "cpu":
        return "the CPU"
    number = int(device.partition(":")[2] or 0)
    name: str = importlib.import_module("cupy").cuda.runtime.getDeviceProperties(number)["name"].decode()
    return name


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="124M", show_default=True)
@click.option("--device", default="cuda", show_default=True, metavar="cpu|cuda")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bf16", show_default=True)
@click.option("--batch", "sizes", type=click.IntRange(min=1), multiple=True, default=(4, 16, 64), show_default=True)
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens of a row.  [default: the model's most]")
@click.option("--program", "names", type=click.Choice(list(PROGRAMS)), multiple=True, help="[default: all]")
@click.option("--seconds", type=float, default=4.0, show_default=True, help="Of measuring, per program and size.")
@click.option("--limit", type=float, help="Begin no further measurement after so many seconds.")
@click.option("--kernels/--no-kernels", default=True, show_default=True, help="Add a table by kernel (needs PyTorch).")
@click.option("--json", "json_path", type=Output())
@click.option("--markdown", "markdown_path", type=Output())
@click.option("--png", "png_path", type=Output(plotted=True), help="Needs matplotlib.")
def main(
    model: str,
    device: str,
    dtype: str,
    sizes: tuple[int, ...],
    sequence: int | None,
    names: tuple[str, ...],
    seconds: float,
    limit: float | None,
    kernels: bool,
    json_path: Path | None,
    markdown_path: Path | None,
    png_path: Path | None,
) -> None:
    """Time training steps of GPT-2 from generated layers and in PyTorch: tokens per second, and where the time goes."""
    started = time.monotonic()
    try:
        device_of(device)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    config = MODELS[model]
    context = {
        "config": config,
        "sequence": sequence or config.max_seq_len,
        "dtype": dtype,
        "device": device,
        "seconds": seconds,
        "kernels": kernels,
        "wait": synchronizer(device),
    }
    rows: list[dict[str, Any]] = []
    for B in sizes:
        here = []
        for name in names or PROGRAMS:
            if limit is not None and time.monotonic() - started > limit:
                click.echo(f"left out, for the time is up: {name} at B={B}", err=True)
                continue
            here.append(run_program(name, context, B))
            gc.collect()
            free_memory(device)
            click.echo("  ".join(cells(here[-1])), err=True)
        check_agreement(here, AGREEMENT[dtype])
        rows += here
    add_rates(rows, config, device_name(device), dtype)
    report = {
        "model": model,
        "parameters": config.num_parameters,
        "device": device_name(device),
        "dtype": dtype,
        "sequence": context["sequence"],
        "date": datetime.date.today().isoformat(),
        "rows": rows,
    }
    show(report, Console())
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if markdown_path is not None:
        markdown_path.write_text(markdown(report), encoding="utf-8")
    if png_path is not None:
        plot_rates(report, png_path)


if __name__ == "__main__":
    main()
