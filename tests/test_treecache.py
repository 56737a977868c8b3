"""A translation unit that was read is used again as long as nothing that it was read from has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from llmc2py import caching, treecache
from llmc2py.frontend.reader import read_tree
from llmc2py.treecache import read_tree_once

KERNEL = """\
#include "size.h"
__global__ void fill(float* out) { out[threadIdx.x] = SIZE; }
"""
OTHER = "__global__ void zero(float* out) { out[threadIdx.x] = 0; }\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(treecache, "_WORTH_KEEPING", -1.0)
    monkeypatch.setattr(treecache, "_RECENT_LIMIT", 0)
    folder = tmp_path / "tree"
    (folder / "src").mkdir(parents=True)
    (folder / "fill.cu").write_text(KERNEL)
    (folder / "other.cu").write_text(OTHER)
    (folder / "size.h").write_text("#define SIZE 3\n")
    return folder


@pytest.fixture
def reads(monkeypatch):
    """The names of the units that were read and not taken from the cache."""
    seen = []
    read_unit = treecache.read_unit

    def recording(path, root, cache):
        seen.append(path.name)
        return read_unit(path, root, cache)

    monkeypatch.setattr(treecache, "read_unit", recording)
    return seen


def read(tree, reads):
    """Read a tree through the cache; return which units that took. The result is that of reading all of it."""
    reads.clear()
    cached, fresh = read_tree_once(tree), read_tree(tree)
    assert cached == fresh
    assert [file.scope for file in cached.files] == [file.scope for file in fresh.files]
    return sorted(reads)


def test_a_tree_is_read_once(tree, reads):
    assert read(tree, reads) == ["fill.cu", "other.cu"]
    assert read(tree, reads) == []


@pytest.mark.parametrize(
    ("file", "text", "again"),
    [
        ("fill.cu", KERNEL.replace("fill", "another"), ["fill.cu"]),
        ("size.h", "#define SIZE 4\n", ["fill.cu"]),
        ("new.cu", "__global__ void more(float* out) { *out = 0; }\n", ["new.cu"]),
        ("new.h", "#define SIZE 5\n", []),
        ("src/size.h", "#define SIZE 5\n", ["fill.cu"]),
    ],
)
def test_what_depends_on_a_change_is_read_again_and_nothing_else(tree, reads, file, text, again):
    read(tree, reads)
    (tree / file).write_text(text)
    assert read(tree, reads) == again
    assert read(tree, reads) == []


def test_what_is_as_it_was_once_needs_no_reading(tree, reads):
    read(tree, reads)
    (tree / "size.h").write_text("#define SIZE 4\n")
    read(tree, reads)
    (tree / "size.h").write_text("#define SIZE 3\n")
    os.utime(tree / "other.cu")
    assert read(tree, reads) == []


def test_a_file_has_a_key_where_all_that_it_was_read_from_is_known(tree, reads):
    def keys():
        return {file.path: file.key for file in read_tree_once(tree).files}

    first = keys()
    assert keys() == first
    assert all(first.values())
    (tree / "size.h").write_text("#define SIZE 4\n")
    second = keys()
    assert second["fill.cu"] != first["fill.cu"]
    assert second["other.cu"] == first["other.cu"]
    (tree / "fill.cu").write_text("#define NAME <size.h>\n" + KERNEL.replace('"size.h"', "NAME"))
    assert keys()["fill.cu"] == ""


def test_a_file_with_another_name_is_another(tree, reads):
    read(tree, reads)
    (tree / "other.cu").rename(tree / "renamed.cu")
    assert read(tree, reads) == ["renamed.cu"]


def test_a_tree_in_another_place_is_the_same(tree, reads, tmp_path, monkeypatch):
    read(tree, reads)
    shutil.copytree(tree, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert read(tmp_path / "copy", reads) == []


def test_a_header_that_goes_is_seen(tree, reads):
    read(tree, reads)
    (tree / "size.h").unlink()
    assert read(tree, reads) == ["fill.cu"]


def test_a_header_that_gets_a_kernel_is_seen(tree, reads):
    (tree / "plain.h").write_text("int x;\n")
    read(tree, reads)
    (tree / "plain.h").write_text("__global__ void late(float* out) { *out = 0; }\n")
    assert read(tree, reads) == ["plain.h"]


def test_an_include_of_an_include_is_seen(tree, reads):
    (tree / "size.h").write_text('#include "deep/deeper.h"\n')
    (tree / "deep").mkdir()
    (tree / "deep" / "deeper.h").write_text('#include "deepest.h"\n')
    read(tree, reads)
    (tree / "deep" / "deepest.h").write_text("#define SIZE 7\n")
    assert read(tree, reads) == ["fill.cu"]


def test_an_include_that_a_macro_names_is_not_taken_on_trust(tree, reads):
    (tree / "fill.cu").write_text("#define NAME <size.h>\n" + KERNEL.replace('"size.h"', "NAME"))
    assert "fill.cu" in read(tree, reads)
    assert read(tree, reads) == ["fill.cu"]
    (tree / "size.h").write_text("#define SIZE 8\n")
    assert read(tree, reads) == ["fill.cu"]


def test_where_a_link_leads_is_seen(tree, reads, tmp_path):
    (tree / "size.h").rename(tree / "three.h")
    (tmp_path / "four.h").write_text("#define SIZE 4\n")
    (tree / "size.h").symlink_to("three.h")
    read(tree, reads)
    (tree / "size.h").unlink()
    (tree / "size.h").symlink_to(tmp_path / "four.h")
    assert read(tree, reads) == ["fill.cu"]


def test_another_program_reads_again(tree, reads, monkeypatch):
    read(tree, reads)
    monkeypatch.setattr(treecache, "_reader_key", lambda: "changed")
    assert read(tree, reads) == ["fill.cu", "other.cu"]


def test_the_key_of_the_program_covers_its_files_and_libraries(tmp_path):
    (file := tmp_path / "code.py").write_text("1")
    before = caching.code_key([file], ["click"])
    assert before == caching.code_key([file], ["click"])
    assert before != caching.code_key([file], ["click", "rich"])
    file.write_text("2")
    assert before != caching.code_key([file], ["click"])


def test_a_process_keeps_what_it_had_last(tree, reads, monkeypatch):
    monkeypatch.setattr(treecache, "_RECENT_LIMIT", 8)
    monkeypatch.setattr(treecache, "_WORTH_KEEPING", 1e9)
    monkeypatch.setattr(treecache, "_RECENT", {})
    read(tree, reads)
    assert read(tree, reads) == []
    (tree / "size.h").write_text("#define SIZE 4\n")
    assert read(tree, reads) == ["fill.cu"]


def test_a_damaged_entry_is_read_again(tree, reads):
    read(tree, reads)
    for entry in treecache.UNITS.folder.glob("*.pickle"):
        entry.write_bytes(entry.read_bytes()[:100])
    assert read(tree, reads) == ["fill.cu", "other.cu"]


@pytest.mark.parametrize("content", [b"\0\0", b"// \xff\n" + KERNEL.encode()])
def test_odd_files_are_read_as_without_a_cache(tree, reads, content):
    (tree / "odd.cu").write_bytes(content)
    read(tree, reads)
    read(tree, reads)


def test_a_cache_that_cannot_be_written_costs_the_reading_alone(tree, reads, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    assert read(tree, reads) == read(tree, reads) == ["fill.cu", "other.cu"]


def test_the_cache_keeps_what_was_used_last(tree, tmp_path):
    shelf = caching.Shelf("small", 5000)
    for number in range(4):
        shelf.store(f"key{number}", "x" * 1500)
        os.utime(shelf.folder / f"key{number}.pickle", (number, number))
        assert number == 0 or shelf.load("key0") is not None
    assert [shelf.load(f"key{number}") is not None for number in range(4)] == [True, False, True, True]


@pytest.mark.parametrize("lines", [3, 20])
def test_versions_of_a_tree_share_only_what_stands_where_it_stood(tree, reads, lines):
    def version(number):
        left_out = "#if 0\n" + "no code\n" * number + "#endif\n"
        return f"void helper(float* out) {{}}\n__global__ void mark(float* out) {{\n{left_out}    helper(out);\n}}\n"

    for number in (lines, lines + 4, lines):
        (tree / "fill.cu").write_text(version(number))
        read(tree, reads)
        (complaint,) = read_tree_once(tree).diagnostics
        assert (complaint.span.file, complaint.span.line) == ("fill.cu", 5 + number)


def test_processes_share_the_cache(tree, tmp_path):
    code = (
        "import pathlib; from llmc2py import treecache; treecache._WORTH_KEEPING = -1\n"
        f"print(len(treecache.read_tree_once(pathlib.Path({str(tree)!r})).kernels))"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [run.communicate()[0] for run in runs] == ["2\n"] * 3
    assert len(list(treecache.UNITS.folder.iterdir())) == 2


@pytest.fixture
def read_apart(tree):
    """Read a tree in a process without threads, which may make another; return how many units each time took."""

    def run(setting=""):
        code = f"""
