"""Operators and modules for PyTorch: the results of the layers, gradients, compilers, autocast, streams, memory."""

from __future__ import annotations

import copy
import importlib
import pathlib
import pickle
import re
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'llmc2py[torch]')")

from llmc2py.emit.writer import write_package  # noqa: E402 - after the skip
from llmc2py.pipeline import generate  # noqa: E402
from llmc2py.runtime import Tensor  # noqa: E402
from tests.adapters.torch_cases import CASES, Case  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A folder with generated packages, on the path."""
    folder = tmp_path_factory.mktemp("packages")
    for name, source in (("for_torch", "vendor/llm.c"), ("relu_for_torch", "examples/relu")):
        write_package(folder / name, generate(ROOT / source, targets=["torch"]).files)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def package(packages: pathlib.Path) -> types.ModuleType:
    """The module of layers for PyTorch, generated from the vendored tree."""
    return importlib.import_module("for_torch.torch_layers")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device that tensors are on."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("this PyTorch knows no CUDA")
    return str(request.param)


@pytest.fixture
def cuda() -> Any:
    """CuPy, beside a PyTorch that knows CUDA."""
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch knows no CUDA")
    return importlib.import_module("cupy")


def as_tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def gradients(outputs: Any, tensors: list[Any], seed: int = 1) -> list[Any]:
    """The gradients of all tensors that require one, for incoming gradients that are not all alike."""
    generator = torch.Generator().manual_seed(seed)
    outputs = as_tuple(outputs)
    incoming = [torch.randn(one.shape, generator=generator).to(one) for one in outputs]
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    return list(torch.autograd.grad(outputs, wanted, incoming))


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


def test_no_gradients_of_gradients(package: Any) -> None:
    x = torch.randn(5, requires_grad=True)
    (found,) = torch.autograd.grad(package.gelu(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        found.sum().backward()


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
    ],
)
def test_what_is_wrong_is_said(call: Any, error: type[Exception], message: str, package: Any) -> None:
    with pytest.raises(error, match=message):
        call(package)


# --- modules


class Block(torch.nn.Module):
    """A block of a transformer from generated layers."""

    def __init__(self, package: Any, size: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = package.LayerNorm(size), package.FusedResidualLayerNorm(size)
        self.qkv, self.proj = package.Linear(size, 3 * size), package.Linear(size, size)
        self.attention, self.mlp = package.Attention(heads), package.MLP(size, 4 * size)
        self.add = package.Residual()

    def forward(self, x: Any) -> Any:
        mixed = self.proj(self.attention(self.qkv(self.ln1(x))))
        residual, normed = self.ln2(x, mixed)
        return self.add(residual, self.mlp(normed))


class Model(torch.nn.Module):
    """A language model from generated layers."""

    def __init__(self, package: Any, vocabulary: int = 17, size: int = 16, length: int = 8) -> None:
        super().__init__()
        self.encoder = package.Encoder(vocabulary, size, length)
        self.block = Block(package, size, 2)
        self.norm = package.LayerNorm(size)
        self.head = package.Linear(size, vocabulary, bias=False)
        self.loss = package.FusedClassifier(vocabulary)

    def forward(self, ids: Any, targets: Any) -> Any:
        return self.loss(self.head(self.norm(self.block(self.encoder(ids)))), targets)


def batch(device: str, rows: int = 2, length: int = 8) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 17, (rows, length + 1), generator=generator).to(device)
    return ids[:, :-1], ids[:, 1:]


def test_a_model_learns(package: Any, device: str) -> None:
    torch.manual_seed(0)
    model = Model(package).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(*batch(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_modules_keep_state_dtype_and_device(package: Any, device: str) -> None:
    linear = package.Linear(8, 4, bias=False, dtype=torch.bfloat16, device=device)
    assert (linear.weight.dtype, linear.weight.device.type, linear.bias) == (torch.bfloat16, device, None)
    assert repr(linear) == "Linear(weight=(4, 8), bias=None)"
    assert repr(package.Attention(2)) == "Attention(NH=2, implementation='llmc')"
    norm = package.LayerNorm(8)
    assert list(norm.state_dict()) == ["weight", "bias"]
    other = package.LayerNorm(8).to(device, torch.float16)
    other.load_state_dict({"weight": torch.full((8,), 2.0), "bias": torch.ones(8)})
    assert torch.equal(other(torch.zeros(1, 8, device=device).half()), torch.ones(1, 8, device=device).half())


def test_modules_do_what_modules_do(package: Any) -> None:
    model = torch.nn.Sequential(package.LayerNorm(8), package.GeLU())
    x = torch.randn(4, 8, requires_grad=True)
    y = model(x)
    (wanted,) = torch.autograd.grad(y.sum(), x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), y)
    with torch.inference_mode():
        assert torch.equal(model(x), y)
    again = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], wanted)


# --- compilers


def run_model(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    model.zero_grad()
    loss = model(*arguments)
    loss.backward()
    return loss.detach(), [one.grad.clone() for one in model.parameters()]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    """Compilers without a past; what they warn of, of themselves, is nothing that this package could change."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_fresh_compiler")
