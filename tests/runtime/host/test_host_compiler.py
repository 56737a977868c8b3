"""Finding compilers, building once, and what a failed compilation says."""

from __future__ import annotations

import concurrent.futures
import ctypes
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.host import cache, compiler, unit
from llmc2py.runtime.source import KernelRequest, KernelSource

ADD_ONE = "double add_one(double x) { return x + 1; }\n"


def test_compile_error_names_kernel_place_and_reason(run):
    text = (
        '__global__ void fine() {}\n#line 7 "llmc/bad.cuh"\n__global__ void bad(float* o) {\n    o[0] = missing;\n}\n'
    )
    with pytest.raises(CompileError) as caught:
        host.kernel(run.request(text, "bad"), 0)
    message = str(caught.value)
    assert "kernel bad (float32)" in message
    assert "llmc/bad.cuh:8:" in message
    assert "missing" in message
    assert "entry of the kernel" not in message
    assert str(pathlib.Path.home()) not in message


def test_error_without_line_directives_names_the_file(run):
    with pytest.raises(CompileError, match=r"k\.cu:2:"):
        host.kernel(run.request("\n__global__ void bad() { return 1; }", "bad"), 0)


def test_slice_and_precision_are_selected_by_macros(run):
    text = """
    #if defined(ENABLE_FP16) || !defined(ENABLE_FP32) || !defined(SLICE_k)
    #error wrong macros
    #endif
    __global__ void f(int* o) { o[0] = __CUDA_ARCH__; }"""
    out = np.zeros(1, np.int32)
    run(text, "f", out)
    assert out[0] == 800


def test_no_compiler_says_what_to_install(monkeypatch, tmp_path, run):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LLMC2PY_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolMissingError, match=r"found none of c\+\+, g\+\+, clang\+\+: install one .*LLMC2PY_CXX"):
        host.kernel(run.request("__global__ void never_compiled() {}", "never_compiled"), 0)


def test_clang_is_told_nothing_that_gcc_alone_knows():
    assert compiler.Compiler(("clang++",), "Ubuntu clang version 18.1.3").options == ()
    assert "-fno-if-conversion" in compiler.Compiler(("c++",), "c++ (Debian 12.2.0-14) 12.2.0").options


def test_variables_choose_the_compiler(monkeypatch):
    found = compiler.find_compiler()
    monkeypatch.setenv("LLMC2PY_CXX", "no-such-compiler")
    monkeypatch.setenv("CXX", found.command[0])
    with pytest.raises(ToolMissingError, match="LLMC2PY_CXX names 'no-such-compiler'"):
        compiler.find_compiler()
    monkeypatch.delenv("LLMC2PY_CXX")
    assert compiler.find_compiler() == found


def test_cache_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "here"))
    assert cache.cache_root() == tmp_path / "here"
    monkeypatch.delenv("LLMC2PY_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "llmc2py"


def test_c_sources_are_compiled_once_and_called(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        function = compiler.compile_c(ADD_ONE, "add_one").add_one
        function.restype, function.argtypes = ctypes.c_double, (ctypes.c_double,)
        assert function(1.5) == 2.5
    (built,) = (tmp_path / "host").glob("c-*.so")
    time = built.stat().st_mtime_ns
    compiler.compile_c(ADD_ONE, "add_one")
    assert built.stat().st_mtime_ns == time
    assert not list((tmp_path / "host").glob("build-*"))


def test_c_error_names_the_source():
    with pytest.raises(CompileError, match=r"C source broken does not compile[\s\S]*reference\.c:1:"):
        compiler.compile_c("int f( { return 0; }", "broken")


def test_edited_text_is_built_again(run):
    out = np.zeros(1, np.float32)
    for value in (1, 2):
        run(f"__global__ void put(float* o) {{ o[0] = {value}; }}", "put", out)
        assert out[0] == value


def test_threads_that_ask_at_once_compile_once(monkeypatch, run, tmp_path):
    calls = []
    compile_ = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda *args: (calls.append(args[3]), compile_(*args))[1])
    request = run.request(f"__global__ void only(float* o) {{ o[0] = 1; }} // {tmp_path}", "only")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: host.kernel(request, 0), range(8)))
    assert all(kernel is kernels[0] for kernel in kernels)
    assert calls.count("kernel only (float32)") == 2  # compiled, then linked


def test_launches_of_several_threads_do_not_meet(run):
    text = """__global__ void rotate(float* o, const float* x) {
        __shared__ float s[128];
        s[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
        __syncthreads();
        o[blockIdx.x * 128 + threadIdx.x] = s[(threadIdx.x + 1) % 128];
    }"""
    request = run.request(text, "rotate")
    kernel = host.kernel(request, 0)

    def launch(seed: int) -> bool:
        x = np.random.default_rng(seed).standard_normal((40, 128)).astype(np.float32)
        out = np.zeros_like(x)
        held = [ctypes.c_void_p(array.ctypes.data) for array in (out, x)]
        block = (ctypes.c_void_p * 2)(*[ctypes.addressof(value) for value in held])
        kernel.launch((40, 1, 1), (128, 1, 1), 0, 0, ctypes.addressof(block))
        return bool((out == np.roll(x, -1, axis=1)).all())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(launch, range(40)))


