"""Calls of launchers and kernels: what is checked, copied, kept, and shared between threads."""

import inspect
import pathlib
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import callsite
from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

SOURCE = KernelSource(pathlib.Path("ops.cu"))
PARAMS = [
    Param("out", "floatX*", intent="out", align=16),
    Param("inp", "const floatX*", intent="in", align=16),
    Param("mask", "const int*", intent="in", nullable=True),
    Param("s", "float"),
    Param("N", "int"),
]
SCALE = Kernel(SOURCE, "scale", PARAMS, origin="llmc/scale.cuh:3")


def new_launcher() -> Any:
    recorded: list[int] = []

    @launcher(PARAMS, origin="llmc/scale.cuh:9")
    def scale_forward(plan: Plan, out: Pointer, inp: Pointer, mask: Pointer | None, s: float, N: int) -> None:
        """Multiply by a number."""
        recorded.append(N)
        plan.check_extent(out, N, "N")
        plan.check_extent(inp, N, "N")
        plan.launch(SCALE, ceil_div(N, 32), 32, 0, out, inp, mask, s, N)

    return scale_forward, recorded


@pytest.fixture
def scaling(fake: Any, at_address: Any) -> Any:
    """The fake backend, with a `scale` kernel that works."""

    def scale(grid: Any, block: Any, out: int, inp: int, mask: int, s: int, n: int) -> None:
        factor = np.array([s], np.uint32).view(np.float32)[0]
        at_address(out, n)[...] = at_address(inp, n) * factor

    fake.functions["scale"] = scale
    return fake


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


def test_a_call_runs_the_kernel_and_the_next_one_records_nothing(scaling: Any) -> None:
    scale_forward, recorded = new_launcher()
    for _ in range(3):
        out, inp = np.zeros(40, np.float32), floats(40)
        scale_forward(out, inp, None, 2.0, 40)
        np.testing.assert_array_equal(out, inp * 2)
    assert recorded == [40]
    name, grid, block, shared, cells = scaling.launches[-1]
    assert (name, grid, block, shared) == ("scale", (2, 1, 1), (32, 1, 1), 0)
    assert cells == [out.ctypes.data, inp.ctypes.data, 0, 0x40000000, 40]


def test_what_a_plan_depends_on_makes_a_new_one(scaling: Any) -> None:
    scale_forward, recorded = new_launcher()
    out, inp = np.zeros(64, np.float32), floats(64)
    for count, s in [(64, 1.0), (63, 1.0), (64, 2.0), (64, 0.0), (64, -0.0), (64, 1), (64, np.float32(1))]:
        scale_forward(out, inp, None, s, count)
    assert recorded == [64, 63, 64, 64, 64]
    assert np.signbit(out[1]) == np.False_
    scale_forward(out, inp, None, -0.0, 64)
    assert np.signbit(out[1])
    scale_forward(out[:32], inp[:32], None, 1.0, 32)
    with pytest.raises(ValueError, match=r"scale_forward: `out` has 32 elements, N = 64 are needed"):
        scale_forward(out[:32], inp, None, 1.0, 64)
    scale_forward(out, inp, None, 1.0, 64)
    np.testing.assert_array_equal(out, inp)


