"""Encoder: columns on and off the packets, tokens that come often or never, positions that are not used."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Parameter
from llmc2py.runtime.dtypes import PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("columns", [1, 3, 4, 8, 17, 24, 40, 264])
def test_columns_on_and_off_the_packets(bench, columns, precision):
    bench.run_and_check("encoder", (2, 5), precision, C=columns)


@pytest.mark.parametrize("shape", [(1, 1), (6,), (2, 3, 4), (3, 67)], ids=str)
@pytest.mark.parametrize("columns", [16, 15])
def test_shapes(bench, shape, columns):
    bench.run_and_check("encoder", shape, "float32", C=columns, V=300)
    bench.run_and_check("encoder", shape, "float32", C=columns, V=1, L=shape[-1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("columns", [24, 23])
def test_rows_that_no_token_names_have_no_gradient(bench, columns, precision):
    arrays, gradients = (make("encoder", (2, 5), precision, C=columns) for make in (bench.inputs, bench.gradients))
    arrays["inp"] = bench.xp.asarray([[1, 3, 1, 1, 3]] * 2)
    results = bench.run("encoder", arrays, gradients)
    assert results["dwte"][[1, 3]].any()
    assert not results["dwte"][[0, 2, 4, 5, 6]].any()
    assert results["dwpe"].shape == (7, columns)
    assert not results["dwpe"][5:].any()


@pytest.mark.parametrize("columns", [24, 23])
def test_frozen_tables(bench, columns):
    arrays, gradients = (make("encoder", (2, 5), "float32", C=columns) for make in (bench.inputs, bench.gradients))
    wanted = bench.run("encoder", arrays, gradients)
    layer = bench.make("encoder", arrays)
    layer.wpe.requires_grad = False
    layer(arrays["inp"]).backward(gradients["out"])
    assert layer.wpe.grad is None
    bench.xp.testing.assert_allclose(layer.wte.grad, wanted["dwte"], rtol=1e-6)


def test_more_positions_than_there_are(bench):
    with pytest.raises(ValueError, match=r"^Encoder needs T <= L, but T = 6, L = 5$"):
        bench.layers.Encoder(7, 8, 5)(bench.xp.zeros((2, 6), np.int32))


def test_a_table_of_other_columns(bench):
    layer = bench.layers.Encoder(7, 8, 5, like=bench.xp.zeros(1, np.float32))
    layer.wpe = Parameter(bench.xp.zeros((5, 9), np.float32))
    with pytest.raises(
        ValueError, match=r"^Encoder: `wpe` has shape \(5, 9\); beside `wte` of \(7, 8\) it needs \(5, 8"
    ):
        layer(bench.xp.zeros((2, 4), np.int32))
    layer.wpe = Parameter(bench.xp.zeros(5, np.float32))
    with pytest.raises(ValueError, match=r"^Encoder: `wpe` has shape \(5,\); 2 axes are needed$"):
        layer(bench.xp.zeros((2, 4), np.int32))


def test_tokens_of_no_axes(bench):
    with pytest.raises(ValueError, match=r"^Encoder: `inp` has no axes; at least one is needed$"):
        bench.layers.Encoder(7, 8, 5)(bench.xp.zeros((), np.int32))
