"""Where CUDA cannot be used, every way to it says so in the same words, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from generated.layers import GeLU, LayerNorm
from llmc2py import nn
from llmc2py.runtime import ToolMissingError
from llmc2py.runtime.cuda import device, graphs
from llmc2py.runtime.interop import as_array


class OnCuda:
    """An array of another library, in the memory of the first device."""

    shape, dtype = (3,), np.dtype(np.float32)

    def __dlpack__(self, **asked: Any) -> Any:
        raise AssertionError("nobody can look at this memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Interface:
    """The same by the CUDA Array Interface."""

    __cuda_array_interface__ = {"data": (4096, False), "shape": (3,), "typestr": "<f4", "version": 3}  # noqa: RUF012


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = LayerNorm(3)


DOORS: dict[str, Callable[[], Any]] = {
    "a layer": lambda: LayerNorm(3).to("cuda"),
    "a layer without parameters": lambda: GeLU().to("cuda:0"),
    "a module": lambda: Model().to("cuda", dtype="float16"),
    "a graph": lambda: graphs.capture(lambda: None),
    "dlpack": lambda: as_array(OnCuda(), "x", "f"),
    "interface": lambda: as_array(Interface(), "x", "f"),
    "a call": lambda: GeLU()(OnCuda()),
    "like": lambda: LayerNorm(3, like=OnCuda()),
}


@pytest.mark.parametrize("door", DOORS)
def test_without_a_driver_the_error_says_what_is_needed(monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    def refuse() -> Any:
        raise ToolMissingError("CUDA cannot be used here: no driver. NumPy arrays run on the CPU")

    monkeypatch.setattr(device, "_cuda", refuse)
    with pytest.raises(ToolMissingError, match=r"CUDA cannot be used here: .* NumPy arrays run on the CPU"):
        DOORS[door]()


def test_an_array_of_another_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise ToolMissingError("CuPy cannot be imported")

    monkeypatch.setattr(device, "_cuda", refuse)
    with pytest.raises(ToolMissingError, match=r"f: `x` is a \w+\.OnCuda on CUDA, and CuPy cannot be imported"):
        as_array(OnCuda(), "x", "f")


def test_a_device_that_is_not_there_is_named_and_nothing_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(cupy=None, devices=1)
    monkeypatch.setattr(device, "_cuda", lambda: cuda)
    model = Model()
    with pytest.raises(ValueError, match="there is no cuda:1 here; there is cuda:0 alone"):
        model.to("cuda:1", dtype="float16")
    cuda.devices = 4
    with pytest.raises(ValueError, match="there is no cuda:4 here; there is cuda:0 to cuda:3"):
        model.to("cuda:4")
    assert model.norm.weight.dtype == np.float32
    model.norm(np.ones((2, 3), np.float32))
