"""Operators for PyTorch: the results of the layers, gradients, tensors as users have them, errors."""

from __future__ import annotations

import importlib
import pathlib
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'llmc2py[torch]')")

from llmc2py.runtime import Tensor  # noqa: E402 - after the skip
from tests.adapters.torch_cases import CASES, DTYPES, NAMES, Case, as_tuple, gradients  # noqa: E402 - after the skip

# PyTorch's own modules make use of what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

# --- results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_are_those_of_pytorch_in_float64(case: Case, package: Any, device: str) -> None:
    tensors = case.tensors(torch.float32, device)
    doubles = [one if one is None or not one.is_floating_point() else one.double().detach() for one in tensors]
    doubles = [one if one is None or not one.is_floating_point() else one.requires_grad_() for one in doubles]
    outputs = as_tuple(getattr(package, case.op)(*tensors, *case.options))
    expected = as_tuple(case.reference(*doubles, *case.options))
    for got, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=2e-5)
    for got, wanted in zip(gradients(outputs, tensors), gradients(expected, doubles), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_are_those_of_the_layers(case: Case, dtype: Any, package: Any, device: str) -> None:
    if dtype != torch.float32 and case.op == "encoder":
        pytest.skip("rounds its gradients at random")
    if str(dtype).removeprefix("torch.") not in operator(package, case).spec.dtypes:
        pytest.skip("not in this precision")
    tensors = case.tensors(dtype, device)
    outputs = as_tuple(getattr(package, case.op)(*tensors, *case.options))
    incoming = [torch.ones_like(one) for one in outputs]
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    found = torch.autograd.grad(outputs, wanted, incoming)

    leaves = [None if one is None else Tensor(one.detach()) for one in tensors]
    arrays = as_tuple(operator(package, case).function.apply(*leaves, *operator_options(package, case)))
    for got, array in zip(outputs, arrays, strict=True):
        assert_same(got, array.data)
    if len(arrays) == 1:
        arrays[0].backward(incoming[0])
        own = [leaf for leaf, one in zip(leaves, tensors, strict=True) if one is not None and one.requires_grad]
        for got, leaf in zip(found, own, strict=True):
            assert_same(got, leaf.grad)


def operator(package: Any, case: Case) -> Any:
    return getattr(package, f"_{case.op.upper()}")


def operator_options(package: Any, case: Case) -> tuple[Any, ...]:
    left_out = list(operator(package, case).spec.options.values())[len(case.options) :]
    return (*case.options, *left_out)


def assert_same(tensor: Any, array: Any) -> None:
    """The kernels are the same; what they add up atomically may come in another order."""
    wanted = array if isinstance(array, np.ndarray) else array.get()
    got = tensor.detach().cpu().double().numpy()
    assert str(tensor.dtype).removeprefix("torch.") == str(wanted.dtype)
    bound = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[str(wanted.dtype)]
    scale = np.abs(wanted.astype(np.float64)).max(initial=0)
    np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=bound, atol=bound * scale)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double:UserWarning")
@pytest.mark.parametrize("case", [one for one in CASES if one.op != "encoder"], ids=str)
def test_gradcheck(case: Case, package: Any, device: str) -> None:
    # In float32, differences over 0.02 carry an error near 1e-3 of their own: what is looked for is larger.
    function = getattr(package, case.op)
    tensors = case.tensors(torch.float32, device)

    def run(*given: Any) -> Any:
        return function(*given, *case.options)

    assert torch.autograd.gradcheck(run, tensors, eps=2e-2, atol=2e-2, rtol=2e-2, nondet_tol=1e-4, fast_mode=True)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double:UserWarning")
