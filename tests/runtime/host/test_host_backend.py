"""The functions of the backend besides kernels."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import host


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 7, 2)])
def test_empty_arrays_are_aligned_and_contiguous(shape, dtype):
    array = host.empty(shape, dtype)
    assert array.shape == shape
    assert array.dtype == np.dtype(dtype)
    assert array.ctypes.data % 256 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_memset_and_memcpy():
    a, b = host.empty((8,), np.uint8), host.empty((8,), np.uint8)
    host.memset(a.ctypes.data, 7, 8, 0)
    host.memset(b.ctypes.data, 0, 8, 0)
    host.memcpy(b.ctypes.data, a.ctypes.data, 5, 0)
    np.testing.assert_array_equal(b, [7] * 5 + [0] * 3)


def test_properties_are_those_of_no_particular_machine():
    properties = host.properties(0)
    assert (properties.name, properties.warpSize, properties.maxThreadsPerBlock) == ("cpu", 32, 1024)
    assert properties is host.properties(0)
    assert host.current_stream() == 0
    assert host.name == "cpu"


def test_limits_of_a_kernel(run):
    kernel = host.kernel(run.request("__global__ void f() {}", "f"), 0)
    assert kernel.max_threads_per_block == 1024
    assert kernel.reserve_shared(166912)
    assert not kernel.reserve_shared(166913)
    assert kernel.max_active_blocks(1024, 0) == 2
    assert kernel.max_active_blocks(256, 0) == 8
    assert kernel.max_active_blocks(256, 65536) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_kernels_run_after_a_fork(run):
    n = 1 << 20
    text = "__global__ void f(float* o) { o[blockIdx.x * 256 + threadIdx.x] = 5; }"
    out = np.zeros(n, np.float32)
    run(text, "f", out, grid=n // 256, block=256)
    child = os.fork()
    if child == 0:
        again = np.zeros(n, np.float32)
        run(text, "f", again, grid=n // 256, block=256)
        os._exit(0 if (again == 5).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
