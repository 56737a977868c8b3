"""The matrix products of GPT-2's linear layers in bfloat16: ours against PyTorch, on one GPU, in one run.

GPU time is that of CUDA events around a row of calls; host time is that of calls of a small product, which the GPU
finishes sooner than the host issues the next one. ``1 call`` says whether cuBLASLt does a product with its epilogue in
one call.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from llmc2py.runtime import Gemm, Launcher, LtMatmulDesc, LtMatrixLayout, Param, Pointer, lt_matmul, products
from llmc2py.runtime.dtypes import bfloat16

ROWS, CHANNELS = 16384, 768
OUTPUTS = (768, 2304, 3072, 50304)
SMALL = (64, 64, 64)
TYPE = "CUDA_R_16BF"
Call = Callable[[], Any]


@dataclass(frozen=True)
class Product:
    """A product of a linear layer: sizes, transposes, epilogue, and the factor of what is there already."""

    name: str
    m: int
    n: int
    k: int
    transa: bool = False
    transb: bool = False
    epilogue: str = "DEFAULT"
    beta: float = 0.0

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The rows and columns of A, B, D, bias and aux as NumPy sees them: those of cuBLAS, exchanged."""
        a = (self.m, self.k) if self.transa else (self.k, self.m)
        b = (self.k, self.n) if self.transb else (self.n, self.k)
        return a, b, (self.n, self.m), (1, self.m), (self.n, self.m)

    def launcher(self) -> Launcher:
        """Return a launcher of the arrays A, B, D, bias and aux."""

        def record(plan: Any, a: Pointer, b: Pointer, d: Pointer, bias: Pointer, aux: Pointer) -> None:
            plan.gemm(self._gemm(a, b, d, bias, aux))

        return Launcher(record, [Param(name, "floatX*", intent="inout") for name in ("a", "b", "d", "bias", "aux")])

    def _gemm(self, a: Pointer, b: Pointer, d: Pointer, bias: Pointer, aux: Pointer) -> Gemm:
        desc = LtMatmulDesc("CUBLAS_COMPUTE_32F")
        desc.set("CUBLASLT_MATMUL_DESC_TRANSA", "CUBLAS_OP_T" if self.transa else "CUBLAS_OP_N")
        desc.set("CUBLASLT_MATMUL_DESC_TRANSB", "CUBLAS_OP_T" if self.transb else "CUBLAS_OP_N")
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE", f"CUBLASLT_EPILOGUE_{self.epilogue}")
        desc.set("CUBLASLT_MATMUL_DESC_BIAS_POINTER", bias)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER", aux)
        desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD", self.m)
        left, right, result = (LtMatrixLayout(TYPE, cols, rows, cols) for rows, cols in self.shapes[:3])
        return lt_matmul(desc, 1.0, a, left, b, right, self.beta, d, result, d, result)


def linear_products(rows: int, inputs: int, outputs: int) -> list[Product]:
    """Return what a linear layer multiplies, forward and backward, as llm.c does."""
    found = [
        Product("forward", outputs, rows, inputs, transa=True, epilogue="BIAS"),
        Product("gradient of x", inputs, rows, outputs),
        Product("gradient of weight", inputs, outputs, rows, transb=True, beta=1.0),
    ]
    if outputs == 4 * inputs:
        found += [
            Product("forward, GELU", outputs, rows, inputs, transa=True, epilogue="GELU_AUX_BIAS"),
            Product("gradient of x, GELU", outputs, rows, inputs, epilogue="DGELU"),
        ]
    return found


def ours(product: Product) -> Call:
    """Return a call of our launcher on arrays of its own."""
    import cupy

    shapes = product.shapes
    arrays = [cupy.random.standard_normal(shape, dtype=np.float32).astype(bfloat16) for shape in shapes]
    launcher = product.launcher()
    return lambda: launcher(*arrays)


def torchs(product: Product) -> Call:
    """Return the same in PyTorch."""
    import torch
    from torch.nn import functional

    a, b, d, bias, aux = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in product.shapes)
    bias = bias.flatten()
    left, right = a.T if product.transa else a, b.T if product.transb else b
    if product.epilogue == "BIAS":
        return lambda: functional.linear(b, a, bias)
    if product.epilogue == "GELU_AUX_BIAS":
        return lambda: functional.gelu(functional.linear(b, a, bias), approximate="tanh")
    if product.epilogue == "DGELU":
        gelu_backward = torch.ops.aten.gelu_backward
        return lambda: gelu_backward(right @ left, aux, approximate="tanh")
    if product.beta:
        return lambda: d.addmm_(right, left)
    return lambda: right @ left


def gpu_milliseconds(call: Call, repeats: int) -> float:
    """Return the GPU time of a call: the median of several rows of calls on the current stream of either library."""
    import torch

    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / repeats)
    return statistics.median(times)


def host_microseconds(call: Call) -> float:
    """Return the host time of a call whose work on the GPU is small."""
    import torch

    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        times.append((time.perf_counter() - start) * 1e4)
    torch.cuda.synchronize()
    return statistics.median(times)


def is_one_call(product: Product) -> bool:
    """Return whether cuBLASLt does a product alone."""
    import cupy

    other_way: list[int] = []
    original = products._cublas_step
    products._cublas_step = lambda gemm, blas: lambda pointers, stream: other_way.append(stream)
    try:
        product.launcher()(*(cupy.zeros(shape, bfloat16) for shape in product.shapes))
    finally:
        products._cublas_step = original
    return not other_way


@click.command()
@click.option("--repeats", default=20, show_default=True, help="Calls between two events.")
def main(repeats: int) -> None:
    """Print GPU and host times of the products of GPT-2's linear layers."""
    console = Console(width=120)
    table = Table("C -> OC", "product", "1 call", "ours, ms", "torch, ms", "ours, TFLOP/s", "ratio")
    for outputs in OUTPUTS:
        for product in linear_products(ROWS, CHANNELS, outputs):
            times = [gpu_milliseconds(make(product), repeats) for make in (ours, torchs)]
            speed = 2e-9 * product.m * product.n * product.k / times[0]
            shape = f"{CHANNELS} -> {outputs}"
            fused = "yes" if is_one_call(product) else "no"
            row = [f"{times[0]:.3f}", f"{times[1]:.3f}", f"{speed:.0f}", f"{times[1] / times[0]:.2f}"]
            table.add_row(shape, product.name, fused, *row)
    console.print(table)
    host = Table("product", "ours, host µs", "torch, host µs", title=f"host time, {SMALL}")
    for epilogue in ("DEFAULT", "BIAS", "GELU_AUX_BIAS", "DGELU"):
        product = Product(epilogue, *SMALL, transa=True, epilogue=epilogue)
        host.add_row(epilogue, *(f"{host_microseconds(make(product)):.2f}" for make in (ours, torchs)))
    console.print(host)


if __name__ == "__main__":
    main()
