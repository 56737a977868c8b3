"""Tokens and targets: any integers that name a row, and an error that names the first that does not."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor
from tests.layers.test_errors import ForeignTensor

OPS = {"classifier": "targets", "crossentropy": "targets", "encoder": "inp"}
SHAPES = {"classifier": (2, 3, 24), "crossentropy": (2, 3, 24), "encoder": (2, 3)}
#: How many rows there are to name, in the inputs of these shapes.
ROWS = {"classifier": 18, "crossentropy": 24, "encoder": 7}
every_op = pytest.mark.parametrize("op", OPS)


def made(bench, op):
    return bench.inputs(op, SHAPES[op], "float32"), bench.gradients(op, SHAPES[op], "float32")


def refused(bench, op, given, error, message):
    """Assert that a layer refuses these indices and other inputs, and then takes the right ones."""
    arrays, gradients = made(bench, op)
    layer = bench.make(op, arrays)
    changed = arrays | given
    with pytest.raises(error, match=f"^{bench.references[op].layer}: {message}"):
        layer(*(changed[name] for name in layer.spec.inputs))
    bench.check(op, arrays, gradients, bench.run(op, arrays, gradients, layer))


@every_op
@pytest.mark.parametrize("dtype", ["int64", "int16", "int8", "uint8", "uint32", "uint64"])
def test_integers_of_any_kind(bench, op, dtype):
    arrays, gradients = made(bench, op)
    wanted = bench.run(op, arrays, gradients)
    again = bench.run(op, arrays | {OPS[op]: arrays[OPS[op]].astype(dtype)}, gradients)
    for name, result in wanted.items():
        # Blocks on a GPU add to one sum in any order.
        bench.xp.testing.assert_allclose(again[name], result, rtol=1e-5, atol=1e-6)


@every_op
@pytest.mark.parametrize("layout", ["sliced", "transposed", "misaligned"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_strides_do_not_matter(bench, op, layout, dtype):
    arrays, gradients = made(bench, op)
    wanted, indices = bench.run(op, arrays, gradients), arrays[OPS[op]].astype(dtype)
    if layout == "sliced":
        wide = bench.xp.full((*indices.shape[:-1], 2 * indices.shape[-1]), -1, dtype)
        wide[..., ::2] = indices
        given = wide[..., ::2]
    elif layout == "transposed":
        given = indices.T.copy().T
    else:
        given = bench.xp.concatenate([bench.xp.full(1, -1, dtype), indices.reshape(-1)])[1:].reshape(indices.shape)
    again = bench.run(op, arrays | {OPS[op]: given}, gradients)
    for name, result in wanted.items():
        bench.xp.testing.assert_allclose(again[name], result, rtol=1e-5, atol=1e-6)


@every_op
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("place", "off"), [((0, 0), 0), ((1, 2), 3), ((0, 2), 2**31 - 100), ((1, 0), None)])
def test_one_that_names_no_row_is_told_with_its_place(bench, op, dtype, place, off):
    arrays, _ = made(bench, op)
    indices = arrays[OPS[op]].astype(dtype)
    value = -1 if off is None else ROWS[op] + off
    indices[place] = value
    message = rf"`{OPS[op]}` has {value} at \({place[0]}, {place[1]}\); it is to be at least 0 and below {ROWS[op]}$"
    refused(bench, op, {OPS[op]: indices}, IndexError, message)


@every_op
def test_the_first_of_several_is_told_and_64_bits_are_not_cut_to_32(bench, op):
    arrays, _ = made(bench, op)
    indices = arrays[OPS[op]].astype(np.int64)
    indices[1, 1] = -5
    indices[0, 2] = 2**32
    refused(bench, op, {OPS[op]: indices}, IndexError, rf"`{OPS[op]}` has 4294967296 at \(0, 2\); ")
    refused(bench, op, {OPS[op]: indices[:, ::-1]}, IndexError, rf"`{OPS[op]}` has 4294967296 at \(0, 0\); ")


@every_op
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda xp: xp.zeros((2, 3), np.float32), "is float32; integers are taken"),
        (lambda xp: xp.zeros((2, 3), np.bool_), "is bool; integers are taken"),
        (lambda xp: [[0, 1, 2]] * 2, r"is a list; .* is taken: .*numpy\.asarray"),
        (lambda xp: None, r"is a NoneType; .* is taken: .*numpy\.asarray"),
        (lambda xp: ForeignTensor(), r"is a torch\.Tensor; .* is taken: .*numpy\.asarray"),
    ],
    ids=["float32", "bool", "list", "None", "torch"],
)
def test_what_are_no_integers(bench, op, value, message):
    refused(bench, op, {OPS[op]: value(bench.xp)}, TypeError, f"`{OPS[op]}` {message}")


@pytest.mark.parametrize("op", ["classifier", "crossentropy"])
@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 3, 1), ()])
def test_as_many_targets_as_rows(bench, op, shape):
    targets = bench.xp.zeros(shape, np.int32)
    said = str(shape).replace("(", r"\(").replace(")", r"\)")
    refused(bench, op, {"targets": targets}, ValueError, rf"`targets` has shape {said}; \(2, 3\) is needed$")


@every_op
def test_tensors_of_integers_are_taken_and_have_no_gradient(bench, op):
    arrays, gradients = made(bench, op)
    layer = bench.make(op, arrays)
    given = {name: Tensor(arrays[name]) for name in layer.spec.inputs}
    layer(*given.values()).backward(next(iter(gradients.values())))
    assert given[OPS[op]].grad is None
