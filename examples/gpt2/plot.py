"""The plot of the losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HINT = "the plot needs matplotlib: pip install 'llmc2py[examples]'"


def plot_losses(path: str | Path, losses: Sequence[float], val_losses: Sequence[tuple[int, float]], title: str) -> None:
    """Write a PNG with the loss of each step and the evaluations. Raises ImportError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(HINT) from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(range(len(losses)), losses, linewidth=0.8, label="training")
    if val_losses:
        steps, values = zip(*val_losses, strict=True)
        axes.plot(steps, values, marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
