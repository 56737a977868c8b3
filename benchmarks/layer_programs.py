"""What `benchmarks/layers.py` times, and how: generated layers and PyTorch, in CUDA graphs or on the CPU."""

from __future__ import annotations

import contextlib
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from benchmarks.layer_cases import Data
from llmc2py.runtime import Tensor

Call = Callable[[], Any]
COPY_BYTES = 4 << 30
MATMUL_SIZE = 8192
#: How long the calls between two events are to take: events are half a microsecond exact.
_BETWEEN_EVENTS = 2e-3
#: ``cudaErrorMemoryAllocation``.
_OUT_OF_MEMORY = 2
_SAMPLES = (5, 200)
#: How many elements of each array are compared.
_COMPARED = 1 << 20


class Device(Protocol):
    """Where programs run."""

    name: str
    xp: Any
    cache_bytes: int

    def capture(self, function: Call) -> tuple[Call, Any]:
        """Return what runs again all that a function launches, and what the function returned."""

    def seconds(self, call: Call, budget: float) -> float:
        """Return the median time of a call, of as many as the budget (in seconds) has time for."""

    def copy(self, nbytes: int) -> Call:
        """Return a call that copies so many bytes."""

    def free(self) -> None:
        """Give memory that nobody uses back."""


class Cpu:
    """NumPy arrays, wall time."""

    name = "the CPU"
    xp = np
    cache_bytes = 0

    def capture(self, function: Call) -> tuple[Call, Any]:
        return function, function()

    def seconds(self, call: Call, budget: float) -> float:
        times: list[float] = []
        deadline = time.perf_counter() + budget
        while len(times) < 3 or (time.perf_counter() < deadline and len(times) < _SAMPLES[1]):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def copy(self, nbytes: int) -> Call:
        source = np.ones(nbytes, np.uint8)
        target = np.empty_like(source)
        return lambda: np.copyto(target, source)

    def free(self) -> None:
        gc.collect()


class Cuda:
    """CuPy arrays, CUDA graphs, time between events."""

    def __init__(self) -> None:
        self.xp = importlib.import_module("cupy")
        raw = self.xp.cuda.runtime.getDeviceProperties(0)
        self.name: str = raw["name"].decode()
        self.cache_bytes: int = raw["l2CacheSize"]

    def capture(self, function: Call) -> tuple[Call, Any]:
        graphs = importlib.import_module("llmc2py.runtime.cuda.graphs")
        graph = graphs.capture(function)
        return graph.replay, graph.replay()

    def seconds(self, call: Call, budget: float) -> float:
        call()
        single = self._between_events(call, 1)
        count = max(1, min(1000, int(_BETWEEN_EVENTS / max(single, 1e-7))))
        times: list[float] = []
        deadline = time.perf_counter() + budget
        while len(times) < _SAMPLES[0] or (time.perf_counter() < deadline and len(times) < _SAMPLES[1]):
            times.append(self._between_events(call, count) / count)
        return statistics.median(times)

    def _between_events(self, call: Call, count: int) -> float:
        cuda = self.xp.cuda
        start, end = cuda.Event(), cuda.Event()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(cuda.get_elapsed_time(start, end)) * 1e-3

    def copy(self, nbytes: int) -> Call:
        source, target = self.xp.ones(nbytes, np.uint8), self.xp.empty(nbytes, np.uint8)
        runtime = self.xp.cuda.runtime
        # The arrays stand here to live as long as the call.
        return lambda a=target, b=source: runtime.memcpyAsync(
            a.data.ptr, b.data.ptr, nbytes, runtime.memcpyDeviceToDevice, self.xp.cuda.get_current_stream().ptr
        )

    def free(self) -> None:
        gc.collect()
        self.xp.cuda.Device().synchronize()
        self.xp.get_default_memory_pool().free_all_blocks()
        if (torch := sys.modules.get("torch")) is not None:
            torch._dynamo.reset()
            torch.cuda.empty_cache()


class OutOfMemoryError(Exception):
    """The device has not enough memory."""


@contextlib.contextmanager
def out_of_memory() -> Iterator[None]:
    """Turn what either library says into OutOfMemoryError."""
    try:
        yield
    except MemoryError as error:
        # CuPy's is a subclass.
        raise OutOfMemoryError(str(error)) from None
    except RuntimeError as error:
        torch = sys.modules.get("torch")
        of_torch = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
        if of_torch or getattr(error, "status", None) == _OUT_OF_MEMORY:
            raise OutOfMemoryError(str(error)) from None
        raise


