"""Sources that nobody would write and that a tree may hold all the same: each is read in seconds, or refused."""

from __future__ import annotations

import os

import pytest

from benchmarks.fuzz import cpu_limit
from llmc2py.diagnostics import Severity
from llmc2py.frontend import guarded
from llmc2py.frontend.preprocess import LARGEST_FILE
from llmc2py.frontend.reader import read_tree
from llmc2py.pipeline import generate, plain_references

GOOD = "__global__ void good(float* o, const float* x, int n) { int i = threadIdx.x; if (i < n) o[i] = x[i]; }\n"
K = "__global__ void k(float* o) { o[0] = 1; }\n"
N = 3000
DIGITS = "9" * 5000

BOMB = "#define A0 1\n" + "".join(f"#define A{i + 1} A{i} + A{i}\n" for i in range(40))
BOMB_OF_CALLS = "#define A0(x) x x\n" + "".join(f"#define A{i + 1}(x) A{i}(x) A{i}(x)\n" for i in range(30))

#: What is read whole: the kernel k is found, and nothing is an error.
READ = {
    "parentheses": f"__global__ void k(float* o) {{ o[0] = {'(' * N}1{')' * N}; }}\n",
    "braces": f"__global__ void k(float* o) {{ {'{' * N}o[0] = 1;{'}' * N} }}\n",
    "a long sum in a kernel": f"__global__ void k(float* o) {{ o[0] = {'+'.join(['o[1]'] * N)}; }}\n",
    "open parentheses": K + "int x = " + "(" * N,
    "open braces": K + "void f() " + "{" * N,
    "parentheses of a launcher": f"{K}void go(float* o, int n) {{ int m = {'(' * N}n{')' * N}; k<<<m, 32>>>(o); }}\n",
    "a long sum of a launcher": f"{K}void go(float* o, int n) {{ int m = {'+'.join('n' * N)}; k<<<m, 32>>>(o); }}\n",
    "ifs of a launcher": f"{K}void go(float* o, int n) {{ {'if (n) {' * N} k<<<n, 32>>>(o); {'}' * N} }}\n",
    "else ifs": f"{K}void go(float* o, int n) {{ {'if (n) { k<<<n, 1>>>(o); } else ' * N} return; }}\n",
    "parentheses of a reference": f"{K}void k_cpu(float* o, int n) {{ o[0] = {'(' * N}n{')' * N}; }}\n",
    "a long sum of a reference": f"{K}void k_cpu(float* o, int n) {{ o[0] = {'+'.join('n' * N)}; }}\n",
    "braces of a reference": f"{K}void k_cpu(float* o) {{ {'{' * N}o[0] = 1;{'}' * N} }}\n",
    "conditions": "#if 1\n" * N + K + "#endif\n" * N,
    "open conditions": "#if ENABLE_BF16\n" * 300 + K,
    "ends of conditions": K + "#endif\n" * N,
    "parentheses of a condition": f"#if {'(' * N}1{')' * N}\n{K}#endif\n",
    "templates": "template <int N> struct A {};\n"
    f"__global__ void k(float* o) {{ {'A<' * 500}1{'>' * 500} a; o[0] = 1; }}\n",
    "an include of itself": '#include "x.cu"\n' + K,
    "macros of themselves": "#define A A\n#define B C\n#define C B\n__global__ void k(float* o) { o[0] = A + B; }\n",
    "aliases of themselves": "typedef A B;\ntypedef B A;\n__global__ void k(float* o) { A* a; o[0] = 1; }\n",
    "powers": "#if 9**9**9\n#endif\n" + K,
    "shifts": "#if 1 << 1000000000000\n#endif\nconstexpr long S = 1 << 1000000000000;\n"
    + K + "void go(float* o) { k<<<S, 32>>>(o); k<<<1 << 100000000000, 32>>>(o); }\n",
    "divisions by zero": "#if 1 / 0\n#endif\n#if 1 % 0\n#endif\n"
    + K + "void go(float* o) { k<<<1 / 0, 1 % 0>>>(o); }\n",
    "numbers": f"{K}constexpr int Z = {DIGITS};\nenum {{ E = {DIGITS}, F = 1e999, G }};\n"
    f"void go(float* o) {{ k<<<{DIGITS}, 09>>>(o); k<<<0x{'f' * 50}, 1e999>>>(o); }}\n",
    "products": K + "".join(f"const long P{i + 1} = P{i} * P{i};\n" for i in range(40)).replace("P0", "4096")
    + "void go(float* o) { k<<<P40, 32>>>(o); }\n",
    "directives of nothing": K + "#\n##\n#foo\n#define\n#define 1\n#define F(\n#define G(,)\n#define H(1)\n"
    "#define I(a,\n#include\n#ifdef\n#ifndef\n#endif\n#endif\n#if\n#elif\n#else\n#endif\n#endif\n#line x\n#undef\n"
    "#pragma\n#if !\n#endif\n"
    "#if !defined\n#endif\n#if !defined(\n#endif\n#define J(x) #\n#define L(x) ##x##\nJ(1)\n#error\n#warning\n",
    "a backslash at the end": K + "#define A \\",
    "lines that lie": f'#line 5 "../../../etc/passwd"\n{K}#line 0\n#line 3 ""\n#line {DIGITS} "x"\n',
    "words of CUDA defined away": "#ifndef __CUDACC__\n#define __global__\n#endif\n#define __device__\n" + K,
    "a missing operand": "__global__ void k(float* o, float* p, bool b) { float* q = b ?: p; q[] = o[]; o[0] = 1; }\n"
    "void go(float* o, int n) { int m = n ?: 2, l[] = {n}; k<<<l[], m>>>(o, o, n); }\n",
    "parameters without names": "__global__ void k(float*, int, float* o) { o[0] = 1; }\n"
    "void go(float* o, int, int n) { k<<<n, 32>>>(o, n, o); }\n",
    "control characters": K + "// \ufffe\uffff \u2028 \x0b\x0c\x1b[31m\n#include \"a\x1b[31m.h\"\n",
    "a long line": K + "// " + "x" * 1_000_000 + "\n",
}  # fmt: skip

