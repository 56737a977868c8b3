"""Arrays with memory around them that cannot be touched."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import guarded, host
from llmc2py.runtime.guarded import guarded_arrays
from llmc2py.runtime.ownership import is_exclusive


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1024,), (70_001,)])
def test_an_array_is_a_usual_one_that_ends_near_the_end_of_its_memory(shape):
    with guarded_arrays() as guard:
        array = host.empty(shape, np.float32)
        array[...] = 7
        assert array.shape == shape
        assert array.flags.c_contiguous
        assert array.ctypes.data % 256 == 0
        behind = array.base.ctypes.data + array.base.nbytes - (array.ctypes.data + array.nbytes)
        assert 0 <= behind <= 256
        assert not guard.is_damaged()


@pytest.mark.parametrize("place", [-1, 3])
def test_what_is_written_beside_is_seen_once(place):
    with guarded_arrays() as guard:
        array = host.empty((3,), np.float32)
        start = array.ctypes.data - array.base.ctypes.data
        array.base.view(np.float32)[start // 4 + place] = 1
        del array
        assert guard.is_damaged()
        assert not guard.is_damaged()


def test_only_arrays_made_within_are_guarded():
    with guarded_arrays():
        pass
    assert host.empty((3,), np.float32).base.base is None


def test_nobody_else_has_a_guarded_array():
    with guarded_arrays():
        arrays = [host.empty((3,), np.float32)]
        assert is_exclusive(arrays, 0)
        view = arrays[0][1:]
        assert not is_exclusive(arrays, 0)
        del view
        assert is_exclusive(arrays, 0)


def test_less_is_guarded_where_there_is_less_address_space(monkeypatch):
    monkeypatch.setattr(guarded, "_FARTHEST", 1 << 60)
    with guarded_arrays() as guard:
        array = host.empty((3,), np.float32)
        array[...] = 1
        assert not guard.is_damaged()


def test_no_address_space_at_all_is_said(monkeypatch):
    monkeypatch.setattr(guarded, "_FARTHEST", 1 << 60)
    monkeypatch.setattr(guarded, "_NEAREST", 1 << 60)
    with guarded_arrays(), pytest.raises(MemoryError, match="no address space for an array of"):
        host.empty((3,), np.float32)
