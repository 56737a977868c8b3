"""A line that is one token comes out as if pcpp had cut it into many."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmc2py.frontend import preprocess as module
from llmc2py.frontend.preprocess import preprocess

_PIECES = st.sampled_from(
    ["a", "B", "f", " ", "  ", "\t", "\n", "\n", "(", ")", ",", ";", "//", "/*", "*/", '"', "'", "\\\n", "\\", "#",
     "##", "__LINE__", "\n#define B a B\n", "\n#define f(x, y) x f y\n", "\n#define g() f\n", "\n#undef B\n",
     "\n#if B\n", "\n#ifdef ENABLE_BF16\n", "\n#else\n", "\n#endif\n", "\n#ifndef H\n", "g()", "f(", "f", " 1.5e3f ",
     "B)", "é", "\n#include \"b.h\"\n", "// f(\n", "/* B */", '"// B"', "'\"'", "R\"(", "{", "}", " 0x1F ",
     "#pragma once"]
)  # fmt: skip


def _preprocessed(folder, text):
    (folder / "a.cu").write_text(text, encoding="utf-8")
    root = folder.resolve()
    try:
        return preprocess(root / "a.cu", root, {}, {})
    except Exception as error:  # what pcpp chokes on it has to choke on either way
        return type(error), str(error)


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(_PIECES, max_size=40))
@example(pieces=["\n#define f(x, y) x f y\n", "f", "\n", "// f(\n", "\n", "(", "a", ",", "\n", "B", ")", "a"])
@example(pieces=["\n#define g() f\n", "\n#define f(x, y) x f y\n", "g()", "\n", "(", "a", "\n", ",", "B", ")"])
@example(pieces=["a", "/*", "\n", "B", "\n", "*/", "a", "//", "B", "\n", "a"])
@example(pieces=["a", "//", "\\\n", "B", "\n", "B"])
def test_lines_are_those_of_pcpp(tmp_path_factory, pieces):
    folder = tmp_path_factory.mktemp("lines")
    (folder / "b.h").write_text("#define B b\nint b; // B\n", encoding="utf-8")
    ours = _preprocessed(folder, "".join(pieces))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delattr(module._Preprocessor, "group_lines")
        assert ours == _preprocessed(folder, "".join(pieces))


def test_most_lines_are_one_token(tmp_path, monkeypatch):
    seen = []
    group_lines = module.group_lines

    def recording(*arguments):
        for line in group_lines(*arguments):
            seen.append(len(line))
            yield line

    monkeypatch.setattr(module, "group_lines", recording)
    (tmp_path / "a.cu").write_text("#define N 3\nint x = a + b * c;\nint y = N;\nint z[] = {1, 2};  // N\n")
    text = preprocess(tmp_path.resolve() / "a.cu", tmp_path.resolve(), {}, {}).text
    assert " ".join(text.split()) == "int x = a + b * c; int y = 3; int z[] = {1, 2};"
    assert seen[1] == 2
    assert seen[3] == 3
