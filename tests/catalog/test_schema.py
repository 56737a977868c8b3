"""What is said of entries whose keys or values are not what the format has: the key, what was found, what is wanted."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest
from click.testing import CliRunner

from llmc2py.catalog import parse_entry, schema
from llmc2py.catalog.places import find_places
from llmc2py.cli import cli
from llmc2py.diagnostics import UsageError

ROOT = pathlib.Path(__file__).parents[2]
ENTRIES = [*sorted((ROOT / "llmc2py" / "catalog").glob("*.toml")), ROOT / "examples" / "relu" / "relu.toml"]
RELU = ENTRIES[-1].read_text()
INPUT = 'inp = { shape = "*", doc = "any shape" }'
#: An entry with every key that entries with a layer may have.
FULL = """\
name = "op"
layer = "Op"
summary = "An op."
details = "More."
source = "a.cu"
launchers = ["run"]
kernels = ["k"]
uses = ["b.cu:go"]
variants = [{ file = "a.cu", launchers = "run*", reference = "forward", call = "(out)", blocks = [32], precisions = ["float32"], zeros = ["out"] }]
autocast = "lower"
precisions = ["float32"]
wide = ["k"]
fast_sizes = "all"
cases = [{ lead = [2, 3], C = 4 }]
inputs = { inp = { shape = "* C", doc = "d", dtype = "float32", below = "C", positive = false } }
parameters = { weight = { shape = "C", doc = "d", init = "ones", dtype = "float32", optional = true } }
outputs = { out = { shape = "* C", doc = "d", dtype = "float32" } }
options = { mode = { type = "int", default = 1, doc = "d" } }
intermediates = { rows = { shape = "N", dtype = "float32", doc = "d", when = "mode", otherwise = "inp" } }
sizes = { C = 4, B = "2 * C", lead = "B" }
extents = { run = { out = ["N", "C"] } }
forward = { recipe = "run(out)", saves = ["inp"] }
backward = { recipe = "run(out)", gradients = { inp = "dinp" }, stochastic = ["inp"] }
reference = { forward = "out = inp", backward = "dinp = dout", reduction = "C", either_way = false, c = [{ function = "f", file = "a.cu", call = "f(out)", zeros = ["out"] }] }
"""  # noqa: E501


def walk(value, path=()):
    """Yield every value of a table with its path."""
    if path:
        yield path, value
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from walk(one, (*path, key))


def spelled(path):
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def toml(value):
    """Return a value as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(one)}' for key, one in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def changed(table, path, value):
    """Return a table as TOML with one value in the place of another."""
    table = tomllib.loads(toml_of(table))
    inner = table
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return toml_of(table)


def toml_of(table):
    return "".join(f"{key} = {toml(value)}\n" for key, value in table.items())


def messages(text):
    with pytest.raises(UsageError) as caught:
        parse_entry(text, "op.toml")
    return str(caught.value).splitlines()


def test_the_whole_entry_is_taken_and_has_every_key():
    parse_entry(FULL, "op.toml")
    assert tomllib.loads(FULL).keys() == schema.LAYER.required.keys() | schema.LAYER.optional.keys()


