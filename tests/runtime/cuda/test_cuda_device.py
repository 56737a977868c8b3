"""The backend without a GPU: what it says where CUDA is not there, and its logic over a stand-in for the driver."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from llmc2py.runtime import cuda
from llmc2py.runtime.cuda import device as module
from llmc2py.runtime.cuda.cache import CompiledCubin
from llmc2py.runtime.errors import LaunchError, ToolMissingError

KNOWN = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


class DriverError(RuntimeError):
    """Stands for CuPy's CUDADriverError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR_{status}")
        self.status = status


class FakeDriver:
    """Records what is asked of the driver; ``fails`` is the status that the next launch fails with."""

    CUDADriverError = DriverError
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = "threads"
    CU_FUNC_ATTRIBUTE_NUM_REGS = "registers"
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = "static"
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = "dynamic"

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.fails = 0

    def funcGetAttribute(self, attribute, function):  # noqa: N802
        return {"threads": 512, "registers": 64, "static": 1024}[attribute]

    def funcSetAttribute(self, function, attribute, value):  # noqa: N802
        self.calls.append((function, attribute, value))

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function, block, dynamic):  # noqa: N802
        return 2048 // block

    def launchKernel(self, *arguments):  # noqa: N802
        if self.fails:
            raise DriverError(self.fails)
        self.calls.append(arguments)


@pytest.fixture
def fake(monkeypatch):
    """A CUDA of one device of compute capability 8.6, whose current stream is ``stream`` and may be capturing."""
    driver = FakeDriver()
    state = SimpleNamespace(driver=driver, capturing=False, stream=0, loaded=[], allocated=[], adopted=[])
    raw = {
        **{"name": b"Fake GPU", "major": 8, "minor": 6, "multiProcessorCount": 84, "maxThreadsPerMultiProcessor": 1536},
        **{"maxThreadsPerBlock": 1024, "warpSize": 32, "sharedMemPerBlock": 49152, "sharedMemPerBlockOptin": 101376},
        **{"sharedMemPerMultiprocessor": 102400, "regsPerBlock": 65536, "l2CacheSize": 6 << 20, "other": 1},
        **{"totalGlobalMem": 24 << 30, "maxGridSize": [2147483647, 65535, 65535]},
    }

    class Module:
        def load(self, cubin):
            if driver.fails:
                raise DriverError(driver.fails)
            state.loaded.append(cubin)

        def get_function(self, name):
            return SimpleNamespace(ptr=4711, name=name)

    runtime = SimpleNamespace(
        getDeviceProperties=lambda number: raw,
        streamIsCapturing=lambda stream: state.capturing,
        driverGetVersion=lambda: 13000,
        getDevice=lambda: 1,
        setDevice=state.adopted.append,
    )
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            Device=lambda number: contextlib.nullcontext(),
            Module=Module,
            get_current_stream=lambda: SimpleNamespace(ptr=state.stream),
        ),
        ndarray=lambda shape, dtype: state.allocated.append(shape),
    )
    monkeypatch.setattr(module, "_cuda", lambda: module._Cuda(cupy, driver, runtime))
    monkeypatch.setattr(module, "_kernels", {})
    monkeypatch.setattr(module.nvrtc, "supported_architectures", lambda: KNOWN)
    module.properties.cache_clear()
    yield state
    module.properties.cache_clear()


@pytest.fixture
def compiled(monkeypatch):
    """Stand in for NVRTC; returns the list of architectures that were compiled for."""
    asked: list[str] = []

    def compile_cubin(request, arch):
        asked.append(arch)
        time.sleep(0.02)
        return CompiledCubin(b"code", "_Z1kPf", "")

    monkeypatch.setattr(module.nvrtc, "compile_cubin", compile_cubin)
    return asked


@pytest.mark.parametrize(
    ("capability", "wanted"), [((7, 5), "sm_75"), ((8, 9), "sm_86"), ((8, 0), "sm_80"), ((12, 1), "sm_120")]
)
def test_the_newest_machine_code_that_runs_on_the_device_is_chosen(capability, wanted):
    assert module.architecture_for(*capability, KNOWN, "GPU") == wanted


def test_a_device_older_than_nvrtc_is_told_of_the_older_cuda():
    with pytest.raises(
        ToolMissingError, match=r"Old GPU has compute capability 7\.0.*sm_75 to sm_120.*llmc2py\[cuda12\]"
    ):
        module.architecture_for(7, 0, KNOWN, "Old GPU")


@pytest.mark.parametrize("capability", [(13, 0), (11, 0)])
def test_a_device_that_nvrtc_does_not_know_is_told_of_a_newer_one(capability):
    with pytest.raises(ToolMissingError, match="install a newer nvidia-cuda-nvrtc"):
        module.architecture_for(*capability, KNOWN, "New GPU")


def test_properties_are_those_of_cuda_by_their_names(fake):
    found = cuda.properties(0)
    assert (found.name, found.major, found.minor, found.multiProcessorCount) == ("Fake GPU", 8, 6, 84)
    assert found.maxGridSize == (2147483647, 65535, 65535)


def test_a_thread_gets_the_context_of_its_device_once_before_it_launches(fake):
    def two_launches():
        return cuda.current_stream(), cuda.current_stream()

    fake.stream = 7
    for threads in (1, 2):
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(two_launches).result() == (7, 7)
        assert fake.adopted == [1] * threads


