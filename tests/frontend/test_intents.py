"""What a kernel does with the memory behind each pointer: intent, width of the widest access, null."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from llmc2py.frontend.reader import read_tree
from llmc2py.ir.library import Parameter

HEAD = """\
struct __align__(16) Four { float v[4]; };
typedef Four f4;
template <typename T> struct __align__(16) Pack { T v[4]; };
using fpack = Pack<float>;
__device__ void store(float* where, float value) { *where = value; }
__device__ void swap(float* a, float* b) { float t = *a; *a = *b; *b = t; }
__device__ void add(float* sums, float value) { sums[0] += value; }
__device__ float sum_of(const float* x, int n) { return n ? x[n] + sum_of(x, n - 1) : 0; }
__device__ void pass_on(float* first, float* second) { store(second, first[0]); }
"""


@pytest.fixture
def parameters(tmp_path: pathlib.Path) -> Callable[..., dict[str, Parameter]]:
    """Return a function that reads a kernel of this body and gives its parameters by name."""

    def read(body: str, declared: str = "float* p, float* q, int n") -> dict[str, Parameter]:
        (tmp_path / "k.cu").write_text(f"{HEAD}__global__ void k({declared}) {{\n{body}\n}}\n")
        library = read_tree(tmp_path)
        assert library.diagnostics == ()
        return {one.name: one for one in library.files[0].kernels[0].parameters}

    return read


@pytest.mark.parametrize(
    ("body", "intent"),
    [
        ("", "unused"),
        ("float* same = p;", "unused"),
        ("q[0] = p[n];", "in"),
        ("q[0] = *(p + n);", "in"),
        ("q[0] = __ldg(&p[n]);", "in"),
        ("if (p[n] > 0) q[0] = 1;", "in"),
        ("p[n] = 1;", "out"),
        ("*p = 1;", "out"),
        ("__stcs(p + n, 1.0f);", "out"),
        ("store(p + n, 1);", "out"),
        ("store(&p[n], q[n]);", "out"),
        ("pass_on(q, p);", "out"),
        ("pass_on(p, q);", "in"),
        ("float* here = p + n; here[2] = 1;", "out"),
        ("float* here; here = &p[n]; *here = 1;", "out"),
        ("auto here = n > 2 ? p : p + n; here[0] = 1;", "out"),
        ("memcpy(p, q, 4);", "out"),
        ("memcpy(q, p, 4);", "in"),
        ("p[n] = p[n] * 2;", "inout"),
        ("p[n] *= 2;", "inout"),
        ("p[n] = 1; q[0] = p[n + 1];", "inout"),
        ("swap(p, q);", "inout"),
        ("float x = p[n]; p[n] = 3 * x;", "inout"),
        ("p[n] += 1;", "accumulate"),
        ("p[n] -= q[n];", "accumulate"),
        ("p[n]++;", "accumulate"),
        ("++p[n];", "accumulate"),
        ("atomicAdd(p, q[n]);", "accumulate"),
        ("atomicAdd(&p[n], 1.0f);", "accumulate"),
        ("add(p + n, 1);", "accumulate"),
        ("p[n] = p[n] + q[n];", "accumulate"),
        ("p[n] = q[n] + p[n];", "accumulate"),
        ("float x = p[n]; x += q[n]; p[n] = x;", "accumulate"),
        ("auto here = &p[n]; here[0] = 1;", "out"),
        ("auto here = &p[n]; q[0] = *here;", "in"),
        ("float* here = q; if (n > 2) here = p; *here = 1;", "out"),
        ("p[n] = 0; p[n] += q[n];", "inout"),
        ("q[0] = sum_of(p, n);", "in"),
        ("for (int i = 0; i < n; i++) { q[i] = 0; } printf(\"%f\", p[0]);", "in"),
    ],
)  # fmt: skip
def test_intents(parameters: Callable[..., dict[str, Parameter]], body: str, intent: str) -> None:
    assert str(parameters(body)["p"].intent) == intent


@pytest.mark.parametrize(
    ("body", "alignment"),
    [
        ("q[0] = p[n];", 0),
        ("float4 v = reinterpret_cast<float4*>(p)[n]; q[0] = v.x;", 16),
        ("float4 v = *(const float4*)(p + 4 * n); q[0] = v.x;", 16),
        ("float2* pairs = (float2*)p; q[0] = pairs[n].y;", 8),
        ("float2 a = ((float2*)p)[n]; float4 b = ((float4*)p)[n]; q[0] = a.x + b.x;", 16),
        ("Four four = *(Four*)&p[n]; q[0] = four.v[0];", 16),
        ("f4* fours = (f4*)p; q[0] = fours[n].v[1];", 16),
        ("fpack* packs = reinterpret_cast<fpack*>(p); q[0] = packs->v[0];", 16),
        ("if ((uintptr_t)p % 16 == 0) { float4 v = *(float4*)p; q[0] = v.x; } else q[0] = p[0];", 0),
        ("if (reinterpret_cast<size_t>(p) & 15) q[0] = p[0]; else q[0] = (*(float4*)p).x;", 0),
        ("reinterpret_cast<float4*>(q)[n] = make_float4(p[0], 0, 0, 0);", 0),
    ],
)
def test_alignment(parameters: Callable[..., dict[str, Parameter]], body: str, alignment: int) -> None:
    assert parameters(body)["p"].alignment == alignment


@pytest.mark.parametrize(
    ("body", "nullable"),
    [
        ("q[0] = p[0];", False),
        ("if (p != nullptr) q[0] = p[0];", True),
        ("if (NULL == p) return; q[0] = p[0];", True),
        ("float* here = p; q[0] = here != NULL ? here[0] : 0;", True),
        ("if (q != nullptr) q[0] = p[0];", False),
        ("if (n != 0) q[0] = p[0];", False),
        ("if (p[0] != q[0]) q[0] = p[0];", False),
    ],
)
def test_null(parameters: Callable[..., dict[str, Parameter]], body: str, nullable: bool) -> None:
    assert parameters(body)["p"].nullable is nullable


def test_vectors_and_numbers_that_are_parameters_themselves(parameters: Callable[..., dict[str, Parameter]]) -> None:
    found = parameters("o[n] = v[n].x;", "float* o, const float4* v, int n")
    assert str(found["v"].intent) == "in"
    assert found["n"].intent is None
    assert (found["n"].alignment, found["n"].nullable) == (0, False)
