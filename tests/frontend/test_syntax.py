"""What the grammar does not know and CUDA does, and what is said of what neither does."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.frontend.reader import read_tree
from llmc2py.ir.library import Library


def read(folder: pathlib.Path, text: str) -> Library:
    (folder / "k.cu").write_text(text)
    return read_tree(folder)


@pytest.mark.parametrize(
    "head",
    [
        "static __global__ __cluster_dims__(4, 1, 1) void",
        "__global__ void __maxnreg__(32)",
        "__global__ void __cluster_dims__((1 + 1), f(g(1)),\n  1) __launch_bounds__(64)",
        "template <int N> __global__ __launch_bounds__(N) __block_size__((N, 1, 1), (2, 1, 1)) void",
    ],
)
def test_kernels_with_any_attribute_are_read(tmp_path: pathlib.Path, head: str) -> None:
    library = read(tmp_path, f"{head} k(float* a, const __grid_constant__ int n) {{ a[n] = 1; }}\nint after;\n")
    assert library.diagnostics == ()
    (kernel,) = library.kernels
    assert [(one.name, str(one.type.base)) for one in kernel.parameters] == [("a", "float"), ("n", "int")]
    assert kernel.slice is not None
    assert head in kernel.slice.items[-1].text
    assert "__grid_constant__" in kernel.slice.items[-1].text


def test_alignments_that_are_computed_are_read(tmp_path: pathlib.Path) -> None:
    text = "__global__ void k(float* a) { extern __shared__ __align__(sizeof(float) * 2) char m[]; a[0] = m[0]; }\n"
    library = read(tmp_path, text)
    assert library.diagnostics == ()
    assert [kernel.name for kernel in library.kernels] == ["k"]


def test_explicit_instantiations_are_read(tmp_path: pathlib.Path) -> None:
    text = "template <typename T> class X { T t; };\ntemplate class X<float>;\nextern template struct Y<int>;\n"
    text += "template <typename T> __global__ void k(T* a) { a[0] = 1; }\ntemplate __global__ void k<float>(float*);\n"
    library = read(tmp_path, text)
    assert library.diagnostics == ()
    assert [kernel.name for kernel in library.kernels] == ["k"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int b = 3\nint c;", "k.cu:1:10: warning: 'int b = 3' lacks ';'; it is read as if that were there"),
        ("int * = 3;", "k.cu:1:6: warning: '*' lacks a name; it is read as if that were there"),
        ("int a = @;", "k.cu:1:7: warning: cannot be parsed: '= @'; it is passed over"),
    ],
)
def test_what_cannot_be_read_is_told_in_words(tmp_path: pathlib.Path, text: str, said: str) -> None:
    assert [str(one) for one in read(tmp_path, f"{text}\n").diagnostics] == [said]
