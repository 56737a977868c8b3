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

    def place(row: int, column: int) -> SourceSpan:
        return SourceSpan("op.toml", line + row - 1, column)

    lowering = RecipeLowering(place, "Op", CALLABLES, "inp", protected, {"inp": 0, "weight": 1}, VALUES)
    return lowering.lower(text, set(known))


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
        ("a = inp\na = copy(a)\nact(a, inp, N)", ["a = inp", "a = copy(a)", "act(a, inp, N)"]),
        ("require(0 < N <= C)", ['require("Op", 0 < N <= C, "0 < N <= C", N=N, C=C)']),
        (
            'require(mode == "a" or N > 1)',
            ['require("Op", mode == "a" or N > 1, "mode == \'a\' or N > 1", mode=mode, N=N)'],
        ),
        (
            "a = empty((*lead, T, C), dtype)\nput(a, inp, (N, C))\nscale(a, 2)",
            ["a = empty((*lead, T, C), dtype, inp)", "put(a, inp, (N, C))", "scale(a, 2)"],
        ),
        ("a = ones(lead, dtype)", ["a = ones(lead, dtype, inp)"]),
        (
            "a = None if weight is None else accumulator(weight)",
            ["a = None if weight is None else accumulator(ctx, 1, weight)"],
        ),
        ("a = inp if mode else copy(inp)", ["a = inp if mode else copy(inp)"]),
        ("a = as_type(cropped(inp, (N, C)), dtype)", ["a = as_type(cropped(inp, (N, C)), dtype)"]),
        (
            "a = copy(inp)\nif not starts_alone:\n    scale(a, inp)",
            ["a = copy(inp)", "if not ctx.starts_alone:", "    scale(a, inp)"],
        ),
        (
            "a = copy(inp)\ncudnn.attention_forward(a, a, inp, N, T, NH, C // NH)",
            ["a = copy(inp)", "cudnn.attention_forward(a, a, inp, N, T, NH, C // NH)"],
        ),
        ("act(copy(inp), inp, next_seed())", ["act(copy(inp), inp, next_seed())"]),
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


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("require(T <= C)", {"require"}, {"T", "C"}),
        ("a = copy(inp)\nput(a, inp, (N,))", {"copy", "put"}, {"N"}),
        ("a = empty(lead, dtype)", {"empty"}, {"lead", "dtype"}),
        ("n = ceil_div(NH, vector)", {"ceil_div", "vector"}, {"NH", "dtype"}),
        ("a = copy(inp)\ncudnn.attention_backward(a, inp, inp, inp, inp, 1, 2, 3, 4)", {"copy", "cudnn"}, set()),
        ("a = copy(inp)\nelementwise(act8, a, inp, N)", {"copy", "act8", "elementwise"}, {"N", "dtype"}),
        ("a = copy(inp)\nif not starts_alone:\n    scale(a, inp)", {"copy", "scale"}, set()),
    ],
)
def test_the_names_and_values_that_are_needed_are_noted(text: str, names: set[str], values: set[str]) -> None:
    recipe = lower(text)
    assert recipe.names == names
    assert recipe.values == values


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
        ("require()", "1:1: recipe: require(condition) is taken"),
        ("require(N, C)", "1:1: recipe: require(condition) is taken"),
        ("require(N > 0, text=1)", "1:1: recipe: require(condition) is taken"),
        ("a = copy(inp)\nrequire(Z > 1)", "2:9: recipe: Z is not known here"),
        ("put(inp, weight, (N, C))", "1:1: recipe: put writes to inp, which belongs to the caller: copy it first"),
        ("scale(weight, 2)", "1:1: recipe: scale writes to weight, which belongs to the caller: copy it first"),
        (
            "if N:\n    cudnn.attention_forward(copy(inp), inp, inp, N, T, NH, C)",
            "2:5: recipe: attention_forward writes to inp, which belongs to the caller: copy it first",
        ),
        ("a = inp\nscale(a, 2)", "2:1: recipe: scale writes to a, which belongs to the caller: copy it first"),
        ("a = inp\nact(a, inp, N)", "2:1: recipe: act writes to out; a belongs to the caller: copy it first"),
        ("put()", "1:1: recipe: put takes 3 arguments, 0 are given"),
        ("scale(copy(inp), 2, 3)", "1:1: recipe: scale takes 2 arguments, 3 are given"),
        ("scale(copy(inp), factor=2)", "1:1: recipe: arguments are given by position"),
        ("act(copy(inp), inp, N, stream=1)", "1:1: recipe: arguments are given by position"),
        ("a = empty((N,), dtype=float32)", "1:5: recipe: arguments are given by position"),
        ("n = N\na = empty((n,))", "2:5: recipe: empty takes 2 arguments, 1 are given"),
        ("a = copy()", "1:5: recipe: copy takes 1 argument, 0 are given"),
        ("cudnn.attention_backward(copy(inp))", "1:1: recipe: cudnn.attention_backward takes 9 arguments, 1 are given"),
        *(
            (f"{name} = 3", f"1:1: recipe: {name} means something of its own in a pass: give the array another name")
            for name in ("N", "NH", "copy", "ctx", "device", "dtype", "float32", "lead", "starts_alone", "vector")
        ),
        ("cudnn.softmax(inp)", "1:1: recipe: a launcher, or a kernel with [grid, block], is called"),
        ("a = cudnn.attention_forward(inp)", "1:5: recipe: cudnn.attention_forward() is no function of recipes"),
        ("a = put(inp, inp, (N,))", "1:5: recipe: put() is no function of recipes"),
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


