"""Tensors, functions and the backward pass; derivatives are exact, so results are compared exactly."""

import operator
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime.autograd import Context, Function, Tensor, no_grad


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


class Square(Function):
    @staticmethod
    def forward(ctx: Context, x: Any) -> Any:
        ctx.save(x)
        return x * x

    @staticmethod
    def backward(ctx: Context, dout: Any) -> Any:
        (x,) = ctx.saved
        return 2 * x * dout


class Add(Function):
    """Hands its incoming gradient on, twice, as it is."""

    @staticmethod
    def forward(ctx: Context, a: Any, b: Any) -> Any:
        return a + b

    @staticmethod
    def backward(ctx: Context, dout: Any) -> Any:
        return dout, dout


class Scale(Function):
    @staticmethod
    def forward(ctx: Context, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x * np.float32(factor)

    @staticmethod
    def backward(ctx: Context, dout: Any) -> Any:
        return dout * np.float32(ctx.factor), None


class Split(Function):
    @staticmethod
    def forward(ctx: Context, x: Any) -> Any:
        return x[:2].copy(), x[2:].copy(), None, np.arange(2)

    @staticmethod
    def backward(ctx: Context, first: Any, second: Any, nothing: Any, indices: Any) -> Any:
        assert nothing is None
        return np.concatenate([first, second])


class Accumulate(Function):
    """A weight gradient as llm.c's kernels leave it: added to what is there."""

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


def tensor(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


def ones(like: Tensor) -> np.ndarray:
    return np.ones_like(like.data)


def test_forward_and_backward() -> None:
    x = tensor(1, 2, 3)
    y = Square.apply(x)
    dy = np.array([1, 10, 100], np.float32)
    y.backward(dy)
    np.testing.assert_array_equal(y.data, [1, 4, 9])
    np.testing.assert_array_equal(x.grad, [2, 40, 600])
    np.testing.assert_array_equal(dy, [1, 10, 100])
    assert (y.shape, y.dtype, y.requires_grad) == ((3,), np.float32, True)
    assert "requires_grad=True" in repr(y)


def test_a_reduction_to_no_axes_is_an_array() -> None:
    class Total(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            ctx.save(x)
            return x.sum()

        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            (x,) = ctx.saved
            return np.full_like(x, dout)

    x = Tensor(np.arange(3, dtype=np.float32))
    total = Total.apply(x)
    assert isinstance(total.data, np.ndarray)
    total.backward()
    np.testing.assert_array_equal(x.grad, [1, 1, 1])


def test_a_tensor_used_several_times_sums_without_touching_a_summand() -> None:
    x = tensor(1, 2)
    y = Add.apply(Add.apply(x, x), Add.apply(x, Square.apply(x)))
    dy = ones(y)
    y.backward(dy)
    np.testing.assert_array_equal(x.grad, [5, 7])
    np.testing.assert_array_equal(dy, [1, 1])


def test_a_gradient_that_is_passed_on_twice_is_not_summed_in_place() -> None:
    x = tensor(3)
    h = Square.apply(x)
    y = Add.apply(Add.apply(h, h), Add.apply(h, h))
    dy = ones(y)
    y.backward(dy)
    np.testing.assert_array_equal(x.grad, [24])
    np.testing.assert_array_equal(dy, [1])


def test_a_diamond_goes_through_its_tip_once() -> None:
    calls = []

    class Tip(Square):
        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            calls.append(dout.copy())
            return Square.backward(ctx, dout)

    x = tensor(3)
    h = Tip.apply(x)
    Add.apply(Add.apply(h, Scale.apply(h, 2.0)), Scale.apply(Scale.apply(h, 3.0), 2.0)).backward()
    np.testing.assert_array_equal(calls, [[9]])
    np.testing.assert_array_equal(x.grad, [54])


def test_a_deep_chain_does_not_recurse() -> None:
    x = tensor(1)
    y = x
    for _ in range(20_000):
        y = Add.apply(y, np.ones(1, np.float32))
    y.backward()
    np.testing.assert_array_equal(x.grad, [1])


def test_leaf_gradients_accumulate_in_an_array_of_their_own() -> None:
    x, z = tensor(1, 2), tensor(3, 4)
    dy = np.ones(2, np.float32)
    Add.apply(x, z).backward(dy)
    first = x.grad
    assert not np.shares_memory(x.grad, dy)
    assert not np.shares_memory(x.grad, z.grad)
    Add.apply(x, z).backward(dy)
    np.testing.assert_array_equal(x.grad, [2, 2])
    np.testing.assert_array_equal(dy, [1, 1])
    assert x.grad is first


def test_a_new_gradient_is_kept_and_one_that_others_hold_is_copied() -> None:
    returned: list[int] = []
    held: list[Any] = []

    class Fresh(Scale):
        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            gradient = dout * 1
            returned.append(gradient.ctypes.data)
            if ctx.factor:
                held.append(gradient)
            view = gradient.reshape(1, -1)[0]
            return (view if ctx.factor == 2 else gradient), None

    x = tensor(1, 2)
    for factor, kept in [(0, True), (1, False), (2, False)]:
        x.grad = None
        Fresh.apply(x, factor).backward(ones(x))
        assert (x.grad.ctypes.data == returned[-1]) == kept
        assert all(not np.shares_memory(x.grad, other) for other in held)


def test_a_leaf_goes_back_to_itself() -> None:
    x = tensor(1, 2)
    dx = np.ones(2, np.float32)
    x.backward(dx)
    x.backward(dx)
    np.testing.assert_array_equal(x.grad, [2, 2])
    np.testing.assert_array_equal(dx, [1, 1])


def test_several_outputs_of_which_some_are_not_used() -> None:
    x = tensor(1, 2, 3, 4)
    first, second, nothing, indices = Split.apply(x)
    assert nothing is None
    assert indices.requires_grad is False
    Square.apply(second).backward(ones(second))
    np.testing.assert_array_equal(x.grad, [0, 0, 6, 8])
    first, second, *_ = Split.apply(x)
    first.backward(ones(first))
    np.testing.assert_array_equal(x.grad, [1, 1, 6, 8])


def test_constants_and_other_values_pass_through() -> None:
    x = tensor(1, 2)
    y = Add.apply(Scale.apply(x, 3.0), np.ones(2, np.float32))
    y.backward(Tensor(ones(y)))
    np.testing.assert_array_equal(x.grad, [3, 3])
    z = Add.apply(np.ones(2, np.float32), Tensor(np.ones(2, np.float32), requires_grad=False))
    assert z.requires_grad is False
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        z.backward(ones(z))


def test_accumulating_kernels_add_to_the_gradient_once() -> None:
    x, weight = tensor(2), tensor(5)
    for total in (2, 4, 6):
        Accumulate.apply(x, weight).backward()
        np.testing.assert_array_equal(weight.grad, [total])
    first = weight.grad
    Add.apply(Accumulate.apply(x, weight), Accumulate.apply(x, weight)).backward()
    np.testing.assert_array_equal(weight.grad, [10])
    assert weight.grad is first
    weight.grad = None
    Accumulate.apply(x, Scale.apply(weight, 1.0)).backward()
    np.testing.assert_array_equal(weight.grad, [2])


def test_a_graph_is_gone_through_once() -> None:
    x = tensor(1)
    h = Square.apply(x)
    y, z = Square.apply(h), Square.apply(h)
    y.backward()
    for again in (y, z):
        with pytest.raises(RuntimeError, match="graph through Square was freed by an earlier backward pass"):
            again.backward()
    np.testing.assert_array_equal(x.grad, [4])


def test_saved_arrays_belong_to_the_call_and_are_freed() -> None:
    x = tensor(1, 2)
    first, second = Square.apply(x), Square.apply(tensor(5, 6))
    assert second.node.saved[0] is not first.node.saved[0]
    first.backward(ones(first))
    np.testing.assert_array_equal(x.grad, [2, 4])
    assert first.node.saved == ()
    assert second.node.saved != ()


def test_without_grad_no_graph_is_built_in_this_thread() -> None:
    x = tensor(1)
    seen = []
    with no_grad():
        y = Square.apply(x)
        other = threading.Thread(target=lambda: seen.append(Square.apply(x).requires_grad))
        other.start()
        other.join()
    assert (y.requires_grad, y.node, seen) == (False, None, [True])
    assert Square.apply(x).requires_grad
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert Square.apply(x).requires_grad


def test_what_needs_a_gradient_is_told_to_the_function() -> None:
    seen = []

    class Look(Add):
        @staticmethod
        def forward(ctx: Context, a: Any, b: Any) -> Any:
            seen.append(ctx.needs_grad)
            return Add.forward(ctx, a, b)

    Look.apply(tensor(1), np.ones(1, np.float32))
    with no_grad():
        Look.apply(tensor(1), tensor(1))
    assert seen == [(True, False), (False, False)]


def test_detach_and_numpy_and_integers() -> None:
    x = tensor(1)
    y = Square.apply(x)
    assert y.detach().data is y.data
    assert y.detach().requires_grad is False
    assert y.numpy() is y.data
    assert Tensor(np.arange(3)).requires_grad is False
    assert Tensor(np.zeros(1, ml_dtypes.bfloat16)).requires_grad is True
    with pytest.raises(TypeError, match="only floating point arrays have gradients, not int64"):
        Tensor(np.arange(3), requires_grad=True)
    with pytest.raises(TypeError, match="`data` is a list"):
        Tensor([1.0])


@pytest.mark.parametrize(
    ("grad", "error", "message"),
    [
        (None, RuntimeError, r"a tensor of shape \(2,\) needs a gradient"),
        (np.ones(3, np.float32), ValueError, r"gradient has shape \(3,\), its array has \(2,\)"),
        (np.ones((2, 1), np.float32), ValueError, "gradient has shape"),
        (np.ones(2), TypeError, "gradient is float64, its array is float32"),
        ([1.0, 1.0], TypeError, "gradient of an array on the CPU is given as a list"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_and_the_right_one_works(grad: Any, error: Any, message: str) -> None:
    x = tensor(1, 2)
    y = Square.apply(x)
    with pytest.raises(error, match=message):
        y.backward(grad)
    y.backward(ones(y))
    np.testing.assert_array_equal(x.grad, [2, 4])


def test_a_missing_backward_is_said_and_leaves_the_gradients_alone() -> None:
    class Forward(Function):
        origin = "llmc/forward.cuh:5"

        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            return x + 1

    x = tensor(1)
    y = Add.apply(Forward.apply(x), np.ones(1, np.float32))
    with pytest.raises(NotImplementedError, match=r"Forward \(llmc/forward.cuh:5\) has no verified backward pass"):
        y.backward()
    assert x.grad is None


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda g: (g,), RuntimeError, "Wrong.backward returned 1 gradients for 2 inputs"),
        (lambda g: (g, None), RuntimeError, "Wrong.backward returned no gradient for input 1, which needs one"),
        (
            lambda g: (g, g[:1]),
            ValueError,
            r"Wrong.backward, input 1: the gradient has shape \(1,\), its array has \(2,\)",
        ),
        (lambda g: (g.astype(np.float64), g), TypeError, "Wrong.backward, input 0: the gradient is float64"),
    ],
)
def test_a_backward_that_returns_nonsense_is_refused(result: Any, error: Any, message: str) -> None:
    class Wrong(Add):
        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            return result(dout)

    a, b = tensor(1, 2), tensor(3, 4)
    for inputs in ((a, b), (Scale.apply(a, 1.0), Scale.apply(b, 1.0))):
        y = Wrong.apply(*inputs)
        with pytest.raises(error, match=message):
            y.backward(ones(y))
    assert a.grad is None


def test_bfloat16_gradients_sum() -> None:
    x = Tensor(np.ones(2, ml_dtypes.bfloat16))
    Add.apply(Add.apply(x, x), x).backward(np.ones(2, ml_dtypes.bfloat16))
    assert x.grad.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(x.grad.astype(np.float32), [3, 3])


@pytest.mark.parametrize(
    ("grad", "error", "message"),
    [
        (np.ones(2, np.float32), ValueError, r"grad: the gradient has shape \(2,\), its array has \(3,\)"),
        (np.ones((1, 3), np.float32), ValueError, r"the gradient has shape \(1, 3\)"),
        (np.ones(3, np.int32), TypeError, "grad: the gradient is int32; a gradient is floating point"),
        ([1.0, 1.0, 1.0], TypeError, "`grad` is a list"),
        (1.0, TypeError, "`grad` is a float"),
    ],
)
def test_a_gradient_that_is_set_is_looked_at(grad: Any, error: Any, message: str) -> None:
    leaf = Tensor(floats(1, 2, 3))
    with pytest.raises(error, match=message):
        leaf.grad = grad
    assert leaf.grad is None
    given = floats(4, 5, 6)
    leaf.grad = given
    assert leaf.grad is given
    leaf.grad = Tensor(given)
    assert leaf.grad is given
    # An optimiser takes gradients of another precision.
    leaf.grad = given.astype(np.float16)
    assert leaf.grad.dtype == np.float16
    leaf.grad = None
    assert leaf.grad is None


def test_a_tensor_without_gradients_is_shared_with_other_libraries() -> None:
    tensor = Tensor(floats(1, 2, 3), requires_grad=False)
    for shared in (np.asarray(tensor), np.from_dlpack(tensor), Tensor(tensor).data):
        assert type(shared) is np.ndarray
        assert np.shares_memory(shared, tensor.data)
    np.testing.assert_allclose(tensor, [1, 2, 3])
    assert not np.shares_memory(np.array(tensor), tensor.data)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="float32 cannot become float64 without a copy"):
        tensor.__array__(np.float64, copy=False)
    assert not hasattr(tensor, "__cuda_array_interface__")


def test_a_tensor_whose_gradient_would_be_lost_is_not_shared() -> None:
    tensor = Tensor(floats(1, 2, 3))
    for share in (np.asarray, np.from_dlpack, Tensor, lambda tensor: np.testing.assert_allclose(tensor, [1, 2, 3])):
        with pytest.raises(
            TypeError, match=r"requires a gradient, which would be lost; pass `x.detach\(\)` or `x.data`"
        ):
            share(tensor)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("other", [floats(1, 2, 3), 2.0, np.float32(2), Tensor(floats(1, 2, 3))], ids=repr)
def test_arithmetic_is_refused_on_both_sides(other: Any, requires_grad: bool) -> None:
    tensor = Tensor(floats(1, 2, 3), requires_grad=requires_grad)
    for sign in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul):
        for left, right in ((tensor, other), (other, tensor)):
            with pytest.raises(TypeError, match="there is no arithmetic on tensors, as here with a"):
                sign(left, right)
    with pytest.raises(TypeError, match="Tensor"):
        np.add(other, tensor)


@pytest.mark.gpu
def test_a_tensor_on_cuda_is_shared_with_other_libraries() -> None:
    cupy = pytest.importorskip("cupy")
    data = cupy.arange(3, dtype=cupy.float32)
    tensor = Tensor(data, requires_grad=False)
    for shared in (cupy.asarray(tensor), cupy.from_dlpack(tensor)):
        assert shared.data.ptr == data.data.ptr
    with pytest.raises(TypeError, match=r"the tensor is on cuda:0; `numpy\(\)` copies it"):
        np.asarray(tensor)
    with pytest.raises(TypeError, match="there is no arithmetic on tensors"):
        data + tensor
    with pytest.raises(TypeError, match="requires a gradient"):
        _ = Tensor(data).__cuda_array_interface__