def test_gradcheck_sees_a_wrong_gradient(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = package._GELU.function.backward
    monkeypatch.setattr(package._GELU.function, "backward", staticmethod(lambda ctx, dout: right(ctx, dout * 1.1)))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(package.gelu, torch.randn(20, requires_grad=True), eps=2e-2, atol=2e-2, rtol=2e-2)


# --- the operators


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opcheck(case: Case, package: Any, device: str) -> None:
    torch.library.opcheck(operator(package, case)._op, (*case.tensors(torch.float32, device), *case.options))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_and_dtypes_without_data(case: Case, package: Any) -> None:
    real = as_tuple(getattr(package, case.op)(*case.tensors(torch.float32, "cpu"), *case.options))
    tensors = case.tensors(torch.float32, "meta")
    fake = as_tuple(getattr(package, case.op)(*tensors, *case.options))
    assert [(one.shape, one.dtype) for one in fake] == [(one.shape, one.dtype) for one in real]
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    found = torch.autograd.grad(fake, wanted, [torch.empty_like(one) for one in fake])
    assert [one.shape for one in found] == [one.shape for one in wanted]


def test_shapes_of_attention_by_cudnn(package: Any) -> None:
    x = torch.empty(2, 6, 48, device="meta", dtype=torch.bfloat16, requires_grad=True)
    out = package.attention(x, 2, "cudnn")
    assert (out.shape, out.dtype) == ((2, 6, 16), torch.bfloat16)
    (found,) = torch.autograd.grad(out, x, torch.empty_like(out))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)


def test_operators_are_named_after_the_package_and_live_side_by_side(packages: pathlib.Path, package: Any) -> None:
    relu = importlib.import_module("relu_for_torch.torch_layers")
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    y = torch.ops.relu_for_torch.relu(x)
    (found,) = torch.autograd.grad(y, x, torch.tensor([5.0, 6.0, 7.0]))
    assert (y.tolist(), found.tolist()) == ([0.0, 2.0, 3.0], [0.0, 6.0, 7.0])
    assert relu.ReLU()(x).tolist() == y.tolist()
    assert torch.ops.for_torch.gelu.default is package._GELU._op


# --- tensors as users have them


def test_strided_inputs_and_expanded_gradients(package: Any, device: str) -> None:
    x = torch.randn(6, 4, device=device, requires_grad=True)
    strided = package.gelu(x.t())
    strided.sum().backward()
    plain = x.detach().t().contiguous().requires_grad_()
    package.gelu(plain).sum().backward()
    assert torch.equal(strided, package.gelu(plain))
    assert torch.equal(x.grad, plain.grad.t())


def test_a_negative_view_has_its_values(package: Any) -> None:
    x = torch.randn(5, dtype=torch.complex64)
    view = x.conj().imag
    assert view.is_neg()
    torch.testing.assert_close(package.gelu(view), package.gelu(-x.imag.clone()))


def test_empty_tensors(package: Any, device: str) -> None:
    x = torch.zeros(0, 16, device=device, requires_grad=True)
    norm = package.LayerNorm(16, device=device)
    norm(x).sum().backward()
    assert x.grad.shape == (0, 16)
    assert not norm.weight.grad.any()


def test_an_output_that_is_not_used_has_no_gradient_of_its_own(package: Any) -> None:
    x, weight, bias = torch.randn(3, 8, requires_grad=True), torch.ones(8), torch.zeros(8)
    residual, normed = package.fused_residual(x, torch.zeros(3, 8), weight, bias)
    (found,) = torch.autograd.grad(residual, x, torch.ones(3, 8), retain_graph=True)
    assert torch.equal(found, torch.ones(3, 8))
    (found,) = torch.autograd.grad(normed, x, torch.ones(3, 8))
    torch.testing.assert_close(found, torch.zeros(3, 8), atol=1e-5, rtol=0)


def test_what_is_saved_is_left_as_it_is(package: Any) -> None:
    logits, targets = torch.randn(4, 8, requires_grad=True), torch.arange(4)
    before = logits.detach().clone()
    loss = package.classifier(logits, targets, 8)
    first = torch.autograd.grad(3 * loss, logits, retain_graph=True)
    assert torch.equal(torch.autograd.grad(3 * loss, logits)[0], first[0])
    assert torch.equal(logits, before)