def test_eight_threads_make_one_compile(fake, compiled, make_request):
    request = make_request("text")
    found = []
    threads = [threading.Thread(target=lambda: found.append(cuda.kernel(request, 0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == ["sm_86"]
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert (found[0].max_threads_per_block, found[0].num_regs, found[0].static_shared_bytes) == (512, 64, 1024)


def test_a_source_that_was_written_anew_is_compiled_anew(fake, compiled, make_request):
    first, edited = cuda.kernel(make_request("text"), 0), cuda.kernel(make_request("edited"), 0)
    assert edited is not first
    assert cuda.kernel(make_request("edited"), 0) is edited
    assert compiled == ["sm_86", "sm_86"]


def test_a_failed_compile_is_tried_again_at_the_next_call(fake, compiled, make_request, monkeypatch):
    right = module.nvrtc.compile_cubin
    monkeypatch.setattr(module.nvrtc, "compile_cubin", lambda *_: pytest.fail("no compiler today"))
    with pytest.raises(pytest.fail.Exception):
        cuda.kernel(make_request("text"), 0)
    monkeypatch.setattr(module.nvrtc, "compile_cubin", right)
    assert cuda.kernel(make_request("text"), 0).name == "k"


def test_launch_passes_everything_to_the_driver(fake, compiled, make_request):
    cuda.kernel(make_request("text"), 0).launch((1, 2, 3), (4, 5, 6), 7, 8, 9)
    assert fake.driver.calls == [(4711, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)]


@pytest.mark.parametrize("status", [1, 701])
def test_a_configuration_that_the_driver_refuses_is_a_launch_error(fake, compiled, make_request, status):
    kernel = cuda.kernel(make_request("text"), 0)
    fake.driver.fails = status
    with pytest.raises(
        LaunchError, match=r"'k' with grid \(1, 1, 1\), block \(1024, 1, 1\).*64 registers.*at most 512"
    ):
        kernel.launch((1, 1, 1), (1024, 1, 1), 0, 0, 0)


def test_a_failure_of_an_earlier_kernel_is_no_launch_error(fake, compiled, make_request):
    kernel = cuda.kernel(make_request("text"), 0)
    fake.driver.fails = 700
    with pytest.raises(RuntimeError, match="illegal access") as caught:
        kernel.launch((1, 1, 1), (32, 1, 1), 0, 0, 0)
    assert not isinstance(caught.value, LaunchError)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (700, RuntimeError, "cannot be loaded: CUDA_ERROR_700. An earlier kernel failed"),
        (222, ToolMissingError, "driver"),
    ],
)
def test_what_cannot_be_loaded_is_told_from_what_failed_before(fake, compiled, make_request, status, error, message):
    fake.driver.fails = status
    with pytest.raises(error, match=message):
        cuda.kernel(make_request("text"), 0)


def test_shared_memory_is_reserved_up_to_what_the_device_has(fake, compiled, make_request):
    kernel = cuda.kernel(make_request("text"), 0)
    assert kernel.reserve_shared(48 * 1024 - 1024)
    assert fake.driver.calls == []
    assert kernel.reserve_shared(60_000)
    assert kernel.reserve_shared(50_000)
    assert fake.driver.calls == [(4711, "dynamic", 60_000)]
    assert kernel.reserve_shared(101376 - 1024)
    assert not kernel.reserve_shared(101376 - 1023)
    assert fake.driver.calls[1:] == [(4711, "dynamic", 101376 - 1024)]
    assert kernel.max_active_blocks(256, 0) == 8


def test_nothing_is_allocated_or_compiled_while_a_stream_is_captured(fake, compiled, make_request):
    ready, other = make_request("text"), make_request("text", name="other")
    kernel = cuda.kernel(ready, 0)
    fake.stream, fake.capturing = 1234, True
    with pytest.raises(RuntimeError, match="allocate outputs before the capture"):
        cuda.empty((3,), "float32")
    with pytest.raises(RuntimeError, match=r"'other' would be compiled.*warmup"):
        cuda.kernel(other, 0)
    assert cuda.kernel(ready, 0) is kernel
    fake.capturing = False
    cuda.empty((3,), "float32")
    assert fake.allocated == [(3,)]


def test_after_a_fork_cuda_is_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr(module._Process, "forked_after_use", False)
    module._forget_parent()
    with pytest.raises(RuntimeError, match="spawn"):
        cuda.current_stream()


def test_without_a_device_every_entry_says_so(monkeypatch):
    runtime = pytest.importorskip("cupy_backends.cuda.api.runtime", reason="no CuPy")
    monkeypatch.setattr(module, "_cuda", module._cuda.__wrapped__)

    def refuse():
        raise runtime.CUDARuntimeError(35)

    bindings = {"cupy": SimpleNamespace(), "cupy_backends.cuda.api.driver": SimpleNamespace()}
    fake_runtime = SimpleNamespace(getDeviceCount=refuse, CUDARuntimeError=runtime.CUDARuntimeError)
    bindings["cupy_backends.cuda.api.runtime"] = fake_runtime
    monkeypatch.setattr(module.importlib, "import_module", bindings.__getitem__)
    empty, memset = lambda: cuda.empty((1,), "float32"), lambda: cuda.memset(0, 0, 0, 0)
    for call in (cuda.current_stream, empty, memset, module.usable_cupy):
        with pytest.raises(ToolMissingError, match="NumPy arrays run on the CPU"):
            call()
    fake_runtime.getDeviceCount = lambda: 0
    with pytest.raises(ToolMissingError, match="no CUDA device"):
        cuda.current_stream()
