"""Train GPT-2 from generated layers; `python examples/gpt2/train.py --help` shows how."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.gpt2.checkpoint import write_model
from examples.gpt2.data import TokenLoader
from examples.gpt2.model import GPT2
from examples.gpt2.plot import HINT, plot_losses
from examples.gpt2.prepare import DTYPES, prepare
from examples.gpt2.sample import generate
from examples.gpt2.tokenizer import ByteTokenizer, printable
from examples.gpt2.training import Schedule, Trainer, peak_of, utilisation
from llmc2py.runtime import LaunchError, ToolMissingError, array_module


def option(name: str, help_text: str, **details: Any) -> Any:
    """Return a click option that shows the default of `Schedule`."""
    default = getattr(Schedule, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=type(default), default=default, show_default=True, help=help_text, **details)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--model", "model_name", default="tiny", show_default=True, metavar="tiny|124M|FILE",
              help="Sizes of a new model, or a model file of llm.c (gpt2_124M.bin) to go on from.")  # fmt: skip
@click.option("--layers", type=click.IntRange(min=1), help="Layers of a new model, in place of what --model has.")
@click.option("--heads", type=click.IntRange(min=1), help="Heads of each layer; they divide the channels.")
@click.option("--channels", type=click.IntRange(min=1), help="Channels of a new model.")
@click.option("--context", type=click.IntRange(min=1),
              help="The most tokens that a new model takes; --sequence is up to it.")  # fmt: skip
@click.option("--data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Token files of llm.c (.bin), or one text file, whose bytes are the tokens. May be given several "
                   "times.  [default: the text in this folder]")  # fmt: skip
@click.option("--val-data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Token files to validate on.  [default: the last tenth of a text file]")  # fmt: skip
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda|cuda:N", help="Where to train.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="fp32", show_default=True,
              help="Precision; with bf16 the optimiser keeps float32 master weights.")  # fmt: skip
@click.option("--attention", type=click.Choice(["llmc", "cudnn"]), default="llmc", show_default=True,
              help="llm.c's own kernels, or cuDNN's flash attention (on CUDA with bf16).")  # fmt: skip
@click.option("--recompute", is_flag=True, help="Compute GELU again in the backward pass instead of keeping it.")
@click.option("--graph", is_flag=True,
              help="Run forward and backward as one CUDA graph: faster where batches are small.")  # fmt: skip
@option("--steps", "Optimiser steps, those before a checkpoint included.")
@option("--batch", "Rows of a batch.")
@option("--sequence", "Tokens of a row.")
@option("--accumulation", "Batches whose gradients are added up for one step.")
@option("--lr", "Highest learning rate.")
@option("--min-lr", "Last learning rate, as a part of the highest; between them a cosine.")
@option("--warmup", "Steps in which the learning rate rises.")
@option("--weight-decay", "Of the matrices.")
@option("--clip", "Largest norm of the gradient; 0 for no limit.")
@option("--beta1", "Of AdamW.")
@option("--beta2", "Of AdamW.")
@option("--seed", "Of the initial values and of stochastic rounding.")
@click.option("--val-every", type=click.IntRange(min=0), default=50, show_default=True,
              help="Steps between validations; 0 for none.")  # fmt: skip
@click.option(
    "--val-batches", type=click.IntRange(min=1), default=8, show_default=True, help="Batches of a validation."
)
@click.option("--save-every", type=click.IntRange(min=0), default=0, show_default=True,
              help="Steps between checkpoints; 0 for one at the end.")  # fmt: skip
@click.option("--resume", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A checkpoint to go on from, with its own options; those given here replace them.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("gpt2-run"), show_default=True,
              help="Folder for checkpoint-STEP.npz, model.bin, losses.csv and loss.png.")  # fmt: skip
@click.option("--sample", type=click.IntRange(min=0), default=100, show_default=True,
              help="Tokens to write at the end, for models of bytes.")  # fmt: skip
@click.option("--peak-tflops", type=click.FloatRange(min=0, min_open=True),
              help="Peak of the device, for the MFU.  [default: known for some GPUs]")  # fmt: skip
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """Train GPT-2 from generated layers.

    Without options: a model of 2 layers learns a small text on the CPU, in about a minute. It shows loss, tokens per
    second and MFU, samples a few words at the end, and writes checkpoints and the plot of the loss.

    \b
    A model of your own size:
      train.py --layers 4 --heads 4 --channels 128 --context 64 --sequence 64 --steps 300

    \b
    GPT-2 124M on a GPU, on token files of llm.c:
      train.py --model 124M --data train.bin --val-data val.bin --device cuda --dtype bf16 --batch 16
               --sequence 1024 --accumulation 4 --lr 6e-4 --warmup 700 --steps 20000 --save-every 1000
    """  # noqa: D301 - click takes the escape for a paragraph that is not wrapped
    console = Console()
    try:
        trainer, val_loader = prepare(context, options)
    except (ValueError, TypeError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    try:
        train(trainer, val_loader, options, console)
    except (FloatingPointError, ImportError, MemoryError, LaunchError, ToolMissingError) as error:
        console.print(Text.assemble(("error: ", "red"), str(error)))
        raise SystemExit(1) from error
    finish(trainer, options, console)


def train(trainer: Trainer, val_loader: TokenLoader | None, options: dict[str, Any], console: Console) -> None:
    """Run the steps that are left, with a line of progress, validations and checkpoints."""
    schedule, config = trainer.schedule, trainer.model.config
    place, peak = device_and_peak(trainer.model, options["peak_tflops"])
    console.print(
        f"GPT-2 of {config.num_parameters / 1e6:.3g}M parameters ({config.num_layers} layers, "
        f"{config.channels} channels) in {trainer.model.encoder.wte.dtype} on {place}; "
        f"{trainer.tokens_per_step} tokens per step"
    )
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=schedule.steps, completed=len(trainer.losses), state="compiling")
        speed = Speed(trainer.tokens_per_step)
        while len(trainer.losses) < schedule.steps:
            result = trainer.step()
            rate = speed.note()
            state = f"loss {result.loss:.4f} · {rate:,.0f} tokens/s"
            if result.norm is not None:
                state += f" · norm {result.norm:.2f}"
            if peak is not None:
                state += f" · MFU {utilisation(trainer.model, schedule.sequence, rate, peak):.1%}"
            progress.update(task, advance=1, state=state)
            pause = time.perf_counter()
            done = len(trainer.losses)
            if val_loader is not None and options["val_every"] and due(done, options["val_every"], schedule.steps):
                loss = trainer.evaluate(val_loader, options["val_batches"])
                progress.console.print(f"step {done:>5} · {state} · lr {result.lr:.2e} · validation {loss:.4f}")
            if due(done, options["save_every"], schedule.steps):
                trainer.save(options["out"] / f"checkpoint-{done:06d}.npz")
            speed.skip(time.perf_counter() - pause)


class Speed:
    """Tokens per second over the steps so far, the first left out: it compiles kernels."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._steps = -1
        self._start = time.perf_counter()

    def note(self) -> float:
        """Note that a step is done; return tokens per second."""
        now = time.perf_counter()
        self._steps += 1
        if self._steps == 0:
            rate = self._tokens / (now - self._start)
            self._start = now
            return rate
        return self._tokens * self._steps / (now - self._start)

    def skip(self, seconds: float) -> None:
        """Leave out time that no step took."""
        self._start += seconds


