"""CASES B10: the device comes from the arrays, every launch goes to the current stream, mixed devices are an error."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime import Tensor

KERNELS = """\
__global__ void affine(float* out, const float* x, const float* w, int n, int c) {
    for (int i = threadIdx.x; i < n * c; i += blockDim.x) out[i] = x[i] * w[i % c];
}
__global__ void affine_backward(float* dx, float* dw, const float* dout, const float* x, const float* w, int n, int c) {
    if (threadIdx.x != 0) return;
    int i = blockIdx.x;
    for (int row = 0; row < n; ++row) {
        dx[row * c + i] = dout[row * c + i] * w[i];
        dw[i] += dout[row * c + i] * x[row * c + i];
    }
}
__global__ void fill_late(float* x, float value, int n, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
}
void scaled(float* out, const float* x, const float* w, int n, int c, cudaStream_t stream) {
    float* scratch;
    cudaMallocAsync(&scratch, n * c * sizeof(float), stream);
    cudaMemsetAsync(scratch, 0, n * c * sizeof(float), stream);
    affine<<<1, 64, 0, stream>>>(scratch, x, w, n, c);
    cudaMemcpyAsync(out, scratch, n * c * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    cudaFreeAsync(scratch, stream);
}
"""
ENTRY = '''\
name = "scaled_columns"
layer = "Affine"
summary = "Columns times weights."
source = "affine.cu"
launchers = ["scaled"]
kernels = ["affine_backward"]
[inputs]
inp = { shape = "* C", doc = "rows" }
[parameters]
weight = { shape = "C", init = "ones" }
[outputs]
out = { shape = "* C", doc = "the shape of `inp`" }
[forward]
saves = ["inp", "weight"]
recipe = """
out = empty_like(inp)
scaled(out, inp, weight, N, C)
"""
[backward]
gradients = { inp = "dinp", weight = "dweight" }
recipe = """
dinp = empty_like(inp)
dweight = accumulator(weight)
affine_backward[C, 32](dinp, dweight, dout, inp, weight, N, C)
"""
[reference]
forward = "out = inp * weight"
backward = """
dinp = dout * weight
dweight = (dout * inp).sum(axis=tuple(range(inp.ndim - 1)))
"""
'''
CYCLES = 200_000_000


@pytest.fixture
def built(case):
    built = case({"affine.cu": KERNELS, "affine.toml": ENTRY})
    assert built.diagnostics == []
    return built


def on_device(number, count):
    """Return a CuPy array that says it is on a device; its memory is nobody's."""
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.memory
    pointer = memory.MemoryPointer(memory.UnownedMemory(4096, 4 * count, None, number), 0)
    return cupy.ndarray((count,), np.float32, pointer)


def test_arrays_of_two_devices_are_refused(built):
    with pytest.raises(TypeError, match=r"scaled: `out` is on cuda:0 and `w` is on cuda:1; .* one device"):
        built["scaled_columns"].scaled(on_device(0, 6), on_device(0, 6), on_device(1, 3), 2, 3)


def test_an_array_on_the_cpu_among_those_of_a_device_is_refused(built):
    scaled = built["scaled_columns"].scaled
    with pytest.raises(TypeError, match="`out` is on cuda:1 and `x` is on the CPU"):
        scaled(on_device(1, 6), np.zeros(6, np.float32), on_device(1, 3), 2, 3)


def test_a_layer_whose_parameters_are_elsewhere_is_refused(built):
    layer = built["layers"].Affine(3)
    layer(np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"Affine: the parameters are float32 on the CPU, the input is .* on cuda:1"):
        layer(on_device(1, 6).reshape(2, 3))


def pass_through(layer, cupy, x):
    tensor = Tensor(x)
    out = layer(tensor)
    out.backward(cupy.full(x.shape, 2, np.float32))
    return out.data, tensor.grad, layer.weight.grad


@pytest.mark.gpu
def test_every_operation_goes_to_the_current_stream(built):
    import cupy

    layer = built["layers"].Affine(3, like=cupy.zeros(1, np.float32))
    fill_late = built["affine"].fill_late
    x = cupy.ones((2, 3), np.float32)
    pass_through(layer, cupy, x)
    layer.weight.grad = None
    fill_late[1, 32](x, 1.0, 6, 1)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        # What does not wait for this, in the order of the stream, sees ones.
        fill_late[1, 32](x, 5.0, 6, CYCLES)
        out, dinp, dweight = pass_through(layer, cupy, x)
        assert not stream.done
    stream.synchronize()
    assert out.tolist() == [[5.0] * 3] * 2
    assert dinp.tolist() == [[2.0] * 3] * 2
    assert dweight.tolist() == [20.0] * 3


@pytest.mark.gpu
def test_a_layer_runs_on_the_device_of_its_arrays(built):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU alone")
    with cupy.cuda.Device(1):
        layer = built["layers"].Affine(3, like=cupy.zeros(1, np.float32))
        x = cupy.arange(6, dtype=np.float32).reshape(2, 3)
    with cupy.cuda.Device(0):
        tensor = Tensor(x)
        out = layer(tensor)
        with cupy.cuda.Device(1):
            incoming = cupy.ones_like(x)
        out.backward(incoming)
        assert cupy.cuda.Device().id == 0
    assert {array.device.id for array in (out.data, tensor.grad, layer.weight.grad)} == {1}
    assert out.data.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert layer.weight.grad.tolist() == [3.0, 5.0, 7.0]
    with cupy.cuda.Device(0):
        other = cupy.zeros((2, 3), np.float32)
    with pytest.raises(TypeError, match="Affine: the parameters are float32 on cuda:1, the input is float32 on cuda:0"):
        layer(other)