class Ours:
    """A generated layer."""

    def __init__(self, data: Data, device: Device, implementation: str = "") -> None:
        self._data, self._device = data, device
        options = {"implementation": implementation} if implementation else {}
        self._layer = data.case.make(data.sizes, **options) if implementation else data.layer
        self._tensors = [
            [Tensor(array) if array.dtype.kind != "i" else array for array in inputs] for inputs in data.inputs
        ]

    def forward(self) -> Call:
        """Return the forward pass of all copies."""
        replay, outputs = self._device.capture(lambda: [_as_tuple(self._layer(*given)) for given in self._tensors])
        self._outputs = outputs
        return replay

    def backward(self) -> Call | None:
        """Return the backward pass of all copies, behind `forward`; None where it launches nothing."""
        nodes = [outputs[0].node for outputs in self._outputs]
        gradients = [list(arrays) for arrays in self._data.gradients]
        if (given := self._data.case.gives_up) is not None:
            for node, arrays in zip(nodes, gradients, strict=True):
                arrays[given] = arrays[given].copy()
                node.owned_.append(arrays[given])

        def run() -> list[Any]:
            pairs = zip(nodes, gradients, strict=True)
            return [_as_tuple(node.function_.backward(node, *arrays)) for node, arrays in pairs]

        replay, self._found = (run, run()) if self._data.case.is_idle else self._device.capture(run)
        if given is not None:
            # What was written over so far is as it was once more, for the results.
            for arrays, whole in zip(gradients, self._data.gradients, strict=True):
                arrays[given][...] = whole[given]
            self._found = replay()
        return None if self._data.case.is_idle else replay

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Return outputs and gradients of the first copy, or their beginnings, in float32."""
        arrays = [tensor.data for tensor in self._outputs[0]]
        arrays += [array for array in self._found[0] if array is not None]
        parts = [array.reshape(-1)[:_COMPARED].astype(np.float32) for array in arrays]
        return [part if isinstance(part, np.ndarray) else part.get() for part in parts]


class Torch:
    """The same in PyTorch, eager or compiled."""

    def __init__(self, data: Data, device: Device, compiled: bool = False) -> None:
        self._torch: Any = importlib.import_module("torch")
        modules = importlib.import_module("benchmarks.layer_modules")
        on_gpu = data.xp is not np
        if on_gpu and not self._torch.cuda.is_available():
            raise RuntimeError("this PyTorch sees no CUDA device")
        self._torch.set_float32_matmul_precision("highest")
        self._data, self._stream = data, self._torch.cuda.Stream() if on_gpu else None
        self._inputs = [[modules.as_tensor(array) for array in inputs] for inputs in data.inputs]
        self._gradients = [[modules.as_tensor(array) for array in arrays] for arrays in data.gradients]
        first = next((one for one in self._gradients[0] if one.ndim), self._inputs[0][0])
        kind = {"fp32": self._torch.float32, "bf16": self._torch.bfloat16}[data.dtype]
        module = modules.MODULES[data.case.name]().to(first.device, kind)
        self._parameters = list(module.parameters())
        with self._torch.no_grad():
            for parameter, same in zip(self._parameters, data.layer.parameters(), strict=True):
                parameter.copy_(modules.as_tensor(same.data))
        for tensors in self._inputs:
            for tensor in tensors:
                tensor.requires_grad_(tensor.is_floating_point())
        if compiled:
            # Lets the backward pass run twice, as a graph is captured after it was run.
            importlib.import_module("torch._functorch.config").donated_buffer = False
        self._run = self._torch.compile(module, dynamic=False) if compiled else module

    def forward(self) -> Call:
        """Return the forward pass of all copies."""
        replay, self._outputs = self._captured(lambda: [_as_tuple(self._run(*given)) for given in self._inputs])
        return replay

    def backward(self) -> Call | None:
        """Return the backward pass of all copies, behind `forward`; None where it launches nothing."""
        leaves = [[t for t in tensors if t.requires_grad] + self._parameters for tensors in self._inputs]
        gradient = self._torch.autograd.grad

        def run() -> list[Any]:
            triples = zip(self._outputs, leaves, self._gradients, strict=True)
            return [gradient(out, inputs, dout, retain_graph=True) for out, inputs, dout in triples]

        replay, self._found = (run, run()) if self._data.case.is_idle else self._captured(run)
        return None if self._data.case.is_idle else replay

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Return outputs and gradients of the first copy, or their beginnings, in float32."""
        tensors = [*self._outputs[0], *self._found[0]]
        return [tensor.detach().flatten()[:_COMPARED].float().cpu().numpy() for tensor in tensors]

    def _captured(self, function: Call) -> tuple[Call, Any]:
        if self._stream is None:
            return function, function()
        cuda = self._torch.cuda
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            for _ in range(2):
                function()
        cuda.current_stream().wait_stream(self._stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=self._stream):
            outputs = function()
        graph.replay()
        return graph.replay, outputs


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


Program = Ours | Torch
#: By the name in the tables. What generated layers have several implementations of comes as ``llmc2py <name>``.
PROGRAMS: dict[str, Callable[[Data, Device], Program]] = {
    "llmc2py": Ours,
    "llmc2py cudnn": lambda data, device: Ours(data, device, "cudnn"),
    "torch eager": Torch,
    "torch compile": lambda data, device: Torch(data, device, compiled=True),
}


def ceilings(device: Device, budget: float) -> dict[str, float]:
    """Return what the device reaches: GB/s of a copy, and TFLOP/s of a large product in each precision."""
    on_cpu = device.xp is np
    nbytes, size = (COPY_BYTES >> 6, 256) if on_cpu else (COPY_BYTES, MATMUL_SIZE)
    with out_of_memory():
        found = {"copy": 2e-9 * nbytes / device.seconds(device.copy(nbytes), budget)}
        device.free()
        for dtype in ("fp32", "bf16"):
            # The product of whichever library does it faster is what the device can do.
            calls = [_our_product(device, size, dtype)]
            if not on_cpu and (torch := _torch_or_none()) is not None:
                calls.append(_torch_product(torch, size, dtype))
            found[dtype] = 2e-12 * size**3 / min(device.seconds(call, budget) for call in calls)
            del calls
            device.free()
    return found


def _torch_or_none() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _our_product(device: Device, size: int, dtype: str) -> Call:
    cases = importlib.import_module("benchmarks.layer_cases")
    kind = cases.DTYPES[dtype]
    x = device.xp.array(cases.Input((size, size)).make(np.random.default_rng(0), kind))
    layer = cases.layers.Linear(size, size, bias=False).to("cpu" if device.xp is np else "cuda", dtype=kind)
    tensor = Tensor(x, requires_grad=False)
    return lambda: layer(tensor)


def _torch_product(torch: Any, size: int, dtype: str) -> Call:
    torch.set_float32_matmul_precision("highest")
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
    return lambda: a @ b
