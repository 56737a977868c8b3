"""The backend on a real device: compile, load, launch, streams, shared memory, capture, errors."""

from __future__ import annotations

import ctypes
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from llmc2py.runtime import cuda
from llmc2py.runtime.dtypes import bfloat16
from llmc2py.runtime.errors import LaunchError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("nvrtc")]

SCALE = """\
#if defined(ENABLE_FP32)
typedef float floatX;
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
#endif
__global__ void k(floatX* o, const floatX* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) o[i] = (floatX)((float)x[i] * factor);
}
"""

ROW_SUM = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(float* o, const float* x, int n) {
    extern __shared__ __align__(16) float row[];
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i];
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) sum += row[i];
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    if (threadIdx.x == 0) o[blockIdx.x] = sum;
}
"""

FILL = "__global__ void k(float* o, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] = 3.0f; }"


class Arguments:
    """The array of pointers to argument values that a launch takes."""

    def __init__(self, *values: ctypes._SimpleCData) -> None:
        self.values = values
        self.cells = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))

    @property
    def address(self) -> int:
        return ctypes.addressof(self.cells)


def pointer(array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_kernel_gives_the_right_numbers(make_request, cupy, precision):
    dtype = np.dtype(np.float32) if precision == "float32" else bfloat16
    host = (np.arange(1000) % 200 - 100).astype(dtype)
    x, out = cupy.asarray(host), cuda.empty((1000,), dtype)
    kernel = cuda.kernel(make_request(SCALE, precision=precision), 0)
    arguments = Arguments(pointer(out), pointer(x), ctypes.c_float(0.5), ctypes.c_int(1000))
    kernel.launch((4, 1, 1), (256, 1, 1), 0, cuda.current_stream(), arguments.address)
    np.testing.assert_array_equal(out.get().astype(np.float32), host.astype(np.float32) * 0.5)


def test_attributes_and_properties_are_those_of_the_device(make_request, cupy):
    kernel = cuda.kernel(make_request(SCALE), 0)
    assert 32 <= kernel.max_threads_per_block <= 1024
    assert kernel.num_regs > 0
    assert kernel.static_shared_bytes == 0
    assert kernel.max_active_blocks(256, 0) >= 1
    found = cuda.properties(0)
    assert found.warpSize == 32
    assert found.multiProcessorCount == cupy.cuda.Device(0).attributes["MultiProcessorCount"]
    assert f"{found.major}{found.minor}" == cupy.cuda.Device(0).compute_capability


def test_more_than_48_kib_of_shared_memory(make_request, cupy):
    columns = 16_000
    x = cupy.ones((3, columns), dtype=np.float32)
    out = cupy.full(3, np.nan, dtype=np.float32)
    kernel = cuda.kernel(make_request(ROW_SUM), 0)
    arguments = Arguments(pointer(out), pointer(x), ctypes.c_int(columns))
    with pytest.raises(LaunchError, match="64000 bytes of dynamic shared memory"):
        kernel.launch((3, 1, 1), (32, 1, 1), columns * 4, cuda.current_stream(), arguments.address)
    assert kernel.reserve_shared(columns * 4)
    kernel.launch((3, 1, 1), (32, 1, 1), columns * 4, cuda.current_stream(), arguments.address)
    np.testing.assert_array_equal(out.get(), [columns] * 3)
    assert not kernel.reserve_shared(cuda.properties(0).sharedMemPerBlockOptin + 1)


def test_a_refused_launch_leaves_the_next_one_right(make_request, cupy):
    kernel = cuda.kernel(make_request(FILL), 0)
    out = cupy.zeros(100, dtype=np.float32)
    arguments = Arguments(pointer(out), ctypes.c_int(100))
    with pytest.raises(LaunchError, match=r"'k' with grid \(1, 1, 1\), block \(2048, 1, 1\)"):
        kernel.launch((1, 1, 1), (2048, 1, 1), 0, cuda.current_stream(), arguments.address)
    kernel.launch((1, 1, 1), (128, 1, 1), 0, cuda.current_stream(), arguments.address)
    np.testing.assert_array_equal(out.get(), np.full(100, 3.0, np.float32))


def test_memory_is_set_and_copied_in_stream_order(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert cuda.current_stream() == stream.ptr
        source, target = cuda.empty((64,), np.uint8), cuda.empty((64,), np.uint8)
        assert target.data.ptr % 256 == 0
        cuda.memset(source.data.ptr, 7, 64, stream.ptr)
        cuda.memcpy(target.data.ptr, source.data.ptr, 64, stream.ptr)
        stream.synchronize()
    np.testing.assert_array_equal(target.get(), np.full(64, 7, np.uint8))


def test_threads_that_have_called_nothing_of_cuda_launch(make_request, cupy):
    kernel, out = cuda.kernel(make_request(FILL), 0), cupy.empty(100, dtype=np.float32)
    arguments = Arguments(pointer(out), ctypes.c_int(100))

    def launch():
        kernel.launch((1, 1, 1), (128, 1, 1), 0, cuda.current_stream(), arguments.address)

    for _ in range(3):
        out.fill(0)
        cupy.cuda.Device().synchronize()
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(launch).result()
        np.testing.assert_array_equal(out.get(), np.full(100, 3.0, np.float32))


def test_eight_threads_then_capture_in_a_graph(make_request, cupy):
    request, failures = make_request(FILL), []
    outs = [cupy.zeros(100, dtype=np.float32) for _ in range(8)]

    def launch(out):
        arguments = Arguments(pointer(out), ctypes.c_int(100))
        cuda.kernel(request, 0).launch((1, 1, 1), (128, 1, 1), 0, cuda.current_stream(), arguments.address)

    def call(out):
        try:
            launch(out)
            cupy.cuda.get_current_stream().synchronize()
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=call, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all((out == 3).all() for out in outs)
    out = cupy.zeros(100, dtype=np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        launch(out)
        with pytest.raises(RuntimeError, match="before the capture"):
            cuda.empty((1,), np.float32)
        with pytest.raises(RuntimeError, match="warmup"):
            cuda.kernel(make_request(FILL, file="new.cu"), 0)
        graph = stream.end_capture()
        stream.synchronize()
        assert (out.get() == 0).all()
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), np.full(100, 3.0, np.float32))


def test_the_second_device_has_kernels_of_its_own(make_request, cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one CUDA device only")
    request = make_request(FILL)
    first, second = cuda.kernel(request, 0), cuda.kernel(request, 1)
    assert (first.device, second.device) == (0, 1)
    with cupy.cuda.Device(1):
        out = cuda.empty((100,), np.float32)
        assert out.device.id == 1
        arguments = Arguments(pointer(out), ctypes.c_int(100))
        second.launch((1, 1, 1), (128, 1, 1), 0, cuda.current_stream(), arguments.address)
        np.testing.assert_array_equal(out.get(), np.full(100, 3.0, np.float32))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_to_spawn(cupy):
    cuda.current_stream()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cuda.current_stream()
            os.write(writer, b"no error")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        assert "spawn" in file.read()
