"""The checking mode sees out of bounds, races and divergent barriers, and stays silent on right kernels."""

from __future__ import annotations

import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from llmc2py.runtime import host

ADD = """#line 1 "llmc/add.cuh"
__global__ void addb(float* o, const float* x, const float* b, int C) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    o[i] = x[i] + b[i % C];
}
"""
ADD_TYPES = ("float*", "const float*", "const float*", "int")

REDUCE = """
__global__ void reduce(float* o, const float* x) {
    __shared__ float s[32];
    int w = threadIdx.x / 32, l = threadIdx.x % 32;
    float v = x[threadIdx.x];
    for (int k = 16; k > 0; k /= 2) { v += __shfl_xor_sync(~0u, v, k); }
    if (w == 0) { s[l] = 0; }
    BARRIER
    if (l == 0) { s[w] = v; }
    __syncthreads();
    if (threadIdx.x == 0) { float t = 0; for (int i = 0; i < 32; ++i) { t += s[i]; } o[0] = t; }
}
"""

CLASSIFIER = """
__global__ void classify(float* loss, float* logits, int y, float m, float s, int V) {
    if (threadIdx.x == 0) { loss[0] = logf(s) + m - logits[y]; }
    BARRIER
    for (int i = threadIdx.x; i < V; i += blockDim.x) {
        logits[i] = expf(logits[i] - m) / s - (i == y);
    }
}
"""
CLASSIFIER_TYPES = ("float*", "float*", "int", "float", "float", "int")


def ones(n: int) -> np.ndarray:
    return np.ones(n, np.float32)


def test_out_of_bounds_names_kernel_parameter_index_and_line(run):
    backing = ones(256)
    findings = run.checked(
        ADD, "addb", ADD_TYPES, ("o", "x", "b"), backing[:150], ones(150), ones(50), 50, grid=1, block=256
    )
    assert len(findings) == 2
    assert findings[0].startswith("llmc/add.cuh:3: out of bounds: kernel addb reads x[150] (elements 0 to 149)")
    assert findings[1].startswith("llmc/add.cuh:3: out of bounds: kernel addb writes o[150]")
    assert "106 times" in findings[0]
    np.testing.assert_array_equal(backing, [2] * 150 + [1] * 106)


def test_out_of_bounds_before_the_start(run):
    text = "__global__ void back(float* o) { o[(int)threadIdx.x - 2] = 1; }"
    findings = run.checked(text, "back", ("float*",), ("o",), ones(4), block=4)
    assert len(findings) == 1
    assert "writes o[-2]" in findings[0]


def test_sizes_that_fit_are_clean(run):
    out = ones(256)
    assert run.checked(ADD, "addb", ADD_TYPES, ("o", "x", "b"), out, ones(256), ones(50), 50, grid=1, block=256) == []
    np.testing.assert_array_equal(out, 2 * ones(256))


def test_write_write_race_on_shared_memory(run):
    out = ones(1)
    findings = run.checked(
        REDUCE.replace("BARRIER", ""), "reduce", ("float*", "const float*"), ("o", "x"), out, ones(64), block=64
    )
    assert len(findings) == 1
    assert findings[0].startswith("k.cu:9: race: kernel reduce: write of byte 4 of the shared variable s")
    assert "meets the write at k.cu:7" in findings[0]
    assert out[0] == 64


def test_barrier_between_clears_the_race(run):
    text = REDUCE.replace("BARRIER", "__syncthreads();")
    assert run.checked(text, "reduce", ("float*", "const float*"), ("o", "x"), ones(1), ones(64), block=64) == []


def test_read_write_race_on_a_parameter(run):
    values = (ones(1), ones(100), 3, 1.0, 100.0, 100)
    text = CLASSIFIER.replace("BARRIER", "")
    findings = run.checked(text, "classify", CLASSIFIER_TYPES, ("loss", "logits"), *values, block=64)
    assert len(findings) == 1
    assert "race: kernel classify: write of logits[3]" in findings[0]
    assert findings[0].startswith("k.cu:6:")
    assert "the read at k.cu:3" in findings[0]
    text = CLASSIFIER.replace("BARRIER", "__syncthreads();")
    assert run.checked(text, "classify", CLASSIFIER_TYPES, ("loss", "logits"), *values, block=64) == []


def test_warp_synchronisation_orders_lanes_of_a_warp_alone(run):
    text = """
    __global__ void exchange(float* o) {
        __shared__ float s[64];
        s[threadIdx.x] = threadIdx.x;
        __syncwarp();
        o[threadIdx.x] = s[threadIdx.x ^ DISTANCE];
    }"""
    near, far = text.replace("DISTANCE", "1"), text.replace("DISTANCE", "32")
    assert run.checked(near, "exchange", ("float*",), ("o",), ones(64), block=64) == []
    findings = run.checked(far, "exchange", ("float*",), ("o",), ones(64), block=64)
    assert findings
    assert all("race" in finding and "shared variable s" in finding for finding in findings)


