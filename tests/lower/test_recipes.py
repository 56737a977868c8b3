"""Recipes of the catalogue: what is taken, what it is filled up to, and where a mistake is said to be."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.emit.functions import OPS
from llmc2py.ir.library import Intent, Parameter
from llmc2py.ir.names import OP_NAMES, RUNTIME_NAMES
from llmc2py.ir.types import CType
from llmc2py.lower.recipes import _DTYPES, _PLACED, _PLAIN, Callable, RecipeLowering
from llmc2py.pipeline import generate
from llmc2py.runtime.dtypes import PRECISIONS


def parameters(*specs: tuple[str, str, Intent | None]) -> tuple[Parameter, ...]:
    """``("float*", "out", Intent.OUT)`` as parameters."""
    place = SourceSpan("k.cu", 1)
    found = []
    for spelled, name, intent in specs:
        base = spelled.removeprefix("const ").rstrip("*")
        found.append(
            Parameter(name, CType(base, spelled.count("*"), spelled.startswith("const ")), place, intent=intent)
        )
    return tuple(found)


UNARY = parameters(("float*", "out", Intent.OUT), ("const float*", "x", Intent.IN), ("int", "n", None))
CALLABLES = {
    "act": Callable("act", False, UNARY, {}),
    "act8": Callable("act8", False, UNARY, {"n": {"float32": 8, "float16": 16, "bfloat16": 16}}),
    "act1": Callable("act1", False, UNARY, {"n": {"float32": 1, "float16": 1, "bfloat16": 1}}),
    "unknown": Callable("unknown", False, parameters(("float*", "p", None), ("const float*", "q", None)), {}),
    "copy": Callable("copy_kernel", True, UNARY, {}),
}


VALUES = frozenset({"N", "C", "T", "lead", "dtype", "NH", "mode"})


def lower(text: str, known: Any = ("inp", "weight"), line: int = 1, protected: Any = None) -> Any:
    """Lower a recipe of the layer Op, whose sizes and options are ``VALUES``."""
    protected = frozenset(known if protected is None else protected)
    lowering = RecipeLowering("op.toml", "Op", CALLABLES, "inp", protected, {"inp": 0, "weight": 1}, VALUES)
    return lowering.lower(text, set(known), line)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("out = empty_like(inp)", ["out = empty_like(inp)"]),
        ("out = empty((N, C), float32)", ["out = empty((N, C), float32, inp)"]),
        ("out = zeros((N,), int32)\nact(out, inp, N)", ["out = zeros((N,), int32, inp)", "act(out, inp, N)"]),
        ("d = accumulator(weight)", ["d = accumulator(ctx, 1, weight)"]),
        ("n = max(N, 2 * C) % vector", ["n = max(N, 2 * C) % vector"]),
        ("n = ceil_div(N, 3) * device.warpSize", ["n = ceil_div(N, 3) * device_of(inp).warpSize"]),
        ("act(copy(inp), inp, inp.size)", ["act(copy(inp), inp, inp.size)"]),
        ("copy[N, (32, 2)](empty_like(inp), inp, N)", ["copy_kernel[N, (32, 2)](empty_like(inp), inp, N)"]),
        ("a = cast(as_float32(inp), weight)", ["a = cast(as_float32(inp), weight)"]),
        (
            "if N > 1:\n    a = zeros_like(inp)\nelse:\n    a = copy(inp)\nact(a, a, N)",
            ["if N > 1:", "    a = zeros_like(inp)", "else:", "    a = copy(inp)", "act(a, a, N)"],
        ),
    ],
)
def test_what_is_left_out_is_filled_in(text: str, lines: list[str]) -> None:
    assert list(lower(text).lines) == lines


def test_the_names_that_the_lines_use_are_noted() -> None:
    recipe = lower("a = empty((N,), float32)\ncopy[1, 2](a, inp, min(N, vector))\nd = device.warpSize")
    assert recipe.names == {"empty", "float32", "copy_kernel", "vector", "device_of"}


def test_elementwise_calls_with_the_quantum_of_the_launcher() -> None:
    recipe = lower("out = empty_like(inp)\nelementwise(act8, out, inp, N)")
    assert recipe.lines[1] == "elementwise(act8, (out, inp), N, ACT8_QUANTUM[dtype])"
    assert recipe.quanta == {"ACT8_QUANTUM": {"float32": 8, "float16": 16, "bfloat16": 16}}
    assert {"elementwise", "act8", "empty_like"} == recipe.names


@pytest.mark.parametrize("launcher", ["act", "act1"])
def test_elementwise_is_a_plain_call_where_any_count_will_do(launcher: str) -> None:
    recipe = lower(f"out = empty_like(inp)\nelementwise({launcher}, out, inp, N)")
    assert recipe.lines[1] == f"{launcher}(out, inp, N)"
    assert recipe.quanta == {}
    assert "elementwise" not in recipe.names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = nothing", "1:5: recipe: nothing is not known here"),
        ("a = copy(inp)\nb = a + other.size", "2:9: recipe: other is not known here"),
        ("a = sorted(inp)", "1:5: recipe: sorted() is no function of recipes"),
        ("a = inp.sum()", "1:5: recipe: inp.sum() is no function of recipes"),
        ("a = act(inp, inp, N)", "1:5: recipe: act() is no function of recipes"),
        (
            "acct(inp, inp, N)",
            "1:1: recipe: there is no launcher acct among those that the entry lists and the source has",
        ),
        (
            "act[1, 2](inp, inp, N)",
            "1:1: recipe: there is no kernel act among those that the entry lists and the source has",
        ),
        (
            "copy(inp, inp, N)",
            "1:1: recipe: there is no launcher copy among those that the entry lists and the source has",
        ),
        (
            "a = copy(inp)\nif N:\n    act(a, inp)",
            "3:5: recipe: act takes (float* out, const float* x, int n), 2 arguments are given",
        ),
        ("act(inp, inp, N)", "1:1: recipe: act writes to out; inp belongs to the caller: copy it first"),
        ("unknown(inp, weight)", "1:1: recipe: unknown writes to p; inp belongs to the caller: copy it first"),
        ("elementwise(act8)", "1:1: recipe: elementwise(launcher, arrays..., count) is taken"),
        (
            "elementwise(act8, copy(inp), N)",
            "1:1: recipe: act8 takes (float* out, const float* x, int n), 2 arguments are given",
        ),
        (
            "elementwise(act8, weight, inp, N)",
            "1:1: recipe: act8 writes to out; weight belongs to the caller: copy it first",
        ),
        ("inp.act(N)", "1:1: recipe: a launcher, or a kernel with [grid, block], is called"),
        ("copy[1](inp, inp, N)", "1:1: recipe: a launcher, or a kernel with [grid, block], is called"),
        ("for i in N:\n    a = i", "1:1: recipe: a recipe has assignments, calls and if alone"),
        ("a, b = inp, inp", "1:1: recipe: a recipe has assignments, calls and if alone"),
        ("a = b = inp", "1:1: recipe: a recipe has assignments, calls and if alone"),
        ("inp[0] = 1", "1:1: recipe: a recipe has assignments, calls and if alone"),
        ("a = inp\na b", "2:3: recipe: invalid syntax: 'a b'"),
        ("a = accumulator(N)", "1:5: recipe: accumulator(N): an input of the op is added to"),
        (
            "act8 = empty_like(inp)",
            "1:1: recipe: act8 is an array here and a kernel or launcher of the source: give the array another name",
        ),
    ],
)
def test_mistakes_have_a_place_and_a_reason(text: str, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        lower(text)
    assert str(caught.value) == f"op.toml:{said}"


def test_what_one_branch_alone_assigns_is_not_known_after_it() -> None:
    with pytest.raises(SourceError, match=r"^op.toml:3:5: recipe: a is not known here$"):
        lower("if N:\n    a = copy(inp)\nb = a")
    assert lower("if N:\n    a = copy(inp)\nelse:\n    a = inp\nb = a").lines[-1] == "b = a"


def test_an_input_with_the_name_of_a_launcher_is_refused() -> None:
    with pytest.raises(SourceError, match=r"^op.toml:7:1: recipe: act is an array here and a kernel or launcher"):
        lower("a = copy(act)", known=("inp", "act"), line=7)


def test_lines_are_counted_from_where_the_recipe_begins() -> None:
    with pytest.raises(SourceError, match=r"^op.toml:31:1: recipe: there is no launcher gone"):
        lower("a = copy(inp)\ngone(a)", line=30)


SOURCE = """\
__global__ void twice(float* out, const float* x, int n) { if (threadIdx.x < n) out[threadIdx.x] = 2 * x[threadIdx.x]; }
void run(float* out, const float* x, int n) { twice<<<1, n>>>(out, x, n); }
"""
ENTRY = '''\
name = "double_of"
layer = "Twice"
summary = "Twice the input."
source = "twice.cu"
launchers = ["run"]
[inputs]
inp = { shape = "*", doc = "any shape" }
[outputs]
out = { shape = "*", doc = "the shape of `inp`" }
[forward]
recipe = """
out = empty_like(inp)
run(out, inp, N)
"""
[backward]
gradients = { inp = "dinp" }
recipe = """