def test_compile_takes_a_model_as_one_graph(package: Any, device: str) -> None:
    torch.manual_seed(0)
    model = Model(package).to(device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    # The second length makes the sizes symbols; the third is taken as it is.
    for length in (8, 6, 5):
        loss, found = run_model(compiled, batch(device, length=length))
        expected_loss, expected = run_model(model, batch(device, length=length))
        torch.testing.assert_close(loss, expected_loss)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.usefixtures("_fresh_compiler")
def test_inductor_compiles_around_the_operators(package: Any, device: str) -> None:
    norm = package.LayerNorm(16, device=device)
    compiled = torch.compile(lambda x: norm(x * 2).sin() + 1, fullgraph=True)
    x = torch.randn(3, 16, device=device, requires_grad=True)
    y, expected = compiled(x), norm(x * 2).sin() + 1
    torch.testing.assert_close(y, expected)
    incoming = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(one, x, incoming)[0] for one in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_export_takes_a_model_with_a_dynamic_batch(package: Any, device: str) -> None:
    torch.manual_seed(0)
    model = Model(package).to(device)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(model, batch(device, rows=3), dynamic_shapes=({0: rows}, {0: rows}))
    called = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert torch.ops.for_torch.attention.default in called
    for count in (2, 5):
        arguments = batch(device, rows=count)
        torch.testing.assert_close(program.module()(*arguments), model(*arguments))


@pytest.mark.usefixtures("_fresh_compiler")
def test_the_example_of_the_readme_runs(package: Any, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    (example,) = [block for block in blocks if "import torch" in block]
    exec(example.replace("from generated.", "from for_torch."), {"__name__": "example"})
    assert capsys.readouterr().out == "torch.bfloat16 torch.Size([8, 32, 64]) torch.float32\n"


# --- autocast


@pytest.mark.parametrize(
    ("op", "given", "dtype"),
    [
        ("linear", torch.float32, torch.bfloat16),
        ("mlp", torch.float32, torch.bfloat16),
        ("attention", torch.float32, torch.bfloat16),
        ("layernorm", torch.bfloat16, torch.float32),
        ("softmax", torch.bfloat16, torch.float32),
        ("crossentropy", torch.bfloat16, torch.float32),
        ("classifier", torch.bfloat16, torch.float32),
        ("gelu", torch.bfloat16, torch.bfloat16),
        ("gelu", torch.float32, torch.float32),
        ("encoder", torch.float32, torch.float32),
    ],
)
def test_autocast_rules(op: str, given: Any, dtype: Any, package: Any, device: str) -> None:
    case = next(one for one in CASES if one.op == op)
    tensors = case.tensors(given, device)
    with torch.autocast(device, torch.bfloat16):
        output = getattr(package, op)(*tensors, *case.options)
    assert output.dtype == dtype
    for found, tensor in zip(gradients(output, tensors), (t for t in tensors if t.requires_grad), strict=True):
        assert found.dtype == tensor.dtype == given


def test_autocast_brings_sums_to_the_widest(package: Any, device: str) -> None:
    with torch.autocast(device, torch.bfloat16):
        output = package.residual(torch.ones(3, device=device), torch.ones(3, device=device, dtype=torch.bfloat16))
    assert output.dtype == torch.float32


@pytest.mark.usefixtures("_fresh_compiler")
def test_autocast_is_compiled_too(package: Any, device: str) -> None:
    model = Model(package).to(device)
    ids, targets = batch(device)
    with torch.autocast(device, torch.bfloat16):
        expected = model(ids, targets)
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, targets)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(expected, model(ids, targets), rtol=2e-2, atol=2e-2)


# --- CUDA: streams, memory, graphs


@pytest.mark.gpu
def test_kernels_run_on_pytorchs_current_stream(package: Any, cuda: Any) -> None:
    x = torch.zeros(1 << 25, device="cuda")
    package.gelu(x)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            x += 1
        result = package.gelu(x).clone()
    side.synchronize()
    assert float(result.min()) == pytest.approx(20)
    # Nothing is left behind.
    assert cuda.cuda.get_current_stream().ptr == cuda.cuda.Stream.null.ptr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_memory_is_that_of_pytorchs_allocator(dtype: Any, package: Any, cuda: Any) -> None:
    pool = cuda.get_default_memory_pool()
    # An odd number of elements: the backward pass takes scratch and converts.
    x = torch.randn(1001, 511, device="cuda").to(dtype).requires_grad_()
    norm = package.LayerNorm(511, dtype=dtype, device="cuda")
    norm(x).sum().backward()
    x.grad = None
    torch.cuda.synchronize()
    before, ours = torch.cuda.memory_allocated(), pool.used_bytes()
    y = norm(x)
    statistics = 2 * 4 * 1001
    assert torch.cuda.memory_allocated() - before <= y.nbytes + statistics + 3 * 512
    y.backward(torch.ones_like(y))
    del y
    assert torch.cuda.memory_allocated() - before <= x.grad.nbytes + 512
    assert pool.used_bytes() == ours


@pytest.mark.gpu
# PyTorch warns that a captured backward pass runs on another stream than the leaves were made on.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_a_training_step_is_captured_into_a_graph(package: Any, cuda: Any) -> None:
    torch.manual_seed(0)
    model = Model(package).cuda()
    targets = batch("cuda")[1].contiguous()
    x = torch.randn(2, 8, 16, device="cuda", requires_grad=True)

    def step(given: Any) -> Any:
        loss = model.loss(model.head(model.norm(model.block(given))), targets)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(x)
    torch.cuda.current_stream().wait_stream(side)
    x.grad = None
    model.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(x)
    with torch.no_grad():
        x.copy_(torch.randn(2, 8, 16, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    captured, found = loss.clone(), x.grad.clone()
    fresh = x.detach().clone().requires_grad_()
    torch.testing.assert_close(captured, step(fresh))
    torch.testing.assert_close(found, fresh.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.usefixtures("_fresh_compiler")
def test_compile_with_cuda_graphs(package: Any, cuda: Any) -> None:
    block = Block(package, 32, 2).cuda()
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(2, 8, 32, device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).clone(), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_tensors_of_two_devices_are_refused(package: Any, cuda: Any) -> None:
    with pytest.raises(TypeError, match="the arrays of a call live on one device"):
        package.residual(torch.zeros(3, device="cuda"), torch.zeros(3))
