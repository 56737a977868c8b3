"""C references: found, cut out, carried over to double, compiled and called."""

from __future__ import annotations

import ctypes
import pathlib
import re
import shutil
import subprocess
import time

import numpy as np
import pytest

from llmc2py.caching import Memo
from llmc2py.diagnostics import Severity, SourceSpan
from llmc2py.frontend import creference
from llmc2py.frontend.creference import parse_references, to_double

CC = shutil.which("cc")
VENDOR = pathlib.Path(__file__).parents[2] / "vendor" / "llm.c"


@pytest.fixture
def load(tmp_path):
    """Compile a reference strictly, without a warning, and return its function."""
    if CC is None:
        pytest.skip("no C compiler (cc) on PATH")

    def load_reference(reference):
        source, library = tmp_path / f"{reference.name}.c", tmp_path / f"{reference.name}.so"
        source.write_text(reference.double_source, encoding="utf-8")
        flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-Wno-sign-compare"]
        command = [CC, *flags, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return getattr(ctypes.CDLL(str(library)), reference.name)

    return load_reference


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def only(text, file="dev/x.cu"):
    references, diagnostics = parse_references(text, file)
    assert [str(diagnostic) for diagnostic in diagnostics] == []
    assert len(references) == 1
    return references[0]


def complaint(text, file="dev/x.cu"):
    references, diagnostics = parse_references(text, file)
    assert references == []
    assert len(diagnostics) == 1
    assert diagnostics[0].severity is Severity.WARNING
    return str(diagnostics[0])


def value_of(load, expression, prelude="", file="dev/x.cu"):
    """What a reference of one expression computes, for x = 0.1, n = 3, p = {2.5, -1.5}."""
    reference = only(
        f"{prelude}\nvoid f_cpu(float* out, float x, int n, const float* p) {{ *out = {expression}; }}", file
    )
    out, p = np.zeros(1), np.array([2.5, -1.5])
    load(reference)(pointer(out), ctypes.c_double(0.1), ctypes.c_int(3), pointer(p))
    return float(out[0])


def test_signature_and_place():
    parameters = "const float* a, float * const b, unsigned n, size_t m, const int k, float c[]"
    text = f"\n\n  static int count_cpu({parameters})\n{{ return 1; }}"
    reference = only(text)
    assert reference.name == "count_cpu"
    assert reference.span == SourceSpan("dev/x.cu", 3, 3)
    assert reference.return_type == "int"
    assert reference.params == (
        ("a", "const float*"),
        ("b", "float*"),
        ("n", "unsigned int"),
        ("m", "unsigned long"),
        ("k", "int"),
        ("c", "float*"),
    )
    assert reference.double_params[:3] == (("a", "const double*"), ("b", "double*"), ("n", "unsigned int"))
    assert reference.double_return_type == "int"


def test_what_was_read_before_is_not_parsed_again(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(creference, "REFERENCES", Memo("references", lambda: "test", 8))
    text = "float half_cpu(float x) { return 0.5f * x; }\nvoid f_cpu(float* o, float x) { *o = half_cpu(x); }"
    first, _ = parse_references(text, "dev/x.cu")
    parsed = []
    monkeypatch.setattr(creference, "_read_function", lambda text, name, _: parsed.append(name) or (None, ("", None)))
    again, _ = parse_references(f"\n\n\n{text}\nint more;", "dev/y.cu")
    assert [one.span for one in again] == [SourceSpan("dev/y.cu", 4), SourceSpan("dev/y.cu", 5)]
    assert [(one.params, one.double_source) for one in again] == [(one.params, one.double_source) for one in first]
    assert parsed == []
    parse_references(text.replace("0.5f", "0.25f"), "dev/x.cu")
    assert parsed == ["half_cpu", "f_cpu"]
    monkeypatch.setattr(creference, "CText", None)
    assert parse_references(text, "dev/x.cu") == (first, [])


def test_what_could_not_be_read_before_is_told_at_its_new_place():
    text = "void f_cpu(float* o) { o[0] = mystery(o[1]); }"
    assert complaint(text).startswith("dev/x.cu:1:31: warning: reference f_cpu cannot be read: it uses mystery")
    moved = complaint(f"int n;\n\n{text}")
    assert moved.startswith("dev/x.cu:3:31: warning: reference f_cpu cannot be read: it uses mystery")


def test_to_double_leaves_other_types():
    assert [to_double(t) for t in ("float", "const floatX**", "half*", "int*", "double")] == [
        "double",
        "const double**",
        "double*",
        "int*",
        "double",
    ]


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("uint32_t", "unsigned int"),
        ("long unsigned int", "unsigned long"),
        ("unsigned long long", "unsigned long long"),
        ("int64_t*", "long*"),
        ("const unsigned char*", "const unsigned char*"),
        ("bool*", "bool*"),
        ("_Float16*", "half*"),
        ("const floatX*", "const floatX*"),
        ("const float* const*", "const float**"),
        ("signed char", "signed char"),
        ("real*", "float*"),
    ],
)
def test_canonical_types(spelled, canonical):
    reference = only(f"typedef float real;\nvoid f_cpu({spelled} a) {{ (void)a; }}")
    assert reference.params == (("a", canonical),)


