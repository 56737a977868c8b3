"""What a call costs in Python. The bounds are generous, for busy machines; the numbers aimed at are in the comments."""

import pathlib
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime.autograd import Context, Function, Tensor
from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.padding import elementwise
from llmc2py.runtime.params import Param
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

OUT, INP = Param("out", "floatX*", intent="out", align=16), Param("inp", "const floatX*", intent="in", align=16)
KERNEL = Kernel(KernelSource(pathlib.Path("gelu.cu")), "gelu_forward_kernel2", [OUT, INP])


class Silent:
    """A compiled kernel whose launch costs nothing."""

    static_shared_bytes = 0
    max_threads_per_block = 1024

    def launch(self, *arguments: Any) -> None:
        """Run nothing."""


@pytest.fixture
def gelu_forward(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fake, "kernel", lambda request, device: Silent())

    @launcher([OUT, INP, Param("N", "int")])
    def gelu_forward(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
        plan.launch(KERNEL, ceil_div(N, 512), 512, 0, out, inp)

    return gelu_forward


def microseconds(function: Callable[[], Any]) -> float:
    function()
    return min(timeit.repeat(function, number=2000, repeat=7)) / 2000 * 1e6


def test_a_prepared_launcher_costs_a_few_microseconds(gelu_forward: Any) -> None:
    out, inp = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    assert microseconds(lambda: gelu_forward(out, inp, 4096)) < 80  # 4
    assert microseconds(lambda: elementwise(gelu_forward, (out, inp), 4096, 512)) < 90  # 5


def test_a_configured_kernel_costs_a_few_microseconds(gelu_forward: Any) -> None:
    out, inp = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    assert microseconds(lambda: KERNEL[8, 512](out, inp)) < 80  # 4


def test_the_engine_costs_a_few_microseconds_for_one_operation() -> None:
    array = np.zeros(4, np.float32)

    class Nothing(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            ctx.save(x)
            return array

        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            return array

    x = Tensor(array)
    x.grad = array

    def step() -> None:
        Nothing.apply(x).backward(array)

    assert microseconds(step) < 150  # 10
