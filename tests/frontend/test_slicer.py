"""What a kernel's slice holds: all that it reaches, nothing else, in the order of the source."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from llmc2py.frontend.reader import read_tree
from llmc2py.ir.library import Library

SOURCE = """\
struct Inner { float x; };
struct Outer { Inner inner; };
template <typename T> struct Box { T value; };
typedef Box<float> fbox;
constexpr int A = 2, B = A + 1;
enum Kind { PLAIN, OTHER };
__device__ float helper(float x);
__device__ float deep(float x) { return helper(x) + B; }
__device__ float helper(float x) { return x * A; }
__device__ float even(int n);
__device__ float odd(int n) { return n ? even(n - 1) : 0; }
__device__ float even(int n) { return n ? odd(n - 1) : 1; }
__global__ void alone(float* o) { o[0] = 1; }
__global__ void chained(float* o) { o[0] = deep(o[0]); }
__global__ void structured(float* o) { Outer outer; outer.inner.x = 1; fbox box; o[0] = outer.inner.x + box.value; }
__global__ void mutual(float* o) { o[0] = even(3); }
__global__ void named(float* o) { o[0] = OTHER; }
__global__ void launches_alone(float* o) { float alone = 2; o[0] = alone; }
float host_only(float x) { return deep(x); }
"""


@pytest.fixture
def read(tmp_path: pathlib.Path) -> Callable[[str], Library]:
    """Return a function that reads one file of CUDA."""

    def library(text: str) -> Library:
        (tmp_path / "k.cu").write_text(text)
        return read_tree(tmp_path)

    return library


def names(library: Library, kernel: str) -> list[str]:
    """Return what the items of a kernel's slice define, in order."""
    (found,) = [one for one in library.kernels if one.name == kernel]
    assert found.slice is not None
    return [name for item in found.slice.items for name in sorted(item.defines)]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("alone", ["alone"]),
        ("chained", ["A", "B", "helper", "deep", "helper", "chained"]),
        ("structured", ["Inner", "Outer", "Box", "fbox", "structured"]),
        ("mutual", ["even", "odd", "even", "mutual"]),
        ("launches_alone", ["launches_alone"]),
    ],
)
def test_what_is_reached_comes_along_in_the_sources_order(
    read: Callable[[str], Library], kernel: str, expected: list[str]
) -> None:
    library = read(SOURCE)
    assert library.diagnostics == ()
    assert names(library, kernel) == expected


def test_an_enumerator_brings_its_enumeration(read: Callable[[str], Library]) -> None:
    assert names(read(SOURCE), "named")[-1] == "named"
    assert "OTHER" in names(read(SOURCE), "named")
    assert "A" not in names(read(SOURCE), "named")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("o[0] = 1;", []),
        ("o[0] = __half2float(__float2half(1.0f));", ["#include <cuda_fp16.h>"]),
        ("o[0] = __bfloat162float(__float2bfloat16(1.0f));", ["#include <cuda_bf16.h>"]),
        (
            "namespace cg = cooperative_groups; o[0] = cg::this_thread_block().size();",
            ["#include <cooperative_groups.h>"],
        ),
        ("typedef cub::BlockReduce<float, 32> R; o[0] = 1;", ["#include <cub/cub.cuh>"]),
        ("// half, __nv_bfloat16 and cub::BlockReduce\n o[0] = 1;", []),
        ("float halfway = 0.5f, half_of_it = halfway; o[0] = half_of_it;", []),
    ],
)
def test_system_headers_follow_from_names(read: Callable[[str], Library], body: str, headers: list[str]) -> None:
    (kernel,) = read(f"__global__ void k(float* o) {{ {body} }}\n").kernels
    assert kernel.slice is not None
    assert list(kernel.slice.headers) == headers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "float f(float x) { return x; }\n__global__ void k(float* o) { o[0] = f(1); }\n",
            "k.cu:2:38: error: kernel k calls host function f (defined at k.cu:1); make it __device__ or leave "
            "the kernel out with --only",
        ),
        (
            "float f(float x) { return x; }\n__device__ float g(float x) {\n    return f(x) + f(2);\n}\n"
            "__global__ void k(float* o) { o[0] = g(1); }\n",
            "k.cu:3:12: error: kernel k calls host function f (defined at k.cu:1); make it __device__ or leave "
            "the kernel out with --only",
        ),
        (
            "__global__ void k(float* o) { cudnnDoes(o); }\n",
            "k.cu:1:31: error: kernel k calls host function cudnnDoes, which no kernel can; call it between launches "
            "or leave the kernel out with --only",
        ),
    ],
)
def test_host_functions_are_named_once_where_they_are_called(
    read: Callable[[str], Library], text: str, said: str
) -> None:
    library = read(text)
    assert [str(one) for one in library.diagnostics] == [said]
    assert library.kernels[0].slice is None


