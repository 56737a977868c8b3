"""Capturing functions into CUDA graphs: the order of things over a stand-in for CuPy; on a GPU, every layer."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime import Tensor, allocation, arrays
from llmc2py.runtime.cuda import graphs
from llmc2py.runtime.dtypes import bfloat16, float32


class FakeError(RuntimeError):
    """Stands for CuPy's CUDARuntimeError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class FakeArray:
    """Stands for a CuPy array."""

    def __init__(self, device: int = 0) -> None:
        self.data = SimpleNamespace(device_id=device)


class FakePool:
    """A pool of memory: ``used`` says how much of it arrays are in."""

    def __init__(self, log: list[Any], allocator: Any) -> None:
        self.log, self.used, self.malloc = log, 0, f"the graph's, of {allocator}"

    def free_all_blocks(self) -> None:
        self.log.append(("given back", self.used))

    def used_bytes(self) -> int:
        return self.used


class FakeStream:
    """Writes down what is done with it."""

    def __init__(self, log: list[Any], name: str, **options: Any) -> None:
        self.log, self.name, self.is_capturing, self.fails = log, name, False, 0
        if options:
            log.append((name, "made", options))

    def __enter__(self) -> FakeStream:
        self.log.append((self.name, "current"))
        return self

    def __exit__(self, *error: Any) -> None:
        self.log.append((self.name, "left"))

    def record(self) -> str:
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append((self.name, "waits for", event))

    def synchronize(self) -> None:
        if self.is_capturing:
            self.fails = 901
            raise FakeError(900)
        self.log.append((self.name, "synchronized"))

    def begin_capture(self) -> None:
        self.is_capturing = True

    def end_capture(self) -> Any:
        self.is_capturing = False
        if self.fails:
            status, self.fails = self.fails, 0
            raise FakeError(status)
        return SimpleNamespace(launch=lambda stream: self.log.append(("launched on", stream.name)))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CuPy with one device: ``log`` is what was done, ``made`` the streams."""
    log: list[Any] = []
    state = SimpleNamespace(log=log, made=[], pools=[], capturing=False, current=FakeStream(log, "caller"))
    current_allocator: list[Any] = ["CuPy's"]

    def stream(**options: Any) -> FakeStream:
        state.made.append(FakeStream(log, f"stream {len(state.made)}", **options))
        return state.made[-1]

    @contextlib.contextmanager
    def using_allocator(allocate: Any) -> Any:
        current_allocator.append(allocate)
        yield
        current_allocator.pop()

    pool = SimpleNamespace(free_all_blocks=lambda stream: log.append(("freed", stream.name)), malloc="CuPy's")

    def new_pool(allocator: Any) -> FakePool:
        state.pools.append(FakePool(log, allocator))
        return state.pools[-1]

    state.allocator = lambda: current_allocator[-1]
    cuda = SimpleNamespace(
        Stream=stream,
        MemoryPool=new_pool,
        using_allocator=using_allocator,
        get_current_stream=lambda: state.current,
        runtime=SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1, CUDARuntimeError=FakeError),
    )
    cupy = SimpleNamespace(cuda=cuda, ndarray=FakeArray, get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(arrays.BACKENDS, "cuda", SimpleNamespace(is_capturing=lambda: state.capturing))
    monkeypatch.setattr(arrays, "_cuda_devices", lambda: 1)
    monkeypatch.setattr(graphs, "_idle", {})
    monkeypatch.setattr(graphs, "_retired", [])
    return state


def test_a_function_is_called_twice_before_it_is_captured(fake: Any) -> None:
    def function(array: FakeArray, factor: float) -> Any:
        capturing = fake.made[0].is_capturing
        fake.log.append(("called", factor, fake.allocator(), allocation.has_allocator(), capturing))
        return array

    array = FakeArray()
    graph = graphs.capture(function, array, 0.5)
    assert graph.outputs is array
    assert graph.device == 0
    assert fake.log == [
        ("stream 0", "made", {"non_blocking": True}),
        ("stream 0", "waits for", "event of caller"),
        ("stream 0", "current"),
        ("called", 0.5, "CuPy's", False, False),
        ("freed", "stream 0"),
        ("called", 0.5, "the graph's, of CuPy's", True, False),
        ("stream 0", "synchronized"),
        ("called", 0.5, "the graph's, of CuPy's", True, True),
        ("stream 0", "left"),
    ]
    fake.log.clear()
    assert graph.replay() is array
    assert fake.log == [("launched on", "caller")]
    assert not allocation.has_allocator()


def test_a_stream_is_used_again_after_its_graph_and_what_that_still_does(fake: Any) -> None:
    first = graphs.capture(FakeArray)
    first.replay()
    second = graphs.capture(FakeArray)
    assert len(fake.made) == 2
    del first
    gc.collect()
    fake.log.clear()
    third = graphs.capture(FakeArray)
    assert len(fake.made) == 2
    assert fake.log[0] == ("stream 0", "waits for", "event of caller")
    assert fake.log[:2].count(("stream 0", "waits for", "event of caller")) == 2
    assert second.outputs is not third.outputs


def test_memory_is_given_back_with_the_graph_and_what_arrays_are_in_later(fake: Any) -> None:
    first = graphs.capture(FakeArray)
    second = graphs.capture(FakeArray)
    fake.pools[0].used = 8
    fake.log.clear()
    del first
    gc.collect()
    assert fake.log == [("given back", 8)]
    assert len(graphs._retired) == 1
    del second
    gc.collect()
    assert fake.log[1:] == [("given back", 8), ("given back", 0)]
    fake.pools[0].used = 0
    graphs.capture(FakeArray)
    assert ("given back", 0) in fake.log[3:]
    assert graphs._retired == []


def test_a_pool_that_is_left_at_the_last_moment_is_looked_at_again(fake: Any) -> None:
    graph = graphs.capture(FakeArray)
    (pool,) = fake.pools
    pool.used = 8
    pool.free_all_blocks = lambda: setattr(pool, "used", 0)
    del graph
    gc.collect()
    assert [kept for _, kept in graphs._retired] == [pool]


def test_graphs_that_are_collected_while_memory_is_given_back_wait_for_no_pool(fake: Any) -> None:
    first, second = graphs.capture(FakeArray), [graphs.capture(FakeArray)]
    running: list[Any] = []

    def guarded(pool: FakePool) -> Any:
        def free() -> None:
            assert pool not in running
            running.append(pool)
            second.clear()
            running.remove(pool)

        return free

    for pool in fake.pools:
        pool.used, pool.free_all_blocks = 8, guarded(pool)
    del first
    assert not second
    assert {id(pool) for _, pool in graphs._retired} == {id(pool) for pool in fake.pools}


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_capture_that_fails_gives_memory_and_stream_back(fake: Any, failing: int) -> None:
    calls = itertools.count(1)

    def function() -> Any:
        if next(calls) == failing:
            raise ValueError("mine")
        return FakeArray()

    with pytest.raises(ValueError, match="mine"):
        graphs.capture(function)
    assert fake.log[-1] == ("given back", 0)
    graphs.capture(FakeArray)
    assert len(fake.made) == 1


def test_an_output_that_is_refused_gives_memory_and_stream_back(fake: Any) -> None:
    with pytest.raises(TypeError, match="no replay would change it"):
        graphs.capture(lambda: np.ones(3))
    assert fake.log[-1] == ("given back", 0)
    graphs.capture(FakeArray)
    assert len(fake.made) == 1


def test_a_function_that_waits_is_an_error_and_ends_the_capture(fake: Any) -> None:
    def waits() -> FakeArray:
        fake.made[-1].synchronize()
        return FakeArray()

    with pytest.raises(RuntimeError, match=r"waits for the device, or copies .*cudaError900"):
        graphs.capture(waits)
    assert not fake.made[-1].is_capturing
    graphs.capture(FakeArray)

    def hides_it() -> FakeArray:
        with contextlib.suppress(FakeError):
            fake.made[-1].synchronize()
        return FakeArray()

    with pytest.raises(RuntimeError, match=r"waits for the device.*cudaError901"):
        graphs.capture(hides_it)


def test_what_the_function_raises_ends_the_capture(fake: Any) -> None:
    def fails() -> FakeArray:
        if fake.made[-1].is_capturing:
            raise KeyError("mine")
        return FakeArray()

    with pytest.raises(KeyError, match="mine"):
        graphs.capture(fails)
    assert not fake.made[-1].is_capturing
    assert not allocation.has_allocator()


def test_a_capture_within_a_capture_is_refused(fake: Any) -> None:
    fake.capturing = True
    with pytest.raises(RuntimeError, match="begin another one when that has ended: the current stream is captured"):
        graphs.capture(FakeArray)
    assert fake.made == []


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}, Tensor])
def test_arrays_on_the_cpu_are_refused(wrap: Any) -> None:
    value = wrap(np.ones(3, np.float32))
    with pytest.raises(TypeError, match=r"`args\[1\].*` is a NumPy array; CUDA graphs are for CuPy arrays"):
        graphs.capture(lambda *args: args, 1.0, value)


def test_arrays_of_other_libraries_are_refused() -> None:
    class Foreign:
        __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012

    with pytest.raises(TypeError, match=r"`args\[0\]` is a .*Foreign; pass a CuPy array on its memory"):
        graphs.capture(lambda x: x, Foreign())


def test_an_output_on_the_cpu_is_refused(fake: Any) -> None:
    with pytest.raises(TypeError, match=r"`outputs\[1\]`, which the function returns, is on the CPU"):
        graphs.capture(lambda: (FakeArray(), np.ones(3)))


def test_what_no_graph_can_repeat_is_refused_on_cuda_alone(fake: Any) -> None:
    fake.capturing = True
    graphs.refuse_capture_of(np.ones(3), "reason")
    graphs.refuse_capture_of(None, "reason")
    with pytest.raises(RuntimeError, match="reason: the current stream is captured into a CUDA graph"):
        graphs.refuse_capture_of(FakeArray(), "reason")
    fake.capturing = False
    graphs.refuse_capture_of(FakeArray(), "reason")


# --- on a GPU


@pytest.fixture
def cupy() -> Any:
    """CuPy; only for tests that are marked gpu."""
    return importlib.import_module("cupy")


def forward_and_backward(layer: Any, *inputs: Any) -> list[Any]:
    """Return output and gradients of a layer, for a gradient of ones."""
    cupy = sys.modules["cupy"]
    tensors = [Tensor(x) for x in inputs]
    for parameter in layer.parameters():
        parameter.grad = None
    out = layer(*tensors)
    out = out[-1] if isinstance(out, tuple) else out
    out.backward(cupy.ones_like(out.data))
    leaves = [*(t for t in tensors if t.requires_grad), *layer.parameters()]
    return [out.data, *(leaf.grad for leaf in leaves)]


def check_close(found: list[Any], expected: list[Any], limit: float) -> None:
    """Compare arrays; errors are relative to the largest element, for sums of atomics differ in their last digits."""
    for got, wanted in zip(found, expected, strict=True):
        exact = wanted.get().astype(np.float64)
        scale = max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(got.get().astype(np.float64), exact, rtol=0, atol=limit * scale)


def layers_and_shapes(package: Any) -> dict[str, tuple[Any, list[tuple[int, ...]]]]:
    """Layers that can be captured forward and backward, with shapes of their floating-point inputs."""
    return {
        "GeLU": (package.GeLU(), [(8, 1024)]),
        "GeLU of a size that is padded": (package.GeLU(), [(7, 13)]),
        "Residual": (package.Residual(), [(16, 256)] * 2),
        "LayerNorm": (package.LayerNorm(64), [(32, 64)]),
        "FusedResidualLayerNorm": (package.FusedResidualLayerNorm(64), [(32, 64)] * 2),
        "Softmax": (package.Softmax(), [(9, 33)]),
        "Linear": (package.Linear(64, 128), [(16, 64)]),
        "LinearGeLU": (package.LinearGeLU(64, 128), [(16, 64)]),
        "MLP": (package.MLP(64, 256), [(16, 64)]),
        "Attention": (package.Attention(4), [(2, 16, 3 * 64)]),
        "CrossEntropy": (package.CrossEntropy(), [(12, 40)]),
        "FusedClassifier": (package.FusedClassifier(40), [(12, 40)]),
    }


NAMES = (
    *("GeLU", "GeLU of a size that is padded", "Residual", "LayerNorm", "FusedResidualLayerNorm", "Softmax", "Linear"),
    *("LinearGeLU", "MLP", "Attention", "CrossEntropy", "FusedClassifier"),
)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_replay_is_what_a_call_on_new_values_is(cupy: Any, generated_package: Any, name: str, dtype: Any) -> None:
    package = importlib.import_module(f"{generated_package.__name__}.layers")
    layer, shapes = layers_and_shapes(package)[name]
    random = np.random.default_rng(0)

    def values() -> list[Any]:
        return [cupy.asarray(random.normal(0.5, 1, shape).astype(dtype)) for shape in shapes]

    inputs = values()
    needs_targets = name in ("CrossEntropy", "FusedClassifier")
    targets = [cupy.asarray(random.integers(0, 40, 12).astype(np.int32))] if needs_targets else []
    graph = graphs.capture(lambda *given: forward_and_backward(layer, *given), *inputs, *targets)
    for _ in range(2):
        fresh = values()
        for place, new in zip(inputs, fresh, strict=True):
            place[...] = new
        found = [array.copy() for array in graph.replay()]
        expected = forward_and_backward(layer, *fresh, *targets)
        check_close(found, expected, 1e-5 if dtype == float32 else 2**-7)


@pytest.mark.gpu
def test_the_memory_of_a_graph_is_its_own(cupy: Any, generated_package: Any) -> None:
    gelu = importlib.import_module(f"{generated_package.__name__}.layers").GeLU()
    x = cupy.linspace(-3, 3, 1 << 16, dtype=np.float32)

    def three_times(given: Any) -> Any:
        return gelu(gelu(gelu(Tensor(given, requires_grad=False)))).data

    graph = graphs.capture(three_times, x)
    wanted = three_times(x).copy()
    others = [cupy.full(1 << 16, np.nan, np.float32) for _ in range(32)]
    gc.collect()
    out = graph.replay()
    cupy.testing.assert_array_equal(out, wanted)
    assert all(bool(cupy.isnan(other).all()) for other in others)
    del graph
    gc.collect()
    cupy.testing.assert_array_equal(out, wanted)


@pytest.mark.gpu
def test_the_memory_of_a_graph_that_is_gone_is_given_back(cupy: Any) -> None:
    def used() -> int:
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        return int(cupy.get_default_memory_pool().total_bytes())

    class Holder:
        """What a function captures belongs to, in a cycle with the graph."""

        def run(self) -> Any:
            self.kept = cupy.ones(64 << 20, np.float32)
            return self.kept * 2 + 1

    holder = Holder()
    holder.run()
    del holder.kept
    before = used()
    holder.graph = graphs.capture(holder.run)  # type: ignore[attr-defined]
    holder.graph.replay()  # type: ignore[attr-defined]
    assert used() - before >= 512 << 20
    del holder
    gc.collect()
    # What the function kept was in use until then.
    graphs.capture(lambda: cupy.ones(1))
    assert used() - before < 1 << 20


@pytest.mark.gpu
def test_replays_run_on_the_callers_stream_and_in_other_threads(cupy: Any, generated_package: Any) -> None:
    norm = importlib.import_module(f"{generated_package.__name__}.layers").LayerNorm(64)
    x = cupy.random.standard_normal((128, 64), dtype=np.float32)
    graph = graphs.capture(lambda given: norm(Tensor(given, requires_grad=False)).data, x)
    wanted = norm(x).data.get()
    found = []

    def replay() -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            out = graph.replay()
            found.append(out.get(stream=stream))

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], wanted)


# A graph has the buckets that there are at most. Tokens in few places, most in one, all in one, and each in some.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("V", "C"), [(300, 64), (70_000, 264), (3, 64), (300, 65)])
def test_a_replay_of_embeddings_takes_other_tokens(
    cupy: Any, generated_package: Any, V: int, C: int, dtype: Any
) -> None:
    encoder = importlib.import_module(f"{generated_package.__name__}.layers").Encoder(V, C, 128)
    random, shape = np.random.default_rng(0), (4, 128)
    tokens = cupy.asarray(random.integers(0, V, shape, dtype=np.int32))
    dout = cupy.asarray(random.standard_normal((*shape, C)).astype(dtype))
    encoder.to("cuda", dtype=dtype)

    def backward() -> list[Any]:
        for parameter in encoder.parameters():
            parameter.grad = None
        out = encoder(tokens)
        out.backward(dout)
        return [out.data, *(parameter.grad for parameter in encoder.parameters())]

    graph = graphs.capture(backward)
    alike = np.where(random.random(shape) < 0.9, V - 1, random.integers(0, V, shape))
    for ids in (random.integers(0, V, shape), alike, np.full(shape, V // 2), np.arange(512).reshape(shape) % V):
        tokens[...] = cupy.asarray(ids.astype(np.int32))
        found = [array.copy() for array in graph.replay()]
        check_close(found, backward(), 1e-5 if dtype == float32 else 2**-6)


@pytest.mark.gpu
def test_adamw_and_clipping_are_refused_and_the_next_capture_works(cupy: Any, generated_package: Any) -> None:
    package = generated_package.__name__
    layers, optim = (importlib.import_module(f"{package}.{name}") for name in ("layers", "optim"))
    encoder = layers.Encoder(11, 64, 8).to("cuda")
    tokens = cupy.zeros((2, 8), np.int32)
    optimizer = optim.AdamW(encoder.parameters())
    for parameter in encoder.parameters():
        parameter.grad = cupy.ones_like(parameter.data)
    with pytest.raises(RuntimeError, match=r"AdamW.step gives each step other numbers"):
        graphs.capture(optimizer.step)
    with pytest.raises(RuntimeError, match="waits for the device, or copies to or from the host"):
        graphs.capture(lambda: optim.clip_global_norm(encoder.parameters(), 1.0))
    forward = graphs.capture(lambda: encoder(tokens).data)
    cupy.testing.assert_array_equal(forward.replay(), encoder(tokens).data)
