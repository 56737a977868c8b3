"""Every kind of change, from small sources: what it is called and what it is said to mean."""

from __future__ import annotations

import re

import pytest

from llmc2py.drift.changes import Change, Meaning
from llmc2py.drift.compare import compare

SOURCE = """\
__device__ float twice(float x) { return 2.0f * x; }
__global__ void scale(float* out, const float* inp, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float value = twice(inp[i]);
        out[i] = value * by;
    }
}
__global__ void sum(float* out, const float* inp, int n) {
    __shared__ float part[32];
    part[threadIdx.x] = threadIdx.x < n ? inp[threadIdx.x] : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int k = 0; k < 32; ++k) total += part[k];
        out[0] = total;
    }
}
template <typename T>
__global__ void fill(T* out, T filling) { out[threadIdx.x] = filling; }
void scale_by(float* out, const float* inp, float by, int n) {
    const int block_size = 256;
    const int blocks = (n + block_size - 1) / block_size;
    scale<<<blocks, block_size>>>(out, inp, by, n);
}
void sum_up(float* out, const float* inp, int n) {
    sum<<<1, 32>>>(out, inp, n);
}
void both(float* out, float* inp, int n) {
    scale_by(inp, inp, 2.0f, n);
    sum_up(out, inp, n);
}
void scale_cpu(float* out, const float* inp, float by, int n) {
    for (int i = 0; i < n; i++) { out[i] = 2.0f * inp[i] * by; }
}
"""
BOTH = "void both(float* out, float* inp, int n) {\n    scale_by(inp, inp, 2.0f, n);\n    sum_up(out, inp, n);\n}\n"
FILL = re.search(r"template <typename T>\n.*\n", SOURCE)[0]


@pytest.fixture
def changes(snapshot):
    """Return what changes where texts are replaced in the source, each of which must be there."""

    def run(*edits, old=None, new=None) -> list[Change]:
        text = SOURCE
        for before, after in edits:
            assert before in text
            text = text.replace(before, after)
        return compare(snapshot("old", old or {"a.cu": SOURCE}), snapshot("new", new or {"a.cu": text}))

    return run


def said(changes: list[Change]) -> set[tuple[str, str, str]]:
    return {(str(one.meaning), one.kind, one.name) for one in changes}


def test_a_tree_is_equal_to_itself(changes):
    assert changes() == []


