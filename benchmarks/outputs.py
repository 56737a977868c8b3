"""Options for what a benchmark writes at its end."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import click


class Output(click.Path):
    """A file, or with ``file_okay=False`` a folder; where it cannot be made is told before the work, not after it.

    With ``plotted`` it is drawn, which needs matplotlib.
    """

    def __init__(self, *, file_okay: bool = True, plotted: bool = False) -> None:
        super().__init__(file_okay=file_okay, dir_okay=not file_okay, path_type=pathlib.Path)
        self.plotted = plotted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pathlib.Path:
        """Return the path, whose folder is there."""
        if self.plotted and importlib.util.find_spec("matplotlib") is None:
            self.fail('needs matplotlib: pip install ".[examples]"', param, ctx)
        path = pathlib.Path(super().convert(value, param, ctx))
        try:
            (path.parent if self.file_okay else path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"{path} cannot be written: {error.strerror}", param, ctx)
        return path
