"""The runtime's own kernels compile with NVRTC, with no GPU, and keep to the registers that they are laid out for."""

from __future__ import annotations

import pytest

from llmc2py.runtime import kernels
from llmc2py.runtime.cuda import compile_cubin
from llmc2py.runtime.kernels import buckets
from llmc2py.runtime.source import KernelRequest

pytestmark = pytest.mark.usefixtures("nvrtc")

EXPRESSIONS = {
    "convert_kernel": "convert_kernel<__nv_bfloat16, float>",
    "scale_kernel": "scale_kernel",
    "softmax_kernel": "softmax_kernel<true>",
    "softmax_gradient_kernel": "softmax_gradient_kernel<false>",
    "mend_losses_kernel": "mend_losses_kernel",
    "crossentropy_gradient_kernel": "crossentropy_gradient_kernel<true>",
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_compiles(name):
    kernel = getattr(kernels, name)
    assert kernel.selector == f"SLICE_{name}"
    precision = "float16" if name == "scale_kernel" else "bfloat16"
    request = KernelRequest(kernels.SOURCE, EXPRESSIONS[name], kernel.selector, precision, ())
    assert compile_cubin(request, "sm_90").cubin


@pytest.mark.parametrize("name", ["count_tokens_kernel", "order_buckets_kernel"])
def test_kernels_of_buckets_compile(name):
    request = KernelRequest(buckets.SOURCE, name, getattr(buckets, name).selector, "float32", ())
    assert compile_cubin(request, "sm_90").cubin
