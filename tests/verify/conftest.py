"""A generated package that tests may copy and change."""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Callable

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The package of vendor/llm.c, not to be changed."""
    folder = tmp_path_factory.mktemp("verify") / "generated"
    write_package(folder, generate(ROOT / "vendor" / "llm.c").files)
    return folder


@pytest.fixture
def copied(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the package."""
    return pathlib.Path(shutil.copytree(made, tmp_path / "generated", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def mutate(copied: pathlib.Path) -> Callable[[str, str, str], str]:
    """A function that replaces a pattern in a file of a copied package, once at least, and returns the package."""

    def change(file: str, pattern: str, replacement: str) -> str:
        path = copied / file
        text, count = re.subn(pattern, replacement, path.read_text())
        assert count, f"{file} has no {pattern}"
        path.write_text(text)
        return str(copied)

    return change
