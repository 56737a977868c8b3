"""From the source of a field case to the package that a user gets of it."""

from __future__ import annotations

import importlib
import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import Generated, generate

_numbers = itertools.count()


class Case:
    """A generated package: ``case["module"]`` is a module of it; ``diagnostics`` what was said."""

    def __init__(self, folder: pathlib.Path, name: str, generated: Generated) -> None:
        self.folder = folder
        self.name = name
        self.files = generated.files
        self.diagnostics = [str(diagnostic) for diagnostic in generated.diagnostics]
        self.generated = generated
        self.library = generated.library
        self.not_lowered = generated.plan.not_lowered

    def __getitem__(self, module: str) -> Any:
        return importlib.import_module(f"{self.name}.{module}")


@pytest.fixture
def case(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], Case]:
    """Return a function that writes source files, generates their package and makes it importable."""

    def make(sources: Mapping[str, str]) -> Case:
        source = tmp_path / "source"
        for name, text in sources.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        generated = generate(source)
        name = f"field_case_{next(_numbers)}"
        write_package(tmp_path / name, generated.files)
        monkeypatch.syspath_prepend(str(tmp_path))
        return Case(tmp_path / name, name, generated)

    return make
