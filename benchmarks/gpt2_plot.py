"""Tokens per second of the programs that train GPT-2, as a picture."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

COLOURS = {
    "llmc2py": "#9ecae1",
    "llmc2py graph": "#4292c6",
    "llmc2py cudnn": "#2171b5",
    "llmc2py cudnn graph": "#08306b",
    "torch eager": "#fdd0a2",
    "torch compile": "#fd8d3c",
    "torch compile graph": "#d94801",
}


def plot_rates(report: dict[str, Any], path: Path) -> None:
    """Draw a group of bars for each batch size, and write a picture; needs matplotlib."""
    backend = importlib.import_module("matplotlib")
    backend.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    rows = [row for row in report["rows"] if row.get("tokens_per_second")]
    sizes = sorted({row["B"] for row in rows})
    names = [name for name in COLOURS if any(row["program"] == name for row in rows)]
    figure, axes = pyplot.subplots(figsize=(10, 4.5), layout="constrained")
    width = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        rates = {row["B"]: row["tokens_per_second"] / 1000 for row in rows if row["program"] == name}
        places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(sizes))]
        bars = axes.bar(places, [rates.get(B, 0) for B in sizes], width, label=name, color=COLOURS[name])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(sizes)), [f"B = {B}" for B in sizes])
    axes.set_ylabel("thousand tokens a second")
    axes.set_title(f"Training GPT-2 {report['model']}, {report['dtype']}, T = {report['sequence']}, {report['device']}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
