"""CASES C10: a generic lambda called with std::integral_constant for each block size."""

from __future__ import annotations

import re

import numpy as np
import pytest

SOURCE = """\
#include <type_traits>
template <int Size>
__global__ void block_sum(float* out, const float* x, int n) {
    __shared__ float s[Size];
    int i = blockIdx.x * Size + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int half = Size / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}
void sums(float* out, const float* x, int n, int bs) {
    auto launch = [&](auto size) {
        constexpr int Size = decltype(size)::value;
        block_sum<Size><<<(n + Size - 1) / Size, Size>>>(out, x, n);
    };
    if (bs == 32) launch(std::integral_constant<int, 32>{});
    else if (bs == 64) launch(std::integral_constant<int, 64>());
    else if (bs == 128) launch(std::integral_constant<int, 128>{});
    else { fprintf(stderr, "block size %d\\n", bs); exit(EXIT_FAILURE); }
}
"""


@pytest.fixture
def sums(case):
    built = case({"sums.cu": SOURCE})
    assert built.diagnostics == []
    return built["sums"].sums


@pytest.mark.parametrize("bs", [32, 64, 128])
def test_a_block_size_of_the_source_works(sums, xp, bs):
    x = np.random.default_rng(bs).integers(-8, 8, 300).astype(np.float32)
    out = xp.full(10, 99, np.float32)
    sums(out, xp.asarray(x), 300, bs)
    blocks = -(-300 // bs)
    expected = [x[first : first + bs].sum() for first in range(0, 300, bs)]
    assert out.tolist() == expected + [99.0] * (10 - blocks)
    (launch,) = sums.plan(out, xp.asarray(x), 300, bs).operations
    assert (launch.template, launch.block) == ((bs,), (bs, 1, 1))


def test_another_block_size_is_a_value_error(sums, xp):
    out = xp.full(10, 99, np.float32)
    with pytest.raises(ValueError, match=re.escape("sums") + r".*sums.cu:\d+"):
        sums(out, xp.zeros(300, np.float32), 300, 48)
    assert out.tolist() == [99.0] * 10
