"""Every numbered launcher of a file is compared, over its block sizes, with NumPy and with its file's own reference."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.verify import variants
from llmc2py.verify.packages import load_package
from llmc2py.verify.report import verify_package
from llmc2py.verify.variants import BLOCK_SIZES, check_variant, variant_case, variant_subjects


def subject_of(package, layer, launcher, precision="float32"):
    found = variant_subjects(load_package(str(package)), layer, np)
    return next(one for one in found if (one.variant.launcher, one.precision) == (launcher, precision))


def checks_of(rows):
    return {(row.check.split(", ")[1], row.check.split(", ")[0]) for row in rows}


def test_every_numbered_launcher_of_an_op_is_a_variant(made):
    loaded = load_package(str(made))
    names = [one.variant.launcher for one in variant_subjects(loaded, "LayerNorm", np)]
    assert names == [f"layernorm_forward{n}" for n in range(1, 7)] + [f"layernorm_backward{n}" for n in range(1, 11)]
    precisions = {one.precision for one in variant_subjects(loaded, "GeLU", np)}
    assert precisions == {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize(
    ("layer", "launcher", "precision", "own"),
    [
        ("GeLU", "gelu_forward2", "bfloat16", "gelu_forward_cpu"),
        ("GeLU", "gelu_backward1", "float32", "gelu_backward_cpu"),
        ("LayerNorm", "layernorm_forward1", "float32", "layernorm_forward_cpu"),
        ("LayerNorm", "layernorm_backward5", "float32", "layernorm_backward_cpu"),
    ],
)
def test_a_right_variant_passes_in_every_block_against_both_references(made, layer, launcher, precision, own):
    rows = check_variant(subject_of(made, layer, launcher, precision))
    assert [row.detail for row in rows if not row.ok] == []
    assert checks_of(rows) == {(name, f"block {size}") for name in ("NumPy", own) for size in BLOCK_SIZES}
    assert {(row.layer, row.precision) for row in rows} == {(launcher, precision)}


def test_a_wrong_variant_fails_against_both_references(mutate):
    package = mutate("dev/cuda/gelu_forward.py", r"ceil_div_\(N, block_size\)", "ceil_div_(N, block_size) - 1")
    rows = check_variant(subject_of(package, "GeLU", "gelu_forward1"))
    assert {name for name, _ in checks_of(rows)} == {"NumPy", "gelu_forward_cpu"}
    assert not any(row.ok for row in rows), "the last block's elements stay NaN"


def test_statistics_are_compared_with_the_c_reference_alone(mutate):
    package = mutate("references_c/dev/cuda/layernorm_forward/layernorm_forward_cpu.c", r"rstd\[", "mean[")
    rows = check_variant(subject_of(package, "LayerNorm", "layernorm_forward1"))
    assert {name for name, _ in checks_of(row for row in rows if not row.ok)} == {"layernorm_forward_cpu"}


def test_a_block_that_the_launcher_refuses_is_passed_over(mutate):
    refusal = r"\1    plan.require(block_size >= 256, 'block_size >= 256', block_size=block_size)\n"
    package = mutate("dev/cuda/gelu_forward.py", r"(def gelu_forward1\(.*\n.*\n)", refusal)
    rows = check_variant(subject_of(package, "GeLU", "gelu_forward1"))
    assert {block for _, block in checks_of(rows)} == {"block 256", "block 512", "block 1024"}
    assert all(row.ok for row in rows)


def test_a_fault_of_the_comparison_is_no_refusal(made, monkeypatch):
    subject = subject_of(made, "GeLU", "gelu_forward1")
    whole = variants.compare

    def compare(actual, wanted, allowed):
        if actual.size == variant_case(subject.spec, 64).rows:
            raise ValueError("shapes do not fit")
        return whole(actual, wanted, allowed)

    monkeypatch.setattr(variants, "compare", compare)
    rows = check_variant(subject)
    assert any("ValueError: shapes do not fit" in row.detail and not row.ok for row in rows)


def test_a_launcher_that_refuses_every_block_fails(mutate):
    refusal = r"\1    plan.require(N < 0, 'N < 0', N=N)\n"
    package = mutate("dev/cuda/gelu_forward.py", r"(def gelu_forward1\(.*\n.*\n)", refusal)
    (row,) = check_variant(subject_of(package, "GeLU", "gelu_forward1"))
    assert not row.ok
    assert "every block is refused" in row.detail
    assert "N < 0" in row.detail


def test_a_variant_that_reads_what_nobody_gives_is_a_failed_row(mutate):
    package = mutate("references.py", r'\("out", "inp", "N", "block_size"\)', '("out", "elsewhere", "N", "block_size")')
    rows = check_variant(subject_of(package, "GeLU", "gelu_forward1"))
    assert {row.ok for row in rows} == {False}
    assert "`elsewhere` is read" in rows[0].detail


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_sizes_are_whole_blocks(made, block_size):
    layers = load_package(str(made)).layers
    assert variant_case(layers["GeLU"].spec, block_size).rows % (8 * block_size) == 0
    case = variant_case(layers["LayerNorm"].spec, block_size)
    assert case.rows % block_size == 0
    assert case.sizes == {"C": 128}


def test_verify_has_rows_of_variants(made):
    rows = verify_package(str(made), "cpu", ["Residual"], precisions=["float32"], cases=lambda spec: [])
    assert {row.layer for row in rows} == {"residual_forward1", "residual_forward2"}
    assert all(row.ok for row in rows)