def test_no_parameters():
    assert only("float one_cpu(void) { return 1.0f; }").params == ()
    assert only("float one_cpu() { return 1.0f; }").params == ()


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("0.1f", 0.1),
        ("1e-5F", 1e-5),
        (".5f + 1.f", 1.5),
        ("0x1.8p1f", 3.0),
        ("0x1f", 31.0),
        ("(float)0.1", 0.1),
        ("(float)n / 7", 3 / 7),
        ("n / 2", 1.0),
        ("tanhf(x)", float(np.tanh(0.1))),
        ("powf(x, 2.0f)", 0.1**2),
        ("__expf(x)", float(np.exp(0.1))),
        ("rsqrtf(0.3f)", 1 / 0.3**0.5),
        ("fmaxf(p[0], p[1])", 2.5),
        ("FLT_MAX", float(np.finfo(np.float64).max)),
        ("-FLT_EPSILON", -float(np.finfo(np.float64).eps)),
        ("-INFINITY", -float("inf")),
        ("sqrtf(2.0f / M_PI)", (2 / np.pi) ** 0.5),
        ("n * sizeof(float)", 24.0),
        ("std::max(p[0], p[1])", 2.5),
        ("-std::min<float>(p[0], p[1] * 2)", 3.0),
        ("std::abs(p[1])", 1.5),
        ("abs(p[1])", 1.5),
        ("max(n, 5)", 5.0),
        ("std::exp(x)", float(np.exp(0.1))),
        ("static_cast<float>(n) / 7", 3 / 7),
        ("float(n) / 7", 3 / 7),
        ("p == nullptr ? 1 : 2", 2.0),
        ("__builtin_expect(n == 3, 1) ? x : 0", 0.1),
    ],
)
def test_expressions_compute_in_double(load, expression, wanted):
    assert value_of(load, expression) == wanted


@pytest.mark.parametrize("name", ["atan2", "fmod", "hypot", "copysign", "fdim", "fmin", "pow"])
def test_binary_functions(load, name):
    wanted = {"atan2": np.arctan2, "fdim": lambda a, b: max(a - b, 0.0), "fmin": min, "pow": np.power}.get(name)
    wanted = wanted or getattr(np, name)
    assert value_of(load, f"{name}f(x, 2.5f)") == pytest.approx(float(wanted(0.1, 2.5)), rel=1e-15)


def test_abs_in_a_c_file_is_the_integer_one(load):
    assert value_of(load, "abs(n - 5)", file="train.c") == 2.0


HELPERS = """
#include <math.h>
#include "common.h"
#define ENABLE_BF16
#define SCALE sqrtf(2.0f / 3.1415926f)  // a comment
#define CUBE(v) \\
    ((v) * (v) * \\
     (v))
static const float kHalf = 0.5f, kTable[2] = {1.0f, 3.0f};
enum Mode { PLAIN, SHIFTED = 4 };
typedef struct { float a; int b; } Pair;
static float second(float v, int depth);
inline float first(float v, int depth) { return depth ? second(v, depth - 1) : v; }
__host__ __device__ __forceinline__ float second(float v, int depth) { return first(v + 0.1f, depth); }
__global__ void kernel(float* a) { a[threadIdx.x] = CUBE(a[0]); }
"""


def test_helpers_macros_constants_and_types_come_along(load):
    expression = "kHalf * CUBE(x) + kTable[1] + first(x, SHIFTED) + SCALE"
    wanted = 0.5 * (0.1 * 0.1 * 0.1) + 3 + 0.5 + (2 / 3.1415926) ** 0.5
    assert value_of(load, expression, HELPERS) == pytest.approx(wanted, rel=1e-15)


def test_only_what_is_reached_comes_along():
    source = only(HELPERS + "void f_cpu(float* o) { Pair p = {1.0f, 2}; o[0] = p.a; }").double_source
    assert "Pair" in source
    assert "second" not in source
    assert "kHalf" not in source
    assert "kernel" not in source


def test_reference_that_calls_another(load):
    text = "void a_cpu(float* o) { o[0] += 0.1f; } void b_cpu(float* o) { a_cpu(o); a_cpu(o); }"
    references, diagnostics = parse_references(text, "x.cu")
    assert ([r.name for r in references], diagnostics) == (["a_cpu", "b_cpu"], [])
    out = np.zeros(1)
    load(references[1])(pointer(out))
    assert out[0] == 0.2


