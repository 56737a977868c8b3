"""Kernels compile with NVRTC for named architectures, with no GPU; what does not compile says where and why."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest

from llmc2py.runtime.cuda import compile_cubin
from llmc2py.runtime.cuda import nvrtc as module
from llmc2py.runtime.errors import CompileError

pytestmark = pytest.mark.usefixtures("nvrtc")

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]

FLOATX = """\
#if defined(ENABLE_FP32)
typedef float floatX;
#elif defined(ENABLE_FP16)
#include <cuda_fp16.h>
typedef half floatX;
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
#endif
"""

SCALE = (
    FLOATX
    + """
#if defined(SLICE_k)
__global__ void k(floatX* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) o[i] = (floatX)((float)o[i] * 2.0f);
}
#endif
#if defined(SLICE_other)
this would not compile
#endif
"""
)

REDUCE = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(float* o) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    float sum = cg::reduce(warp, o[block.thread_rank()], cg::plus<float>{});
    if (warp.thread_rank() == 0) o[warp.meta_group_rank()] = sum;
}
"""

VECTORS = """\
template <class T> struct alignas(16) Packed128 { T payload[16 / sizeof(T)]; };
__global__ void k(float* o, const float* x) {
    extern __shared__ __align__(16) char* rows[];
    auto loaded = *reinterpret_cast<const int4*>(__ldcs(reinterpret_cast<const int4*>(x)).x ? x : o);
    __stcs(reinterpret_cast<int4*>(o), loaded);
    reinterpret_cast<Packed128<float>*>(o)[1].payload[0] = 1.0f;
}
"""

TAKEN_FOR_GRANTED = """\
#include <stdio.h>
#include <math.h>
#include <float.h>
#include <cstdint>
#include <type_traits>
#include <cuda_runtime.h>
#include "cublasLt.h"
__device__ constexpr float lowest = -INFINITY;
static_assert(std::is_same_v<std::conditional_t<sizeof(float) == 4, int32_t, int64_t>, int>);
static_assert(std::numeric_limits<int>::max() == INT_MAX && std::numeric_limits<int>::min() == INT_MIN);
static_assert(std::numeric_limits<uint64_t>::max() == ULLONG_MAX && std::numeric_limits<int64_t>::min() == LLONG_MIN);
static_assert(std::numeric_limits<unsigned char>::max() == 255 && std::numeric_limits<signed char>::min() == -128);
template <class T, class = std::enable_if_t<std::is_integral_v<T>>> __device__ T twice(T x) { return 2 * x; }
template <class Dispatch> __device__ int value_of(Dispatch) { return Dispatch::value; }
__global__ void k(float* o, uint n) {
    assert(n < UINT_MAX);
    float a = std::max(lowest, -FLT_MAX), b = std::sqrt((float)M_PI);
    std::swap(a, b);
    o[0] = a + std::min(b, 1.0f) + std::clamp(b, 0.0f, 1.0f) + twice((size_t)n) + NAN + FLT_EPSILON + std::abs(b);
    o[1] = value_of(std::integral_constant<int, 3>{}) + value_of(std::bool_constant<true>{});
    printf("%f\\n", o[0]);
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_each_precision_compiles_for_each_architecture(make_request, precision, arch):
    compiled = compile_cubin(make_request(SCALE, precision=precision), arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    element = {"float32": "f", "float16": "6__half", "bfloat16": "13__nv_bfloat16"}[precision]
    assert compiled.lowered_name == f"_Z1kP{element}i"


@pytest.mark.parametrize("text", [REDUCE, VECTORS, TAKEN_FOR_GRANTED], ids=["reduce", "vectors", "taken for granted"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_kernels_use_compiles_without_a_word(make_request, text, arch):
    compiled = compile_cubin(make_request(text), arch)
    assert compiled.lowered_name.encode() in compiled.cubin
    assert compiled.log.strip("\0\n ") == ""


def test_the_prelude_goes_with_the_headers_of_cuda_std(make_request):
    text = (
        "#include <cuda/std/cstdint>\n#include <cuda/std/climits>\n#include <cuda/std/cfloat>\n#include <cuda_fp16.h>\n"
    )
    compiled = compile_cubin(make_request(text + "__global__ void k(float* o) { *o = INT_MAX + FLT_MAX; }"), "sm_90")
    assert compiled.log.strip("\0\n ") == ""


def test_cooperative_groups_leave_out_the_headers_that_take_seconds(make_request):
    unwanted = "#if defined(_CG_USE_CUDA_STL)\n#error cuda/std is included\n#endif\n"
    assert compile_cubin(make_request(REDUCE + unwanted), "sm_90").cubin


def test_the_header_of_all_of_cub_gives_its_block_reduction(make_request):
    text = """
