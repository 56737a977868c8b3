"""Packages for other frameworks, and these frameworks or their stand-ins."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from tests.adapters import tricycle_standin as tricycle
from tests.adapters.tricycle_runs import PACKAGE, RELU_PACKAGE
from tests.field.test_d10_tricycle import ENTRY, RELU

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# --- Tricycle


@contextlib.contextmanager
def standing_in(folder: pathlib.Path) -> Iterator[None]:
    """Let ``import tricycle`` find the stand-in, and packages in a folder; what is imported meanwhile is forgotten."""
    present = tricycle.modules()
    assert not present.keys() & sys.modules.keys(), "another Tricycle has been imported"
    before = set(sys.modules)
    sys.modules.update(present)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        adapters = {"llmc2py.adapters.tricycle"}
        for name in [name for name in sys.modules if name not in before]:
            if name in present or name in adapters or name.startswith(("package_", "field_")):
                del sys.modules[name]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a package of the vendored tree, and one of Tricycle's own ReLU kernels."""
    folder = tmp_path_factory.mktemp("tricycle")
    write_package(folder / PACKAGE, generate(ROOT / "vendor" / "llm.c", targets=["tricycle"]).files)
    source = folder / "source"
    source.mkdir()
    (source / "relu.cu").write_text(RELU, encoding="utf-8")
    (source / "relu.toml").write_text(ENTRY, encoding="utf-8")
    write_package(folder / RELU_PACKAGE, generate(source, targets=["tricycle"]).files)
    return folder


@pytest.fixture(scope="module")
def adapter(folder: pathlib.Path) -> Iterator[types.ModuleType]:
    with standing_in(folder):
        yield importlib.import_module("llmc2py.adapters.tricycle")


@pytest.fixture(scope="module")
def made(adapter: types.ModuleType) -> types.ModuleType:
    """The module of the generated layers."""
    return importlib.import_module(f"{PACKAGE}.tricycle_layers")


# --- PyTorch


def _need_cuda() -> None:
    if not importlib.import_module("torch").cuda.is_available():
        pytest.skip("this PyTorch knows no CUDA")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A folder with generated packages, on the path."""
    folder = tmp_path_factory.mktemp("packages")
    for name, source in (("for_torch", "vendor/llm.c"), ("relu_for_torch", "examples/relu")):
        write_package(folder / name, generate(ROOT / source, targets=["torch"]).files)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def package(packages: pathlib.Path) -> types.ModuleType:
    """The module of layers for PyTorch, generated from the vendored tree."""
    return importlib.import_module("for_torch.torch_layers")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device that tensors are on."""
    if request.param == "cuda":
        _need_cuda()
    return str(request.param)


@pytest.fixture
def cuda() -> Any:
    """CuPy, beside a PyTorch that knows CUDA."""
    _need_cuda()
    return importlib.import_module("cupy")
