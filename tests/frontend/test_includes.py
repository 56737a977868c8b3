"""Own headers that only a build's options find: the nearest of a name is taken, or the message says where some are."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.frontend.sources import HeaderIndex
from llmc2py.ir.library import Library
from llmc2py.treecache import read_tree_once

KERNEL = "__global__ void k(float* a) { a[0] = SIDE; }\n"


def write(root: pathlib.Path, **files: str) -> Library:
    """Write files (``a__b_h`` is a/b.h) and read the tree."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_tree_once(root)


def side(library: Library, file: str = "src/k.cu") -> str:
    """Return what the kernel of a file has in the place of SIDE."""
    (kernel,) = [one for one in library.kernels if one.span.file == file]
    assert kernel.slice is not None
    return kernel.slice.items[-1].text.partition("= ")[2].partition(";")[0]


@pytest.mark.parametrize("folder", ["includes", "src__includes", "lib__deep__down"])
@pytest.mark.parametrize("name", ["util.h", "deep/util.h"])
def test_the_only_file_of_a_name_is_taken(tmp_path: pathlib.Path, folder: str, name: str) -> None:
    header = f"{folder}__{name.replace('/', '__').replace('.', '_')}"
    library = write(tmp_path, src__k_cu=f'#include "{name}"\n{KERNEL}', **{header: "#define SIDE 32\n"})
    assert (library.diagnostics, side(library)) == ((), "32")
    assert f"{folder.replace('__', '/')}/{name}" in library.hashes


def test_the_nearest_of_several_is_taken(tmp_path: pathlib.Path) -> None:
    library = write(
        tmp_path,
        one__src__k_cu=f'#include "util.h"\n{KERNEL}',
        one__inc__util_h="#define SIDE 1\n",
        two__src__k_cu=f'#include "util.h"\n{KERNEL}',
        two__inc__util_h="#define SIDE 2\n",
    )
    assert library.diagnostics == ()
    assert (side(library, "one/src/k.cu"), side(library, "two/src/k.cu")) == ("1", "2")


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ('"util.h"', '"util.h" may be any of a/util.h, b/util.h'),
        ("<own/only.h>", "<own/only.h> is not looked for at c/own/only.h (include it with quotes)"),
        ('"other.h"', '"other.h" is not in the source tree'),
    ],
)
def test_what_is_not_taken_is_told(tmp_path: pathlib.Path, include: str, said: str) -> None:
    text = f"#include {include}\n{KERNEL}"
    library = write(tmp_path, src__k_cu=text, a__util_h="", b__util_h="", c__own__only_h="")
    (note,) = library.diagnostics
    assert str(note) == f"src/k.cu:1:1: note: #include {said}: what it defines is unknown"


def test_what_is_kept_knows_of_files_of_the_name(tmp_path: pathlib.Path) -> None:
    library = write(tmp_path, src__k_cu=f'#include "util.h"\n{KERNEL}')
    assert side(library) == "SIDE"
    assert side(write(tmp_path, lib__util_h="#define SIDE 1\n")) == "1"
    assert side(write(tmp_path, lib__util_h="#define SIDE 2\n")) == "2"
    assert side(write(tmp_path, other__util_h="#define SIDE 3\n")) == "SIDE"
    (tmp_path / "lib" / "util.h").unlink()
    assert side(read_tree_once(tmp_path)) == "3"
    assert side(write(tmp_path, src__util_h="#define SIDE 4\n")) == "4"


def test_too_many_files_of_a_name_are_none(tmp_path: pathlib.Path) -> None:
    for number in range(9):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "util.h").write_text("")
        index = HeaderIndex(tmp_path)
        assert len(index.namesakes("util.h")) == (number + 1 if number < 8 else 0)


def test_hidden_folders_and_generated_packages_hold_no_headers(tmp_path: pathlib.Path) -> None:
    library = write(tmp_path, src__k_cu=f'#include "util.h"\n{KERNEL}', pkg__util_h="#define SIDE 1\n")
    assert side(library) == "1"
    (tmp_path / "pkg" / "llmc2py.lock").write_text("{}")
    assert side(read_tree_once(tmp_path)) == "SIDE"