#: What costs the file, or the kernel: an error says so.
REFUSED = {
    "a bomb": (f"{BOMB}__global__ void k(float* o) {{ o[0] = A40; }}\n", "macros expand to more than 100,000"),
    "a bomb of calls": (f"{BOMB_OF_CALLS}__global__ void k(float* o) {{ o[0] = A30(1); }}\n", "more than 100,000"),
    "namespaces": ("namespace a {" * N + K + "}" * N, "it nests too deeply"),
    "templates of templates": (f"{'template <' * N}typename T{'>' * N} struct A {{}};\n{K}", "a kernel begins here"),
    "an open comment": (K + "/* no end\n__global__ void lost(float* o) {}\n", "a kernel begins here"),
    "includes without end": ('#include "x.cu"\n' * 60 + K, "includes more than 2000 files"),
}  # fmt: skip


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    (root / "good.cu").write_text(GOOD)
    return root


def names(library):
    return {kernel.name for kernel in library.kernels}


def errors(found):
    return [str(item) for item in found if item.severity is Severity.ERROR]


@pytest.mark.parametrize("what", READ)
def test_what_is_read(tree, what):
    (tree / "x.cu").write_text(READ[what], encoding="utf-8")
    with cpu_limit(10):
        made = generate(tree)
    assert {"good", "k"} <= names(made.library)
    assert {"good.py", "x.py"} <= made.files.keys()
    assert errors(made.diagnostics) == []
    assert all(str(item).isprintable() for item in made.diagnostics)
    for name, text in made.files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(tree, monkeypatch, what):
    monkeypatch.setattr(guarded, "_MOST_TOKENS", 100_000)
    text, reason = REFUSED[what]
    (tree / "x.cu").write_text(text)
    with cpu_limit(10):
        made = generate(tree)
    assert "good" in names(made.library)
    assert any(reason in line for line in errors(made.diagnostics)), made.diagnostics


def test_many_kernels_are_not_slow(tree):
    (tree / "x.cu").write_text("".join(f"__global__ void k{i}(float* o) {{ o[0] = {i}; }}\n" for i in range(1000)))
    with cpu_limit(10):
        assert len(generate(tree).library.kernels) == 1001


