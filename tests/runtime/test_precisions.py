"""Kernels that the source does not have in every precision: refused by name, before a compiler sees them."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.runtime import PrecisionError

SOURCE = """\
#if defined(ENABLE_FP32)
typedef float floatX;
#elif defined(ENABLE_FP16)
typedef half floatX;
#else
typedef __nv_bfloat16 floatX;
#endif
#if !defined(ENABLE_FP32)
__global__ void widen(float* out, const floatX* x, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = (float)x[threadIdx.x];
}
#endif
#if defined(ENABLE_BF16)
__global__ void size_of(int* out) { out[0] = sizeof(floatX); }
#endif
__global__ void everywhere(floatX* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = (floatX)1.0f; }
void run(float* out, floatX* x, int n) { everywhere<<<1, 32>>>(x, n); widen<<<1, 32>>>(out, x, n); }
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("precisions")
    (folder / "source").mkdir()
    (folder / "source" / "some.cu").write_text(SOURCE)
    generated = generate(pathlib.Path(folder / "source"))
    assert generated.diagnostics == ()
    write_package(folder / "precisions_package", generated.files)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module("precisions_package.some")


def test_a_kernel_knows_its_precisions(module: Any) -> None:
    assert module.widen.precisions == ("float16", "bfloat16")
    assert module.size_of.precisions == ("bfloat16",)
    assert module.everywhere.precisions == ("float32", "float16", "bfloat16")


def test_a_precision_that_is_not_there_is_refused_by_name(module: Any) -> None:
    out, x = np.full(3, 7, np.float32), np.zeros(3, np.float32)
    said = r"widen is not there in float32: the source \(some.cu:9\) has it in float16, bfloat16 alone"
    with pytest.raises(PrecisionError, match=said):
        module.widen[1, 32](out, x, 3)
    with pytest.raises(PrecisionError, match=said):
        module.run(out, x, 3)
    assert out.tolist() == [7.0] * 3
    assert not x.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_others_run(module: Any, dtype: Any) -> None:
    out, x = np.zeros(3, np.float32), np.zeros(3, dtype)
    module.run(out, x, 3)
    assert out.tolist() == [1.0] * 3


def test_a_kernel_whose_arrays_do_not_decide_is_told_the_precision(module: Any) -> None:
    out = np.zeros(1, np.int32)
    with pytest.raises(PrecisionError, match=r"size_of is not there in float32: .* bfloat16 alone; .*`precision=`"):
        module.size_of[1, 1](out)
    module.size_of.instantiate(precision="bfloat16")[1, 1](out)
    assert out[0] == 2
