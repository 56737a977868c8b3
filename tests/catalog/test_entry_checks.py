"""What an entry says is checked when a package is generated: each kind of mistake, at its line and column."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from click.testing import CliRunner

from llmc2py.catalog import builtin_entries
from llmc2py.cli import cli
from llmc2py.lower.refcode import check_reference
from llmc2py.pipeline import generate

SOURCE = """\
__global__ void scale_kernel(float* out, const float* inp, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * inp[i];
}
void scale_forward(float* out, const float* inp, float factor, int n) {
    scale_kernel<<<(n + 255) / 256, 256>>>(out, inp, factor, n);
}
void scale_cpu(float* out, const float* inp, float factor, int n) {
    for (int i = 0; i < n; i++) out[i] = factor * inp[i];
}
"""
ENTRY = '''\
name = "scaled"
layer = "Scale"
summary = "The input times a factor and a weight."
source = "scale.cu"
launchers = ["scale_forward"]
kernels = ["scale_kernel"]
wide = ["scale_kernel"]
variants = [{ file = "scale.cu", launchers = "scale_f*", reference = "forward", call = "(out, inp, factor, N)" }]
cases = [{ lead = [2], C = 3, factor = 2.0 }]
[sizes]
C = "max(block_size, 3)"
lead = "C"
[inputs]
inp = "* C"
ids = { shape = "*", below = "V" }
[parameters]
weight = "V C"
[options]
factor = { type = "float", default = 1.5 }
[outputs]
out = "* C"
[intermediates]
kept = { shape = "N", when = "factor > 1", otherwise = "inp" }
[extents]
scale_forward = { out = "n", inp = ["m", "n"] }
[forward]
saves = ["inp", "kept"]
recipe = """

