"""Tag arguments (``std::bool_constant``), default arguments and null pointers, from source to a call."""

import importlib
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

SOURCE = """
#include <type_traits>
constexpr std::bool_constant<true> Yes;
template <typename T, bool Twice>
__global__ void scaled(T* out, const float* x, int n, std::bool_constant<Twice>) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { if constexpr (Twice) out[i] = (T)(2 * x[i]); else out[i] = (T)x[i]; }
}
void run(float* out, const float* x, int n, bool twice, const float* more = nullptr, int count = 1) {
    if (twice) scaled<<<(n + 255) / 256, 256>>>(out, x, n, Yes);
    else scaled<<<(n + 255) / 256, 256>>>(out, x, n, std::bool_constant<false>{});
    if (more != NULL) scaled<<<1, 32>>>(out, more, count, Yes);
}
template <bool Twice>
void outer(float* out, const float* x, int n, std::bool_constant<Twice> twice, cudaStream_t stream) {
    scaled<<<(n + 255) / 256, 256, 0, stream>>>(out, x, n, twice);
}
"""


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tags")
    (folder / "source").mkdir()
    (folder / "source" / "scaled.cu").write_text(SOURCE)
    generated = generate(pathlib.Path(folder / "source"))
    assert generated.diagnostics == ()
    write_package(folder / "tags_package", generated.files)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("tags_package.scaled")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(5, np.float32), np.arange(5, dtype=np.float32)


@pytest.mark.parametrize(("twice", "factor"), [(True, 2), (False, 1)])
def test_a_tag_chooses_the_instantiation(scaled: Any, arrays: Any, twice: bool, factor: int) -> None:
    out, x = arrays
    scaled.run(out, x, 5, twice)
    assert out.tolist() == (factor * x).tolist()
    (launch,) = scaled.run.plan(out, x, 5, twice).operations
    assert launch.template == ("float", twice)


def test_a_launcher_passes_its_own_tag_on(scaled: Any, arrays: Any) -> None:
    out, x = arrays
    scaled.outer(out, x, 5, True)
    assert out.tolist() == (2 * x).tolist()


def test_a_kernel_takes_the_tag_as_an_argument(scaled: Any, arrays: Any) -> None:
    out, x = arrays
    scaled.scaled[1, 32](out, x, 5, True)
    assert out.tolist() == (2 * x).tolist()
    with pytest.raises(TypeError, match="Twice"):
        scaled.scaled[1, 32](out, x, 5, "yes")


def test_defaults_of_the_source_are_defaults_of_python(scaled: Any, arrays: Any) -> None:
    out, x = arrays
    scaled.run(out, x, 5, False, x + 10)
    assert out.tolist() == [20, 1, 2, 3, 4]
    scaled.run(out, x, 5, False, x + 10, 2)
    assert out.tolist() == [20, 22, 2, 3, 4]


def test_only_pointers_that_the_source_compares_with_null_may_be_left_out(scaled: Any, arrays: Any) -> None:
    out, x = arrays
    scaled.run(out, x, 5, False, None)
    with pytest.raises(TypeError, match="`x` is None"):
        scaled.run(out, None, 5, False)
