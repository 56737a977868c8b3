"""Attention by cuDNN: without it, errors and the handling of graphs, streams and captures; with it, results."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import subprocess
import sys
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from llmc2py.runtime import arrays, cudnn
from llmc2py.runtime.dtypes import bfloat16, float16, float32
from llmc2py.runtime.errors import LaunchError, PrecisionError, ToolMissingError

# --- the reference, and how near a flash attention of 16 bits must be


def attention(q, k, v, dout, scale):
    """Return causal attention, its statistics and its gradients in float64; all (B, NH, T, HS)."""
    T = q.shape[2]
    scores = np.where(np.tri(T, dtype=bool), scale * q @ k.swapaxes(2, 3), -np.inf)
    largest = scores.max(axis=3, keepdims=True)
    stats = largest + np.log(np.exp(scores - largest).sum(axis=3, keepdims=True))
    p = np.exp(scores - stats)
    out = p @ v
    dp, delta = dout @ v.swapaxes(2, 3), (dout * out).sum(axis=3, keepdims=True)
    ds = p * (dp - delta)
    return SimpleNamespace(
        p=p, ds=ds, delta=delta, out=out, stats=stats[..., 0],
        dq=scale * ds @ k, dk=scale * ds.swapaxes(2, 3) @ q, dv=p.swapaxes(2, 3) @ dout,
    )  # fmt: skip


def allowances(exact, q, k, v, dout, scale, dtype):
    """Return the error allowed in each element: 1.5 times the roundings to ``dtype`` that the algorithm has.

    Those are the probabilities, the gradients of the scores, the output that the backward pass reads, and each result;
    the rest is float32.
    """
    info = ml_dtypes.finfo(dtype)
    u, tiny, single = 1.5 * float(info.eps) / 2 + 1e-5, float(info.smallest_subnormal), 1e-5
    q, k, v, dout = (np.abs(x) for x in (q, k, v, dout))
    p = exact.p
    seen = np.tri(p.shape[3])
    out = u * (p @ v + abs(exact.out)) + tiny * (1 + seen @ v)
    delta = (dout * (out + single * abs(exact.out))).sum(axis=3, keepdims=True)
    ds = u * abs(exact.ds) + p * (delta + single * (dout @ v.swapaxes(2, 3) + abs(exact.delta))) + tiny * seen
    return SimpleNamespace(
        out=out,
        stats=single * (1 + scale * (q * k.max(axis=2, keepdims=True)).sum(axis=3)),
        dq=scale * ds @ k + u * abs(exact.dq) + tiny,
        dk=scale * ds.swapaxes(2, 3) @ q + u * abs(exact.dk) + tiny,
        dv=u * (p.swapaxes(2, 3) @ dout + abs(exact.dv)) + tiny * (1 + seen.T @ dout),
    )


def draw(B, T, NH, HS, dtype, seed=0):
    """Return a packed input and a gradient, rounded to ``dtype``."""
    random = np.random.default_rng([seed, B, T, NH, HS])
    inp = 0.3 + 0.8 * random.standard_normal((B, T, 3, NH, HS))
    dout = -0.2 + 1.3 * random.standard_normal((B, T, NH, HS))
    return inp.astype(dtype), dout.astype(dtype)


def by_head(array):
    """Return (B, T, ..., NH, HS) as float64 with the heads before the time; three arrays where it is packed."""
    values = np.moveaxis(array.astype(np.float64), -2, 1)
    return list(np.moveaxis(values, 3, 0)) if values.ndim == 5 else values


def worst(found, inp, dout):
    """Return, by name, the largest error of an attention over what is allowed; NaN where something was not written."""
    q, k, v = by_head(inp)
    gradient, scale = by_head(dout), q.shape[3] ** -0.5
    exact = attention(q, k, v, gradient, scale)
    allowed = allowances(exact, q, k, v, gradient, scale, inp.dtype)
    return {
        name: (abs(value - getattr(exact, name)) / getattr(allowed, name)).max() for name, value in vars(found).items()
    }


def found_in(out, stats, dinp):
    dq, dk, dv = by_head(dinp)
    return SimpleNamespace(out=by_head(out), stats=stats.astype(np.float64), dq=dq, dk=dk, dv=dv)


def flash(inp, dout, *, fault=""):
    """Return what a flash attention that rounds as cuDNN does computes, with a fault where one is named."""
    q, k, v = by_head(inp)
    dout, scale = by_head(dout), q.shape[3] ** -0.5 * (1.01 if fault == "scale" else 1)
    half = lambda x: x.astype(inp.dtype).astype(np.float64)  # noqa: E731
    mask = np.tri(q.shape[2], k=1 if fault == "mask" else 0, dtype=bool)
    scores = np.where(mask, scale * q @ k.swapaxes(2, 3), -np.inf)
    largest = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    out, stats, p = half(half(weights) @ v / total), largest + np.log(total), weights / total
    delta = 0 if fault == "delta" else (dout * out).sum(axis=3, keepdims=True)
    ds = half(p * (dout @ v.swapaxes(2, 3) - delta))
    dk = ds.swapaxes(2, 3) @ q
    return SimpleNamespace(
        out=out, stats=stats[..., 0], dq=half(scale * ds @ k), dk=half(dk if fault == "dk" else scale * dk),
        dv=half((p if fault == "dv" else half(p).swapaxes(2, 3)) @ dout),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_the_allowance_is_enough_for_the_roundings_and_no_more(dtype):
    for sizes in [(2, 7, 3, 32), (1, 65, 2, 48)]:
        inp, dout = draw(*sizes, dtype)
        assert max(worst(flash(inp, dout), inp, dout).values()) <= 1
        for fault, name in {"scale": "stats", "mask": "out", "delta": "dq", "dk": "dk", "dv": "dv"}.items():
            assert worst(flash(inp, dout, fault=fault), inp, dout)[name] > 2, fault


# --- a CUDA and a cuDNN that are not there


class HostArray:
    """Stands for ``cupy.ndarray``: host memory, with what the runtime asks of an array."""

    def __init__(self, shape, dtype, offset=0):
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = np.zeros(nbytes + 64 + offset, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        self.values = raw[start : start + nbytes].view(dtype).reshape(shape)

    @classmethod
    def of(cls, values, offset=0):
        array = cls(values.shape, values.dtype, offset)
        array.values[...] = values
        return array

    def wrap(self, values):
        array = object.__new__(HostArray)
        array.values = values
        return array

    def __getattr__(self, name):
        return getattr(self.values, name)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.values.ctypes.data, device_id=0)

    def __getitem__(self, key):
        return self.wrap(self.values[key])

    def __setitem__(self, key, value):
        self.values[key] = getattr(value, "values", value)

    def reshape(self, *shape):
        return self.wrap(self.values.reshape(*shape))

    def astype(self, dtype):
        return self.wrap(self.values.astype(dtype))

    def sum(self, axis):
        return self.wrap(self.values.sum(axis=axis))

    def __mul__(self, other):
        return self.wrap(self.values * getattr(other, "values", other))


class NotSupported(Exception):  # noqa: N818 - stands for a class of that name
    pass


class FakeTensor:
    """A tensor of a graph: ``set_…`` sets an attribute, as the frontend's does."""

    def __init__(self, **attributes):
        self.attributes = attributes

    def __getattr__(self, name):
        def setter(value):
            self.attributes[name.removeprefix("set_")] = value
            return self

        return setter

    def view(self, addresses):
        """Return the memory at the tensor's address by its shape and strides."""
        dtype, a = np.dtype(self.attributes["data_type"]), self.attributes
        reach = sum((n - 1) * s for n, s in zip(a["dim"], a["stride"], strict=True)) + 1
        memory = (ctypes.c_char * (reach * dtype.itemsize)).from_address(addresses[a["uid"]])
        return np.ndarray(a["dim"], dtype, memory, strides=[s * dtype.itemsize for s in a["stride"]])


