"""Attention by cuDNN without cuDNN: layouts, graphs, streams, captures, errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from llmc2py.runtime import arrays, cudnn, cudnnlibrary
from llmc2py.runtime.dtypes import bfloat16, float16
from llmc2py.runtime.errors import LaunchError, PrecisionError, ToolMissingError
from tests.runtime.fakecudnn import FakeFrontend, HostArray, HostPool, call_arrays, run_both
from tests.runtime.flash import found_in, worst


@pytest.fixture
def fake(monkeypatch, driver):
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
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=HostArray, get_default_memory_pool=HostPool))
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    monkeypatch.setattr(arrays, "has_several_devices", lambda: False)
    monkeypatch.setattr(cudnnlibrary, "load_libraries", lambda: None)
    monkeypatch.setattr(cudnn, "_threads", threading.local())
    monkeypatch.setattr(cudnn, "_free", {})
    monkeypatch.setattr(cudnn, "_captured", {})
    cudnnlibrary.frontend_module.cache_clear()
    frontend.cuda = cuda
    yield frontend
    cudnnlibrary.frontend_module.cache_clear()


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

    monkeypatch.setattr(cudnnlibrary, "load_libraries", fail)
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
    cudnnlibrary.load_cudnn(str(home), [str(other)])
    for folder in (other, home):
        (folder / "nvidia/cudnn/lib").mkdir(parents=True)
        (folder / "nvidia/cudnn/lib/libcudnn.so.9").touch()
        cudnnlibrary.load_cudnn(str(home), [str(tmp_path), str(other)])
    assert loaded == ["libcudnn.so.9", str((other / "nvidia/cudnn/lib/libcudnn.so.9").resolve())]


def test_importing_the_module_imports_neither_cuda_nor_cudnn():
    code = (
        "import sys, llmc2py.runtime.cudnn as m; "
        "assert m.__name__ == 'llmc2py.runtime.cudnn'; "
        "print({'cupy', 'cupy_backends', 'cudnn', 'cuda'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "set()", "")