def test_static_reference_is_given_external_linkage(load):
    out = np.zeros(1)
    load(only("static inline void f_cpu(float* o) { o[0] = 1.0f; }"))(pointer(out))
    assert out[0] == 1.0


def test_auto_takes_the_value_type(load):
    text = "void f_cpu(float* o, const float* p, int n) { auto s = p[0]; const auto k = n / 2; s += k; o[0] = s; }"
    out, p = np.zeros(1), np.array([0.1])
    load(only(text))(pointer(out), pointer(p), ctypes.c_int(3))
    assert out[0] == 1.1


def test_typeof_of_a_double_expression(load):
    body = "__typeof__(0.5f) a = 0.1f; const typeof(__typeof__(o[0])) b = 2; decltype(a) c = a * b; o[0] = c;"
    text = f"void f_cpu(float* o) {{ {body} }}"
    out = np.zeros(1)
    load(only(text))(pointer(out))
    assert out[0] == 0.2


def test_conditionals_are_resolved_for_float(load):
    text = """
    #if defined(ENABLE_BF16)
    #define BIAS 1.0f
    #elif defined(ENABLE_FP32)
    #define BIAS 2.0f
    #endif
    void f_cpu(float* o) {
    #ifdef _OPENMP
        omp_set_num_threads(4); {
    #else
        {
    #endif
        o[0] = BIAS; }
    }
    """
    out = np.zeros(1)
    load(only(text))(pointer(out))
    assert out[0] == 2.0


def test_two_versions_of_one_reference_by_conditional():
    text = "#ifdef FAST\nvoid f_cpu(float* o, int fast) {}\n#else\nvoid f_cpu(float* o) {}\n#endif\n"
    assert only(text).params == (("o", "float*"),)
    assert only(text).span.line == 4


def test_dead_code_is_not_a_reference():
    assert parse_references("#if 0\nvoid f_cpu(float* o) { syntax error }\n#endif\n", "x.cu") == ([], [])


def test_line_directives_name_the_original_file():
    text = (
        '#line 40 "llmc/gelu.cuh"\n\nvoid ok_cpu(float* o) { o[0] = 1; }\nvoid bad_cpu(float* o) {\n  o[0] = = 1;\n}\n'
    )
    references, diagnostics = parse_references(text, "all.cu", preprocessed=True)
    assert references[0].span == SourceSpan("llmc/gelu.cuh", 41, 1)
    assert str(diagnostics[0]).startswith("llmc/gelu.cuh:43:10: warning: reference bad_cpu cannot be read")


def test_places_of_lines_can_be_given():
    places = [SourceSpan("a.cuh", 7), SourceSpan("b.cu", 3), SourceSpan("b.cu", 9)]
    text = "void a_cpu(float* o) {}\nvoid b_cpu(float* o)\n{ o[0] = = 1; }"
    references, diagnostics = parse_references(text, "b.cu", preprocessed=True, places=places)
    assert references[0].span == SourceSpan("a.cuh", 7, 1)
    assert diagnostics[0].span.origin == "b.cu:9"


def test_has_include_is_answered_with_no(load):
    text = "#if __has_include(<omp.h>)\n#define X 1\n#else\n#define X 2\n#endif\nvoid f_cpu(float* o) { o[0] = X; }"
    out = np.zeros(1)
    load(only(text))(pointer(out))
    assert out[0] == 2.0


def test_extern_c_and_namespaces_are_looked_into():
    text = (
        'extern "C" {\nnamespace a { namespace {\nvoid f_cpu(float* o) { o[0] = 1; }\n} }\n}\nvoid g_cpu(float* o) {}'
    )
    references, diagnostics = parse_references(text, "x.cu")
    assert ([r.name for r in references], diagnostics) == (["f_cpu", "g_cpu"], [])


def test_names_in_strings_comments_and_calls_are_no_references():
    text = """
    // void a_cpu(float* o) { } \\
       void b_cpu(float* o) { }
    /* void c_cpu(float* o) { } */
    const char* s = "void d_cpu(float* o) { } //";
    const char* r = R"x(void e_cpu(float* o) { })x";
    void f_cpu(float* o);
    int main() { char c = '"'; f_cpu(0); return '{'; }
    void g_cpu(float* o) { o[0] = '}'; }
    """
    assert only(text).name == "g_cpu"


