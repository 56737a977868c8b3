"""Floating values in launch configurations are truncated as C++ does it, wherever they stand."""

import pathlib

import pytest

from llmc2py.pipeline import generate

TRUNCATED = 'c_cast(c_cast(c_cast(n, "float") * f, "float"), "long")'


@pytest.mark.parametrize(
    ("statements", "grid"),
    [
        ("k<<<n * f, 2>>>(a, n);", TRUNCATED),
        ("k<<<dim3(n * f), 2>>>(a, n);", f"({TRUNCATED},)"),
        ("dim3 g(n * f, 2); k<<<g, 2>>>(a, n);", f"({TRUNCATED}, 2)"),
        ("dim3 g{3, n * f}; k<<<g, 2>>>(a, n);", f"(3, {TRUNCATED})"),
        ("dim3 g = n * f; k<<<g, 2>>>(a, n);", f"({TRUNCATED},)"),
        ("dim3 g(1); g.x = n * f; k<<<g, 2>>>(a, n);", f"({TRUNCATED},)"),
    ],
)
def test_floats_are_truncated(tmp_path: pathlib.Path, statements: str, grid: str) -> None:
    text = "__global__ void k(float* a, int n) { if (n) a[0] = 1; }\n"
    (tmp_path / "k.cu").write_text(f"{text}void run(float* a, int n, float f) {{ {statements} }}\n")
    (module,) = generate(tmp_path).plan.modules
    lines = module.launchers[0].body
    assert any(line in (f"g = {grid}", f"plan.launch(k, {grid}, 2, 0, a, n)") for line in lines), lines


@pytest.mark.parametrize("block", ["warpSize", "blockDim.x * 2"])
def test_variables_of_device_code_are_refused(tmp_path: pathlib.Path, block: str) -> None:
    text = "__global__ void k(float* a, int n) { if (n) a[0] = warpSize; }\n"
    (tmp_path / "k.cu").write_text(f"{text}void run(float* a, int n) {{ k<<<1, {block}>>>(a, n); }}\n")
    (refused,) = generate(tmp_path).plan.not_lowered
    assert refused.reason == f"{block.partition('.')[0]} is a variable of device code, which host code cannot use"


def test_locals_may_have_their_names(tmp_path: pathlib.Path) -> None:
    text = "__global__ void k(float* a, int n) { if (n) a[0] = 1; }\n"
    run = (
        "void run(float* a, int n) { const int warpSize = 32; dim3 blockDim(n); k<<<blockDim.x, warpSize>>>(a, n); }\n"
    )
    (tmp_path / "k.cu").write_text(text + run)
    (module,) = generate(tmp_path).plan.modules
    assert module.launchers[0].body[-1] == "plan.launch(k, blockDim[0], warpSize, 0, a, n)"
