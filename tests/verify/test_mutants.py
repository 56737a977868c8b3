"""A wrong kernel, launch, layer or reference is a failed row: every check can fail."""

from __future__ import annotations

import pytest

from llmc2py.verify.cases import Case
from llmc2py.verify.report import verify_package

ELEMENTWISE = [Case((3, 5, 7), {}, layouts=True), Case((2048,), {}), Case((0,), {})]
ROWWISE = [Case((4, 8), {"C": 40}), Case((16,), {"C": 8})]
OFF_BLOCK = [Case((9,), {"C": 17})]
ATTENTION = [Case((2,), {"T": 9, "C": 32, "NH": 2}, options={"NH": 2})]
# The last are as long as the kernel of llmc/fused_classifier.cuh wants its rows.
CLASSIFIER = [
    Case((rows,), {"Vp": width, "V": size}, options={"V": size, "accumulation": 3, "inplace": inplace})
    for rows, width, size in ((6, 24, 17), (2, 4224, 4100))
    for inplace in (False, True)
]
ENCODER = [Case((2, 3), {"T": 5, "V": 6, "C": columns, "L": 6}) for columns in (24, 23)]
LINEAR = [Case((9,), {"C": 12, "OC": width}) for width in (16, 7)]
MLP = [Case((9,), {"C": 8, "H": 16}, options={"recompute": recompute}) for recompute in (False, True)]


def run(package, layer, cases):
    """Return the names of the checks that failed, in float32 and in the references."""
    rows = verify_package(package, "cpu", [layer], precisions=["float32"], cases=lambda spec: cases, variants=False)
    assert rows
    return {row.check for row in rows if not row.ok}


CASES = {
    "GeLU": ELEMENTWISE, "Residual": ELEMENTWISE, "LayerNorm": ROWWISE, "FusedResidualLayerNorm": ROWWISE,
    "Attention": ATTENTION, "FusedClassifier": CLASSIFIER, "Encoder": ENCODER, "Linear": LINEAR, "LinearGeLU": LINEAR,
    "MLP": MLP,
}  # fmt: skip


@pytest.mark.parametrize("layer", CASES)
def test_what_is_not_mutated_passes(made, layer):
    more = [*OFF_BLOCK, Case((2, 3), {"C": 17}, True)] if CASES[layer] is ROWWISE else []
    assert run(str(made), layer, [*CASES[layer], *more]) == set()