kept = empty((N, C), float32)
blocks = ceil_div(N * C, 256)
scale_kernel[blocks, 256](kept, inp, factor, N * C)
out = copy(inp)
scale_forward(out, inp, factor, N * C)
"""
[backward]
gradients = { inp = "dinp", weight = "dweight" }
stochastic = ["weight"]
recipe = """
dinp = copy(dout)
dweight = copy(dout)
"""
[reference]
forward = """
rows = [row for row in weight[ids]]
out = inp * factor * np.stack(rows)
"""
backward = """
dinp = dout * factor * weight[ids]
dweight = np.zeros_like(weight)
np.add.at(dweight, ids, dout * inp * stored(factor))
"""
reduction = "C"
c = [{ function = "scale_cpu", file = "scale.cu", call = "scale_cpu(out, inp, factor, N)" }]
'''


def made_of(folder: pathlib.Path, entry: str = ENTRY):
    (folder / "scale.cu").write_text(SOURCE)
    (folder / "scale.toml").write_text(entry)
    return generate(folder)


def test_the_entry_is_right_as_it_is(tmp_path):
    made = made_of(tmp_path)
    assert made.diagnostics == ()
    assert "class Scale(" in made.files["layers.py"]
    assert "scale_cpu" in made.files["references.py"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"scale.cu"\nlaunchers', '"scales.cu"\nlaunchers',
         "4:1: the tree has no source file scales.cu; did you mean scale.cu?"),
        ('["scale_kernel"]\nwide', '["scale_kernl"]\nwide', "6:12: scale.cu has no launcher or kernel scale_ker"),
        ('"(out, inp, factor, N)"', '"(out, inp, factor ^, N)"', "8:81: (out, inp, factor ^, N) is no list of"),
        ("C = 3,", "D = 3,", "9:24: cases: D is neither `lead` nor a letter or option of the op"),
        ("block_size, 3", "blocksize, 3", "11:10: blocksize is none of the sizes"),
        ("max(block_size, 3)", "max(block_size, 3", "11:9: 'max(block_size, 3' is no expression"),
        ('lead = "C"', 'lead = "D"', "12:1: lead: sizes has no D"),
        ('below = "V"', 'below = "W"', "15:22: ids: below names a letter or option, and W is none"),
        ("default = 1.5", 'default = "a"', "19:28: option factor: its default \"a\" is no float"),
        ('"float", default = 1.5', '"int", default = true', "19:26: option factor: its default True is no int"),
        ("default = 1.5", "least = 1", "19:28: option factor: least is for options of the type int, and"),
        ('"float", default = 1.5', '"int", choices = ["a"]', "19:26: option factor: choices is for options of the"),
        ('"float", default = 1.5', '"int", least = 3, default = 2', "19:37: option factor: its default 2 is none of"),
        ('"float", default = 1.5', '"str", choices = ["a"], default = "b"', "19:43: option factor: its default"),
        ('"* C"\n[inter', '"* C~4"\n[inter', "21:1: shape of out: axes of intermediates alone are rounded up"),
        ("factor > 1", "factr > 1", "23:31: factr is none of the options"),
        ("factor > 1", "factor >", "23:31: 'factor >' is no expression"),
        ('otherwise = "inp"', 'otherwise = "inn"', "23:44: kept: otherwise names an input or output, and inn"),
        ('["m", "n"]', '"n +"', "25:37: 'n +' is no expression"),
        ('["m", "n"]', '["m", "n +"]', "25:43: 'n +' is no expression"),
        ('saves = ["inp", "kept"]', 'saves = ["inp", "kpt"]', "27:17: forward has no kpt"),
        ('saves = ["inp", "kept"]', 'saves = ["inp"]', "23:1: kept is described as saved, and forward does not"),
        ("[blocks, 256]", "[blocks / 2, 256]",
         "32:14: recipe: the grid is counted, and blocks / 2 is no whole number: `//` and ceil_div(a, b) give one"),
        ("ceil_div(N * C, 256)", "N * C / 256", "32:14: recipe: the grid is counted, and blocks is no whole number"),
        ("ceil_div(N * C, 256)", "-max(N, C / 2)", "32:14: recipe: the grid is counted, and blocks is no whole"),
        ("ceil_div(N * C, 256)", "N if C > 3 else 2.5", "32:14: recipe: the grid is counted, and blocks is no whole"),
        ("[blocks, 256]", "[factor, 256]", "32:14: recipe: the grid is counted, and factor is no whole number"),
        ("[blocks, 256]", "[(blocks, 2.0), 256]", "32:23: recipe: the grid is counted, and 2.0 is no whole number"),
        ("[blocks, 256]", "[None, 256]", "32:14: recipe: the grid is counted, and None is no whole number"),
        ("[blocks, 256]", "[0, 256]", "32:14: recipe: the grid is 0; nothing would be launched"),
        ("[blocks, 256]", "[blocks, 2 - 2]", "32:22: recipe: the block is 0; nothing would be launched"),
        ("[blocks, 256]", "[blocks, (32, -1)]", "32:27: recipe: the block is -1; nothing would be launched"),
        ("[blocks, 256]", "[blocks, (32, 33)]", "32:22: recipe: the block has 1056 threads; CUDA allows 1024"),
        ("[blocks, 256]", "[blocks, (32, 2, 2, 2)]", "32:22: recipe: a block has one to three axes"),
        ("[blocks, 256]", "[blocks, 256, 8 / 2]", "32:27: recipe: the shared memory is counted, and 8 / 2 is no"),
        ("[blocks, 256]", "[blocks, 256, 0, 0]", "32:1: recipe: a kernel is launched with [grid, block] or [grid,"),
        ("factor, N * C)\n\"", "factor, N * C / 1)\n\"",
         "34:33: recipe: scale_forward takes int n, and N * C / 1 is no whole number"),
        ("empty((N, C)", "empty((N, C / 1)", "30:18: recipe: the lengths of axes are counted, and C / 1 is no whole"),
        ('"dinp", weight = "dweight"', '"dinp", weight = "dw"', "37:29: backward computes no dw"),
        ('"dinp", weight = "dweight"', '"dinp"', "37:1: backward gives no gradient of weight"),
        ('{ inp = "dinp", weight = "dweight" }', "{}", "37:1: backward gives no gradient of inp, weight"),
        ('weight = "dweight"', 'weight = "dweight", ids = "dids"',
         "37:49: backward gives a gradient of ids; gradients are of inp, weight"),
        ('stochastic = ["weight"]', 'stochastic = ["ids"]', "38:15: stochastic: ids has no gradient"),
        ("out = inp * factor * np", "outt = inp * factor * np",
         "44:1: reference.forward assigns no out; did you mean outt?"),
        ("np.stack", "np.stak", "46:22: reference.forward: numpy has no stak; did you mean stack?"),
        ("np.stack(rows)", "np.linalg.nrm(rows)", "46:22: reference.forward: numpy.linalg has no nrm; did you"),
        ("weight[ids]]", "weigth[ids]]", "45:24: reference.forward: weigth is not known here; did you mean weight?"),
        ("for row in weight", "for it in weight", "45:9: reference.forward: row is not known here"),
        ("np.stack(rows)\n", "np.stack(rows\n", "46:30: reference.forward: '(' was never closed"),
        ("out = inp * factor *", "return inp * factor *", "46:1: reference.forward: a reference assigns arrays"),
        ("dinp = dout * factor *", "dinpp = dout * factor *",
         "48:1: reference.backward assigns no dinp; did you mean dinpp?"),
        ("dout * factor * weight", "out * factor * weight", "49:8: reference.backward: out is not known here"),
        ('reduction = "C"', 'reduction = "D"', "53:1: reduction: no axis is D"),
        ("call = \"scale_cpu(out, inp, factor, N)", "call = \"scale_cpu(out, inp, N)",
         "54:51: scale_cpu takes (double* out, const double* inp, double factor, int n), 3 arguments are given"),
        ("call = \"scale_cpu(", "call = \"scale(", "54:51: the call is of scale, the function is scale_cpu"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, old, new, said):
    assert old in ENTRY
    made = made_of(tmp_path, ENTRY.replace(old, new, 1))
    (line,) = (str(item) for item in made.diagnostics if item.span.file == "scale.toml")
    place, message = said.split(" ", 1)
    assert line.startswith(f"scale.toml:{place} error: {'' if message.startswith('recipe') else 'scaled: '}{message}")
    assert line.endswith("; the layer Scale is left out")
    assert "layers.py" not in made.files
    assert "scale.py" in made.files


def test_the_command_generates_all_else_and_exits_with_1(tmp_path):
    made_of(tmp_path, ENTRY.replace("np.stack", "np.stak"))
    result = CliRunner().invoke(cli, ["generate", str(tmp_path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "scale.toml:46:22: error: scaled: reference.forward: numpy has no stak" in result.stderr
    assert (tmp_path / "out" / "scale.py").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('wide = ["scale_kernel"]', 'wide = ["scale_kernl"]',
         "7:9: there is no kernel scale_kernl; did you mean scale_kernel?"),
        ('"scale_f*"', '"scales_f*"', "8:13: there is no launcher scales_f* in scale.cu"),
        ('{ file = "scale.cu"', '{ file = "scales.cu"', "8:13: there is no launcher scale_f* in scales.cu"),
        ("scale_forward = {", "scale_forwrd = {",
         "25:1: scale.cu has no launcher scale_forwrd; did you mean scale_forward?"),
        ("scale_forward = {", '"scales.cu" = {', "25:1: there is no launcher in scales.cu; did you mean scale.cu?"),
        ('out = "n",', 'outt = "n",', "25:19: no parameter of scale_forward is named outt; did you mean out?"),
        ('out = "n",', 'out = "nn",', "25:19: no parameter of scale_forward is named nn; did you mean n?"),
        ('function = "scale_cpu"', 'function = "scale_gpu"', "54:6: there is no C reference scale_gpu in scale.cu"),
    ],
)  # fmt: skip
def test_what_has_nothing_to_be_applied_to(tmp_path, old, new, said):
    """The layer stays, and the user is told."""
    entry = ENTRY.replace(old, new, 1).replace(
        'call = "scale_cpu(', f'call = "{"scale_gpu" if "gpu" in new else "scale_cpu"}('
    )
    made = made_of(tmp_path, entry)
    (line,) = map(str, made.diagnostics)
    place, message = said.split(" ", 1)
    assert line.startswith(f"scale.toml:{place} warning: scaled: {message}")
    assert "class Scale(" in made.files["layers.py"]


def test_nothing_of_the_kind_is_said_of_what_only_leaves_out(tmp_path):
    other = SOURCE.replace("scale_", "other_")
    (tmp_path / "other.cu").write_text(other)
    entry = ENTRY.replace(
        'variants = [{ file = "scale.cu", launchers = "scale_f*"',
        'variants = [{ file = "other.cu", launchers = "other_f*"',
    )
    entry = entry.replace(
        '"scale_cpu", file = "scale.cu", call = "scale_cpu', '"other_cpu", file = "other.cu", call = "other_cpu'
    )
    assert made_of(tmp_path, entry).diagnostics == ()
    assert generate(tmp_path, only=["scaled"]).diagnostics == ()


def test_a_source_that_is_not_there_is_told_of_entries_that_are_named_too(tmp_path):
    (tmp_path / "scale.cu").write_text(SOURCE)
    entry = tmp_path / "mine" / "op.toml"
    entry.parent.mkdir()
    entry.write_text(ENTRY.replace('source = "scale.cu"', 'source = "scal.cu"'))
    (said,) = map(str, generate(tmp_path, [entry]).diagnostics)
    assert said.startswith("op.toml:4:1: error: scaled: the tree has no source file scal.cu; did you mean scale.cu?")


@pytest.mark.parametrize("entry", builtin_entries(), ids=lambda entry: entry.name)
def test_references_of_built_in_entries_are_right(entry):
    """They are not looked at when a package is generated."""
    check_reference(dataclasses.replace(entry, is_builtin=False))