def test_plain_c_files_offer_ops_by_name():
    text = """
    typedef struct { int layers; } Model;
    typedef float real;
    void relu_forward(real* out, const float* inp, int N) { out[0] = inp[0] * N; }
    void relu_backward(float *dinp, float *inp, float *dout, int N) { dinp[0] += dout[0]; }
    void adam_update(float* w, float rate, uint32_t step) { w[0] -= rate * step; }
    void model_forward(Model* model, float* inp) { inp[0] = model->layers; }
    float helper(float x) { return x; }
    """
    assert [r.name for r in parse_references(text, "train.c")[0]] == ["relu_forward", "relu_backward", "adam_update"]
    assert parse_references(text, "train.c")[1] == []
    assert parse_references(text, "train.cu") == ([], [])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{ o[0] = mystery(o[1]); }", "dev/x.cu:1:31: warning: reference f_cpu cannot be read: it uses mystery"),
        ("{ auto& v = o[0]; v = 1; }", "deduces a type by auto"),
        (
            "{ float& v = o[0]; v = 1; }",
            "dev/x.cu:1:24: warning: reference f_cpu cannot be read: it is not plain C (Invalid declaration)",
        ),
        ("{ int bits = *(int*)&o[0]; o[0] = bits; }", "reads the bits of one type as another"),
        ("{ unsigned u; memcpy(&u, &o[0], 4); o[0] = u; }", "copies the bytes of one variable into another"),
        ("{ union { float f; int i; } u; u.f = o[0]; o[0] = u.i; }", "union"),
        ("{ int i = 0; o[0] = std::max(o[i++], 1.0f); }", "an argument of max has a side effect"),
        ("{ std::vector<float> v(3); o[0] = v[0]; }", "it is not plain C"),
    ],
)
def test_what_cannot_be_read_is_named(body, why):
    assert why in complaint(f"void f_cpu(float* o) {body}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "template <class T>\nvoid f_cpu(T* o) {}",
            "dev/x.cu:1:1: warning: reference f_cpu cannot be read: it is a template",
        ),
        ("typedef struct { int a; } S;\nvoid f_cpu(S s) {}", "type S|structure"),
        ("void f_cpu(float (*g)(float)) {}", "function pointer"),
        ("extern float scale;\nvoid f_cpu(float* o) { o[0] = scale; }", "scale, which another file defines"),
        ("void g() {\nvoid f_cpu(float* o) { o[0] = 1; }", "dev/x.cu:2:6: .*braces before it do not match"),
    ],
)
def test_what_cannot_be_called_is_named(text, why):
    assert re.search(why, complaint(text))


def test_overloads_are_each_named():
    references, diagnostics = parse_references("void f_cpu(float* o) {}\nvoid f_cpu(int* o) {}\n", "x.cu")
    assert references == []
    assert [diagnostic.span.line for diagnostic in diagnostics] == [1, 2]
    assert "more than once" in str(diagnostics[0])


def test_same_input_gives_the_same_source():
    text = HELPERS + "void f_cpu(float* o) { o[0] = first(kHalf, 1) + SCALE; }"
    assert only(text).double_source == only(text).double_source


def test_source_holds_no_float_and_no_place_of_this_machine():
    source = only(HELPERS + "void f_cpu(float* o) { o[0] = (float)first(kHalf, 1) + SCALE; }").double_source
    assert "float " not in source.replace("float.h", "")
    assert "x.cu" not in source


def test_asserts_do_not_end_the_process(load):
    out = np.zeros(1)
    load(only('void f_cpu(float* o) { assert(o[0] > 0 && "positive"); o[0] = 1; }'))(pointer(out))
    assert out[0] == 1.0


VENDORED = sorted(VENDOR.glob("dev/cuda/*.cu"))


@pytest.mark.parametrize("path", VENDORED, ids=lambda path: path.stem)
def test_vendored_references_are_read_and_compile(path, load):
    references, diagnostics = parse_references(path.read_text(encoding="utf-8"), path.name)
    assert references
    assert diagnostics == []
    for reference in references:
        assert load(reference) is not None


def test_vendored_gelu_is_the_formula(load):
    path = VENDOR / "dev/cuda/gelu_forward.cu"
    (reference,) = parse_references(path.read_text(encoding="utf-8"), "gelu_forward.cu")[0]
    x, out = np.linspace(-6, 6, 101), np.zeros(101)
    load(reference)(pointer(out), pointer(x), ctypes.c_int(101))
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(out, wanted, rtol=1e-13, atol=1e-15)


def test_reading_all_vendored_files_is_quick():
    texts = [path.read_text(encoding="utf-8") for path in VENDORED]
    start = time.process_time()
    for text in texts:
        parse_references(text, "x.cu")
    assert time.process_time() - start < 0.15 * len(texts)


def test_default_arguments_are_left_out() -> None:
    text = """
    void step_cpu(float* x, int n, float rate=1e-3, float eps = 1e-8f) {
        int i = 0, last = n;
        while (last = n - i) { x[i] -= rate / (x[i] + eps); i++; }
    }
    """
    (reference,), diagnostics = parse_references(text, "step.cu")
    assert diagnostics == []
    assert [name for name, _ in reference.params] == ["x", "n", "rate", "eps"]
    assert "last = n - i" in reference.double_source