def test_an_input_with_a_name_that_passes_use_is_refused() -> None:
    with pytest.raises(SourceError, match=r"^op.toml:7:1: recipe: rows means something of its own in a pass"):
        lower("a = copy(inp)", known=("inp", "rows"), line=7)


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
        ('launchers = ["run"]', 'launchers = ["walk"]', "5:14", "twice.cu has no launcher or kernel walk"),
        ('gradients = { inp = "dinp" }', 'gradients = { inp = "d" }', "16:15", "backward computes no d;"),
        (
            'gradients = { inp = "dinp" }',
            'gradients = { i = "dinp" }',
            "16:15",
            "backward gives a gradient of i; gradients are of inp",
        ),
        ('out = { shape = "*"', 'outs = { shape = "*"', "11:1", "forward computes no outs"),
        ('inp = { shape = "*"', 'inp = { shape = "C"', "7:9", "shape of inp: inputs and outputs begin"),
        ('forward = "out = 2 * inp"', 'forward = "out = 2 *"', "23:21", "reference.forward: invalid syntax"),
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


#: An op with all that the shapes, dtypes and options of an entry can be.
MANY = '''\
name = "many"
layer = "Many"
summary = "Everything at once."
source = "twice.cu"
launchers = ["run"]
[inputs]
inp = "* T 3C"
ids = { shape = "*", below = "V" }
[parameters]
table = { shape = "V C", init = "normal" }
shift = { shape = "C", init = "zeros", optional = true }
[options]
NH = { type = "int" }
mode = { type = "str", default = "fast" }
[outputs]
out = "* T C"
[intermediates]
kept = "* C"
[forward]
saves = ["ids", "table", "kept"]
recipe = """
require(C % NH == 0)
out = zeros((*lead, T, C), dtype)
kept = zeros((*lead, C), dtype)
"""
[backward]
gradients = { inp = "dinp", table = "dtable", shift = "dshift" }
recipe = """
scale(kept, NH)
dinp = zeros((*lead, T, 3 * C), dtype)
dtable = accumulator(table)
dshift = zeros((C,), dtype)
if V % vector == 0 and mode == "fast":
    run(dtable, dout, N)
"""
[reference]
forward = "out = inp"
'''


def many(folder: pathlib.Path, old: str = "", new: str = "") -> Any:
    assert old in MANY
    (folder / "twice.cu").write_text(SOURCE)
    (folder / "twice.toml").write_text(MANY.replace(old, new, 1) if old else MANY)
    return generate(folder)


def lines_between(text: str, first: str, last: str) -> list[str]:
    """The lines of a pass as far as the recipe's own, without their indent."""
    body = text[text.index('"""Return', text.index(first)) :]
    return [line.strip() for line in body[: body.index(last)].splitlines()[1:-1]]


