"""A kernel that goes wrong raises in Python, says where, and leaves the backend usable."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.runtime.errors import LaunchError

SUM = """
__global__ void sum(float* o, const float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    o[threadIdx.x] = s[63 - threadIdx.x];
}
"""

LOOP = """#line 1 "llmc/loop.cuh"
__global__ void loop(float* o, const float* x, int C) {
    __shared__ float s[256];
    for (int c0 = 0; c0 < (C + 255) / 256 * 256; c0 += 256) {
        int c = c0 + threadIdx.x;
        if (c >= C) break;
        s[threadIdx.x] = x[c];
        __syncthreads();
        o[c] = s[threadIdx.x];
    }
}
"""


@pytest.fixture(autouse=True)
def the_next_right_launch_works(run):
    yield
    out, x = np.zeros(64, np.float32), np.arange(64, dtype=np.float32)
    run(SUM, "sum", out, x, block=64)
    np.testing.assert_array_equal(out, x[::-1])


def test_failed_assertion_names_place_and_thread(run):
    text = '#line 40 "llmc/x.cuh"\n__global__ void check(int n) { assert(n % 8 == 0 && threadIdx.x < 5); }'
    with pytest.raises(host.KernelAssertionError) as caught:
        run(text, "check", 16, grid=1, block=(8, 2))
    message = str(caught.value)
    assert message.startswith("llmc/x.cuh:40: assertion failed: n % 8 == 0 && threadIdx.x < 5")
    assert "kernel check, block (0,0,0), thread (5,0,0)" in message
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, RuntimeError)


def test_assertion_of_the_system_header_does_not_abort(run):
    text = "#include <assert.h>\n#include <cassert>\n__global__ void check() {\n    assert(blockIdx.x != 3);\n}"
    with pytest.raises(host.KernelAssertionError, match=r"k\.cu:4: .*block \(3,0,0\)"):
        run(text, "check", grid=5, block=1)


def test_barrier_in_a_loop_that_lanes_leave(run):
    out, x = np.zeros(300, np.float32), np.ones(300, np.float32)
    with pytest.raises(host.DivergentBarrierError, match=r"llmc/loop\.cuh:7: divergent barrier: 44 of 256 threads"):
        run(LOOP, "loop", out, x, 300, block=256)
    out, x = np.zeros(512, np.float32), np.ones(512, np.float32)
    run(LOOP, "loop", out, x, 512, block=256)
    np.testing.assert_array_equal(out, x)


def test_threads_that_exit_before_any_barrier_are_not_waited_for(run):
    text = """__global__ void early(float* o, int n) {
        if (threadIdx.x >= n) { return; }
        __shared__ float s[128];
        s[threadIdx.x] = threadIdx.x;
        __syncthreads();
        o[threadIdx.x] = s[n - 1 - threadIdx.x];
    }"""
    out = np.zeros(100, np.float32)
    run(text, "early", out, 100, block=128)
    np.testing.assert_array_equal(out, np.arange(100)[::-1])


def test_barrier_against_shuffle_is_a_divergent_barrier(run):
    text = """__global__ void mixed(int* o) {
        if (threadIdx.x < 16) { __syncthreads(); }
        else { o[threadIdx.x] = __shfl_sync(0xffffffff, 1, 0); }
    }"""
    with pytest.raises(host.DivergentBarrierError, match=r"k\.cu:2: divergent barrier: .* at k\.cu:3"):
        run(text, "mixed", np.zeros(32, np.int32), block=32)


def test_lanes_that_never_come_are_a_deadlock(run):
    text = """__global__ void alone(int* o) {
        o[0] = __shfl_sync(threadIdx.x == 0 ? 0xfu : 0x7u, 1, 0);
    }"""
    with pytest.raises(host.KernelError, match=r"k\.cu:2: deadlock in a warp"):
        run(text, "alone", np.zeros(32, np.int32), block=4)


def test_trap_and_grid_barrier_are_errors(run):
    with pytest.raises(host.KernelError, match=r"k\.cu:1: __trap\(\)"):
        run("__global__ void stop() { __trap(); }", "stop")
    text = """#include <cooperative_groups.h>
    __global__ void all() { cooperative_groups::this_grid().sync(); }"""
    run(text, "all", grid=1, block=64)
    with pytest.raises(host.KernelError, match="all blocks resident"):
        run(text, "all", grid=2, block=64)


def test_block_of_too_many_threads(run):
    with pytest.raises(LaunchError, match="2048x1x1"):
        run(SUM, "sum", np.zeros(64, np.float32), np.zeros(64, np.float32), block=2048)


def test_spinning_on_a_thread_of_the_same_block_goes_on(run):
    text = """__global__ void spin(int* flag, int* out) {
        if (threadIdx.x == 0) { while (atomicAdd(flag, 0) != 63) {} out[0] = 1; }
        else { atomicAdd(flag, 1); }
    }"""
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(text, "spin", flag, out, block=64)
    assert out[0] == 1


def test_blocks_that_wait_for_the_block_before_go_on(run):
    text = """__global__ void chain(int* flags, int* out) {
        if (threadIdx.x == 0) {
            if (blockIdx.x > 0) { while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) {} }
            out[blockIdx.x] = blockIdx.x > 0 ? out[blockIdx.x - 1] + 1 : 1;
            __threadfence();
            atomicExch(&flags[blockIdx.x], 1);
        }
    }"""
    flags, out = np.zeros(500, np.int32), np.zeros(500, np.int32)
    run(text, "chain", flags, out, grid=500, block=32)
    np.testing.assert_array_equal(out, np.arange(1, 501))
