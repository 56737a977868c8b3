"""Sources that cannot be read as a whole: what is said of them, and that the rest is still there."""

from __future__ import annotations

import ast
import os

import pytest

from llmc2py.diagnostics import Severity, UsageError
from llmc2py.frontend.losses import LOST
from llmc2py.frontend.reader import read_tree
from llmc2py.outputs import default_output
from llmc2py.pipeline import generate

GOOD = "__global__ void good(float* o, const float* x, int n) { int i = threadIdx.x; if (i < n) o[i] = x[i]; }\n"


@pytest.fixture
def tree(tmp_path):
    """Return a function that writes files beside a good one and returns their folder."""

    def write(**files):
        (tmp_path / "good.cu").write_text(GOOD)
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(text)
        return tmp_path

    return write


def said(library, severity=Severity.ERROR):
    return [str(item) for item in library.diagnostics if item.severity is severity]


def names(library):
    return [kernel.name for kernel in library.kernels]


def test_missing_path(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        generate(tmp_path / "nowhere")


def test_file_instead_of_folder(tree):
    with pytest.raises(UsageError, match="is a file; give the folder"):
        generate(tree() / "good.cu")


def test_empty_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no \.cu or \.cuh file"):
        generate(tmp_path)


def test_folder_without_kernels(tmp_path):
    (tmp_path / "host.cu").write_text("int twice(int x) { return 2 * x; }\n")
    with pytest.raises(UsageError, match="no kernel in it"):
        generate(tmp_path)


def test_nothing_readable_says_why(tmp_path):
    (tmp_path / "bin.cu").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UsageError, match=r"no kernel in it\nbin\.cu:1:1: error: cannot be read: holds NUL bytes"):
        generate(tmp_path)


def test_unreadable_files_are_named_and_the_rest_is_read(tree):
    folder = tree(bin__cu="a\0b")
    (folder / "gone.cu").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.cu")
    (folder / "folder.cu").mkdir()
    library = read_tree(folder)
    assert names(library) == ["good"]
    assert said(library) == [
        "bin.cu:1:1: error: cannot be read: holds NUL bytes: not a text file",
        "gone.cu:1:1: error: cannot be read: No such file or directory",
        "pipe.cu:1:1: error: cannot be read: is no regular file",
    ]


