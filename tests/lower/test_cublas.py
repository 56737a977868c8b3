"""Calls of cuBLAS and cuBLASLt in launchers: what Python they become, and that it computes what they say."""

from __future__ import annotations

import importlib
import pathlib
import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate
from llmc2py.runtime import Gemm

HEADER = """
#pragma once
#include <cublas_v2.h>
#include <cublasLt.h>
#if defined(ENABLE_FP32)
typedef float floatX;
#define ELEMENT CUDA_R_32F
#elif defined(ENABLE_FP16)
typedef half floatX;
#define ELEMENT CUDA_R_16F
#else
typedef __nv_bfloat16 floatX;
#define ELEMENT CUDA_R_16BF
#endif
cublasHandle_t handle;
cublasLtHandle_t lt_handle;
void* workspace;
size_t workspace_size = 1 << 20;
static cublasComputeType_t how = CUBLAS_COMPUTE_32F;
void check(cublasStatus_t status, int line) { if (status != CUBLAS_STATUS_SUCCESS) exit(line); }
#define CHECK(call) check((call), __LINE__)
"""

PRODUCTS = """
#include "blas.h"
__global__ void halve(float* x, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) x[i] *= 0.5f; }

// y (rows, out) = x (rows, in) w^T, w (out, in)
void project(float* y, const float* x, const float* w, int rows, int in, int out) {
    const float one = 1.0f, zero = 0.0f;
    CHECK(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, out, rows, in, &one, w, in, x, in, &zero, y, out));
}

void add_product(float* y, const float* a, const float* b, int n, bool add) {
    float one = 1.0f;
    const float beta = add ? 1.0f : 0.0f;
    cublasStatus_t status = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, n, a, n, &beta, y, n);
    if (status != CUBLAS_STATUS_SUCCESS) { exit(1); }
    halve<<<(n * n + 31) / 32, 32>>>(y, n * n);
}

// y[i] = a[i] b[i]^T for each of count pairs of (n, k)
void pairs(float* y, const float* a, const float* b, int n, int k, int count, cudaStream_t stream) {
    const float scale = 0.5f;
    float zero = 0.0f;
    CHECK(cublasSetStream(handle, stream));
    CHECK(cublasSgemmStridedBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, k, &scale, b, k, n * k, a, k, n * k, &zero,
                                    y, n, n * n, count));
}

void narrow(floatX* y, const floatX* a, const floatX* b, int n, bool exact) {
    const float one = 1.0f, zero = 0.0f;
    const floatX low_one = (floatX)one, low_zero = (floatX)zero;
    const bool is_half = ELEMENT == CUDA_R_16F && !exact;
    const void* alpha = is_half ? (const void*)&low_one : (const void*)&one;
    const void* beta = is_half ? (const void*)&low_zero : (const void*)&zero;
    CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, alpha, b, ELEMENT, n, a, ELEMENT, n, beta, y, ELEMENT,
                       n, is_half ? CUBLAS_COMPUTE_16F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

void narrow_pairs(floatX* y, const floatX* a, const floatX* b, int n, int count) {
    const float one = 1.0f, one_more = 1.0f;
    CHECK(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, ELEMENT, n, n * n, a, ELEMENT,
                                     n, n * n, &one_more, y, ELEMENT, n, n * n, count, how, CUBLAS_GEMM_DEFAULT));
}

int main() {
    cublasCreate(&handle);
    how = getenv("FAST") ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    return 0;
}
"""

