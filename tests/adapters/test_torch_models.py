"""Modules for PyTorch: models of them, compilers, autocast, streams, memory."""

from __future__ import annotations

import copy
import pathlib
import pickle
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'llmc2py[torch]')")

from tests.adapters.torch_cases import CASES, DTYPES, NAMES, gradients  # noqa: E402 - after the skip

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

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
    exec(example.replace("from llmc_torch.", "from for_torch."), {"__name__": "example"})
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
    ids, targets = (one.contiguous() for one in batch("cuda"))

    def step() -> Any:
        loss = model(ids, targets)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    ids.copy_(torch.randint(0, 17, ids.shape, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    captured, found = loss.clone(), [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    torch.testing.assert_close(captured, step())
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


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
    with pytest.raises(TypeError, match="the tensors of a call live on one device"):
        package.residual(torch.zeros(3, device="cuda"), torch.zeros(3))
