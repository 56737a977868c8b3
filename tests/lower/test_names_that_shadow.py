"""Kernels that share their names with launchers, variables, host functions, or kernels of another namespace."""

import pathlib

import pytest

from llmc2py.ir.plans import PackagePlan
from llmc2py.pipeline import generate

FILL = "__global__ void fill(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = 1; }\n"


def planned(folder: pathlib.Path, files: dict[str, str]) -> PackagePlan:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return generate(folder).plan


def body(plan: PackagePlan, launcher: str) -> list[str]:
    return next(list(one.body) for module in plan.modules for one in module.launchers if one.name == launcher)


def test_a_launcher_named_as_the_kernel_of_a_header(tmp_path: pathlib.Path) -> None:
    launcher = '#include "k.cuh"\nvoid fill(float* a, int n) { dev::fill<<<1, 32>>>(a, n); }\n'
    plan = planned(tmp_path, {"k.cuh": f"#pragma once\nnamespace dev {{ {FILL} }}\n", "run.cu": launcher})
    assert body(plan, "fill") == ["plan.launch(fill_kernel, 1, 32, 0, a, n)"]
    assert {module.path: module.imports for module in plan.modules}["run"] == {"k": ("fill_kernel",)}


@pytest.mark.parametrize(
    ("launcher", "lines"),
    [
        (
            "void run(float* fill, int n) { ::fill<<<1, 64>>>(fill, n); }",
            ["plan.launch(fill_kernel, 1, 64, 0, fill, n)"],
        ),
        (
            "void run(float* a, int n) { int fill = n; ::fill<<<1, fill>>>(a, n); }",
            ["fill = n", "plan.launch(fill_kernel, 1, fill, 0, a, n)"],
        ),
        (
            "int blocks(int n) { int b = n / 32; return b; }\n"
            "void run(float* a, int n) { fill<<<::blocks(n), 9>>>(a, n); int blocks = 3; fill<<<1, blocks>>>(a, n); }",
            ["plan.launch(fill, blocks(n), 9, 0, a, n)", "blocks_ = 3", "plan.launch(fill, 1, blocks_, 0, a, n)"],
        ),
    ],
)
def test_variables_named_as_what_is_launched_or_called(tmp_path: pathlib.Path, launcher: str, lines: list[str]) -> None:
    assert body(planned(tmp_path, {"k.cu": FILL + launcher}), "run") == lines


def test_a_parameter_named_as_what_is_called(tmp_path: pathlib.Path) -> None:
    text = "void go(float* a, int n) { fill<<<1, n>>>(a, n); }\nvoid run(float* go, int n) { ::go(go, n); }\n"
    plan = planned(tmp_path, {"k.cu": FILL + text})
    assert [one.reason for one in plan.not_lowered] == ["parameter go has the name of a function that is called here"]


def test_kernels_of_one_name_in_two_headers(tmp_path: pathlib.Path) -> None:
    run = """
#include "a/k.cuh"
#include "b/k.cuh"
void r1(float* a, int n) { one::fill<<<1, 64>>>(a, n); }
void r2(float* a, int n) { two::fill<<<1, 64>>>(a, n); }
void r3(float* a, int n) { fill<<<1, 64>>>(a, n); }
"""
    files = {f"{folder}/k.cuh": f"namespace {name} {{ {FILL} }}\n" for folder, name in (("a", "one"), ("b", "two"))}
    files["b/k.cuh"] += f"namespace three {{ {FILL} }}\n"
    plan = planned(tmp_path, files | {"run.cu": run + "void r4(float* a, int n) { three::fill<<<1, 64>>>(a, n); }\n"})
    assert body(plan, "r1") == ["plan.launch(one_fill, 1, 64, 0, a, n)"]
    assert body(plan, "r2") == ["plan.launch(two_fill, 1, 64, 0, a, n)"]
    assert {module.path: module.imports for module in plan.modules}["run"] == {
        "a/k": ("one_fill",),
        "b/k": ("two_fill",),
    }
    reasons = {one.launcher.name: one.reason for one in plan.not_lowered}
    assert reasons.keys() == {"r3", "r4"}
    assert "qualify it" in reasons["r3"]
    assert "is left out" in reasons["r4"]
