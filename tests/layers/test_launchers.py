"""Every launcher, of production and of dev/cuda, against the float64 formulas: block sizes, odd sizes, precisions.

Outputs start as NaN and are longer than needed, so that what is not written, or is written behind the end, shows.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.runtime.ops import device_of
from llmc2py.verify.tolerance import half_spacing

BEHIND = 16
ROWS = [(1, 1, 1), (2, 3, 5), (1, 9, 64), (3, 2, 97), (1, 2, 1600)]


def gelu(given):
    u = np.sqrt(2 / np.pi) * (given["inp"] + 0.044715 * given["inp"] ** 3)
    return {"out": 0.5 * given["inp"] * (1 + np.tanh(u))}


def gelu_slope(given):
    x, scale = given["inp"], np.sqrt(2 / np.pi)
    t = np.tanh(scale * (x + 0.044715 * x**3))
    return {"dinp": given["dout"] * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * scale * (1 + 3 * 0.044715 * x**2))}


def total(given):
    return {"out": given["inp1"] + given["inp2"]}


def layernorm(given):
    x = given["inp"]
    mean = x.mean(axis=-1)
    rstd = 1 / np.sqrt(x.var(axis=-1) + 1e-5)
    out = (x - mean[:, None]) * rstd[:, None] * given["weight"] + given["bias"]
    return {"out": out, "mean": mean, "rstd": rstd}


def layernorm_gradients(given):
    """With the statistics as they are given to the kernel, and what was in the outputs before."""
    rstd = given["rstd"][:, None]
    norm = (given["inp"] - given["mean"][:, None]) * rstd
    dnorm = given["dout"] * given["weight"]
    slope = dnorm - dnorm.mean(axis=-1, keepdims=True) - norm * (dnorm * norm).mean(axis=-1, keepdims=True)
    return {
        "dinp": given["dinp"] + rstd * slope,
        "dweight": given["dweight"] + (given["dout"] * norm).sum(axis=0),
        "dbias": given["dbias"] + given["dout"].sum(axis=0),
    }


ELEMENTWISE_BLOCKS = [32, 96, 512, 1024]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 1021, 4099])
def test_gelu_forward(bench, package, number, size, precision):
    module, inp = package["dev.cuda.gelu_forward"], bench.array((size,), precision)
    for block_size in ELEMENTWISE_BLOCKS:
        for dispatched in (False, True):
            out = bench.nan(size + BEHIND, precision)
            if dispatched:
                module.gelu_forward(number, out, inp, 1, 1, size, block_size)
            else:
                getattr(module, f"gelu_forward{number}")(out, inp, size, block_size)
            bench.check_arrays(gelu, {"inp": inp}, {"out": out})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 1021, 4099])
def test_gelu_backward(bench, package, number, size, precision):
    module = package["dev.cuda.gelu_backward"]
    inp, dout = bench.array((size,), precision), bench.array((size,), precision, 1)
    for block_size in ELEMENTWISE_BLOCKS:
        for dispatched in (False, True):
            dinp = bench.nan(size + BEHIND, precision)
            if dispatched:
                module.gelu_backward(number, dinp, inp, dout, 1, 1, size, block_size)
            else:
                getattr(module, f"gelu_backward{number}")(dinp, inp, dout, size, block_size)
            bench.check_arrays(gelu_slope, {"inp": inp, "dout": dout}, {"dinp": dinp})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 1021, 4099])
def test_residual_forward(bench, package, number, size, precision):
    module = package["dev.cuda.residual_forward"]
    inp1, inp2 = bench.array((size,), precision), bench.array((size,), precision, 1)
    for block_size in ELEMENTWISE_BLOCKS:
        for dispatched in (False, True):
            out = bench.nan(size + BEHIND, precision)
            if dispatched:
                module.residual_forward(number, out, inp1, inp2, size, block_size)
            else:
                getattr(module, f"residual_forward{number}")(out, inp1, inp2, size, block_size)
            bench.check_arrays(total, {"inp1": inp1, "inp2": inp2}, {"out": out})


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("shape", ROWS)
def test_layernorm_forward(bench, package, number, shape):
    module, (b, t, c) = package["dev.cuda.layernorm_forward"], shape
    inputs = {
        "inp": bench.array((b * t, c), "float32"),
        "weight": bench.array((c,), "float32", 1, 1, 0.5),
        "bias": bench.array((c,), "float32", 2),
    }
    for block_size, dispatched in ((32, False), (256, False), (1024, False), (128, True)):
        results = {"out": bench.nan(b * t * c + BEHIND), "mean": bench.nan(b * t + 1), "rstd": bench.nan(b * t + 1)}
        arrays = (*results.values(), *inputs.values())
        if dispatched:
            module.layernorm_forward(number, *arrays, b, t, c, block_size)
        else:
            getattr(module, f"layernorm_forward{number}")(*arrays, b, t, c, block_size)
        bench.check_arrays(layernorm, inputs, results, c)


def backward_inputs(bench, shape, precision, statistics="float32"):
    b, t, c = shape
    inputs = {
        "dinp": bench.array((b * t, c), precision, 1),
        "dweight": bench.array((c,), precision, 2),
        "dbias": bench.array((c,), precision, 3),
        "dout": bench.array((b * t, c), precision, 4, 0.25, 1),
        "inp": bench.array((b * t, c), precision, 5),
        "weight": bench.array((c,), precision, 6, 1, 0.5),
    }
    found = layernorm({"inp": bench.numpy(inputs["inp"]).astype(np.float64), "weight": 1, "bias": 0})
    for name in ("mean", "rstd"):
        inputs[name] = bench.xp.asarray(found[name].astype(PRECISIONS[statistics]))
    return inputs


def multiprocessors(bench):
    return device_of(bench.xp.zeros(1, np.float32)).multiProcessorCount


def rounding_of_each_addition(bench, inputs):
    """Kernels 3 and 4 round the sum of parameter gradients after each block's addition."""
    doubles = {name: bench.numpy(array).astype(np.float64) for name, array in inputs.items()}
    norm = (doubles["inp"] - doubles["mean"][:, None]) * doubles["rstd"][:, None]
    slack = {}
    for name, terms in (("dweight", doubles["dout"] * norm), ("dbias", doubles["dout"])):
        largest = np.abs(doubles[name]) + np.abs(terms).sum(axis=0)
        slack[name] = (2 * len(terms) + 1) * half_spacing(largest, inputs[name].dtype)
    return slack


