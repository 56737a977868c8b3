"""CASES B13: of float16, uint16 and ml_dtypes.bfloat16, only the last is bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import Tensor

SOURCE = """\
#include <cuda_bf16.h>
__global__ void twice(__nv_bfloat16* out, const __nv_bfloat16* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16(2.0f * __bfloat162float(x[i]));
}
void run(__nv_bfloat16* out, const __nv_bfloat16* x, int n) { twice<<<(n + 63) / 64, 64>>>(out, x, n); }
"""
ENTRY = '''\
name = "twice"
layer = "Twice"
summary = "Twice the input."
source = "twice.cu"
launchers = ["run"]
[inputs]
inp = { shape = "*", doc = "any shape" }
[outputs]
out = { shape = "*", doc = "the shape of `inp`" }
[forward]
recipe = """
out = empty_like(inp)
run(out, inp, N)
"""
[backward]
gradients = { inp = "dinp" }
recipe = """
dinp = empty_like(dout)
run(dinp, dout, N)
"""
[reference]
forward = "out = 2 * inp"
backward = "dinp = 2 * dout"
'''


@pytest.fixture
def built(case):
    return case({"twice.cu": SOURCE, "twice.toml": ENTRY})


def test_bfloat16_is_taken_as_it_is(built, xp):
    x = Tensor(xp.asarray(np.array([1.5, -3, 0.0078125, 1e30]).astype(ml_dtypes.bfloat16)))
    out = built["layers"].Twice()(x)
    assert out.dtype == ml_dtypes.bfloat16
    xp.testing.assert_array_equal(out.data.astype(np.float32), 2 * x.data.astype(np.float32))
    out.backward(x.data)
    assert x.grad.dtype == ml_dtypes.bfloat16
    xp.testing.assert_array_equal(x.grad, out.data)


@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.int16, np.float32])
def test_what_only_has_its_size_or_its_values_is_refused(built, xp, dtype):
    x, out = xp.ones(4, dtype), xp.ones(4, ml_dtypes.bfloat16)
    name = np.dtype(dtype).name
    with pytest.raises(TypeError, match=rf"run: `x` is {name}, but .* takes bfloat16; convert it with .*bfloat16"):
        built["twice"].run(out, x, 4)
    with pytest.raises(TypeError, match=rf"twice: `out` is {name}, but .* takes bfloat16"):
        built["twice"].twice_kernel[1, 64](x, out, 4)
    with pytest.raises(TypeError, match=rf"Twice: `inp` is {name}; bfloat16 is taken"):
        built["layers"].Twice()(x)
    xp.testing.assert_array_equal(out, xp.ones(4, ml_dtypes.bfloat16))