@pytest.mark.parametrize(
    "include",
    ['"/etc/passwd"', '"../../../../../../../etc/passwd"', "<../../../../../../etc/passwd>", '"out.h"', "FILE"],
)
def test_includes_that_leave_the_tree_are_refused(tree, include):
    secret = tree.parent / "secret.h"
    secret.write_text('static const char* secret = "root:";\n')
    (tree / "out.h").symlink_to(secret)
    (tree / "x.cu").write_text(f'#define FILE "../secret.h"\n#include {include}\n{K}')
    made = generate(tree)
    assert names(made.library) == {"good", "k"}
    (line,) = [str(item) for item in made.diagnostics if item.severity is Severity.WARNING]
    assert line.startswith("x.cu:2:1: warning: #include ")
    assert line.endswith(" leaves the source tree: ignored")
    assert "root:" not in "".join(made.files.values())


def test_loops_of_links(tree):
    (tree / "loop").symlink_to(".", target_is_directory=True)
    (tree / "up").symlink_to("../..", target_is_directory=True)
    (tree / "self.cu").symlink_to("self.cu")
    (tree / "one.h").symlink_to("two.h")
    (tree / "two.h").symlink_to("one.h")
    (tree / "x.cu").write_text('#include "one.h"\n#include "loop/loop/loop/good.cu"\n' + K)
    library = read_tree(tree)
    assert {"good", "k"} == names(library)
    (line,) = errors(library.diagnostics)
    assert line.startswith("self.cu:1:1: error: cannot be read: ")
    references, _ = plain_references(tree)
    assert references == []


def test_large_files(tree):
    for name in ("large.cu", "large.h", "large.c"):
        with (tree / name).open("wb") as file:
            file.write(b"// __global__ void k() {}\n")
            file.seek(50 << 20)
            file.write(b"\n")
    os.truncate(tree / "large.c", LARGEST_FILE + 1)
    (tree / "x.cu").write_text('#include "large.h"\n' + K)
    with cpu_limit(10):
        made = generate(tree)
    assert names(made.library) == {"good", "k"}
    assert [line.split(" is larger")[0] for line in errors(made.diagnostics)] == [
        "large.cu:1:1: error: cannot be read:",
        "large.h:1:1: error: cannot be read:",
    ]
    warnings = [str(item) for item in made.diagnostics if item.severity is Severity.WARNING]
    assert any('#include "large.h" is ignored: it is larger than 8 MiB' in line for line in warnings)
    with cpu_limit(10):
        references, said = plain_references(tree)
    assert references == []
    assert ["larger than 8 MiB" in str(item) for item in said] == [True]


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "CRLF": (GOOD + K).replace("\n", "\r\n").encode(),
        "old Mac line ends": (GOOD + K).replace("\n", "\r").encode(),
        "UTF-8 BOM": b"\xef\xbb\xbf" + (GOOD + K).encode(),
        "Latin-1 comment": b"// caf\xe9 \xa9\n" + (GOOD + K).encode(),
        "UTF-8 comment": "// café ©\n".encode() + (GOOD + K).encode(),
    }.items(),
)
def test_encodings_and_line_ends(tmp_path, name, data):
    (tmp_path / "x.cu").write_bytes(data)
    (tmp_path / "h.h").write_bytes(data.replace(b"good", b"other"))
    (tmp_path / "y.cu").write_bytes(b'#include "h.h"\r\n' + K.replace(" k(", " y(").encode())
    made = generate(tmp_path)
    assert errors(made.diagnostics) == [], name
    assert {"good", "k", "other", "y"} == names(made.library)
    line = {"Latin-1 comment": 2, "UTF-8 comment": 2}.get(name, 1)
    assert {str(kernel.span) for kernel in made.library.kernels if kernel.name == "good"} == {f"x.cu:{line}:1"}
    assert all("\r" not in text for text in made.files.values())


def test_nul_bytes_cost_the_file_or_the_include(tree):
    (tree / "x.cu").write_bytes(b"\0" + K.encode())
    (tree / "h.h").write_bytes(b"\0")
    (tree / "y.cu").write_text('#include "h.h"\n' + K)
    made = generate(tree)
    assert names(made.library) == {"good", "k"}
    assert errors(made.diagnostics) == ["x.cu:1:1: error: cannot be read: holds NUL bytes: not a text file"]
    assert 'y.cu:1:1: warning: #include "h.h" is ignored: it holds NUL bytes: not a text file' in map(
        str, made.diagnostics
    )