def test_damaged_library_in_the_cache_is_replaced(run, tmp_path):
    request = run.request(f"__global__ void whole(float* o) {{ o[0] = 4; }} // {tmp_path}", "whole")
    path = compiler.build_kernel(request)
    path.write_bytes(b"no library")
    out = np.zeros(1, np.float32)
    run(request.source.text, "whole", out)
    assert out[0] == 4


def test_lock_of_a_killed_process_blocks_nobody(tmp_path):
    target = tmp_path / "target"
    code = (
        "import os, pathlib, signal\n"
        "from llmc2py.runtime.host.cache import build_once\n"
        f"build_once(pathlib.Path({str(target)!r}), lambda folder, output: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    root = pathlib.Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60)
    assert killed.returncode < 0
    cache.build_once(target, lambda folder, output: output.write_text("built") and None)
    assert target.read_text() == "built"


def test_content_keys_tell_parts_apart():
    assert cache.content_key("ab", "c") != cache.content_key("a", "bc")
    assert cache.content_key("a") == cache.content_key("a")


PTX = """
__device__ float power(float x) {
    float y;
    asm volatile("{ .reg .f32 t; // (\\n"
                 "ex2.approx.f32 %0, %1; }" : "=f"(y) : "f"(x));
    return y;
}
__global__ void k(float* o) {
    o[0] = power(o[0]);
}
"""


def test_inline_ptx_is_refused_at_its_line_with_what_to_write(run):
    with pytest.raises(CompileError) as caught:
        host.kernel(run.request(PTX, "k"), 0)
    refused = [line for line in str(caught.value).splitlines() if "inline PTX (asm) runs on CUDA alone" in line]
    assert len(refused) == 1
    assert refused[0].startswith("k.cu:4:")
    assert "#ifdef LLMC2PY_CPU" in refused[0]


def test_text_after_inline_ptx_keeps_its_lines(run):
    with pytest.raises(CompileError, match=r"k\.cu:9:\d+: error: .*missing"):
        host.kernel(run.request(PTX.replace("o[0] = power", "o[0] = missing"), "k"), 0)


def test_cpu_takes_the_branch_without_ptx(run):
    text = PTX.replace("    asm", "#ifdef LLMC2PY_CPU\n    y = exp2f(x); // no asm(\n#else\n    asm").replace(
        "    return y", "#endif\n    return y"
    )
    out = np.full(1, 3, np.float32)
    run(text, "k", out)
    assert out[0] == 8


@pytest.mark.parametrize(
    "statement",
    [
        'asm("bar.sync 0;");',
        '__asm__ __volatile__ ("bar.sync 0;" ::: "memory");',
        'asm volatile /* all (of them */ ("bar.sync 0;");',
        'asm inline("bar.sync 0;");',
        'asm volatile goto("bra %l0;" :::: done);\ndone:;',
        "const int n = 1'000; asm(\"bar.sync 0;\"); const char c = 'x';",
        'if (o != nullptr) asm("" "bar.sync 0;");',
        'asm(R"(bar.sync 0;)");',
    ],
)
def test_ptx_is_refused_however_it_is_written(run, statement):
    with pytest.raises(CompileError, match=r"k\.cu:2:\d+: error: .*inline PTX \(asm\) runs on CUDA alone"):
        host.kernel(run.request(f"__global__ void k(int* o) {{\n{statement} }}", "k"), 0)


def test_what_is_no_ptx_stays(run):
    text = """
#define COPY(to, from) do { \\
    asm volatile("ld.b32 %0, [%1];" \\
                 : "=r"(to) : "r"(from)); \\
} while (0)
extern "C" int renamed(int) asm("abs"); // asm("no (
__global__ void k(int* o) {
    o[0] = renamed(-1);
    asm volatile("" /* (nothing */ ::: "memory");
    __asm__ ("");
    o[0] += sizeof("asm(");
}"""
    out = np.zeros(1, np.int32)
    run(text, "k", out)
    assert out[0] == 6


def test_host_text_rewrites_what_the_header_cannot():
    text = "void f() {\n  extern __shared__ __align__(16) char* b[];\n  static __shared__ int n;\n}\n"
    text += "__noinline__ int g();\n"
    got = unit.host_text(text)
    assert got.count("\n") == text.count("\n")
    assert "extern" not in got
    assert "auto *b = static_cast<std::add_pointer_t<char*>>(llmc2py_dynamic_shared);" in got
    assert "  __shared__ int n;" in got
    assert "__attribute__((noinline)) int g();" in got
    assert unit.dynamic_shared_names(text) == ["b"]


def test_unit_ends_with_the_entry_of_the_name_expression(tmp_path):
    path = tmp_path / "copy.cu"
    path.write_text("template <class T, int N> __global__ void copy(T* o) {}\n")
    request = KernelRequest(KernelSource(path), "copy<float, 8>", "SLICE_copy", "bfloat16", ("float*",))
    text = unit.translation_unit(request)
    assert text.startswith('#define ENABLE_BF16 1\n#define SLICE_copy 1\n#line 1 "copy.cu"\n')
    assert "LLMC2PY_ENTRY(copy<float, 8>)" in text
