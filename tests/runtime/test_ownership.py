"""Incoming gradients are written over where nobody else has them, and only there."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from llmc2py.runtime import Function, Tensor, ops


class Twice(Function):
    """2 x; notes whether the gradient was its own."""

    overwrites = (0,)
    owned: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        gradient = ops.own(ctx, dout)
        Twice.owned.append(gradient is dout)
        gradient *= 2
        return gradient


class Sum(Function):
    """a + b, whose gradient goes to both."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        return a + b

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        gradient = dout + 0
        return gradient, gradient


class Kept(Function):
    """3 x; keeps the gradient that it returns, or a view of it."""

    kept: ClassVar[list[Any]] = []
    keep: ClassVar[Any] = staticmethod(lambda gradient: gradient)

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 3

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        gradient = dout * 3
        Kept.kept.append(Kept.keep(gradient))
        return gradient


@pytest.fixture
def owned() -> list[bool]:
    Twice.owned.clear()
    Kept.kept.clear()
    return Twice.owned


def ones(xp: Any) -> Any:
    return xp.ones(3, np.float32)


def test_what_another_function_has_made_is_written_over(xp: Any, owned: list[bool]) -> None:
    x, given = Tensor(ones(xp)), ones(xp)
    Twice.apply(Twice.apply(Twice.apply(x))).backward(given)
    assert owned == [False, True, True]
    assert x.grad.tolist() == [8, 8, 8]
    assert given.tolist() == [1, 1, 1]


def test_a_gradient_that_goes_to_two_is_written_over_by_the_last(xp: Any, owned: list[bool]) -> None:
    a, b = Tensor(ones(xp)), Tensor(ones(xp))
    Sum.apply(Twice.apply(a), Twice.apply(b)).backward(ones(xp))
    assert owned == [False, True]
    assert a.grad.tolist() == b.grad.tolist() == [2, 2, 2]


def test_a_gradient_that_is_passed_on_twice_to_one_is_summed_first(xp: Any, owned: list[bool]) -> None:
    x = Tensor(ones(xp))
    y = Twice.apply(x)
    Sum.apply(y, y).backward(ones(xp))
    assert owned == [True]
    assert x.grad.tolist() == [4, 4, 4]


@pytest.mark.parametrize("keep", [lambda gradient: gradient, lambda gradient: gradient[1:]], ids=["whole", "view"])
def test_what_somebody_keeps_is_left_as_it_is(xp: Any, owned: list[bool], monkeypatch: Any, keep: Any) -> None:
    monkeypatch.setattr(Kept, "keep", staticmethod(keep))
    x = Tensor(ones(xp))
    Kept.apply(Twice.apply(x)).backward(ones(xp))
    assert owned == [False]
    assert x.grad.tolist() == [6, 6, 6]
    assert set(Kept.kept[0].tolist()) == {3}


def test_a_gradient_of_zeros_for_an_output_without_one_is_owned(xp: Any, owned: list[bool]) -> None:
    class Both(Function):
        overwrites = (1,)

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x + 1, x + 2

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            total = ops.own(ctx, second)
            owned.append(total is second)
            total += first
            return total

    x = Tensor(ones(xp))
    Both.apply(x)[0].backward(ones(xp))
    assert owned == [True]
    assert x.grad.tolist() == [1, 1, 1]


def test_a_backward_pass_called_by_hand_owns_nothing(xp: Any, owned: list[bool]) -> None:
    y, given = Twice.apply(Tensor(ones(xp))), ones(xp)
    assert Twice.backward(y.node, given).tolist() == [2, 2, 2]
    assert owned == [False]
    assert given.tolist() == [1, 1, 1]


@pytest.mark.gpu
def test_the_residual_streams_gradient_is_added_to_where_it_is(generated_package: Any) -> None:
    import importlib

    cupy = pytest.importorskip("cupy")
    layers = importlib.import_module(f"{generated_package.__name__}.layers")
    first, second = layers.FusedResidualLayerNorm(8), layers.FusedResidualLayerNorm(8)
    a, b, c = (Tensor(cupy.random.standard_normal((16, 8), dtype=np.float32)) for _ in range(3))
    residual, _ = second(first(a, b)[0], c)
    copies: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "copy", lambda array, copy=ops.copy: copies.append(array) or copy(array))
        residual.backward(cupy.ones((16, 8), np.float32))
    # Of the gradient that was given; the first layer has its own.
    assert len(copies) == 1