class FakeGraph:
    """A graph that computes in float64 what it describes."""

    def __init__(self, frontend, **options):
        assert options["intermediate_data_type"] == options["compute_data_type"] == float32
        self.frontend, self.handle, self.steps = frontend, options["handle"], []

    def tensor(self, **attributes):
        return FakeTensor(**attributes)

    def sdpa(self, **arguments):
        assert arguments["generate_stats"] is True
        return self._node(arguments, ("out", "stats"))

    def sdpa_backward(self, **arguments):
        return self._node(arguments, ("dq", "dk", "dv"))

    def _node(self, arguments, names):
        assert (arguments["diagonal_alignment"], arguments["diagonal_band_right_bound"]) == ("TOP_LEFT", 0)
        self.arguments, self.results = arguments, {name: FakeTensor() for name in names}
        return list(self.results.values())

    def validate(self):
        self.steps.append("validate")

    def build_operation_graph(self):
        self.steps.append("build_operation_graph")

    def create_execution_plans(self, modes):
        self.steps.append("create_execution_plans")

    def deselect_engines(self, names):
        assert names == ["sdpa_"]
        self.steps.append("deselect_engines")

    def check_support(self):
        self.steps.append("check_support")
        if self.frontend.refusal:
            raise NotSupported(self.frontend.refusal)

    def build_plans(self):
        planned = ["build_operation_graph", "create_execution_plans", "deselect_engines"]
        assert self.steps == ["validate", *planned, "check_support"]
        self.frontend.built.append(self)

    def get_workspace_size(self):
        return self.frontend.workspace

    def execute(self, addresses, workspace, handle):
        assert handle is self.handle
        self.frontend.calls.append((addresses, workspace, handle.stream, threading.get_ident()))
        tensors = {name: x.view(addresses) for name, x in self.arguments.items() if isinstance(x, FakeTensor)}
        q, k, v = (tensors[name].astype(np.float64) for name in "qkv")
        dout = tensors["dO"].astype(np.float64) if "dO" in tensors else np.zeros_like(q)
        exact = attention(q, k, v, dout, self.arguments["attn_scale"])
        if "stats" in tensors:
            np.testing.assert_allclose(tensors["stats"][..., 0], exact.stats, rtol=1e-5)
            np.testing.assert_allclose(tensors["o"].astype(np.float64), exact.out, rtol=2**-7, atol=2**-9)
        for name, tensor in self.results.items():
            assert tensor.attributes["output"] is True
            view = tensor.view(addresses)
            view[...] = getattr(exact, name).reshape(view.shape)


