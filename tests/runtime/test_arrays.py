"""Where arrays live, and what cannot be used."""

import subprocess
import sys
import types

import numpy as np
import pytest

from llmc2py.runtime import arrays
from llmc2py.runtime.arrays import Place


def fake_cuda_array(device: int) -> object:
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.memory
    return cupy.ndarray((4,), np.float32, memory.MemoryPointer(memory.UnownedMemory(4096, 64, None, device), 0))


def test_numpy_arrays_are_on_the_cpu() -> None:
    assert arrays.place_of(np.zeros(1), "x") == Place("cpu", 0)
    assert arrays.array_module(np.zeros(1)) is np


def test_cupy_arrays_are_on_their_device() -> None:
    assert arrays.place_of(fake_cuda_array(1), "x") == Place("cuda", 1)
    assert arrays.pointer_of(fake_cuda_array(0)) == 4096


@pytest.mark.parametrize(
    "array", [np.zeros((2, 3)), np.zeros(8)[3:], np.zeros((3, 2)).T, np.zeros(0), np.arange(5, dtype=np.int8)[::-1]]
)
def test_the_address_is_that_of_the_first_element(array: np.ndarray) -> None:
    assert arrays.numpy_pointer(array) == array.ctypes.data == arrays.pointer_of(array)


def test_what_shares_no_memory_is_refused_with_the_way_to_convert_it() -> None:
    tensor = types.new_class("Tensor")
    tensor.__module__ = "mine.arrays"
    with pytest.raises(TypeError, match=r"f: `x` is a mine\.Tensor; .*__dlpack__.*numpy.asarray"):
        arrays.place_of(tensor(), "x", "f")


def test_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`x` is a list; .*numpy.asarray"):
        arrays.place_of([1.0], "x")


def test_two_backends_or_devices_are_a_type_error_that_names_both() -> None:
    mixed = [("out", np.zeros(1)), ("inp", fake_cuda_array(0))]
    with pytest.raises(TypeError, match="f: `out` is on the CPU and `inp` is on cuda:0"):
        arrays.common_place("f", mixed)
    with pytest.raises(TypeError, match="`a` is on cuda:0 and `b` is on cuda:1"):
        arrays.common_place("f", [("a", fake_cuda_array(0)), ("b", fake_cuda_array(1))])
    assert arrays.common_place("f", []) is None


def test_what_cannot_be_written_is_refused() -> None:
    constant = np.zeros(3)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match="f: `out` is written, but the array is read-only"):
        arrays.check_writable(constant, "out", "f")
    shared = np.lib.stride_tricks.as_strided(np.zeros(3), (3, 2), (8, 0))
    with pytest.raises(ValueError, match="its elements share memory"):
        arrays.check_writable(shared, "out", "f")
    arrays.check_writable(np.zeros((2, 3)).T, "out", "f")


def test_importing_the_runtime_imports_no_cupy_and_no_compiler() -> None:
    code = (
        "import sys, llmc2py.runtime, numpy; from llmc2py.runtime import arrays;"
        "assert arrays.is_array(numpy.zeros(1)) and not arrays.is_array([1]);"
        "loaded = {n.partition('.')[0] for n in sys.modules};"
        "print(sorted(loaded & {'cupy', 'torch', 'tree_sitter', 'pycparser', 'jinja2', 'subprocess'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
