"""What is called cosmetic cannot change the compiled code: names of locals, comments and white space alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmc2py.drift.codechanges import CodeChange, compare_code
from llmc2py.drift.compare import compare
from llmc2py.drift.formulas import read_body
from llmc2py.drift.slices import KernelSlice

KERNEL = """\
#line 1 "a.cu"
__device__ int shift = 3;
__device__ float twice(float x) { return 2.0f * x; }
template <typename T, int Size>
struct Pack { T lanes[Size]; __device__ T& at(int where) { return lanes[where]; } };
template <typename T>
__global__ void k(T* out, const T* inp, int n) {
    __shared__ float stage[32];
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    auto clip = [=](float low, float high) { return low < high ? low : high; };
    for (int row = first; row < n; row += step) {
        Pack<T, 4> pack;
        float total = 0.0f;
        for (int lane = 0; lane < 4; ++lane) { pack.at(lane) = inp[row * 4 + lane]; total += twice(pack.lanes[lane]); }
        if (const int odd = row & 1) { total -= odd * shift; } else { total += odd; }
        stage[threadIdx.x] = clip(total, 8.0f);
        __syncthreads();
        out[row] = stage[threadIdx.x ^ 1];
    }
}
"""
LOCALS = ("stage", "first", "step", "clip", "low", "high", "row", "pack", "total", "lane", "odd", "x", "where")


def differs(old: str, new: str) -> CodeChange:
    labels = {name: f"@{name}" for name in ("out", "inp", "n", "T")}
    return compare_code(KernelSlice(old, "k"), KernelSlice(new, "k"), labels, labels).change


def renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)


fresh = st.from_regex(r"[a-z][a-z0-9_]{3,6}Q", fullmatch=True)
space = st.sampled_from([" ", "\n", "  ", "\t", " /* note: x = y; */ ", " // rest of line\n"])


@settings(max_examples=12, deadline=None)
@given(st.lists(fresh, min_size=len(LOCALS), max_size=len(LOCALS), unique=True), st.data())
def test_names_of_locals_comments_and_white_space_are_cosmetic(names, data):
    chosen = data.draw(st.sets(st.sampled_from(LOCALS)))
    text = renamed(KERNEL, {name: new for name, new in zip(LOCALS, names, strict=True) if name in chosen})
    head, body = text.split("\n", 1)
    words = body.split(" ")
    places = data.draw(st.sets(st.integers(1, len(words) - 1), max_size=6))
    body = words[0] + "".join((data.draw(space) if n in places else " ") + word for n, word in enumerate(words[1:], 1))
    assert differs(KERNEL, f"{head}\n{body}") is CodeChange.SAME


#: All but the kernel's own header, whose names go by what is said of the parameters.
HEADER = range(KERNEL.index("template <typename T>\n__global__"), KERNEL.index("    __shared__"))
WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[-+*<>=&|^!]+")
TOKENS = [found.span() for found in WORD.finditer(KERNEL) if found.start() > 15 and found.start() not in HEADER]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TOKENS), st.sampled_from(["7", "q", "shift", "row", "total", "+", "-", "n", ""]))
def test_one_token_that_changes_is_never_cosmetic(place, other):
    start, end = place
    if KERNEL[start:end] != other:
        assert differs(KERNEL, KERNEL[:start] + other + KERNEL[end:]) is not CodeChange.SAME


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int a = 1; out[0] = a + shift;", "int shift = 1; out[0] = shift + shift;"),  # captures a global
        ("{ int a = 1; } out[0] = shift;", "{ int shift = 1; out[0] = shift; }"),
        ("int a = 1; { int b = 2; out[0] = a; }", "int a = 1; { int a = 2; out[0] = a; }"),  # shadows a local
        ("int a = 1, b = 2; out[0] = a - b;", "int a = 1, b = 2; out[0] = b - a;"),
        ("Pack<T, 4> p; out[0] = p.lanes[0];", "Pack<T, 4> p; out[0] = p.other[0];"),
        ("extern float f(float y); out[0] = f(1);", "extern float g(float y); out[0] = g(1);"),
        ("float f(float y); out[0] = f(1);", "float g(float y); out[0] = g(1);"),
        ("for (int i = 0; i < 2; ++i) {} out[0] = shift;", "for (int i = 0; i < 2; ++i) {} out[0] = i;"),
        ("\n#if defined(A)\nint a = 1;\n#else\nint a = 2;\n#endif\nout[0] = a;",
         "\n#if defined(A)\nint a = 1;\n#else\nint b = 2;\n#endif\nout[0] = a;"),
        ("out[0] = 'a';", "out[0] = 'b';"),
        ('asm("mov %0, 1;" : "=r"(n));', 'asm("mov %0, 2;" : "=r"(n));'),
        ("out[0] = 1.0f;", "out[0] = 1.0;"),
        ("out[0] = inp[0]; out[1] = inp[1];", "out[1] = inp[1]; out[0] = inp[0];"),
        ("using U = float; out[0] = (U)n;", "using U = double; out[0] = (U)n;"),
    ],
)  # fmt: skip
def test_what_looks_alike_and_is_not_the_same_is_told(old, new):
    head = KERNEL[: KERNEL.index("    __shared__")]
    assert differs(f"{head}{old}\n}}\n", f"{head}{new}\n}}\n") is CodeChange.CODE
    assert differs(f"{head}{old}\n}}\n", f"{head}{old}\n}}\n") is CodeChange.SAME


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Pack<T, 4> p(inp); out[0] = p.at(0);", "Pack<T, 4> q(inp); out[0] = q.at(0);"),  # looks like a prototype
        ("{ int a = 1; } out[0] = shift;", "{ int shift = 1; } out[0] = shift;"),
        ("auto [a, b] = pair(); out[0] = a - b;", "auto [c, d] = pair(); out[0] = c - d;"),
        ("for (auto& v : all()) v = 1;", "for (auto& w : all()) w = 1;"),
        ("auto f = [q = n](int w) { return q + w; }; out[0] = f(1);",
         "auto g = [r = n](int v) { return r + v; }; out[0] = g(1);"),
        ("extern __shared__ float s[]; s[0] = 1;", "extern __shared__ float stage[]; stage[0] = 1;"),
        ("int lanes = 1; Pack<T, 4> p; out[lanes] = p.lanes[0];", "int at = 1; Pack<T, 4> p; out[at] = p.lanes[0];"),
    ],
)  # fmt: skip
def test_locals_of_every_form_may_be_renamed(old, new):
    head = KERNEL[: KERNEL.index("    __shared__")]
    assert differs(f"{head}{old}\n}}\n", f"{head}{new}\n}}\n") is CodeChange.SAME


# --- whole trees


PROGRAM = """\
__global__ void add(float* out, const float* inp, int n) {
    for (int index = threadIdx.x; index < n; index += blockDim.x) out[index] += inp[index];
}
void add_all(float* out, const float* inp, int n) {
    int threads = 128;
    int rounds = (n + threads - 1) / threads;
    if (rounds > 64) { rounds = 64; }
    dim3 grid(rounds, 2);
    add<<<grid, threads>>>(out, inp, n);
}
"""


@settings(max_examples=3, deadline=None)
@given(st.lists(fresh, min_size=4, max_size=4, unique=True))
def test_a_tree_with_other_locals_differs_in_spelling_alone(snapshot_of_text, names):
    new = renamed(PROGRAM, dict(zip(("index", "threads", "rounds", "grid"), names, strict=True)))
    old = snapshot_of_text(PROGRAM)
    assert compare(old, old) == []
    found = compare(old, snapshot_of_text(f"// another comment\n{new}"))
    assert {str(one.meaning) for one in found} == {"cosmetic"}


def read(*lines):
    return read_body(lines, ["n", "out"], {"k": "k", "j": "j"}, [])


def test_a_local_that_is_set_again_has_its_value_of_the_moment():
    body = read("g = n", "plan.launch(k, g, 32, 0, out)", "g = n * 2", "plan.launch(k, g, 32, 0, out)")
    assert [one.configuration for one in body.launches] == ["[n, 32]", "[n * 2, 32]"]


def test_a_local_that_branches_set_stays_a_local_and_its_name_does_not_count():
    lines = ("g = 1", "if n > 4:", "    g = n", "plan.launch(k, g, 32, 0, out)")
    body = read(*lines)
    assert body.launches[0].configuration == "[local1, 32]"
    assert body == read(*(line.replace("g", "h") for line in lines if "plan" not in line), lines[3].replace(" g", " h"))
    assert body.digest != read(*lines[:2], "    g = n + 1", lines[3]).digest


def test_what_a_loop_keeps_for_its_next_round_stays_a_local():
    lines = ("for i in range(n):", "    if i > 0:", "        plan.launch(k, g, 32, 0, out)", "    g = i")
    body = read(*lines)
    assert body.launches[0].configuration == "[local1, 32]"
    assert body.digest != read(*lines[:3], "    g = i + 1").digest


def test_which_of_two_locals_a_launch_takes_counts():
    head = ("g, h = f(n)",)
    one = read(*head, "plan.launch(k, g, 32, 0, out)", "plan.launch(j, h, g, 0, out)")
    other = read(*head, "plan.launch(k, h, 32, 0, out)", "plan.launch(j, h, g, 0, out)")
    assert one != other


def test_memory_that_is_taken_twice_is_not_taken_once():
    one = read("s = plan.scratch('float', n)", "plan.launch(k, 1, 1, 0, s, s)")
    other = read("s = plan.scratch('float', n)", "t = plan.scratch('float', n)", "plan.launch(k, 1, 1, 0, s, t)")
    assert one.digest != other.digest


def test_an_expression_too_deep_to_be_taken_apart_is_compared_as_it_stands():
    deep = [f"g = {' + '.join(['n'] * 5000)}", "plan.launch(k, g, 32, 0, out)"]
    assert read(*deep) == read(*deep)
    assert read(*deep).digest != read(deep[0].replace("n +", "out +", 1), deep[1]).digest
