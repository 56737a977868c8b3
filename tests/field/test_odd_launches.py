"""Nothing that launches vanishes: each launch is in a launcher that is lowered, or told with place and reason."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from llmc2py.frontend.launchwords import LAUNCH_CALLS
from llmc2py.frontend.preprocess import preprocess
from llmc2py.frontend.reader import read_tree
from llmc2py.frontend.sources import find_sources
from llmc2py.listing import summary

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = """\
template <typename T> __global__ void k(T* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = 1; }
__global__ void p(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = 2; }
"""
LOWERED = (
    KERNELS
    + """\
struct S {
    static const int block = 64;
    static int blocks(int n) { int most = 2; return n < most ? n : most; }
    static void inside(float* a, int n) { p<<<blocks(n), block>>>(a, n); }
    static void outside(float* a, int n);
};
void S::outside(float* a, int n) { inside(a, n); p<<<1, S::block>>>(a, n); }
auto lambda = [](float* a, int n) { p<<<1, n>>>(a, n); };
void calls(float* a, int n) { S::inside(a, n); lambda(a, n); }
void by_address(float* a, int n) {
    void* args[] = {&a, &n};
    cudaLaunchKernel((void*)k<float>, dim3(1), dim3(n), args, 0, 0);
}
cudaError_t by_branch(float* a, int n) {
    if (n > 3) { void* args[] = {&a, &n}; return cudaLaunchKernel((const void*)&p, dim3(1), dim3(n), args, 0, 0); }
    int m = 2;
    void* args[] = {(void*)&a, &m};
    cudaError_t error = cudaLaunchKernel((void*)p, 1, 32, args);
    return error;
}
void named(float* a, int n) { auto f = k<float>; { auto f = &p; f<<<1, n>>>(a, n); } f<<<2, n>>>(a, n); }
void plan(float* a, int n) { p<<<1, n>>>(a, n); }
void calls_plan(float* a, int n) { plan(a, n); }
"""
)
LAUNCHED = {
    "S_inside": [("p", (2, 1, 1), 64)],
    "S_outside": [("p", (2, 1, 1), 64), ("p", (1, 1, 1), 64)],
    "lambda_": [("p", (1, 1, 1), 5)],
    "calls": [("p", (2, 1, 1), 64), ("p", (1, 1, 1), 5)],
    "by_address": [("k", (1, 1, 1), 5)],
    "by_branch": [("p", (1, 1, 1), 5)],
    "named": [("p", (1, 1, 1), 5), ("k", (2, 1, 1), 5)],
    "plan_launcher": [("p", (1, 1, 1), 5)],
    "calls_plan": [("p", (1, 1, 1), 5)],
}

#: Each line launches once, and says in a comment what of the reason is wanted.
REFUSED = (
    KERNELS
    + """\
struct M { void member(float* a) { p<<<1, 1>>>(a, 1); } };  // in a member function of M
struct C { C(float* a) { p<<<1, 1>>>(a, 1); } };  // in a member function of C
struct O { void operator()(float* a) const { p<<<1, 1>>>(a, 1); } };  // in a member function of O
class D { public: virtual ~D() { p<<<1, 1>>>(nullptr, 1); } };  // in a member function of D
struct F { friend void fr(float* a) { p<<<1, 1>>>(a, 1); } };  // in a friend function that is defined in F
struct N { template <int B> void made(float* a) { p<<<1, B>>>(a, B); } };  // in a member function of N
template <typename T> struct T1 { static void go(T* a) { k<T><<<1, 1>>>(a, 1); } };  // of the class template T1
struct U { static int most; static void uses(float* a) { p<<<1, most>>>(a, 1); } };  // 'most': belongs to U
struct V { int n; void later(float* a); }; void V::later(float* a) { p<<<1, n>>>(a, n); }  // is a member of V
__device__ void child(float* a) { p<<<1, 1>>>(a, 1); }  // in device code
int x = (p<<<1, 1>>>(nullptr, 0), 3);  // outside of a function
void at_once(float* a) { [&] { p<<<1, 1>>>(a, 1); }(); }  // a call of what has no name
void local(float* a) { struct L { void go(float* a) { p<<<1, 1>>>(a, 1); } }; L l; l.go(a); }  // struct specifier
void ex(float* a, cudaLaunchConfig_t* c) { cudaLaunchKernelEx(c, k<float>, a, 1); }  // is a struct
void ex2(float* a) { cudaLaunchConfig_t c; c.gridDim = 1; cudaLaunchKernelEx(&c, p, a, 1); }  // is a struct
void driver(void** args, long f) { cuLaunchKernel((CUfunction)f, 1, 1, 1, 1, 1, 1, 0, 0, args, 0); }  // given from
void handle(long f) { cuLaunchKernel((CUfunction)f, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, 0); }  // no source names
void filled(float* a) { void* args[1]; args[0] = &a; cudaLaunchKernel((void*)p, 1, 1, args); }  // cannot be lowered
void twice(float* a) { p<<<1, 1>>>(a, 1); }  // is overloaded
void twice(double* a) { k<double><<<1, 1>>>(a, 1); }  // is overloaded
struct I { int x = (p<<<1, 1>>>(nullptr, 1), 3); };  // in a member function of I
struct { void unnamed(float* a) { p<<<1, 1>>>(a, 1); } } object;  // in a member function of a class without a name
void tried(float* a) { try { p<<<1, 1>>>(a, 1); } catch (...) {} }  // is not supported
"""
)


def plain_count(root: pathlib.Path) -> int:
    """Count launches as text: ``<<<`` and the names of CUDA's functions, outside of comments, strings and kernels."""
    found = 0
    for path in find_sources(root.resolve())[0]:
        text = preprocess(path, root.resolve(), {}, {})
        own = [line if text.span(row).file == text.file else "" for row, line in enumerate(text.text.split("\n"))]
        bare = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', "", "\n".join(own), flags=re.S)
        found += len(re.findall(rf"<<<|\b(?:{'|'.join(LAUNCH_CALLS)})\s*\(", bare))
    return found


