"""Layers: parameters by name, placed where the first input is, gradients that accumulate."""

import copy
import functools
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.arrays import Place
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


def test_an_attribute_that_is_deleted_is_forgotten() -> None:
    layer = Two()
    del layer.first, layer.alias, layer.second.weight
    assert layer.parameters() == []


@pytest.mark.parametrize("value", [np.ones(2, np.float32), Tensor(np.ones(2, np.float32)), 3, Gain], ids=repr)
def test_only_a_parameter_takes_the_place_of_one(value: Any) -> None:
    layer = Gain(2)
    with pytest.raises(TypeError, match=r"Gain: `weight` is a Parameter, and a \w+ cannot .*`weight.data\[...\]"):
        layer.weight = value
    assert layer.parameters() == [layer.weight]
    with pytest.raises(TypeError, match="Two: `first` is a Layer, and a int cannot take its place"):
        Two().first = 3  # type: ignore[assignment]


def test_a_layer_that_was_not_made_says_so() -> None:
    class Forgetful(Gain):
        def __init__(self) -> None:
            self.scale = 2
            self.weight = Parameter(floats(1))

    class Empty(Layer):
        def __init__(self) -> None:
            self.scale = 2

    for use in (Forgetful, lambda: Empty().parameters(), lambda: Empty()(floats(1)), lambda: Empty().to("cpu")):
        with pytest.raises(AttributeError, match=r"(Forgetful|Empty): `super\(\).__init__\(\)` has not been called"):
            use()


def test_inputs_by_name_meet_the_parameters_too() -> None:
    layer = Gain(2)
    assert layer(x=floats(1, 2, dtype=np.float16)).dtype == np.float16
    with pytest.raises(TypeError, match="parameters are float16 on the CPU, the input is float32"):
        layer(x=floats(1, 2))


def test_indices_decide_no_dtype_whatever_theirs_is() -> None:
    class Look(Layer):
        spec = OpSpec("look", {"ids": ("...",)}, {"y": ("...",)}, {"weight": ("V",)}, indices={"ids": "V"})

        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(floats(1, 2, 3))

        def forward(self, ids: Any) -> Any:
            return ids.dtype

    assert Look()(np.zeros(2)) == Look()(ids=np.zeros(2)) == np.float64


def _load(layer: Gain, values: np.ndarray) -> None:
    layer.load_state_dict({"weight": values})


def _assign(layer: Gain, values: np.ndarray) -> None:
    layer.weight = Parameter(values)


def _assign_data(layer: Gain, values: np.ndarray) -> None:
    layer.weight.data = values


@pytest.mark.parametrize("give", [_load, _assign, _assign_data])
def test_a_call_does_not_round_values_that_were_given(give: Any) -> None:
    layer = Gain(2)
    give(layer, floats(1.2345678, 2))
    with pytest.raises(TypeError, match=r"are float32 on the CPU, the input is bfloat16.*`.to\(x\)`.*`.astype`"):
        layer(np.ones(2, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(layer(floats(1, 1)).data, floats(1.2345678, 2))
    assert layer.to(dtype="bfloat16")(np.ones(2, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("give", [_load, _assign, _assign_data])
def test_values_that_were_given_say_the_dtype(give: Any) -> None:
    layer = Gain(2)
    give(layer, floats(1, 2, dtype=np.float16))
    assert layer(floats(1, 1, dtype=np.float16)).dtype == np.float16


def test_a_parameter_of_another_dtype_is_not_put_into_a_layer_that_has_one() -> None:
    layer = Gain(2, dtype="float16")
    with pytest.raises(TypeError, match=r"`weight` is float32, and the layer is float16; .*to\(dtype='float32'\)"):
        layer.weight = Parameter(floats(1, 2))
    layer.weight = weight = Parameter(floats(3, 4, dtype=np.float16))
    assert layer.weight is weight
    np.testing.assert_array_equal(layer(floats(1, 1, dtype=np.float16)).data, [3, 4])


def test_a_shared_parameter_is_open_until_one_of_its_layers_is_called() -> None:
    one, other = Gain(2), Gain(2)
    other.weight = one.weight
    one(floats(1, 2, dtype=np.float16))
    with pytest.raises(TypeError, match="the parameters are float16 on the CPU, the input is float32"):
        other(floats(1, 2))
    assert other(floats(1, 2, dtype=np.float16)).dtype == np.float16


def test_a_place_can_be_named_when_a_layer_is_made() -> None:
    layer = Gain(2, like="cpu")
    assert layer._place == Place("cpu", 0)
    assert layer(floats(1, 2, dtype=np.float16)).dtype == np.float16
    with pytest.raises(TypeError, match=r"float64.* is no precision"):
        Gain(2, like=np.zeros(1))


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": functools.partial(lambda n, it: pickle.loads(pickle.dumps(it, n)), n) for n in (2, 3, 4, 5)},
}


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_the_state_and_goes_its_own_way(copied: str, called: bool) -> None:
    model = Two()
    model.second.weight = model.first.weight
    x = floats(1, 2, 3, dtype=np.float16)
    if called:
        model(x).backward(np.ones_like(x))
    other = COPIES[copied](model)
    assert other.second.weight is other.first.weight
    assert other.alias is other.first
    weight, its = model.first.weight, other.first.weight
    np.testing.assert_array_equal(its.data, weight.data)
    np.testing.assert_array_equal(its.grad, weight.grad)
    assert other(x).dtype == np.float16
    other(x).backward(np.ones_like(x))
    its.data[...] = 7
    assert not np.any(weight.data == 7)
    with pytest.raises(TypeError, match="parameters are float16"):
        other(floats(1, 2, 3))


@pytest.mark.parametrize("copied", COPIES)
def test_loaded_values_are_kept_by_a_copy_too(copied: str) -> None:
    layer = Gain(2)
    layer.load_state_dict({"weight": floats(1, 2)})
    with pytest.raises(TypeError, match="parameters are float32"):
        COPIES[copied](layer)(floats(1, 2, dtype=np.float16))


def test_what_was_computed_is_not_copied() -> None:
    y = Gain(2)(floats(1, 2))
    for copied in COPIES.values():
        with pytest.raises(TypeError, match="a tensor that Multiply computed cannot be copied; `detach"):
            copied(y)
        np.testing.assert_array_equal(copied(y.detach()).data, y.data)