LAYERS = """
#pragma once
#include "blas.h"
// y (rows, out) = gelu(x (rows, in) w^T + bias), the sum in before
void dense(floatX* y, const floatX* x, const floatX* w, const floatX* bias, cudaStream_t stream, int rows, int in,
           int out, floatX* before = NULL, bool slope = false) {
    if ((uintptr_t)y % 16 != 0 || ((uintptr_t)x & 15) != 0) { printf("misaligned\\n"); exit(1); }
    cublasLtMatmulDesc_t desc;
    CHECK(cublasLtMatmulDescCreate(&desc, how, CUDA_R_32F));
    cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
    bool turned = true;
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, turned ? &yes : &no, sizeof(yes)));
    cublasLtEpilogue_t epilogue;
    if (before != NULL) {
        int64_t ld = out;
        CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before, sizeof(before)));
        CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof(ld)));
        if (slope) epilogue = CUBLASLT_EPILOGUE_DGELU;
        else epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    } else {
        epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (bias) CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    cublasLtMatrixLayout_t wl, xl, yl;
    CHECK(cublasLtMatrixLayoutCreate(&wl, ELEMENT, in, out, in));
    CHECK(cublasLtMatrixLayoutCreate(&xl, ELEMENT, in, rows, in));
    CHECK(cublasLtMatrixLayoutCreate(&yl, ELEMENT, out, rows, out));
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_size,
                                               sizeof(workspace_size)));
    cublasLtMatmulAlgoGetHeuristic(lt_handle, desc, wl, xl, yl, yl, preference, 1, &found, &count);
    if (count == 0) { exit(1); }
    const float one = 1.0f, zero = 0.0f;
    CHECK(cublasLtMatmul(lt_handle, desc, &one, w, wl, x, xl, &zero, y, yl, y, yl, &found.algo, workspace,
                         workspace_size, stream));
    CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(cublasLtMatrixLayoutDestroy(wl));
    CHECK(cublasLtMatmulDescDestroy(desc));
}
"""

#: Calls a launcher of a header that it does not include, and passes a literal for the stream.
ABOVE = """
#pragma once
#include "blas.h"
__global__ void clear(floatX* x) { x[threadIdx.x] = (floatX)0.0f; }
void twice(floatX* y, const floatX* x, const floatX* w, int n) {
    clear<<<1, n>>>(y);
    dense(y, x, w, NULL, 0, n, n, n);
    dense(y + n * n, x + n * n, w, nullptr, 0, n, n, n);
}
"""