@pytest.mark.parametrize(
    "text",
    [
        "float f(float x) { return x; }\n__device__ float f(int x) { return x; }\n",
        "float f(float x) { return x; }\n__host__ __device__ float f(double x) { return x; }\n",
        "constexpr float f(float x) { return x; }\n",
    ],
)
def test_a_function_with_a_device_version_is_none_of_the_host(read: Callable[[str], Library], text: str) -> None:
    library = read(f"{text}__global__ void k(float* o) {{ o[0] = f(1); }}\n")
    assert library.diagnostics == ()
    assert names(library, "k") == ["f", "k"]


def test_a_variable_with_the_name_of_a_host_function_is_no_call(read: Callable[[str], Library]) -> None:
    library = read("float rows(float x) { return x; }\n__global__ void k(float* o, int rows) { o[rows] = 1; }\n")
    assert library.diagnostics == ()
    assert names(library, "k") == ["k"]


@pytest.mark.parametrize(
    "text",
    [
        "namespace cg = cooperative_groups;\nvoid f(float* o) {}\n__device__ float g(float x) { return cg::f(x); }\n",
        "void f(float* o) {}\n__device__ float g(float x) { return cooperative_groups :: f<float>(x); }\n",
        "float f(float x) { return x; }\n__device__ float g(float x) { return cuda::std::f(x); }\n",
        "float f(float x) { return x; }\n__device__ float g(float x) { return rsqrtf(f2(x)); }\nfloat rsqrtf(int x);\n",
        "template <typename T> T max(T a, T b) { return a; }\n__device__ float g(float x) { return max(x, x); }\n",
    ],
)
def test_a_name_that_others_define_is_no_host_function(read: Callable[[str], Library], text: str) -> None:
    library = read(f"{text}__global__ void k(float* o) {{ o[0] = g(1); }}\n")
    assert library.diagnostics == ()
    assert names(library, "k") == ["g", "k"] or names(library, "k") == ["cg", "g", "k"]


@pytest.mark.parametrize(
    "text",
    [
        "namespace own { float f(float x) { return x; } }\n__device__ float g(float x) { return own::f(x); }\n",
        "namespace own { void f() {} }\nnamespace o = own;\n__device__ void g(float x) { return o::f(); }\n",
        "float f(float x) { return x; }\n__device__ float g(float x) { return ::f(x); }\n",
    ],
)
def test_a_qualified_name_of_the_source_is(read: Callable[[str], Library], text: str) -> None:
    library = read(f"{text}__global__ void k(float* o) {{ o[0] = g(1); }}\n")
    (said,) = library.diagnostics
    assert "kernel k calls host function f" in said.message


CLASS = """\
static int pick(int n) { return n; }
struct Tile {
    int w;
    __host__ int lanes(int n) const
    {
        return pick(n);
    }
    Tile(int w) : w(w) { fclose(0); }
    template <typename T> void save(T w) { fopen("x", "w"); }
    void print() const; bool operator==(const Tile& other) const { return false; }
    float operator()(float x) const { return x; }
    Tile() = default;
    int (*function)(int);
    int used() const { return 1; }
    constexpr int twice() const { return 2 * w; }
    __host__ __device__ Tile(float x) : w((int)x) {}
    __device__ int rows() const { return w * 2; }
};
__global__ void k(float* o) { Tile t(4.0f); o[0] = t.rows() + t.used(); }
"""