def test_a_pass_begins_with_checks_sizes_and_what_is_kept(tmp_path: pathlib.Path) -> None:
    made = many(tmp_path)
    assert made.diagnostics == ()
    text = made.files["many.py"]
    # What is required of sizes comes before indices are compared with them.
    assert lines_between(text, "def forward(", "out = zeros(") == [
        'inp = take("Many", "inp", inp, DTYPES)',
        'N, T, inp_C = rows("Many", "inp", inp, 2)',
        'C = part("Many", "inp", inp_C, 3, "C")',
        'V = length("Many", "table", table, 0, 2)',
        'require("Many", C % NH == 0, "C % NH == 0", C=C, NH=NH)',
        'ids = take_indices("Many", "ids", ids, inp.shape[:-2], V, "inp", inp)',
        'table = take_like("Many", "table", table, (V, C), "inp", inp)',
        'shift = None if shift is None else take_like("Many", "shift", shift, (C,), "inp", inp)',
        "lead = inp.shape[:-2]",
        "dtype = inp.dtype",
        "ctx.NH = NH",
        "ctx.V = V",
        "ctx.mode = mode",
    ]
    assert lines_between(text, "def backward(", "scale(") == [
        "ids, table, kept = ctx.saved",
        "dout = contiguous(dout)",
        "NH = ctx.NH",
        "V = ctx.V",
        "mode = ctx.mode",
        'N, T, C = rows("Many", "dout", dout, 2)',
        "lead = dout.shape[:-2]",
        "dtype = dout.dtype",
        "vector = 16 // dtype.itemsize",
    ]
    signature = 'inp: Array, ids: Array, table: Array, shift: Array | None, NH: int, mode: str = "fast"'
    assert signature in " ".join(text.split()).replace("( ", "(")
    assert "return dinp, None, dtable, dshift, None, None" in text
    assert 'def __init__( self, V: int, C: int, NH: int, *, shift: bool = True, mode: str = "fast",' in " ".join(
        made.files["layers.py"].split()
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("scale(kept, NH)", "scale(table, NH)", "29:1", "recipe: scale writes to table, which belongs to the caller"),
        ("scale(kept, NH)", "scale(dout, NH)", "29:1", "recipe: scale writes to dout, which belongs to the caller"),
        ("require(C % NH == 0)", "require(C % HS == 0)", "22:13", "recipe: HS is not known here"),
        ("accumulator(table)", "accumulator(kept)", "31:10", "recipe: accumulator(kept): an input of the op is added"),
        ('NH = { type = "int" }', 'C = { type = "int" }', "13:1", "many: the name C is taken by inputs.inp.shape"),
        ('mode = { type = "str"', 'saved = { type = "str"', "14:1", "many: the context of a pass has a saved"),
        ('mode = { type = "str"', 'inp = { type = "str"', "14:1", "many: the name inp is taken by inputs.inp"),
        ('shape = "V C"', 'shape = "V 2C"', "10:11", "many: shape of parameter table: its axes are letters alone"),
        ('shape = "V C"', 'shape = "V 3"', "10:11", "many: shape of parameter table: its axes are letters alone"),
        ('shape = "V C"', 'shape = "* C"', "10:11", "many: shape of parameter table: its axes are letters alone"),
        ('table = "dtable", ', "", "27:1", "many: backward gives no gradient of table"),
        ('"table", "kept"]', '"table", "lost"]', "20:26", "many: forward has no lost"),
    ],
)
def test_what_does_not_fit_in_shapes_options_and_passes(
    tmp_path: pathlib.Path, old: str, new: str, place: str, said: str
) -> None:
    (diagnostic,) = map(str, many(tmp_path, old, new).diagnostics)
    assert diagnostic.startswith(f"twice.toml:{place}: error: {said}")
    assert diagnostic.endswith("; the layer Many is left out")


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
    assert said.startswith("twice.toml:5:14: error: double_of: generated modules use the name copy themselves")
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(ENTRY.replace("double_of", "zeros"))
    (said,) = map(str, generate(tmp_path).diagnostics)
    assert said.startswith("twice.toml:1:1: error: zeros: generated modules use the name zeros themselves")
