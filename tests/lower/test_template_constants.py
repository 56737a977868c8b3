"""Template parameters of classes and host functions: replaced by arguments, and never asked of who calls."""

import pathlib

import pytest

from llmc2py.pipeline import generate

HEAD = """
constexpr int T = 128;
constexpr int WARPS = T / 32;
template <int N> struct Cfg {
    static constexpr int block = N * 2;
    static constexpr int wide = block * 2;
};
struct Plain { static constexpr int warps = 4; static constexpr int block = warps * 32; };
template <int N, class A, class B> struct Mixed { static constexpr int bytes = N * sizeof(A); };
template <class A> struct Vec { static constexpr int n = 16; };
template <> struct Vec<double> { static constexpr int n = 2; };
using C8 = Cfg<8>;
using M = Mixed<3, double, float>;
template <int N> constexpr int dbl() { return N * 2; }
template <int N> constexpr int quad() { return dbl<N>() + Cfg<N>::block; }
template <int N = 4> int or_four() { return N; }
template <class A> int bytes() { return sizeof(A); }
template <class A> A up(A a, A b) { return (a + b - 1) / b; }
template <int N, class A> int steps(int n) { int per = N * sizeof(A); return (n + per - 1) / per; }
inline int blocks(int n) { return (n + T - 1) / T; }
int fact(int n) { return n < 2 ? 1 : n * fact(n - 1); }
int halves(int n) { int half = n / 2; if (half < 1) return 0; return 1 + halves(half); }
__global__ void k(float* a, int n) { if (n) a[0] = 1; }
"""


def lowered(folder: pathlib.Path, launchers: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names of the parameters with the lines of each launcher, and why others are not lowered."""
    (folder / "k.cu").write_text(HEAD + launchers)
    plan = generate(folder).plan
    plans = [one for module in plan.modules for one in module.launchers]
    assert not [one.name for one in plans if one.asked]
    lines = {one.name: [*(line for helper in one.helpers for line in helper.body), *one.body] for one in plans}
    return lines, {one.launcher.name: one.reason for one in plan.not_lowered}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("Cfg<32>::block", "64"),
        ("Cfg<32>::wide", "128"),
        ("C8::block", "16"),
        ("Plain::block", "128"),
        ("M::bytes", "24"),
        ("Vec<float>::n", "16"),
        ("Vec<double>::n", "2"),
        ("dbl<16>()", "32"),
        ("dbl<T>()", "256"),
        ("quad<8>()", "32"),
        ("or_four()", "4"),
        ("or_four<2>()", "2"),
        ("bytes<double>()", "8"),
        ("up<int>(n, 8)", "ceil_div(n, 8)"),
        ("up(up(n, 8), 8)", "ceil_div(ceil_div(n, 8), 8)"),
    ],
)
def test_arguments_stand_in_the_place_of_parameters(tmp_path: pathlib.Path, block: str, text: str) -> None:
    lines, _ = lowered(tmp_path, f"void run(float* a, int n) {{ k<<<1, {block}>>>(a, n); }}")
    assert lines["run"] == [f"plan.launch(k, 1, {text}, 0, a, n)"]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("dbl()", "the template parameter N of dbl is not given here"),
        ("Cfg<sizeof(float)>::block", "only names and numbers"),
        ("fact(n)", "fact() calls itself"),
        ("halves(n)", "halves() calls itself"),
        ("steps<4>(n)", "the size of A is not known"),
    ],
)
def test_what_cannot_be_replaced_is_said(tmp_path: pathlib.Path, block: str, reason: str) -> None:
    _, refused = lowered(tmp_path, f"void run(float* a, int n) {{ k<<<1, {block}>>>(a, n); }}")
    assert reason in refused["run"]


def test_the_launchers_own_parameters_are_arguments_too(tmp_path: pathlib.Path) -> None:
    text = "template <int B, class E> void run(E* a, int n) { k<<<dbl<B>(), steps<B, E>(n)>>>((float*)a, n); }"
    lines, _ = lowered(tmp_path, text)
    assert lines["run"] == [
        'per = N * plan.sizeof("E")',
        "return ceil_div(n, per)",
        'plan.launch(k, plan.template["B"] * 2, steps_E(plan, n, plan.template["B"]), 0, plan.cast(a, "float*"), n)',
    ]


def test_a_constant_of_a_local_is_not_computed_before_it(tmp_path: pathlib.Path) -> None:
    text = "void run(float* a, int n) { const int b = n > 9 ? 2 : 4; k<<<1, Cfg<b>::block>>>(a, n); }"
    lines, _ = lowered(tmp_path, text)
    assert lines["run"] == ["b = 2 if n > 9 else 4", "plan.launch(k, 1, b * 2, 0, a, n)"]


def test_a_specialization_that_a_parameter_may_choose_is_not_guessed(tmp_path: pathlib.Path) -> None:
    _, refused = lowered(tmp_path, "template <class E> void run(E* a, int n) { k<<<1, Vec<E>::n>>>((float*)a, n); }")
    assert "which of them is meant cannot be told" in refused["run"]


def test_locals_do_not_stand_in_for_constants_of_the_file(tmp_path: pathlib.Path) -> None:
    lines, _ = lowered(tmp_path, "void run(float* a, int n, int T) { k<<<blocks(n), WARPS>>>(a, T); }")
    assert lines["run"] == ["return ceil_div(n, 128)", "plan.launch(k, blocks(n), 4, 0, a, T)"]
