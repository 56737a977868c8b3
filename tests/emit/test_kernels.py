"""Generated kernels and launchers: defaults of templates, and parameters whose names mean something in Python."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
template <int N, typename T = float, typename U = T, class V = unsigned, typename W = __nv_bfloat16, int M = -0x10u,
          bool B = true, int S = sizeof(float), typename X = float4, unsigned L = 3UL>
__global__ void defaults(float* a) { a[threadIdx.x] = N; }
template <typename T, int = 4>
__global__ void unnamed(T* a) { a[threadIdx.x] = 1; }
__global__ void names(float* self, int cls, int args, int kwargs, int grid, int block, int stream, int plan,
                      int kernel) {
    self[threadIdx.x] = cls + args + kwargs + grid + block + stream + plan + kernel;
}
void launch_names(float* self, int cls, int args, int kwargs, int grid, int block, int stream, int plan, int kernel) {
    names<<<1, 32>>>(self, cls, args, kwargs, grid, block, stream, plan, kernel);
}
"""
NAMES = ["self", "cls", "args", "kwargs", "grid", "block", "stream", "plan_", "kernel"]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "source").mkdir()
    (folder / "source" / "k.cu").write_text(SOURCE)
    generated = generate(folder / "source")
    write_package(folder / "generated_kernels", generated.files)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("generated_kernels.k")
    finally:
        sys.path.remove(str(folder))


def test_defaults_of_templates_are_kept_where_a_call_can_use_them(module: Any) -> None:
    defaults = {parameter.name: parameter.default for parameter in module.defaults.template}
    assert defaults == {
        "N": None, "T": "float", "U": "T", "V": "unsigned int", "W": "bfloat16", "M": -16, "B": True, "S": None,
        "X": None, "L": 3,
    }  # fmt: skip
    assert [parameter.default for parameter in module.unnamed.template] == [None, 4]


def test_parameters_are_given_by_name_whatever_they_are_called(module: Any) -> None:
    values = {"self": np.zeros(32, np.float32), **{name: number for number, name in enumerate(NAMES[1:])}}
    for callee in (module.names[1, 32], module.launch_names):
        (launch,) = callee.plan(**values).operations
        assert launch.args[1:] == (0, 1, 2, 3, 4, 5, 6, 7)
        assert list(inspect.signature(callee).parameters) == NAMES
