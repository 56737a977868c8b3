"""Included files are expanded once for all files in which their names mean the same."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.frontend import preprocess as module
from llmc2py.frontend.headers import HeaderCache
from llmc2py.frontend.preprocess import PreprocessedText, preprocess


def read(root: pathlib.Path, files: dict[str, str], headers: HeaderCache) -> dict[str, PreprocessedText]:
    for name, text in files.items():
        (root / name).write_text(text)
    return {name: preprocess(root / name, root, {}, headers) for name in files if name.endswith(".cu")}


@pytest.fixture
def expanded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The headers that were expanded, by name."""
    found: list[str] = []
    expand = module._Preprocessor._expand_header

    def noting(self: object, text: str, source: str, path: str) -> object:
        found.append(pathlib.Path(path).name)
        return expand(self, text, source, path)

    monkeypatch.setattr(module._Preprocessor, "_expand_header", noting)
    return found


HEADER = "#ifndef H\n#define H\n#define TWICE(x) (WIDTH * (x))\nint width = TWICE(2);\n#undef GONE\n#endif\n"


def test_macros_that_a_header_does_not_name_do_not_matter_to_it(tmp_path, expanded):
    files = {
        "h.h": HEADER,
        "a.cu": '#define A_ONLY 1\n#include "h.h"\nint a = TWICE(A_ONLY);\n',
        "b.cu": '#define B_ONLY 2\n#define GONE 3\n#include "h.h"\nint b = TWICE(B_ONLY) + A_ONLY;\n',
        "c.cu": '#define C_ONLY 4\n#include "h.h"\nint c = TWICE(C_ONLY + GONE);\n',
    }
    texts = read(tmp_path, files, {})
    assert expanded == ["h.h", "h.h"]  # GONE is named there
    assert "int a = (WIDTH * (1));" in texts["a.cu"].text
    assert "int b = (WIDTH * (2)) + A_ONLY;" in texts["b.cu"].text
    assert "int c = (WIDTH * (4 + GONE));" in texts["c.cu"].text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("#define WIDTH 4", "#define WIDTH 8"),
        ("#define WIDTH LANES\n#define LANES 4", "#define WIDTH LANES\n#define LANES 8"),
        ("#define WIDTH", "#define WIDTH()"),
        ("", "#define WIDTH 1"),
        ("#define H", ""),
    ],
)
def test_macros_that_it_names_matter_and_so_do_those_that_these_name(tmp_path, first, second):
    files = {f"{n}.cu": f'{text}\n#include "h.h"\nint last = TWICE(1);\n' for n, text in enumerate((first, second))}
    shared = read(tmp_path, {"h.h": HEADER, **files}, {})
    alone = {name: read(tmp_path, {"h.h": HEADER, name: text}, {})[name] for name, text in files.items()}
    assert shared == alone
    assert shared["0.cu"].text != shared["1.cu"].text


def test_a_name_that_is_put_together_may_be_any_macro(tmp_path):
    header = "#define JOIN(a, b) a##b\nint joined = JOIN(LA, NES);\n"
    texts = read(
        tmp_path,
        {"h.h": header, "a.cu": '#define LANES 4\n#include "h.h"\n', "b.cu": '#define LANES 8\n#include "h.h"\n'},
        {},
    )
    assert "int joined = 4;" in texts["a.cu"].text
    assert "int joined = 8;" in texts["b.cu"].text


def test_a_paste_outside_of_the_header_counts_where_the_header_calls_it(tmp_path):
    before = "#define JOIN(a, b) a##b\n"
    texts = read(
        tmp_path,
        {
            "h.h": "int joined = JOIN(LA, NES);\n",
            "a.cu": f'{before}#define LANES 4\n#include "h.h"\n',
            "b.cu": f'{before}#define LANES 8\n#include "h.h"\n',
        },
        {},
    )
    assert "int joined = 4;" in texts["a.cu"].text
    assert "int joined = 8;" in texts["b.cu"].text


def test_what_a_header_includes_counts_as_its_own(tmp_path):
    files = {
        "h.h": '#include "inner.h"\n',
        "inner.h": "int lanes = LANES;\n",
        "a.cu": '#define LANES 4\n#include "h.h"\n',
        "b.cu": '#define LANES 8\n#include "h.h"\n',
    }
    texts = read(tmp_path, files, {})
    assert "int lanes = 4;" in texts["a.cu"].text
    assert "int lanes = 8;" in texts["b.cu"].text
    assert texts["b.cu"].includes == ("h.h", "inner.h")


@pytest.mark.parametrize("used", ["__COUNTER__", "NUMBER"])
def test_each_number_of_a_counter_is_there_once(tmp_path, used):
    """Also where files that include a header draw numbers themselves, before it or behind it."""
    files = {
        "h.h": f'int first = {used};\n#include "inner.h"\n',
        "inner.h": f"int second = {used};\n",
        "a.cu": '#define NUMBER __COUNTER__\n#include "h.h"\nint third = NUMBER;\n',
        "b.cu": '#define NUMBER __COUNTER__\nint zero = NUMBER;\n#include "h.h"\n#include "inner.h"\n',
    }
    texts = read(tmp_path, files, {})
    numbers = {name: [line.split()[-1] for line in one.text.splitlines() if line] for name, one in texts.items()}
    assert numbers == {"a.cu": ["0;", "1;", "2;"], "b.cu": ["0;", "1;", "2;", "3;"]}