dinp = empty_like(dout)
run(dinp, dout, N)
"""
[reference]
forward = "out = 2 * inp"
backward = "dinp = 2 * dout"
'''


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("run(out, inp, N)", "run(out, N)", "13:1", "recipe: run takes (float* out, const float* x, int n), "),
        ("run(dinp, dout, N)", "ran(dinp, dout, N)", "20:1", "recipe: there is no launcher ran among "),
        ("run(dinp, dout, N)", "run(dinp, dout, M)", "20:17", "recipe: M is not known here"),
        ("run(dinp, dout, N)", "run(dout, dinp, N)", "20:1", "recipe: run writes to out; dout belongs "),
        ("dinp = empty_like(dout)", "dinp = (", "19:8", "recipe: '(' was never closed"),
        ("run(out, inp, N)", "run(out, inp, N)\nrun(out, inp)", "14:1", "recipe: run takes"),
        ('launchers = ["run"]', 'launchers = ["walk"]', "1:1", "twice.cu has no launcher or kernel walk"),
        ('gradients = { inp = "dinp" }', 'gradients = { inp = "d" }', "1:1", "backward computes no d;"),
        ('gradients = { inp = "dinp" }', 'gradients = { i = "dinp" }', "1:1", "backward gives gradients of ['i'],"),
        ('out = { shape = "*"', 'outs = { shape = "*"', "1:1", "forward computes no outs"),
        ('inp = { shape = "*"', 'inp = { shape = "N"', "1:1", "shape of inp: inputs and outputs begin"),
        ('forward = "out = 2 * inp"', 'forward = "out = 2 *"', "1:1", "reference.forward: invalid syntax"),
    ],
)
def test_the_place_is_that_of_the_entrys_file(
    tmp_path: pathlib.Path, old: str, new: str, place: str, said: str
) -> None:
    assert old in ENTRY
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(ENTRY.replace(old, new, 1))
    made = generate(tmp_path)
    (diagnostic,) = map(str, made.diagnostics)
    subject = "" if said.startswith("recipe") else "double_of: "
    assert diagnostic.startswith(f"twice.toml:{place}: error: {subject}{said}")
    assert diagnostic.endswith("; the layer Twice is left out")
    assert "layers.py" not in made.files


@pytest.mark.parametrize("name", ["copy", "empty", "float32", "take", "vector"])
def test_a_kernel_makes_way_for_the_runtimes_own_names(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "twice.cu").write_text(SOURCE.replace("twice", name))
    (tmp_path / "twice.toml").write_text(ENTRY.replace("empty_like(inp)", "empty(inp.shape, inp.dtype)"))
    made = generate(tmp_path)
    assert made.diagnostics == ()
    text = made.files["double_of.py"]
    assert f'\n{name}_kernel = Kernel(\n    SOURCE,\n    "{name}",' in text
    assert f"\n{name} = " not in text


def test_every_name_of_the_runtime_is_reserved_beside_layers() -> None:
    assert set(OPS) | _PLAIN | _PLACED | _DTYPES | PRECISIONS.keys() <= OP_NAMES | RUNTIME_NAMES | {"min", "max"}


def test_a_launcher_or_op_cannot(tmp_path: pathlib.Path) -> None:
    (tmp_path / "twice.cu").write_text(SOURCE.replace("void run", "void copy"))
    (tmp_path / "twice.toml").write_text(ENTRY.replace("run", "copy"))
    (said,) = map(str, generate(tmp_path).diagnostics)
    assert said.startswith("twice.toml:1:1: error: double_of: generated modules use the name copy themselves")
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(ENTRY.replace("double_of", "zeros"))
    (said,) = map(str, generate(tmp_path).diagnostics)
    assert said.startswith("twice.toml:1:1: error: zeros: generated modules use the name zeros themselves")
