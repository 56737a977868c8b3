"""A layer that touches what is not in its arrays is a failed row on the CPU, and the interpreter lives on."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.verify.cases import Case
from llmc2py.verify.packages import load_package
from llmc2py.verify.report import verify_package
from llmc2py.verify.variants import check_variant, variant_subjects

SOURCE = """
__global__ void work(float* out, const float* inp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { BODY }
}
void run_work(float* out, const float* inp, int n) {
    work<<<(n + 31) / 32, 32>>>(out, inp, n);
}
"""
ENTRY = """
name = "same"
layer = "Same"
summary = "The same."
source = "work.cu"
launchers = ["run_work"]
VARIANTS
[inputs]
x = "*"
[outputs]
y = "*"
[forward]
recipe = '''
y = empty_like(x)
run_work(y, x, N)
'''
[backward]
gradients = { x = "dx" }
recipe = '''
dx = empty_like(dy)
run_work(dx, dy, N)
'''
[reference]
forward = "y = 1 * x"
backward = "dx = 1 * dy"
"""
VARIANT = 'variants = [{ file = "work.cu", launchers = "run_work", reference = "forward", call = "(y, x, N)" }]'


@pytest.fixture
def package(tmp_path):
    def make(body, variants=""):
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / "work.cu").write_text(SOURCE.replace("BODY", body))
        (tree / "same.toml").write_text(ENTRY.replace("VARIANTS", variants))
        folder = tmp_path / "package"
        write_package(folder, generate(tree).files)
        return str(folder)

    return make


def rows_of(package, size=48):
    return verify_package(package, "cpu", cases=lambda spec: [Case((size,), {})] * 2, variants=False)


def test_what_stays_in_bounds_passes(package):
    rows = rows_of(package("out[i] = inp[i];"))
    assert {row.check for row in rows} >= {"forward", "backward", "arrays unchanged", "accumulation"}
    assert all(row.ok for row in rows)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out[100 * i] = inp[i];", r"writes out[100] (elements 0 to 47)"),
        ("out[i] = inp[i]; if (i == 0) out[n] = 1.0f;", r"writes out[48] (elements 0 to 47)"),
        ("out[i] = inp[i]; if (i == 0) out[-1] = 1.0f;", r"writes out[-1] (elements 0 to 47)"),
        ("out[i] = inp[i + 1];", r"reads inp[48] (elements 0 to 47)"),
        ("out[i] = inp[i + 1000000];", r"reads inp[1000000] (elements 0 to 47)"),
    ],
    ids=["far", "by one", "before", "read by one", "read far"],
)
def test_the_row_names_kernel_array_and_index_and_is_the_last(package, body, expected):
    rows = [row for row in rows_of(package(body)) if row.precision == "float32"]
    assert [(row.check, row.ok) for row in rows] == [("forward", False)]
    assert "work.cu:4: out of bounds: kernel work " in rows[0].detail
    assert expected in rows[0].detail


def test_large_arrays_are_not_run_again_and_the_row_says_what_to_do(package):
    (row,) = (row for row in rows_of(package("out[100 * i] = inp[i];"), 1 << 17) if row.precision == "float32")
    assert "OutOfBoundsError" in row.detail
    assert "access far out of bounds" in row.detail
    assert "LLMC2PY_CHECK=1 finds the line" in row.detail


def test_a_wrong_result_within_bounds_is_no_access_out_of_bounds(package):
    rows = [row for row in rows_of(package("out[i] = 2.0f * inp[i];")) if row.precision == "float32"]
    assert {row.ok for row in rows} == {True, False}
    assert not any("bounds" in row.detail for row in rows)


def test_a_variant_out_of_bounds_is_a_failed_row(package):
    (subject,) = variant_subjects(load_package(package("out[100 * i] = inp[i];", VARIANT)), "same", np)
    (row,) = check_variant(subject)
    assert not row.ok
    assert "OutOfBoundsError: " in row.detail
    assert "kernel work writes out[" in row.detail
