"""CASES B8: a kernel that waits for its whole grid runs with blocks that fit at once, and is refused with more."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

from llmc2py.pipeline import generate
from llmc2py.runtime.errors import LaunchError

SOURCE = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void share(float* out, float* sums, const float* x, int n) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const int threads = gridDim.x * blockDim.x;
    float own = 0.0f;
    for (int j = thread; j < n; j += threads) own += x[j];
    sums[thread] = own;
    cg::this_grid().sync();
    float total = 0.0f;
    for (int j = 0; j < threads; ++j) total += sums[j];
    for (int j = thread; j < n; j += threads) out[j] = x[j] / total;
}
void normalise(float* out, float* sums, const float* x, int n, int blocks, int bytes, cudaStream_t stream) {
    void* arguments[] = {(void*)&out, &sums, &x, &n};
    if (n > 0) {
        cudaCheck(cudaLaunchCooperativeKernel((void*)share, dim3(blocks), dim3(64), arguments, bytes, stream));
    }
}
"""


@pytest.fixture
def module(case):
    return case({"share.cu": SOURCE})["share"]


def run(module, xp, blocks, launch="normalise", bytes_=0):
    x = xp.asarray(np.linspace(1, 2, 777, dtype=np.float32))
    out, sums = xp.full(777, np.nan, np.float32), xp.full(64 * blocks, np.nan, np.float32)
    if launch == "normalise":
        module.normalise(out, sums, x, 777, blocks, bytes_)
    else:
        module.share[blocks, 64](out, sums, x, 777)
    xp.testing.assert_allclose(out, x / x.sum(), rtol=1e-5)


@pytest.mark.parametrize("launch", ["normalise", "kernel"])
def test_one_block_runs(module, xp, launch):
    run(module, xp, 1, launch)


@pytest.mark.gpu
def test_as_many_blocks_as_fit_wait_for_each_other(module):
    cupy = importlib.import_module("cupy")
    run(module, cupy, cupy.cuda.Device().attributes["MultiProcessorCount"])


def test_more_blocks_than_fit_are_refused_with_the_limit(module, xp):
    with pytest.raises(LaunchError) as caught:
        run(module, xp, 1_000_000)
    found = re.search(
        r"needs all 1000000 blocks at once, and .* runs at most (\d+) of 64 threads \((\d+) on each of (\d+) multi",
        str(caught.value),
    )
    assert found is not None, caught.value
    most, each, processors = map(int, found.groups())
    assert most == each * processors > 0


def test_shared_memory_counts(module, xp):
    with pytest.raises(LaunchError, match=r"\([1-6] on each of"):
        run(module, xp, 5000, bytes_=40_000)


def test_an_array_that_does_not_hold_addresses_is_named(tmp_path):
    (tmp_path / "share.cu").write_text(SOURCE.replace("(void*)&out, &sums", "out, &sums"), encoding="utf-8")
    (refused,) = generate(tmp_path).plan.not_lowered
    assert refused.span.origin == "share.cu:17"
    assert "a local array that is made with the addresses of its arguments" in refused.reason
