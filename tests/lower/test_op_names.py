"""An op, a kernel and a launcher may have one name in the source; Python has one namespace for them."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import pathlib
from typing import Any

import pytest

from llmc2py import nn
from llmc2py.catalog import parse_entry
from llmc2py.ir import names
from llmc2py.lower.entrynames import check_clashes
from llmc2py.pipeline import generate
from llmc2py.runtime import Context, Function, Layer

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


# --- names that generated modules cannot have

ROOT = pathlib.Path(__file__).parents[2]
WHOLE = '''\
name = "scaled"
layer = "Scaled"
summary = "The input, scaled."
source = "twice.cu"
kernels = ["twice"]
[inputs]
inp = "* C"
[parameters]
weight = "C"
[options]
mode = { type = "int", default = 1 }
[outputs]
out = "* C"
[forward]
recipe = """
out = empty_like(inp)
twice[1, N](out, inp, N * C)
"""
[reference]
forward = "out = inp * weight * mode"
'''


def made_of(folder: pathlib.Path, entry: str, source: str = SOURCE, targets: Any = (), **more: str) -> Any:
    (folder / "twice.cu").write_text(source)
    (folder / "twice.toml").write_text(entry)
    for name, text in more.items():
        (folder / f"{name}.toml").write_text(text)
    return generate(folder, targets=targets)


def only_message(made: Any) -> str:
    (said,) = map(str, made.diagnostics)
    assert "layers.py" not in made.files
    for file, text in made.files.items():
        if file.endswith(".py"):
            compile(text, file, "exec")
    return said


def test_a_whole_entry_is_taken(tmp_path: pathlib.Path) -> None:
    made = made_of(tmp_path, WHOLE, targets=["torch", "tricycle"])
    assert made.diagnostics == ()
    assert {"scaled.py", "layers.py", "torch_layers.py", "tricycle_layers.py"} <= made.files.keys()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *(
            ('"scaled"', f'"{name}"', f"1:1: error: {name}: generated modules use the name {name} themselves")
            for name in (
                "layers",
                "optim",
                "references",
                "torch_layers",
                "tricycle_layers",
                "max",
                "super",
                "np",
                "call",
            )
        ),
        *(
            ('"Scaled"', f'"{name}"', f"2:1: error: scaled: generated modules use the name {name} themselves")
            for name in ("Layer", "Tensor", "Any", "Parameter", "OpSpec", "super", "int", "Module", "layers", "SOURCE")
        ),
        ('"Scaled"', '"scaled"', "2:1: error: scaled: beside an op scaled there cannot be a layer scaled"),
        ('"scaled"', '"ScaledFunction"', "2:1: error: ScaledFunction: beside an op ScaledFunction there cannot be"),
        *(
            ("inp =", f"{name} =", f"7:1: error: scaled: generated functions use the name {name} themselves")
            for name in ("self", "ctx", "np", "stored", "lead", "Tensor", "copy", "scaled", "Scaled", "ScaledFunction")
        ),
        *(
            ("out =", f"{name} =", f"13:1: error: scaled: generated functions use the name {name} themselves")
            for name in ("dtype", "take", "layers", "range")
        ),
        ("out =", "C =", "13:1: error: scaled: the name C is taken by inputs.inp.shape"),
        ("out =", "inp =", "13:1: error: scaled: the name inp is taken by inputs.inp"),
        ("weight =", "dout =", "9:1: error: scaled: dout is the gradient of out: give it another name"),
        ("weight =", "inp =", "9:1: error: scaled: the name inp is taken by inputs.inp"),
        *(
            ("weight =", f"{name} =", f"9:1: error: scaled: layers have a {name} of their own: give it another name")
            for name in ("forward", "to", "spec", "half", "_lock", "state_dict")
        ),
        ("mode =", "like =", "11:1: error: scaled: generated functions use the name like themselves"),
        ("mode =", "weight =", "11:1: error: scaled: the name weight is taken by parameters.weight"),
        ("mode =", "saved =", "11:1: error: scaled: the context of a pass has a saved of its own"),
        ("mode =", "training =", "11:1: error: scaled: layers have a training of their own"),
        ('"* C"', '"* needs_grad"', "7:1: error: scaled: the context of a pass has a needs_grad of its own"),
        ('"* C"', '"* N"', "7:1: error: scaled: generated functions use the name N themselves"),
        ('"* C"', '"* 3vector"', "7:1: error: scaled: generated functions use the name vector themselves"),
    ],
)
def test_names_that_generated_modules_cannot_have_are_refused(
    tmp_path: pathlib.Path, old: str, new: str, said: str
) -> None:
    assert old in WHOLE
    message = only_message(made_of(tmp_path, WHOLE.replace(old, new, 1)))
    assert message.startswith(f"twice.toml:{said}")
    assert message.endswith("; the layer " + ("Scaled" if old != '"Scaled"' else new.strip('"')) + " is left out")


@pytest.mark.parametrize("name", ["abs", "print", "Dense", "sum", "class_", "Match"])
def test_other_names_of_python_are_taken(tmp_path: pathlib.Path, name: str) -> None:
    made = made_of(
        tmp_path,
        WHOLE.replace('"scaled"', f'"{name}"')
        .replace("inp ", f"{name}_of ")
        .replace("inp)", f"{name}_of)")
        .replace("inp,", f"{name}_of,"),
    )
    assert made.diagnostics == ()
    assert f"def {name}(" in made.files[f"{name}.py"]


def test_a_folder_of_the_package_cannot_be_an_op(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "other.cu").write_text(SOURCE)
    message = only_message(made_of(tmp_path, WHOLE.replace('"scaled"', '"tools"')))
    assert message.startswith("twice.toml:1:1: error: tools: the package has a folder tools: give the op another name")


def test_kernels_make_way_for_the_function_of_a_layer_and_launchers_cannot(tmp_path: pathlib.Path) -> None:
    entry = WHOLE.replace("twice[", "ScaledFunction[").replace('["twice"]', '["ScaledFunction"]')
    made = made_of(tmp_path, entry, SOURCE.replace("twice", "ScaledFunction"))
    assert made.diagnostics == ()
    assert "\nScaledFunction_kernel = Kernel(" in made.files["scaled.py"]
    entry = ENTRY.format(name="double").replace("run", "TwiceFunction")
    message = only_message(made_of(tmp_path, entry, SOURCE.replace("run", "TwiceFunction")))
    assert "error: double: beside a launcher TwiceFunction there cannot be a layer Twice" in message


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        ("tother", "Scaled", "2:1: error: tother: first.toml makes a Scaled too: give the layer another name"),
        ("tother", "scaled", "2:1: error: tother: first.toml makes a scaled too: give the layer another name"),
        ("sCALED", "Other", "1:1: error: scaled: twice.toml makes a _SCALED too: give the op another name"),
        ("scaled_", "ScaledFunction", "2:1: error: scaled_: first.toml makes a ScaledFunction too: give the layer"),
    ],
)
def test_two_entries_cannot_make_one_name(tmp_path: pathlib.Path, name: str, layer: str, said: str) -> None:
    other = WHOLE.replace('"scaled"', f'"{name}"').replace('"Scaled"', f'"{layer}"')
    made = made_of(tmp_path, other, first=WHOLE)
    (message,) = map(str, made.diagnostics)
    assert message.startswith(f"{'first' if 'twice' in said else 'twice'}.toml:{said}")
    assert made.files["layers.py"].count("\nclass ") == 1


def test_an_entry_of_ones_own_gives_way_to_a_built_in_one(tmp_path: pathlib.Path) -> None:
    own = WHOLE.replace('"scaled"', '"a_softmax"').replace('"Scaled"', '"Softmax"').replace("twice", "plain")
    name = pathlib.Path("dev", "cuda", "softmax_forward.cu")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / "plain.cu").write_text(SOURCE.replace("twice", "plain"))
    (tmp_path / "plain.toml").write_text(own)
    (tmp_path / name).write_text(SOURCE)
    made = generate(tmp_path)
    # What the built-in entry needs is not there, so that the name is free.
    assert [item.span.file for item in made.diagnostics if "softmax" in item.message] == ["catalog/softmax.toml"]
    assert "SoftmaxFunction" in made.files["a_softmax.py"]
    builtin = WHOLE.replace('"scaled"', '"softmax"').replace('"Scaled"', '"Softmax"')
    entries = [dataclasses.replace(parse_entry(text, file), is_builtin=file != "own.toml")
               for text, file in ((own, "own.toml"), (builtin, "catalog/softmax.toml"))]  # fmt: skip
    ((entry, error),) = check_clashes(entries)
    assert entry is entries[0]
    assert str(error).startswith("own.toml:2:1: a_softmax: catalog/softmax.toml makes a Softmax too: give the layer")


def test_all_names_that_modules_of_a_package_use_are_known() -> None:
    """What the generator writes itself, whatever the entry: no entry can have a name of these."""
    ops = ["attention", "classifier", "crossentropy", "gelu", "layernorm", "linear"]
    made = generate(ROOT / "vendor" / "llm.c", only=ops, targets=["torch", "tricycle"])
    own = {"AdamW", "Dense", "DenseFunction", "options"} | names.PACKAGE_MODULES
    for module in made.plan.modules:
        own |= {*module.symbols.values(), *(one.name for one in module.launchers), *module.path.split("/")}
        own |= {one.launcher.name for one in module.replaced}
        own |= {helper.name for one in module.launchers for helper in one.helpers}
    for op in [*(one.op for one in made.plan.ops if one.op), *made.plan.checks]:
        own |= {
            op.layer,
            f"{op.layer}Function",
            op.name,
            f"_{op.name.upper()}",
            f"{op.name}_forward",
            f"{op.name}_backward",
        }
    found: set[str] = set()
    for file, text in made.files.items():
        found |= _names_of(ast.parse(text)) if file.endswith(".py") else set()
    found = {one for one in found - own if not one.startswith("_") and not one.endswith("_QUANTUM")}
    assert len(found) > 40
    assert {one for one in found if not names.is_taken(one)} - {"clip_global_norm"} == set()


def _names_of(tree: ast.Module) -> set[str]:
    """Return what a module defines and imports, and what it takes from Python."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and hasattr(builtins, node.id)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(one.asname or one.name).split(".")[0] for one in node.names}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found


def test_all_attributes_of_layers_are_known() -> None:
    own = {one for one in {*dir(Layer), *dir(nn.Module)} if not one.startswith("_")}
    assert own - names.LAYER_NAMES == set()
    context = {*dir(Context), *vars(Context(Function, []))}
    assert {one for one in context if not one.startswith("_") and not one.endswith("_")} - names.CONTEXT_NAMES == set()


def test_all_attributes_of_pytorchs_modules_are_known() -> None:
    torch = pytest.importorskip("torch", reason="no PyTorch")
    own = {one for one in {*dir(torch.nn.Module), *vars(torch.nn.Module())} if not one.startswith("_")}
    assert own - names.LAYER_NAMES - {"T_destination"} == set()
