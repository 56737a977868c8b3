"""A case of a switch that the preprocessor takes out in some precisions: there the default is for its number."""

from __future__ import annotations

import importlib
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.runtime.dtypes import PRECISIONS

SOURCE = """
#if defined(ENABLE_FP16)
typedef half floatX;
#elif defined(ENABLE_BF16)
typedef __nv_bfloat16 floatX;
#else
typedef float floatX;
#endif
__global__ void one(floatX* out) { out[0] = (floatX)1.0f; }
__global__ void two(floatX* out) { out[0] = (floatX)2.0f; }
void run(int kernel_num, floatX* out) {
    switch (kernel_num) {
#if !defined(ENABLE_FP16) && !defined(ENABLE_BF16)
        case 1: one<<<1, 32>>>(out); break;
#endif
        case 2: two<<<1, 32>>>(out); break;
        default: exit(EXIT_FAILURE);
    }
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "source").mkdir()
    (folder / "source" / "cases.cu").write_text(SOURCE)
    write_package(folder / "cases_package", generate(pathlib.Path(folder / "source")).files)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("cases_package.cases").run
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_case_that_is_there(run, precision):
    [launch] = run.plan(2, np.zeros(1, PRECISIONS[precision])).operations
    assert launch.kernel == "two"


def test_a_case_of_one_precision(run):
    [launch] = run.plan(1, np.zeros(1, np.float32)).operations
    assert launch.kernel == "one"
    for precision in ("float16", "bfloat16"):
        with pytest.raises(ValueError, match="kernel_num is one of 1, 2, but kernel_num = 1"):
            run.plan(1, np.zeros(1, PRECISIONS[precision]))
