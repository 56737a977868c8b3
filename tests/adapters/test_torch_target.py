"""``--target torch``: what is written, what the lock and later runs make of it; PyTorch is not needed."""

from __future__ import annotations

import ast
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from llmc2py.adapters.shapes import bind_sizes, shape_of
from llmc2py.cli import cli
from llmc2py.pipeline import generate
from llmc2py.runtime import OpSpec

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUFF = pathlib.Path(sys.executable).parent / "ruff"


@pytest.fixture
def source(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    shutil.copytree(ROOT / "examples" / "relu", tmp_path / "relu", ignore=shutil.ignore_patterns("generated"))
    monkeypatch.chdir(tmp_path)
    return pathlib.Path("relu")


@pytest.fixture(scope="module")
def text() -> str:
    return generate(ROOT / "vendor" / "llm.c", targets=["torch"]).files["torch_layers.py"]


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_the_target_is_kept_until_another_is_asked_for(source: pathlib.Path) -> None:
    module, lock = source / "generated" / "torch_layers.py", source / "generated" / "llmc2py.lock"
    assert run("generate", source).exit_code == 0
    assert not module.exists()
    assert run("generate", source, "--target", "torch").exit_code == 0
    assert json.loads(lock.read_text())["options"]["targets"] == ["torch"]
    assert "torch_layers.py" in json.loads(lock.read_text())["files"]
    before = module.read_text()
    assert run("generate", source, "--check").exit_code == 0
    assert run("generate", source).exit_code == 0
    assert module.read_text() == before
    differs = run("generate", source, "--target", "cupy", "--check")
    assert differs.exit_code == 1
    assert "--- a/torch_layers.py" in differs.stdout
    assert run("generate", source, "--target", "cupy").exit_code == 0
    assert not module.exists()


def test_unknown_targets_are_bad_use(source: pathlib.Path) -> None:
    result = run("generate", source, "--target", "jax")
    assert result.exit_code == 2
    assert "'jax' is not one of 'cupy', 'torch'" in result.output


def test_a_package_without_layers_has_no_module(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float* o) { o[0] = 1; }\n")
    assert "torch_layers.py" not in generate(tmp_path, targets=["torch"]).files


@pytest.mark.parametrize("command", [["check", "--quiet"], ["format", "--check", "--quiet"]])
def test_the_module_is_as_a_formatter_and_a_linter_want_it(text: str, command: list[str]) -> None:
    done = subprocess.run(
        [RUFF, *command, "--stdin-filename", "generated/torch_layers.py", "-"],
        input=text,
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_layer_is_there_with_signature_and_docstring(text: str) -> None:
    module = ast.parse(text)
    classes = {one.name: one for one in module.body if isinstance(one, ast.ClassDef)}
    layers = ast.parse((ROOT / "generated" / "layers.py").read_text())
    assert set(classes) == {one.name for one in layers.body if isinstance(one, ast.ClassDef)}
    functions = [one for one in ast.walk(module) if isinstance(one, ast.FunctionDef)]
    assert len(functions) > 2 * len(classes)
    for one in (*classes.values(), *functions):
        assert ast.get_docstring(one)
    for one in functions:
        assert one.returns is not None
        assert all(each.annotation is not None for each in one.args.args if each.arg != "self")


def test_what_writes_to_its_inputs_is_no_option(text: str) -> None:
    assert "inplace: bool" not in text
    assert 'fixed={"inplace": False}' in text


SPEC = OpSpec(
    name="op",
    inputs={"inp": ("...", "T", "3C"), "other": ("...",)},
    parameters={"weight": ("O", "C"), "bias": ("O",)},
    outputs={"out": ("...", "T", "O")},
    optional=("bias",),
)


def test_sizes_are_bound_by_letters() -> None:
    shapes = {"inp": (2, 5, 7, 12), "other": (2, 5), "weight": (3, 4), "bias": None}
    lead, sizes = bind_sizes(SPEC, shapes, {"NH": 2})
    assert (lead, sizes) == ((2, 5), {"T": 7, "C": 4, "O": 3})
    assert shape_of(("...", "T", "O"), lead, sizes) == (2, 5, 7, 3)
    assert shape_of(("3", "N", "T~4", "2C"), lead, sizes) == (3, 10, 8, 8)
    assert shape_of((), lead, sizes) == ()


def test_shapes_that_do_not_fit_are_refused() -> None:
    shapes = {"inp": (12,), "other": (), "weight": (3, 4), "bias": (3,)}
    with pytest.raises(ValueError, match=r"op: `inp` has shape \(12,\); \.\.\. x T x 3C is needed"):
        bind_sizes(SPEC, shapes, {})
    with pytest.raises(ValueError, match=r"op: `bias` has shape \(3, 1\)"):
        bind_sizes(SPEC, shapes | {"inp": (1, 12), "bias": (3, 1)}, {})
    with pytest.raises(ValueError, match="'C\\+1' is no dimension"):
        shape_of(("C+1",), (), {"C": 1})