class FakeFrontend:
    """The module ``cudnn``."""

    cudnnGraphNotSupportedError = NotSupported  # noqa: N815
    data_type = SimpleNamespace(HALF=float16, BFLOAT16=bfloat16, FLOAT=float32)
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT")

    def __init__(self):
        self.version, self.refusal, self.workspace = 91900, "", 256
        self.handles, self.built, self.calls = [], [], []

    def backend_version(self):
        return self.version

    def backend_version_string(self):
        return "9.19.0"

    def create_handle(self):
        self.handles.append(SimpleNamespace(stream=0))
        return self.handles[-1]

    def set_stream(self, handle, stream):
        handle.stream = stream

    def pygraph(self, **options):
        return FakeGraph(self, **options)


@pytest.fixture
def fake(monkeypatch):
    """Put a CUDA and a cuDNN of ours in place; returns the latter, with the former as ``cuda``."""
    frontend = FakeFrontend()
    cuda = SimpleNamespace(stream=7, capturing=False, allocated=[])

    def empty(shape, dtype):
        if cuda.capturing:
            raise RuntimeError("an array would be allocated")
        cuda.allocated.append(shape)
        return HostArray(shape, dtype)

    backend = SimpleNamespace(
        empty=empty,
        current_stream=lambda: cuda.stream,
        is_capturing=lambda: cuda.capturing,
        memset=lambda pointer, value, nbytes, stream: ctypes.memset(pointer, value, nbytes),
    )
    monkeypatch.setitem(arrays.BACKENDS, "cuda", backend)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=HostArray))
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    monkeypatch.setattr(arrays, "has_several_devices", lambda: False)
    monkeypatch.setattr(cudnn, "_load_libraries", lambda: None)
    monkeypatch.setattr(cudnn, "_threads", threading.local())
    monkeypatch.setattr(cudnn, "_free", {})
    monkeypatch.setattr(cudnn, "_captured", {})
    cudnn._frontend.cache_clear()
    frontend.cuda = cuda
    yield frontend
    cudnn._frontend.cache_clear()


