"""What a definition or a module of a package reaches, by texts and files alone."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.verify.reach import Sources, UnknownReachError

LAYERS = '''
"""Words."""
import numpy as np
from llmc2py.runtime import Layer, Tensor
from .one import first
from .two import second

SCALE = 2
OTHER = 3

def helper():
    return SCALE

class One(Layer):
    """Words."""
    def forward(self):
        from .late import third
        return first, helper

class Two(Layer):
    kernels = "two.cu"
    shape: "Tensor" = second
'''
FILES = {
    "__init__.py": "",
    "layers.py": LAYERS,
    "one.py": "from .part import deep",
    "two.py": "from llmc2py.runtime.ops import take",
    "two.cu": "kernels",
    "late.py": "third = 1",
    "part/__init__.py": "",
    "part/deep.py": "from ..base import lowest\nfrom . import beside\nFILE = 'deep.cu'",
    "part/deep.cu": "kernels",
    "part/beside.py": "",
    "base.py": "lowest = 1",
}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "part").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def files(folder: pathlib.Path, *names: str) -> set[str]:
    found = Sources(folder).definitions("layers", names).files
    return {path.relative_to(folder).as_posix() for path in found}


def test_a_class_reaches_what_it_names_and_imports_however_deep(folder):
    common = {"layers.py", "__init__.py"}
    deep = {"one.py", "part/__init__.py", "part/deep.py", "part/deep.cu", "part/beside.py", "base.py", "late.py"}
    assert files(folder, "One") == common | deep
    assert files(folder, "Two") == common | {"two.py", "two.cu"}
    assert files(folder, "OTHER") == common


def changed(folder: pathlib.Path, before: str, after: str, name: str) -> bool:
    first = Sources(folder).definitions("layers", [name])
    assert before in LAYERS
    (folder / "layers.py").write_text(LAYERS.replace(before, after))
    return Sources(folder).definitions("layers", [name]) != first


@pytest.mark.parametrize(
    ("before", "after", "name", "expected"),
    [
        ("SCALE = 2", "SCALE = 4", "One", True),
        ("SCALE = 2", "SCALE = 4", "Two", False),
        ("return SCALE", "return SCALE + 1", "One", True),
        ("OTHER = 3", "OTHER = 4", "One", False),
        ("OTHER = 3", "OTHER = 3\nOTHER += 1", "One", True),
        ("OTHER = 3", "OTHER = 3\nOne.scale = OTHER", "One", True),
        ("import Layer, Tensor", "import Layer, Tensor, Function", "One", False),
        ("import Layer, Tensor", "import Tensor\nfrom llmc2py.runtime.layer import Layer", "One", True),
        ("import Layer, Tensor", "import Tensor, Function as Layer", "Two", True),
        ('"""Words."""\nimport', '"""Other words."""\nimport', "One", False),
        ("class Two", "# Words\n\n\nclass Two", "Two", False),
        ("class Two(Layer):", "class Two(Layer):\n    more = 1", "Two", True),
        ("class Two(Layer):", "class Two(Layer):\n    more = 1", "One", False),
    ],
)
def test_texts_are_those_that_a_name_needs(folder, before, after, name, expected):
    assert changed(folder, before, after, name) is expected


@pytest.mark.parametrize("name", ["part/deep.cu", "part/deep.py", "base.py", "late.py", "part/__init__.py"])
def test_the_content_of_what_is_reached_counts(folder, name):
    first = Sources(folder).definitions("layers", ["One"])
    (folder / name).write_text(f"{FILES[name]}\n")
    assert Sources(folder).definitions("layers", ["One"]) != first
    assert Sources(folder).definitions("layers", ["Two"]) == Sources(folder).definitions("layers", ["Two"])


def test_modules_that_import_each_other_end(folder):
    (folder / "base.py").write_text("from .one import deep")
    assert "part/deep.cu" in {path.relative_to(folder).as_posix() for path in Sources(folder).module("part.deep").files}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("base.py", "import os"),
        ("base.py", "import numpy.random, cupy"),
        ("base.py", "from llmc2py.adapters import torch"),
        ("base.py", "from llmc2py import runtime_of_another"),
        ("base.py", "from .. import above"),
        ("base.py", "from .nowhere import nothing"),
        ("base.py", "def later():\n    import socket"),
        ("base.py", "no python"),
        ("layers.py", LAYERS + "\nif SCALE:\n    import os\n"),
    ],
)
def test_what_cannot_be_told_is_an_error(folder, file, text):
    (folder / file).write_text(text)
    with pytest.raises(UnknownReachError):
        Sources(folder).definitions("layers", ["One"])


def test_names_and_modules_that_are_not_there_are_errors(folder):
    with pytest.raises(UnknownReachError, match="nothing defines Three"):
        Sources(folder).definitions("layers", ["One", "Three"])
    with pytest.raises(UnknownReachError, match=r"no module part\.other"):
        Sources(folder).module("part.other")
    with pytest.raises(UnknownReachError, match=r"gone\.c"):
        Sources(folder).file("gone.c")


def test_all_names_of_a_module_may_be_imported(folder):
    (folder / "layers.py").write_text(LAYERS.replace("from .two import second", "from .two import *"))
    assert {"two.py", "late.py"} <= files(folder, "One")
