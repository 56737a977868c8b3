"""Attention: head sizes, times on and off the softmax's packets of four, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generated.attention import attention
from llmc2py.runtime.dtypes import PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1, 32, 48, 64, 80, 96, 128])
def test_head_sizes(bench, size, precision):
    bench.run_and_check("attention", (2, 7, 3 * 2 * size), precision, seed=size)
    bench.run_and_check("attention", (1, 8, 3 * size), precision, seed=size, NH=1)


@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 31, 33, 67])
def test_times_on_and_off_the_packets(bench, time):
    bench.run_and_check("attention", (2, time, 3 * 3 * 8), "float32", seed=time, NH=3)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lead=st.lists(st.integers(0, 3), max_size=2),
    time=st.integers(0, 20),
    heads=st.integers(1, 5),
    size=st.integers(1, 24),
    precision=st.sampled_from(list(PRECISIONS)),
)
def test_random_sizes(bench, lead, time, heads, size, precision):
    bench.run_and_check("attention", (*lead, time, 3 * heads * size), precision, NH=heads)


def test_no_position_sees_what_comes_after_it(bench):
    inp = bench.array((2, 9, 48), "float32", 0, 0, 1)
    changed = inp.copy()
    changed[:, 6:] = 7
    layer = bench.layers.Attention(2)
    before, after = layer(inp).data, layer(changed).data
    bench.xp.testing.assert_array_equal(after[:, :6], before[:, :6])
    assert not bench.xp.array_equal(after[:, 6:], before[:, 6:])


def test_the_first_position_sees_itself_alone(bench):
    inp = bench.array((2, 3, 5, 48), "float32")
    out = bench.layers.Attention(4)(inp)
    bench.xp.testing.assert_allclose(out.data[..., 0, :], inp[..., 0, 32:], rtol=1e-6)


def test_no_batch_is_one_batch(bench):
    inp = bench.array((6, 48), "float32")
    layer = bench.layers.Attention(2)
    bench.xp.testing.assert_array_equal(layer(inp).data, layer(inp[None]).data[0])


def test_scores_that_no_exponential_holds(bench):
    inp = bench.array((1, 8, 48), "float32", 0, 0, 1)
    inp[..., :32] *= 100
    assert np.isfinite(bench.numpy(bench.layers.Attention(2)(inp).data)).all()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 4, 48), {"NH": 3}, r"Attention needs C % NH == 0, but C = 16, NH = 3$"),
        ((2, 4, 48), {"NH": 0}, r"Attention needs NH > 0, but NH = 0$"),
        ((2, 4, 48), {"NH": -2}, r"Attention needs NH > 0, but NH = -2$"),
        ((2, 4, 47), {"NH": 1}, r"Attention: the last axis of `inp` is 47 long; 3 C is needed$"),
        ((48,), {"NH": 1}, r"Attention: `inp` has shape \(48,\); at least 2 are needed$"),
        (
            (2, 4, 48),
            {"NH": 2, "implementation": "flash"},
            r"Attention needs implementation == 'llmc' or implementation == 'cudnn', but implementation = 'flash'$",
        ),
    ],
    ids=["heads", "no heads", "fewer heads", "thirds", "axes", "implementation"],
)
def test_what_does_not_fit_is_refused(bench, shape, options, message):
    # The layer refuses most of it when it is made.
    with pytest.raises(ValueError, match=message):
        attention(bench.array(shape, "float32"), **options)


def test_cudnn_needs_cuda(bench):
    if bench.xp is not np:
        pytest.skip("the array is on CUDA")
    with pytest.raises(TypeError, match="CUDA"):
        bench.layers.Attention(2, implementation="cudnn")(bench.array((2, 4, 48), "float16"))
