"""What the tests of this folder share: snapshots of small trees."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import pytest

from llmc2py.drift.snapshot import Snapshot, snapshot_of_files
from llmc2py.pipeline import generate

#: Trees that were read, by what is in them: most tests start from one and the same.
_known: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}


@pytest.fixture
def snapshot(tmp_path: pathlib.Path) -> Callable[[str, Mapping[str, str]], Snapshot]:
    """Return the snapshot of a tree of files that is written first."""

    def make(name: str, files: Mapping[str, str]) -> Snapshot:
        key = tuple(files.items())
        if key in _known:
            return snapshot_of_files(name, _known[key])
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _known[key] = generate(tmp_path / name).files
        return snapshot_of_files(name, _known[key])

    return make


@pytest.fixture(scope="session")
def snapshot_of_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Snapshot]:
    """Return the snapshot of a tree of one file, in a folder of its own each time."""

    def make(text: str) -> Snapshot:
        folder = tmp_path_factory.mktemp("tree")
        (folder / "a.cu").write_text(text)
        return snapshot_of_files("tree", generate(folder).files)

    return make
