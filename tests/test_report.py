"""``llmc2py report``: what is counted, what is explained, and when it exits with 1."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from click.testing import CliRunner

from llmc2py.cli import cli
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.verify import compile_check
from llmc2py.verify.packages import load_package

SOURCE = """\
#include <stdlib.h>
#if defined(ENABLE_FP32)
typedef float floatX;
#elif defined(ENABLE_FP16)
#include <cuda_fp16.h>
typedef half floatX;
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
#endif
__global__ void scale(floatX* out, const floatX* inp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = inp[i];
}
#ifndef ENABLE_BF16
__global__ void plain(floatX* out) { out[threadIdx.x] = (floatX)1.0f; }
#endif
template <class To, class From>
__device__ To converted(From x) = delete;
template <>
__device__ float converted<float, floatX>(floatX x) { return (float)x; }
template <class To, class From>
__global__ void convert(To* out, const From* inp) { out[threadIdx.x] = converted<To, From>(inp[threadIdx.x]); }
void scale_cpu(float* out, const float* inp, int n) {
    for (int i = 0; i < n; i++) out[i] = inp[i];
}
void odd_cpu(float* out, std::vector<float> inp) { out[0] = inp[0]; }
void scale1(floatX* out, const floatX* inp, int n) { scale<<<(n + 31) / 32, 32>>>(out, inp, n); }
void sorted(floatX* out, int n) {
    qsort(out, n, 4, NULL);
    scale<<<1, 32>>>(out, out, n);
    scale<<<2, 32>>>(out, out, n);
}
"""
# Both compilers refuse this in the half precisions, for its types.
NARROW = """
struct Wide { float value; };
__device__ void take(float* x) { *x = 1; }
__global__ void narrow(float* out, floatX* scratch) { take(scratch); out[0] = 0; }
"""


def line_of(text):
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "scale.cu").write_text(SOURCE)
    (folder / "ops.c").write_text("void scale_forward(float* out, const float* inp, int n) { out[0] = inp[n - 1]; }\n")
    return folder


@pytest.fixture
def without_nvrtc(monkeypatch):
    def missing():
        raise ToolMissingError("no NVRTC here")

    monkeypatch.setattr(compile_check, "supported_architectures", missing)


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def report_of(*arguments):
    result = run(*arguments, "--json")
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)


def named(records, name):
    (found,) = [one for one in records if one["name"] == name]
    return found


def test_totals_and_reasons_without_compiling(source):
    code, record = report_of(source, "--no-compile")
    assert record["totals"] == {
        "kernels": {
            "found": 3, "sliced": 3, "allowed_float32": 3, "allowed_float16": 3, "allowed_bfloat16": 2,
        },
        "launchers": {"found": 2, "lowered": 1, "replaced": 0, "not_lowered": 1},
        "launch_sites": {"found": 3, "lowered": 1, "replaced": 0, "not_lowered": 2},
        "callers": {"found": 0, "lowered": 0, "replaced": 0, "not_lowered": 0},
        "references": {"found": 3, "usable": 2},
    }  # fmt: skip
    refused = named(record["launchers"], "sorted")
    assert (refused["status"], refused["launch_sites"]) == ("not_lowered", 2)
    assert re.match(rf"scale\.cu:{line_of('qsort')}:\d+: .*qsort", refused["reason"])
    kernel = named(record["kernels"], "scale")
    assert (kernel["file"], kernel["line"], kernel["sliced"], kernel["compiled"]) == (
        "scale.cu",
        line_of("void scale("),
        True,
        {},
    )
    assert {one["name"]: one["intent"] for one in kernel["parameters"]} == {"out": "out", "inp": "in", "n": None}
    assert named(record["references"], "scale_forward")["file"] == "ops.c"
    odd = named(record["references"], "odd_cpu")
    assert odd["usable"] is False
    assert odd["reason"].startswith(f"scale.cu:{line_of('odd_cpu')}:")
    assert code == 1
    assert [line for line in record["unexplained"] if "odd_cpu" in line] == record["unexplained"]


def test_precisions_and_template_types_that_the_source_has(source, without_nvrtc):
    (source / "scale.cu").write_text(SOURCE.replace("std::vector<float> inp", "const float* inp"))
    code, record = report_of(source)
    assert (code, record["unexplained"]) == (0, [])
    assert record["totals"]["kernels"]["compiled_cpu"] == 3
    assert record["totals"]["kernels"]["compiled_sm_90_float32"] == 0
    plain = named(record["kernels"], "plain")
    assert plain["allowed"] == ["float32", "float16"]
    assert {name: one["status"] for name, one in plain["compiled"]["cpu"].items()} == {"float32": "ok", "float16": "ok"}
    assert plain["compiled"]["sm_90"]["float32"] == {
        "status": "skipped", "instances": [], "seconds": 0, "detail": "no NVRTC here",
    }  # fmt: skip
    half = named(record["kernels"], "convert")["compiled"]["cpu"]["float16"]
    assert (half["status"], half["instances"]) == ("ok", ["convert<float, half>"])


def test_a_kernel_that_does_not_compile_is_not_accounted_for(source, without_nvrtc):
    text = SOURCE.replace("out[i] = inp[i];\n}", "out[i] = inp[i] + oops;\n}", 1).replace("odd_cpu", "odd")
    (source / "scale.cu").write_text(text)
    code, record = report_of(source, "--precision", "float32")
    assert code == 1
    assert named(record["kernels"], "scale")["compiled"]["cpu"]["float32"]["status"] == "failed"
    (line,) = record["unexplained"]
    assert line.startswith(f"scale.cu:{line_of('void scale(')}: kernel scale (float32 for cpu): ")
    assert "oops" in line


# A file that knows no precision: kernels that fail, that no launcher instantiates, that Python cannot call.
PLAIN = """\
__global__ void fine(float* out) { out[0] = 1; }
__global__ void halves(half* out) { out[0] = 1; }
__global__ void broken(float* out) { out[0] = oops; }
template <class T> __global__ void open(T* out) { out[0] = nothing; }
template <int N> __global__ void sized(float* out) { out[N] = 0; }
struct Pair { int a, b; };
__global__ void taking(float* out, Pair pair) { out[0] = pair.a; }
"""


@pytest.fixture
def plain(tmp_path, without_nvrtc):
    (tmp_path / "plain.cu").write_text(PLAIN)
    code, record = report_of(tmp_path)
    assert code == 1
    return record


def test_a_kernel_that_knows_no_precision_has_one_outcome(plain):
    for name, status in (("fine", "ok"), ("broken", "failed"), ("sized", "skipped")):
        kernel = named(plain["kernels"], name)
        assert (kernel["fixed"], kernel["allowed"]) == (True, ["float32"])
        assert {target: list(by) for target, by in kernel["compiled"].items()} == {
            "sm_90": ["float32"],
            "cpu": ["float32"],
        }
        assert kernel["compiled"]["cpu"]["float32"]["status"] == status
    kernel = named(plain["kernels"], "open")
    assert (kernel["fixed"], list(kernel["compiled"]["cpu"])) == (False, ["float32", "float16", "bfloat16"])
    totals = plain["totals"]["kernels"]
    assert [totals[f"allowed_{one}"] for one in ("float32", "float16", "bfloat16")] == [6, 6, 6]
    assert (totals["compiled_cpu"], totals["failed"], totals["skipped"]) == (2, 2, 6)


def test_it_has_so_whatever_precision_is_asked_for(tmp_path, without_nvrtc):
    (tmp_path / "plain.cu").write_text(PLAIN.splitlines()[0] + "\n")
    code, record = report_of(tmp_path, "--precision", "bfloat16")
    assert code == 0
    assert record["kernels"][0]["compiled"]["cpu"]["float32"]["status"] == "ok"
    assert record["totals"]["kernels"]["compiled_cpu"] == 1


def test_each_failure_is_told_once(plain):
    first, *others = plain["unexplained"]
    assert first.startswith("plain.cu:3: kernel broken (cpu): plain.cu:3:")
    assert [one.split(": plain.cu")[0] for one in others] == [
        "plain.cu:4: kernel open (float32, float16, bfloat16 for cpu)"
    ]
    assert named(plain["kernels"], "broken")["remarks"] == ["skipped (sm_90): no NVRTC here"]


def test_what_is_skipped_has_a_reason(plain):
    outcomes = [
        (kernel, one) for kernel in plain["kernels"] for by in kernel["compiled"].values() for one in by.values()
    ]
    skipped = [(kernel["name"], one["detail"]) for kernel, one in outcomes if one["status"] == "skipped"]
    assert {name for name, _ in skipped} == {"fine", "halves", "broken", "open", "sized", "taking"}
    assert all(detail for _, detail in skipped)
    (taking,) = named(plain["kernels"], "taking")["remarks"]
    assert taking == "left out: " + named(plain["kernels"], "taking")["reason"]
    assert (
        "skipped (sm_90, cpu): no launcher gives its template arguments" in named(plain["kernels"], "sized")["remarks"]
    )


def test_the_table_has_a_word_for_a_kernel_that_knows_no_precision(tmp_path, without_nvrtc):
    (tmp_path / "plain.cu").write_text(PLAIN)
    lines = run(tmp_path).stdout.splitlines()
    assert ["broken", "plain.cu:3", "yes", "skipped", "failed", "out:", "out"] in [line.split() for line in lines]
    assert sum("oops" in line for line in lines) == 1


def test_many_kernels_of_one_remark_are_told_together(tmp_path, without_nvrtc):
    text = "".join(f"__global__ void k{number}(float* out) {{}}\n" for number in range(9))
    (tmp_path / "many.cu").write_text(text)
    lines = run(tmp_path).stdout.splitlines()
    assert "9 kernels: skipped (sm_90): no NVRTC here" in lines
    assert sum("no NVRTC" in line for line in lines) == 1


def test_what_every_compiler_refuses_in_a_precision_is_the_source_s(source):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    (source / "scale.cu").write_text(SOURCE.replace("odd_cpu", "odd") + NARROW)
    code, record = report_of(source, "--precision", "float32", "--precision", "float16")
    compiled = named(record["kernels"], "narrow")["compiled"]
    if compiled["sm_90"]["float32"]["status"] == "skipped":
        pytest.skip(compiled["sm_90"]["float32"]["detail"])
    assert {(t, p): one["status"] for t, by in compiled.items() for p, one in by.items()} == {
        ("sm_90", "float32"): "ok", ("sm_90", "float16"): "refused",
        ("cpu", "float32"): "ok", ("cpu", "float16"): "refused",
    }  # fmt: skip
    assert "cannot convert" in compiled["cpu"]["float16"]["detail"]
    assert (code, record["unexplained"]) == (0, [])
    totals = record["totals"]["kernels"]
    assert (totals["refused"], totals["compiled_cpu"], totals["compiled_sm_90_float16"]) == (1, 4, 3)


def test_a_tree_whose_kernels_are_all_left_out_has_a_table(tmp_path, without_nvrtc):
    (tmp_path / "k.cu").write_text(
        "float pick(int n) { return n; }\n__global__ void k(float* a, int n) { a[0] = pick(n); }\n"
    )
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "calls host function pick" in result.output
    assert "compiled" in result.output


def test_template_kernels_that_other_files_launch_are_compiled(tmp_path, without_nvrtc):
    (tmp_path / "k.cuh").write_text(
        "#pragma once\ntemplate <int B> __global__ void fill(float* a) { a[threadIdx.x] = B; }\n"
    )
    (tmp_path / "run.cu").write_text('#include "k.cuh"\nvoid run(float* a) { fill<64><<<1, 64>>>(a); }\n')
    _, record = report_of(tmp_path)
    (kernel,) = record["kernels"]
    assert kernel["compiled"]["cpu"]["float32"]["instances"] == ["fill<64>"]


def test_the_tables(source):
    result = run(source, "--no-compile")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["kernels", "found", "3"] in lines
    assert ["launch", "sites", "not_lowered", "2"] in lines
    assert any(line[:4] == ["scale1", f"scale.cu:{line_of('scale1')}", "1", "lowered"] for line in lines)
    assert any(line[:5] == ["sorted", f"scale.cu:{line_of('sorted')}", "2", "not", "lowered"] for line in lines)
    assert "1 thing not accounted for:" in result.stdout


@pytest.mark.parametrize("name", ["90", "sm_7", "sm_1000"])
def test_an_architecture_is_named_like_sm_90(source, name):
    result = run(source, "--arch", name)
    assert result.exit_code == 2
    assert f"{name} is no architecture" in result.output


def test_the_vendored_tree_is_accounted_for():
    root = pathlib.Path(__file__).parents[1] / "vendor" / "llm.c"
    code, record = report_of(root, "--no-compile")
    assert (code, record["unexplained"]) == (0, [])
    totals = record["totals"]
    assert totals["kernels"]["found"] == totals["kernels"]["sliced"] >= 100
    # What is compiled once is what the compile check compiles once.
    package = load_package(str(root.parents[1] / "generated"))
    found = {one.origin: one for module in package.modules() for one in compile_check.kernels_of(module)}
    fixed = {f"{one['file']}:{one['line']}": one["fixed"] for one in record["kernels"] if one["module"] is not None}
    assert {place: len(compile_check.precisions_of(found[place])) == 1 for place in fixed if place in found} == {
        place: is_fixed for place, is_fixed in fixed.items() if place in found
    }
    assert len(fixed.keys() & found.keys()) > 90
    assert totals["references"]["found"] == totals["references"]["usable"] >= 20
