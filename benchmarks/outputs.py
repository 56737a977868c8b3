"""Options for what a benchmark writes at its end."""

from __future__ import annotations

import pathlib
from typing import Any

import click


class Output(click.Path):
    """A file, or with ``file_okay=False`` a folder; where it cannot be made is told before the work, not after it."""

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=not file_okay, path_type=pathlib.Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> pathlib.Path:
        """Return the path, whose folder is there."""
        path = pathlib.Path(super().convert(value, param, ctx))
        try:
            (path.parent if self.file_okay else path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"{path} cannot be written: {error.strerror}", param, ctx)
        return path
