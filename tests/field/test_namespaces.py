"""Kernels and launchers in namespaces: compiled and launched by the names that they have from outside."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import cuda

SOURCE = """\
namespace ns {
constexpr int BLOCK = 64;
__device__ float twice(float x) { return 2 * x; }
__global__ void plain(float* a) { a[0] = twice(3); }
void launch_plain(float* a) { plain<<<1, BLOCK>>>(a); }
namespace deep { namespace er { template <typename T, int N> __global__ void nested(T* a) { a[0] = twice(N); } } }
inline namespace v1 { __global__ void inlined(float* a) { a[0] = twice(1); } }
}
namespace c17::x { __global__ void joined(float* a) { a[0] = ns::twice(4); } }
namespace { __global__ void unnamed(float* a) { a[0] = 5; } }
namespace ns { namespace { __global__ void unnamed_inside(float* a) { a[0] = 6; } } }
namespace ns { __global__ void outside(float* a); void launch_outside(float* a); __device__ float thrice(float x); }
__device__ float ns::thrice(float x) { return 3 * x; }
__global__ void ns::outside(float* a) { a[0] = thrice(7); }
void ns::launch_outside(float* a) { outside<<<1, 1>>>(a); }
void qualified(float* a) { ns::plain<<<1, ns::BLOCK>>>(a); ::ns::deep::er::nested<float, 4><<<1, 1>>>(a); }
void inlined_too(float* a) { ns::v1::inlined<<<1, 1>>>(a); ns::inlined<<<1, 1>>>(a); }
void unnamed_too(float* a) { unnamed<<<1, 1>>>(a); ns::unnamed_inside<<<1, 1>>>(a); }
namespace alias = c17::x;
void aliased(float* a) { alias::joined<<<1, 1>>>(a); }
void calls(float* a) { ns::launch_plain(a); }
namespace sh {
extern __shared__ float buffer[];
__global__ void shared(float* a) { buffer[threadIdx.x] = 9; __syncthreads(); a[threadIdx.x] = buffer[0]; }
}
void dynamic(float* a) { sh::shared<<<1, 1, sizeof(float)>>>(a); }
namespace ops {
typedef float (*operation)(float);
__device__ float minus(float x) { return -x; }
template <operation F> __global__ void apply(float* a) { a[0] = F(8); }
void launch_minus(float* a) { apply<minus><<<1, 1>>>(a); }
}
void launch_twice(float* a) { ops::apply<ns::twice><<<1, 1>>>(a); }
using namespace ns;
void by_using(float* a) { plain<<<1, 1>>>(a); }
"""
LAUNCHED = {
    "launch_plain": ["ns::plain"],
    "qualified": ["ns::plain", "ns::deep::er::nested<float, 4>"],
    "inlined_too": ["ns::inlined", "ns::inlined"],
    "aliased": ["c17::x::joined"],
    "calls": ["ns::plain"],
    "launch_minus": ["ops::apply<ops::minus>"],
    "by_using": ["ns::plain"],
}
COMPUTED = {"launch_outside": 21, "qualified": 8, "unnamed_too": 6, "dynamic": 9, "launch_twice": 16}

TWO = """\
namespace one { __global__ void same(float* a) { a[0] = 1; } void launch_one(float* a) { same<<<1, 1>>>(a); } }
namespace two { __global__ void same(float* a) { a[0] = 2; } void launch_two(float* a) { same<<<1, 1>>>(a); } }
void outer(float* a) { two::same<<<1, 1>>>(a); }
using namespace two;
void by_using(float* a) { same<<<1, 1>>>(a); }
"""


@pytest.fixture
def built(case):
    built = case({"a.cu": SOURCE})
    assert built.diagnostics == []
    assert built.not_lowered == ()
    return built


def test_launchers_find_what_c_finds(built):
    a = np.zeros(2, np.float32)
    for name, kernels in LAUNCHED.items():
        assert [one.instance.name for one in getattr(built["a"], name).plan(a).operations] == kernels, name


def test_kernels_are_compiled_by_the_names_that_they_have_from_outside(built, xp):
    for name, value in COMPUTED.items():
        a = xp.zeros(2, np.float32)
        getattr(built["a"], name)(a)
        assert a.tolist() == [value, 0], name


def test_kernels_are_called_by_their_last_names(built, xp):
    module, a = built["a"], xp.zeros(2, np.float32)
    for kernel, value in ((module.plain, 6), (module.nested[np.float32, 4], 8), (module.apply["ns::twice"], 16)):
        kernel[1, 1](a)
        assert a[0] == value


def test_nvrtc_compiles_by_these_names(built):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    for launcher in ("unnamed_too", "launch_twice"):
        launch = getattr(built["a"], launcher).plan(np.zeros(2, np.float32)).operations[-1]
        compiled = cuda.compile_cubin(launch.instance.request, "sm_90")
        assert launch.instance.name.split("<")[0].rpartition("::")[2] in compiled.lowered_name


def test_of_two_kernels_of_a_name_no_launcher_takes_the_other(case):
    built = case({"a.cu": TWO})
    assert built.diagnostics == [
        "a.cu:2:17: warning: kernel same is also defined at a.cu:1; this definition is left out"
    ]
    assert {item.launcher.name: f"{item.span}: {item.reason}" for item in built.not_lowered} == {
        "launch_two": "a.cu:2:90: kernel two::same is left out",
        "outer": "a.cu:3:24: kernel two::same is left out",
        "by_using": "a.cu:5:27: 'same': is in several namespaces (one, two): qualify it",
    }
    (launch,) = built["a"].launch_one.plan(np.zeros(1, np.float32)).operations
    assert launch.instance.name == "one::same"


def test_a_prototype_in_a_namespace_is_linked(case):
    built = case(
        {
            "kernels.cu": "namespace far { __global__ void away(float* a) { a[0] = 3; } }\n",
            "launch.cu": "namespace far { __global__ void away(float* a); }\n"
            "void go(float* a) { far::away<<<1, 1>>>(a); }\n",
        }
    )
    (launch,) = built["launch"].go.plan(np.zeros(1, np.float32)).operations
    assert launch.instance.name == "far::away"
