"""What is wrong in a call is said before anything runs, and the next right call works."""

from __future__ import annotations

import re

import numpy as np
import pytest

from generated.classifier import classifier
from generated.linear import linear
from generated.linear_gelu import linear_gelu
from generated.mlp import mlp
from llmc2py.runtime import LaunchError, Tensor
from llmc2py.runtime.ops import device_of

F32 = np.float32


class ForeignTensor:
    """Stands for an array of another package."""


ForeignTensor.__module__, ForeignTensor.__qualname__, ForeignTensor.__name__ = "torch", "Tensor", "Tensor"


def refused(bench, op, arguments, error, message, width=8):
    """Assert that a layer refuses the arguments, and that it takes right ones afterwards."""
    arrays = bench.inputs(op, (3, width), "float32")
    layer = bench.make(op, arrays)
    with pytest.raises(error, match=message):
        layer(*arguments)
    gradients = bench.gradients(op, (3, width), "float32")
    bench.check(op, arrays, gradients, bench.run(op, arrays, gradients, layer))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint16, np.complex64, np.bool_])
def test_a_wrong_dtype(bench, dtype):
    x = bench.xp.ones((3, 8), dtype)
    name = np.dtype(dtype).name
    refused(bench, "gelu", (x,), TypeError, f"GeLU: `inp` is {name}; float32 or float16 or bfloat16 is taken")
    refused(
        bench, "residual", (x, x), TypeError, f"Residual: `inp1` is {name}; float32 or float16 or bfloat16 is taken"
    )
    if np.dtype(dtype).kind == "f":
        refused(bench, "layernorm", (x,), TypeError, f"LayerNorm: .*input is {name}")
    else:
        refused(bench, "layernorm", (x,), TypeError, f"LayerNorm: `inp` is {name}")


def test_two_dtypes_in_one_call(bench):
    x, half = bench.array((3, 8), "float32"), bench.array((3, 8), "float16")
    message = r"`inp2` is float16, `inp1` is float32; convert one of them"
    refused(bench, "residual", (x, half), TypeError, "Residual: " + message)
    refused(bench, "fused_residual", (x, half), TypeError, "FusedResidualLayerNorm: " + message)
    refused(bench, "layernorm", (half,), TypeError, r"the parameters are float32 on .*, the input is float16 on .*\.to")


def test_a_wrong_shape(bench):
    x, wide = bench.array((3, 8), "float32"), bench.array((3, 9), "float32")
    message = r"`inp2` has shape \(3, 9\); beside `inp1` of \(3, 8\) it needs \(3, 8\)"
    refused(bench, "residual", (x, wide), ValueError, "Residual: " + message)
    refused(bench, "residual", (x, x.reshape(-1)), ValueError, r"`inp2` has shape \(24,\)")
    refused(bench, "fused_residual", (x, wide), ValueError, "FusedResidualLayerNorm: " + message)
    refused(bench, "layernorm", (wide,), ValueError, r"LayerNorm: `weight` has shape \(8,\); beside `inp` of \(3, 9\)")
    refused(bench, "layernorm", (bench.xp.ones((), F32),), ValueError, "LayerNorm: `inp` has no axes")


#: What of each layer says which dtypes it takes: those with parameters say first that these have another.
PRODUCTS = ["linear", "linear_gelu", "mlp"]
FIRST = {"attention": "inp", "classifier": "logits", "crossentropy": "logits", "softmax": "inp"}


@pytest.mark.parametrize("op", [*FIRST, *PRODUCTS])
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.bool_])
def test_a_wrong_dtype_of_the_first_input(bench, op, dtype):
    arrays = bench.inputs(op, (3, 8), "float32")
    first, *others = (arrays[name] for name in bench.layer_class(op).spec.inputs)
    name, layer = np.dtype(dtype).name, bench.references[op].layer
    message = rf"`{FIRST.get(op, 'inp')}` is {name}; float32 or float16 or bfloat16 is taken \(convert it\)"
    if op in PRODUCTS and dtype is np.float64:
        message = r".*the input is float64 on .*; move the layer with `\.to\(x\)`, or convert the input"
    refused(bench, op, (first.astype(dtype), *others), TypeError, f"^{layer}: {message}")


@pytest.mark.parametrize(("op", "weight"), [("linear", "weight"), ("linear_gelu", "weight"), ("mlp", "fcw")])
def test_rows_of_another_length_than_the_weight(bench, op, weight):
    layer, others = bench.references[op].layer, bench.inputs(op, (3, 8), "float32")[weight].shape[0]
    message = rf"^{layer}: `{weight}` has shape \({others}, 8\); beside `inp` of \(3, 9\) it needs \({others}, 9\)$"
    refused(bench, op, (bench.array((3, 9), "float32"),), ValueError, message)
    refused(bench, op, (bench.xp.ones((), F32),), ValueError, f"^{layer}: `inp` has no axes; at least one is needed$")
    half = bench.array((3, 8), "float16")
    refused(
        bench, op, (half,), TypeError, rf"^{layer}: the parameters are float32 on .*, the input is float16 on .*\.to"
    )


