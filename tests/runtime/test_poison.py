"""New arrays start as NaN where that is asked for, and only there."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.ops import empty, zeros
from llmc2py.runtime.poison import poison, poisoned_arrays

LIKE = np.zeros(1, np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_new_arrays_are_nan(dtype):
    with poisoned_arrays():
        array = empty((3, 5), np.dtype(dtype), LIKE)
        assert np.isnan(array.astype(np.float64)).all()
        assert (zeros((3,), np.dtype(dtype), LIKE) == 0).all()
        assert empty((0,), np.dtype(dtype), LIKE).size == 0


def test_nested_contexts_and_the_end_of_them():
    array = np.zeros(4, np.float32)
    with poisoned_arrays():
        with poisoned_arrays():
            pass
        assert np.isnan(poison(array)).all()
    array[:] = 0
    assert (poison(array) == 0).all()
