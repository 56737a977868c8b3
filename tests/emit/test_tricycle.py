"""The module of layers for Tricycle as text: what it holds, that it is tidy, and when there is none."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

from llmc2py.pipeline import generate

ROOT = pathlib.Path(__file__).parents[2]
FILE = "tricycle_layers.py"


@pytest.fixture(scope="module")
def text() -> str:
    return generate(ROOT / "vendor" / "llm.c", only=["gelu", "linear", "fused_residual"], targets=["tricycle"]).files[
        FILE
    ]


def test_it_stands_for_tricycles_classes_and_has_the_others(text: str) -> None:
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    bases = {name: ast.unparse(node.bases[0]) for name, node in classes.items()}
    assert bases == {
        "DenseFunction": "Function",
        "Dense": "tricycle.layers.Dense",
        "GeLU": "tricycle.activation.GeLU",
        "FusedResidualLayerNorm": "GeneratedLayer",
        "Linear": "GeneratedLayer",
    }
    assert all(ast.get_docstring(node) for node in classes.values())


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_it_is_as_the_linter_and_the_formatter_want_it(text: str, command: list[str]) -> None:
    arguments = [*command, "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", f"generated/{FILE}", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments], input=text, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_layer_of_another_form_takes_no_place(tmp_path: pathlib.Path) -> None:
    """A ``Softmax`` with weights is not Tricycle's, and its name is taken."""
    (tmp_path / "scaled.cu").write_text(
        "__global__ void scale_columns(float* out, const float* inp, const float* weight, int N, int C) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < N) out[i] = inp[i] * weight[i % C];\n"
        "}\n",
        encoding="utf-8",
    )
    (tmp_path / "scaled.toml").write_text(
        'name = "scaled"\nlayer = "Softmax"\nsummary = "Scaled."\nsource = "scaled.cu"\nkernels = ["scale_columns"]\n'
        '[inputs]\ninp = { shape = "* C" }\n[parameters]\nweight = { shape = "C" }\n'
        '[outputs]\nout = { shape = "* C" }\n'
        '[forward]\nrecipe = """\nout = empty_like(inp)\n'
        'scale_columns[ceil_div(N * C, 256), 256](out, inp, weight, N * C, C)\n"""\n'
        '[reference]\nforward = "out = inp * weight"\n',
        encoding="utf-8",
    )
    files = generate(tmp_path, targets=["tricycle"]).files
    assert "class Softmax(Layer):" in files["layers.py"]
    assert FILE not in files


def test_kernels_without_layers_make_no_module(tmp_path: pathlib.Path) -> None:
    (tmp_path / "fill.cu").write_text(
        "__global__ void fill(float* out, int N) { if (threadIdx.x < N) out[threadIdx.x] = 1; }\n", encoding="utf-8"
    )
    files = generate(tmp_path, targets=["tricycle"]).files
    assert "fill.py" in files
    assert FILE not in files