@pytest.mark.parametrize("op", PRODUCTS)
def test_parameters_that_do_not_fit_each_other(bench, op):
    arrays = bench.inputs(op, (3, 8), "float32")
    layer = bench.make(op, arrays)
    name = next(name for name in layer.spec.parameters if arrays[name].ndim == 1)
    right, size = getattr(layer, name).data, arrays[name].size
    getattr(layer, name).data = bench.array((size + 1,), "float32")
    message = rf"`{name}` has shape \({size + 1},\); beside `inp` of \(3, 8\) it needs \({size},\)"
    with pytest.raises(ValueError, match=message):
        layer(arrays["inp"])
    getattr(layer, name).data = right.astype(np.float16)
    with pytest.raises(TypeError, match=rf"`{name}` is float16, `inp` is float32; convert one of them"):
        layer(arrays["inp"])
    getattr(layer, name).data = right
    layer(arrays["inp"])


@pytest.mark.parametrize("op", ["gelu", "residual", "layernorm", "fused_residual", *FIRST, *PRODUCTS])
@pytest.mark.parametrize(
    ("value", "kind", "hint"),
    [
        ([1.0, 2.0], "list", "numpy.asarray"),
        (None, "NoneType", "numpy.asarray"),
        (2.0, "float", "numpy.asarray"),
        (ForeignTensor(), "torch.Tensor", "numpy.asarray"),
    ],
    ids=["list", "None", "float", "torch"],
)
def test_what_is_no_array(bench, op, value, kind, hint):
    names = list(bench.layer_class(op).spec.inputs)
    refused(bench, op, [value] * len(names), TypeError, rf"`{names[0]}` is a {kind}; .* is taken: .*{hint}")
    if names[1:] == ["inp2"]:
        x = bench.array((3, 8), "float32")
        refused(bench, op, (x, value), TypeError, rf"`inp2` is a {kind}; .* is taken: .*{hint}")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda xp: xp.ones((3, 7), F32), ValueError, r"the gradient has shape \(3, 7\), its array has \(3, 8\)"),
        (lambda xp: xp.ones((3, 8), np.float64), TypeError, "the gradient is float64, its array is float32"),
        (lambda xp: [1.0], TypeError, "is given as a list"),
        (lambda xp: None, RuntimeError, r"a tensor of shape \(3, 8\) needs a gradient"),
    ],
    ids=["shape", "dtype", "list", "none"],
)
@pytest.mark.parametrize("op", ["gelu", "layernorm", "linear", "linear_gelu", "mlp", "softmax"])
def test_a_wrong_gradient(bench, op, make, error, message):
    sizes = {"OC": 8} if op.startswith("linear") else {}
    arrays, gradients = (make_arrays(op, (3, 8), "float32", **sizes) for make_arrays in (bench.inputs, bench.gradients))
    leaves, outputs = bench.forward(bench.make(op, arrays), arrays)
    with pytest.raises(error, match=message):
        outputs["out"].backward(make(bench.xp))
    assert all(leaf.grad is None for leaf in leaves.values())
    outputs["out"].backward(gradients["out"])
    wanted = bench.run(op, arrays, gradients)
    for name, leaf in leaves.items():
        # Blocks on a GPU add to one sum in any order.
        bench.xp.testing.assert_allclose(leaf.grad, wanted[f"d{name}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["attention", "encoder", "crossentropy", "classifier"])
def test_a_wrong_gradient_of_an_output_of_another_shape(bench, op):
    arrays = bench.inputs(op, (2, 3, 12), "float32")
    ((_, gradient),) = bench.gradients(op, (2, 3, 12), "float32").items()
    leaves, outputs = bench.forward(bench.make(op, arrays), arrays)
    ((_, out),) = outputs.items()
    wide = bench.xp.ones((*gradient.shape, 2), F32)
    with pytest.raises(ValueError, match=re.escape(f"the gradient has shape {wide.shape}, its array has {out.shape}")):
        out.backward(wide)
    with pytest.raises(TypeError, match="the gradient is float16, its array is float32"):
        out.backward(gradient.astype(np.float16))
    assert all(leaf.grad is None for leaf in leaves.values())
    out.backward(gradient)
    assert all(leaf.grad is not None for leaf in leaves.values())


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["classifier", "crossentropy", "encoder"])
def test_indices_on_another_backend(bench, package, op):
    cupy = pytest.importorskip("cupy")
    arrays = bench.inputs(op, (2, 3, 12), "float32")
    layer = bench.make(op, arrays)
    (indices,) = layer.spec.indices
    elsewhere = np.asarray(bench.numpy(arrays[indices])) if bench.xp is cupy else cupy.asarray(arrays[indices])
    with pytest.raises(TypeError, match=r"move one of them|move the layer"):
        layer(*((arrays | {indices: elsewhere})[name] for name in layer.spec.inputs))


@pytest.mark.gpu
def test_two_backends_in_one_call(package):
    cupy = pytest.importorskip("cupy")
    layers, gelu = package["layers"], package["gelu"]
    here, there = np.ones((3, 8), F32), cupy.ones((3, 8), F32)
    with pytest.raises(TypeError, match="`inp2` is on cuda:0, `inp1` on the CPU; move one"):
        layers.Residual()(here, there)
    norm = layers.LayerNorm(8)
    norm(here)
    with pytest.raises(TypeError, match=r"parameters are float32 on the CPU, the input is float32 on cuda:0; .*\.to"):
        norm(there)
    norm.to(there)
    assert isinstance(norm(there).data, cupy.ndarray)
    with pytest.raises(TypeError, match=r"`out` is on cuda:0 and `inp` is on the CPU; .* on one device"):
        gelu.gelu_forward(cupy.ones(2048, F32), np.ones(2048, F32), 2048)
    out = layers.GeLU()(Tensor(there))
    with pytest.raises(TypeError, match="the gradient of an array on cuda:0 is given as the CPU"):
        out.backward(here)


SIZE = 2048


@pytest.fixture
def forward(bench, package):
    """Assert that gelu_forward refuses something, and runs afterwards."""
    launcher = package["gelu"].gelu_forward
    x = bench.array((SIZE,), "float32")

    def check(error, message, **given):
        out, inp, N = ({"out": bench.nan(SIZE), "inp": x, "N": SIZE} | given).values()
        with pytest.raises(error, match=message):
            launcher(out, inp, N)
        result = bench.nan(SIZE)
        launcher(result, x, SIZE)
        assert not bench.xp.isnan(result).any()

    return check


def test_sizes_that_the_launchers_assert_forbids(bench, package, forward):
    forward(
        ValueError,
        r"gelu_forward needs N % \(block_size \* x128::size\) == 0, but N = 100, block_size = 512 \(llmc/gelu.cuh",
        N=100,
    )
    x = bench.array((8,), "float32")
    rows = [x, bench.nan(1), bench.nan(1), x, x, x]
    with pytest.raises(ValueError, match=r"layernorm_forward3 needs block_size % 32 == 0, but block_size = 33"):
        package["dev.cuda.layernorm_forward"].layernorm_forward3(bench.nan(8), *rows[1:], 1, 1, 8, 33)
    with pytest.raises(ValueError, match=r"gelu_forward needs kernel_num is one of 1, 2, but kernel_num = 9"):
        package["dev.cuda.gelu_forward"].gelu_forward(9, bench.nan(8), x, 1, 1, 8, 32)
    with pytest.raises(LaunchError, match=r"gelu_forward_kernel1: block \(2048, 1, 1\) is outside"):
        package["dev.cuda.gelu_forward"].gelu_forward1(bench.nan(8), x, 8, 2048)


def test_arrays_that_are_too_small(bench, package, forward):
    small = bench.array((SIZE - 1,), "float32")
    forward(ValueError, r"gelu_forward: `inp` has 2047 elements, N = 2048 are needed \(llmc/gelu.cuh", inp=small)
    forward(ValueError, r"gelu_forward: `out` has 2047 elements, N = 2048 are needed", out=small)
    n, c = 2, 8
    wide, row, column = bench.array((n, c), "float32"), bench.array((c,), "float32"), bench.array((n,), "float32")
    layernorm = package["layernorm"]
    with pytest.raises(ValueError, match=r"`bias` has 2 elements, C = 8 are needed"):
        layernorm.layernorm_forward(wide.copy(), column, column, wide, row, column, n, 1, c)
    with pytest.raises(ValueError, match=r"`out` has 16 elements, B \* T \* C = 34359738368 are needed"):
        layernorm.layernorm_forward(wide.copy(), column, column, wide, row, row, 65536, 65536, c)
    gradients = (wide.copy(), row.copy(), row.copy())
    most = 32 + 4 * c * device_of(wide).multiProcessorCount
    with pytest.raises(ValueError, match=rf"`scratch` has {most - 1} elements, .* = {most} are needed"):
        layernorm.layernorm_backward(*gradients, bench.nan(most - 1), wide, wide, row, column, column, n, 1, c)


@pytest.mark.parametrize("size", [2**31, 2**40, -(2**31) - 1])
def test_scalars_out_of_range(forward, size):
    forward(OverflowError, rf"gelu_forward: `N` is {size}, out of the range of int: -2147483648 to 2147483647", N=size)


@pytest.mark.parametrize(
    ("value", "text"), [(2048.0, "2048.0, a float"), ("x", "'x', a str"), (None, "None, a NoneType")]
)
def test_scalars_of_a_wrong_type(forward, value, text):
    forward(TypeError, f"gelu_forward: `N` is {text}; int takes an integer", N=value)


def test_negative_sizes(forward):
    forward(LaunchError, r"gelu_forward_kernel2: grid \(-1, 1, 1\) is outside 0 to", N=-SIZE)


def test_none_where_the_kernel_needs_an_array(bench, package, forward):
    forward(TypeError, "gelu_forward: `out` is None, but the kernel needs it; pass an array", out=None)
    forward(TypeError, "gelu_forward: `inp` is None", inp=None)
    with pytest.raises(TypeError, match="gelu_forward_kernel1: `inp` is None"):
        package["dev.cuda.gelu_forward"].gelu_forward_kernel1[1, 32](bench.nan(8), None, 8)


def test_arrays_of_wrong_dtypes_and_kinds(bench, forward):
    xp = bench.xp
    forward(TypeError, r"`out` is float64, but floatX\* takes one of float32, float16, bf", out=xp.ones(SIZE))
    forward(TypeError, "`out` is float32 and `inp` is float16; all floatX arrays", inp=xp.ones(SIZE, np.float16))
    forward(TypeError, r"gelu_forward: `inp` is a list; .*numpy\.asarray", inp=[1.0] * SIZE)
    forward(TypeError, r"gelu_forward: `inp` is a torch\.Tensor; .*__dlpack__", inp=ForeignTensor())
    broadcast = xp.broadcast_to(xp.ones(1, F32), (SIZE,))
    forward(ValueError, "gelu_forward: `out` is written, but .*pass a copy", out=broadcast)


def test_arguments_that_are_missing_or_too_many(bench, package):
    x = bench.array((SIZE,), "float32")
    with pytest.raises(TypeError, match=r"gelu_forward\(out: .*, N: 'int'\): missing a required argument: 'N'"):
        package["gelu"].gelu_forward(bench.nan(SIZE), x)
    with pytest.raises(TypeError, match=r"gelu_forward\(.*\): too many positional arguments"):
        package["gelu"].gelu_forward(bench.nan(SIZE), x, SIZE, 1)
    with pytest.raises(TypeError, match=r"gelu_forward_kernel2 needs a launch configuration: .*\[grid, block\]"):
        package["gelu"].gelu_forward_kernel2(bench.nan(SIZE), x)


def test_a_division_by_zero_in_a_launcher_names_it(bench, package):
    x = bench.array((8,), "float32")
    with pytest.raises(ValueError, match=r"gelu_forward1: .*division by zero.*dev/cuda/gelu_forward.cu"):
        package["dev.cuda.gelu_forward"].gelu_forward1(bench.nan(8), x, 8, 0)


@pytest.mark.parametrize("dtype", ["float64", "int32", "half"])
def test_a_layer_of_no_precision(bench, dtype):
    with pytest.raises(TypeError, match=f"{dtype!r} is no precision; it is one of float32, float16, bfloat16"):
        bench.layers.LayerNorm(8, dtype=dtype)


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (linear, [(3, 8), (0, 8), (0,)], r"^Linear needs OC > 0, but OC = 0$"),
        (linear_gelu, [(3, 8), (0, 8), (0,)], r"^LinearGeLU needs OC > 0, but OC = 0$"),
        (mlp, [(3, 0), (8, 0), (8,), (0, 8), (0,)], r"^MLP needs C > 0 and H > 0, but C = 0, H = 8$"),
        (mlp, [(3, 8), (0, 8), (0,), (8, 0), (8,)], r"^MLP needs C > 0 and H > 0, but C = 8, H = 0$"),
    ],
)
def test_products_of_no_columns(bench, function, shapes, message):
    with pytest.raises(ValueError, match=message):
        function(*(bench.xp.zeros(shape, np.float32) for shape in shapes))


@pytest.mark.parametrize("size", [0, -1, 9])
def test_a_vocabulary_that_does_not_fit_is_told_before_an_index_that_is_not_below_it(bench, size):
    arrays = bench.xp.zeros((3, 8), np.float32), bench.xp.full(3, 20, np.int32)
    with pytest.raises(ValueError, match=rf"^FusedClassifier needs 0 < V <= Vp, but V = {size}, Vp = 8$"):
        classifier(*arrays, size)