CASES = {
    "a kernel's body": (
        ("out[i] = value * by;", "out[i] = value * by + 1.0f;"),
        {("numbers", "body-changed", "scale")},
    ),
    "code that a kernel uses": (("2.0f * x", "x * 2.0f"), {("numbers", "body-changed", "scale")}),
    "a constant": (("total = 0.0f", "total = 1.0f"), {("numbers", "body-changed", "sum")}),
    "an operator": (("total += part[k]", "total -= part[k]"), {("numbers", "body-changed", "sum")}),
    "another local of the same name": (
        ("out[i] = value * by;", "{ float value = by; out[i] = value * by; }"),
        {("numbers", "body-changed", "scale")},
    ),
    "a launch configuration without joint work": (
        ("block_size = 256", "block_size = 128"),
        {("speed", "launch-configuration-changed", "scale_by")},
    ),
    "a launch configuration with joint work": (
        ("sum<<<1, 32>>>", "sum<<<2, 32>>>"),
        {("numbers", "launch-configuration-changed", "sum_up")},
    ),
    "launch bounds": (
        ("__global__ void scale(", "__global__ void __launch_bounds__(256) scale("),
        {("speed", "launch-bounds-changed", "scale")},
    ),
    "a qualifier": (
        ("scale(float* out, const float* inp, float by", "scale(float* __restrict__ out, const float* inp, float by"),
        {("speed", "qualifiers-changed", "scale")},
    ),
    "a C reference": (
        ("2.0f * inp[i] * by", "2.0f * (inp[i] * by)"),
        {("numbers", "reference-changed", "scale_cpu")},
    ),
    "comments": (
        ("    if (i < n) {", "    // within\n    if (i < n) { /* here */"),
        {("cosmetic", "spelling-changed", "scale")},
    ),
    "comments elsewhere": (("void scale_cpu(", "// plain C\nvoid scale_cpu("), {("cosmetic", "file-changed", "a.cu")}),
    "a local of a kernel": (("value", "scaled"), {("cosmetic", "spelling-changed", "scale")}),
    "white space": (("value * by", "value*by"), {("cosmetic", "spelling-changed", "scale")}),
    "a local of a launcher": (("blocks", "count"), {("cosmetic", "spelling-changed", "scale_by")}),
    "an assert": (
        ("    const int block_size", "    assert(n % 4 == 0);\n    const int block_size"),
        {("breaking", "assert-added", "scale_by")},
    ),
    "what is called": (
        ("    sum_up(out, inp, n);\n", "    sum_up(out, inp, n);\n    sum_up(out, inp, n);\n"),
        {("numbers", "body-changed", "both")},
    ),
    "what is launched": (
        ("    sum<<<1, 32>>>(out, inp, n);", "    fill<float><<<1, 32>>>(out, 0.0f);"),
        {("numbers", "launches-changed", "sum_up"), ("numbers", "intent-changed", "sum_up")},
    ),
    "arguments": (("inp, inp, 2.0f, n)", "inp, inp, 3.0f, n)"), {("numbers", "body-changed", "both")}),
    "an output that adds": (
        ("out[0] = total;", "out[0] += total;"),
        {
            ("numbers", "body-changed", "sum"),
            ("breaking", "intent-changed", "sum"),
            ("breaking", "intent-changed", "sum_up"),
            ("breaking", "intent-changed", "both"),
        },
    ),
    "a template parameter": (
        ("template <typename T>", "template <typename T, int Offset>"),
        {("breaking", "template-changed", "fill")},
    ),
    "a kernel that goes": ((FILL, ""), {("breaking", "kernel-removed", "fill")}),
    "a kernel that comes": (
        ("template <typename T>", "__global__ void other(int* out) { out[0] = 1; }\ntemplate <typename T>"),
        {("addition", "kernel-added", "other")},
    ),
    "a launcher that goes": ((BOTH, ""), {("breaking", "launcher-removed", "both")}),
    "a launcher that cannot be lowered any more": (
        ("    sum<<<1, 32>>>", "    qsort(out, n, 4, NULL);\n    sum<<<1, 32>>>"),
        {("breaking", "left-out", "sum_up"), ("breaking", "left-out", "both")},
    ),
    "host code that is in no package": (
        ("void scale_cpu(", "static int unused_count = 3;\nvoid scale_cpu("),
        {("cosmetic", "file-changed", "a.cu")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_has_its_kind_and_meaning(changes, name):
    edit, expected = CASES[name]
    assert said(changes(edit)) == expected


def test_formulas_are_told_in_terms_of_parameters(changes):
    (change,) = changes(("block_size = 256", "block_size = 128"))
    assert change.old == "scale[ceil_div(n, 256), 256]"
    assert change.new == "scale[ceil_div(n, 128), 128]"


KERNEL = "const float* inp, float by, int n) {\n    int i"
CALL = "(out, inp, by, n);\n}\nvoid sum_up"
SIGNATURES = {
    "added": (
        [(KERNEL, KERNEL.replace("int n", "int n, int first")), (CALL, CALL.replace("n)", "n, 0)"))],
        "parameter-added",
        "int first",
    ),
    "dropped": (
        [(KERNEL, KERNEL.replace("float by, ", "")), ("value * by;", "value;"), (CALL, CALL.replace("by, ", ""))],
        "parameter-dropped",
        "float by",
    ),
    "reordered": (
        [
            ("scale(float* out, const float* inp, float by", "scale(const float* inp, float* out, float by"),
            (CALL, CALL.replace("out, inp", "inp, out")),
        ],
        "parameters-reordered",
        "(out, inp, by, n) is now (inp, out, by, n)",
    ),
    "retyped": ([(KERNEL, KERNEL.replace("float by", "double by"))], "parameter-retyped", "float is now double"),
    "renamed": (
        [(KERNEL, KERNEL.replace("float by", "float factor")), ("value * by;", "value * factor;")],
        "parameter-renamed",
        "by renamed to factor",
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_that_changes_breaks_callers(changes, name):
    edits, kind, text = SIGNATURES[name]
    found = [one for one in changes(*edits) if one.subject == "kernel"]
    told = [one for one in found if one.kind == kind]
    assert [one.meaning for one in told] == [Meaning.BREAKING]
    assert text in told[0].text
    if name != "dropped":
        assert found == told  # the body does the same with the same arrays


def test_arrays_that_change_places_in_a_body_are_a_change(changes):
    found = changes(("value = twice(inp[i])", "value = twice(out[i])"), ("out[i] = value", "inp[i] = value"))
    assert ("numbers", "body-changed", "scale") in said(found)


def test_a_renamed_kernel_is_known_by_its_code(changes):
    found = changes(("__global__ void scale(", "__global__ void scale_all("), ("scale<<<", "scale_all<<<"))
    assert said(found) == {("breaking", "kernel-renamed", "scale_all")}
    assert found[0].former == "a.cu:scale"


def test_a_kernel_that_is_renamed_and_edited_is_still_known(changes):
    found = changes(
        ("__global__ void scale(", "__global__ void scale_all("),
        ("scale<<<", "scale_all<<<"),
        ("value * by", "by * value"),
    )
    assert said(found) == {("breaking", "kernel-renamed", "scale_all"), ("numbers", "body-changed", "scale_all")}


def test_a_renamed_launcher_is_known_by_what_it_does(changes):
    found = changes(("scale_by(", "scale_with("))
    assert said(found) == {("breaking", "launcher-renamed", "scale_with")}


def test_what_moves_to_another_file_is_told_once(changes):
    found = changes(new={"a.cu": SOURCE.replace(FILL, ""), "b.cu": FILL})
    assert said(found) == {("breaking", "kernel-moved", "fill")}
    assert "in Python it is b.fill, was a.fill" in found[0].text


def test_a_changed_header_is_told_of_all_that_use_it(changes):
    header = "__device__ inline float half_of(float x) { return 0.5f * x; }\n"
    kernels = "".join(
        f"__global__ void k{n}(float* x) {{ x[threadIdx.x] = half_of(x[threadIdx.x]) + {n}; }}\n" for n in range(3)
    )
    source = {"a.cu": '#include "common.h"\n' + kernels}
    new = {"common.h": header.replace("0.5f", "0.25f")} | source
    found = changes(old={"common.h": header} | source, new=new)
    assert said(found) == {("numbers", "body-changed", f"k{n}") for n in range(3)}
    assert {one.text for one in found} == {"code that it uses changed: half_of"}
    assert all("common.h" in one.files for one in found)


def test_precisions_that_go_break_callers(changes):
    head = "#if defined(ENABLE_BF16)\ntypedef __nv_bfloat16 real;\n#else\ntypedef float real;\n#endif\n"
    kernel = "__global__ void k(real* x) { x[threadIdx.x] = (real)1.0f; }\n"
    found = changes(old={"a.cu": head + kernel}, new={"a.cu": "typedef float real;\n" + kernel})
    assert ("breaking", "precision-dropped", "k") in said(found)


@pytest.mark.parametrize("spelling", ["__align__(16)", "alignas(16)"])
def test_every_digit_of_an_alignment_counts(changes, spelling):
    """The grammar knows one spelling of the two, and puts the other into it."""
    source = f"struct {spelling} P {{ float v[4]; }};\n__global__ void k(float* y) {{ P p; y[0] = sizeof(p); }}\n"
    found = changes(old={"a.cu": source}, new={"a.cu": source.replace("(16)", "(128)")})
    assert said(found) == {("numbers", "body-changed", "k")}


def test_overloads_that_change_places_are_no_matter_of_spelling(changes):
    one, other = "__device__ int f(int x) { return 1; }\n", "__device__ int f(double x) { return 2; }\n"
    user = "__device__ int g() { return f(1.0); }\n"
    kernel = "__global__ void k(int* out) { out[0] = g(); }\n"
    found = changes(old={"a.cu": one + user + other + kernel}, new={"a.cu": one + other + user + kernel})
    assert said(found) == {("numbers", "body-changed", "k")}
