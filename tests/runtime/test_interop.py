"""Arrays of other libraries: shared, never copied, and refused with their name where that cannot be."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Layer, Tensor, launcher
from llmc2py.runtime.arrays import Place
from llmc2py.runtime.dtypes import bfloat16
from llmc2py.runtime.interop import as_array, is_foreign
from llmc2py.runtime.ops import copy, take
from llmc2py.runtime.padding import elementwise
from llmc2py.runtime.params import Param
from llmc2py.runtime.plan import Plan, Pointer

FLOATX = {"out": Param("out", "floatX*", intent="out"), "inp": Param("inp", "const floatX*", intent="in")}


class Exporter:
    """An array of another library that speaks DLPack, of the newest version or of the first."""

    def __init__(self, array: np.ndarray, *, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack__(self, **asked: Any) -> Any:
        if not self.versioned and "max_version" in asked:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class CudaExporter:
    """An array of another library that speaks the CUDA Array Interface."""

    def __init__(self, **more: Any) -> None:
        self.__cuda_array_interface__ = {"data": (0, False), "shape": (0,), "typestr": "<f4", "version": 3} | more


@launcher([FLOATX["out"], FLOATX["inp"], Param("N", "int")])
def double(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
    """Copy, and say what has to be there."""
    plan.check_extent(inp, N, "N")
    plan.memcpy(out, inp, 4 * N)


@pytest.mark.parametrize("versioned", [True, False])
def test_memory_of_the_cpu_is_shared(versioned: bool) -> None:
    owner = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    array = as_array(Exporter(owner, versioned=versioned), "x")
    assert type(array) is np.ndarray
    assert (array.ctypes.data, array.shape, array.strides) == (owner.ctypes.data, owner.shape, owner.strides)
    array[1, 1] = -1
    assert owner[1, 1] == -1


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int64", "uint16", "bool", "complex64"])
def test_dtypes_are_those_of_the_owner(dtype: str) -> None:
    assert as_array(Exporter(np.zeros(3, dtype)), "x").dtype == dtype


def test_empty_and_0d_arrays() -> None:
    assert as_array(Exporter(np.zeros((2, 0), np.float32)), "x").shape == (2, 0)
    assert as_array(Exporter(np.full((), 3.0)), "x")[()] == 3


def test_the_owner_lives_as_long_as_the_array() -> None:
    exporter = Exporter(np.ones(1000))
    alive = weakref.ref(exporter)
    array = as_array(exporter, "x")
    del exporter
    gc.collect()
    assert alive() is not None
    assert array.sum() == 1000
    del array
    gc.collect()
    assert alive() is None


def test_own_arrays_and_other_values_pass_as_they_are() -> None:
    array = np.zeros(3)
    for value in (array, None, 3, [1.0], "text", np.float32(1)):
        assert not is_foreign(value)
        assert as_array(value, "x") is value


def test_launchers_take_and_write_shared_memory(fake: Any) -> None:
    out, inp = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
    double(Exporter(out), inp, 5)
    np.testing.assert_array_equal(out, inp)
    double(out, Exporter(inp + 1), N=5)
    np.testing.assert_array_equal(out, inp + 1)
    assert len(double.plan(Exporter(out), Exporter(inp), 5).operations) == 1
    with pytest.raises(ValueError, match="double: `inp` has 5 elements"):
        double(Exporter(out), Exporter(inp), 6)


def test_the_padded_tail_is_written_to_shared_memory(fake: Any) -> None:
    out, inp = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
    elementwise(double, (Exporter(out), Exporter(inp)), 5, 4)
    np.testing.assert_array_equal(out, inp)


def test_what_is_written_is_never_a_copy(fake: Any) -> None:
    inp, constant = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match=r"double: `out` is written, but its .*\.Exporter is read-only; pass a copy"):
        double(Exporter(constant), inp, 5)
    # What is read alone may be read-only.
    out = np.ones(5, np.float32)
    double(out, Exporter(constant), 5)
    assert not out.any()


def test_arrays_of_libraries_that_never_change_them_are_not_written() -> None:
    immutable = type("Array", (Exporter,), {"__module__": "jaxlib.xla"})(np.zeros(3))
    assert as_array(immutable, "x").shape == (3,)
    with pytest.raises(ValueError, match=r"f: `x` is written, but its jaxlib\.Array is read-only; pass a copy"):
        as_array(immutable, "x", "f", written=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Exporter(np.zeros(3), device=(10, 0)), "on a device of DLPack's type 10"),
        (Exporter(np.zeros(3, ">f4")), "cannot be shared"),
        (Exporter(np.zeros(3, "datetime64[s]")), "cannot be shared"),
    ],
)
def test_what_cannot_be_shared_is_a_type_error_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=rf"f: `x` is a \w+\.Exporter whose memory .*{reason}"):
        as_array(value, "x", "f")


def test_masks_of_the_cuda_array_interface_are_refused() -> None:
    pytest.importorskip("cupy")
    with pytest.raises(TypeError, match=r"`x` is a .*CudaExporter whose memory cannot be shared: it has a mask"):
        as_array(CudaExporter(mask=np.zeros(3)), "x")


def test_layers_and_functions_take_shared_memory_as_constants(generated_package: Any) -> None:
    from generated.layers import LayerNorm, Residual

    values = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    shared = Exporter(values)
    norm = LayerNorm(8)
    np.testing.assert_array_equal(norm(shared).data, LayerNorm(8)(values).data)
    x = Tensor(shared)
    assert x.data.ctypes.data == values.ctypes.data
    y = Residual()(x, shared)
    y.backward(Exporter(np.ones_like(values)))
    np.testing.assert_array_equal(x.grad, np.ones_like(values))
    assert LayerNorm(8, like=Exporter(values.astype(np.float16))).weight.dtype == np.float16
    assert Layer().to(Exporter(values))._place == Place("cpu", 0)


def test_kernels_and_functions_in_the_place_of_launchers_take_shared_memory(generated_package: Any) -> None:
    from generated.gelu import gelu_forward, gelu_forward_kernel2
    from llmc2py.runtime.replacements import Replacement

    inp = np.linspace(-3, 3, 2048, dtype=np.float32)
    out, other = np.zeros_like(inp), np.zeros_like(inp)
    gelu_forward_kernel2[1, 512](Exporter(out), Exporter(inp))
    gelu_forward(other, inp, 2048)
    np.testing.assert_array_equal(out, other)

    def negate(uses: Any, out: Any, factor: int = -1) -> None:
        out *= factor

    Replacement(negate, (), origin="a.cu:1")(Exporter(out))
    np.testing.assert_array_equal(out, -other)


def test_launchers_take_tensors_that_need_no_gradient(fake: Any) -> None:
    inp, out = np.arange(4, dtype=np.float32).astype(bfloat16), Tensor(np.zeros(4, np.float32).astype(bfloat16), False)
    double(out, Tensor(inp, requires_grad=False), 2)
    np.testing.assert_array_equal(out.data, inp)
    with pytest.raises(TypeError, match=r"double: `inp` requires a gradient, which would be lost; pass `x.detach\(\)`"):
        double(out, Tensor(inp), 2)


def test_objects_say_for_themselves_what_they_share() -> None:
    class Wrapper:
        pass

    assert not is_foreign(Wrapper())
    wrapper = Wrapper()
    wrapper.__cuda_array_interface__ = {}  # type: ignore[attr-defined]
    assert is_foreign(wrapper)


# --- PyTorch


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_torch_tensors_on_the_cpu_are_shared(torch: Any, fake: Any) -> None:
    out, inp = torch.zeros(6), torch.arange(6.0)
    double(out, inp, 6)
    assert torch.equal(out, inp)
    strided = torch.zeros(6, 2)[:, 0]
    double(strided, inp, 6)
    assert torch.equal(strided, inp)


def test_bfloat16_of_torch_is_that_of_ml_dtypes(torch: Any) -> None:
    x = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
    array = as_array(x, "x")
    assert array.dtype == bfloat16
    assert array.astype(np.float32).tolist() == [1.5, -2.0, 3.0]
    array[0] = 7
    assert x[0] == 7


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda torch: torch.zeros(3, requires_grad=True), "detach"),
        (lambda torch: torch.zeros(3, device="meta"), "meta"),
        (lambda torch: torch.zeros(3).to_sparse(), "layout"),
    ],
    ids=["requires_grad", "meta", "sparse"],
)
def test_torch_tensors_that_cannot_be_shared(torch: Any, make: Callable[[Any], Any], reason: str) -> None:
    with pytest.raises(TypeError, match=rf"f: `x` is a torch\.Tensor whose memory cannot be shared: .*{reason}"):
        take("f", "x", as_array(make(torch), "x", "f"), (np.dtype(np.float32),))


# --- CUDA


class _View:
    """The CUDA Array Interface of a CuPy array, with a stream of its own."""

    def __init__(self, array: Any, stream: int | None, *, read_only: bool = False) -> None:
        interface = array.__cuda_array_interface__
        self.array = array
        self.__cuda_array_interface__ = interface | {"data": (interface["data"][0], read_only), "stream": stream}


@pytest.mark.gpu
def test_cuda_memory_is_shared_by_either_protocol() -> None:
    import cupy

    array = cupy.arange(12, dtype=cupy.float32).reshape(3, 4)[:, ::2]

    class Dlpack:
        __dlpack__ = staticmethod(array.__dlpack__)
        __dlpack_device__ = staticmethod(array.__dlpack_device__)

    for shared in (as_array(Dlpack(), "x"), as_array(_View(array, None), "x")):
        assert type(shared) is cupy.ndarray
        assert (shared.data.ptr, shared.shape, shared.strides) == (array.data.ptr, array.shape, array.strides)
        assert shared.data.device_id == array.data.device_id
    with pytest.raises(ValueError, match=r"`x` is written, but its .*_View is read-only"):
        as_array(_View(array, None, read_only=True), "x", written=True)


@pytest.mark.gpu
def test_launches_come_after_the_owners_work_and_before_what_it_does_next() -> None:
    import cupy

    theirs, ours = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    n = 1 << 26
    out, inp = cupy.zeros(n, cupy.float32), cupy.zeros(n, cupy.float32)
    cupy.cuda.Device().synchronize()
    with theirs:
        for _ in range(20):
            inp += 1
    with ours:
        double(_View(out, theirs.ptr), _View(inp, theirs.ptr), n)
    with theirs:
        result = copy(out)
    theirs.synchronize()
    assert float(result.min()) == 20


@pytest.mark.gpu
def test_torch_tensors_on_cuda_are_shared_and_ordered(torch: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch knows no CUDA")
    n = 1 << 26
    side = torch.cuda.Stream()
    out, inp = torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            inp += 1
        double(out, inp, n)
        result = out.clone()
    side.synchronize()
    assert float(result.min()) == 20
    assert as_array(torch.ones(3, dtype=torch.bfloat16, device="cuda"), "x").dtype == bfloat16
