"""Layers: parameters by name, placed where the first input is, gradients that accumulate."""

import inspect
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.autograd import Context, Function, Tensor
from llmc2py.runtime.layer import Layer, OpSpec, Parameter

pytestmark = pytest.mark.usefixtures("fake")


class Multiply(Function):
    @staticmethod
    def forward(ctx: Context, x: Any, weight: Any) -> Any:
        ctx.save(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Context, dout: Any) -> Any:
        x, weight = ctx.saved
        dweight = ctx.accumulator(1)
        if dweight is None:
            dweight = np.zeros_like(weight)
        dweight += x * dout
        return dout * weight, dweight


class Gain(Layer):
    spec = OpSpec("gain", {"x": ("...", "C")}, {"y": ("...", "C")}, {"weight": ("C",)}, origin="llmc/gain.cuh:1")

    def __init__(self, channels: int, *, dtype: Any = None, like: Any = None) -> None:
        super().__init__(dtype=dtype, like=like)
        self.weight = Parameter(np.ones(channels, np.float32))

    def forward(self, x: Any) -> Any:
        return Multiply.apply(x, self.weight)


class Two(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Gain(3), Gain(3)
        self.alias = self.first

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_a_layer_used_twice_is_right() -> None:
    layer = Gain(3)
    x, z = Tensor(floats(1, 2, 3)), Tensor(floats(4, 5, 6))
    y, w = layer(x), layer(z)
    y.backward(floats(1, 1, 1))
    w.backward(floats(10, 10, 10))
    np.testing.assert_array_equal(layer.weight.grad, [41, 52, 63])
    np.testing.assert_array_equal(x.grad, [1, 1, 1])


def test_a_raw_array_is_a_constant_and_the_parameters_still_learn() -> None:
    layer = Gain(2)
    layer(floats(3, 4)).backward(floats(1, 1))
    np.testing.assert_array_equal(layer.weight.grad, [3, 4])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_parameters_take_the_first_inputs_dtype_and_then_keep_it(dtype: Any) -> None:
    layer = Gain(2)
    weight = layer.weight
    assert weight.dtype == np.float32
    layer(np.ones((1, 2), np.float32).astype(dtype))
    assert layer.weight is weight
    assert weight.dtype == dtype
    other = np.float32 if dtype != np.float32 else np.float16
    with pytest.raises(
        TypeError, match=f"Gain: the parameters are {np.dtype(dtype)} on the CPU, the input is {np.dtype(other)}"
    ):
        layer(np.ones((1, 2), other))
    layer(np.ones((1, 2), dtype))


def test_a_dtype_that_is_asked_for_is_kept() -> None:
    layer = Gain(2, dtype="bfloat16")
    assert layer.weight.dtype == ml_dtypes.bfloat16
    with pytest.raises(TypeError, match="parameters are bfloat16 on the CPU, the input is float32 on the CPU"):
        layer(floats(1, 2))
    assert Gain(2, like=np.zeros(1, np.float16)).weight.dtype == np.float16
    assert Gain(2, like=np.zeros(1, np.float16), dtype="float32").weight.dtype == np.float32
    for wrong in ("float8", np.int32):
        with pytest.raises(TypeError, match="is no precision"):
            Gain(2, dtype=wrong)


def test_an_input_that_is_no_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="Gain: the input is float64; it is one of float32"):
        Gain(2)(np.ones(2))


def test_token_ids_place_a_layer_without_deciding_its_dtype() -> None:
    class Look(Gain):
        def forward(self, ids: Any) -> Any:
            return self.weight.data[ids]

    layer = Look(3)
    layer(np.array([0, 2], np.int32))
    assert layer.weight.dtype == np.float32


def test_parameters_are_named_once_and_cleared() -> None:
    model = Two()
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "second.weight"]
    assert model.parameters() == [model.first.weight, model.second.weight]
    model(floats(1, 2, 3)).backward(floats(1, 1, 1))
    model.zero_grad(set_to_none=False)
    np.testing.assert_array_equal(model.first.weight.grad, [0, 0, 0])
    model.zero_grad()
    assert [parameter.grad for parameter in model.parameters()] == [None, None]


def test_to_moves_parameters_and_gradients() -> None:
    model = Two()
    model(floats(1, 2, 3)).backward(floats(1, 1, 1))
    assert model.to(dtype="float16") is model
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {np.dtype(np.float16)}
    model(floats(1, 2, 3, dtype=np.float16))
    model.to(floats(1))
    assert model.first.weight.dtype == np.float32
    model.to("cpu")
    with pytest.raises(TypeError, match="'tpu' is no place"):
        model.to("tpu")


def test_parameters_lie_where_128_bit_loads_can_take_them() -> None:
    layer = Gain(8)
    layer.weight = Parameter(np.ones(9, np.float32)[1:])
    layer.to(dtype="float16")
    assert layer.weight.data.ctypes.data % 256 == 0


def test_a_cuda_input_is_refused_by_a_layer_on_the_cpu() -> None:
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.memory
    pointer = memory.MemoryPointer(memory.UnownedMemory(4096, 64, None, 0), 0)
    layer = Gain(2)
    layer(floats(1, 2))
    with pytest.raises(TypeError, match="parameters are float32 on the CPU, the input is float32 on cuda:0"):
        layer(cupy.ndarray((2,), np.float32, pointer))


def test_threads_place_a_layer_once() -> None:
    layer = Gain(4)
    results: list[Any] = []
    barrier = threading.Barrier(8)

    def call() -> None:
        barrier.wait()
        results.append(layer(np.ones(4, np.float16)).dtype)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [np.float16] * 8


def test_an_attribute_that_is_a_parameter_no_more_is_forgotten() -> None:
    layer = Gain(2)
    layer.bias = Parameter(np.zeros(2, np.float32))
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


def test_a_layer_shows_its_parameters_options_and_layers() -> None:
    two = Two()
    two.depth, two.name, two.table = 3, "x", np.zeros(4)
    assert repr(two.first) == "Gain(weight=(3,))"
    assert repr(two) == (
        "Two(\n  depth=3, name='x'\n  (first): Gain(weight=(3,))\n  (second): Gain(weight=(3,))\n"
        "  (alias): Gain(weight=(3,))\n)"
    )
    assert str(inspect.signature(two)) == "(x: Any) -> Any"
    assert str(inspect.signature(Gain)).startswith("(channels: int, *, dtype")


def test_a_layer_takes_keywords_of_any_name() -> None:
    class Named(Layer):
        def forward(this, **options: Any) -> Any:  # noqa: N805
            return options

    assert Named()(self=1, inputs=2) == {"self": 1, "inputs": 2}


def test_a_layer_without_forward_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Layer defines no forward"):
        Layer()(floats(1))