#include <cub/cub.cuh>
__global__ void k(float* o) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ typename Reduce::TempStorage storage;
    float sum = Reduce(storage).Sum(o[threadIdx.x]);
    if (threadIdx.x == 0) o[0] = sum;
}
"""
    assert compile_cubin(make_request(text), "sm_90").lowered_name == "_Z1kPf"


def test_a_template_is_named_by_its_arguments(make_request):
    text = "template <class T, int N> __global__ void k(T* o) { o[0] = N; }"
    compiled = compile_cubin(make_request(text, name="k<float, 8>"), "sm_80")
    assert compiled.lowered_name == "_Z1kIfLi8EEvPT_"
    with pytest.raises(CompileError, match=r"kernel 'k<float, 8, 9>'(.|\n)*the kernel's name expression"):
        compile_cubin(make_request(text, name="k<float, 8, 9>"), "sm_80")


def test_an_error_has_the_kernel_and_the_line_of_the_original_file(make_request):
    text = '#line 77 "llmc/gelu.cuh"\n__global__ void k(float* o) {\n    o[0] = oops;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_cubin(make_request(text, precision="bfloat16"), "sm_90")
    message = str(caught.value)
    assert message.startswith("kernel 'k' (small.cu, bfloat16) does not compile:")
    assert 'llmc/gelu.cuh:78: error: identifier "oops" is undefined' in message
    assert "o[0] = oops;" in message


def test_only_the_first_errors_are_shown(make_request):
    lines = "\n".join(f"unknown{i} v{i};" for i in range(9))
    with pytest.raises(CompileError, match="and 4 more errors") as caught:
        compile_cubin(make_request(f"__global__ void k(float* o) {{\n{lines}\n}}"), "sm_90")
    assert '"unknown4"' in str(caught.value)
    assert '"unknown5"' not in str(caught.value)


@pytest.mark.parametrize(
    "declaration", ["float helper(float x)", "__host__ float helper(float x)", "static inline float helper(float x)"]
)
def test_a_host_function_that_a_kernel_calls_is_named(make_request, declaration):
    text = f'#line 5 "kernels.cu"\n{declaration} {{ return x; }}\n__global__ void k(float* o) {{ o[0] = helper(1); }}\n'
    with pytest.raises(CompileError, match=r"kernels\.cu:5: error: 'helper' is a host function"):
        compile_cubin(make_request(text), "sm_90")


def test_an_unannotated_constexpr_function_is_taken_as_nvcc_takes_it(make_request):
    constexpr = "constexpr int half_of(int x) { return x / 2; }\n"
    kernel = "__global__ void k(float* o) { constexpr int n = half_of(8); o[0] = n; }\n"
    assert compile_cubin(make_request(constexpr + kernel), "sm_90").cubin
    with pytest.raises(CompileError, match="'helper' is a host function"):
        compile_cubin(make_request(constexpr + "void helper() {}\n" + kernel), "sm_90")


def test_an_architecture_that_nvrtc_does_not_know_is_refused_with_those_it_knows(make_request):
    with pytest.raises(ValueError, match=r"does not compile for 'sm_35'; it knows .*sm_90"):
        compile_cubin(make_request(SCALE), "sm_35")
    assert "sm_80" in module.supported_architectures()


def test_the_second_compile_is_read_from_disk(make_request, monkeypatch):
    first = compile_cubin(make_request(REDUCE), "sm_90")
    monkeypatch.setattr(module, "_compile", lambda *_: pytest.fail("compiled again"))
    began = time.perf_counter()
    again = compile_cubin(make_request(REDUCE), "sm_90")
    assert again == first
    assert time.perf_counter() - began < 0.1


def test_an_edited_text_counts_and_so_do_precision_name_and_architecture(make_request):
    text = "#define FACTOR 2\ntemplate <int N> __global__ void k(float* o) { o[0] = FACTOR * N; }"
    first = compile_cubin(make_request(text, name="k<1>"), "sm_90")
    edited = compile_cubin(make_request(text.replace("FACTOR 2", "FACTOR 3"), name="k<1>"), "sm_90")
    renamed = compile_cubin(make_request(text, name="k<5>"), "sm_90")
    older = compile_cubin(make_request(text, name="k<1>"), "sm_80")
    assert len({first.cubin, edited.cubin, renamed.cubin, older.cubin}) == 4
    assert compile_cubin(make_request(text, name="k<1>"), "sm_90") == first


@pytest.mark.parametrize("damage", [b"", b"llmc2py cubin 1\n", None], ids=["empty", "cut short", "a flipped bit"])
def test_a_damaged_entry_is_built_again(make_request, tmp_path, damage):
    request = make_request(SCALE)
    first = compile_cubin(request, "sm_90")
    (entry,) = (tmp_path / "cache" / "cuda").iterdir()
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage is None else damage)
    assert compile_cubin(request, "sm_90") == first
    assert entry.read_bytes() == data


def test_a_cache_that_cannot_be_written_is_a_warning_and_the_kernel_compiles(make_request, tmp_path, monkeypatch):
    blocker = tmp_path / "a file"
    blocker.write_text("")
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(blocker))
    with pytest.warns(RuntimeWarning, match="LLMC2PY_CACHE_DIR"):
        assert compile_cubin(make_request(SCALE), "sm_90").cubin


def _run(script: str, tmp_path: pathlib.Path) -> str:
    root = str(pathlib.Path(__file__).parents[3])
    environment = os.environ | {"LLMC2PY_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_COMPILE = """