@pytest.mark.parametrize(("path", "value"), list(walk(tomllib.loads(FULL))), ids=lambda one: repr(one)[:40])
def test_no_key_takes_a_value_of_any_type(path, value):
    """Each value in turn is one of another type: it is named with its place, and not by an exception of Python's."""
    wrong = [] if isinstance(value, (str, int)) or path == ("reference",) else 3.5
    (said,) = messages(changed(tomllib.loads(FULL), path, wrong))
    shown = "a list" if wrong == [] else "3.5"
    assert re.match(r"op\.toml:\d+:\d+: ", said)
    assert f": {spelled(path)} is {shown}; it takes " in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (INPUT, "inp = { shape = 3 }", "8:9: inputs.inp.shape is 3; it takes the axes"),
        (INPUT, 'inp = "*C"', '8:1: inputs.inp is "*C"; it takes the axes as text'),
        (INPUT, 'inp = { shape = "*", dtype = "float8" }',
         '8:22: inputs.inp.dtype is "float8"; it takes one of float32, int32, boolean'),
        (INPUT, 'inp = "*"\n[parameters]\nw = { shape = "C", init = "random" }',
         '10:20: parameters.w.init is "random"; it takes one of ones, zeros, normal'),
        ('kernels = ["relu_forward", "relu_backward"]', 'kernels = "relu_forward"',
         '5:1: kernels is "relu_forward"; it takes a list of names'),
        ('layer = "ReLU"', 'layer = "class"', '2:1: layer is "class"; it takes a name that Python can use'),
        ('layer = "ReLU"', 'layer = "match"', '2:1: layer is "match"; it takes a name that Python can use'),
        ('name = "relu"', 'name = "__init__"', '1:1: name is "__init__"; it takes a name that Python can use'),
        ('saves = ["out"]', 'save = ["out"]', "14:1: forward has the unknown key save; did you mean saves?"),
        ('saves = ["out"]', 'saves = ["out", 3]', "14:17: forward.saves[1] is 3; it takes a name that Python can use"),
        ('gradients = { inp = "dinp" }\n', "", "21:2: backward lacks gradients"),
        ('layer = "ReLU"\n', "", "1:1: the catalogue entry lacks layer"),
        ('layer = "ReLU"', 'layer = "ReLU"\nlaunch = 3',
         "3:1: the catalogue entry has the unknown key launch; did you mean launchers?"),
        ('layer = "ReLU"', 'layer = "ReLU"\ncases = [{ lead = 3 }]',
         "3:12: cases[0].lead is 3; it takes a list of whole numbers"),
        ('layer = "ReLU"', 'layer = "ReLU"\nautocast = "up"',
         '3:1: autocast is "up"; it takes one of lower, float32, widest'),
        ("[outputs]\nout", "[outputs]\nlambda",
         '11:1: outputs has the key "lambda"; it takes a name that Python can use'),
        ('summary = "', "summary = ", "3:11: not TOML: Invalid value"),
        ('backward = "dinp = np.where(inp > 0, dout, 0)"', "backward = '''", "31:1: not TOML: "),
    ],
)  # fmt: skip
def test_messages(old, new, said):
    assert old in RELU
    (found,) = messages(RELU.replace(old, new, 1))
    assert found.startswith(f"op.toml:{said}")


def test_all_mistakes_are_told_at_once():
    found = messages(RELU.replace('layer = "ReLU"', "layer = 1").replace('saves = ["out"]', "saves = 2"))
    assert [one.split(": ")[0] for one in found] == ["op.toml:2:1", "op.toml:14:1"]


def test_the_command_says_so_and_generates_nothing(tmp_path):
    (tmp_path / "relu.cu").write_bytes((ROOT / "examples/relu/relu.cu").read_bytes())
    (tmp_path / "relu.toml").write_text(RELU.replace('kernels = ["relu_forward", "relu_backward"]', "kernels = 1"))
    result = CliRunner().invoke(cli, ["generate", str(tmp_path), "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr == "llmc2py: error: relu.toml:5:1: kernels is 1; it takes a list of names\n"
    assert not (tmp_path / "out").exists()


# --- places


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_every_key_of_the_built_in_entries_has_its_place(path):
    text = path.read_text()
    keys, texts = find_places(text)
    values = dict(walk(tomllib.loads(text)))
    assert keys.keys() == values.keys()
    assert texts.keys() == {key for key, value in values.items() if isinstance(value, str)}
    lines = text.splitlines()
    for key, (line, column) in keys.items():
        begins = lines[line - 1][column - 1 :]
        assert begins.startswith(str(key[-1])) or isinstance(key[-1], int) or begins.startswith(f'"{key[-1]}"')
    for key, (line, column) in texts.items():
        assert lines[line - 1][column - 1 :].startswith(values[key].split("\n")[0].replace("\\", "\\\\"))


ODD = """\
# comment = 1
a . 'b c' = 1 # d = 2
"q\\"" = [ # e = 3
  1, # x
  { y = '''
in ] it''', z = [[2], []] },
]
[[t]]
k = 1979-05-27 07:32:00
[[t]]
[t.u]
v = \"""a "quoted\""\""
w = ''
"""


def test_places_in_whatever_form_the_text_has():
    keys, texts = find_places(ODD)
    assert {spelled(path): place for path, place in keys.items()} == {
        "a": (2, 1), "a.b c": (2, 1),
        'q"': (3, 1), 'q"[0]': (4, 3), 'q"[1]': (5, 3), 'q"[1].y': (5, 5), 'q"[1].z': (6, 13),
        'q"[1].z[0]': (6, 18), 'q"[1].z[0][0]': (6, 19), 'q"[1].z[1]': (6, 23),
        "t": (8, 3), "t[0]": (8, 3), "t[0].k": (9, 1),
        "t[1]": (10, 3), "t[1].u": (11, 2), "t[1].u.v": (12, 1), "t[1].u.w": (13, 1),
    }  # fmt: skip
    assert {spelled(path): place for path, place in texts.items()} == {
        'q"[1].y': (6, 1), "t[1].u.v": (12, 8), "t[1].u.w": (13, 6),
    }  # fmt: skip
    assert tomllib.loads(ODD)["t"][1]["u"] == {"v": 'a "quoted"', "w": ""}
