"""Plans: what a launcher's function may do, what is recorded, and what is refused before anything runs."""

import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.arrays import Place
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import INDEX_LIMIT, Launch, Memcpy, Memset, Plan, Pointer
from llmc2py.runtime.source import KernelSource

SOURCE = KernelSource(pathlib.Path("ops.cu"))
LOADS = Kernel(SOURCE, "loads", [Param("out", "floatX*", align=16), Param("inp", "const floatX*", align=16)])
SUMS = Kernel(SOURCE, "sums", [Param("sums", "float*"), Param("inp", "const floatX*"), Param("N", "int")])
CASTS = Kernel(
    SOURCE,
    "casts",
    [Param("dst", "Td*"), Param("src", "const Ts*"), Param("n", "unsigned long")],
    template=[TemplateParam("Td"), TemplateParam("Ts"), TemplateParam("width", "int", 8)],
)
OUT, INP, N = Param("out", "floatX*", intent="out"), Param("inp", "const floatX*"), Param("N", "int")

pytestmark = pytest.mark.usefixtures("fake")


def record(function: Any, *arrays: Any, params: Any = (OUT, INP)) -> Plan:
    return launcher(params, origin="llmc/op.cuh:7")(function).plan(*arrays)


def floats(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


def test_the_operations_are_there_to_look_at() -> None:
    def op(plan: Plan, out: Pointer, inp: Pointer) -> None:
        plan.memset(out, 0, 64 * plan.sizeof("floatX"))
        partial = plan.scratch("float", 8)
        plan.launch(SUMS, 4, (32, 2), 256, partial + 2, inp + 8, 3)
        plan.memcpy(out.cast("float*"), partial, 32)

    plan = record(op, floats(64, np.float16), floats(64, np.float16))
    memset, launch, memcpy = plan.operations
    assert memset == Memset(Pointer(0, 0, "floatX*"), 0, 128)
    assert isinstance(launch, Launch)
    assert (launch.kernel, launch.template, launch.grid, launch.block) == ("sums", (), (4, 1, 1), (32, 2, 1))
    assert (launch.shared, launch.args) == (256, (Pointer(2, 8, "float*"), Pointer(1, 16, "floatX*"), 3))
    assert memcpy == Memcpy(Pointer(0, 0, "float*"), Pointer(2, 0, "float*"), 32)
    assert launch.instance.request.precision == "float16"
    assert launch.instance.request.selector == "SLICE_sums"


def test_pointers_move_by_elements() -> None:
    pointer = Pointer(3, 0, "floatX*", "bfloat16")
    assert (pointer + 5).byte_offset == 10
    assert (pointer + 5 - 2).byte_offset == 6
    assert (pointer.cast("const float*") + 1) == Pointer(3, 4, "float*")
    assert pointer.cast("float4*").itemsize == 16


def test_a_condition_that_does_not_hold_is_shown_with_its_values_and_place() -> None:
    def op(plan: Plan, out: Pointer, inp: Pointer) -> None:
        plan.require(False, "N % block_size == 0", N=5, block_size=4)

    with pytest.raises(ValueError, match=r"op needs N % block_size == 0, but N = 5, block_size = 4 \(llmc/op.cuh:7\)"):
        record(op, floats(1), floats(1))


def test_a_small_array_is_refused_by_name() -> None:
    def op(plan: Plan, out: Pointer, inp: Pointer) -> None:
        plan.check_extent(out, 4, "N")
        plan.check_extent(None, 99, "N")
        plan.check_extent(inp + 2, 3, "B * T")

    with pytest.raises(ValueError, match=r"op: `inp` has 2 elements, B \* T = 3 are needed \(llmc/op.cuh:7\)"):
        record(op, floats(4), floats(4))
    assert record(op, floats(4), floats(5)).operations == []


def test_bytes_outside_an_array_are_refused() -> None:
    def sets(plan: Plan, out: Pointer, inp: Pointer) -> None:
        plan.memset(out + 2, 0, 12)

    def copies(plan: Plan, out: Pointer, inp: Pointer) -> None:
        plan.memcpy(out, inp - 1, 4)

    with pytest.raises(ValueError, match="12 bytes from offset 8 of `out` are touched, which has 16"):
        record(sets, floats(4), floats(4))
    with pytest.raises(ValueError, match="4 bytes from offset -4 of `inp`"):
        record(copies, floats(4), floats(4))


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (-1, 32, 0, r"loads: grid \(-1, 1, 1\)"),
        ((1, 65536), 32, 0, r"grid \(1, 65536, 1\) is outside 0 to"),
        (1, 0, 0, r"block \(0, 1, 1\) is outside"),
        (1, (1, 1, 65), 0, r"block \(1, 1, 65\)"),
        (1, (1024, 2), 0, "has 2048 threads, fake runs at most 1024"),
        (1, 32, -4, "-4 bytes of shared memory"),
    ],
)
def test_a_configuration_that_no_device_has_is_refused(grid: Any, block: Any, shared: int, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        record(lambda plan, out, inp: plan.launch(LOADS, grid, block, shared, out, inp), floats(8), floats(8))


@pytest.mark.parametrize("grid", [1.0, (1, 2, 3, 4), (), "1"])
def test_a_grid_that_is_no_grid_is_a_type_error(grid: Any) -> None:
    with pytest.raises(TypeError, match=r"loads: grid is .*; it is an integer or a tuple of one to three"):
        record(lambda plan, out, inp: plan.launch(LOADS, grid, 32, 0, out, inp), floats(8), floats(8))


def test_an_empty_grid_launches_nothing() -> None:
    assert (
        record(lambda plan, out, inp: plan.launch(LOADS, (4, 0), 32, 0, out, inp), floats(8), floats(8)).operations
        == []
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda out, inp: (out.cast("float*"), 5, 1), TypeError, r"`inp` is 5; const floatX\* takes an array"),
        (lambda out, inp: (out, inp, 1), TypeError, r"`sums` is floatX\* \(float16\), but float\* takes float32"),
        (lambda out, inp: (out.cast("float*"), inp, 2**31), OverflowError, "sums: `N` is 2147483648"),
        (lambda out, inp: (out.cast("float*"), inp, 1.5), TypeError, "int takes an integer"),
        (lambda out, inp: (out.cast("Shape*"), inp, 1), TypeError, r"Shape\* is no pointer to numbers"),
        (lambda out, inp: (out.cast("float*"), inp), TypeError, "sums takes 3 arguments, 2 are given"),
    ],
)
def test_arguments_are_checked_against_the_kernel(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        record(
            lambda plan, out, inp: plan.launch(SUMS, 1, 32, 0, *arguments(out, inp)),
            floats(8, np.float16),
            floats(8, np.float16),
        )


def test_an_offset_that_loads_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="`inp` needs 16-byte alignment for its loads, but starts 4 bytes into `inp`"):
        record(lambda plan, out, inp: plan.launch(LOADS, 1, 32, 0, out, inp + 1), floats(8), floats(8))