def call_arrays(B, T, NH, HS, dtype=float16, new=HostArray):
    """Return inputs by name, and outputs full of NaN."""
    inp, dout = draw(B, T, NH, HS, dtype)
    nan = {"out": (B, T, NH, HS), "dinp": (B, T, 3, NH, HS)}
    found = {name: new.of(np.full(shape, np.nan, dtype)) for name, shape in nan.items()}
    return SimpleNamespace(
        inp=new.of(inp), dout=new.of(dout), stats=new.of(np.full((B, NH, T), np.nan, np.float32)), **found
    )


def run_both(a, *sizes):
    cudnn.attention_forward(a.out, a.stats, a.inp, *sizes)
    cudnn.attention_backward(a.dinp, a.dout, a.out, a.stats, a.inp, *sizes)


# --- on the CPU: layouts, graphs, streams, captures


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("sizes", [(2, 7, 3, 16), (1, 1, 4, 8), (3, 1, 1, 128), (1, 12, 1, 64)])
def test_queries_keys_and_values_are_found_by_strides(fake, sizes, dtype):
    a = call_arrays(*sizes, dtype)
    kept = a.inp.values.copy(), a.dout.values.copy()
    run_both(a, *sizes)
    found = found_in(a.out.values, a.stats.values, a.dinp.values)
    assert max(worst(found, *kept).values()) <= 1
    assert (a.inp.values == kept[0]).all()
    assert (a.dout.values == kept[1]).all()
    copies = [shape for shape in fake.cuda.allocated if shape != (fake.workspace,)]
    assert copies == []


def test_axes_may_be_taken_together(fake):
    sizes = 2, 5, 2, 8
    a = call_arrays(*sizes)
    kept = a.inp.values.copy(), a.dout.values.copy()
    flat = {"inp": (2, 5, 48), "dinp": (10, 48), "out": (2, 5, 16), "dout": (10, 16), "stats": (4, 5)}
    run_both(SimpleNamespace(**{name: getattr(a, name).reshape(shape) for name, shape in flat.items()}), *sizes)
    assert max(worst(found_in(a.out.values, a.stats.values, a.dinp.values), *kept).values()) <= 1


@pytest.mark.parametrize("sizes", [(0, 5, 2, 8), (2, 0, 2, 8), (2, 5, 0, 8)])
def test_nothing_runs_on_empty_arrays(fake, sizes):
    run_both(call_arrays(*sizes), *sizes)
    assert fake.handles == fake.calls == []


@pytest.mark.parametrize("layout", ["strided", "misaligned"])
def test_inputs_that_cudnn_cannot_read_are_copied(fake, layout):
    sizes = 2, 5, 2, 8
    a = call_arrays(*sizes)
    kept = a.inp.values.copy(), a.dout.values.copy()
    for name in ("inp", "dout"):
        values = getattr(a, name).values
        array = HostArray.of(np.repeat(values, 2, axis=1))[:, ::2] if layout == "strided" else HostArray.of(values, 2)
        setattr(a, name, array)
    run_both(a, *sizes)
    assert max(worst(found_in(a.out.values, a.stats.values, a.dinp.values), *kept).values()) <= 1
    assert all(address % 16 == 0 for addresses, *_ in fake.calls for address in addresses.values())


