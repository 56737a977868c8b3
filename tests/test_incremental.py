"""What a cache has kept of a tree before a change gives the package that is made without it."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import random
import subprocess
import sys

import jinja2
import pytest

from llmc2py import catalog, modulecache, pipeline
from llmc2py.emit import render
from llmc2py.lower import files

_ROOT = pathlib.Path(__file__).parent.parent
#: Changes of the vendored sources that are tried; `benchmarks/incremental.py` tries them all.
_SAMPLE = 5

HEADER = """\
template <class T> int rounded(T n) { return (n + 31) / 32; }
__global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
void scale_all(float* x, int n) { scale<<<rounded(n), 32>>>(x, n); }
"""
CALLER = """\
__global__ void shift(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] += 1; }
void shift_all(float* y, int n) { scale_all(y, n); shift<<<(n + 31) / 32, 32>>>(y, n); }
"""
OTHER = """\
__global__ void zero(float* z, int n) { if (threadIdx.x < n) z[threadIdx.x] = 0; }
void zero_all(float* z, int n) { zero<<<(n + 31) / 32, 32>>>(z, n); }
"""
ENTRY = """\
name = "zero"
layer = "Zero"
summary = "Nothing."
source = "other.cu"
launchers = ["zero_all"]
fast_sizes = "all"
[inputs]
inp = { shape = "*" }
[outputs]
out = { shape = "*" }
[forward]
saves = []
recipe = '''
out = empty_like(inp)
zero_all(out, N)
'''
[backward]
gradients = { inp = "dinp" }
recipe = '''
dinp = empty_like(dout)
zero_all(dinp, N)
'''
[reference]
forward = "out = 0 * inp"
backward = "dinp = 0 * dout"
"""


@pytest.fixture(scope="module")
def incremental():
    path = _ROOT / "benchmarks" / "incremental.py"
    spec = importlib.util.spec_from_file_location("incremental", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["incremental"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "tree"
    folder.mkdir()
    for name, text in (("scale.cuh", HEADER), ("caller.cu", CALLER), ("other.cu", OTHER), ("zero.toml", ENTRY)):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def made(monkeypatch):
    """The files whose launchers were lowered, and the modules that were rendered."""
    seen = []
    lower, render = files._FileLowering.lower, modulecache.render_module
    monkeypatch.setattr(files._FileLowering, "lower", lambda self: seen.append(self.file.path) or lower(self))
    monkeypatch.setattr(modulecache, "render_module", lambda module: seen.append(module.path) or render(module))
    return seen


def generated(tree, made):
    """Generate from a tree with what is kept; return what was made for it."""
    made.clear()
    package = pipeline.generate(tree)
    found = sorted(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMC2PY_CACHE_DIR", str(tree.parent / "none"))
        (tree.parent / "none").write_text("in the way")
        fresh = pipeline.generate(tree)
    assert (package.files, package.plan, package.diagnostics) == (fresh.files, fresh.plan, fresh.diagnostics)
    return found


ALL = ["caller", "caller.cu", "other.cu", "scale", "scale.cuh", "zero"]


def test_the_same_is_made_once(tree, made):
    assert generated(tree, made) == ALL
    assert generated(tree, made) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "again"),
    [
        # The header is not included: what is called through it is looked up all the same.
        ("scale.cuh", "*= 2", "*= 3", ["caller", "caller.cu", "scale", "scale.cuh"]),
        ("scale.cuh", "scale_all", "scale_each", ["caller", "caller.cu", "scale", "scale.cuh"]),
        ("caller.cu", "+= 1", "+= 2", ["caller", "caller.cu"]),
        ("other.cu", "= 0", "= 1", ["other.cu", "zero"]),
        ("other.cu", "zero<<<(n + 31)", "zero<<<(n + 63)", ["other.cu", "zero"]),
        ("zero.toml", "Nothing.", "Nought.", ["zero"]),
        ("zero.toml", "empty_like(inp)", "zeros_like(inp)", ["zero"]),
        # The name of a kernel's object in Python: the op takes it.
        ("zero.toml", 'name = "zero"', 'name = "nought"', ["nought", "other.cu"]),
    ],
)
def test_what_depends_on_a_change_is_made_again_and_nothing_else(tree, made, file, old, new, again):
    generated(tree, made)
    before = (tree / file).read_text()
    assert old in before
    (tree / file).write_text(before.replace(old, new))
    assert generated(tree, made) == again
    assert generated(tree, made) == []


@pytest.mark.parametrize("name", ["scale_all", "rounded", "unheard_of"])
def test_a_new_header_counts_where_it_changes_what_a_name_means(tree, made, name):
    generated(tree, made)
    (tree / "more.cuh").write_text(
        f"__global__ void more(float* x) {{ *x = 1; }}\nvoid {name}(float* x, int n) {{ more<<<1, n>>>(x); }}\n"
    )
    found = generated(tree, made)
    assert {"more", "more.cuh"} <= set(found)
    assert ("caller.cu" in found) == (name == "scale_all")


def test_a_kernel_that_another_file_defines_is_looked_up_by_its_name(tree, made):
    (tree / "caller.cu").write_text(CALLER.replace("{ scale_all", "{ zero<<<1, 32>>>(y, n); scale_all"))
    generated(tree, made)
    (tree / "other.cu").write_text(OTHER.replace("= 0;", "= n;"))
    assert generated(tree, made) == ["caller", "caller.cu", "other.cu", "zero"]


def test_a_part_of_a_tree_does_not_stand_for_the_whole(tree, made):
    whole = pipeline.generate(tree)
    part = pipeline.generate(tree, only=("shift",))
    assert part.files["caller.py"] != whole.files["caller.py"]
    assert pipeline.generate(tree).files == whole.files


def test_what_is_kept_holds_no_launcher_twice(tree, made):
    pipeline.generate(tree)
    entries = list(files.LOWERED.folder.iterdir())
    assert len(entries) == 3
    assert not any(b"llmc2py.ir.statements" in entry.read_bytes() for entry in entries)


def test_a_damaged_entry_is_made_again(tree, made):
    generated(tree, made)
    for shelf in (files.LOWERED, modulecache.MODULES):
        for entry in shelf.folder.iterdir():
            entry.write_bytes(b"")
    assert generated(tree, made) == ALL


def test_another_process_finds_what_is_kept(tree):
    code = f"import pathlib; from llmc2py import pipeline; pipeline.generate(pathlib.Path({str(tree)!r}))"
    kept = []
    for seed in ("1", "2"):  # of the order of sets
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONHASHSEED": seed})
        kept.append([sorted(shelf.folder.iterdir()) for shelf in (files.LOWERED, modulecache.MODULES)])
    assert [len(entries) for entries in kept[0]] == [3, 3]
    assert kept[0] == kept[1]


def test_templates_are_compiled_once(tree, made, monkeypatch):
    compiled = []
    compile_template = jinja2.Environment.compile
    monkeypatch.setattr(
        jinja2.Environment, "compile", lambda *given: compiled.append(given[2]) or compile_template(*given)
    )
    render._environment.cache_clear()
    first = pipeline.generate(tree).files
    assert sorted(compiled) == ["layers.py.j2", "module.py.j2", "references.py.j2"]
    render._environment.cache_clear()
    (tree / "other.cu").write_text(OTHER + "// more\n")
    (tree / "zero.toml").write_text(ENTRY.replace("Nothing.", "Nought."))
    assert pipeline.generate(tree).files["layers.py"] != first["layers.py"]
    assert len(compiled) == 3


def test_changes_of_the_vendored_sources_give_what_an_empty_cache_gives(incremental, tmp_path):
    comparison = incremental.Comparison(_ROOT / "vendor" / "llm.c", tmp_path, pathlib.Path(catalog.__file__).parent)
    assert comparison.check()
    changes = [change for path in comparison.paths() for change in incremental.changes_of(path)]
    assert len({change.kind for change in changes}) == 10
    for change in random.Random(1).sample(changes, _SAMPLE):
        assert comparison.check_changed(change), change
