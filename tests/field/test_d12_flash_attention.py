"""CASES D12: file-scope ``constexpr``, a launch in another file, and a running maximum that starts above the scores.

Where every score of a row lies far below the maximum's start, the kernel divides nought by nought. That is what the
source says; it is shown, not masked.
"""

from __future__ import annotations

import numpy as np
import pytest

KERNEL = """\
constexpr int width = 8;
constexpr int tile_rows = 4;
constexpr int tile_columns = 4;
constexpr int rows_a_thread = tile_rows / 4;

extern "C" __global__ void attend(
    float* out, float* lse, float* Q, float* K, float* V, float scale, int n, int tiles
) {
    __shared__ float k[tile_columns][width], v[tile_columns][width];
    int row = blockIdx.x * tile_rows + threadIdx.x;
    float sum[width] = {}, largest[rows_a_thread], weight = 0.0f;
    largest[0] = 1e-30f;
    for (int tile = 0; tile < tiles; ++tile) {
        for (int i = threadIdx.x; i < tile_columns * width; i += blockDim.x) {
            k[i / width][i % width] = K[tile * tile_columns * width + i];
            v[i / width][i % width] = V[tile * tile_columns * width + i];
        }
        __syncthreads();
        float score[tile_columns], before = largest[0];
        for (int c = 0; c < tile_columns; ++c) {
            score[c] = 0.0f;
            for (int d = 0; d < width; ++d) score[c] += Q[row * width + d] * k[c][d];
            score[c] *= scale;
            largest[0] = fmaxf(largest[0], score[c]);
        }
        float kept = expf(before - largest[0]);
        weight *= kept;
        for (int d = 0; d < width; ++d) sum[d] *= kept;
        for (int c = 0; c < tile_columns; ++c) {
            float p = expf(score[c] - largest[0]);
            weight += p;
            for (int d = 0; d < width; ++d) sum[d] += p * v[c][d];
        }
        __syncthreads();
    }
    for (int d = 0; d < width; ++d) out[row * width + d] = sum[d] / weight;
    lse[row] = largest[0] + logf(weight);
}
"""
LAUNCH = """\
extern "C" __global__ void attend(
    float* out, float* lse, float* Q, float* K, float* V, float scale, int n, int tiles
);
inline unsigned int tiles_of(unsigned int a, unsigned int b) { return (a + b - 1) / b; }
void attention(float* out, float* lse, float* Q, float* K, float* V, int n) {
    const int d = 8, rows = 4;
    attend<<<tiles_of(n, rows), rows>>>(out, lse, Q, K, V, 1.0f / sqrtf((float)d), n, tiles_of(n, 4));
}
"""
ROWS = 12


@pytest.fixture
def built(case):
    return case({"attention.cu": KERNEL, "host/launch.cu": LAUNCH})


def attention_of(q, k, v):
    scores = q.astype("f8") @ k.T.astype("f8") / np.sqrt(8)
    largest = scores.max(axis=1, keepdims=True)
    p = np.exp(scores - largest)
    return p @ v / p.sum(axis=1, keepdims=True), largest[:, 0] + np.log(p.sum(axis=1))


def run(built, xp, q, k, v):
    out, lse = xp.full((ROWS, 8), np.inf, "f4"), xp.full(ROWS, np.inf, "f4")
    built["host.launch"].attention(out, lse, xp.asarray(q), xp.asarray(k), xp.asarray(v), ROWS)
    return out, lse


def test_a_launch_in_another_file_finds_its_kernel(built, xp):
    assert built.diagnostics == []
    kernel = built["attention"].attend
    assert [one.intent for one in kernel.params] == ["out", "out", "in", "in", "in", None, None, None]
    random = np.random.default_rng(12)
    q, k, v = (random.normal(size=(ROWS, 8)).astype("f4") for _ in range(3))
    out, lse = run(built, xp, q, k, v)
    expected, expected_lse = attention_of(q, k, v)
    xp.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    xp.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-6)


def test_rows_of_very_negative_scores_are_nan_and_shown(built, xp):
    random = np.random.default_rng(13)
    k = np.abs(random.normal(size=(ROWS, 8))).astype("f4") + 1
    q = np.abs(random.normal(size=(ROWS, 8))).astype("f4")
    v = random.normal(size=(ROWS, 8)).astype("f4")
    q[3:5] = -100  # scores of some -280 and less: expf() of them is 0
    out, lse = run(built, xp, q, k, v)
    expected, _ = attention_of(q, k, v)
    assert np.isfinite(expected).all()
    is_nan = xp.isnan(out).all(axis=1)
    assert [int(row) for row in xp.nonzero(is_nan)[0]] == [3, 4]
    assert [float(one) for one in lse[3:5]] == [-np.inf, -np.inf]
    xp.testing.assert_allclose(out[~is_nan], expected[[0, 1, 2, *range(5, ROWS)]], rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        xp.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_a_kernel_of_two_files_is_not_guessed(case):
    built = case({"a.cu": KERNEL, "b.cu": KERNEL, "launch.cu": LAUNCH})
    assert "launch.py" not in built.files
    assert {"a.py", "b.py"} <= built.files.keys()
