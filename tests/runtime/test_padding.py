"""Elementwise launchers on sizes that they do not take."""

import pathlib
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import Launcher, launcher
from llmc2py.runtime.padding import elementwise
from llmc2py.runtime.params import Param
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

SOURCE = KernelSource(pathlib.Path("ops.cu"))
QUANTUM = 32
PARAMS = [
    Param("acc", "float*", intent="inout"),
    Param("out", "float*", intent="out"),
    Param("inp", "const float*", intent="in"),
    Param("extra", "const float*", intent="in", nullable=True),
    Param("N", "int"),
]
KERNEL = Kernel(SOURCE, "step", PARAMS)


@pytest.fixture
def step(stepping: Any) -> Launcher:
    """A launcher of the fake backend of this test; it keeps what it has prepared."""

    @launcher([*PARAMS, Param("s", "float")])
    def step(plan: Plan, acc: Pointer, out: Pointer, inp: Pointer, extra: Pointer | None, N: int, s: float) -> None:
        plan.require(N % QUANTUM == 0, "N % 32 == 0", N=N)
        plan.launch(KERNEL, N // QUANTUM, QUANTUM, 0, acc, out, inp, extra, N)

    return step


@pytest.fixture
def stepping(fake: Any, at_address: Any) -> Any:
    def run(grid: Any, block: Any, acc: int, out: int, inp: int, extra: int, n: int) -> None:
        at_address(out, n)[...] = at_address(inp, n) + 1
        at_address(acc, n)[...] += at_address(inp, n)

    fake.functions["step"] = run
    return fake


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 95])
def test_every_size_is_right_and_nothing_beyond_is_touched(stepping: Any, step: Launcher, count: int) -> None:
    acc, out = np.full(100, 10, np.float32), np.full(100, np.nan, np.float32)
    inp = np.arange(100, dtype=np.float32)
    elementwise(step, (acc, out, inp, None), count, QUANTUM, after=(1.0,))
    np.testing.assert_array_equal(out[:count], inp[:count] + 1)
    np.testing.assert_array_equal(acc[:count], inp[:count] + 10)
    assert np.isnan(out[count:]).all()
    assert (acc[count:] == 10).all()
    assert len(stepping.launches) == (count >= QUANTUM) + (count % QUANTUM > 0)


@pytest.mark.parametrize("count", [32, 40])
def test_strided_arrays_are_taken_and_written_back(stepping: Any, step: Launcher, count: int) -> None:
    base = np.zeros((8, count // 4), np.float32)
    out, acc, inp = base[::2], np.full((count // 4, 4), 5, np.float32).T, np.arange(count, dtype=np.float32)
    elementwise(step, (acc, out, inp.reshape(4, -1), None), count, QUANTUM, after=(1.0,))
    np.testing.assert_array_equal(out.reshape(-1), inp + 1)
    np.testing.assert_array_equal(acc.reshape(-1), inp + 5)
    assert (base[1::2] == 0).all()


def test_a_small_array_is_named(stepping: Any, step: Launcher) -> None:
    arrays = (np.zeros(40, np.float32), np.zeros(40, np.float32), np.zeros(39, np.float32), None)
    with pytest.raises(ValueError, match="step: `inp` has 39 elements, 40 are needed"):
        elementwise(step, arrays, 40, QUANTUM, after=(1.0,))
    assert stepping.launches == []
