"""Launchers that print and exit: the error says what they wanted instead."""

import importlib
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
__global__ void plus(float* x, float by, int n) { if (threadIdx.x < n) x[threadIdx.x] += by; }
void add(float* x, const float* y, float by, int n, int mode) {
    if (n % 4) { printf("n is odd\\n"); exit(1); }
    if (n > 32 || by < 0.0f) { printf("too many\\n"); exit(EXIT_FAILURE); }
    if (!x) exit(1);
    if (y != NULL && ((uintptr_t)y & 7) != 0) abort();
    if ((uintptr_t)x % 16 != 0) { exit(1); }
    if (mode == 1) plus<<<1, 32>>>(x, by, n);
    else if (mode == 2) { plus<<<1, 32>>>(x, -by, n); }
    else { printf("mode %d\\n", mode); std::exit(1); }
}
void counts(float* x, int n) {
    if (n < 3) { n = 3; exit(1); }
    plus<<<1, 32>>>(x, 1.0f, n);
}
"""


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: pathlib.Path = tmp_path_factory.mktemp("refusals")
    (folder / "source").mkdir()
    (folder / "source" / "refusals.cu").write_text(SOURCE)
    generated = generate(folder / "source")
    assert generated.plan.not_lowered == ()
    write_package(folder / "refusals_package", generated.files)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("refusals_package.refusals")
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize(
    ("by", "n", "mode", "message"),
    [
        (1.0, 6, 1, "add needs n % 4 == 0, but n = 6 ("),
        (1.0, 64, 1, "add needs n <= 32, but n = 64 ("),
        (-1.0, 4, 1, "add needs by >= 0.0, but by = -1.0 ("),
        (1.0, 4, 3, "add needs mode == 1 || mode == 2, but mode = 3 ("),
    ],
)
def test_what_was_wanted_is_said(launchers: Any, by: float, n: int, mode: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        launchers.add(np.zeros(64, np.float32), np.zeros(4, np.float32), by, n, mode)


def test_a_part_of_an_array_that_is_not_aligned_is_named(launchers: Any) -> None:
    x = np.zeros(64, np.float32)
    launchers.add(x, x, 1.0, 4, 2)
    np.testing.assert_array_equal(x[:5], [-1, -1, -1, -1, 0])
    text = pathlib.Path(launchers.__file__).read_text()
    assert 'plan.require(plan.misalignment(x, 16) == 0, "x aligned to 16 bytes")' in text


def test_not_a_number_is_no_reason_where_the_source_has_none(launchers: Any) -> None:
    x = np.zeros(64, np.float32)
    launchers.add(x, x, float("nan"), 4, 1)
    assert np.isnan(x[:4]).all()


def test_a_branch_that_does_more_than_print_is_named_by_its_exit(launchers: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("counts needs arguments with which exit() is not called (")):
        launchers.counts(np.zeros(4, np.float32), 2)
