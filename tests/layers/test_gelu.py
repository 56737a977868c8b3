"""GeLU: any number of elements, on and off the launchers' blocks, and the ends of the number line."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime.dtypes import PRECISIONS

QUANTUM = {"float32": 2048, "float16": 4096, "bfloat16": 4096}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1, 2, 7, 127, 1021, 1024, 2047, 2048, 2049, 4096, 12289])
def test_sizes_on_and_off_the_block(bench, size, precision):
    bench.run_and_check("gelu", (size,), precision, seed=size)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_whole_blocks_run_in_one_launch(bench, package, precision):
    gelu, count = package["gelu"], QUANTUM[precision]
    out, inp = bench.array((2, count), precision), bench.array((2, count), precision)
    (launch,) = gelu.gelu_forward.plan(out, inp, inp.size).operations
    assert (launch.kernel, launch.grid, launch.block) == ("gelu_forward_kernel2", (2, 1, 1), (512, 1, 1))
    bench.run_and_check("gelu", (2, count), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_known_values(bench, precision):
    dtype = PRECISIONS[precision]
    x = bench.xp.asarray(np.array([0, 1, -1, 3, -3], dtype))
    results = bench.run("gelu", {"inp": x}, {"out": bench.xp.ones_like(x)})
    wanted = np.array([0, 0.8411919906, -0.1588080094, 2.9963626079, -0.0036373921])
    slopes = np.array([0.5, 1.0829641, -0.0829641, 1.0115842, -0.0115842])
    eps = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[precision]
    np.testing.assert_allclose(bench.numpy(results["out"]).astype(float), wanted, rtol=eps, atol=eps / 100)
    np.testing.assert_allclose(bench.numpy(results["dinp"]).astype(float), slopes, rtol=eps, atol=eps)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_far_from_zero_it_is_the_identity_or_zero(bench, precision):
    dtype = PRECISIONS[precision]
    x = bench.xp.asarray(np.array([40, 1e3, 3e4, -40, -1e3, -3e4], dtype))
    results = bench.run("gelu", {"inp": x}, {"out": bench.xp.ones_like(x)})
    positive = bench.numpy(x) > 0
    np.testing.assert_array_equal(bench.numpy(results["out"]), np.where(positive, bench.numpy(x), 0).astype(dtype))
    np.testing.assert_array_equal(bench.numpy(results["dinp"]), positive.astype(dtype))


def test_nan_stays_nan_and_its_neighbours_do_not(bench):
    x = bench.array((5,), "float32")
    x[2] = np.nan
    results = bench.run("gelu", {"inp": x}, {"out": bench.xp.ones_like(x)})
    for result in results.values():
        assert np.isnan(bench.numpy(result)).tolist() == [False, False, True, False, False]