# Kernel 1 takes float alone.
BACKWARD = [(1, "float32"), *((number, precision) for number in range(2, 11) for precision in PRECISIONS)]


@pytest.mark.parametrize(("number", "precision"), BACKWARD)
@pytest.mark.parametrize("shape", [*ROWS, (1, 37, 67)])
def test_layernorm_backward(bench, package, number, shape, precision):
    module, (b, t, c) = package["dev.cuda.layernorm_backward"], shape
    inputs = backward_inputs(bench, shape, precision, precision)
    rounds_often = number in (3, 4) and precision != "float32"
    slack = rounding_of_each_addition(bench, inputs) if rounds_often else None
    for block_size, dispatched in ((32, False), (256, False), (1024, False), (128, True)):
        results = {name: inputs[name].copy() for name in ("dinp", "dweight", "dbias")}
        scratch = [bench.nan(32 + 4 * c * multiprocessors(bench))] if number >= 5 or dispatched else []
        others = [inputs[name] for name in ("dout", "inp", "weight", "mean", "rstd")]
        if dispatched:
            module.layernorm_backward(number, *results.values(), *scratch, *others, b, t, c, block_size)
        else:
            launcher = getattr(module, f"layernorm_backward{number}")
            launcher(*results.values(), *scratch, *others, b, t, c, block_size)
        bench.check_arrays(layernorm_gradients, inputs, results, max(b * t, c), slack)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("shape", [(1, 1), (6, 5), (9, 64), (7, 97), (2, 1600)])
