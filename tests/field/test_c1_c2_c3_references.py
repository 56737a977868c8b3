"""C1, C2, C3: pragmas, attributes and GNU types around C references cost no reference that can be read."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from llmc2py.frontend.creference import parse_references
from llmc2py.runtime.host import compiler

PLAIN = """
void scale_cpu(float* out, const float* inp, int N) {
    for (int i = 0; i < N; i++) {
        out[i] = inp[i] / 3.0f;
    }
}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Compile a reference as the product does and apply it to 1 .. 5."""
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))

    def run_reference(reference):
        out, inp = np.full(5, np.nan), np.arange(1.0, 6.0)
        function = getattr(compiler.compile_c(reference.double_source, reference.name), reference.name)
        function(ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(inp.ctypes.data), ctypes.c_int(5))
        return out.tolist()

    return run_reference


def read(text):
    references, diagnostics = parse_references(text, "dev/scale.cu")
    assert diagnostics == []
    assert [reference.name for reference in references] == ["scale_cpu"]
    return references[0]


@pytest.mark.parametrize(
    "prefix",
    [
        '#pragma GCC optimize("O1")',
        '__attribute__((optimize("no-tree-vectorize")))',
        '#pragma STDC FP_CONTRACT OFF\n__attribute__((noinline, optimize("a(b)c")))',
        "[[gnu::noinline]] static",
        "#pragma omp declare simd \\\n    notinbranch",
    ],
)
def test_c1_pragma_or_attribute_before_a_reference(run, prefix):
    reference = read(prefix + PLAIN)
    assert reference.double_source == read(PLAIN).double_source
    assert run(reference) == [i / 3.0 for i in range(1, 6)]


def test_c1_references_keep_exact_arithmetic(run):
    """Under fast mathematics the compensation would be removed and isnan be false."""
    text = """
    void scale_cpu(float* out, const float* inp, int N) {
        for (int i = 0; i < N; i++) {
            float big = 1e16f, lost = ((big + inp[i]) - big) - inp[i], zero = inp[i] - inp[i];
            out[i] = isnan(zero / zero) ? lost : 77.0f;
        }
    }
    """
    inputs = np.arange(1.0, 6.0)
    assert run(read(text)) == (((1e16 + inputs) - 1e16) - inputs).tolist()


@pytest.mark.parametrize(
    "pragma",
    [
        "#pragma omp simd",
        "#pragma omp parallel for collapse(2) \\\n    schedule(static) \\\n  num_threads(4)",
        '_Pragma("omp simd")',
        "#pragma GCC ivdep // why",
    ],
)
@pytest.mark.parametrize("place", ["before the loop", "first in the body", "before an unbraced statement"])
def test_c2_pragmas_change_nothing(run, pragma, place):
    body = {
        "before the loop": "\n@\nfor (int i = 0; i < N; i++) { out[i] = inp[i] / 3.0f; }",
        "first in the body": "for (int i = 0; i < N; i++) {\n@\nout[i] = inp[i] / 3.0f; }",
        "before an unbraced statement": "if (N)\n@\nfor (int i = 0; i < N; i++) out[i] = inp[i] / 3.0f;",
    }[place]
    text = f"void scale_cpu(float* out, const float* inp, int N) {{ {body} }}"
    assert run(read(text.replace("@", pragma))) == [i / 3.0 for i in range(1, 6)]


def test_c3_types_are_supplied(run):
    text = """
    #define THIRD(x) ((x) / 3.0f) /* a macro */
    void scale_cpu(float* out, const float* inp, int N) {
        const bool forward = true; // comment
        _Float16 small = 0.5f;
        for (uint32_t i = 0; forward && i < (uint32_t)N; i++) {
            __typeof__(inp[i] + small) value = THIRD(inp[i]);
            out[(size_t)i] = value;
        }
    }
    """
    assert run(read(text)) == [i / 3.0 for i in range(1, 6)]


def test_c3_the_unreadable_is_named_and_the_others_stay(run):
    text = (
        "void lambda_cpu(float* o) {\n  auto f = [&](int i) { return o[i]; };\n  o[0] = f(1);\n}\n"
        + PLAIN
        + "void reference_cpu(float& o) { o = 1.0f; }\n"
    )
    references, diagnostics = parse_references(text, "dev/scale.cu")
    assert [reference.name for reference in references] == ["scale_cpu"]
    assert run(references[0]) == [i / 3.0 for i in range(1, 6)]
    assert [(diagnostic.span.file, diagnostic.span.line) for diagnostic in diagnostics] == [
        ("dev/scale.cu", 2),
        ("dev/scale.cu", 11),
    ]
    assert "reference lambda_cpu cannot be read: it is not plain C" in diagnostics[0].message
    assert "reference reference_cpu cannot be read: it is not plain C at '&'" in diagnostics[1].message
