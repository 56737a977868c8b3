"""Macros whose value the precision decides: they stay in the text, and host code knows their values."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py.frontend.reader import read_tree
from llmc2py.ir.expressions import Name, Number, PrecisionChoice
from llmc2py.ir.library import SourceFile

HEADER = """
#pragma once
#if defined(ENABLE_FP32)
typedef float floatX;
#define ELEMENT CUDA_R_32F
#define STEP 4
#elif defined(ENABLE_FP16)
typedef half floatX;
#define ELEMENT CUDA_R_16F
#define STEP 8
#else
typedef __nv_bfloat16 floatX;
#define ELEMENT CUDA_R_16BF
#define STEP 8
#endif
#define PLAIN 32
#if defined(ENABLE_BF16)
#define SAME 7
#else
#define SAME 7
#endif
"""

SOURCE = """
#include "types.h"
__global__ void fill(floatX* x, int n) {
    for (int i = threadIdx.x * STEP; i < n; i += STEP * PLAIN) for (int k = 0; k < STEP; ++k) x[i + k] = (floatX)SAME;
}
void launch(floatX* x, int n) { fill<<<1, PLAIN>>>(x, n); }
"""


def read(folder: pathlib.Path, **sources: str) -> dict[str, SourceFile]:
    (folder / "types.h").write_text(HEADER)
    for name, text in sources.items():
        (folder / f"{name}.cu").write_text(text)
    library = read_tree(folder)
    assert library.diagnostics == ()
    return {file.path: file for file in library.files}


# The second file takes the header from the cache of the first one.
@pytest.mark.parametrize("name", ["a.cu", "b.cu"])
def test_each_precision_has_its_value(tmp_path: pathlib.Path, name: str) -> None:
    constants = read(tmp_path, a=SOURCE, b=SOURCE)[name].scope.constants
    element, step = constants["ELEMENT"], constants["STEP"]
    assert isinstance(element, PrecisionChoice)
    values = {precision: value.name for precision, value in element.values if isinstance(value, Name)}
    assert values == {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
    assert isinstance(step, PrecisionChoice)
    numbers = {precision: value.value for precision, value in step.values if isinstance(value, Number)}
    assert numbers == {"float32": 4, "float16": 8, "bfloat16": 8}


def test_slices_keep_the_definitions_and_expand_the_others(tmp_path: pathlib.Path) -> None:
    kernel = read(tmp_path, a=SOURCE)["a.cu"].kernel("fill")
    assert kernel is not None
    assert kernel.slice is not None
    text = {item.text.strip(): item.conditions for item in kernel.slice.items}
    assert "defined(ENABLE_FP32)" in text["#define STEP 4"]
    body = next(one for one in text if "fill" in one)
    assert "i += STEP * 32" in body
    assert "(floatX)7" in body


def test_a_value_that_is_no_expression_is_left_out(tmp_path: pathlib.Path) -> None:
    odd = SOURCE.replace(
        '#include "types.h"',
        '#include "types.h"\n#if defined(ENABLE_FP32)\n#define ODD {\n#else\n#define ODD }\n#endif',
    )
    assert "ODD" not in read(tmp_path, a=odd)["a.cu"].scope.constants
