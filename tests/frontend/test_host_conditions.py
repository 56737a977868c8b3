"""Host code is read as nvcc compiles it: without the macros of device code, and with its own defined."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.frontend.reader import read_tree
from llmc2py.ir.conditions import PRECISIONS, holds, host_precisions, on_host
from llmc2py.ir.expressions import Number, PrecisionChoice, Unreadable
from llmc2py.ir.library import Library
from llmc2py.ir.statements import PrecisionBranch, Return, Unsupported
from llmc2py.ir.statements import walk as walk_body
from llmc2py.pipeline import generate

KERNEL = "__global__ void work(float* a) { a[threadIdx.x] = 1; }\n"
CHOICES = {
    "macro": "#ifdef __CUDA_ARCH__\n#define LANES 32\n#else\n#define LANES 64\n#endif\n",
    "constant": "#if defined(__CUDA_ARCH__)\nconst int LANES = 32;\n#else\nconst int LANES = 64;\n#endif\n",
    "constant first": "#ifndef __CUDA_ARCH__\nconst int LANES = 64;\n#else\nconst int LANES = 32;\n#endif\n",
    "version": "#if __CUDA_ARCH__ >= 800\nconst int LANES = 32;\n#else\nconst int LANES = 64;\n#endif\n",
    "function": "#ifdef __CUDA_ARCH__\n__device__ int f() { return 32; }\n#else\nint f() { return 64; }\n#endif\n",
    "body": "__host__ __device__ int f() {\n#ifdef __CUDA_ARCH__\n  return 32;\n#else\n  return 64;\n#endif\n}\n",
}  # fmt: skip


def read(folder: pathlib.Path, text: str) -> Library:
    (folder / "k.cu").write_text(text)
    return read_tree(folder)


def launchers(folder: pathlib.Path, text: str) -> str:
    """Return the module of the kernel and some host code."""
    (folder / "k.cu").write_text(KERNEL + text)
    made = generate(folder)
    assert not made.diagnostics
    assert not made.plan.not_lowered
    return made.files["k.py"]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_launch_takes_the_value_of_host_code(tmp_path: pathlib.Path, choice: str) -> None:
    size = "f()" if "f()" in CHOICES[choice] else "LANES"
    text = launchers(tmp_path, f"{CHOICES[choice]}void run(float* a) {{ work<<<1, {size}>>>(a); }}\n")
    assert "64" in text
    assert "32" not in text.replace("float32", "")


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("defined(ENABLE_BF16)", (False, False, True)),
        ("!(defined(ENABLE_BF16)) && ENABLE_FP16", (False, True, False)),
        ("defined ENABLE_FP16 || ENABLE_FP32", (True, True, False)),
        ("ENABLE_FP16 == 1", (False, True, False)),
        ("MY_ENABLE_FP16", (None, None, None)),
        ("ENABLE_FP16 && __CUDA_ARCH__ >= 800", (None, None, None)),
    ],
)
def test_precision_decides_a_condition_by_definition_or_value(condition: str, told: tuple[bool | None, ...]) -> None:
    assert tuple(holds(condition, precision) for precision in PRECISIONS) == told


def test_a_constant_that_values_of_macros_choose_is_known(tmp_path: pathlib.Path) -> None:
    # As in early versions of llm.c, where `#elif ENABLE_FP16` stands behind `#ifdef ENABLE_BF16`.
    choice = (
        "#ifdef ENABLE_BF16\n#define LANES 8\n#elif ENABLE_FP16\n#define LANES 16\n#else\n#define LANES 32\n#endif\n"
    )
    text = launchers(tmp_path, f"{choice}void run(float* a) {{ work<<<1, LANES>>>(a); }}\n")
    assert '"bfloat16": 8, "float16": 16, "float32": 32' in text


def test_a_switch_has_the_cases_of_host_code(tmp_path: pathlib.Path) -> None:
    cases = "#ifdef __CUDA_ARCH__\ncase 1: b = 32; break;\n#else\ncase 1: b = 64; break;\n#endif\ncase 2: b = 8;"
    body = f"int b = 1; switch (n) {{\n{cases}\n}} work<<<1, b>>>(a);"
    text = launchers(tmp_path, f"void run(float* a, int n) {{ {body} }}\n")
    assert "b = 64" in text
    assert "b = 32" not in text


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("defined(__CUDA_ARCH__)", "0"),
        ("!defined(__CUDA_ARCH__)", "!0"),
        ("(__CUDA_ARCH__ == 800 || 900 <= __CUDA_ARCH__)", "(0 || 0)"),
        ("__CUDA_ARCH__ < 0x320", "1"),
        ("__CUDA_ARCH__", "0"),
        ("defined(__CUDACC_RTC__) && defined(ENABLE_BF16)", "0 && defined(ENABLE_BF16)"),
        ("__CUDACC_VER_MAJOR__ < 12", "__CUDACC_VER_MAJOR__ < 12"),
    ],
)
def test_what_host_code_leaves_of_a_condition(condition: str, left: str) -> None:
    assert on_host(condition) == left


def test_precisions_and_host_code_decide_together() -> None:
    assert host_precisions(["defined(ENABLE_BF16) || defined(__CUDA_ARCH__)"]) == ("bfloat16",)
    assert host_precisions(["__CUDA_ARCH__ >= 800"]) == ()


def test_constants_that_the_precision_chooses_have_a_value_in_each(tmp_path: pathlib.Path) -> None:
    text = "#ifdef ENABLE_FP32\nconst int B = 4;\n#else\nconst int B = 8;\n#endif\n"
    value = read(tmp_path, text + KERNEL).files[0].scope.constants["B"]
    assert isinstance(value, PrecisionChoice)
    numbers = {precision: one.value for precision, one in value.values if isinstance(one, Number)}
    assert numbers == {"float32": 4, "float16": 8, "bfloat16": 8}


NEW = "__CUDACC_VER_MAJOR__ >= 12"


def test_what_the_compiler_alone_knows_is_read_as_nothing(tmp_path: pathlib.Path) -> None:
    constants = f"#if {NEW}\nconst int B = 4;\n#define C 1\n#else\nconst int B = 8;\n#define C 2\n#endif\n"
    run = f"void run(float* a) {{\n#if {NEW}\n  work<<<1, B>>>(a);\n#else\n  work<<<C, B>>>(a);\n#endif\n}}\n"
    (file,) = read(tmp_path, constants + KERNEL + run).files
    assert [type(file.scope.constants[name]) for name in "BC"] == [Unreadable, Unreadable]
    first = next(one for one in walk_body(file.launchers[0].body) if isinstance(one, Unsupported))
    assert (first.text, first.reason) == (f"#if {NEW}", "is known to the compiler alone: take the condition away")


def test_what_host_code_does_not_have_launches_nothing(tmp_path: pathlib.Path) -> None:
    text = f"{KERNEL}#ifdef __CUDA_ARCH__\nvoid gone(float* a) {{ work<<<1, 1>>>(a); }}\n#endif\n"
    text += "int run(float* a) {\n#if __CUDA_ARCH__ > 0\n  return 1;\n#endif\n  work<<<1, 1>>>(a);\n  return 2;\n}\n"
    (file,) = read(tmp_path, text).files
    (launcher,) = file.launchers
    assert launcher.name == "run"
    (branch,) = [one for one in launcher.body if isinstance(one, PrecisionBranch)]
    assert (branch.condition, [type(one) for one in branch.body]) == ("0", [Return])


def test_a_condition_on_a_macro_of_the_compilers_choice_stays_open(tmp_path: pathlib.Path) -> None:
    functions = "__device__ int f() { return 1; }\n#else\n__device__ int f() { return 2; }\n#endif\n"
    text = f"{CHOICES['macro']}#if LANES == 32\n{functions}__global__ void k(int* a) {{ a[0] = f(); }}\n"
    (kernel,) = read(tmp_path, text).kernels
    assert kernel.slice is not None
    found = [item.text.strip() for item in kernel.slice.items]
    assert found[:2] == ["#define LANES 32", "#define LANES 64"]
    assert [item.conditions for item in kernel.slice.items][2:4] == [("LANES == 32",), ("!(LANES == 32)",)]


@pytest.mark.parametrize("macro", ["__CUDACC__", "__NVCC__"])
@pytest.mark.parametrize("words", [("__host__ __device__", ""), ("__host__ __device__", "inline")])
def test_macros_for_other_compilers_are_those_of_nvcc(
    tmp_path: pathlib.Path, macro: str, words: tuple[str, str]
) -> None:
    text = f"#if defined({macro}) || defined(__clang__)\n#define HD {words[0]}\n#else\n#define HD {words[1]}\n#endif\n"
    text += f"#ifdef {macro}\n__host__ __device__\n#endif\n  inline float\n  g(float x)\n{{ return x; }}\n"
    text += "HD float twice(float x) { return 2 * g(x); }\n"
    text += f"#ifndef {macro}\n#define KERNEL\n#else\n#define KERNEL __global__\n#endif\n"
    library = read(tmp_path, f"{text}KERNEL void good(float* a) {{ a[0] = twice(a[0]); }}\n")
    assert library.diagnostics == ()
    assert [one.name for one in library.kernels if one.slice is not None] == ["good"]
