"""The benchmark that llmc2py began with: a layer forward and backward, 1,000 times, on a (32, 2**15) float32 tensor.

Ours against the same formulas as plain array expressions (CuPy, or NumPy without a GPU) and against PyTorch eager where
it is installed, in one run. Times are wall time with the device synchronised before and after.
"""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.relu.generated.layers import ReLU
from generated.layers import GeLU
from llmc2py.runtime import Tensor

SHAPE = (32, 2**15)
Step = Callable[[], Any]


def ours(layer: Any, x: Any, dy: Any) -> Step:
    """Return one step of a generated layer: a new gradient each time, as after ``zero_grad()``."""
    tensor = Tensor(x)

    def step() -> Any:
        tensor.grad = None
        layer(tensor).backward(dy)
        return tensor.grad

    return step


def plain_gelu(xp: Any, x: Any, dy: Any) -> Step:
    """Return one step of GeLU as array expressions."""
    scale = float(np.sqrt(2 / np.pi))

    def step() -> Any:
        t = xp.tanh(scale * (x + 0.044715 * x * x * x))
        _ = 0.5 * x * (1 + t)
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x))

    return step


def plain_relu(xp: Any, x: Any, dy: Any) -> Step:
    """Return one step of ReLU as array expressions."""

    def step() -> Any:
        mask = x > 0
        _ = x * mask
        return dy * mask

    return step


def torch_step(torch: Any, function: Callable[[Any], Any], x: Any, dy: Any) -> Step:
    """Return one step of a PyTorch function in eager mode, on copies of the same arrays."""
    device = "cpu" if isinstance(x, np.ndarray) else "cuda"
    tensor = torch.as_tensor(np.asarray(x if device == "cpu" else x.get()), device=device).requires_grad_()
    gradient = torch.as_tensor(np.asarray(dy if device == "cpu" else dy.get()), device=device)

    def step() -> Any:
        tensor.grad = None
        function(tensor).backward(gradient)
        return tensor.grad

    return step


def measure(step: Step, loops: int, repeats: int, synchronize: Callable[[], None]) -> list[float]:
    """Return seconds per 1,000 steps, once for each repeat."""
    for _ in range(max(3, loops // 50)):
        step()
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        for _ in range(loops):
            step()
        synchronize()
        seconds.append((time.perf_counter() - start) * 1000 / loops)
    return seconds


def arrays(backend: str) -> tuple[Any, Callable[[], None], str]:
    """Return the array module, a function that waits for the device, and the device's name."""
    if backend != "cpu":
        try:
            import cupy

            name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
            return cupy, cupy.cuda.Device().synchronize, name
        except (ImportError, RuntimeError) as error:
            if backend == "cuda":
                raise click.UsageError(f"no CUDA device: {error}") from error
    return np, lambda: None, platform.processor() or platform.machine()


def competitors(xp: Any, x: Any, dy: Any) -> dict[str, dict[str, Step]]:
    """Return the steps to be timed, by op and program."""
    steps = {
        "GeLU": {"llmc2py": ours(GeLU(), x, dy), xp.__name__: plain_gelu(xp, x, dy)},
        "ReLU": {"llmc2py": ours(ReLU(), x, dy), xp.__name__: plain_relu(xp, x, dy)},
    }
    try:
        import torch
    except ImportError:
        return steps
    functional = torch.nn.functional
    if xp is not np and not torch.cuda.is_available():
        return steps
    steps["GeLU"]["torch eager"] = torch_step(torch, lambda t: functional.gelu(t, approximate="tanh"), x, dy)
    steps["ReLU"]["torch eager"] = torch_step(torch, functional.relu, x, dy)
    return steps


def check_agreement(steps: dict[str, Step]) -> None:
    """Raise ClickException unless all programs give the same gradient."""
    results = {name: step() for name, step in steps.items()}
    values = {
        name: np.asarray(r.get() if hasattr(r, "get") else getattr(r, "cpu", lambda r=r: r)())
        for name, r in results.items()
    }
    expected = values["llmc2py"]
    for name, value in values.items():
        worst = float(np.abs(value - expected).max())
        if not worst < 1e-4:
            raise click.ClickException(f"{name} and llmc2py disagree by {worst}")


@click.command()
@click.option("--backend", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--loops", type=int, help="Steps per repeat.  [default: 1000 on CUDA, 10 on the CPU]")
@click.option("--repeats", type=int, default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def main(backend: str, loops: int | None, repeats: int, as_json: bool) -> None:
    """Time GeLU and ReLU, forward and backward, in seconds per 1,000 steps."""
    xp, synchronize, device = arrays(backend)
    loops = loops or (10 if xp is np else 1000)
    random = np.random.default_rng(0)
    x, dy = (xp.asarray(random.normal(size=SHAPE).astype(np.float32)) for _ in range(2))
    results: dict[str, dict[str, dict[str, float]]] = {}
    for op, steps in competitors(xp, x, dy).items():
        check_agreement(steps)
        seconds = {name: measure(step, loops, repeats, synchronize) for name, step in steps.items()}
        base = min(seconds["llmc2py"])
        results[op] = {
            name: {"min": min(times), "median": statistics.median(times), "ratio": min(times) / base}
            for name, times in seconds.items()
        }
    today = datetime.date.today().isoformat()
    if as_json:
        report = {
            "device": device,
            "date": today,
            "shape": SHAPE,
            "loops": loops,
            "repeats": repeats,
            "results": results,
        }
        click.echo(json.dumps(report, indent=2))
        return
    table = Table(title=f"seconds per 1,000 x (forward + backward), {SHAPE} float32, {device}")
    for column in ("op", "program", "min", "median", "ratio to llmc2py"):
        table.add_column(column)
    for op, programs in results.items():
        for name, row in programs.items():
            table.add_row(op, name, f"{row['min']:.4f}", f"{row['median']:.4f}", f"{row['ratio']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
