"""The runtime's own kernels: conversions to the last bit, softmax and its gradients against float64."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import kernels, ops
from llmc2py.runtime.dtypes import PRECISIONS, bfloat16, float16, float32
from llmc2py.runtime.kernels import buckets
from llmc2py.runtime.poison import poisoned_arrays

NARROW = [float16, bfloat16]
#: From one packet or less to more than a block keeps in registers; whole packets and not.
WIDTHS = [1, 5, 24, 1030, 4104, 33001]
TOLERANCES = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def to_numpy(array):
    return array if isinstance(array, np.ndarray) else array.get()


def random(xp, shape, precision, seed=0, spread=3):
    values = np.random.default_rng(seed).normal(0.5, spread, shape)
    return xp.asarray(values.astype(PRECISIONS[precision]))


def converted(xp, values, dtype):
    out = xp.empty(values.shape, dtype)
    kernels.convert(out, xp.asarray(values), values.size)
    return to_numpy(out)


def check_conversion(found, wanted):
    kind = f"u{wanted.dtype.itemsize}"
    # What a NaN carries besides being one is the hardware's choice.
    is_nan = np.isnan(wanted.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), is_nan)
    assert np.array_equal(found.view(kind)[~is_nan], wanted.view(kind)[~is_nan])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_number_of_16_bits_becomes_its_float(xp, dtype):
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(dtype)
    check_conversion(converted(xp, every, float32), every.astype(np.float32))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_floats_are_rounded_to_the_nearest(xp, dtype):
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 17, dtype=np.uint32)
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(dtype).astype(np.float32).view(np.uint32)
    # Halfway between neighbours, and a step to either side of it.
    half = np.uint32(1 << (12 if dtype == float16 else 15))
    values = np.concatenate([bits, every, every + half, every + half - 1, every + half + 1]).view(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wanted = values.astype(dtype)
    check_conversion(converted(xp, values, dtype), wanted)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_one_format_of_16_bits_becomes_the_other(xp, dtype):
    other = float16 if dtype == bfloat16 else bfloat16
    values = random(np, (1000,), str(dtype))
    check_conversion(converted(xp, values, other), values.astype(np.float32).astype(other))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 2047, 2049])
@pytest.mark.parametrize("offset", [0, 1])
def test_conversions_of_any_length_and_address_write_nothing_else(xp, count, offset):
    inp = random(xp, (count + offset,), "float32")[offset:]
    out = xp.full(count + offset + 3, 7, bfloat16)
    kernels.convert(out[offset : offset + count], inp, count)
    wanted = np.full(count + offset + 3, 7, bfloat16)
    wanted[offset : offset + count] = to_numpy(inp).astype(bfloat16)
    assert np.array_equal(to_numpy(out), wanted)


def test_ops_convert_strided_arrays_and_leave_those_of_other_kinds_to_their_library(xp):
    values = random(xp, (6, 10), "bfloat16")[:, ::2]
    wanted = to_numpy(values).astype(np.float32)
    assert np.array_equal(to_numpy(ops.as_float32(values)), wanted)
    assert np.array_equal(to_numpy(ops.cast(values, xp.empty((5, 6), float32))), wanted.reshape(5, 6))
    assert ops.as_type(values, bfloat16) is values
    integers = ops.as_type(xp.arange(4), float32)
    assert integers.dtype == float32
    assert to_numpy(integers).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("count", [0, 3, 8, 5001])
def test_scaling_by_a_number_on_the_device(xp, precision, count):
    array = random(xp, (count,), precision)
    wanted = (to_numpy(array).astype(np.float32) * np.float32(0.3)).astype(PRECISIONS[precision])
    ops.scale(array, xp.asarray(np.float32(0.3)).reshape(()))
    assert np.array_equal(to_numpy(array), wanted)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_and_its_gradient(xp, precision, width):
    inp, dout = random(xp, (2, width), precision), random(xp, (2, width), precision, 1, 1)
    with poisoned_arrays():
        out = ops.softmax_of(inp)
        dinp = ops.softmax_gradient(out, dout)
    p, wanted = to_numpy(out).astype(np.float64), softmax(inp)
    close = {"rtol": TOLERANCES[precision], "atol": TOLERANCES[precision] * wanted.max() / 16}
    np.testing.assert_allclose(p, wanted, **close)
    slope = to_numpy(dout).astype(np.float64)
    np.testing.assert_allclose(
        to_numpy(dinp).astype(np.float64), p * (slope - (p * slope).sum(axis=-1, keepdims=True)), **close
    )


def softmax(inp):
    values = to_numpy(inp).astype(np.float64)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# A loss that is too large to be exact is not looked at: the row is summed up instead.
@pytest.mark.parametrize("error", [0.0, 1e3, np.inf, np.nan])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("width", "size"), [(1, 1), (24, 17), (1030, 1029), (9000, 8001)])
def test_crossentropy_gradient(xp, precision, width, size, error):
    logits, targets = random(xp, (3, width), precision), np.array([0, size // 2, size - 1], np.int32)
    dlosses = random(np, (3,), "float32", 1)
    probs = softmax(logits[:, :size])
    losses = -np.log(probs[np.arange(3), targets]) + error
    with poisoned_arrays():
        found = ops.crossentropy_gradient(
            logits, xp.asarray(losses.astype(np.float32)), xp.asarray(targets), xp.asarray(dlosses), 0.5, size
        )
    wanted = np.zeros((3, width))
    wanted[:, :size] = probs
    wanted[np.arange(3), targets] -= 1
    wanted *= 0.5 * dlosses[:, None].astype(np.float64)
    np.testing.assert_allclose(to_numpy(found).astype(np.float64), wanted, rtol=TOLERANCES[precision], atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("width", "size"), [(1, 1), (24, 17), (1030, 1029)])
def test_losses_that_are_not_exact_are_computed_anew(xp, precision, width, size):
    count = 67
    logits, targets = random(xp, (count, width), precision), np.arange(count, dtype=np.int32) % size
    values = to_numpy(logits).astype(np.float64)[:, :size]
    top = values.max(axis=-1)
    wanted = np.log(np.exp(values - top[:, None]).sum(axis=-1)) + top - values[np.arange(count), targets]
    losses = np.full(count, 1.5, np.float32)
    mended = np.array([0, 1, 31, 32, 63, 64, 66])
    losses[mended] = [np.inf, 64, 1e3, np.nan, 103.5, np.inf, np.inf]
    found = xp.asarray(losses)
    ops.mend_losses(found, logits, xp.asarray(targets), size)
    losses[mended] = wanted[mended]
    np.testing.assert_allclose(to_numpy(found), losses, rtol=1e-6, atol=1e-6)


def test_losses_of_logits_without_a_finite_one_are_as_infinite_as_they_are(xp):
    logits = np.array([[0, -np.inf], [np.inf, 0], [np.nan, 0], [-np.inf, -np.inf]], np.float32)
    losses = xp.full(4, np.inf, np.float32)
    ops.mend_losses(losses, xp.asarray(logits), xp.asarray(np.array([1, 1, 1, 0], np.int32)), 2)
    assert to_numpy(losses)[0] == np.inf
    assert np.isnan(to_numpy(losses)[1:]).all()


def test_one_incoming_gradient_serves_all_rows(xp):
    logits, targets = random(xp, (3, 8), "float32"), xp.arange(3, dtype=np.int32)
    losses = xp.asarray(-np.log(softmax(logits)[np.arange(3), np.arange(3)]).astype(np.float32))
    one = ops.crossentropy_gradient(logits, losses, targets, xp.full((), 2, np.float32), 0.25, 8)
    each = ops.crossentropy_gradient(logits, losses, targets, xp.full(3, 2, np.float32), 0.25, 8)
    assert np.array_equal(to_numpy(one), to_numpy(each))


def test_sizes_that_do_not_fit_are_refused(xp):
    small, large, rows = (xp.zeros(shape, float32) for shape in ((2, 4), (2, 8), 2))
    with pytest.raises(ValueError, match=r"^convert: `out` has 8 elements, count = 16 are needed$"):
        kernels.convert(small, xp.zeros(16, bfloat16), 16)
    with pytest.raises(ValueError, match=r"^softmax: `inp` has 8 elements, N \* C = 16 are needed$"):
        kernels.softmax(large, small, 2, 8)
    with pytest.raises(ValueError, match=r"^crossentropy_gradient needs 0 < V <= P, but V = 9, P = 8$"):
        kernels.crossentropy_gradient(large, large.copy(), rows, rows.astype(np.int32), rows, 1.0, 2, 9, 8)


def test_no_rows(xp):
    nothing = xp.zeros((0, 8), float16)
    assert ops.softmax_of(nothing).shape == ops.softmax_gradient(nothing, nothing).shape == (0, 8)
    none = xp.zeros(0, float32)
    assert ops.crossentropy_gradient(nothing, none, xp.zeros(0, np.int32), none, 1.0, 8).shape == (0, 8)


def bucket_arrays(xp, tokens, V, groups, guard=0):
    """Return the arrays of `make_buckets`, with elements behind those that are written that nothing may write."""
    room = (min(len(tokens), V) + 1) * groups
    return [
        *(xp.full(size + guard, 7, np.int32) for size in (4 * room, buckets.counts_size(V))),
        xp.asarray(tokens.argsort(kind="stable").astype(np.int32)),
        xp.asarray(tokens.astype(np.int32)),
    ]


@pytest.mark.parametrize("V", [1, 2, 5, 2000, 50257])
@pytest.mark.parametrize("N", [1, 2, 3000])
def test_buckets_write_nothing_behind_their_arrays_and_are_the_same_with_any_grid(xp, V, N):
    tokens = np.minimum(np.random.default_rng(N).zipf(1.3, N) - 1, V - 1)
    made, counts, *given = bucket_arrays(xp, tokens, V, 3, guard=4)
    buckets.make_buckets(made[:-4], counts[:-4], *given, N, V, 3)
    assert all(to_numpy(array[-4:]).tolist() == [7] * 4 for array in (made, counts))
    present, lengths = np.unique(tokens, return_counts=True)
    assert to_numpy(counts[:3]).tolist() == [len(present), np.count_nonzero(lengths > 16), 0]
    assert (to_numpy(made[:-4]).reshape(-1, 4)[3 * len(present) :] == [0, 0, 0, 3]).all()
    for blocks, threads in ((1, 32), (3, 96), (5, 96), (1, 1024), (32, 1024)):
        again, numbers = xp.full_like(made, 7), counts.copy()
        buckets.order_buckets_kernel[blocks, threads](again, numbers, V, 3, min(N, V) + 1)
        assert np.array_equal(to_numpy(again), to_numpy(made))
        assert np.array_equal(to_numpy(numbers), to_numpy(counts))


@pytest.mark.parametrize("wrong", [-1, -(2**31), 6, 2**31 - 1])
def test_tokens_out_of_range_are_noted_and_counted_nowhere(xp, wrong):
    made, counts, *given = bucket_arrays(xp, np.array([3, wrong, 3, 0, wrong]), 6, 1, guard=4)
    buckets.make_buckets(made, counts[:12], *given, 5, 6, 1)
    assert to_numpy(counts).tolist() == [2, 0, 1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 7, 7, 7, 7]
    assert to_numpy(made[24:]).tolist() == [7] * 4


def test_buckets_for_which_there_is_no_room_are_refused(xp):
    arrays = bucket_arrays(xp, np.zeros(5, np.int64), 3, 2)
    buckets.make_buckets(*arrays, 5, 3, 2)
    with pytest.raises(
        ValueError, match=r"^make_buckets: `buckets` has 8 elements, \(min\(N, V\) \+ 1\) \* groups = 12"
    ):
        buckets.make_buckets(*arrays, 5, 3, 3)
    with pytest.raises(ValueError, match=r"^make_buckets: `counts` has 8 elements, counts_size\(V\) = 12 are needed$"):
        buckets.make_buckets(*arrays, 5, 5, 1)


@pytest.mark.parametrize("V", [0, 1, 255, 256, 257, 50257, 70_000, 2**24])
@pytest.mark.parametrize("N", [1, 31, 2047, 2048, 2049, 8193, 20_001])
def test_places_are_sorted_by_token_and_stay_in_order_within_one(xp, V, N):
    random = np.random.default_rng(N)
    tokens = np.where(random.random(N) < 0.5, random.integers(0, V + 1, N), np.minimum(random.zipf(1.2, N), V) - 1)
    tokens[random.random(N) < 0.05] = random.choice([-1, -(2**31), V, 2**31 - 1])
    arrays = [xp.full(size + 4, 7, np.int32) for size in (N, N, buckets.digits_size(N))]
    given = [array[:-4] for array in arrays]
    buckets.sort_places(*given, xp.asarray(tokens.astype(np.int32)), N, V)
    keys = np.where((tokens >= 0) & (tokens < V), tokens, V)
    assert np.array_equal(to_numpy(given[0]), keys.argsort(kind="stable"))
    assert all(to_numpy(array[-4:]).tolist() == [7] * 4 for array in arrays)


def test_places_for_which_there_is_no_room_are_refused(xp):
    tokens, digits = xp.zeros(9, np.int32), xp.zeros(256, np.int32)
    with pytest.raises(ValueError, match=r"^sort_places: `spare` has 8 elements, N = 9 are needed$"):
        buckets.sort_places(xp.zeros(9, np.int32), xp.zeros(8, np.int32), digits, tokens, 9, 4)
    with pytest.raises(
        ValueError, match=r"^sort_places: `digits` has 255 elements, digits_size\(N\) = 256 are needed$"
    ):
        buckets.sort_places(xp.zeros(9, np.int32), xp.zeros(9, np.int32), digits[1:], tokens, 9, 4)