def due(done: int, every: int, last: int) -> bool:
    """Whether something that happens every so many steps, and at the end, happens now."""
    return done == last or bool(every and done % every == 0)


def device_and_peak(model: GPT2, given: float | None) -> tuple[str, float | None]:
    """Return the name of the device that a model is on, and its peak in TFLOP/s as far as that is known."""
    array = model.encoder.wte.data
    if isinstance(array, np.ndarray):
        return "the CPU", given
    properties = array_module(array).cuda.runtime.getDeviceProperties(array.device.id)
    name: str = properties["name"].decode()
    return name, given or peak_of(name, array.dtype)


def finish(trainer: Trainer, options: dict[str, Any], console: Console) -> None:
    """Write the model, the losses and the plot, and show what the model writes by itself."""
    out: Path = options["out"]
    out.mkdir(parents=True, exist_ok=True)
    write_model(out / "model.bin", trainer.model)
    rows = [f"{step},{loss!r}" for step, loss in enumerate(trainer.losses)]
    (out / "losses.csv").write_text("\n".join(["step,loss", *rows]) + "\n", encoding="utf-8")
    first, last = trainer.losses[0], trainer.losses[-1]
    console.print(f"loss {first:.4f} at the first step, {last:.4f} at the last")
    if options["sample"] and trainer.model.config.vocab_size == ByteTokenizer.size:
        tokenizer = ByteTokenizer()
        random = np.random.default_rng(trainer.schedule.seed)
        ids = generate(trainer.model, tokenizer.encode("Mara "), options["sample"], random)
        console.print(Text(printable(tokenizer.decode(ids)), style="dim"))
    try:
        title = f"GPT-2, {trainer.model.config.num_parameters / 1e6:.3g}M parameters"
        plot_losses(out / "loss.png", trainer.losses, trainer.val_losses, title)
        console.print(f"wrote {out / 'loss.png'}, model.bin, losses.csv and a checkpoint")
    except ImportError:
        console.print(Text(f"wrote {out / 'model.bin'}, losses.csv and a checkpoint; {HINT}"))


if __name__ == "__main__":
    main()