def test_what_is_as_good_as_a_function_is_lowered(case):
    built = case({"a.cu": LOWERED.replace("lambda", "lambda_")})
    assert built.not_lowered == ()
    assert built.diagnostics == []
    a = np.zeros(8, np.float32)
    for name, launches in LAUNCHED.items():
        operations = getattr(built["a"], name).plan(a, 5).operations
        assert [(one.kernel, one.grid, one.block[0]) for one in operations] == launches, name


def test_launches_by_address_run(case, xp):
    built = case({"a.cu": LOWERED.replace("lambda", "lambda_")})
    a = xp.zeros(8, np.float32)
    built["a"].by_address(a, 3)
    assert a.tolist() == [1] * 3 + [0] * 5
    built["a"].by_branch(a, 1)
    assert a.tolist() == [2] * 2 + [1] + [0] * 5


def test_the_rest_is_told_with_its_place_and_the_reason(case):
    built = case({"a.cu": REFUSED})
    told = {item.launcher.span.line: f"{item.span}: {item.reason}" for item in built.not_lowered}
    wanted = {number: line for number, line in enumerate(REFUSED.splitlines(), 1) if " // " in line}
    assert told.keys() == wanted.keys()
    for number, line in wanted.items():
        reason = line.rpartition(" // ")[2]
        assert told[number].startswith(f"a.cu:{number}:"), line
        assert reason.strip() in told[number], line


@pytest.mark.parametrize("text", [None, LOWERED, REFUSED], ids=["vendor", "lowered", "refused"])
def test_a_plain_count_finds_as_many(tmp_path, text):
    if text is not None:
        (tmp_path / "a.cu").write_text(text)
    root = ROOT / "vendor" / "llm.c" if text is None else tmp_path
    assert sum(launcher.launch_sites for launcher in read_tree(root).launchers) == plain_count(root)


TEXT = """\
// p<<<1, 1>>>(a, 1); cudaLaunchKernel(x)
const char* help = "p<<<1, 1>>>(a)"; /* cudaLaunchKernel( */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** args);
template <> std::ostream& operator<<<int>(std::ostream& out, int x);
void split(float* a) { p << <1, 1 >> > (a, 1); }
broken ( { p<<<1, 1>>>(a, 1);
"""


def test_only_code_launches(case):
    built = case({"a.cu": KERNELS + TEXT})
    assert {one.name: one.launch_sites for one in built.library.launchers if one.name == "split"} == {"split": 1}
    assert sum(one.launch_sites for one in built.library.launchers) == 2
    (lost,) = built.not_lowered
    assert f"{lost.span}: {lost.reason}" == "a.cu:8:13: 'p<<<1, 1>>>(a, 1)': in code that cannot be parsed"


def test_overloaded_kernels_are_counted_and_launches_of_them_told(case):
    source = """\
__global__ void same(float* a, float value) { a[0] = value; }
__global__ void same(float* a, int value) { a[0] = -value; }
void one(float* a) { same<<<1, 1>>>(a, 3); }
"""
    built = case({"a.cu": source})
    assert built.diagnostics == [
        "a.cu:2:1: warning: kernel same is also defined at a.cu:1; this definition is left out"
    ]
    (refused,) = built.not_lowered
    assert f"{refused.span}: {refused.reason}".startswith("a.cu:3:22: 'same': is an overloaded kernel")
    assert summary(built.generated)["kernels_left_out"] == [{"name": "same", "file": "a.cu", "line": 2}]


def test_a_header_without_kernels_is_read_for_its_launches(case):
    built = case({"a.cu": KERNELS, "more.h": '#include "a.cu"\nvoid go(float* a) { p<<<1, 1>>>(a, 1); }\n'})
    assert "go" in {one.name for one in built.library.launchers}
