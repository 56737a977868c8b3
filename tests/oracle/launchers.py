"""The launchers of vendor/llm.c: which sizes they take, and how long their arrays are in terms of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

#: A strategy for a scalar, or an expression of what was drawn before it.
Size = st.SearchStrategy | str

#: Block sizes that every kernel runs with. Others are only recorded: some kernels work in whole warps.
RUNNING_BLOCKS = (32, 64, 128, 256, 512, 1024)
_ODD_BLOCKS = (1, 31, 33, 96, 100, 1025, 2048)
_BLOCKS = st.one_of(st.sampled_from(RUNNING_BLOCKS), st.sampled_from(RUNNING_BLOCKS + _ODD_BLOCKS))
_SMALL = st.integers(1, 3)
_ROWS = st.integers(1, 70)
_WIDTHS = st.one_of(st.integers(1, 70), st.sampled_from([64, 128, 768]))
_ELEMENTS = st.one_of(st.integers(1, 9000), st.integers(1, 4).map(lambda n: n * 4096))
_RATES = st.sampled_from([0.0, 0.1, 0.9, 0.95, 0.999, 1e-8, 3e-4])
ALL = ("float32", "float16", "bfloat16")
SINGLE = ("float32",)


@dataclass(frozen=True)
class Row:
    """What a launcher takes.

    ``sizes`` are its scalars, and others that lengths are made of, in the order in which they are drawn; ``lengths``
    the elements of its arrays; ``below`` the bounds of what index arrays hold; ``callees`` the launchers that
    parameters stand for; ``functions`` those that template parameters do. Type parameters are floatX. ``nulls`` says
    when an array is null that otherwise is by chance, ``runs`` when kernels may run.
    """

    sizes: Mapping[str, Size]
    lengths: Mapping[str, str]
    below: Mapping[str, str] = field(default_factory=dict)
    precisions: tuple[str, ...] = SINGLE
    callees: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    nulls: Mapping[str, str] = field(default_factory=dict)
    runs: str = "True"


def _numbers(last: int) -> st.SearchStrategy[int]:
    """Numbers of kernels, and one on either side that no kernel has."""
    return st.integers(0, last + 1)


def _lengths(**names: str) -> dict[str, str]:
    """``N="a b"``: arrays a and b have N elements. Keys are keywords, so ``_`` stands for the product."""
    return {array: length.replace("_x_", "*") for length, arrays in names.items() for array in arrays.split()}


Table = dict[tuple[str, str], Row]


def _numbered(file: str, name: str, last: int, row: Row, *, first: int = 1, dispatch: Row | None = None) -> Table:
    """Return the rows of the launchers ``name1`` to ``name<last>`` and of the dispatcher ``name``."""
    rows = {(file, f"{name}{number}"): row for number in range(first, last + 1)}
    chosen = dispatch or row
    return rows | {(file, name): replace(chosen, sizes={"kernel_num": _numbers(last), **chosen.sizes})}


def _elementwise(file: str, name: str, arrays: str, *, dispatch_by_shape: bool) -> Table:
    flat = Row({"N": _ELEMENTS, "block_size": _BLOCKS}, _lengths(N=arrays), precisions=ALL)
    shaped = Row(
        {"B": _SMALL, "T": _ROWS, "C": _WIDTHS, "block_size": _BLOCKS}, _lengths(B_x_T_x_C=arrays), precisions=ALL
    )
    return _numbered(file, name, 2, flat, dispatch=shaped if dispatch_by_shape else flat)


_BTC = {"B": _SMALL, "T": st.integers(1, 20), "C": _WIDTHS}
_BTC_BLOCK = _BTC | {"block_size": _BLOCKS}
_NC_BLOCK = {"N": _ROWS, "C": st.one_of(_WIDTHS, st.sampled_from([4099, 50000])), "block_size": _BLOCKS}
# C is mostly a multiple of NH.
_HEADS = {
    "B": _SMALL,
    "T": st.integers(1, 20),
    "NH": st.integers(1, 4),
    "head": st.integers(1, 40),
    "rest": st.sampled_from([0, 0, 0, 1]),
    "C": "NH * head + rest",
    "block_size": _BLOCKS,
}
_CLASSES = {"B": _SMALL, "T": st.integers(1, 9), "V": st.integers(1, 300)}
_PADDED = _CLASSES | {"padding": st.integers(-1, 9), "P": "max(1, V + padding)"}
_ADAMW = dict.fromkeys(("learning_rate", "beta1", "beta2", "eps", "weight_decay"), _RATES)
_SLICES = {"num_slices": st.integers(1, 3)}
_VOCABULARY = {"V": st.integers(1, 50)}

_CLASSIFIER = Row(
    _PADDED | {"block_size": _BLOCKS},
    _lengths(B_x_T_x_P="dlogits logits", B_x_T="losses dlosses targets"),
    {"targets": "V"},
    runs="V <= P",
)
_EMBEDDING = Row(
    _VOCABULARY | _BTC_BLOCK, _lengths(B_x_T_x_C="out", B_x_T="inp", V_x_C="wte", T_x_C="wpe"), {"inp": "V"}, ALL
)
_NORM = Row(_BTC_BLOCK, _lengths(B_x_T_x_C="out inp", C="weight bias", B_x_T="mean rstd"))
_NORM_BACKWARD = Row(
    _BTC_BLOCK,
    _lengths(B_x_T_x_C="dinp dout inp", C="dweight dbias weight", B_x_T="mean rstd")
    | {"scratch": "32 + 4 * C * multiprocessors"},
)
_FUSED_RESIDUAL = Row(
    {"N": _ROWS, "C": _WIDTHS, "block_size": _BLOCKS},
    _lengths(N_x_C="residual normed inp1 inp2", N="mean rstd", C="weight bias"),
    precisions=ALL,
)
_SUM_OF_SQUARES = Row(
    {"count": _ELEMENTS, "block_size": _BLOCKS}, _lengths(count="values") | {"out": "1024"}, precisions=ALL
)
_SOFTMAX = Row(_NC_BLOCK, _lengths(N_x_C="out inp"))
_SOFTMAX_BACKWARD = Row(_HEADS, _lengths(B_x_NH_x_T_x_T="dpreatt datt att"))
_ATTENTION = Row(_HEADS, _lengths(B_x_T_x_C="out", B_x_NH_x_T_x_T="preatt att") | {"inp": "B * T * 3 * C"})
_PRODUCTS = _lengths(B_x_T_x_C="vaccum", B_x_NH_x_T_x_T="preatt att", B_x_NH_x_T="stats")
_ATTENTION_BY_PRODUCTS = Row(
    _HEADS, _lengths(B_x_T_x_C="out") | _PRODUCTS | {"inp": "3 * B * T * C", "qkvr": "3 * B * T * C"}
)
_ATTENTION_BACKWARD = Row(
    _HEADS,
    dict.fromkeys(("dinp", "dqkvr", "inp", "qkvr"), "3 * B * T * C")
    | _lengths(B_x_T_x_C="dout vaccum dvaccum", B_x_NH_x_T_x_T="preatt att dpreatt datt"),
)
_BIAS_GRADIENT = Row(
    _BTC | {"OC": st.integers(1, 150), "block_size": _BLOCKS}, _lengths(B_x_T_x_OC="dout", OC="dbias"), precisions=ALL
)
_LINEAR = _BTC | {"OC": _WIDTHS}
_LINEAR_BACKWARD = Row(
    _LINEAR,
    _lengths(B_x_T_x_C="dinp inp", OC_x_C="dweight weight", OC="dbias", B_x_T_x_OC="dout", B_x_T="ones"),
)
_TRIANGLE = Row(
    {name: size for name, size in _HEADS.items() if name != "block_size"} | {"T": st.sampled_from([1, 3, 127, 129])},
    _lengths(B_x_NH_x_T_x_T="out preatt") | {"inp": "3 * B * T * C"},
)
_MATMUL = Row(
    {**_BTC, "OC": _WIDTHS, "sqrt_block_size": st.sampled_from([8, 16, 32, 16, 5, 33])},
    _lengths(B_x_T_x_OC="out", B_x_T_x_C="inp", OC_x_C="weight", OC="bias"),
)
_CROSSENTROPY = Row(
    _CLASSES | {"block_size": _BLOCKS}, _lengths(B_x_T="losses targets", B_x_T_x_V="probs"), {"targets": "V"}
)
_CROSSENTROPY_BACKWARD = replace(_CROSSENTROPY, lengths=_lengths(B_x_T="dlosses targets", B_x_T_x_V="dlogits probs"))

#: Launchers that cannot be called on their own, with the reason.
INNER = {
    ("dev/cuda/attention_backward.cu", "dispatch_launch"): "calls a lambda; launch_softmax_6 to 8 go through it",
}

ROWS: Table = {
    **{
        ("dev/cuda/adamw.cu", f"adamw_dispatch{n}"): Row(
            {"num_parameters": _ELEMENTS, **_ADAMW, "beta1_correction": _RATES, "beta2_correction": _RATES},
            _lengths(num_parameters="params_memory grads_memory m_memory v_memory"),
        )
        for n in (1, 2)
    },
    ("dev/cuda/adamw.cu", "adamw"): Row(
        {"kernel_num": _numbers(2), "num_parameters": _ELEMENTS, "t": st.integers(1, 100), **_ADAMW},
        _lengths(num_parameters="params_memory grads_memory m_memory v_memory"),
    ),
    **{("dev/cuda/attention_backward.cu", f"launch_softmax_{n}"): _SOFTMAX_BACKWARD for n in range(1, 9)},
    **{("dev/cuda/attention_forward.cu", f"attention_forward{n}"): _ATTENTION for n in (1, 2)},
    **_numbered("dev/cuda/classifier_fused.cu", "fused_classifier", 5, _CLASSIFIER),
    **_numbered("dev/cuda/crossentropy_forward.cu", "crossentropy_forward", 1, _CROSSENTROPY),
    **_numbered(
        "dev/cuda/crossentropy_softmax_backward.cu", "crossentropy_softmax_backward", 1, _CROSSENTROPY_BACKWARD
    ),
    **_numbered(
        "dev/cuda/encoder_backward.cu",
        "encoder_backward",
        2,
        replace(
            _EMBEDDING,
            lengths=_lengths(V_x_C="dwte", T_x_C="dwpe", B_x_T_x_C="dout", B_x_T="inp"),
            precisions=SINGLE,
        ),
    ),
    **_numbered("dev/cuda/encoder_forward.cu", "encoder_forward", 3, _EMBEDDING),
    **_numbered("dev/cuda/fused_residual_forward.cu", "fused_residual_forward", 6, _FUSED_RESIDUAL),
    **_elementwise("dev/cuda/gelu_backward.cu", "gelu_backward", "dinp inp dout", dispatch_by_shape=True),
    **_elementwise("dev/cuda/gelu_forward.cu", "gelu_forward", "out inp", dispatch_by_shape=True),
    **_elementwise("dev/cuda/residual_forward.cu", "residual_forward", "out inp1 inp2", dispatch_by_shape=False),
    **_numbered("dev/cuda/global_norm.cu", "global_norm", 4, _SUM_OF_SQUARES),
    ("dev/cuda/layernorm_backward.cu", "layernorm_backward1"): _NORM_BACKWARD,
    **_numbered(
        "dev/cuda/layernorm_backward.cu", "layernorm_backward", 10, replace(_NORM_BACKWARD, precisions=ALL), first=2
    ),
    **_numbered("dev/cuda/layernorm_forward.cu", "layernorm_forward", 6, _NORM),
    **{("dev/cuda/attention_forward.cu", f"attention_forward{n}"): _ATTENTION_BY_PRODUCTS for n in (3, 4)},
    ("dev/cuda/attention_forward.cu", "attention_forward5"): replace(
        _ATTENTION_BY_PRODUCTS,
        sizes={**_HEADS, "skip_permute": st.booleans(), "first_run_validation": st.booleans()},
        precisions=ALL,
    ),
    ("dev/cuda/attention_forward.cu", "attention_forward"): replace(
        _ATTENTION_BY_PRODUCTS,
        sizes={
            "kernel_num": st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]),
            **_HEADS,
            "first_run_validation": st.booleans(),
        },
    ),
    ("dev/cuda/attention_backward.cu", "attention_forward"): _ATTENTION_BY_PRODUCTS,
    ("dev/cuda/attention_backward.cu", "attention_backward1"): replace(
        _ATTENTION_BACKWARD, callees={"softmax_autoregressive_backward": "launch_softmax_5"}
    ),
    ("dev/cuda/attention_backward.cu", "attention_backward"): replace(
        _ATTENTION_BACKWARD, sizes={"kernel_num": _numbers(8), **_HEADS}
    ),
    **_numbered("dev/cuda/matmul_backward.cu", "matmul_backward", 1, _LINEAR_BACKWARD),
    **{
        key: row
        for key, row in _numbered("dev/cuda/matmul_backward_bias.cu", "matmul_backward_bias", 9, _BIAS_GRADIENT).items()
        if key[1] != "matmul_backward_bias6"
    },
    **_numbered("dev/cuda/matmul_forward.cu", "matmul_forward", 4, _MATMUL),
    ("dev/cuda/trimat_forward.cu", "trimul_cublas"): _TRIANGLE,
    ("dev/cuda/trimat_forward.cu", "trimul_launcher"): replace(_TRIANGLE, functions={"matmul_tri": "matmul_tri3"}),
    ("dev/cuda/trimat_forward.cu", "trimul_gpu"): replace(
        _TRIANGLE, sizes={"kernel_num": st.integers(0, 5), **_TRIANGLE.sizes}
    ),
    ("llmc/attention.cuh", "attention_forward"): Row(
        {name: size for name, size in _HEADS.items() if name != "block_size"},
        _lengths(B_x_T_x_C="out", B_x_NH_x_T_x_T="att")
        | {"qkvr": "3 * B * T * C", "inp": "max(3 * B * T * C, B * NH * T * T)"},
        precisions=ALL,
    ),
    ("llmc/attention.cuh", "attention_backward"): Row(
        {name: size for name, size in _HEADS.items() if name != "block_size"},
        dict.fromkeys(("dinp", "dqkvr", "qkvr"), "3 * B * T * C")
        | _lengths(B_x_T_x_C="scratch dout", B_x_NH_x_T_x_T="datt att"),
        precisions=ALL,
    ),
    ("llmc/matmul.cuh", "matmul_cublaslt"): Row(
        {
            **{name: st.one_of(st.integers(1, 40), st.sampled_from([8, 16])) for name in ("m", "n", "k")},
            **{name: st.booleans() for name in ("transA", "transB", "accumulate", "backward", "plain")},
            "batch_count": st.sampled_from([0, 0, 1, 3]),
            "gap": st.integers(0, 5),
            "strideA": "m * k + gap",
            "strideB": "n * k",
            "strideOut": "m * n + 2 * gap",
        },
        {
            "d": "max(1, batch_count) * strideOut",
            "a": "max(1, batch_count) * strideA",
            "b": "max(1, batch_count) * strideB",
            **_lengths(m="bias", m_x_n="pre_gelu"),
        },
        precisions=ALL,
        nulls={"pre_gelu": "plain or batch_count > 0"},
    ),
    ("llmc/matmul.cuh", "matmul_forward_cublaslt"): Row(
        {**_LINEAR, "gelu_fusion": st.integers(0, 2)},
        _lengths(B_x_T_x_OC="out pre_gelu", B_x_T_x_C="inp", OC_x_C="weight", OC="bias"),
        precisions=ALL,
    ),
    ("llmc/matmul.cuh", "matmul_backward"): replace(
        _LINEAR_BACKWARD,
        sizes={**_LINEAR, "gelu_fusion": st.integers(0, 2)},
        lengths={**_LINEAR_BACKWARD.lengths, "pre_gelu": "B * T * C", "dbias_buffer": "16 * OC + 1024"},
        precisions=ALL,
    ),
    ("dev/cuda/permute.cu", "permute_on_device"): Row(
        {**{f"dim{n}": st.integers(1, 9) for n in range(1, 5)}, "block_size": _BLOCKS},
        _lengths(dim1_x_dim2_x_dim3_x_dim4="matrix out_matrix"),
    ),
    **{
        ("dev/cuda/softmax_forward.cu", f"softmax_forward{n}"): _SOFTMAX
        for n in ("1", "2", "3", "4", "_online1", "_online2", "7", "_online8")
    },
    ("dev/cuda/softmax_forward.cu", "softmax_forward"): replace(
        _SOFTMAX, sizes={"kernel_num": _numbers(8), **_SOFTMAX.sizes}
    ),
    ("llmc/adamw.cuh", "adamw_update"): Row(
        {
            "num_parameters": _ELEMENTS,
            **_SLICES,
            "gap": st.integers(0, 9),
            "w_stride": "num_parameters + gap",
            "g_stride": "num_parameters",
            "s_stride": "num_parameters + 2 * gap",
            "t": st.integers(1, 100),
            **_ADAMW,
            "grad_scale": _RATES,
            "seed": st.integers(0, 2**32 - 1),
        },
        {
            "params_memory": "num_slices * w_stride",
            "grads_memory": "num_slices * g_stride",
            **_lengths(num_slices_x_s_stride="master_params_memory m_memory v_memory"),
        },
        precisions=ALL,
    ),
    ("llmc/adamw.cuh", "init_from_master"): Row(
        {
            "num_parameters": _ELEMENTS,
            **_SLICES,
            "w_stride": "num_parameters + 1",
            "s_stride": "num_parameters",
            "seed": st.integers(0, 2**32 - 1),
        },
        {"params_memory": "num_slices * w_stride", "master_params_memory": "num_slices * s_stride"},
        precisions=ALL,
    ),
    ("llmc/cuda_utils.cuh", "global_sum_deterministic"): Row(
        {"count": _ELEMENTS}, {"result": "1", "values": "count"}, precisions=ALL
    ),
    ("llmc/encoder.cuh", "encoder_forward"): replace(_EMBEDDING, sizes=_VOCABULARY | _BTC),
    ("llmc/fused_classifier.cuh", "fused_classifier"): Row(
        _PADDED | {"dloss": _RATES, "write_dlogits": st.booleans()},
        _lengths(B_x_T_x_P="logits", B_x_T="losses targets"),
        {"targets": "V"},
        ALL,
    ),
    ("llmc/global_norm.cuh", "global_norm_squared"): Row(
        {
            "count": _ELEMENTS,
            **_SLICES,
            "stride": "count + 3",
            "max_num_block_sums": st.sampled_from([1, 16, 48, 64]),
            "reset": st.booleans(),
        },
        {"out": "max_num_block_sums", "values": "num_slices * stride"},
        precisions=ALL,
    ),
    ("llmc/layernorm.cuh", "fused_residual_forward5"): replace(
        _FUSED_RESIDUAL, sizes={"N": _ROWS, "C": st.one_of(_WIDTHS, st.integers(1, 9).map(lambda n: 8 * n))}
    ),
    **{
        ("llmc/gelu.cuh", name): Row({"N": _ELEMENTS}, _lengths(N=arrays), precisions=ALL)
        for name, arrays in (("gelu_forward", "out inp"), ("gelu_backward_inplace", "d_in_out inp"))
    },
    ("llmc/layernorm.cuh", "residual_forward"): Row({"N": _ELEMENTS}, _lengths(N="out inp1 inp2"), precisions=ALL),
    ("llmc/layernorm.cuh", "layernorm_forward"): replace(_NORM, sizes=_BTC, precisions=ALL),
    ("llmc/layernorm.cuh", "layernorm_backward"): replace(_NORM_BACKWARD, sizes=_BTC, precisions=ALL),
}
