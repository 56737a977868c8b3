"""``diff --only``: a part of two sides, whatever these are."""

from __future__ import annotations

import pathlib

import pytest
from click.testing import CliRunner

from llmc2py.cli import cli
from llmc2py.diagnostics import UsageError
from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.upstream.sides import difference

KERNEL = "__global__ void {name}(float* out, const float* inp, int n) {{ if (n > 1) out[threadIdx.x] = {value}; }}\n"
ENTRY = '''\
name = "op"
layer = "Layer1"
summary = "An op."
source = "a.cu"
kernels = ["one"]
inputs = { inp = "* C" }
outputs = { out = "* C" }
[forward]
recipe = """
out = empty_like(inp)
one[1, 32](out, inp, N)
"""
[reference]
forward = "out = inp"
'''
OLD = {"a.cu": KERNEL.format(name="one", value="inp[0]") + KERNEL.format(name="two", value="inp[1]"),
       "b.cu": KERNEL.format(name="three", value="inp[2]"), "op.toml": ENTRY}  # fmt: skip
NEW = {"a.cu": KERNEL.format(name="one", value="3 * inp[0]") + KERNEL.format(name="two", value="4 * inp[1]"),
       "b.cu": KERNEL.format(name="three", value="5 * inp[2]") + KERNEL.format(name="four", value="inp[2]"),
       "op.toml": ENTRY}  # fmt: skip


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Folders of sources, and packages of them."""
    root = tmp_path_factory.mktemp("sides")
    for name, files in (("old", OLD), ("new", NEW)):
        (root / name).mkdir()
        for file, text in files.items():
            (root / name / file).write_text(text)
        write_package(root / f"{name}_package", generate(root / name).files)
    pairs = {"sources": ("old", "new"), "packages": ("old_package", "new_package"), "mixed": ("old_package", "new")}
    return {kind: (str(root / old), str(root / new)) for kind, (old, new) in pairs.items()}


def changed(sides: tuple[str, str], *only: str) -> set[str]:
    return {one.name for one in difference(*sides, only=only).changes}


@pytest.mark.parametrize("kind", ["sources", "packages", "mixed"])
@pytest.mark.parametrize(
    ("only", "names"),
    [
        ((), {"one", "two", "three", "four"}),
        (("Layer1",), {"one", "two"}),
        (("op",), {"one", "two"}),
        (("a.cu",), {"one", "two"}),
        (("two",), {"two"}),
        (("t*",), {"two", "three"}),
        (("four",), {"four"}),
        (("Layer*", "four"), {"one", "two", "four"}),
    ],
)
def test_what_is_compared(sides, kind: str, only: tuple[str, ...], names: set[str]) -> None:
    assert changed(sides[kind], *only) == names


@pytest.mark.parametrize("kind", ["sources", "packages", "mixed"])
def test_a_slip_is_told(sides, kind: str) -> None:
    with pytest.raises(UsageError, match=r"--only thre: no layer, .* has such a name; did you mean three\?"):
        difference(*sides[kind], only=["one", "thre"])


@pytest.mark.parametrize("glob", ["Layer1", "op", "Layer*", "a.cu"])
def test_a_part_of_a_tree_can_be_named_alike(sides, glob: str) -> None:
    tree = pathlib.Path(sides["sources"][0])
    made = generate(tree, only=[glob])
    assert {kernel.name for kernel in made.library.kernels} == {"one", "two"}
    assert ("layers.py" in made.files) == (glob != "a.cu")


def test_the_command(sides) -> None:
    old, new = sides["packages"]
    result = CliRunner().invoke(cli, ["diff", old, new, "--only", "two"])
    assert result.exit_code == 1
    assert "two" in result.stdout
    assert "three" not in result.stdout
    assert CliRunner().invoke(cli, ["diff", old, old, "--only", "two"]).exit_code == 0
    assert CliRunner().invoke(cli, ["diff", old, new, "--only", "twos"]).exit_code == 2


def test_diagnostics_of_other_parts_are_spared(tmp_path: pathlib.Path) -> None:
    bad = "__global__ void odd(float** p) {}\n"
    for name, files in (("old", OLD), ("new", NEW | {"b.cu": NEW["b.cu"] + bad})):
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    assert [item.span.file for item in difference(old, new).diagnostics] == ["b.cu"]
    assert difference(old, new, only=["a.cu"]).diagnostics == ()
    assert [item.span.file for item in difference(old, new, only=["b.cu"]).diagnostics] == ["b.cu"]
