"""CASES A9: a block with more threads than a kernel's registers allow is refused before the launch, with both."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.runtime.errors import LaunchError

# Sixty-four sums at a time, with every thread's own index among the addends, so that none can be shared or spared.
SOURCE = """\
template <int Kept>
__global__ void heavy(float* out, const float* x, int n) {
    float kept[Kept];
    #pragma unroll
    for (int k = 0; k < Kept; k++) kept[k] = x[(threadIdx.x + k) % n];
    for (int round = 0; round < 8; round++) {
        #pragma unroll
        for (int k = 0; k < Kept; k++) kept[k] = kept[k] * kept[(k + 7) % Kept] + x[(threadIdx.x * k + round) % n];
    }
    float sum = 0;
    #pragma unroll
    for (int k = 0; k < Kept; k++) sum += kept[k];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
void run(float* out, const float* x, int n, int block_size) {
    heavy<96><<<2048 / block_size, block_size>>>(out, x, n);
}
"""


@pytest.fixture
def run(case):
    return case({"heavy.cu": SOURCE})["heavy"].run


@pytest.fixture
def crowded(monkeypatch):
    """The CPU backend with the limits of a kernel that uses too many registers."""
    monkeypatch.setattr(host.HostKernel, "num_regs", 102)
    monkeypatch.setattr(host.HostKernel, "max_threads_per_block", 640)


def test_kernel_registers_and_block_are_named(run, crowded):
    out = np.full(2048, 7, np.float32)
    with pytest.raises(LaunchError, match=r"heavy: a block of 1024 threads .* 102 registers .* at most 640 threads"):
        run(out, np.ones(64, np.float32), 64, 1024)
    assert (out == 7).all()


def test_another_block_size_runs(run, crowded):
    out, x = np.full(2048, np.nan, np.float32), np.full(64, 0.25, np.float32)
    run(out, x, 64, 512)
    assert (out == out[0]).all()
    assert out[0] > 96 * 0.25


@pytest.mark.gpu
def test_the_compiled_kernels_own_limit_counts(run):
    import cupy

    out, x = cupy.full(2048, 7, np.float32), cupy.full(64, 0.25, np.float32)
    with pytest.raises(LaunchError, match=r"heavy: a block of 1024 threads .* registers .* take a smaller block"):
        run(out, x, 64, 1024)
    assert (out == 7).all()
    run(out, x, 64, 256)
    assert (out == out[0]).all()
    assert out[0] > 96 * 0.25
