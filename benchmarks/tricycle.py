"""Tricycle's own GPT with generated layers off and on: do results agree, and how long does a training step take?

Needs a clone of https://github.com/bclarkson-code/Tricycle; packages that it imports and that nothing here uses
(humanize, numba, tqdm) are stood in for where they are missing. The layers are generated from ``vendor/llm.c`` by this
run. Results are compared with Tricycle's own in float64. Times are wall time with the device synchronised before and
after each part of a step; off, one kind of layer alone, and on take turns.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import logging
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks.outputs import Output

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = "generated_for_tricycle"
PARTS = ("forward", "backward", "update")
#: What is swapped, by the name of a row: all, nothing, or one kind of layer.
FLAGS: dict[str, list[str] | None] = {
    "off": [],
    **{f"{kind} alone": [kind] for kind in ("Attention", "Dense", "GeLU", "LayerNorm", "CrossEntropy")},
    "on": None,
}
#: The largest difference of a gradient to the one in float64, as a share of its largest value, that passes in any case.
TOLERANCES = {"float32": 1e-4, "mixed": 2e-2}


@dataclass(frozen=True)
class Size:
    """The sizes of a model; what Tricycle calls them stands in `settings`."""

    width: int
    window: int
    vocabulary: int
    heads: int
    layers: int
    batch: int

    def settings(self) -> dict[str, Any]:
        return {
            "embedding_dim": self.width, "context_window": self.window, "vocab_size": self.vocabulary,
            "n_heads": self.heads, "n_layers": self.layers, "expansion_ratio": 4, "activation_fn": "gelu",
            "norm_fn": "layer_norm", "input_dropout_prob": 0, "residual_dropout_prob": 0, "linear_dropout_prob": 0,
        }  # fmt: skip


SIZES = {
    "small": Size(width=64, window=32, vocabulary=96, heads=4, layers=2, batch=4),
    "medium": Size(width=384, window=256, vocabulary=1024, heads=6, layers=6, batch=16),
    "gpt2": Size(width=768, window=1024, vocabulary=50256, heads=12, layers=12, batch=4),
}


class Tricycle:
    """Tricycle from a clone, on one device, and the adapter with a package that was generated for it."""

    def __init__(self, clone: pathlib.Path, device: str, folder: pathlib.Path) -> None:
        # A script's own folder comes first on the path, and this file is called as Tricycle is.
        sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != HERE]
        sys.path[:0] = [str(clone / "src"), str(folder), str(ROOT)]
        for name in ("humanize", "numba", "tqdm", "tqdm.auto"):
            _stand_in(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.package = importlib.import_module("tricycle")
        for name in ("models", "loss", "optimisers", "configs", "context", "tensor"):
            setattr(self, name, importlib.import_module(f"tricycle.{name}"))
        if device == "cuda" and not self.package.GPU_ENABLED:
            raise click.UsageError("--device cuda: Tricycle finds no CuPy that works here")
        self.on_gpu = self.package.GPU_ENABLED if device == "auto" else device == "cuda"
        self.xp: Any = importlib.import_module("cupy" if self.on_gpu else "numpy")
        self.adapter: Any = None

    def generate(self, folder: pathlib.Path) -> None:
        """Generate the layers, and import the adapter."""
        pipeline = importlib.import_module("llmc2py.pipeline")
        writer = importlib.import_module("llmc2py.emit.writer")
        made = pipeline.generate(ROOT / "vendor" / "llm.c", targets=["tricycle"])
        writer.write_package(folder / PACKAGE, made.files)
        self.adapter = importlib.import_module("llmc2py.adapters.tricycle")

    def synchronize(self) -> None:
        if self.on_gpu:
            self.xp.cuda.Device().synchronize()

    def device_name(self) -> str:
        if self.on_gpu:
            name: str = self.xp.cuda.runtime.getDeviceProperties(0)["name"].decode()
            return name
        return platform.processor() or platform.machine()

    def memory(self) -> int | None:
        """Return how much device memory CuPy's pool holds, and let go of what is free."""
        if not self.on_gpu:
            return None
        pool = self.xp.get_default_memory_pool()
        held: int = pool.total_bytes()
        pool.free_all_blocks()
        return held

    def set_precision(self, precision: str) -> None:
        self.context.TRICYCLE_CONTEXT.use_mixed_precision = precision == "mixed"
        self.context.TRICYCLE_CONTEXT.loss_scale_factor = 128
        self.tensor.DEFAULT_DTYPE = np.float64 if precision == "float64" else np.float32


