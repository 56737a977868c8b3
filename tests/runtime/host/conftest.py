"""Running small kernels on the CPU backend."""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.runtime.source import KernelRequest, KernelSource

Dims = int | tuple[int, ...]

_SCALARS: dict[type, Any] = {int: ctypes.c_int, float: ctypes.c_float}


def dim3(dims: Dims) -> tuple[int, int, int]:
    given = (dims,) if isinstance(dims, int) else dims
    return (*given, 1, 1)[:3]  # type: ignore[return-value]


def argument_block(values: tuple[Any, ...]) -> ctypes.Array[ctypes.c_void_p]:
    """Return pointers to the values as cuLaunchKernel takes them; the block keeps the values alive."""
    held = [
        ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else _SCALARS[type(value)](value)
        for value in values
    ]
    block = (ctypes.c_void_p * len(held))(*[ctypes.addressof(value) for value in held])
    block.held = held  # type: ignore[attr-defined]
    return block


class Runner:
    """Compiles kernels from text and launches them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def request(
        self, text: str, name: str, parameters: tuple[str, ...] = (), precision: str = "float32"
    ) -> KernelRequest:
        path = self.folder / "k.cu"
        path.write_text(text)
        source = KernelSource(path)
        assert source.text == text  # read now: the next kernel of this test takes the same path
        return KernelRequest(source, name, "SLICE_k", precision, parameters)

    def __call__(
        self,
        text: str,
        name: str,
        *values: Any,
        grid: Dims = 1,
        block: Dims = 1,
        shared: int = 0,
        precision: str = "float32",
        parameters: tuple[str, ...] = (),
    ) -> None:
        kernel = host.kernel(self.request(text, name, parameters, precision), 0)
        arguments = argument_block(values)
        kernel.launch(dim3(grid), dim3(block), shared, 0, ctypes.addressof(arguments))

    def checked(
        self,
        text: str,
        name: str,
        parameters: tuple[str, ...],
        names: tuple[str, ...],
        *values: Any,
        **configuration: Any,
    ) -> list[str]:
        """Run under the checker, which knows the arrays by ``names``; return the findings."""
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        with host.checking(raise_findings=False) as report:
            host.register_buffers(
                [(label, array.ctypes.data, array.nbytes) for label, array in zip(names, arrays, strict=True)]
            )
            self(text, name, *values, parameters=parameters, **configuration)
        return report.findings


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(20)