# What is changed, in which file, the layer, its shapes, and checks that must be among those that fail.
MUTANTS = {
    "digit of a constant": ("gelu.cu", r"0\.044715f", "0.0444f", "GeLU", ELEMENTWISE, {"forward", "backward"}),
    "dropped term of the derivative": (
        "gelu.cu", r"\(1\.0f \+ 3\.0f \* 0\.044715f \* t \* t\)", "1.0f", "GeLU", ELEMENTWISE, {"backward"},
    ),
    "incoming gradient left out": (
        "gelu.cu", r"\(float\)gradient\[i\] \* gelu_slope", "gelu_slope", "GeLU", ELEMENTWISE, {"backward"},
    ),
    "incoming gradient overwritten": (
        "gelu.py", r"dinp = own\(ctx, dout\)", "dinp = dout", "GeLU", ELEMENTWISE, {"arrays unchanged"},
    ),
    "input overwritten": (
        "gelu.py", r"out = empty_like\(inp\)", "out = inp", "GeLU", ELEMENTWISE, {"arrays unchanged", "used twice"},
    ),
    "order of memory taken for order of elements": (
        "gelu.py", r'inp = take\("GeLU", "inp", inp, DTYPES\)', 'inp = inp.ravel(order="K").reshape(inp.shape)',
        "GeLU", ELEMENTWISE, {"transposed arrays"},
    ),
    "elements never written": (
        "residual.cu", r"(const size_t first = [^;]*;)", r"\1 if (first == 8) return;",
        "Residual", ELEMENTWISE, {"forward"},
    ),
    "difference for a sum": (
        "residual.cu", r"\(float\)a\[i\] \+ \(float\)b\[i\]", "(float)a[i] - (float)b[i]",
        "Residual", ELEMENTWISE, {"forward"},
    ),
    "epsilon": ("layernorm.cu", r"1e-5f", "1e-6f", "LayerNorm", ROWWISE, {"forward", "backward"}),
    "mean left out of the variance": (
        "layernorm.cu", r"\(float\)x\[i\] - mean;", "(float)x[i];", "LayerNorm", ROWWISE, {"forward"},
    ),
    "A7: rstd missing on the mean term": (
        "layernorm.cu", r"s \* \((.*?) - average\.x - n \* average\.y\)", r"(s * (\1 - n * average.y) - average.x)",
        "LayerNorm", ROWWISE, {"backward"},
    ),
    "rstd missing in the weight gradient": (
        "layernorm.cu", r"(gathered\.weight\[i\] \+= .*?\bn\b);", r"\1 / s;", "LayerNorm", ROWWISE, {"backward"},
    ),
    "rows summed without +=": (
        "layernorm.cu", r"gathered\.bias\[i\] \+= \(float\)slope", "gathered.bias[i] = (float)slope",
        "LayerNorm", [Case((512,), {"C": 40})], {"backward"},
    ),
    "parameter gradients not added to": (
        "layernorm.cu", r"\(floatX\)\(\(float\)dbias\[c - C\] \+ value\)", "(floatX)(value)",
        "LayerNorm", ROWWISE, {"accumulation"},
    ),
    "last row left out": (
        "layernorm.cu", r"if \(row >= N\) return;", "if (row >= N - 1) return;", "LayerNorm", OFF_BLOCK, {"forward"},
    ),
    "arguments of a launch swapped": (
        "layernorm.py", r"out, mean, rstd, inp, weight, bias, N, C\b", "out, rstd, mean, inp, weight, bias, N, C",
        "LayerNorm", ROWWISE, {"backward"},
    ),
    "arguments of a launcher swapped": (
        "layernorm.py", r"\(out, mean, rstd, inp, weight, bias, N, 1, C\)",
        "(out, mean, rstd, inp, bias, weight, N, 1, C)",
        "LayerNorm", ROWWISE, {"forward"},
    ),
    "gradients of parameters exchanged": (
        "layernorm.py", r"return dinp, dweight, dbias", "return dinp, dbias, dweight",
        "LayerNorm", ROWWISE, {"backward"},
    ),
    "residual stream's gradient left out": (
        "fused_residual.py", r"dinp = own\(ctx, dresidual\)", "dinp = zeros_like(dresidual)",
        "FusedResidualLayerNorm", ROWWISE, {"backward"},
    ),
    "positions that see what comes after them": (
        "attention.cu", r"const int visible = \(int\)\(row % T\) \+ 1;", "const int visible = T;",
        "Attention", ATTENTION, {"forward"},
    ),
    "values read where keys are": (
        "attention.cu", r"v \+ at\.by_head, load_packet\(of_query \+ 2 \*", "v + at.by_head, load_packet(of_query +",
        "Attention", ATTENTION, {"forward"},
    ),
    "sum left out of the softmax's gradient": (
        "attention.cu", r"\(\(float\)gradient\[i\] - dot\)", "(float)gradient[i]",
        "Attention", ATTENTION, {"backward"},
    ),
    "scale left out of the scores' gradient": (
        "attention.cu", r"scale \* \(float\)share\[i\]", "(float)share[i]", "Attention", ATTENTION, {"backward"},
    ),
    "gradients of queries and keys exchanged": (
        "attention.py", r"dinp, dq, dk, dv, B", "dinp, dk, dq, dv, B", "Attention", ATTENTION, {"backward"},
    ),
    "weights read from the first head alone": (
        "attention.py", r"mixed, v, att, None, HS, T, T, False, False, heads, head_size, square, head_size",
        "mixed, v, att, None, HS, T, T, False, False, heads, head_size, 0, head_size",
        "Attention", ATTENTION, {"forward"},
    ),
    "bias left out": (
        "linear.py", r"\(out, inp, weight, bias, N, 1", "(out, inp, weight, None, N, 1", "Linear", LINEAR, {"forward"},
    ),
    "bias's gradient of one warp alone": (
        "linear.cu", r"total \+= of_warp", "total = of_warp", "Linear", LINEAR[:1], {"backward"},
    ),
    "row left out of the bias's gradient": (
        "linear.py", r"None, OC, 1, N, False", "None, OC, 1, N - 1, False", "Linear", LINEAR[1:], {"backward"},
    ),
    "weight's gradient not added to": (
        "linear.py", r"(dweight, inp, dout, .*?), True, None, True\)", r"\1, False, None, True)",
        "Linear", LINEAR, {"accumulation"},
    ),
    "incoming gradient of a fused layer overwritten": (
        "linear_gelu.py", r"dsums = own\(ctx, dout\)", "dsums = dout", "LinearGeLU", LINEAR, {"arrays unchanged"},
    ),
    "sums taken for their GELU": (
        "mlp.py", r"out, active, fcprojw", "out, sums, fcprojw", "MLP", MLP, {"forward"},
    ),
    "sums taken for their GELU where it is computed again": (
        "mlp.py", r"(if hidden is None:\n +active = ).*\n.*", r"\1sums", "MLP", MLP[1:], {"backward"},
    ),
    "target left out of the classifier's gradient": (
        "llmc/fused_classifier.cu", r"\(p - \(!Plain && c \+ i == target \? 1\.0f : 0\.0f\)\)", "p",
        "FusedClassifier", CLASSIFIER, {"backward"},
    ),
    "padding counted": (
        "llmc/fused_classifier.cu", r"prepare_softmax_blockwide3\(idx, logits, V, P\)",
        "prepare_softmax_blockwide3(idx, logits, P, P)", "FusedClassifier", CLASSIFIER, {"forward", "backward"},
    ),
    "loss's gradient left out": (
        "classifier.py", r"scale\(dlogits, dloss\)", "pass", "FusedClassifier", CLASSIFIER, {"backward"},
    ),
    "logits overwritten": (
        "classifier.py", r"V, Vp, inplace\)", "V, Vp, True)",
        "FusedClassifier", CLASSIFIER, {"arrays unchanged"},
    ),
    "accumulation forgotten": (
        "classifier.py", r"N \* accumulation", "N", "FusedClassifier", CLASSIFIER, {"forward", "backward"},
    ),
    "position forgotten": (
        "encoder.cu", r"wpe \+ row % T \* C", "wpe", "Encoder", ENCODER[:1], {"forward"},
    ),
    "gradients of the tables exchanged": (
        "encoder.py", r"return None, dwte, dwpe", "return None, dwpe, dwte", "Encoder", ENCODER, {"backward"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_fail(mutate, mutant):
    file, pattern, replacement, layer, cases, expected = MUTANTS[mutant]
    package = mutate(file, pattern, replacement)
    if "zeros_like" in replacement:
        mutate(file, r"(?m)^    zeros,$", "    zeros,\n    zeros_like,")
    failed = run(package, layer, cases)
    assert expected <= failed
    assert not {check for check in failed if check == "derivative" or check.startswith("C reference")}


def test_state_kept_on_the_function_instead_of_the_call_fails(mutate):
    mutate("gelu.py", r"ctx\.save\(inp\)", "GeLUFunction.kept = inp")
    package = mutate("gelu.py", r"\(?inp,\)? = ctx\.saved", "inp = GeLUFunction.kept")
    assert run(package, "GeLU", ELEMENTWISE) == {"used twice"}


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "expected"),
    [
        ("references.py", r"3 \* 0\.044715 \* inp", "0.044715 * inp", "derivative"),
        ("references.py", r"0\.044715 \* inp\*\*3", "0.0447 * inp**3", "C reference gelu_forward_cpu"),
        (
            "references_c/dev/cuda/gelu_backward/gelu_backward_cpu.c",
            r"dinp\[(\w+)\] = (.*);",
            r"dinp[\1] = 2.0 * (\2);",
            "C reference gelu_backward_cpu",
        ),
    ],
)
def test_wrong_references_fail(mutate, file, pattern, replacement, expected):
    assert expected in run(mutate(file, pattern, replacement), "GeLU", ELEMENTWISE)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_sum_normalised_before_it_is_rounded_fails(mutate, precision):
    """What the reference says of stored values is held in the half precisions."""
    package = mutate("references.py", r"residual = stored\(inp1 \+ inp2\)", "residual = inp1 + inp2")
    cases = [Case((32,), {"C": 768})]
    rows = verify_package(
        package, "cpu", ["fused_residual"], precisions=[precision], cases=lambda spec: cases, variants=False
    )
    assert {row.check for row in rows if not row.ok} & {"forward", "backward"}
