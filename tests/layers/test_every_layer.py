"""What holds of every layer: any strides and shapes, use in graphs, and nothing of the caller's is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc2py.runtime import Parameter, Tensor, no_grad
from llmc2py.verify.tolerance import compare, half_spacing

OPS = ["gelu", "residual", "layernorm", "fused_residual"]
OPS += ["attention", "classifier", "crossentropy", "encoder", "linear", "linear_gelu", "mlp", "softmax"]
#: Libraries choose how they multiply by where the arrays lie.
PRODUCTS = {"attention", "linear", "linear_gelu", "mlp"}
PRECISIONS = ["float32", "float16", "bfloat16"]
SHAPE = (6, 5, 48)
#: As many rows as every kernel likes best, and a number that only some take.
SHAPES = [(4, 8, 48), SHAPE]

#: Layers that can be given what they return, with the sizes that make them so.
CHAINED = {
    "gelu": {}, "residual": {}, "layernorm": {}, "fused_residual": {}, "linear": {"OC": 48}, "linear_gelu": {"OC": 48},
    "mlp": {}, "softmax": {},
}  # fmt: skip
#: Layers that take rows without columns: a vocabulary has a size, and products into rows of none have no launch.
NARROW = [op for op in OPS if op not in ("classifier", "crossentropy", "mlp")]
every_op = pytest.mark.parametrize("op", OPS)


def transposed(xp, array):
    return xp.ascontiguousarray(array.T).T


def sliced(xp, array):
    wide = xp.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = wide[..., 1::2]
    view[...] = array
    return view


def cut(xp, array):
    wide = xp.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    view = wide[..., : array.shape[-1]]
    view[...] = array
    return view


def reversed_rows(xp, array):
    return xp.ascontiguousarray(array[::-1])[::-1]


def broadcast(xp, array):
    return xp.broadcast_to(array[:1], array.shape)


def misaligned(xp, array):
    view = xp.zeros(array.size + 1, array.dtype)[1:].reshape(array.shape)
    view[...] = array
    return view


LAYOUTS = [transposed, sliced, cut, reversed_rows, broadcast, misaligned]


# A layout is a matter of the size of elements; `verify` has float16 too.
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize(
    ("op", "shape"), [(op, shape) for op in OPS for shape in (SHAPES if op in OPS[:4] else [SHAPE])], ids=str
)
def test_strides_and_alignment_do_not_matter(bench, op, shape, layout, precision):
    arrays, gradients = bench.inputs(op, shape, precision), bench.gradients(op, shape, precision)
    names = bench.layer_class(op).spec.inputs
    arrays |= {name: layout(bench.xp, arrays[name]) for name in names}
    gradients = {name: layout(bench.xp, array) if array.ndim else array for name, array in gradients.items()}
    results = bench.run(op, arrays, gradients)
    bench.check(op, arrays, gradients, results)
    contiguous = {name: array.copy() for name, array in arrays.items()}
    again = bench.run(op, contiguous, {name: array.copy() for name, array in gradients.items()})
    bench.check(op, arrays, gradients, again)
    # On a GPU what is not aligned may take another kernel, and sums come in any order.
    summed_in_any_order = {f"d{name}" for name in bench.layer_class(op).spec.parameters}
    for name in results.keys() - summed_in_any_order if op not in PRODUCTS and bench.xp is np else ():
        bench.xp.testing.assert_array_equal(results[name], again[name])


@every_op
@pytest.mark.parametrize("layout", [sliced, misaligned], ids=lambda layout: layout.__name__)
def test_strided_parameters(bench, op, layout):
    arrays, gradients = bench.inputs(op, SHAPE, "float32"), bench.gradients(op, SHAPE, "float32")
    layer = bench.make(op, arrays)
    for name in layer.spec.parameters:
        getattr(layer, name).data = layout(bench.xp, arrays[name])
    bench.check(op, arrays, gradients, bench.run(op, arrays, gradients, layer))


@every_op
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_rows(bench, op, precision, count_launches):
    """CASES B14: empty outputs, zero gradients of parameters, and no launch."""
    spec = bench.layer_class(op).spec
    for shape in ((0, 56), (0, 57), (3, 0, 56), (0, 3, 54)):
        arrays, gradients = bench.inputs(op, shape, precision), bench.gradients(op, shape, precision)
        launched = count_launches()
        results = bench.run(op, arrays, gradients)
        for name, dims in spec.outputs.items():
            assert results[name].shape == bench.case(op, shape).shape(dims)
        for name in bench.differentiable(op):
            assert results[f"d{name}"].shape == arrays[name].shape
        for name in spec.parameters:
            bench.xp.testing.assert_array_equal(results[f"d{name}"], bench.xp.zeros_like(arrays[name]))
        assert launched == []


@pytest.mark.parametrize("op", NARROW)
def test_rows_of_no_columns(bench, op):
    arrays, gradients = bench.inputs(op, (4, 0), "float32"), bench.gradients(op, (4, 0), "float32")
    # A layer is not made for no columns; its parameters may still have none.
    layer = bench.make(op, bench.inputs(op, (4, 8), "float32"))
    for name in layer.spec.parameters:
        setattr(layer, name, Parameter(arrays[name]))
    results = bench.run(op, arrays, gradients, layer)
    for name, like in (*gradients.items(), *((f"d{name}", arrays[name]) for name in bench.differentiable(op))):
        assert results[name].shape == like.shape
    assert not any(bench.xp.isnan(result).any() for result in results.values())


@every_op
def test_one_axis(bench, op):
    bench.run_and_check(op, (29,), "float32")


@every_op
def test_used_twice_in_one_graph(bench, op):
    layer = bench.make(op, bench.inputs(op, SHAPE, "float32"))
    calls = []
    for seed in (1, 2):
        arrays = bench.inputs(op, SHAPE, "float32", seed) | {n: getattr(layer, n).data for n in layer.spec.parameters}
        calls.append((arrays, bench.gradients(op, SHAPE, "float32", seed), *bench.forward(layer, arrays)))
    for _, gradients, _, outputs in reversed(calls):
        bench.backward(outputs, gradients)
    sums = {}
    for arrays, gradients, leaves, outputs in calls:
        results = {name: output.data for name, output in outputs.items()}
        values, allowed = bench.expected(op, arrays, gradients, results)
        for name in bench.differentiable(op):
            outcome = compare(bench.numpy(leaves[name].grad), values[f"d{name}"], allowed[f"d{name}"])
            assert outcome.ok, f"{name}: {outcome}"
        for name in layer.spec.parameters:
            value, limit = sums.get(name, (0, 0))
            sums[name] = value + values[f"d{name}"], limit + allowed[f"d{name}"]
    for name, (value, limit) in sums.items():
        outcome = compare(bench.numpy(getattr(layer, name).grad), value, limit)
        assert outcome.ok, f"{name}: {outcome}"


@pytest.mark.parametrize("op", CHAINED)
def test_a_layer_on_its_own_output(bench, op):
    """Two calls in a chain: the second's saved arrays are not the first's."""
    arrays = bench.inputs(op, SHAPE, "float32", **CHAINED[op])
    layer = bench.make(op, arrays)
    given = [Tensor(arrays[name]) for name in layer.spec.inputs]
    first = layer(*given)
    second = layer(*((first,) * len(given) if isinstance(first, Tensor) else first))
    last = second if isinstance(second, Tensor) else second[-1]
    gradient = bench.gradients(op, SHAPE, "float32", **CHAINED[op]).popitem()[1]
    last.backward(gradient)

    inner = {name: given[i].data for i, name in enumerate(layer.spec.inputs)}
    parameters = {name: getattr(layer, name).data for name in layer.spec.parameters}
    mids = [first] if isinstance(first, Tensor) else list(first)
    mids = mids * len(given) if len(mids) == 1 else mids
    outer = {name: tensor.data for name, tensor in zip(layer.spec.inputs, mids, strict=True)} | parameters
    zeros = bench.xp.zeros_like(gradient)
    names = list(layer.spec.outputs)
    step = bench.run(op, outer, dict.fromkeys(names, zeros) | {names[-1]: gradient})
    passed = [step[f"d{name}"] for name in layer.spec.inputs]
    incoming = {names[0]: sum(passed[1:], passed[0])} if len(names) == 1 else dict(zip(names, passed, strict=True))
    wanted = bench.run(op, inner | parameters, incoming)
    for tensor, name in zip(given, layer.spec.inputs, strict=True):
        bench.xp.testing.assert_allclose(tensor.grad, wanted[f"d{name}"], rtol=1e-5, atol=1e-6)


@every_op
def test_shapes_may_change_from_call_to_call(bench, op):
    parameters = bench.inputs(op, SHAPE, "float32")
    layer = bench.make(op, parameters)
    for seed, shape in enumerate([(2, 48), (7, 48), (1, 2, 3, 48), (48,), (2, 48)]):
        arrays = bench.inputs(op, shape, "float32", seed)
        arrays |= {name: parameters[name] for name in layer.spec.parameters}
        gradients = bench.gradients(op, shape, "float32", seed)
        layer.zero_grad()
        bench.check(op, arrays, gradients, bench.run(op, arrays, gradients, layer))


@every_op
@pytest.mark.parametrize("shape", [(5, 48), (5, 47), (32, 48)], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_add_up_over_two_backward_passes(bench, op, precision, shape):
    arrays = bench.inputs(op, shape, precision)
    layer = bench.make(op, arrays)
    leaves = {name: Tensor(arrays[name]) for name in layer.spec.inputs}
    totals = {}
    for seed in (1, 2):
        gradients = bench.gradients(op, shape, precision, seed)
        outputs = layer(*leaves.values())
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = dict(zip(layer.spec.outputs, outputs, strict=True))
        bench.backward(outputs, gradients)
        results = {name: output.data for name, output in outputs.items()}
        values, allowed = bench.expected(op, arrays, gradients, results)
        for name in (*bench.differentiable(op), *layer.spec.parameters):
            value, limit = totals.get(name, (0, 0))
            totals[name] = value + values[f"d{name}"], limit + allowed[f"d{name}"]
    leaves |= {name: getattr(layer, name) for name in layer.spec.parameters}
    for name, (value, limit) in totals.items():
        limit = limit + 1.5 * half_spacing(np.abs(value) + limit, arrays[name].dtype)
        outcome = compare(bench.numpy(leaves[name].grad), value, limit)
        assert outcome.ok, f"{name}: {outcome}"


@every_op
def test_a_second_backward_of_one_graph_is_refused(bench, op):
    arrays, gradients = bench.inputs(op, SHAPE, "float32"), bench.gradients(op, SHAPE, "float32")
    leaves, outputs = bench.forward(bench.make(op, arrays), arrays)
    bench.backward(outputs, gradients)
    before = {name: leaf.grad.copy() for name, leaf in leaves.items()}
    with pytest.raises(RuntimeError, match="freed by an earlier backward pass"):
        bench.backward(outputs, gradients)
    for name, leaf in leaves.items():
        bench.xp.testing.assert_array_equal(leaf.grad, before[name])


@every_op
def test_without_a_graph_the_outputs_are_the_same(bench, op):
    arrays = bench.inputs(op, SHAPE, "float32")
    layer = bench.make(op, arrays)
    _, recorded = bench.forward(layer, arrays)
    with no_grad():
        _, plain = bench.forward(layer, arrays)
    for name, output in plain.items():
        bench.xp.testing.assert_array_equal(output.data, recorded[name].data)
        with pytest.raises(RuntimeError, match="does not require a gradient"):
            output.backward(output.data)


@every_op
def test_results_have_the_same_bits_in_every_run(bench, op):
    """On the sizes that the fast kernels take; others add up parameter gradients in any order."""
    arrays, gradients = bench.inputs(op, (64, 48), "float32"), bench.gradients(op, (64, 48), "float32")
    first, *others = (bench.run(op, arrays, gradients) for _ in range(5))
    for other in others:
        for name, result in first.items():
            bench.xp.testing.assert_array_equal(result, other[name])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(0, 9), max_size=2).flatmap(
        lambda leading: st.integers(1, 300).map(lambda width: (*leading, width))
    ),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 1000),
)
@every_op
def test_random_shapes(bench, op, shape, precision, seed):
    if op in PRODUCTS:
        # References of products take the longest.
        shape = (*shape[:-1], -(-shape[-1] // 6))
    bench.run_and_check(op, shape, precision, seed)