def test_folder_that_cannot_be_listed(tree, monkeypatch):
    folder = tree()
    (folder / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    library = read_tree(folder)
    assert names(library) == ["good"]
    assert said(library) == ["closed:1:1: error: folder cannot be read: Permission denied"]


def test_kernel_that_calls_a_host_function(tree):
    made = generate(
        tree(
            host__cu="float helper(float x) { return x; }\n"
            "__global__ void bad(float* o) { o[0] = helper(o[0]); }\n"
            "__global__ void fine(float* o) { o[0] = 2; }\n"
        )
    )
    (error,) = [str(item) for item in made.diagnostics]
    assert error.startswith("host.cu:2:40: error: kernel bad calls host function helper (defined at host.cu:1)")
    assert {kernel.name for module in made.plan.modules for kernel in module.kernels} == {"good", "fine"}
    assert "helper" not in made.files["host.cu"]


def test_only_spares_the_diagnostics_of_what_it_leaves_out(tree):
    folder = tree(
        host__cu="float helper(float x) { return x; }\n"
        "__global__ void bad(float* o) { o[0] = helper(o[0]); }\n"
        "__global__ void fine(float* o) { o[0] = 2; }\n"
    )
    made = generate(folder, only=["fine"])
    assert made.diagnostics == ()
    assert [kernel.name for kernel in made.library.kernels] == ["fine"]
    assert [item.kernel for item in generate(folder, only=["bad"]).diagnostics] == ["bad"]


@pytest.mark.parametrize("only", [["nothing*"], ["good", "nothing*"]])
def test_only_that_matches_nothing(tree, only):
    with pytest.raises(UsageError, match=r"--only nothing\*: no layer, source file or kernel has such a name"):
        generate(tree(), only=only)


def test_only_of_a_layer_whose_source_is_not_here(tree):
    with pytest.raises(UsageError, match="no kernel in it that --only selects"):
        generate(tree(), only=["gelu"])


def test_syntax_error_beside_good_kernels(tree):
    library = read_tree(
        tree(
            broken__cu="__global__ void first(float* o) { o[0] = 1; }\n"
            "__global__ void second(float* o, { o[0] = = 1; }\n"
            "__global__ void third(float* o) { o[0] = 1; }\n"
        )
    )
    assert names(library) == ["first", "good"]
    assert [line.split(": ")[0] for line in said(library)] == ["broken.cu:2:1", "broken.cu:3:1"]
    assert all("a kernel begins here that cannot be read" in line for line in said(library))
    (warning,) = said(library, Severity.WARNING)
    assert warning.startswith("broken.cu:2:1: warning: cannot be parsed")


def test_kernels_swallowed_by_a_missing_brace(tree):
    library = read_tree(
        tree(
            open__cu="__global__ void open(float* o) { if (o) { o[0] = 1; }\n"
            "__global__ void after(float* o) { o[0] = 1; }\n"
            "template <typename T> __global__ void later(T* o) { o[0] = 1; }\n"
        )
    )
    assert names(library) == ["good", "open"]
    assert [line.split(": ")[0] for line in said(library)] == ["open.cu:2:1", "open.cu:3:23"]
    (warning,) = said(library, Severity.WARNING)
    assert "lacks '}'" in warning
    assert "\n" not in warning


def test_kernels_inside_a_statement_at_file_scope_are_told(tree):
    library = read_tree(tree(odd__cu="for (;;) {\n__global__ void inside(float* o) { o[0] = 1; }\n}\n"))
    assert names(library) == ["good"]
    assert said(library) == [f"odd.cu:2:1: error: {LOST}"]


def test_what_reads_as_an_expression_begins_no_kernel(tree):
    text = '#include "whole.cuh"\n*f((x[__global__ void __launch_bounds__(1024,)lost(floatX,int\n'
    library = read_tree(tree(whole__cuh="int a;\n", odd__cu=text))
    assert names(library) == ["good"]
    assert f"odd.cu:2:7: error: {LOST}" in said(library)


def test_prototypes_are_no_lost_kernels(tree):
    library = read_tree(
        tree(
            proto__cu="__global__ void later(float* o);\n"
            '/* __global__ void gone() */ static const char* text = "__global__ void fake() {}";\n'
            "__global__ void later(float* o) { o[0] = 1; }\n"
        )
    )
    assert names(library) == ["good", "later"]
    assert library.diagnostics == ()


def test_second_definition_is_told(tree):
    library = read_tree(
        tree(
            twice__cu="__global__ void twice(float* o) { o[0] = 1; }\n"
            "__global__ void twice(float* o, int n) { o[0] = n; }\n"
        )
    )
    assert said(library, Severity.WARNING) == [
        "twice.cu:2:1: warning: kernel twice is also defined at twice.cu:1; this definition is left out"
    ]


def test_kernels_of_headers_and_the_line_after_an_include(tree):
    made = generate(
        tree(
            k__h="__global__ void in_header(float* o) { o[0] = 1; }\n",
            plain__h="int nothing;\n",
            m__cu='#include "k.h"\nvoid go(float* o) { in_header<<<1, 32>>>(o); }\n',
        )
    )
    assert {kernel.span.origin for kernel in made.library.kernels} == {"good.cu:1", "k.h:1"}
    assert [launcher.span.origin for launcher in made.library.launchers] == ["m.cu:2"]
    assert "from .k import in_header" in made.files["m.py"]


def test_files_that_would_share_a_module(tree):
    made = generate(
        tree(
            good__cuh="__global__ void inline_one(float* o) { o[0] = 1; }\n",
            layers__cu="__global__ void taken(float* o) { o[0] = 1; }\n",
            **{"class__cu": "__global__ void keyword(float* o) { o[0] = 1; }\n"},
        )
    )
    assert {module.path: [kernel.name for kernel in module.kernels] for module in made.plan.modules} == {
        "_class": ["keyword"],
        "good_cu": ["good"],
        "good_cuh": ["inline_one"],
        "layers_cu": ["taken"],
    }


def test_bad_catalogue_entries(tree, tmp_path_factory):
    folder = tree(relu__toml="name = [")
    with pytest.raises(UsageError, match=r"relu\.toml:1:1: not TOML"):
        generate(folder)
    (folder / "relu.toml").write_text('name = "relu"\nlaunch = 3\n')
    with pytest.raises(UsageError, match=r"relu\.toml:1:1: the catalogue entry lacks .*layer.*\n.*unknown key launch"):
        generate(folder)
    (folder / "relu.toml").unlink()
    with pytest.raises(UsageError, match=r"nowhere\.toml: the catalogue entry cannot be read"):
        generate(folder, [folder / "nowhere.toml"])


def test_toml_files_of_other_tools_are_left_alone(tree):
    folder = tree(pyproject__toml='[project]\nname = "x"\n', ruff__toml="line-length = 100\n")
    assert "good.py" in generate(folder).files
    assert default_output(folder).parts == ("generated",)


def test_entry_of_a_launcher_that_is_not_there(tree):
    folder = tree(
        relu__toml='name = "relu"\nlayer = "ReLU"\nsummary = "s"\nsource = "good.cu"\nlaunchers = ["absent"]\n'
        'inputs = { x = "*" }\noutputs = { y = "*" }\nforward = { recipe = "y = empty_like(x)" }\n'
        'reference = { forward = "y = x" }\n'
    )
    made = generate(folder)
    (error,) = [str(item) for item in made.diagnostics]
    assert error.startswith("relu.toml:5:14: error: relu: good.cu has no launcher or kernel absent")
    assert "the layer ReLU is left out" in error
    assert "good.py" in made.files
    assert "layers.py" not in made.files


def test_what_cannot_be_parsed_before_a_name_is_no_part_of_it(tree):
    text = "template <bool B>\n__global__ void __launch_bounds__(1024, )LIMIT_A_B_C odd(float* x) { x[0] = B; }\n"
    files = generate(
        tree(
            odd__cu=text + "__global__ void k(float* x) { x[0] = 1; }\nvoid AN API\ngo(float* x) { k<<<1, 1>>>(x); }\n"
        )
    )
    assert sorted(names(files.library)) == ["good", "k", "odd"]
    assert said(files.library, Severity.WARNING)
    assert {one.name for one in files.library.launchers} == {"go"}
    for name, emitted in files.files.items():
        if name.endswith(".py"):
            ast.parse(emitted)