def test_outputs_have_memory_of_their_own_and_the_graph_keeps_none_of_it(package: Any) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    before = x.detach().clone()
    y = package.gelu(x)
    y.detach().zero_()
    assert torch.equal(x, before)
    storage = weakref.ref(y)
    y = package.gelu(y)
    y.sum().backward()
    del y
    assert storage() is None


def test_an_input_that_was_changed_is_seen(package: Any) -> None:
    x = torch.randn(4, requires_grad=True) * 1
    y = package.gelu(x)
    x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_that_are_rounded_at_random_follow_the_seed_of_pytorch(package: Any, device: str) -> None:
    encoder = package.Encoder(10, 16, 8, dtype=torch.bfloat16, device=device)
    tokens, slope = torch.randint(0, 10, (16, 8), device=device), torch.randn(16, 8, 16, device=device).bfloat16()

    def gradient(seed: int) -> Any:
        torch.manual_seed(seed)
        encoder.zero_grad()
        encoder(tokens).backward(slope)
        return encoder.wte.grad

    first = gradient(0)
    assert torch.equal(gradient(0), first)
    assert not torch.equal(gradient(1), first)


def test_what_was_called_with_can_be_resized(package: Any) -> None:
    # As sharding of parameters (FSDP) and `out=` do it.
    layer, x = package.Linear(8, 4), torch.randn(3, 8, requires_grad=True)
    layer(x).sum().backward()
    for tensor in (x.detach(), layer.weight.detach(), layer.bias.detach()):
        storage = tensor.untyped_storage()
        size = storage.size()
        storage.resize_(0)
        storage.resize_(size)


def test_a_traced_module_is_a_graph_of_operators(package: Any) -> None:
    model = torch.nn.Sequential(package.GeLU(), package.LayerNorm(8), torch.nn.Linear(8, 4))
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(3, 8)
    assert torch.equal(traced(x), model(x))
    assert "torch.ops.for_torch.gelu" in traced.code


def test_a_module_shows_its_options_and_no_tensors(package: Any) -> None:
    layer = package.Linear(8, 4)
    prune = importlib.import_module("torch.nn.utils.prune")
    prune.l1_unstructured(layer, "weight", amount=0.5)
    assert repr(layer) == "Linear(bias=(4,), weight_orig=(4, 8))"
    assert "NH=2" in repr(package.Attention(2))


# --- derivatives that are not computed