def test_graphs_are_built_once_for_sizes_and_dtype_and_the_oldest_goes(fake, monkeypatch):
    monkeypatch.setattr(cudnn, "MAX_GRAPHS", 3)
    for T, dtype, built in [(5, float16, 2), (5, float16, 2), (6, float16, 4), (6, bfloat16, 6), (6, bfloat16, 6),
                            (5, float16, 8)]:  # fmt: skip
        run_both(call_arrays(2, T, 2, 8, dtype), 2, T, 2, 8)
        assert len(fake.built) == built
    assert len(fake.handles) == 1


def test_calls_run_on_the_current_stream_with_a_workspace_of_their_own(fake):
    a = call_arrays(2, 5, 2, 8)
    for stream in (7, 0, 9):
        fake.cuda.stream = stream
        run_both(a, 2, 5, 2, 8)
    assert [call[2] for call in fake.calls] == [7, 7, 0, 0, 9, 9]
    assert all(call[1] for call in fake.calls)
    fake.workspace = 0
    run_both(call_arrays(2, 6, 2, 8), 2, 6, 2, 8)
    assert [call[1] for call in fake.calls[-2:]] == [0, 0]


def test_threads_have_handles_of_their_own_and_leave_them_to_the_next(fake):
    def run():
        run_both(call_arrays(2, 5, 2, 8), 2, 5, 2, 8)

    run()
    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(fake.handles) == 2
    assert len(fake.built) == 4
    assert len(fake.calls) == 6


def test_a_captured_call_keeps_its_workspace(fake):
    a, sizes = call_arrays(2, 5, 2, 8), (2, 5, 2, 8)
    run_both(a, *sizes)
    fake.cuda.capturing = True
    run_both(a, *sizes)
    run_both(a, *sizes)
    assert len(cudnn._captured) == 1
    kept = next(iter(cudnn._captured.values()))
    assert {call[1] for call in fake.calls[2:]} == {kept.data.ptr}
    fake.cuda.stream = 8
    run_both(a, *sizes)
    assert len(cudnn._captured) == 2


@pytest.mark.parametrize("T", [1, 5])
def test_nothing_is_built_or_allocated_during_a_capture(fake, T):
    a = call_arrays(2, T, 2, 8)
    fake.cuda.capturing = True
    with pytest.raises(RuntimeError, match="captured into a CUDA graph: call it before"):
        cudnn.attention_forward(a.out, a.stats, a.inp, 2, T, 2, 8)
    assert fake.handles == fake.built == fake.calls == []


def test_what_the_device_cannot_do_is_said_with_the_other_choice(fake):
    fake.refusal = "head_dim is too large\nand more"
    a = call_arrays(2, 5, 2, 8)
    with pytest.raises(LaunchError, match=r'T=5, NH=2, HS=8 on this device \(head_dim is too large\): .*"llmc"'):
        cudnn.attention_forward(a.out, a.stats, a.inp, 2, 5, 2, 8)
    fake.refusal = ""
    run_both(a, 2, 5, 2, 8)
    assert len(fake.built) == 2


# --- on the CPU: errors


def test_numpy_arrays_are_told_that_cudnn_runs_on_cuda_alone():
    inp, out, stats = np.zeros((1, 2, 3, 1, 8), np.float16), np.zeros((1, 2, 1, 8), np.float16), np.zeros((1, 1, 2))
    with pytest.raises(TypeError, match=r'attention_forward: cuDNN runs on CUDA alone.*implementation="llmc"'):
        cudnn.attention_forward(out, stats, inp, 1, 2, 1, 8)
    with pytest.raises(TypeError, match=r'attention_backward: cuDNN runs on CUDA alone.*implementation="llmc"'):
        cudnn.attention_backward(inp, out, out, stats, inp, 1, 2, 1, 8)