def test_members_for_the_host_are_left_out(read: Callable[[str], Library]) -> None:
    library = read(CLASS)
    assert library.diagnostics == ()
    assert names(library, "k") == ["Tile", "k"]
    part = library.kernels[0].slice
    assert part is not None
    lines = part.items[0].text.split("\n")
    kept = [0, 1, 9, 10, 11, 12, 13, 14, 15, 16]
    before = CLASS.split("\n")[1:18]
    assert [number for number, line in enumerate(lines) if line.strip()] == kept
    assert [lines[number] for number in kept] == [before[number] for number in kept]
    assert len(part.items[0].lines) == len(lines)


def test_a_member_for_the_device_that_calls_a_host_function_is_told(read: Callable[[str], Library]) -> None:
    (said,) = read(CLASS.replace("return w * 2", "return pick(2)")).diagnostics
    assert (said.span.line, said.kernel) == (17, "k")
    assert "kernel k calls host function pick (defined at k.cu:1)" in said.message


@pytest.mark.parametrize(
    ("included", "body", "headers"),
    [
        ("math_constants.h", "o[0] = CUDART_PI_F;", ["math_constants.h"]),
        ("math_constants.h", "o[0] = 1;", []),
        ("curand_kernel.h", "curandState s; curand_init(1, 2, 3, &s);", ["curand_kernel.h"]),
        ("cuda_pipeline.h", "__pipeline_commit();", ["cuda_pipeline.h"]),
        ("cuComplex.h", "cuFloatComplex z = make_cuFloatComplex(1, 2);", ["cuComplex.h"]),
        ("cuda/std/limits", "o[0] = cuda::std::numeric_limits<float>::max();", ["cuda/std/limits"]),
        ("thrust/functional.h", "thrust::plus<float> p;", ["thrust/functional.h"]),
        ("cub/block/block_reduce.cuh", "using namespace cub; BlockReduce<float, 32> r;", ["cub/cub.cuh"]),
        ("iostream", "o[0] = 1;", []),
        (
            "cooperative_groups/reduce.h",
            "using namespace cooperative_groups; o[0] = reduce(this_thread_block(), 1.0f, plus<float>());",
            ["cooperative_groups.h", "cooperative_groups/reduce.h"],
        ),
        (
            "cooperative_groups/reduce.h",
            "namespace c = cooperative_groups; o[0] = c::reduce(c::this_thread_block(), 1.0f, c::plus<float>());",
            ["cooperative_groups.h", "cooperative_groups/reduce.h"],
        ),
    ],
)
def test_a_slice_has_the_files_headers_that_it_names(
    read: Callable[[str], Library], included: str, body: str, headers: list[str]
) -> None:
    library = read(f"#include <{included}>\n__global__ void k(float* o) {{ {body} }}\n")
    assert library.diagnostics == ()
    assert library.kernels[0].slice is not None
    assert list(library.kernels[0].slice.headers) == [f"#include <{header}>" for header in headers]


@pytest.mark.parametrize(
    ("namespace", "body", "header"),
    [("nvcuda", "wmma::mem_row_major;", "mma.h"), ("cub", "BlockReduce<float, 32> r;", "cub/cub.cuh")],
)
def test_an_opened_namespace_of_cuda_comes_along(
    read: Callable[[str], Library], namespace: str, body: str, header: str
) -> None:
    text = f"using namespace {namespace};\n__global__ void k(float* o) {{ {body} }}\n"
    first, second = read(f"#include <cub/cub.cuh>\n{text}__global__ void other(float* o) {{}}\n").kernels
    assert first.slice is not None
    assert second.slice is not None
    assert first.slice.items[0].text == f"using namespace {namespace};"
    assert first.slice.headers == (f"#include <{header}>",)
    assert (len(second.slice.items), second.slice.headers) == (1, ())


def test_headers_that_no_kernel_is_given_are_noted(read: Callable[[str], Library]) -> None:
    names = ("stdio.h", "vector", "cuda_runtime.h", "sys/stat.h", "nvtx3/nvToolsExt.h", "own/library.h")
    library = read("".join(f"#include <{name}>\n" for name in names) + "__global__ void k(float* o) {}\n")
    assert [str(one) for one in library.diagnostics] == [
        "k.cu:6:1: note: #include <own/library.h> is no header that kernels are given: what it defines is unknown"
    ]
