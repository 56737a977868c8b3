"""The whole runtime on the CPU backend: real kernels, compiled, called, differentiated and checked."""

import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import (
    Context,
    Function,
    Kernel,
    KernelSource,
    Launcher,
    Param,
    Plan,
    Pointer,
    TemplateParam,
    Tensor,
    ceil_div,
    elementwise,
    host,
    launcher,
)

CODE = """\
#if defined(ENABLE_FP32)
typedef float floatX;
#elif defined(ENABLE_FP16)
#include <cuda_fp16.h>
typedef half floatX;
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
#endif
#if defined(SLICE_square_forward_kernel)
__global__ void square_forward_kernel(floatX* out, const floatX* inp) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = (floatX)((float)inp[i] * (float)inp[i]);
}
#endif
#if defined(SLICE_square_backward_kernel)
__global__ void square_backward_kernel(floatX* dinp, const floatX* dout, const floatX* inp) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  dinp[i] = (floatX)(2.0f * (float)inp[i] * (float)dout[i]);
}
#endif
#if defined(SLICE_convert)
template <typename Td, typename Ts, int K>
__global__ void convert(Td* out, const Ts* inp, Td add, unsigned long n) {
  unsigned long i = blockIdx.x * (unsigned long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = (Td)((float)inp[i] * K + (float)add);
}
#endif
"""
BLOCK = 32


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> KernelSource:
    path = tmp_path_factory.mktemp("generated") / "square.cu"
    path.write_text(CODE, encoding="utf-8")
    return KernelSource(pathlib.Path(path))


@pytest.fixture(scope="module")
def square_forward(source: KernelSource) -> Launcher:
    params = [Param("out", "floatX*", intent="out"), Param("inp", "const floatX*", intent="in")]
    kernel = Kernel(source, "square_forward_kernel", params)

    @launcher([*params, Param("N", "int")])
    def square_forward(plan: Plan, out: Pointer, inp: Pointer, N: int) -> None:
        plan.require(N % BLOCK == 0, "N % block_size == 0", N=N)
        plan.launch(kernel, N // BLOCK, BLOCK, 0, out, inp)

    return square_forward


@pytest.fixture(scope="module")
def square(source: KernelSource, square_forward: Launcher) -> type[Function]:
    params = [Param("dinp", "floatX*"), Param("dout", "const floatX*"), Param("inp", "const floatX*")]
    kernel = Kernel(source, "square_backward_kernel", params)

    @launcher([*params, Param("N", "int")])
    def square_backward(plan: Plan, dinp: Pointer, dout: Pointer, inp: Pointer, N: int) -> None:
        plan.launch(kernel, ceil_div(N, BLOCK), BLOCK, 0, dinp, dout, inp)

    class Square(Function):
        @staticmethod
        def forward(ctx: Context, x: Any) -> Any:
            ctx.save(x)
            out = np.full_like(x, np.nan)
            elementwise(square_forward, (out, x), x.size, BLOCK)
            return out

        @staticmethod
        def backward(ctx: Context, dout: Any) -> Any:
            (x,) = ctx.saved
            dinp = np.full_like(x, np.nan)
            elementwise(square_backward, (dinp, dout, x), x.size, BLOCK)
            return dinp

    return Square


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (1,), (4, 8), (7, 13)])
def test_every_precision_and_size_forward_and_backward(square: type[Function], dtype: Any, shape: Any) -> None:
    values = np.random.default_rng(0).normal(1, 2, shape)
    x = Tensor(values.astype(dtype))
    y = square.apply(x)
    dy = np.full(shape, 3, dtype)
    y.backward(dy)
    exact = x.data.astype(np.float32)
    np.testing.assert_array_equal(y.data, (exact * exact).astype(dtype))
    np.testing.assert_array_equal(x.grad, (2 * exact * 3).astype(dtype))


def test_strided_arrays_give_what_their_copies_give(square: type[Function]) -> None:
    matrix = np.arange(48, dtype=np.float32).reshape(6, 8)
    for view in (matrix.T, matrix[:, 1:4], np.broadcast_to(matrix[0], (3, 8)), matrix.reshape(-1)[1:]):
        x, copy = Tensor(view), Tensor(view.copy())
        for tensor in (x, copy):
            square.apply(tensor).backward(np.ones(view.T.shape, np.float32).T)
        np.testing.assert_array_equal(x.grad, copy.grad)


def test_the_condition_of_a_launcher_is_a_value_error(square_forward: Launcher) -> None:
    out, inp = np.zeros(33, np.float32), np.zeros(33, np.float32)
    with pytest.raises(ValueError, match="square_forward needs N % block_size == 0, but N = 33"):
        square_forward(out, inp, 33)


def test_templates_and_scalars_of_a_template_type(source: KernelSource) -> None:
    template = [TemplateParam("Td"), TemplateParam("Ts"), TemplateParam("K", "int", 2)]
    params = [Param("out", "Td*"), Param("inp", "const Ts*"), Param("add", "Td"), Param("n", "unsigned long")]
    convert = Kernel(source, "convert", params, template=template)
    inp = np.arange(10).astype(ml_dtypes.bfloat16)
    out, integers = np.zeros(10, np.float32), np.zeros(10, np.int32)
    convert[1, 32](out, inp, 0.5, 10)
    np.testing.assert_array_equal(out, np.arange(10) * 2 + 0.5)
    convert["int", ml_dtypes.bfloat16, 5][1, 32](integers, inp, -3, 10)
    np.testing.assert_array_equal(integers, np.arange(10) * 5 - 3)


def test_the_checking_mode_knows_the_arrays_of_a_call(square_forward: Launcher) -> None:
    out, inp = np.zeros(64, np.float32), np.arange(32, dtype=np.float32)
    square_forward(out, out.copy(), 64)
    with host.checking(raise_findings=False) as report:
        square_forward(out, inp, 64)
    assert len(report.findings) == 1
    assert "square_forward_kernel reads inp[32]" in report.findings[0]
    np.testing.assert_array_equal(out[:32], inp * inp)
