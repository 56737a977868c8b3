"""CASES C5: attributes between ``struct`` and its name, and between ``__shared__`` and its type."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import cuda

SOURCE = """\
struct __align__(8) S { float a, b; };
template <typename T> struct alignas(16) Four { T values[4]; };
__global__ void mirror(float* out, const float* x, int n) {
    extern __shared__ %s float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    S pair = {s[threadIdx.x], s[n - 1 - threadIdx.x]};
    out[threadIdx.x] = pair.a + 2 * pair.b + 1000 * alignof(S);
}
__global__ void %s mirror4(float* out, const float* x, int n) {
    __shared__ %s Four<float> s[32];
    int i = threadIdx.x;
    for (int j = 0; j < 4; ++j) s[i].values[j] = x[4 * i + j];
    __syncthreads();
    for (int j = 0; j < 4; ++j) out[4 * i + j] = s[n - 1 - i].values[3 - j];
}
void run(float* out, const float* x, int n) { mirror<<<1, n, n * sizeof(float)>>>(out, x, n); }
"""


def dynamic_of(alignment):
    """No CUDA compiler takes ``extern __shared__ alignas(expression)``."""
    return "alignas(16)" if "sizeof" in alignment else alignment


@pytest.mark.parametrize(
    ("bounds", "alignment"),
    [("__launch_bounds__(32)", "__align__(16)"), ("__launch_bounds__(32, 2)", "alignas(16)"), ("", "")],
)
def test_kernels_and_structs_are_kept(case, xp, bounds, alignment):
    built = case({"mirror.cu": SOURCE % (dynamic_of(alignment), bounds, alignment)})
    assert built.diagnostics == []
    assert "struct __align__(8) S { float a, b; };" in built.files["mirror.cu"]
    module = built["mirror"]
    x = xp.arange(24, dtype=np.float32)
    out = xp.full(24, np.nan, np.float32)
    module.run(out, x, 24)
    xp.testing.assert_array_equal(out, x + 2 * x[::-1] + 8000)
    module.mirror4[1, 6](out, x, 6)
    xp.testing.assert_array_equal(out, x[::-1])


def test_arrays_of_structs_are_left_out_with_a_word(case):
    built = case({"mirror.cu": SOURCE % ("", "", "") + "__global__ void of_structs(S* out) { out[0].a = 1; }\n"})
    (said,) = built.diagnostics
    assert said.startswith("mirror.cu:18:")
    assert "of_structs" in said
    assert "S*" in said
    assert hasattr(built["mirror"], "run")


@pytest.mark.parametrize("alignment", ["__align__(16)", "alignas(16)", "alignas(sizeof(float) * 4)"])
def test_nvrtc_takes_every_spelling(case, alignment):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    module = case({"mirror.cu": SOURCE % (dynamic_of(alignment), "", alignment)})["mirror"]
    array = np.zeros(1, np.float32)
    for kernel in (module.mirror, module.mirror4):
        (launch,) = kernel[1, 1].plan(array, array, 1).operations
        assert kernel.name in cuda.compile_cubin(launch.instance.request, "sm_90").lowered_name
