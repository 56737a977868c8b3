"""The loss of GPT-2 from generated layers and in PyTorch, step by step from the same weights on the same batches."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpt2 import device_name
from benchmarks.outputs import Output
from examples.gpt2.data import TokenLoader
from examples.gpt2.model import GPT2, GPT2_124M, TINY, GPT2Config
from examples.gpt2.plot import HINT
from examples.gpt2.prepare import DTYPES, TEXT, device_of, read_file
from examples.gpt2.training import Schedule, Trainer

MODELS = {"124M": GPT2_124M, "tiny": TINY}


def ours(config: GPT2Config, loader: TokenLoader, schedule: Schedule, dtype: str, device: str) -> list[float]:
    """Return the losses of generated layers."""
    trainer = Trainer(GPT2(config).to(device, dtype=DTYPES[dtype]), loader, schedule)
    return [trainer.step().loss for _ in range(schedule.steps)]


def theirs(config: GPT2Config, loader: TokenLoader, schedule: Schedule, dtype: str, device: str) -> list[float]:
    """Return the losses of PyTorch: float32 parameters, bfloat16 by autocast."""
    torch: Any = importlib.import_module("torch")
    gpt2_torch = importlib.import_module("benchmarks.gpt2_torch")
    torch.set_float32_matmul_precision("highest")
    model = gpt2_torch.torch_copy(GPT2(config), device)
    betas = schedule.beta1, schedule.beta2
    optimizer = torch.optim.AdamW(model.decay_groups(schedule.weight_decay), lr=schedule.lr, betas=betas, eps=1e-8)
    losses = []
    for step in range(schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr_at(step)
        optimizer.zero_grad()
        batch = [gpt2_torch.on_device(ids, device) for ids in loader.next_batch()]
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=dtype == "bf16"):
            loss = model.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def plot(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """Write a PNG of both curves. Raises ImportError without matplotlib."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    except ImportError as error:
        raise ImportError(HINT) from error
    axes = figure.add_subplot()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(losses, style, linewidth=1, label=name)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), default="124M", show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=TEXT,
              help="A token file of llm.c, or a text.  [default: the text of the example]")  # fmt: skip
@click.option("--device", default="cuda", show_default=True, metavar="cpu|cuda")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bf16", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--sequence", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("--lr", type=float, default=3e-4, show_default=True)
@click.option("--json", "json_path", type=Output())
@click.option("--png", "png_path", type=Output(plotted=True), help="Needs matplotlib.")
def main(
    model: str, data: Path, device: str, dtype: str, json_path: Path | None, png_path: Path | None, **sizes: Any
) -> None:
    """Compare the losses of training steps with those of PyTorch."""
    try:
        device_of(device)
        schedule = Schedule(**sizes, warmup=sizes["steps"] // 10, clip=1.0)
        tokens = read_file(data)
        curves = {
            name: run(MODELS[model], TokenLoader([tokens], schedule.batch, schedule.sequence), schedule, dtype, device)
            for name, run in {"llmc2py": ours, "PyTorch": theirs}.items()
        }
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    apart = np.abs(np.subtract(curves["llmc2py"], curves["PyTorch"]))
    for name, losses in curves.items():
        click.echo(f"{name:8} {losses[0]:.4f} at first, {np.mean(losses[-10:]):.4f} over the last 10 of {len(losses)}")
    click.echo(f"apart: at most {apart.max():.2e}, in the mean {apart.mean():.2e}")
    name = device_name(device)
    if json_path is not None:
        report = {"model": model, "device": name, "dtype": dtype, **vars(schedule), "losses": curves}
        json_path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if png_path is not None:
        plot(png_path, curves, f"GPT-2 {model}, {dtype}, {name}")


if __name__ == "__main__":
    main()
