"""B12: without a driver, and after ``fork()``: import, reading, the CPU forward pass and the compile check all work."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RELU = ROOT / "examples" / "relu"

PREPARE = f"""
import os, pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

def make(folder):
    write_package(pathlib.Path(folder, "pack"), generate(pathlib.Path({str(RELU)!r})).files)
    sys.path.insert(0, folder)

def forward_and_backward():
    import numpy as np
    from pack.layers import ReLU
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    from llmc2py.runtime import Tensor
    tensor = Tensor(x)
    y = ReLU()(tensor)
    y.backward(np.ones_like(x))
    assert y.data.tolist() == [0.0, 0.0, 2.0], y.data
    assert tensor.grad.tolist() == [0.0, 0.0, 1.0], tensor.grad

def compile_check():
    from llmc2py.runtime.cuda import compile_cubin
    from llmc2py.runtime.source import KernelRequest, KernelSource
    import pack.relu as module
    request = KernelRequest(
        KernelSource.beside(module.__file__, "relu.cu"), "relu_forward", "SLICE_relu_forward", "float32",
        ("const float*", "float*", "int"),
    )
    assert compile_cubin(request, "sm_90").cubin[:4] == b"\\x7fELF"
"""


def run(code, tmp_path, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREPARE + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OUT": str(tmp_path)} | environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_import_nor_reading_nor_the_cpu_forward_touches_cuda(tmp_path):
    out = run(
        'make(os.environ["OUT"]); forward_and_backward()\n'
        'print([name for name in sys.modules if name.split(".")[0] in ("cupy", "cupy_backends", "nvidia")])\n'
        'print("libcuda.so" in pathlib.Path("/proc/self/maps").read_text())\n',
        tmp_path,
    )
    assert out.splitlines() == ["[]", "False"]


IN_CHILD = """
def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_cpu_layer_works_in_a_forked_child(tmp_path):
    # The parent has run the kernel, so whatever threads and locks the backend has are there when it forks.
    out = run(
        IN_CHILD + 'make(os.environ["OUT"]); forward_and_backward()\n'
        "in_child(forward_and_backward); forward_and_backward(); print('both')\n",
        tmp_path,
    )
    assert out == "both\n"


def test_reading_works_in_a_forked_child(tmp_path):
    out = run(
        IN_CHILD + 'make(os.environ["OUT"])\n'
        'in_child(lambda: make(os.environ["OUT"] + "/again")); print("read")\n'
        'print(pathlib.Path("again/pack/relu.py").read_text() == pathlib.Path("pack/relu.py").read_text())\n',
        tmp_path,
    )
    assert out.split() == ["read", "True"]


def test_compile_check_works_without_a_driver_and_in_a_forked_child(tmp_path):
    if importlib.util.find_spec("cupy_backends") is None:
        pytest.skip("no CuPy: no NVRTC to compile with")
    # The child must not find the parent's cubin, so each has a cache of its own.
    code = """
def compile_anew():
    os.environ["LLMC2PY_CACHE_DIR"] = os.environ["OUT"] + "/other"
    compile_check()

make(os.environ["OUT"])
compile_check()
in_child(compile_anew)
print("compiled")
"""
    assert run(IN_CHILD + code, tmp_path, LLMC2PY_CACHE_DIR=str(tmp_path / "cache")) == "compiled\n"
    assert any((tmp_path / "other").rglob("*"))


def test_doctor_says_that_there_is_no_device(tmp_path):
    code = 'from llmc2py.cli import cli\ncli(["doctor"], standalone_mode=False)\n'
    out = run(code, tmp_path)
    assert "CUDA d" in out  # "CUDA driver: none", "CUDA devices: none usable", or no CuPy to ask
    assert "missing" in out
