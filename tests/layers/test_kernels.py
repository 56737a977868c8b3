"""Kernels with a grid and block of the caller's choice."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import LaunchError
from llmc2py.runtime.dtypes import PRECISIONS


def gelu_of(x):
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def assert_near(bench, got, wanted, precision):
    eps = {"float32": 1e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}[precision]
    np.testing.assert_allclose(bench.numpy(got).astype(np.float64), wanted, rtol=eps, atol=eps)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("grid", "block"), [(1, 32), (3, 32), (2, 64), ((2, 1), (32, 1, 1)), ([1], [96])])
def test_each_thread_of_the_production_kernel_has_one_packet(bench, package, precision, grid, block):
    blocks, threads = np.prod(grid), np.prod(block)
    packet = 16 // PRECISIONS[precision].itemsize
    done = int(blocks * threads) * packet
    inp, out = bench.array((done + 8,), precision), bench.nan(done + 8, precision)
    package["gelu"].gelu_forward_kernel2[grid, block](out, inp)
    assert_near(bench, out[:done], gelu_of(bench.numpy(inp[:done])), precision)
    assert np.isnan(bench.numpy(out[done:]).astype(np.float32)).all()


@pytest.mark.parametrize("grid", [(40,), (64, 1, 1)])
def test_a_grid_larger_than_needed(bench, package, grid):
    inp, out = bench.array((1021,), "float32"), bench.nan(1021)
    package["dev.cuda.gelu_forward"].gelu_forward_kernel1[grid, 32](out, inp, 1021)
    assert_near(bench, out, gelu_of(bench.numpy(inp)), "float32")


def test_a_grid_that_is_too_small_leaves_the_rest(bench, package):
    inp, out = bench.array((100,), "float32"), bench.nan(100)
    package["dev.cuda.gelu_forward"].gelu_forward_kernel1[2, 32](out, inp, 100)
    assert_near(bench, out[:64], gelu_of(bench.numpy(inp[:64])), "float32")
    assert np.isnan(bench.numpy(out[64:])).all()


def test_a_grid_of_no_blocks_does_nothing(bench, package):
    inp, out = bench.array((32,), "float32"), bench.nan(32)
    package["dev.cuda.gelu_forward"].gelu_forward_kernel1[0, 32](out, inp, 32)
    assert np.isnan(bench.numpy(out)).all()


def test_two_dimensional_blocks_and_dynamic_shared_memory(bench, package):
    rows, width = 6, 40
    inp, weight, bias = bench.array((rows, width), "float32"), bench.array((width,), "float32"), bench.nan(width)
    bias[...] = 0.25
    out, mean, rstd = bench.nan(rows * width), bench.nan(rows), bench.nan(rows)
    kernel = package["dev.cuda.layernorm_forward"].layernorm_forward_kernel6
    kernel[3, (32, 2), (2 + 2) * width * 4](out, mean, rstd, inp, weight, bias, rows, width)
    x = bench.numpy(inp).astype(np.float64)
    scale = 1 / np.sqrt(x.var(axis=1) + 1e-5)
    wanted = (x - x.mean(axis=1)[:, None]) * scale[:, None] * bench.numpy(weight) + 0.25
    assert_near(bench, out.reshape(rows, width), wanted, "float32")
    assert_near(bench, mean, x.mean(axis=1), "float32")
    assert_near(bench, rstd, scale, "float32")


@pytest.mark.parametrize(
    ("target", "source"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")]
)
def test_a_template_follows_the_dtypes_and_strides_are_elements(bench, package, target, source):
    rows, stride_out, stride_in = 3, 70, 60
    src, dst = bench.array((rows * stride_in,), source), bench.nan(rows * stride_out, target)
    kernel = package["llmc.cuda_utils"].copy_and_cast_kernel
    kernel[(1, rows), 64](dst, src, 50, stride_out, stride_in)
    got = bench.numpy(dst).reshape(rows, stride_out)
    wanted = bench.numpy(src).reshape(rows, stride_in)[:, :50].astype(np.float64).astype(PRECISIONS[target])
    np.testing.assert_array_equal(got[:, :50], wanted)
    assert np.isnan(got[:, 50:].astype(np.float32)).all()


@pytest.mark.parametrize("count", [1, 31, 1000, 5000])
def test_the_deterministic_sum(bench, package, count):
    values, result = bench.array((count,), "float32"), bench.nan(1)
    package["llmc.cuda_utils"].global_sum_deterministic(result, values, count)
    np.testing.assert_allclose(bench.numpy(result)[0], bench.numpy(values).astype(np.float64).sum(), rtol=1e-5)
    again = bench.nan(1)
    package["llmc.cuda_utils"].global_sum_deterministic(again, values, count)
    bench.xp.testing.assert_array_equal(result, again)


def test_kernels_by_their_upstream_name_beside_a_launcher_of_that_name(bench, package):
    """dev/cuda calls a kernel and its launcher by one name; the kernel is found with a suffix."""
    module = package["dev.cuda.gelu_backward"]
    assert module.gelu_backward1_kernel.name == "gelu_backward1"
    inp, dout, by_kernel, by_launcher = (bench.array((50,), "float32", seed) for seed in range(4))
    module.gelu_backward1_kernel[2, 32](by_kernel, inp, dout, 50)
    module.gelu_backward1(by_launcher, inp, dout, 50, 32)
    bench.xp.testing.assert_array_equal(by_kernel, by_launcher)


@pytest.mark.parametrize(
    ("configuration", "error", "message"),
    [
        ((1, 2048), LaunchError, r"gelu_forward_kernel1: block \(2048, 1, 1\) is outside"),
        ((1, (32, 64)), LaunchError, r"block \(32, 64, 1\) has 2048 threads, .* at most 1024"),
        ((1, 0), LaunchError, r"block \(0, 1, 1\) is outside"),
        ((-1, 32), LaunchError, r"grid \(-1, 1, 1\) is outside 0 to"),
        ((1, 32, -4), LaunchError, "-4 bytes of shared memory"),
        ((1, 32, 1 << 20), LaunchError, "1048576 bytes of dynamic shared memory are asked for"),
        ((1.5, 32), TypeError, r"grid is 1.5; it is an integer or a tuple"),
        ((1,), TypeError, r"\[grid, block\] or \[grid, block, shared_bytes\] is taken"),
    ],
)
def test_launch_configurations_that_no_device_has(bench, package, configuration, error, message):
    kernel = package["dev.cuda.gelu_forward"].gelu_forward_kernel1
    inp, out = bench.array((32,), "float32"), bench.nan(32)
    with pytest.raises(error, match=message):
        kernel[configuration](out, inp, 32)
    kernel[1, 32](out, inp, 32)
    assert_near(bench, out, gelu_of(bench.numpy(inp)), "float32")