def test_template_types_are_spelled_out_for_the_compiler() -> None:
    plan = record(
        lambda plan, out, inp: plan.launch(CASTS, 1, 32, 0, out, inp.cast("floatX*"), 4), floats(8), floats(8)
    )
    assert plan.operations[0].template == ("float", "float", 8)
    bf16 = floats(8, ml_dtypes.bfloat16)
    plan = record(
        lambda plan, out, inp: plan.launch(CASTS, 1, 32, 0, out, inp, 4, template=("floatX", "floatX", 4)), bf16, bf16
    )
    request = plan.operations[0].instance.request
    assert request.name == "casts<__nv_bfloat16, __nv_bfloat16, 4>"
    assert request.parameters == ("floatX*", "floatX*", "unsigned long")


def test_another_launcher_is_called_in_place() -> None:
    @launcher([OUT, INP, N], origin="llmc/inner.cuh:3")
    def inner(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
        plan.require(N > 0, "N > 0", N=N)
        plan.launch(LOADS, N, 32, 0, out, inp)

    def outer(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
        plan.call(inner, out + 4, inp, N - 1)

    plan = record(outer, floats(8), floats(8), 3, params=(OUT, INP, N))
    assert [(op.kernel, op.grid, op.args[0]) for op in plan.operations] == [
        ("loads", (2, 1, 1), Pointer(0, 16, "floatX*"))
    ]
    with pytest.raises(ValueError, match=r"inner needs N > 0, but N = 0 \(llmc/inner.cuh:3\)"):
        record(outer, floats(8), floats(8), 1, params=(OUT, INP, N))


def test_the_device_is_asked() -> None:
    seen: list[Any] = []

    def op(plan: Plan, out: Pointer, inp: Pointer) -> None:
        seen.append((plan.device.multiProcessorCount, plan.max_active_blocks(LOADS, 512), plan.precision))
        seen.append((plan.set_max_dynamic_shared(LOADS, 60_000), plan.set_max_dynamic_shared(LOADS, 200_000)))

    record(op, floats(8), floats(8))
    assert seen == [(4, 4, "float32"), (True, False)]


def test_arrays_beyond_32_bit_indices_are_refused(fake: Any) -> None:
    plan = record(lambda plan, out, inp: None, floats(8), floats(8))
    assert plan.place == Place("cpu", 0)
    plan.slots[1].size = INDEX_LIMIT - 1
    plan.launch(LOADS, 1, 32, 0, Pointer(0, 0, "floatX*"), Pointer(1, 0, "floatX*"))
    plan.slots[1].size = INDEX_LIMIT
    with pytest.raises(
        OverflowError, match="loads: `inp` has 2147483648 elements, but the kernel indexes with 32 bits"
    ):
        plan.launch(LOADS, 1, 32, 0, Pointer(0, 0, "floatX*"), Pointer(1, 0, "floatX*"))
    plan.launch(CASTS, 1, 32, 0, Pointer(0, 0, "floatX*"), Pointer(1, 0, "floatX*"), 1)


def test_null_in_the_text_of_a_launcher_is_passed_on() -> None:
    plan = record(lambda plan, out, inp: plan.launch(SUMS, 1, 32, 0, out.cast("float*"), None, 1), floats(8), floats(8))
    (launch,) = plan.operations
    assert launch.args[1] is None
