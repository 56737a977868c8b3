"""A CUDA and a cuDNN that are not there, and calls of attention on them."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np

from llmc2py.runtime import cudnn
from llmc2py.runtime.dtypes import bfloat16, float16, float32
from tests.runtime.flash import attention, draw


class HostArray:
    """Stands for ``cupy.ndarray``: host memory, with what the runtime asks of an array."""

    def __init__(self, shape, dtype, memory=None, *, offset=0):
        if memory is not None:
            self.values = memory.values
            return
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = np.zeros(nbytes + 64 + offset, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        self.values = raw[start : start + nbytes].view(dtype).reshape(shape)

    @classmethod
    def of(cls, values, offset=0):
        array = cls(values.shape, values.dtype, offset=offset)
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


class HostPool:
    """Stands for CuPy's memory pool."""

    def malloc(self, nbytes):
        return HostArray((nbytes,), np.uint8)


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
