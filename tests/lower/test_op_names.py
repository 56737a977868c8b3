"""An op, a kernel and a launcher may have one name in the source; Python has one namespace for them."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.pipeline import generate

SOURCE = """\
__global__ void twice(float* out, const float* x, int n) { if (threadIdx.x < n) out[threadIdx.x] = 2 * x[threadIdx.x]; }
void run(float* out, const float* x, int n) { twice<<<1, n>>>(out, x, n); }
"""
ENTRY = '''\
name = "{name}"
layer = "Twice"
summary = "Twice the input."
source = "twice.cu"
launchers = ["run"]
[inputs]
inp = {{ shape = "*", doc = "any shape" }}
[outputs]
out = {{ shape = "*", doc = "the shape of `inp`" }}
[forward]
recipe = """
out = empty_like(inp)
run(out, inp, N)
"""
[backward]
gradients = {{ inp = "dinp" }}
recipe = """
dinp = empty_like(dout)
run(dinp, dout, N)
"""
[reference]
forward = "out = 2 * inp"
backward = "dinp = 2 * dout"
'''


@pytest.mark.parametrize(("name", "kernel"), [("double", "twice"), ("twice", "twice_kernel")])
def test_the_kernel_makes_way_for_the_op(tmp_path: pathlib.Path, name: str, kernel: str) -> None:
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(ENTRY.format(name=name))
    generated = generate(tmp_path)
    assert generated.diagnostics == ()
    module = generated.files[f"{name}.py"]
    assert f"\n{kernel} = Kernel(" in module
    assert f"plan.launch({kernel}, " in module
    assert f"\ndef {name}(inp: " in module


def test_an_op_with_the_name_of_its_launcher_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(ENTRY.format(name="run"))
    generated = generate(tmp_path)
    (said,) = map(str, generated.diagnostics)
    assert said.startswith("twice.toml:1:1: error: run is a launcher of twice.cu too: give the op another name")
    assert "layers.py" not in generated.files
    assert "def run(plan: Plan" in generated.files["twice.py"]
