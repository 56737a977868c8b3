"""CASES A10: a launcher's assert is a ValueError, its reassigned parameter is honoured, a weak assert is found out."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import host

SOURCE = """\
#include <assert.h>
__global__ void act8(float* o, const float* x) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int i = first; i < first + 8; ++i) o[i] = x[i] > 0 ? x[i] : 0;
}
void act(float* o, const float* x, int N, int bs) {
    if (bs == 768) bs = 1024;
    assert(N % (bs * 8) == 0);
    act8<<<N / (bs * 8), bs>>>(o, x);
}
"""
# The assert of one element too few, and the grid that rounds up for it.
WEAK = SOURCE.replace("N % (bs * 8) == 0", "N % bs == 0").replace("<<<N / (bs * 8)", "<<<(N + bs * 8 - 1) / (bs * 8)")


def inputs(xp, size):
    values = np.random.default_rng(10).normal(size=size).astype(np.float32)
    return xp.full(size, np.nan, np.float32), xp.asarray(values)


def test_the_assert_is_a_value_error_with_condition_and_values(case, xp):
    act = case({"act.cu": SOURCE})["act"].act
    out, x = inputs(xp, 4096)
    with pytest.raises(ValueError, match=r"act needs N % \(bs \* 8\) == 0, but N = 4000, bs = 256 \(act.cu:6\)"):
        act(out, x, 4000, 256)
    assert xp.isnan(out).all()
    act(out, x, 4096, 256)
    xp.testing.assert_array_equal(out, xp.maximum(x, 0))


def test_the_reassigned_parameter_counts(case, xp):
    act = case({"act.cu": SOURCE})["act"].act
    out, x = inputs(xp, 8192)
    (launch,) = act.plan(out, x, 8192, 768).operations
    assert (launch.grid, launch.block) == ((1, 1, 1), (1024, 1, 1))
    act(out, x, 8192, 768)
    xp.testing.assert_array_equal(out, xp.maximum(x, 0))
    with pytest.raises(ValueError, match="but N = 6144, bs = 1024"):
        act(out, x, 6144, 768)


def test_the_checker_finds_what_the_weaker_assert_lets_through(case):
    act = case({"act.cu": WEAK})["act"].act
    backing, x = inputs(np, 4096)
    out, size = backing[:2304], 2304
    with host.checking(raise_findings=False) as report:
        act(out, x[:size], size, 256)
    found = [finding for finding in report.findings if "out of bounds" in finding]
    assert any(finding.startswith("act.cu:4: ") and "act8 writes o[2304]" in finding for finding in found)
    assert any("act8 reads x[2304] (elements 0 to 2303)" in finding for finding in found)


def test_the_checker_is_silent_on_sizes_that_fit(case):
    act = case({"act.cu": SOURCE})["act"].act
    out, x = inputs(np, 4096)
    with host.checking() as report:
        act(out, x, 4096, 256)
    assert report.findings == []
    np.testing.assert_array_equal(out, np.maximum(x, 0))