import os, pathlib
from llmc2py import treecache
treecache._UNITS_EACH, treecache._LEAST_BYTES, treecache._WORTH_KEEPING, treecache._RECENT_LIMIT = 2, 0, -1.0, 0
{setting}
seen, read_unit = [], treecache.read_unit
treecache.read_unit = lambda *arguments: seen.append(1) or read_unit(*arguments)
for _ in range(2):
    assert len(treecache.read_tree_once(pathlib.Path({str(tree)!r})).kernels) == 6
    print(len(seen))
"""
        environment = os.environ | {"LLMC2PY_JOBS": "2", "TREE": str(tree)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        assert not done.stderr
        return [int(line) for line in done.stdout.split()]

    for number in range(4):
        (tree / f"more{number}.cu").write_text(KERNEL.replace("fill", f"fill{number}"))
    return run


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process reads")
def test_another_process_reads_meanwhile(read_apart):
    setting = """
library = treecache.TreeReading.library
def later(reading):
    for child in reading._ahead._copies:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return library(reading)
treecache.TreeReading.library = later
"""
    assert read_apart(setting) == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process reads")
def test_what_another_process_leaves_out_is_read_here(read_apart):
    assert read_apart("treecache.TreeReading._read_ahead = lambda *_: os._exit(1)") == [6, 6]


def test_a_process_with_threads_reads_alone(read_apart):
    setting = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    assert read_apart(setting) == [6, 6]