def test_fused_residual_forward(bench, package, number, shape, precision):
    module, (n, c) = package["dev.cuda.fused_residual_forward"], shape
    inputs = {"inp1": bench.array(shape, precision), "inp2": bench.array(shape, precision, 1)}
    parameters = {"weight": bench.array((c,), precision, 2, 1, 0.5), "bias": bench.array((c,), precision, 3)}
    for block_size, dispatched in ((32, False), (256, False), (1024, False), (128, True)):
        residual = bench.nan(n * c + BEHIND, precision)
        results = {"out": bench.nan(n * c + BEHIND, precision)}
        results |= {name: bench.nan(n + 1, precision) for name in ("mean", "rstd")}
        arrays = (residual, *results.values(), *inputs.values(), *parameters.values())
        if dispatched:
            module.fused_residual_forward(number, *arrays, n, c, block_size)
        else:
            getattr(module, f"fused_residual_forward{number}")(*arrays, n, c, block_size)
        bench.check_arrays(total, inputs, {"out": residual})
        stored = {"inp": residual[: n * c].reshape(shape)} | parameters
        bench.check_arrays(layernorm, stored, results, c)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_production_elementwise_launchers(bench, package, precision):
    size = 4096
    inp, other = bench.array((size,), precision), bench.array((size,), precision, 1)
    out = bench.nan(size + BEHIND, precision)
    package["gelu"].gelu_forward(out, inp, size)
    bench.check_arrays(gelu, {"inp": inp}, {"out": out})
    gradient = bench.nan(size + BEHIND, precision)
    gradient[:size] = other
    package["gelu"].gelu_backward_inplace(gradient, inp, size)
    bench.check_arrays(gelu_slope, {"inp": inp, "dout": other}, {"dinp": gradient})
    out = bench.nan(size + BEHIND, precision)
    package["residual"].residual_forward(out, inp, other, size)
    bench.check_arrays(total, {"inp1": inp, "inp2": other}, {"out": out})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 3, 64), (5, 5, 1600), (1, 2, 12304)])
def test_production_layernorm_launchers(bench, package, shape, precision):
    module, (b, t, c) = package["layernorm"], shape
    inputs = backward_inputs(bench, shape, precision)
    given = {"inp": inputs["inp"], "weight": inputs["weight"], "bias": inputs["dbias"]}
    results = {"out": bench.nan(b * t * c + BEHIND, precision)}
    results |= {name: bench.nan(b * t + 1) for name in ("mean", "rstd")}
    module.layernorm_forward(*results.values(), *given.values(), b, t, c)
    bench.check_arrays(layernorm, given, results, c)
    results = {name: inputs[name].copy() for name in ("dinp", "dweight", "dbias")}
    others = [inputs[name] for name in ("dout", "inp", "weight", "mean", "rstd")]
    module.layernorm_backward(*results.values(), bench.nan(32 + 4 * c * multiprocessors(bench)), *others, b, t, c)
    bench.check_arrays(layernorm_gradients, inputs, results, max(b * t, c))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(1, 8), (6, 64), (17, 1600), (2, 12304)])
def test_production_fused_residual_launcher(bench, package, shape, precision):
    n, c = shape
    inputs = {"inp1": bench.array(shape, precision), "inp2": bench.array(shape, precision, 1)}
    parameters = {"weight": bench.array((c,), precision, 2, 1, 0.5), "bias": bench.array((c,), precision, 3)}
    residual = bench.nan(n * c + BEHIND, precision)
    results = {"out": bench.nan(n * c + BEHIND, precision)} | {name: bench.nan(n + 1) for name in ("mean", "rstd")}
    launcher = package["fused_residual"].fused_residual_forward5
    launcher(residual, *results.values(), *inputs.values(), *parameters.values(), n, c)
    bench.check_arrays(total, inputs, {"out": residual})
    bench.check_arrays(layernorm, {"inp": residual[: n * c].reshape(shape)} | parameters, results, c)


def test_statistics_that_nobody_wants_may_be_none(bench, package):
    inputs = [bench.array(shape, "float32", i) for i, shape in enumerate([(6, 64), (64,), (64,)])]
    with_them, without = bench.nan(6 * 64), bench.nan(6 * 64)
    package["layernorm"].layernorm_forward(with_them, bench.nan(6), bench.nan(6), *inputs, 2, 3, 64)
    package["layernorm"].layernorm_forward(without, None, None, *inputs, 2, 3, 64)
    bench.xp.testing.assert_array_equal(with_them, without)


def test_arrays_without_elements_launch_nothing(bench, package):
    none, row = bench.xp.zeros((0, 56), np.float32), bench.xp.zeros(0, np.float32)
    sums = [bench.array((56,), "float32", i) for i in range(3)]
    before = [array.copy() for array in sums]
    plan = package["layernorm"].layernorm_backward.plan
    scratch = bench.nan(32 + 4 * 56 * multiprocessors(bench))
    arrays = (none, sums[0], sums[1], scratch, none, none, sums[2], row, row)
    assert not any(hasattr(operation, "grid") for operation in plan(*arrays, 0, 1, 56).operations)
    package["layernorm"].layernorm_backward(*arrays, 0, 1, 56)
    for array, copy in zip(sums, before, strict=True):
        bench.xp.testing.assert_array_equal(array, copy)
