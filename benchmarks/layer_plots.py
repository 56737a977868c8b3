"""Plots of what `benchmarks/layers.py` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot

STYLES = {"forward": "-", "backward": "--"}
COLOURS = {"llmc2py": "C0", "llmc2py cudnn": "C3", "torch eager": "C1", "torch compile": "C2"}


def write_plots(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write a PNG for each precision, with the share of the ceiling over the size by layer; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for row in report["rows"] if "of_ceiling" in row]
    return [
        _plot(report, [row for row in rows if row["dtype"] == dtype], dtype, folder)
        for dtype in _distinct(rows, "dtype")
    ]


def _plot(report: dict[str, Any], rows: list[dict[str, Any]], dtype: str, folder: Path) -> Path:
    layers = _distinct(rows, "layer")
    columns = min(4, len(layers))
    lines = -(-len(layers) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(4 * columns, 3 * lines), squeeze=False, layout="constrained"
    )
    for axis, layer in zip(axes.flat, layers, strict=False):
        _plot_layer(axis, layer, [row for row in rows if row["layer"] == layer])
    for axis in axes.flat[len(layers) :]:
        axis.set_axis_off()
    shown = {text: line for axis in axes.flat for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(f"{report['device']}, {dtype}: share of the ceiling")
    path = folder / f"layers-{dtype}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _plot_layer(axis: Any, layer: str, rows: list[dict[str, Any]]) -> None:
    for program in _distinct(rows, "program"):
        for name, style in STYLES.items():
            points = sorted((r["mib"], r["of_ceiling"]) for r in rows if r["program"] == program and r["pass"] == name)
            if points:
                axis.plot(
                    *zip(*points, strict=True), style, marker=".", color=COLOURS[program], label=f"{program} {name}"
                )
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 1.2)
    axis.grid(alpha=0.3)
    axis.set_title(layer)
    axis.set_xlabel("MiB")


def _distinct(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))
