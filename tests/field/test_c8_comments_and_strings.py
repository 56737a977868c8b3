"""CASES C8: spaced-out launch brackets are a launch; comments and raw strings hold none, and no kernels."""

from __future__ import annotations

import numpy as np

SOURCE = r"""
const char* text = R"code(
__global__ void fake(float* a) { a[0] = 1; }
void fake_launch(float* a) { fake<<<1, 1>>>(a); }
)code";
const char* more = "__global__ void fake2(float* a) { fake2<<<1,1>>>(a); }";
__global__ void k(float* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += 1; // __global__ void dead2(float* a) {}
}
// __global__ void dead(float* a) { a[0] = 3; }
/* __global__ void dead(float* a) { a[0] = 4; } */
void launch(float* a, int n) {
    const int b = (n + 255) / 256;
    k << <b, 256 >> > (a, n); // dead<<<1, 1>>>(a)
    /* dead<<<1, 1>>>(a); */
}
"""


def test_one_launch_and_no_ghosts(case, xp):
    built = case({"k.cu": SOURCE})
    assert built.diagnostics == []
    assert built["k"].__all__ == ["k", "launch"]
    for ghost in ("fake", "dead"):
        assert ghost not in built.files["k.py"]
        assert ghost not in built.files["k.cu"].replace("// __global__ void dead2(float* a) {}", "")
    a = xp.arange(300, dtype=np.float32)
    (launch,) = built["k"].launch.plan(a, 300).operations
    assert (launch.kernel, launch.grid, launch.block) == ("k", (2, 1, 1), (256, 1, 1))
    built["k"].launch(a, 300)
    xp.testing.assert_array_equal(a, xp.arange(1, 301, dtype=np.float32))


def test_a_dead_launch_inside_the_arguments(case, xp):
    text = SOURCE.replace("(a, n); //", "(a /* , dead<<<2, 2>>>(a) */, // k<<<9, 9>>>\n n); //")
    built = case({"k.cu": text})
    a = xp.zeros(300, np.float32)
    assert [operation.grid for operation in built["k"].launch.plan(a, 300).operations] == [(2, 1, 1)]
    built["k"].launch(a, 300)
    xp.testing.assert_array_equal(a, xp.ones(300, np.float32))
