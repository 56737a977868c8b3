"""Kernels called with scalars, sizes and grids that are new in each call: launched as ever, without a plan for each."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmc2py.runtime import kernel as kernel_module
from llmc2py.runtime import plan as plan_module
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Plan
from llmc2py.runtime.source import KernelSource

SOURCE = KernelSource(pathlib.Path("ops.cu"))
PARAMS = [
    Param("out", "floatX*", intent="inout", align=16),
    Param("inp", "const float*", intent="in", nullable=True),
    Param("n", "int"),
    Param("rate", "float"),
    Param("seed", "unsigned int"),
]


def new_kernel(**changes: Any) -> Kernel:
    return Kernel(SOURCE, "axpy", PARAMS, **changes)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are recorded from now on."""
    found: list[Plan] = []
    start = Plan.__init__

    def noted(self: Plan, *args: Any) -> None:
        start(self, *args)
        found.append(self)

    monkeypatch.setattr(Plan, "__init__", noted)
    return found


def aligned(size: int, dtype: Any = np.float32, offset: int = 0) -> np.ndarray[Any, Any]:
    raw = np.zeros(size * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 32 + offset
    return raw[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def test_new_scalars_sizes_and_grids_record_no_plans(fake: Any, plans: list[Plan]) -> None:
    kernel = new_kernel()
    for step in range(1, 30):
        out, inp = aligned(4 * step), aligned(step)
        kernel[step, 64](out, inp, -step, 1 / step, 2**32 - step)
        name, grid, block, shared, cells = fake.launches[-1]
        assert (name, grid, block, shared) == ("axpy", (step, 1, 1), (64, 1, 1), 0)
        rate = int(np.float32(1 / step).view(np.uint32))
        # What is behind the four bytes of a cell is not looked at.
        assert [cells[0], cells[1], *(cell % 2**32 for cell in cells[2:])] == [
            out.ctypes.data, inp.ctypes.data, 2**32 - step, rate, 2**32 - step,
        ]  # fmt: skip
    assert len(plans) == 2


def test_a_call_that_comes_again_is_prepared(fake: Any, plans: list[Plan]) -> None:
    kernel, out = new_kernel(), aligned(8)
    for seed in (1, 2, 2, 2, 2):
        kernel[1, 64](out, None, 8, 0.5, seed)
    assert len(plans) == 3
    assert [cells[4] for *_, cells in fake.launches] == [1, 2, 2, 2, 2]


def test_no_more_kinds_of_calls_are_kept_than_configurations(fake: Any) -> None:
    kernel = new_kernel()
    for shared in range(2 * kernel_module._MAX_CONFIGURATIONS):
        for seed in range(2):
            kernel[1, 64, shared](aligned(8), None, 8, 0.5, seed)
    assert len(kernel._plain.free) <= kernel_module._MAX_CONFIGURATIONS


calls = st.fixed_dictionaries(
    {
        "grid": st.sampled_from([0, 1, 3, (2, 2), (1, 65536)]),
        "block": st.sampled_from([32, (8, 4)]),
        "size": st.sampled_from([0, 1, 8, 1 << 10]),
        "dtype": st.sampled_from([np.float32, np.float16, np.int32]),
        "form": st.sampled_from(["whole", "whole", "moved", "strided", "read only"]),
        "inp": st.sampled_from([None, 4]),
        "n": st.sampled_from([0, -3, 2**31, 7]),
        "rate": st.sampled_from([0.0, -0.0, 1.5, 1e300, float("nan")]),
        "seed": st.sampled_from([0, 2**32 - 1, -1]),
    }
)


CALL = {
    "grid": 1, "block": 32, "size": 8, "dtype": np.float32, "form": "whole", "inp": 4, "n": 7, "rate": 1.5, "seed": 0,
}  # fmt: skip


def outcome(kernel: Kernel, fake: Any, call: dict[str, Any]) -> Any:
    """Return what a call launches, addresses of copies left out, or what it raises."""
    out = aligned(call["size"], call["dtype"], 4 if call["form"] == "moved" else 0)
    if call["form"] == "strided":
        out = aligned(2 * call["size"], call["dtype"])[::2]
    out.flags.writeable = call["form"] != "read only"
    before = len(fake.launches)
    try:
        kernel[call["grid"], call["block"]](out, call["inp"] and aligned(4), call["n"], call["rate"], call["seed"])
    except (TypeError, ValueError, OverflowError, LaunchError) as error:
        return type(error), str(error)
    launches = fake.launches[before:]
    return [(*launch[:4], [cell % 2**32 for cell in launch[4][2:]]) for launch in launches]


@given(st.lists(calls, min_size=1, max_size=12))
@example([CALL, CALL, CALL | {"grid": 0, "seed": -1}])
@example([CALL, CALL, CALL | {"grid": (1, 65536), "n": 2**31}])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_call_does_what_a_first_one_does(fake: Any, drawn: list[dict[str, Any]]) -> None:
    kernel = new_kernel()
    for call in drawn:
        assert outcome(kernel, fake, call) == outcome(new_kernel(), fake, call)


def test_limits_are_those_of_each_call(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = new_kernel(wide_indices=False)
    for module in (kernel_module, plan_module):
        monkeypatch.setattr(module, "INDEX_LIMIT", 100)
    for seed in range(3):
        kernel[1, 32](aligned(8), None, 8, 0.5, seed)
    with pytest.raises(OverflowError, match="indexes with 32 bits"):
        kernel[1, 32](aligned(100), None, 8, 0.5, 3)
    untyped = Kernel(SOURCE, "bytes", [Param("out", "void*", intent="out"), Param("n", "int")])
    for size in (8, 9, 10):
        untyped[1, 32](aligned(size), size)
    with pytest.raises(OverflowError, match="has 100 elements, but the kernel indexes with 32 bits"):
        untyped[1, 32](aligned(25), 25)
    with pytest.raises(LaunchError, match=r"grid \(1, 65536, 1\) is outside"):
        kernel[(1, 65536), 32](aligned(8), None, 8, 0.5, 4)
    fake.max_threads["other"] = 256
    other = Kernel(SOURCE, "other", PARAMS)
    for seed in range(3):
        with pytest.raises(LaunchError, match="runs with at most 256 threads"):
            other[1, 512](aligned(8), None, 8, 0.5, seed)


def test_kernels_whose_plans_depend_on_more_record_each(fake: Any, plans: list[Plan]) -> None:
    typed = Kernel(
        SOURCE,
        "fill",
        [Param("out", "float*", intent="out"), Param("value", "T")],
        template=[TemplateParam("T", "type")],
    )
    for value in range(4):
        typed[np.float32][1, 32](aligned(8), value)
    assert len(plans) == 4
    waiting = new_kernel(cooperative=True)
    for seed in range(4):
        waiting[1, 32](aligned(8), None, 8, 0.5, seed)
    assert len(plans) == 8


def test_threads_do_not_share_arguments(fake: Any) -> None:
    kernel, seen = new_kernel(), []
    fake.functions["axpy"] = lambda grid, block, out, inp, n, rate, seed: seen.append((out, n, seed))
    fake.launch_seconds = 0.001
    outs = [aligned(8) for _ in range(4)]
    for seed in range(2):
        kernel[1, 32](outs[0], None, 8, 0.5, seed)
    seen.clear()

    def run(number: int) -> None:
        for step in range(20):
            kernel[1, 32](outs[number], None, number, 0.5, 100 * number + step)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {(outs[i].ctypes.data, i, 100 * i + step) for i in range(4) for step in range(20)}
    assert set(seen) == wanted
    assert len(seen) == len(wanted)