def test_atomics_do_not_race_but_plain_stores_against_them_do(run):
    text = "__global__ void add(float* o) { ACCESS }"
    atomic = text.replace("ACCESS", "atomicAdd(o, 1.0f);")
    out = np.zeros(1, np.float32)
    assert run.checked(atomic, "add", ("float*",), ("o",), out, grid=3, block=64) == []
    assert out[0] == 192
    (finding,) = run.checked(
        text.replace("ACCESS", "if (threadIdx.x == 0) o[0] = 0;\natomicAdd(o, 1.0f);"),
        "add",
        ("float*",),
        ("o",),
        out,
        block=64,
    )
    assert "race" in finding
    assert "o[0]" in finding


def test_blocks_that_store_to_one_place_race(run):
    text = "__global__ void add(float* o) { if (threadIdx.x == 0) o[0] = o[0] + 1; }"
    findings = run.checked(text, "add", ("float*",), ("o",), ones(1), grid=2, block=32)
    assert findings
    assert all("threads of two blocks" in finding for finding in findings)


def test_dynamic_shared_memory_that_is_too_small(run):
    text = """__global__ void fill(float* o) {
        extern __shared__ __align__(16) float tile[];
        tile[threadIdx.x] = 1;
        o[threadIdx.x] = tile[threadIdx.x];
    }"""
    findings = run.checked(text, "fill", ("float*",), ("o",), ones(64), block=64, shared=63 * 4)
    assert findings
    assert "k.cu:3: out of bounds: kernel fill writes byte 252 of the dynamic shared memory tile" in findings[0]


def test_early_exit_before_a_barrier_is_reported(run):
    text = """__global__ void early(int n) {
        if (threadIdx.x >= n) { return; }
        __syncthreads();
    }"""
    (finding,) = run.checked(text, "early", ("int",), (), 20, block=32)
    assert finding.startswith("k.cu:3: divergent barrier: 12 of 32 threads have left the kernel")


def test_barriers_at_two_places_are_reported(run):
    text = """__global__ void branch() {
        if (threadIdx.x < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }"""
    (finding,) = run.checked(text, "branch", (), (), block=32)
    assert finding.startswith("k.cu:3: divergent barrier: some threads wait at __syncthreads() here, others at k.cu:5")


def test_parameters_that_share_an_array_and_offsets_into_it(run):
    text = "__global__ void inplace(float* o, const float* x) { o[threadIdx.x] = 2 * x[threadIdx.x]; }"
    data = np.arange(8, dtype=np.float32)
    assert run.checked(text, "inplace", ("float*", "const float*"), ("o", "x"), data, data, block=8) == []
    np.testing.assert_array_equal(data, 2 * np.arange(8))
    with host.checking(raise_findings=False) as report:
        host.register_buffers([("o", data.ctypes.data, data.nbytes)])
        run(text, "inplace", data[4:], data[4:], block=8, parameters=("float*", "const float*"))
    assert any("o[8]" in finding for finding in report.findings)


def test_leaving_the_block_raises(run):
    out = ones(8)
    host.register_buffers([("o", out.ctypes.data, out.nbytes)])
    with pytest.raises(host.CheckError, match="out of bounds") as caught, host.checking():
        run("__global__ void f(float* o) { o[threadIdx.x] = 1; }", "f", out, block=9, parameters=("float*",))
    assert len(caught.value.findings) == 1
    assert not host.is_checking()


def test_unchecked_launches_around_a_checked_one(run):
    text = "__global__ void f(float* o) { o[threadIdx.x] = 3; }"
    kernel = host.kernel(run.request(text, "f", ("float*",)), 0)
    out = ones(8)
    pointer = ctypes.c_void_p(out.ctypes.data)
    block = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    for checked in (False, True, False):
        out[:] = 0
        if checked:
            with host.checking():
                kernel.launch((1, 1, 1), (8, 1, 1), 0, 0, ctypes.addressof(block))
        else:
            kernel.launch((1, 1, 1), (8, 1, 1), 0, 0, ctypes.addressof(block))
        np.testing.assert_array_equal(out, 3 * ones(8))


def test_environment_variable_checks_every_launch(tmp_path):
    (tmp_path / "k.cu").write_text("__global__ void f(float* o) { o[threadIdx.x] = 1; }")
    code = """
import ctypes, pathlib, sys
import numpy as np
from llmc2py.runtime import host
from llmc2py.runtime.source import KernelRequest, KernelSource
source = KernelSource(pathlib.Path(sys.argv[1]))
kernel = host.kernel(KernelRequest(source, "f", "SLICE_f", "float32", ("float*",)), 0)
out = np.zeros(8, np.float32)
host.register_buffers([("o", out.ctypes.data, out.nbytes)])
pointer = ctypes.c_void_p(out.ctypes.data)
block = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
kernel.launch((1, 1, 1), (8, 1, 1), 0, 0, ctypes.addressof(block))
try:
    kernel.launch((1, 1, 1), (9, 1, 1), 0, 0, ctypes.addressof(block))
except host.CheckError as error:
    print(error, out.sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "k.cu")],
        cwd=pathlib.Path(__file__).parents[3],
        env={**os.environ, "LLMC2PY_CHECK": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert "k.cu:1: out of bounds: kernel f writes o[8] (elements 0 to 7)" in done.stdout
    assert done.stdout.rstrip().endswith(" 8.0")
