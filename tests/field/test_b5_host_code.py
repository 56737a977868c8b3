"""CASES B5: a kernel's file may hold host code and host headers; a kernel that calls a host function is named."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import cuda

SOURCE = """\
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include <math.h>

static int calls = 0;
int blocks_for(int n, int block) { calls += 1; return (n + block - 1) / block; }
void report(const char* what) { printf("%s\\n", what); }

__global__ void row_max(float* out, const float* x, int n, int c) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float best = -INFINITY;
    for (int i = 0; i < c; ++i) best = fmaxf(best, x[row * c + i]);
    out[row] = best;
}
"""
CALLING = """
float halved(float x) { return x / 2; }
__device__ float through(float x) { return halved(x); }
__global__ void calls_host(float* out) { out[0] = halved(1.0f); }
__global__ void calls_through(float* out) { out[0] = through(1.0f); }
"""


def test_the_kernel_runs(case, xp):
    built = case({"rows.cu": SOURCE})
    assert built.diagnostics == []
    x = xp.asarray(np.random.default_rng(5).normal(-9, 1, (5, 7)).astype(np.float32))
    out = xp.full(6, np.nan, np.float32)
    built["rows"].row_max[1, 32](out, x, 5, 7)
    xp.testing.assert_array_equal(out[:5], x.max(axis=1))
    assert xp.isnan(out[5])
    built["rows"].row_max[1, 32](out, x, 5, 0)
    xp.testing.assert_array_equal(out[:5], xp.full(5, -np.inf, np.float32))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles_it_without_the_host_headers(case, arch):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    kernel = case({"rows.cu": SOURCE})["rows"].row_max
    array = np.zeros(1, np.float32)
    (launch,) = kernel[1, 32].plan(array, array, 1, 1).operations
    compiled = cuda.compile_cubin(launch.instance.request, arch)
    assert "row_max" in compiled.lowered_name
    assert compiled.cubin.startswith(b"\x7fELF")


def test_a_host_function_that_a_kernel_calls_is_named(case, xp):
    built = case({"rows.cu": SOURCE + CALLING})
    line = SOURCE.count("\n") + 2
    first, second = built.diagnostics
    assert first.startswith(f"rows.cu:{line + 2}:")
    assert (
        f"error: kernel calls_host calls host function halved (defined at rows.cu:{line}); make it __device__" in first
    )
    assert second.startswith(f"rows.cu:{line + 1}:")
    assert "error: kernel calls_through calls host function halved" in second
    assert not hasattr(built["rows"], "calls_host")
    assert not hasattr(built["rows"], "calls_through")
    out = xp.full(1, np.nan, np.float32)
    built["rows"].row_max[1, 32](out, xp.asarray([[1, 3, 2]], dtype=np.float32), 1, 3)
    assert out[0] == 3