def test_arguments_bind_by_name_and_the_signature_has_no_plan(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    out = np.zeros(8, np.float32)
    scale_forward(out, N=8, s=3.0, inp=floats(8), mask=None)
    np.testing.assert_array_equal(out, floats(8) * 3)
    assert list(inspect.signature(scale_forward).parameters) == ["out", "inp", "mask", "s", "N"]
    assert scale_forward.__doc__ == "Multiply by a number."
    assert scale_forward.__name__ == "scale_forward"
    assert "llmc/scale.cuh:9" in repr(scale_forward)
    for wrong in ({"M": 1}, {}):
        with pytest.raises(TypeError, match=r"scale_forward.*argument"):
            scale_forward(out, floats(8), None, 3.0, **wrong)


WRONG = [
    ((None, 1, None, 1.0, 8), TypeError, "scale_forward: `out` is None, but the kernel needs it"),
    ((0, [1.0], None, 1.0, 8), TypeError, "scale_forward: `inp` is a list"),
    ((0, 1, None, "x", 8), TypeError, "scale_forward: `s` is 'x'"),
    ((0, 1, None, 1.0, 8.0), TypeError, "scale_forward: `N` is 8.0, a float; int takes an integer"),
    ((0, 1, None, 1.0, 2**31), OverflowError, "scale_forward: `N` is 2147483648, out of the range of int"),
    ((0, np.zeros(8), None, 1.0, 8), TypeError, "scale_forward: `inp` is float64, but const floatX"),
    ((0, np.zeros(8, np.float16), None, 1.0, 8), TypeError, "`out` is float32 and `inp` is float16"),
    ((0, 1, np.zeros(8, np.int64), 1.0, 8), TypeError, r"`mask` is int64, but const int\* takes int32; .*numpy.int32"),
    ((0, 1, None, 1.0, 9), ValueError, "has 8 elements, N = 9 are needed"),
]


@pytest.mark.parametrize(("args", "error", "message"), WRONG)
def test_a_wrong_call_says_why_and_the_next_right_one_works(scaling: Any, args: Any, error: Any, message: str) -> None:
    scale_forward, _ = new_launcher()
    arrays = [np.zeros(8, np.float32), floats(8)]
    given = [arrays[a] if i < 2 and isinstance(a, int) else a for i, a in enumerate(args)]
    for _ in range(2):
        with pytest.raises(error, match=message):
            scale_forward(*given)
    assert scaling.launches == []
    scale_forward(*arrays, None, 2.0, 8)
    np.testing.assert_array_equal(arrays[0], floats(8) * 2)


def test_a_read_only_output_is_refused_and_a_read_only_input_is_not(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    frozen = floats(8)
    frozen.flags.writeable = False
    out = np.zeros(8, np.float32)
    scale_forward(out, frozen, None, 2.0, 8)
    np.testing.assert_array_equal(out, frozen * 2)
    with pytest.raises(ValueError, match="`out` is written, but the array is read-only"):
        scale_forward(frozen, out, None, 2.0, 8)


@pytest.mark.parametrize("form", ["transposed", "sliced", "broadcast", "shifted", "reversed"])
def test_inputs_as_they_lie_are_taken_as_their_contiguous_copies_are(scaling: Any, form: str) -> None:
    matrix = floats(48).reshape(6, 8)
    inp = {
        "transposed": matrix.T,
        "sliced": matrix[:, :4],
        "broadcast": np.broadcast_to(matrix[0], (3, 8)),
        "shifted": matrix.reshape(-1)[1:],
        "reversed": matrix[::-1],
    }[form]
    before = inp.copy()
    scale_forward, recorded = new_launcher()
    for _ in range(2):
        out = np.zeros(inp.shape, np.float32)
        scale_forward(out, inp, None, 2.0, inp.size)
        np.testing.assert_array_equal(out, before * 2)
        np.testing.assert_array_equal(inp, before)
    assert len(recorded) == 1
    assert scaling.launches[-1][4][1] % 16 == 0


def test_alignment_is_looked_at_in_every_call(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    whole = floats(68)
    for start in (0, 1, 0, 4, 1):
        out, inp = np.zeros(64, np.float32), whole[start : start + 64]
        scale_forward(out, inp, None, 2.0, 64)
        np.testing.assert_array_equal(out, inp * 2)
        assert scaling.launches[-1][4][1] % 16 == 0


def test_the_alignment_that_a_kernel_needs_holds_for_its_launcher(scaling: Any) -> None:
    plain = [Param("out", "floatX*"), Param("inp", "const floatX*"), Param("N", "int")]

    @launcher(plain)
    def scale_plainly(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
        plan.launch(SCALE, 1, 32, 0, out, inp, None, 2.0, N)

    out, inp = np.zeros(9, np.float32)[1:], floats(9)[1:]
    scale_plainly(out, inp, 8)
    np.testing.assert_array_equal(out, inp * 2)
    assert [cell % 16 for cell in scaling.launches[-1][4][:2]] == [0, 0]


@pytest.mark.parametrize("form", ["transposed", "sliced", "shifted"])
def test_outputs_as_they_lie_are_written_back_and_nothing_beside_them(scaling: Any, form: str) -> None:
    base = np.full((6, 8), 7, np.float32)
    view = {"transposed": base.T, "sliced": base[:, :4], "shifted": base.reshape(-1)[1:]}[form]
    inp = floats(view.size).reshape(view.shape)
    scale_forward, _ = new_launcher()
    scale_forward(view, inp, None, 2.0, view.size)
    np.testing.assert_array_equal(view, inp * 2)
    untouched = {"transposed": base[:0], "sliced": base[:, 4:], "shifted": base.reshape(-1)[:1]}[form]
    assert (untouched == 7).all()


def test_empty_arrays_launch_nothing(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    scale_forward(np.zeros(0, np.float32), np.zeros((0, 4), np.float32)[:, 1:2], None, 1.0, 0)
    assert scaling.launches == []


def test_subclasses_and_numpy_scalars_are_taken(scaling: Any) -> None:
    class Mine(np.ndarray):
        pass

    scale_forward, _ = new_launcher()
    out = np.zeros(8, np.float32)
    scale_forward(out.view(Mine), floats(8), None, np.float64(2), np.int64(8))
    np.testing.assert_array_equal(out, floats(8) * 2)


def test_the_prepared_calls_do_not_grow_without_end(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callsite, "MAX_PREPARED", 4)
    scale_forward, recorded = new_launcher()
    out, inp = np.zeros(8, np.float32), floats(8)
    for step in range(10):
        scale_forward(out, inp, None, float(step), 8)
    assert len(scale_forward._prepared) == 4
    scale_forward(out, inp, None, 9.0, 8)
    assert len(recorded) == 10


def test_more_registers_than_a_block_has_are_explained(fake: Any) -> None:
    fake.max_threads["scale"] = 512
    out = np.zeros(8, np.float32)
    with pytest.raises(LaunchError, match=r"scale: a block of 1024 threads .* 40 registers .* at most 512 threads"):
        SCALE[1, 1024](out, out, None, 1.0, 8)
    SCALE[1, 512](out, out, None, 1.0, 8)
    assert len(fake.launches) == 1


def test_shared_memory_beyond_48_kb_is_reserved_or_refused(fake: Any) -> None:
    out = np.zeros(8, np.float32)
    SCALE[1, 32, 49152](out, out, None, 1.0, 8)
    (kernel,) = fake.kernels.values()
    assert kernel.reserved == []
    SCALE[1, 32, 49153](out, out, None, 1.0, 8)
    assert kernel.reserved == [49153]
    with pytest.raises(LaunchError, match=r"scale: 200000 bytes of dynamic shared memory .* fake has 166912 bytes"):
        SCALE[1, 32, 200_000](out, out, None, 1.0, 8)
    assert len(fake.launches) == 2


def test_kernels_are_configured_before_they_are_called(fake: Any) -> None:
    with pytest.raises(TypeError, match=r"scale needs a launch configuration: scale\[grid, block\]"):
        SCALE(1)
    for index in (3, (1, 2, 3, 4)):
        with pytest.raises(TypeError, match=r"\[grid, block\] or \[grid, block, shared_bytes\]"):
            SCALE[index]
    assert SCALE[(1, 2), 32] is SCALE[(1, 2), 32]


CASTS = Kernel(
    SOURCE,
    "casts",
    [Param("dst", "Td*"), Param("src", "const Ts*"), Param("n", "unsigned long"), Param("fill", "Td")],
    template=[TemplateParam("Td"), TemplateParam("Ts")],
)
BLOCKS = Kernel(SOURCE, "blocks", [Param("x", "float*")], template=[TemplateParam("size", "int")])


def test_templates_follow_from_dtypes_or_are_given(fake: Any) -> None:
    dst, src = np.zeros(4, np.float32), np.zeros(4, ml_dtypes.bfloat16)
    CASTS[1, 32](dst, src, 4, 1)
    CASTS[np.float32, "bfloat16"][1, 32](dst, src, 4, 1.0)
    BLOCKS[64][2, 32](dst)
    BLOCKS.instantiate(128)[2, 32](dst)
    assert [launch[0] for launch in fake.launches] == ["casts<float, __nv_bfloat16>"] * 2 + [
        "blocks<64>",
        "blocks<128>",
    ]
    assert fake.launches[0][4][3] == 0x3F800000
    with pytest.raises(TypeError, match=r"casts: `dst` is float32, but Td\* takes float16"):
        CASTS[np.float16, "bfloat16"][1, 32](dst, src, 4, 1)
    for wrong in ("x", None, [1]):
        with pytest.raises(TypeError, match=r"casts: `fill` is .*takes a number"):
            CASTS[1, 32](dst, src, 4, wrong)
    with pytest.raises(TypeError, match="blocks takes 1 template argument, 2 are given"):
        BLOCKS[1, 32]


def test_what_cannot_be_passed_from_python_is_named(fake: Any) -> None:
    by_value = Kernel(SOURCE, "by_value", [Param("shape", "Shape")])
    with pytest.raises(TypeError, match="by_value: `shape` is a Shape, which is no number"):
        by_value[1, 32](1)
    pointed = Kernel(SOURCE, "pointed", [Param("shapes", "Shape*")])
    with pytest.raises(TypeError, match=r"`shapes` is Shape\*; there are no arrays of Shape"):
        pointed[1, 32](np.zeros(1, np.float32))


def test_warmup_compiles_and_runs_nothing(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    out = np.zeros(8, np.float32)
    scale_forward.warmup(out, floats(8), None, 2.0, 8)
    assert len(scaling.kernels) == 1
    assert scaling.launches == []
    with pytest.raises(ValueError, match="has 8 elements"):
        scale_forward.warmup(out, floats(8), None, 2.0, 9)


def test_a_kernel_without_floatx_arrays_has_the_precision_asked_for(fake: Any) -> None:
    kernel = Kernel(SOURCE, "fill", [Param("x", "float*")])
    kernel[1, 32](np.zeros(1, np.float32))
    kernel.instantiate(precision="bfloat16")[1, 32](np.zeros(1, np.float32))
    assert [request.precision for request, _ in fake.kernels] == ["float32", "bfloat16"]


def test_launcher_templates(fake: Any) -> None:
    @launcher([Param("x", "T*")], template=[TemplateParam("T"), TemplateParam("size", "int", 4)])
    def fill(plan: Plan, x: Pointer) -> None:
        plan.launch(BLOCKS, 1, plan.template["size"], 0, x.cast("float*"), template=(plan.sizeof("T"),))

    fill(np.zeros(4, np.float32))
    fill[np.float32, 8](np.zeros(4, np.float32))
    assert [(launch[0], launch[2][0]) for launch in fake.launches] == [("blocks<4>", 4), ("blocks<4>", 8)]
    with pytest.raises(TypeError, match="takes 2 template arguments, 3 are given"):
        fill[np.float32, 8, 9]


def test_a_declaration_that_differs_from_the_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"f: the function takes \['a'\], the declaration says \['b'\]"):

        @launcher([Param("b", "int")])
        def f(plan: Plan, a: int) -> None:
            raise AssertionError


def test_scratch_memset_and_memcpy_run_in_order(fake: Any, at_address: Any) -> None:
    add = Kernel(SOURCE, "add", [Param("x", "float*"), Param("n", "int")])

    def add_index(grid: Any, block: Any, x: int, n: int) -> None:
        at_address(x, n)[...] += np.arange(n)

    fake.functions["add"] = add_index

    @launcher([Param("out", "float*", intent="out"), Param("N", "int")])
    def op(plan: Plan, out: Pointer, N: int) -> None:
        first, second = plan.scratch("float", N), plan.scratch("float", N)
        plan.memset(first, 0, 4 * N)
        plan.launch(add, 1, 32, 0, first, N)
        plan.memcpy(second, first, 4 * N)
        plan.launch(add, 1, 32, 0, second, N)
        plan.memcpy(out + 1, second, 4 * N - 4)

    for _ in range(2):
        out = np.full(4, -1, np.float32)
        op(out, 4)
        np.testing.assert_array_equal(out, [-1, 0, 2, 4])
    assert fake.allocations == 4


def test_threads_do_not_share_argument_blocks(scaling: Any) -> None:
    scale_forward, _ = new_launcher()
    scaling.launch_seconds = 1e-4
    wrong: list[int] = []

    def work(seed: int) -> None:
        inp = floats(64) + seed
        out = np.zeros(64, np.float32)
        for _ in range(50):
            out[...] = 0
            scale_forward(out, inp, None, 2.0, 64)
            if not np.array_equal(out, inp * 2):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_cuda_call_is_keyed_by_device(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    from llmc2py.runtime import arrays

    monkeypatch.setitem(arrays.BACKENDS, "cuda", fake)
    monkeypatch.setattr(arrays, "_cuda_devices", lambda: 1)

    def on(device: int) -> Any:
        memory = cupy.cuda.memory.UnownedMemory(4096, 256, None, device)
        return cupy.ndarray((8,), np.float32, cupy.cuda.memory.MemoryPointer(memory, 0))

    scale_forward, recorded = new_launcher()
    for device in (0, 1, 0, 1):
        scale_forward(on(device), on(device), None, 1.0, 8)
    assert len(recorded) == 2
    assert {device for _, device in fake.kernels} == {0, 1}
    with pytest.raises(TypeError, match="`out` is on cuda:0 and `inp` is on cuda:1"):
        scale_forward(on(0), on(1), None, 1.0, 8)
    with pytest.raises(TypeError, match="`out` is on cuda:0 and `inp` is on the CPU"):
        scale_forward(on(0), floats(8), None, 1.0, 8)


def test_with_several_gpus_the_arrays_device_is_current_during_a_call(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = pytest.importorskip("cupy")
    from llmc2py.runtime import arrays

    current = [0]

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            current.append(self.number)

        def __exit__(self, *error: object) -> None:
            current.pop()

    monkeypatch.setitem(arrays.BACKENDS, "cuda", fake)
    monkeypatch.setattr(arrays, "_cuda_devices", lambda: 2)
    monkeypatch.setattr(cupy.cuda, "Device", Device)
    seen: list[int] = []
    fake.functions["scale"] = lambda *arguments: seen.append(current[-1])
    monkeypatch.setattr(fake, "current_stream", lambda: 100 + current[-1])
    monkeypatch.setattr(fake, "empty", lambda *arguments: seen.append(current[-1]) or np.zeros(64, np.float32))

    memory = cupy.cuda.memory.UnownedMemory(4096, 256, None, 1)
    array = cupy.ndarray((8,), np.float32, cupy.cuda.memory.MemoryPointer(memory, 0))

    @launcher(PARAMS)
    def with_scratch(plan: Plan, out: Pointer, inp: Pointer, mask: Pointer | None, s: float, N: int) -> None:
        plan.launch(SCALE, 1, 32, 0, out, plan.scratch("float", N), mask, s, N)

    for _ in range(2):
        with_scratch(array, array, None, 1.0, 8)
    assert seen == [1, 1, 1, 1]
    assert current == [0]