@pytest.mark.parametrize(
    ("sizes", "change", "error", "text"),
    [
        ((1, 2, 1, 8), {"inp": np.zeros(48, np.float32)}, PrecisionError, r'inp` is float32: .*implementation="llmc"'),
        ((1, 2, 1, 20), {}, ValueError, r'multiples of 8 up to 128, not 20: choose implementation="llmc"'),
        ((1, 2, 1, 136), {}, ValueError, r"not 136"),
        ((1, 2, 1, 0), {}, ValueError, r"not 0"),
        ((-1, 2, 1, 8), {}, ValueError, r"B, T, NH and HS are -1, 2, 1, 8"),
        ((1, 2, 1, 8), {"inp": np.zeros(40, np.float16)}, ValueError, r"`inp` has shape \(40,\).*\(1, 2, 3, 1, 8\)"),
        ((1, 2, 1, 8), {"out": np.zeros(8, np.float16)}, ValueError, r"`out` has shape \(8,\)"),
        ((1, 2, 1, 8), {"stats": np.zeros(3, np.float32)}, ValueError, r"`stats` has shape \(3,\)"),
        ((1, 2, 1, 8), {"out": np.zeros(16, bfloat16)}, TypeError, r"`out` is bfloat16.*float16"),
        ((1, 2, 1, 8), {"stats": np.zeros(2, np.float16)}, TypeError, r"`stats` is float16"),
    ],
)
def test_bad_arguments_are_refused(fake, sizes, change, error, text):
    B, T, NH, HS = (max(n, 0) for n in sizes)
    a = {
        "out": np.zeros((B, T, NH, HS), np.float16),
        "stats": np.zeros((B, NH, T), np.float32),
        "inp": np.zeros((B, T, 3, NH, HS), np.float16),
    }
    values = [HostArray.of(value) for value in (a | change).values()]
    with pytest.raises(error, match=text):
        cudnn.attention_forward(*values, *sizes)
    assert fake.handles == fake.calls == []


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (HostArray.of(np.zeros((1, 4, 3, 1, 8), np.float16))[:, ::2], "must be contiguous and aligned to 16 bytes"),
        (HostArray((1, 2, 3, 1, 8), np.float16, offset=2), "must be contiguous and aligned to 16 bytes"),
        (HostArray.of(np.zeros(1)).wrap(np.broadcast_to(float16.type(0), (1, 2, 3, 1, 8))), "share memory"),
    ],
)
def test_what_is_written_must_be_an_array_that_cudnn_can_write(fake, array, text):
    a = call_arrays(1, 2, 1, 8)
    with pytest.raises(ValueError, match=f"`dinp` is written.*{text}"):
        cudnn.attention_backward(array, a.dout, a.out, a.stats, a.inp, 1, 2, 1, 8)


