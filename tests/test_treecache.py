"""A tree that was read is used again as long as nothing in it has changed."""

from __future__ import annotations

import pytest

from llmc2py import treecache
from llmc2py.treecache import read_tree_once

KERNEL = """\
#include "size.h"
__global__ void fill(float* out) { out[threadIdx.x] = SIZE; }
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(treecache, "_WORTH_KEEPING", -1.0)
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "fill.cu").write_text(KERNEL)
    (folder / "size.h").write_text("#define SIZE 3\n")
    return folder


@pytest.fixture
def reads(monkeypatch):
    """The trees that were read and not taken from the cache."""
    seen = []
    read_tree = treecache.read_tree

    def recording(root, cache):
        seen.append(root)
        return read_tree(root, cache)

    monkeypatch.setattr(treecache, "read_tree", recording)
    return seen


def text_of(library):
    return "".join(item.text for item in library.kernels[0].slice.items)


def test_a_tree_is_read_once(tree, reads):
    first = read_tree_once(tree)
    assert read_tree_once(tree) == first
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("fill.cu", KERNEL.replace("fill", "other")),
        ("size.h", "#define SIZE 4\n"),
        ("new.cu", "__global__ void more(float* out) { *out = 0; }\n"),
        ("new.txt", "could be included"),
    ],
)
def test_any_change_is_seen(tree, reads, file, text):
    before = read_tree_once(tree)
    (tree / file).write_text(text)
    after = read_tree_once(tree)
    assert len(reads) == 2
    assert (after == before) == (file == "new.txt")


def test_a_header_that_gets_a_kernel_is_seen(tree, reads):
    (tree / "plain.h").write_text("int x;\n")
    read_tree_once(tree)
    (tree / "plain.h").write_text("__global__ void late(float* out) { *out = 0; }\n")
    assert {kernel.name for kernel in read_tree_once(tree).kernels} == {"fill", "late"}


def test_another_program_reads_again(tree, reads, monkeypatch):
    read_tree_once(tree)
    monkeypatch.setattr(treecache, "_code_key", lambda: "changed")
    read_tree_once(tree)
    assert len(reads) == 2


def test_a_damaged_entry_is_read_again(tree, reads, tmp_path):
    first = read_tree_once(tree)
    (entry,) = (tmp_path / "cache" / "trees").glob("*.pickle")
    entry.write_bytes(entry.read_bytes()[:100])
    assert read_tree_once(tree) == first
    assert len(reads) == 2


def test_a_tree_with_an_unreadable_file_is_not_kept(tree, reads):
    (tree / "bad.cu").write_bytes(b"\0\0")
    assert read_tree_once(tree).diagnostics
    read_tree_once(tree)
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_the_reading_alone(tree, reads, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert "= 3;" in text_of(read_tree_once(tree))
    read_tree_once(tree)
    assert len(reads) == 2


def test_few_trees_are_kept(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(treecache, "_KEPT", 2)
    for number in range(4):
        other = tmp_path / f"tree{number}"
        other.mkdir()
        (other / "one.cu").write_text("__global__ void one(float* out) { *out = 1; }\n")
        read_tree_once(other)
    assert len(list((tmp_path / "cache" / "trees").glob("*.pickle"))) == 2
