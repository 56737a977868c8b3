"""Launchers that are in no layer are compared with NumPy and with their file's own reference."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.diagnostics import UsageError
from llmc2py.verify.packages import load_package
from llmc2py.verify.report import verify_package
from llmc2py.verify.variants import BLOCK_SIZES, check_case, check_variant, variant_subjects


def subject_of(package, op, launcher, precision="float32"):
    found = variant_subjects(load_package(str(package)), op, np)
    return next(one for one in found if (one.variant.launcher, one.precision) == (launcher, precision))


def failed(rows):
    return {row.check.split(", ")[1] for row in rows if not row.ok}


@pytest.mark.parametrize(
    ("op", "launcher", "precision", "own"),
    [
        ("softmax", "softmax_forward7", "float32", "softmax_forward_cpu"),
        ("encoder", "encoder_forward3", "bfloat16", "encoder_forward_cpu"),
        ("encoder", "encoder_backward1", "float32", "encoder_backward_cpu"),
        ("crossentropy", "crossentropy_softmax_backward1", "float32", "crossentropy_softmax_backward_cpu"),
        ("classifier_fused", "fused_classifier3", "float32", "crossentropy_forward_cpu"),
        ("attention_heads", "attention_forward1", "float32", "attention_forward_cpu"),
    ],
)
def test_a_right_launcher_passes_in_every_block_against_both_references(made, op, launcher, precision, own):
    rows = check_variant(subject_of(made, op, launcher, precision))
    assert [row.detail for row in rows if not row.ok] == []
    expected = {f"block {size}, {reference}" for size in BLOCK_SIZES for reference in ("NumPy", own)}
    assert expected <= {row.check for row in rows}


@pytest.mark.parametrize(
    ("op", "launcher", "file", "pattern", "replacement", "references"),
    [
        ("softmax", "softmax_forward1", "dev/cuda/softmax_forward.cu", r"expf\(x\[c\] - top\) \* scale",
         "expf(x[c] - top)", {"NumPy", "softmax_forward_cpu", "softmax_forward_online_cpu"}),
        ("encoder", "encoder_forward1", "dev/cuda/encoder_forward.cu", r"row % T", "row % T / 2",
         {"NumPy", "encoder_forward_cpu"}),
        ("crossentropy", "crossentropy_forward1", "crossentropy.cu", r"-logf\(", "logf(",
         {"NumPy", "crossentropy_forward_cpu"}),
    ],
)  # fmt: skip
def test_a_wrong_kernel_fails_against_both_references(mutate, op, launcher, file, pattern, replacement, references):
    package = mutate(file, pattern, replacement)
    assert failed(check_variant(subject_of(package, op, launcher))) == references


def test_what_is_computed_in_place_begins_with_the_input(made, mutate):
    right = check_variant(subject_of(made, "adamw", "adamw_dispatch1"))
    assert [row.check for row in right if row.ok] == ["launch, NumPy", "launch, adamw_cpu"]
    package = mutate("references.py", r"0\.9 \* m_memory", "0.8 * m_memory")
    assert failed(check_variant(subject_of(package, "adamw", "adamw_dispatch1"))) == {"NumPy"}


def test_where_the_reference_is_nan_any_result_is_right(made, mutate):
    assert failed(check_variant(subject_of(made, "global_norm", "global_norm4"))) == set()
    package = mutate("references.py", r"out\[0\] = \(values\*\*2\)\.sum\(\)", "pass")
    rows = check_variant(subject_of(package, "global_norm", "global_norm4"))
    assert {row.ok for row in rows} == {False}
    assert {row.detail for row in rows} == {"ValueError: the reference gives NaN alone"}


def test_launchers_that_are_reached_by_number_have_rows_of_their_own(made):
    rows = verify_package(str(made), "cpu", ["attention_scores"])
    assert {row.layer for row in rows} == {f"trimul_gpu({number})" for number in range(5)}
    assert {row.check for row in rows} == {"launch, NumPy", "launch, trimul_cpu"}
    assert all(row.ok for row in rows)


def test_a_launcher_that_takes_another_is_given_it_by_name(made, mutate):
    def rows_of(package):
        subject = subject_of(package, "attention_heads", "attention_backward1")
        assert "launch_softmax_1" in subject.variant.arguments
        return check_variant(subject)

    rows = rows_of(made)
    assert {row.layer for row in rows} == {"attention_backward1(launch_softmax_1)"}
    assert all(row.ok for row in rows)
    package = mutate(
        "dev/cuda/attention_backward.py",
        r"permute_kernel_backward, (.*?), dq, dk, dv",
        r"permute_kernel_backward, \1, dk, dq, dv",
    )
    assert failed(rows_of(package)) == {"NumPy", "attention_backward_cpu"}


def test_a_variant_runs_in_its_own_blocks_and_precisions_alone(made):
    loaded = load_package(str(made))
    precisions = {
        one.precision
        for one in variant_subjects(loaded, "linear", np)
        if one.variant.launcher == "matmul_backward_bias5"
    }
    assert precisions == {"float32"}
    rows = check_variant(subject_of(made, "linear", "matmul_backward_bias8"))
    assert {row.check.split(",")[0] for row in rows} == {f"block {size}" for size in (128, 256, 512, 1024)}


def test_sizes_follow_the_block(made):
    checks = load_package(str(made)).checks
    assert check_case(checks["encoder"], 1024).sizes == {"B": 2, "T": 512, "C": 64, "V": 37, "L": 512}
    assert check_case(checks["encoder"], 32).sizes["T"] == 32


def test_verify_chooses_an_op_without_a_layer_by_its_name(made):
    rows = verify_package(str(made), "cpu", ["permute"])
    assert {row.layer for row in rows} == {"permute_on_device"}
    assert all(row.ok for row in rows)
    with pytest.raises(UsageError, match="permute"):
        verify_package(str(made), "cpu", ["nothing"])


def test_every_launcher_that_an_entry_names_is_there(made):
    loaded = load_package(str(made))
    assert {one.op for one in loaded.variants} >= set(loaded.checks)