def test_without_the_frontend_the_extra_is_named(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    a = call_arrays(1, 2, 1, 8)
    with pytest.raises(ToolMissingError, match=r'cuDNN cannot be loaded .*pip install "llmc2py\[cudnn\]"'):
        cudnn.attention_forward(a.out, a.stats, a.inp, 1, 2, 1, 8)


@pytest.mark.parametrize(
    "error", [OSError("libcudnn.so.9: cannot open"), RuntimeError("libcublasLt"), ImportError("x")]
)
def test_without_a_library_the_extra_is_named(fake, monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(cudnn, "_load_libraries", fail)
    a = call_arrays(1, 2, 1, 8)
    with pytest.raises(ToolMissingError, match=rf'\({error}\); pip install "llmc2py\[cudnn\]"'):
        cudnn.attention_forward(a.out, a.stats, a.inp, 1, 2, 1, 8)


def test_an_old_cudnn_is_refused(fake):
    fake.version = 91501
    a = call_arrays(1, 2, 1, 8)
    with pytest.raises(ToolMissingError, match=r"cuDNN is 9\.15, and 9\.16 or newer is needed; pip install"):
        cudnn.attention_forward(a.out, a.stats, a.inp, 1, 2, 1, 8)


def test_the_library_is_looked_for_in_packages_that_the_frontend_does_not_know(tmp_path, monkeypatch):
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    home, other = tmp_path / "home", tmp_path / "other"
    cudnn._load_cudnn(str(home), [str(other)])
    for folder in (other, home):
        (folder / "nvidia/cudnn/lib").mkdir(parents=True)
        (folder / "nvidia/cudnn/lib/libcudnn.so.9").touch()
        cudnn._load_cudnn(str(home), [str(tmp_path), str(other)])
    assert loaded == ["libcudnn.so.9", str((other / "nvidia/cudnn/lib/libcudnn.so.9").resolve())]


def test_importing_the_module_imports_neither_cuda_nor_cudnn():
    code = (
        "import sys, llmc2py.runtime.cudnn as m; "
        "assert m.__name__ == 'llmc2py.runtime.cudnn'; "
        "print({'cupy', 'cupy_backends', 'cudnn', 'cuda'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "set()", "")


# --- on CUDA

HEADS, TIMES = (32, 48, 64, 80, 96, 128), (1, 7, 64, 65, 130)
CASES = [
    (1 + n % 3, T, 1 + n % 4, HS) for n, (T, HS) in enumerate((T, HS) for T in TIMES for HS in HEADS)
]  # fmt: skip


class Device:
    """Makes CuPy arrays of NumPy's."""

    @staticmethod
    def of(values):
        return importlib.import_module("cupy").asarray(values)


@pytest.fixture
def cupy():
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("nvidia-cudnn-frontend is not installed")
    return importlib.import_module("cupy")


def check_on_device(a):
    inp, dout = a.inp.get(), a.dout.get()
    errors = worst(found_in(a.out.get(), a.stats.get(), a.dinp.get()), inp, dout)
    assert all(error <= 1 for error in errors.values()), errors


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_results_are_within_the_roundings(cupy, sizes, dtype):
    a = call_arrays(*sizes, dtype, new=Device)
    run_both(a, *sizes)
    check_on_device(a)


@pytest.mark.gpu
def test_a_long_sequence_and_strided_inputs_on_a_stream(cupy):
    sizes = 2, 1024, 4, 64
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a = call_arrays(*sizes, bfloat16, new=Device)
        wide = cupy.empty((2, 2048, 3, 4, 64), bfloat16)
        wide[:, ::2] = a.inp
        a.inp = wide[:, ::2]
        run_both(a, *sizes)
        stream.synchronize()
        check_on_device(a)


@pytest.mark.gpu
def test_a_captured_call_can_be_replayed_on_other_values(cupy):
    sizes = 2, 130, 3, 64
    a, stream = call_arrays(*sizes, bfloat16, new=Device), cupy.cuda.Stream(non_blocking=True)
    with stream:
        run_both(a, *sizes)
        stream.synchronize()
        stream.begin_capture()
        run_both(a, *sizes)
        graph = stream.end_capture()
        for seed in (1, 2):
            inp, dout = draw(*sizes, bfloat16, seed)
            a.inp[...], a.dout[...] = cupy.asarray(inp), cupy.asarray(dout)
            for array in (a.out, a.stats, a.dinp):
                array[...] = cupy.asarray(np.full(array.shape, np.nan, array.dtype))
            # What the pool has to give must not be what the graph works in.
            others = [cupy.full(1 << size, 255, np.uint8) for size in range(9, 24)]
            graph.launch(stream)
            stream.synchronize()
            check_on_device(a)
            assert all((other == 255).all() for other in others)


@pytest.mark.gpu
def test_threads_run_at_the_same_time(cupy):
    sizes = 1, 65, 2, 64
    calls = [call_arrays(*sizes, float16, new=Device) for _ in range(4)]
    cupy.cuda.Device().synchronize()
    failures: list[BaseException] = []

    def run(a):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                run_both(a, *sizes)
                stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(a,)) for a in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for a in calls:
        check_on_device(a)
