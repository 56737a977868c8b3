"""FusedClassifier, CrossEntropy and Softmax: vocabularies, padding, and the gradient in the place of the logits."""

from __future__ import annotations

import numpy as np
import pytest

from generated.classifier import classifier
from llmc2py.runtime import Tensor, no_grad
from llmc2py.runtime.dtypes import PRECISIONS

#: A step between neighbouring numbers, and for float32 what a difference from 1 leaves of it.
STEPS = {"float32": 1e-5, "float16": 2**-10, "bfloat16": 2**-7}
VOCABULARIES = [(1, 1), (2, 1), (5, 5), (24, 17), (33, 31), (129, 128), (136, 129), (2056, 2050), (4103, 4100)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("width", "size"), VOCABULARIES)
def test_vocabularies_on_and_off_the_packets(bench, width, size, precision):
    bench.run_and_check("classifier", (5, width), precision, V=size)
    bench.run_and_check("crossentropy", (5, size), precision)
    bench.run_and_check("softmax", (5, width), precision)


@pytest.mark.parametrize("accumulation", [1, 2, 7])
@pytest.mark.parametrize("width", [24, 23])
def test_losses_of_several_batches_add_up(bench, width, accumulation):
    bench.run_and_check("classifier", (4, 3, width), "float32", V=19, accumulation=accumulation)
    logits, targets = bench.inputs("classifier", (4, 3, width), "float32", V=19).values()
    layers = bench.layers.FusedClassifier(19), bench.layers.FusedClassifier(19, accumulation=accumulation)
    whole, part = (bench.numpy(layer(logits, targets).data) for layer in layers)
    np.testing.assert_allclose(accumulation * part, whole, rtol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [24, 23])
def test_what_lies_behind_the_vocabulary_does_not_count(bench, width, precision):
    arrays, gradients = (make("classifier", (6, width), precision, V=17) for make in (bench.inputs, bench.gradients))
    results = bench.run("classifier", arrays, gradients, V=17)
    assert not results["dlogits"][:, 17:].any()
    other = arrays["logits"].copy()
    other[:, 17:] = 60
    again = bench.run("classifier", arrays | {"logits": other}, gradients, V=17)
    for name, result in results.items():
        bench.xp.testing.assert_array_equal(again[name], result)


@pytest.mark.parametrize("op", ["classifier", "crossentropy"])
@pytest.mark.parametrize("width", [24, 4100])
def test_logits_may_be_read_only(bench, op, width):
    arrays = bench.inputs(op, (3, width), "float32")
    wanted = bench.run(op, arrays, gradients := bench.gradients(op, (3, width), "float32"))
    if bench.xp is np:
        arrays["logits"].flags.writeable = False
    before = arrays["logits"].copy()
    for name, result in bench.run(op, arrays, gradients).items():
        bench.xp.testing.assert_array_equal(result, wanted[name])
    bench.xp.testing.assert_array_equal(arrays["logits"], before)


@pytest.mark.parametrize("op", ["classifier", "crossentropy"])
@pytest.mark.parametrize("width", [24, 4100])
def test_a_target_without_a_chance_leaves_the_other_gradients(bench, op, width):
    logits, targets = bench.inputs(op, (4, width), "float32").values()
    logits[1, targets[1]] = -np.inf
    logits[2, targets[2]] = -200
    given = Tensor(logits)
    layer = bench.layers.CrossEntropy() if op == "crossentropy" else bench.layers.FusedClassifier(width)
    losses = layer(given, targets)
    losses.backward(bench.xp.ones_like(losses.data))
    values = bench.numpy(logits).astype(np.float64)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    wanted = powers / powers.sum(axis=-1, keepdims=True)
    wanted[np.arange(4), bench.numpy(targets)] -= 1
    np.testing.assert_allclose(bench.numpy(given.grad), wanted / (4 if op == "classifier" else 1), rtol=1e-5, atol=1e-7)


