"""Requests for small kernels, a cache folder of the test's own, and a visible skip where there is no GPU."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable

import pytest

from llmc2py.runtime.source import KernelRequest, KernelSource

MakeRequest = Callable[..., KernelRequest]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _gpu_or_skip(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") is None:
        return
    runtime = pytest.importorskip("cupy_backends.cuda.api.runtime", reason="no CuPy")
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        pytest.skip(f"no CUDA device: {error}")
    if count == 0:
        pytest.skip("no CUDA device")


@pytest.fixture
def make_request(tmp_path: pathlib.Path) -> MakeRequest:
    """Return a function that writes a ``.cu`` file and returns the request to compile one kernel of it."""

    def make(text: str, name: str = "k", precision: str = "float32", file: str = "small.cu") -> KernelRequest:
        path = tmp_path / file
        path.write_text(text, encoding="utf-8")
        return KernelRequest(KernelSource(path), name, "SLICE_k", precision, ("float*",))

    return make


@pytest.fixture
def nvrtc() -> None:
    """Skip, visibly, where CuPy or NVRTC is not installed."""
    try:
        importlib.import_module("cupy_backends.cuda.libs.nvrtc").getVersion()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