def test_no_gradients_of_gradients(package: Any) -> None:
    x = torch.randn(5, requires_grad=True)
    (found,) = torch.autograd.grad(package.gelu(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="GeLU: gradients of gradients are not computed"):
        found.sum().backward()
    a, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    with pytest.raises(NotImplementedError, match="GeLU: gradients of gradients"):
        torch.autograd.functional.hessian(lambda one, other: package.residual(one, package.gelu(other)).sum(), (a, b))


@pytest.mark.parametrize("case", [one for one in CASES if one.op not in ("residual", "encoder")], ids=str)
def test_gradients_of_constant_gradients_are_refused_too(case: Case, package: Any) -> None:
    # PyTorch sees no way from a gradient to what only arrays of an operator's own depend on, and would give zeros.
    tensors = case.tensors(torch.float32, "cpu")
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    total = sum(one.sum() for one in as_tuple(getattr(package, case.op)(*tensors, *case.options)))
    with pytest.raises(NotImplementedError, match="gradients of gradients are not computed"):
        sum(one.square().sum() for one in torch.autograd.grad(total, wanted, create_graph=True)).backward()


def dual_call(call: Any, x: Any) -> Any:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.parametrize(
    "derive",
    [
        lambda call, x: torch.func.jvp(call, (x,), (x,)),
        lambda call, x: torch.func.jacfwd(call)(x),
        lambda call, x: torch.func.linearize(call, x),
        lambda call, x: torch.func.jvp(lambda y: torch.func.jvp(call, (y,), (y,))[1], (x,), (x,)),
        lambda call, x: torch.autograd.functional.jacobian(call, x, vectorize=True, strategy="forward-mode"),
        dual_call,
        lambda call, x: dual_call(call, x.requires_grad_()),
        lambda call, x: torch.func.jvp(torch.vmap(call), (x[None],), (x[None],)),
    ],
    ids=["jvp", "jacfwd", "linearize", "nested", "functional", "dual", "dual and gradient", "vmap"],
)
def test_no_derivatives_in_forward_mode(package: Any, derive: Any) -> None:
    # PyTorch itself would give zeros.
    with pytest.raises(NotImplementedError, match=r"GeLU: derivatives in forward mode \(jvp, .*torch.autograd.grad"):
        derive(package.gelu, torch.randn(3))
    with pytest.raises(NotImplementedError, match="Linear: derivatives in forward mode"):
        derive(package.Linear(3, 4), torch.randn(3))


def test_what_has_no_tangent_is_a_constant_in_forward_mode(package: Any) -> None:
    x, other = torch.randn(3), torch.randn(3)
    value, tangent = torch.func.jvp(lambda one: one * package.gelu(other), (x,), (torch.ones(3),))
    assert torch.equal(value, x * package.gelu(other))
    assert torch.equal(tangent, package.gelu(other))


@pytest.mark.parametrize("name", ["grad", "jacrev", "hessian"])
def test_transforms_of_functions_are_refused(package: Any, name: str) -> None:
    transform = getattr(torch.func, name)
    with pytest.raises(NotImplementedError, match=r"GeLU: PyTorch cannot transform .*torch.autograd.grad"):
        transform(lambda x: package.gelu(x).sum())(torch.randn(3))


def test_jacobians_in_reverse_mode(package: Any) -> None:
    x = torch.randn(3)
    expected = torch.autograd.functional.jacobian(lambda one: torch.nn.functional.gelu(one, approximate="tanh"), x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(package.gelu, x), expected, rtol=1e-4, atol=1e-5)


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.gelu(torch.zeros(3, dtype=torch.float64)), TypeError, "GeLU: `inp` is float64; float32 or"),
        (lambda p: p.gelu(torch.zeros(3, dtype=torch.complex64)), TypeError, "complex64 is no dtype that kernels know"),
        (lambda p: p.residual(torch.zeros(3), torch.zeros(4)), ValueError, r"Residual: `inp2` has shape \(4,\)"),
        (lambda p: p.residual(torch.zeros(3), torch.zeros(3).half()), TypeError, "`inp2` is float16, `inp1` is float"),
        (lambda p: p.Encoder(4, 8, 8)(torch.tensor([[1, 4]])), IndexError, r"Encoder: `inp` has 4 at \(0, 1\)"),
        (lambda p: p.LayerNorm(8)(torch.zeros(2, 7)), ValueError, r"LayerNorm: `weight` has shape \(8,\)"),
        (lambda p: p.LayerNorm(8, dtype=torch.float64), TypeError, "torch.float64 is no precision of the layers"),
        (lambda p: p.Attention(3)(torch.zeros(1, 4, 24)), ValueError, "C % NH == 0"),
        (lambda p: p.GeLU()(None), TypeError, "GeLU: `inp` is None; a tensor of PyTorch is taken"),
        (lambda p: p.GeLU()([1.0]), TypeError, "GeLU: `inp` is a list; a tensor"),
        (
            lambda p: p.Linear(8, 3)(np.zeros(8)),
            TypeError,
            "Linear: `inp` is a numpy.ndarray .`torch.from_numpy` makes",
        ),
        (
            lambda p: p.Linear(8, 3)(Tensor(np.zeros(8))),
            TypeError,
            r"Linear: `inp` is a llmc2py\.Tensor; a tensor of P",
        ),
        (lambda p: p.residual(torch.zeros(3), None), TypeError, "Residual: `inp2` is None"),
        (lambda p: p.linear(torch.zeros(3), None, None), TypeError, "Linear: `weight` is None"),
        (lambda p: p.CrossEntropy()(torch.zeros(1, 3), [1]), TypeError, "CrossEntropy: `targets` is a list"),
        (lambda p: p.Encoder(4, 8, 8)(torch.zeros(1, 2)), TypeError, "Encoder: `inp` is float32; integers are taken"),
        (
            lambda p: p.residual(torch.zeros(3), torch.zeros(3, device="meta")),
            TypeError,
            "Residual: `inp1` is on cpu and `inp2` is on meta; .* live on one device",
        ),
    ],
)
def test_what_is_wrong_is_said(call: Any, error: type[Exception], message: str, package: Any) -> None:
    with pytest.raises(error, match=message):
        call(package)


