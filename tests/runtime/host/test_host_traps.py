"""What the processor refuses to do for a kernel ends in an exception, and not in the end of the interpreter."""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from llmc2py.runtime import host

X86 = platform.machine() in ("x86_64", "AMD64")

X86_ONLY = pytest.mark.skipif(not X86, reason="other processors divide by zero")

# One kernel for all that can go wrong: each takes a compiler's run of its own.
BAD = """#line 1 "llmc/helpers.cuh"
__device__ __noinline__ float deep(int n) {
    volatile float t[1000];
    t[n % 1000] = n;
    return n ? deep(n - 1) + t[0] : 0;
}
__device__ __noinline__ float deep_together(int n) {
    volatile float t[1000];
    t[0] = n;
    __syncthreads();
    return n ? deep_together(n - 1) + t[0] : 0;
}
__device__ __noinline__ float wide(int n) {
    float t[200000];
    for (int i = 0; i < 200000; i += 1000) t[i] = n * i;
    return t[n];
}
#line 1 "llmc/bad.cuh"
__global__ void bad(float* a, float* other, int deed, long long i, int n) {
    if (blockIdx.x + 1 < gridDim.x) { for (volatile int k = 0; k < 20000; ++k) {} return; }
    if (threadIdx.x != 3) return;
    if (deed == 0) a[0] = n / (n - 40);
    if (deed == 1) a[0] = n % (n - 40);
    if (deed == 2) a[i] = 1;
    if (deed == 3) a[0] = a[i];
    if (deed == 4) a[0] = wide(n);
    if (deed == 5) a[0] = deep(4000);
    if (deed == 6) a[0] = other[i];
    if (deed == 7) *(float4*)(a + i) = make_float4(1, 2, 3, 4);
    if (deed == 8) a[0] = deep_together(4000);
    if (deed == 9) atomicAdd(a + i, 1.0f);
    if (deed == 10) memset(a + i, 0, n);
    if (deed == 11) other[i] = 1;
    if (deed == 12) printf("%s", (const char*)i);
    a[1] = 1;
}
"""
TYPES = ("float*", "float*", "int", "long long", "int")
GOOD = "__global__ void good(float* a) { a[threadIdx.x] = 2; }"
FAR = 1 << 30
AWAY = -FAR << 9  # two terabytes, where nothing is
WHO = r"\(kernel bad, block \(0,0,0\), thread \(3,0,0\)\)$"
OVERFLOW = "stack overflow: local arrays and nested calls of a thread have 256 KiB on the CPU"

DEEDS = [
    pytest.param(0, 0, "integer division by zero, or of the smallest integer by -1", marks=X86_ONLY),
    pytest.param(1, 0, "integer division by zero", marks=X86_ONLY),
    (2, AWAY, "access far out of bounds: there is no memory at address 0x"),
    (3, AWAY, "access far out of bounds"),
    (4, 0, OVERFLOW),
    (5, 0, OVERFLOW),
    (6, 5, "access to a null pointer, at byte 20: an array that is None"),
    (8, 0, OVERFLOW),
    (9, AWAY, "access far out of bounds"),
    (10, AWAY, "access far out of bounds"),
]


def aligned(n: int) -> np.ndarray:
    return host.empty((n,), np.float32)


class Bad:
    """Launches the kernel on an array of 40 elements."""

    def __init__(self, run, a: np.ndarray) -> None:
        self.kernel, self.a = host.kernel(run.request(BAD, "bad", TYPES), 0), a

    def __call__(self, deed: int, i: int = 0, grid: int = 1, other: np.ndarray | None = None) -> None:
        other = ctypes.c_void_p(None if other is None else other.ctypes.data)
        held = [ctypes.c_void_p(self.a.ctypes.data), other, ctypes.c_int(deed), ctypes.c_longlong(i), ctypes.c_int(40)]
        block = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        self.kernel.launch((grid, 1, 1), (8, 1, 1), 0, 0, ctypes.addressof(block))