def _stand_in(name: str) -> None:
    """Put something in the place of a module that is missing: whatever is asked of it gives back its argument."""
    try:
        importlib.import_module(name)
    except ImportError:
        module: Any = types.ModuleType(name)
        module.__path__ = []
        module.njit = module.tqdm = lambda *given, **options: given[0] if given else lambda function: function
        sys.modules[name] = module


class Training:
    """A model with its loss, optimiser and batch."""

    def __init__(self, tricycle: Tricycle, size: Size) -> None:
        self.tricycle = tricycle
        tricycle.set_precision("float32")
        np.random.seed(0)
        config = type("Config", (tricycle.configs.GPTConfig,), size.settings())()
        self.model = tricycle.models.GPT(config)
        self.loss_fn = tricycle.loss.CrossEntropy()
        self.optimiser = tricycle.optimisers.AdamW(learning_rate=1e-4, weight_decay=0.1)
        # Where it warns, Tricycle's AdamW uses a logger that it does not make.
        self.optimiser.logger = logging.getLogger("tricycle")
        if tricycle.on_gpu:
            self.model.to_gpu(0)
        self.swapped = ""

    def batch(self, size: Size, rows: int) -> tuple[Any, Any]:
        drawn = np.random.default_rng(1).integers(0, size.vocabulary, (rows, size.window + 1))
        made = []
        for values in (drawn[:, :-1], drawn[:, 1:]):
            array = self.tricycle.xp.asarray(np.ascontiguousarray(values))
            made.append(self.tricycle.tensor.Tensor(array, requires_grad=False, is_batched=True, dtype=int))
        return made[0], made[1]

    def switch(self, flag: str) -> None:
        """Swap the layers of the model and the loss that a name of `FLAGS` stands for, and no others."""
        adapter = self.tricycle.adapter
        reports = [adapter.enable(part, PACKAGE, only=FLAGS[flag]) for part in (self.model, self.loss_fn)]
        if flag == "on":
            self.swapped = "\n".join(map(str, reports))

    def prepare(self, flag: str, precision: str) -> None:
        """Set all that a run depends on."""
        self.switch(flag)
        self.tricycle.set_precision(precision)
        # Tricycle's attention keeps its gradient in an array that fits the first batch alone.
        for block in self.model.blocks:
            block.attention_block.attention._grad = None

    def results(self, batch: tuple[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return loss, logits and the gradients of all weights in float64."""
        self.model.zero_grad()
        logits = self.model(batch[0])
        found = {"logits": logits.array.copy()}
        loss = self.loss_fn(batch[1], logits)
        loss.backward()
        found["loss"] = loss.array
        found |= {name: tensor.grad.array for name, tensor in self.weights()}
        self.model.zero_grad()
        return {name: _on_cpu(array).astype(np.float64) for name, array in found.items()}

    def weights(self) -> list[tuple[str, Any]]:
        """Return the tensors that an optimiser is handed, with names."""
        found: list[tuple[str, Any]] = []

        def note(tensor: Any) -> Any:
            found.append((f"{len(found)} {tensor.name}", tensor))
            return tensor

        self.model.update(note)
        return found

    def step(self, batch: tuple[Any, Any]) -> dict[str, float]:
        """Train one step; return the seconds of each part."""
        marks = [self._mark()]
        loss = self.loss_fn(batch[1], self.model(batch[0]))
        marks.append(self._mark())
        loss.backward()
        marks.append(self._mark())
        self.model.update(self.optimiser)
        self.optimiser.step()
        marks.append(self._mark())
        return {part: marks[index + 1] - marks[index] for index, part in enumerate(PARTS)}

    def _mark(self) -> float:
        self.tricycle.synchronize()
        return time.perf_counter()


def _on_cpu(array: Any) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = array.get() if hasattr(array, "get") else np.asarray(array)
    return result


def agreement(training: Training, batch: tuple[Any, Any], precision: str) -> dict[str, Any]:
    """Compare results off, on and in float64: the largest difference of each array, as a share of its largest value.

    Passed is what is on the whole as near to float64 as Tricycle's own layers are: within twice their largest
    difference, or within the tolerance.
    """
    runs = {}
    for name, flag, how in (("float64", "off", "float64"), ("off", "off", precision), ("on", "on", precision)):
        training.prepare(flag, how)
        runs[name] = training.results(batch)
    scale = 128.0 if precision == "mixed" else 1.0
    for name in ("off", "on"):
        runs[name]["loss"] = runs[name]["loss"] / scale
    found: dict[str, Any] = {"loss": {name: float(run["loss"]) for name, run in runs.items()}}
    for key, names in (("logits", ["logits"]), ("gradients", sorted(runs["on"].keys() - {"logits", "loss"}))):
        pairs = {"on to off": ("on", "off"), "off to float64": ("off", "float64"), "on to float64": ("on", "float64")}
        found[key] = {
            pair: max(_difference(runs[one][name], runs[other][name]) for name in names)
            for pair, (one, other) in pairs.items()
        }
        limit = max(TOLERANCES[precision], 2 * found[key]["off to float64"])
        found[key]["passed"] = bool(found[key]["on to float64"] <= limit)
    found["passed"] = found["logits"]["passed"] and found["gradients"]["passed"]
    return found


def _difference(actual: Any, expected: Any) -> float:
    return float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30))


def times(training: Training, batch: tuple[Any, Any], precision: str, steps: int) -> dict[str, Any]:
    """Return medians of the milliseconds of each part of a step, by `FLAGS`, and what memory the pool held."""
    seconds: dict[str, list[dict[str, float]]] = {flag: [] for flag in FLAGS}
    memory: dict[str, int | None] = {}
    for _ in range(2):
        for flag, rows in seconds.items():
            training.prepare(flag, precision)
            training.tricycle.memory()
            training.step(batch)
            rows += [training.step(batch) for _ in range(steps)]
            memory[flag] = training.tricycle.memory()
    found: dict[str, Any] = {}
    for name, rows in seconds.items():
        found[name] = {part: 1e3 * statistics.median(row[part] for row in rows) for part in PARTS}
        found[name]["step"] = 1e3 * statistics.median(sum(row.values()) for row in rows)
        found[name]["tokens per second"] = 1e3 * batch[0].array.size / found[name]["step"]
        found[name]["memory"] = memory[name]
    return found


def markdown(report: dict[str, Any]) -> str:
    """Return a report as a page."""
    lines = [
        f"# Tricycle's GPT with generated layers, {report['device']}, {report['date']}",
        "",
        f"Tricycle at {report['tricycle']}, {report['versions']}. `python benchmarks/tricycle.py CLONE`.",
        "Off: Tricycle's own layers; on: `llmc2py.adapters.tricycle.enable` on the model and the loss. Times are",
        "medians, in milliseconds.",
        "",
        "| model | precision | flag | forward | backward | update | step | tokens/s | memory (GiB) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in report["runs"]:
        for name, row in run["times"].items():
            cells = [f"{row[part]:.2f}" for part in (*PARTS, "step")]
            memory = "" if row["memory"] is None else f"{row['memory'] / 2**30:.2f}"
            lines.append(
                f"| {run['model']}, batch {run['batch']} | {run['precision']} | {name} | {' | '.join(cells)} "
                f"| {row['tokens per second']:,.0f} | {memory} |"
            )
    lines += [
        "",
        "Agreement: the largest difference of an array, as a share of its largest value.",
        "Float64: Tricycle's own layers in float64.",
        "",
        "| model | precision | array | on to off | off to float64 | on to float64 | passed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in report["runs"]:
        for key in ("logits", "gradients"):
            row = run["agreement"][key]
            cells = [f"{row[pair]:.1e}" for pair in ("on to off", "off to float64", "on to float64")]
            lines.append(
                f"| {run['model']} | {run['precision']} | {key} | {' | '.join(cells)} "
                f"| {'yes' if row['passed'] else 'NO'} |"
            )
    losses = [
        f"{run['model']} {run['precision']}: "
        + ", ".join(f"{name} {value:.7g}" for name, value in run["agreement"]["loss"].items())
        for run in report["runs"]
    ]
    return "\n".join([*lines, "", f"Losses: {'; '.join(losses)}.", "", "```", report["swapped"].rstrip(), "```", ""])


def revision(clone: pathlib.Path) -> str:
    """Return the commit of a clone, as far as it is known: a copy of its files may lie in another repository."""
    if not (clone / ".git").exists():
        return "an unknown revision"
    command = ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "an unknown revision"
    return done.stdout.strip() or "an unknown revision"


def versions(on_gpu: bool) -> str:
    """Return the versions of what runs."""
    parts = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    return ", ".join([*parts, f"CuPy {importlib.import_module('cupy').__version__}"] if on_gpu else parts)


def measured(
    training: Training, model: str, precision: str, batch: int | None, steps: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return all that is found out about one model in one precision."""
    size = SIZES[model]
    rows = batch or size.batch
    say(f"{model} {precision}: comparing")
    compared = agreement(training, training.batch(size, min(rows, 2)), precision)
    say(f"{model} {precision}: timing")
    timed = times(training, training.batch(size, rows), precision, steps)
    return {"model": model, "precision": precision, "batch": rows, "sizes": size.settings(), "agreement": compared,
            "times": timed}  # fmt: skip


@click.command()
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--size", "models", multiple=True, type=click.Choice(list(SIZES)),
    help="May be given several times.  [default: small on the CPU, all on CUDA]",
)  # fmt: skip
@click.option("--precision", "precisions", multiple=True, type=click.Choice(list(TOLERANCES)), help="[default: both]")
@click.option("--batch", type=click.IntRange(1), help="Rows in a batch.  [default: that of the size]")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps that are timed, twice.")
@click.option("--revision", "named", help="The commit of CLONE.  [default: as git says]")
@click.option("--output", type=Output(), help="Write OUTPUT.json and OUTPUT.md too.")
def main(
    clone: pathlib.Path,
    device: str,
    models: tuple[str, ...],
    precisions: tuple[str, ...],
    batch: int | None,
    steps: int,
    named: str | None,
    output: pathlib.Path | None,
) -> None:
    """Compare and time the GPT of the Tricycle in CLONE; exit with 1 where results do not agree."""
    if not (clone / "src" / "tricycle" / "models.py").is_file():
        raise click.UsageError(f"{clone}: there is no src/tricycle/models.py in it; give a clone of Tricycle")
    with tempfile.TemporaryDirectory() as folder:
        tricycle = Tricycle(clone.resolve(), device, pathlib.Path(folder))
        tricycle.generate(pathlib.Path(folder))
        runs, swapped = [], ""
        for model in models or (list(SIZES) if tricycle.on_gpu else ["small"]):
            training = Training(tricycle, SIZES[model])
            for precision in precisions or list(TOLERANCES):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    runs.append(
                        measured(training, model, precision, batch, steps, lambda line: click.echo(line, err=True))
                    )
            swapped = swapped or training.swapped
        report = {
            "device": tricycle.device_name(), "date": datetime.date.today().isoformat(),
            "tricycle": named or revision(clone), "versions": versions(tricycle.on_gpu), "swapped": swapped,
            "runs": runs,
        }  # fmt: skip
    page = markdown(report)
    click.echo(page)
    if output is not None:
        output.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        output.with_suffix(".md").write_text(page, encoding="utf-8")
    if not all(run["agreement"]["passed"] for run in runs):
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