#: Logits that a sum of exponentials overflows on, or loses digits on, where its offset is chosen badly.
SPREADS = {
    "rising": lambda x: x + np.linspace(-3000, 3000, x.shape[-1]),
    "falling": lambda x: x - np.linspace(-3000, 3000, x.shape[-1]),
    "far from zero": lambda x: x - 30_000,
    "one above all": lambda x: np.where(np.arange(x.shape[-1]) == x.shape[-1] - 2, 500, x),
    "partly impossible": lambda x: np.where(np.arange(x.shape[-1]) % 3 == 2, -np.inf, x),
    **{
        f"masked with {mask:g}": lambda x, mask=mask: np.where(np.arange(x.shape[-1]) % 2048 < 1024, x, mask)
        for mask in (-1e9, -1e10, -1e20, -1e30, float(np.finfo(np.float32).min))
    },
}


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [1, 4, 24, 2050, 4096, 8200])
def test_a_loss_beyond_the_smallest_probability_is_finite(bench, width, precision):
    logits = np.zeros((2, width), np.float32)
    logits[:, 0] = 110, -110
    wanted = np.log(np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)).sum(axis=-1))
    wanted += logits.max(axis=-1) - logits[:, -1]
    given = bench.xp.asarray(logits.astype(PRECISIONS[precision]))
    targets = bench.xp.full(2, width - 1, np.int32)
    losses = bench.layers.CrossEntropy()(Tensor(given), targets)
    np.testing.assert_allclose(bench.numpy(losses.data), wanted, rtol=1e-6, atol=1e-6)
    loss = bench.layers.FusedClassifier(width)(Tensor(given), targets)
    np.testing.assert_allclose(bench.numpy(loss.data), wanted.mean(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("width", "size"), [(24, 17), (4104, 4101)])
def test_logits_far_apart_and_far_from_zero(bench, width, size, inplace, spread):
    logits, targets = bench.inputs("classifier", (4, width), "float32", V=size).values()
    targets = bench.xp.asarray(bench.numpy(targets) % 1024 // 3 * 3)
    logits = bench.xp.asarray(SPREADS[spread](bench.numpy(logits)).astype(np.float32))
    values = bench.numpy(logits)[:, :size].astype(np.float64)
    top = values.max(axis=-1, keepdims=True)
    likelihoods = values - top - np.log(np.exp(values - top).sum(axis=-1, keepdims=True))
    rows, columns = np.arange(4), bench.numpy(targets)
    given = Tensor(logits)
    loss = bench.layers.FusedClassifier(size, inplace=inplace)(given, targets)
    loss.backward()
    np.testing.assert_allclose(bench.numpy(loss.data), -likelihoods[rows, columns].mean(), rtol=1e-6)
    wanted = np.exp(likelihoods)
    wanted[rows, columns] -= 1
    np.testing.assert_allclose(bench.numpy(given.grad)[:, :size], wanted / 4, atol=1e-6)


def run_whole(bench, arrays, *gradient, **options):
    """The loss and the gradient of logits that are the output of another layer, as in a model."""
    x = Tensor(arrays["logits"])
    logits = bench.layers.Residual()(x, bench.xp.zeros_like(arrays["logits"]))
    loss = bench.layers.FusedClassifier(17, **options)(logits, arrays["targets"])
    loss.backward(*gradient)
    return loss.data, x.grad, logits.data


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [24, 23])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_gradient_that_is_left_out_is_one(bench, width, precision, accumulation, inplace):
    arrays = bench.inputs("classifier", (6, width), precision, V=17)
    options = {"accumulation": accumulation, "inplace": inplace}
    one = bench.xp.ones((), np.float32)
    for given, left_out in zip(
        run_whole(bench, arrays, one, **options), run_whole(bench, arrays, **options), strict=True
    ):
        bench.xp.testing.assert_array_equal(given, left_out)
    halved = run_whole(bench, arrays, bench.xp.full((), 0.5, np.float32), **options)
    bench.xp.testing.assert_allclose(
        2 * halved[1].astype(np.float32), run_whole(bench, arrays)[1] / accumulation, rtol=2e-2, atol=1e-6
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("width", [24, 23])
def test_in_place_the_logits_become_their_gradient(bench, width, precision, record):
    arrays = bench.inputs("classifier", (6, width), precision, V=17)
    loss, gradient, logits = run_whole(bench, arrays)
    bench.xp.testing.assert_array_equal(logits, arrays["logits"])
    given = Tensor(arrays["logits"].copy(), requires_grad=record)
    targets = arrays["targets"].copy()
    layer = bench.layers.FusedClassifier(17, inplace=True)
    if record:
        in_place = layer(given, targets)
        in_place.backward()
        bench.xp.testing.assert_array_equal(given.grad, given.data)
    else:
        with no_grad():
            in_place = layer(given, targets)
    bench.xp.testing.assert_array_equal(in_place.data, loss)
    close = {"rtol": STEPS[precision], "atol": 1e-7}
    bench.xp.testing.assert_allclose(given.data.astype(np.float32), gradient.astype(np.float32), **close)
    bench.xp.testing.assert_array_equal(targets, arrays["targets"])


def test_the_gradient_of_a_leaf_in_place_is_an_array_of_its_own(bench):
    arrays = bench.inputs("classifier", (6, 24), "float32", V=17)
    given = Tensor(arrays["logits"].copy())
    bench.layers.FusedClassifier(17, inplace=True)(given, arrays["targets"]).backward()
    given.grad[...] = 7
    assert not (given.data == 7).any()


def test_the_loss_and_the_crossentropy_agree(bench):
    arrays = bench.inputs("classifier", (3, 5, 24), "float32", V=24)
    mean = bench.layers.FusedClassifier(24)(*arrays.values()).data
    losses = bench.layers.CrossEntropy()(*arrays.values()).data
    np.testing.assert_allclose(bench.numpy(mean), bench.numpy(losses).mean(), rtol=1e-6)


@pytest.mark.parametrize("op", ["classifier", "crossentropy"])
def test_logits_that_no_exponential_holds(bench, op):
    arrays = bench.inputs(op, (6, 24), "float32")
    arrays["logits"] = 1000 * arrays["logits"]
    results = bench.run(op, arrays, bench.gradients(op, (6, 24), "float32"))
    assert np.isfinite(bench.numpy(results["dlogits"])).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"V": 25}, r"^FusedClassifier needs 0 < V <= Vp, but V = 25, Vp = 24$"),
        ({"V": 17, "accumulation": 0}, r"^FusedClassifier needs accumulation > 0, but accumulation = 0$"),
        ({"V": 17, "accumulation": -1}, r"^FusedClassifier needs accumulation > 0, but accumulation = -1$"),
    ],
    ids=["longer", "no batch", "fewer batches"],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_options_that_do_not_fit_are_refused(bench, options, message, inplace):
    logits, targets = bench.inputs("classifier", (3, 24), "float32").values()
    before = logits.copy()
    with pytest.raises(ValueError, match=message):
        classifier(logits, targets % 1, **options, inplace=inplace)
    bench.xp.testing.assert_array_equal(logits, before)
