"""Entries without a layer: what of them is checked, and what is generated."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.diagnostics import UsageError
from llmc2py.pipeline import generate

SOURCE = """\
__global__ void twice_kernel(float* out, const float* x, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = 2 * x[threadIdx.x];
}
void twice1(float* out, const float* x, int n) { twice_kernel<<<1, n>>>(out, x, n); }
"""
ENTRY = """\
name = "twice"
summary = "Twice the input."
source = "twice.cu"
variants = [
    { file = "twice.cu", launchers = "twice[0-9]*", reference = "forward", call = "(out, x, C)", blocks = [32] },
]
[sizes]
C = 128
[inputs]
x = "C"
[outputs]
out = "C"
[reference]
forward = "out = 2 * x"
"""


def made_of(folder: pathlib.Path, entry: str, only: tuple[str, ...] = ()):
    (folder / "twice.cu").write_text(SOURCE)
    (folder / "other.cu").write_text(SOURCE.replace("twice", "thrice"))
    (folder / "twice.toml").write_text(entry)
    return generate(folder, only=only)


def test_an_entry_without_a_layer_has_a_reference_and_no_module(tmp_path):
    files = made_of(tmp_path, ENTRY).files
    assert "twice_forward(x: Array" in files["references.py"]
    spec = 'OpSpec(name="twice", inputs={"x": ("C",)}, outputs={"out": ("C",)})'
    assert f'"twice": Check({{"C": "128"}}, {spec})' in files["references.py"]
    assert "blocks=(32,)" in files["references.py"]
    assert "layers.py" not in files
    assert {name for name in files if name.endswith(".cu")} == {"twice.cu", "other.cu"}


def test_it_comes_with_its_file_alone(tmp_path):
    assert "references.py" in made_of(tmp_path, ENTRY, ("twice.cu",)).files
    assert "references.py" not in made_of(tmp_path, ENTRY, ("other.cu",)).files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('x = "C"', 'x = "T C"', "twice: shape of x: sizes has no T; its launchers are not checked"),
        ('x = "C"', 'x = { shape = "C", below = "V" }', "twice: shape of x: sizes has no V"),
        ("2 * x", "2 *", "twice.toml:14:21: error: twice: reference.forward: invalid syntax; its launchers"),
        ('x = "C"\n', "", "an op has at least one input and output"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, old, new, message):
    made = made_of(tmp_path, ENTRY.replace(old, new))
    assert any(message in str(item) for item in made.diagnostics)
    assert "references.py" not in made.files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('summary = "Twice the input."\n', "", "lacks summary"),
        ("[sizes]", 'launchers = ["twice1"]\n[sizes]', "has the unknown key launchers; it takes name, "),
        ("blocks", "block", r"variants\[0\] has the unknown key block; did you mean blocks"),
        ("[sizes]\nC = 128\n", "", "lacks layer, forward"),
    ],
)
def test_keys_that_are_missing_or_unknown_are_named(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        made_of(tmp_path, ENTRY.replace(old, new))