@pytest.fixture
def bad(run):
    a = aligned(40)
    a[:] = 0
    return Bad(run, a)


@pytest.fixture(autouse=True)
def the_next_right_launch_works(run):
    yield
    a = aligned(40)
    run(GOOD, "good", a, block=40)
    np.testing.assert_array_equal(a, 2)


@pytest.mark.parametrize(("deed", "i", "message"), DEEDS)
def test_a_fault_is_an_error_that_names_the_kernel(bad, deed, i, message):
    for _ in range(3):
        with pytest.raises(host.KernelError, match=message + ".*" + WHO):
            bad(deed, i)
        assert bad.a[1] == 0


@pytest.mark.skipif(not X86, reason="other processors load vectors from any address")
def test_a_vector_that_is_not_aligned(bad):
    bad(7, 4)
    with pytest.raises(host.KernelError, match="not aligned for its vector"):
        bad(7, 1)


def test_the_floating_point_modes_and_the_signal_mask_are_as_before(bad):
    libc, libm = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")
    upward = 0x800 if X86 else 0x400000
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert libm.fesetround(upward) == 0
        with pytest.raises(host.KernelError):
            bad(2, AWAY)
        assert libm.fegetround() == upward
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {*before, signal.SIGUSR1}
    finally:
        libm.fesetround(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert libc is not None


def test_faults_in_the_threads_that_help(bad):
    for _ in range(3):
        with pytest.raises(host.KernelError, match=r"access far out of bounds.*block \(99,0,0\)"):
            bad(2, AWAY, grid=100)


def test_several_threads_launch_at_once(run):
    good = host.kernel(run.request(GOOD, "good", ("float*",)), 0)
    wrong: list[str] = []

    launches = [Bad(run, aligned(40)) for _ in range(4)]

    def work(number: int) -> None:
        launch = launches[number]
        a = launch.a
        for _ in range(50):
            try:
                launch(2 if number % 2 else 5, AWAY)
                wrong.append("no error")
            except host.KernelError as error:
                if ("stack overflow" if number % 2 == 0 else "out of bounds") not in str(error):
                    wrong.append(str(error))
            pointer = ctypes.c_void_p(a.ctypes.data)
            block = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
            a[:] = number
            good.launch((1, 1, 1), (40, 1, 1), 0, 0, ctypes.addressof(block))
            if not (a == 2).all():
                wrong.append("wrong result")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


CHECKED = [
    (0, 0, "llmc/bad.cuh:4: integer division by zero"),
    (1, 0, "llmc/bad.cuh:5: integer division by zero"),
    (2, 40, r"llmc/bad.cuh:6: out of bounds: kernel bad writes a\[40\] \(elements 0 to 39\)"),
    (2, FAR, rf"llmc/bad.cuh:6: out of bounds: kernel bad writes a\[{FAR}\] \(elements 0 to 39\)"),
    (3, -FAR, rf"llmc/bad.cuh:7: out of bounds: kernel bad reads a\[-{FAR}\] \(elements 0 to 39\)"),
    (2, 2**31 - 1, rf"writes a\[{2**31 - 1}\]"),
    (2, AWAY, r"kernel bad writes an address in no array: \w+\[-?\d+\] would be there"),
    (4, 0, OVERFLOW),
    (5, 0, OVERFLOW),
    (6, 5, "llmc/bad.cuh:10: out of bounds: kernel bad reads byte 20 of a null pointer, an array that is None"),
    (8, 0, OVERFLOW),
    (9, FAR, rf"out of bounds: kernel bad writes a\[{FAR}\]"),
    (10, FAR, rf"llmc/bad.cuh:14: out of bounds: kernel bad writes a\[{FAR}\]"),
]


@pytest.mark.parametrize(("deed", "i", "message"), CHECKED)
def test_under_checks_the_deed_is_not_done_and_its_place_is_told(bad, deed, i, message):
    near = deed == 2 and i == 40
    with host.checking(raise_findings=False) as report:
        host.register_buffers([("a", bad.a.ctypes.data, bad.a.nbytes)])
        if near:
            bad(deed, i)
        else:
            with pytest.raises(host.KernelError, match="kernel bad"):
                bad(deed, i)
    finding = report.findings[0]
    assert re.search(message, finding)
    assert re.search(r"thread \(3, ?0, ?0\)", finding)
    assert bad.a[1] == near


def test_indices_of_32_bits_are_told_from_those_into_other_arrays(bad):
    other = aligned(1000)
    with host.checking(raise_findings=False) as report:
        host.register_buffers([("a", bad.a.ctypes.data, bad.a.nbytes), ("other", other.ctypes.data, other.nbytes)])
        for i in (FAR, -FAR, 2**31 - 1, -(2**31)):
            with pytest.raises(host.KernelError):
                bad(2, i, other=other)
            with pytest.raises(host.KernelError):
                bad(11, i, other=other)
    assert len(report.findings) == 8
    assert all(("writes a[" in one) == ("bad.cuh:6" in one) for one in report.findings)


def test_what_only_the_processor_finds_has_a_line_under_checks(bad):
    host.register_buffers([])
    with host.checking(raise_findings=False) as report, pytest.raises(host.KernelError, match="far out of bounds"):
        bad(2, AWAY)
    assert report.findings[0].startswith("llmc/bad.cuh:6: access far out of bounds: there is no memory at address 0x")


SCRIPT = """
import ctypes, faulthandler, pathlib, sys
import numpy as np
sys.path.insert(0, str(pathlib.Path(sys.argv[1])))
from conftest import Runner
from test_host_traps import AWAY, FAR, Bad, aligned
from llmc2py.runtime import host
bad = Bad(Runner(pathlib.Path(sys.argv[2])), aligned(40))
def fault():
    try:
        bad(2, AWAY)
    except host.KernelError as error:
        print(error, flush=True)
"""


def outcome(tmp_path: pathlib.Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    here = pathlib.Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + code, str(here), str(tmp_path)],
        cwd=here.parents[2],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("code", "has_traceback"),
    [
        ("fault(); ctypes.string_at(0)", False),
        ("faulthandler.enable(); fault(); ctypes.string_at(0)", True),
        ("fault(); faulthandler.enable(); ctypes.string_at(0)", True),
        ("fault(); faulthandler.enable(); fault(); ctypes.string_at(0)", True),
        ("faulthandler.enable(); fault(); faulthandler.disable(); fault(); ctypes.string_at(0)", False),
    ],
)
def test_faults_outside_kernels_end_the_process_as_without_them(tmp_path, code, has_traceback):
    done = outcome(tmp_path, code)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout.count("access far out of bounds") == code.count("fault();")
    assert ("Fatal Python error: Segmentation fault" in done.stderr) == has_traceback
    assert "llmc2py" not in done.stderr


def test_a_thread_that_holds_a_lock_ends_the_process_and_says_which_kernel(tmp_path):
    done = outcome(tmp_path, "bad(12, 8)")
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr.startswith("llmc2py: kernel bad on the CPU made an access that the processor refuses")


def test_checks_of_the_environment_raise_findings(tmp_path):
    code = """
host.register_buffers([("a", bad.a.ctypes.data, bad.a.nbytes)])
for deed, i in ((2, FAR), (0, 0), (5, 0)):
    try:
        bad(deed, i)
    except (host.CheckError, host.KernelError) as error:
        print(type(error).__name__, error)
"""
    done = outcome(tmp_path, code, LLMC2PY_CHECK="1")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0].startswith(f"CheckError llmc/bad.cuh:6: out of bounds: kernel bad writes a[{FAR}]")
    assert shown[1].startswith("CheckError llmc/bad.cuh:4: integer division by zero (kernel bad")
    assert shown[2].startswith("KernelError stack overflow")