WRONG_FORMS = [
    (lambda p: p.Linear(16, 4), (torch.empty(2, 17),), ValueError, r"Linear: `\w+` has shape"),
    (
        lambda p: p.linear,
        (torch.empty(2, 8), torch.empty(4, 8), torch.empty(5)),
        ValueError,
        r"`bias` has shape \(5,\)",
    ),
    (lambda p: p.linear, (torch.empty(2, 8), torch.empty(4, 8).half(), None), TypeError, "`weight` is float16"),
    (lambda p: p.LayerNorm(8), (torch.empty(2, 7),), ValueError, "LayerNorm: `weight` has shape"),
    (lambda p: p.residual, (torch.empty(2, 7), torch.empty(3, 7)), ValueError, "Residual: `inp2` has shape"),
    (lambda p: p.Encoder(4, 8, 8), (torch.empty(2, 3),), TypeError, "Encoder: `inp` is float32; integers"),
    (lambda p: p.Attention(2), (torch.empty(2, 6, 47),), ValueError, "Attention"),
    (
        lambda p: p.crossentropy,
        (torch.empty(2, 6), torch.zeros(3, dtype=torch.int64)),
        ValueError,
        "`targets` has shape",
    ),
    (lambda p: p.gelu, (torch.empty(3, dtype=torch.float64),), TypeError, "GeLU: `inp` is float64; float32 or"),
    (lambda p: p.attention, (torch.empty(2, 6, 48), 2, "foo"), ValueError, "implementation"),
]


class Calling(torch.nn.Module):  # type: ignore[misc]
    """A module that calls something."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, *arguments: Any) -> Any:
        return self.call(*arguments)


@pytest.mark.parametrize("mode", ["data", "meta", "export"])
@pytest.mark.parametrize(("make", "arguments", "error", "message"), WRONG_FORMS, ids=lambda one: "")
def test_wrong_forms_are_refused_with_and_without_data(
    make: Any, arguments: tuple[Any, ...], error: type[Exception], message: str, mode: str, package: Any
) -> None:
    call = make(package)
    if mode == "meta":
        arguments = tuple(one.to("meta") if isinstance(one, torch.Tensor) else one for one in arguments)
        call = call.to("meta") if isinstance(call, torch.nn.Module) else call
    if mode != "export":
        with pytest.raises(error, match=message):
            call(*arguments)
        return
    with pytest.raises(Exception, match=message):
        torch.export.export(Calling(call), arguments)


@pytest.mark.parametrize("value", [None, [1.0], torch.zeros(3, dtype=torch.complex64), torch.arange(3)], ids=repr)
def test_autocast_leaves_what_is_wrong_to_be_said(value: Any, package: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for function in (package.gelu, package.softmax, lambda x: package.linear(x, x, None)):
            with pytest.raises(TypeError, match=r"`inp` is|complex64 is no dtype"):
                function(value)


def test_autocast_leaves_float64_alone(package: Any) -> None:
    # As it does in PyTorch: digits that were asked for are not thrown away.
    x = torch.zeros(2, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.linear(x, x).dtype == torch.float64
        for function in (package.softmax, lambda one: package.linear(one, one, None)):
            with pytest.raises(TypeError, match="is float64"):
                function(x)