REFUSED = """
#include "blas.h"
void refuses(float* y, const float* a, int n, const float* scale) {
    const float one = 1.0f;
    WHAT;
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, a, n, &one, y, n);
}
"""

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Package:
    """A generated package: its texts, and its modules imported."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self.folder, self.name = folder, name
        generated = generate(folder / "source")
        assert generated.diagnostics == ()
        self.not_lowered = {one.launcher.name: one for one in generated.plan.not_lowered}
        self.files = generated.files
        write_package(folder / name, generated.files)

    def module(self, name: str) -> Any:
        sys.path.insert(0, str(self.folder))
        try:
            return importlib.import_module(f"{self.name}.{name}")
        finally:
            sys.path.remove(str(self.folder))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    folder = tmp_path_factory.mktemp("cublas")
    (folder / "source").mkdir()
    for name, text in {"blas.h": HEADER, "products.cu": PRODUCTS, "layers.cuh": LAYERS, "above.cuh": ABOVE}.items():
        (folder / "source" / name).write_text(text)
    found = Package(folder, "cublas_package")
    assert found.not_lowered == {}
    return found


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        (
            "products",
            [
                'plan.gemm(sgemm("CUBLAS_OP_T", "CUBLAS_OP_N", out, rows, in_, one, w, in_, x, in_, zero, y, out))',
                'plan.gemm(sgemm("CUBLAS_OP_N", "CUBLAS_OP_N", n, n, n, one, b, n, a, n, beta, y, n))',
                'ELEMENT = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}',
                'low_one = c_cast(one, plan.ctype("floatX"))',
                "alpha = low_one if is_half else one",
                'is_half = ELEMENT == "CUDA_R_16F" and not exact',
            ],
        ),
        (
            "layers_cuh",
            [
                "if plan.misalignment(y, 16) != 0 or plan.misalignment(x, 16) != 0: "
                'plan.require(plan.misalignment(y, 16) == 0, "y aligned to 16 bytes") '
                'plan.require(plan.misalignment(x, 16) == 0, "x aligned to 16 bytes")',
                'desc = LtMatmulDesc("CUBLAS_COMPUTE_32F", "CUDA_R_32F")',
                'desc.set("CUBLASLT_MATMUL_DESC_TRANSA", yes if turned else no)',
                'desc.set("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER", before)',
                'epilogue = "CUBLASLT_EPILOGUE_GELU_AUX_BIAS" if bias else "CUBLASLT_EPILOGUE_GELU_AUX"',
                "wl = LtMatrixLayout(ELEMENT, in_, out, in_)",
                "count = 1",
                "plan.gemm(lt_matmul(desc, one, w, wl, x, xl, zero, y, yl, y, yl))",
            ],
        ),
        ("above", ["plan.call(dense, y, x, w, None, n, n, n)"]),
    ],
)
def test_the_python_of_a_launcher(package: Package, module: str, lines: list[str]) -> None:
    text = " ".join(package.files[f"{module}.py"].split()).replace("( ", "(").replace(" )", ")").replace(",)", ")")
    for line in lines:
        assert line in text, line


def test_the_docstring_says_that_matrices_are_multiplied(package: Package) -> None:
    products = package.module("products")
    assert products.project.__doc__ == "Multiply matrices."
    assert products.add_product.__doc__ == "Multiply matrices and launch `halve<<<(n * n + 31) / 32, 32>>>`."


def test_intents_follow_from_the_products(package: Package) -> None:
    products, layers = package.module("products"), package.module("layers_cuh")
    intents = {p.name: p.intent for p in products.project.params if p.is_pointer}
    assert intents == {"y": "out", "x": "in", "w": "in"}
    assert {p.name: p.intent for p in products.add_product.params if p.is_pointer}["y"] == "inout"
    by_name = {p.name: p for p in layers.dense.params}
    assert (by_name["bias"].intent, by_name["bias"].nullable) == ("in", True)
    assert (by_name["before"].intent, by_name["before"].nullable) == ("inout", True)
    assert list(by_name) == ["y", "x", "w", "bias", "rows", "in_", "out", "before", "slope"]


def test_single_precision_products(package: Package) -> None:
    products = package.module("products")
    random = np.random.default_rng(0)
    x, w = random.standard_normal((5, 7), np.float32), random.standard_normal((3, 7), np.float32)
    y = np.full((5, 3), np.nan, np.float32)
    products.project(y, x, w, 5, 7, 3)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-6)
    a, b, old = (random.standard_normal((4, 4), np.float32) for _ in range(3))
    for add in (False, True):
        y = old.copy()
        products.add_product(y, a, b, 4, add)
        np.testing.assert_allclose(y, (a @ b + add * old) / 2, rtol=1e-5, atol=1e-6)
    a, b = (random.standard_normal((6, 5, 3), np.float32) for _ in range(2))
    y = np.full((6, 5, 5), np.nan, np.float32)
    products.pairs(y, a, b, 5, 3, 6)
    np.testing.assert_allclose(y, a @ b.swapaxes(1, 2) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("exact", [False, True])
def test_products_in_each_precision(package: Package, precision: str, exact: bool) -> None:
    products, dtype = package.module("products"), DTYPES[precision]
    random = np.random.default_rng(1)
    a, b, old = (random.integers(-4, 5, (2, 3, 3)).astype(dtype) for _ in range(3))
    y = np.empty((3, 3), dtype)
    products.narrow(y, a[0], b[0], 3, exact)
    np.testing.assert_array_equal(y.astype(np.float32), a[0].astype(np.float32) @ b[0].astype(np.float32))
    (gemm,) = products.narrow.plan(y, a[0], b[0], 3, exact).operations
    half = precision == "float16" and not exact
    assert isinstance(gemm, Gemm)
    assert gemm.compute == ("CUBLAS_COMPUTE_16F" if half else "CUBLAS_COMPUTE_32F")
    y = old.copy()
    products.narrow_pairs(y, a, b, 3, 2)
    wanted = a.astype(np.float32) @ b.astype(np.float32) + old.astype(np.float32)
    np.testing.assert_array_equal(y.astype(np.float32), wanted)
    (gemm,) = products.narrow_pairs.plan(y, a, b, 3, 2).operations
    assert isinstance(gemm, Gemm)
    assert gemm.compute == "CUBLAS_COMPUTE_32F"


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("precision", list(DTYPES))
def test_descriptors_and_epilogues(package: Package, precision: str) -> None:
    dense, dtype = package.module("layers_cuh").dense, DTYPES[precision]
    tolerance = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[precision]
    random = np.random.default_rng(2)
    x, w, bias = (random.standard_normal(shape).astype(dtype) for shape in ((5, 7), (3, 7), (3,)))
    wide = [array.astype(np.float64) for array in (x, w, bias)]
    plain = wide[0] @ wide[1].T
    for given, sums in ((None, plain), (bias, plain + wide[2])):
        y = np.full((5, 3), np.nan, dtype)
        dense(y, x, w, given, 5, 7, 3)
        np.testing.assert_allclose(y.astype(np.float64), sums, rtol=tolerance, atol=tolerance)
        before = np.full((5, 3), np.nan, dtype)
        dense(y, x, w, given, 5, 7, 3, before)
        np.testing.assert_allclose(y.astype(np.float64), gelu(sums), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(before.astype(np.float64), sums, rtol=tolerance, atol=tolerance)
    dense(y, x, w, None, 5, 7, 3, before, True)
    at, step = before.astype(np.float64), 1e-5
    slope = (gelu(at + step) - gelu(at - step)) / (2 * step)
    np.testing.assert_allclose(y.astype(np.float64), plain * slope, rtol=4 * tolerance, atol=4 * tolerance)


def test_a_header_calls_a_launcher_of_another(package: Package) -> None:
    x, w = np.arange(8, dtype=np.float32), np.array([1, 0, 0, 2], np.float32)
    y = np.empty(8, np.float32)
    package.module("above").twice(y, x, w, 2)
    np.testing.assert_array_equal(y, [0, 2, 2, 6, 4, 10, 6, 14])


def test_what_the_source_calls_misaligned_is_refused(package: Package) -> None:
    x, w, y = (np.zeros(32, np.float32) for _ in range(3))
    with pytest.raises(ValueError, match=re.escape("dense needs y aligned to 16 bytes (")):
        package.module("above").twice(y, x, w, 3)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("cublasSgemv(handle, CUBLAS_OP_N, n, n, &one, a, n, a, 1, &one, y, 1)", "a call of cublasSgemv"),
        ("CHECK(cublasIsamax(handle, n, a, 1, &n))", "a call of cublasIsamax"),
        ("if (cublasScopy(handle, n, a, 1, y, 1) != CUBLAS_STATUS_SUCCESS) exit(1)", "a call of cublasScopy"),
        ("cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH)", "another math mode"),
        (
            "cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, scale, a, n, a, n, &one, y, n)",
            "what this points to",
        ),
        ("cublasSgemm(handle, CUBLAS_OP_N, n)", "takes more than 3 arguments"),
        ("if ((uintptr_t)a % 32) exit(1)", "of an address no more is known"),
        ("if ((uintptr_t)a > 4096) exit(1)", "an address is not known"),
    ],
)
def test_what_a_plan_cannot_do_is_named(tmp_path: pathlib.Path, what: str, message: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "blas.h").write_text(HEADER)
    (tmp_path / "source" / "refused.cu").write_text(
        REFUSED.replace("WHAT", what) + "__global__ void k(float* x) { x[0] = 1; }\n"
    )
    refused = Package(tmp_path, "refused_package").not_lowered["refuses"]
    assert message in refused.reason
    assert refused.span.file == "refused.cu"
    assert refused.span.line == 5
