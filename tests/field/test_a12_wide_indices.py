"""CASES A12: an index past 2^31 is refused, or has 64 bits. No such memory is touched."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

SOURCE = """\
__global__ void clear(float* x, int P) { int r = blockIdx.x; x[r * P + threadIdx.x] = 0; }
__global__ void clear_wide(float* x, size_t P) { x[blockIdx.x * P + threadIdx.x] = 0; }
void clear_rows(float* x, int B, int T, int P) { clear<<<B * T, 32>>>(x, P); }
void clear_rows_wide(float* x, int B, int T, size_t P) { clear_wide<<<B * T, 32>>>(x, P); }
"""
T, P = 1024, 50304
LIMIT = 2**31


@pytest.fixture
def module(case):
    return case({"clear.cu": SOURCE})["clear"]


@pytest.fixture
def array():
    """Return a function that gives an array of a size of which no page has memory behind it."""

    def reserved(count: int) -> np.ndarray:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        return np.frombuffer(mmap.mmap(-1, 4 * count, flags=flags), np.float32)

    return reserved


def test_more_elements_than_a_32_bit_index_reaches_are_refused(module, array):
    x = array(42 * T * P)
    with pytest.raises(OverflowError, match=rf"clear: `x` has {x.size} elements, but the kernel indexes with 32 bits"):
        module.clear_rows(x, 42, T, P)
    with pytest.raises(OverflowError, match="split the call"):
        module.clear[42 * T, 32](x, P)


@pytest.mark.parametrize(("count", "fits"), [(LIMIT - 1, True), (LIMIT, False)])
def test_the_limit_is_the_first_index_that_does_not_fit(module, array, count, fits):
    x = array(count)
    if fits:
        assert len(module.clear_rows.plan(x, 1, 1, 32).operations) == 1
    else:
        with pytest.raises(OverflowError, match=f"at most {LIMIT - 1}"):
            module.clear_rows.plan(x, 1, 1, 32)


def test_a_smaller_batch_is_taken(module, array):
    (launch,) = module.clear_rows.plan(array(41 * T * P), 41, T, P).operations
    assert launch.grid == (41 * T, 1, 1)


def test_64_bit_indices_reach_further(module, array):
    x = array(LIMIT + 4096)
    x[-32:] = 1
    module.clear_rows_wide(x, 1, 2, LIMIT + 4064)
    assert not x[-32:].any()


def test_a_size_that_overflows_an_int_is_refused(module, array):
    with pytest.raises(OverflowError, match=r"`P` is 2147483648, out of the range of int"):
        module.clear_rows(array(64), 1, 1, LIMIT)