import os, pathlib, sys
from llmc2py.runtime.cuda import compile_cubin
from llmc2py.runtime.source import KernelRequest, KernelSource
def build():
    request = KernelRequest(KernelSource(pathlib.Path({path!r})), "k", "SLICE_k", "float32", ())
    return compile_cubin(request, "sm_90").lowered_name
"""


def test_two_processes_build_one_entry(make_request, tmp_path):
    script = _COMPILE.format(path=str(make_request(SCALE).source.path)) + "print(build())"
    root = str(pathlib.Path(__file__).parents[3])
    environment = os.environ | {"LLMC2PY_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root}
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["_Z1kPfi"] * 2
    assert len(list((tmp_path / "cache" / "cuda").iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")
def test_compiling_works_in_a_forked_child(make_request, tmp_path):
    script = _COMPILE.format(path=str(make_request(SCALE).source.path)) + (
        "build(); sys.stdout.flush()\n"
        "os.environ['LLMC2PY_CACHE_DIR'] += '-child'\n"
        "child = os.fork()\n"
        "if child == 0:\n    print(build(), flush=True)\n    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert _run(script, tmp_path).strip() == "_Z1kPfi"


def test_importing_the_backend_imports_no_cupy(tmp_path):
    script = (
        "import sys, llmc2py.runtime.cuda as cuda\n"
        "assert cuda.name == 'cuda' and callable(cuda.kernel)\n"
        "print([name for name in sys.modules if name.startswith('cupy')])"
    )
    assert _run(script, tmp_path).strip() == "[]"
