"""Stand-ins for cuBLAS and cuBLASLt: they do what the descriptors and arguments that they get say, in host memory."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
import math
import time
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

_DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


class FakeCublas:
    """Stands for CuPy and its binding: computes products in the memory of the process, element by element."""

    dtypes: ClassVar = _DTYPES
    tanh, maximum = staticmethod(np.tanh), staticmethod(np.maximum)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.modes = {"pointer": 1, "math": 3}
        self.cupy = self.binding = self.cuda = self.runtime = self

    handle = getDevice = lambda self: 0  # noqa: N815

    def getPointerMode(self, handle: int) -> int:  # noqa: N802
        return self.modes["pointer"]

    def getMathMode(self, handle: int) -> int:  # noqa: N802
        return self.modes["math"]

    def setPointerMode(self, handle: int, mode: int) -> None:  # noqa: N802
        self.modes["pointer"] = mode

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        self.modes["math"] = mode

    def UnownedMemory(self, address: int, size: int, owner: None, device: int) -> Any:  # noqa: N802
        return (ctypes.c_char * size).from_address(address)

    def MemoryPointer(self, memory: Any, offset: int) -> Any:  # noqa: N802
        return memory

    def ndarray(self, shape: Any, dtype: Any, memory: Any, strides: Any) -> np.ndarray:
        return np.ndarray(shape, dtype, memory, strides=strides)

    def gemmStridedBatchedEx(  # noqa: N802
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, *operands: int
    ) -> None:
        a, a_type, lda, sa, b, b_type, ldb, sb, beta, d, d_type, ldd, sd, batch, compute, _ = operands
        assert self.modes == {"pointer": 0, "math": 0}
        self.calls.append((a_type, b_type, d_type, compute))

        def at(address: int, kind: int, index: int) -> np.ndarray:
            dtype = np.dtype(self.dtypes[kind])
            memory = (ctypes.c_char * dtype.itemsize).from_address(address + index * dtype.itemsize)
            return np.ndarray((), dtype, memory)

        scale = {64: 2, 68: 0, 77: 0, 70: 1}[compute]
        for z in range(batch):
            for i in range(m):
                for j in range(n):
                    total = 0.0
                    for p in range(k):
                        left = at(a, a_type, z * sa + (i * lda + p if transa else p * lda + i))
                        right = at(b, b_type, z * sb + (p * ldb + j if transb else j * ldb + p))
                        total += float(left) * float(right)
                    target = at(d, d_type, z * sd + j * ldd + i)
                    before = float(at(beta, scale, 0))
                    total = float(at(alpha, scale, 0)) * total + (before * float(target) if before else 0.0)
                    target[...] = np.asarray(total, target.dtype)


_SIZES = {"BIAS_POINTER": 8, "EPILOGUE_AUX_POINTER": 8, "BIAS_BATCH_STRIDE": 8, "EPILOGUE_AUX_BATCH_STRIDE": 8}
_SIZES |= {"EPILOGUE_AUX_LD": 8, "STRIDED_BATCH_OFFSET": 8, "MAX_WORKSPACE_BYTES": 8}


class FakeLtError(Exception):
    """``nvmath.bindings.cublasLt.cuBLASLtError``."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeCublasLt:
    """Stands for nvmath-python's binding and for CuPy. Its matmul lets other threads run before it reads pointers."""

    MatmulDescAttribute = enum.IntEnum(
        "MatmulDescAttribute",
        {"COMPUTE_TYPE": 0, "SCALE_TYPE": 1, "TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8}
        | {"BIAS_BATCH_STRIDE": 10, "EPILOGUE_AUX_POINTER": 11, "EPILOGUE_AUX_LD": 12, "EPILOGUE_AUX_BATCH_STRIDE": 13}
        | {"EPILOGUE_AUX_DATA_TYPE": 22, "BIAS_DATA_TYPE": 26},
    )
    MatrixLayoutAttribute = enum.IntEnum("MatrixLayoutAttribute", {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulPreferenceAttribute = enum.IntEnum(
        "MatmulPreferenceAttribute",
        {"MAX_WORKSPACE_BYTES": 1, "REDUCTION_SCHEME_MASK": 3}
        | {f"MIN_ALIGNMENT_{matrix}_BYTES": 5 + i for i, matrix in enumerate("ABCD")},
    )
    Epilogue = enum.IntEnum(
        "Epilogue",
        {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU": 32, "GELU_BIAS": 36, "GELU_AUX": 160}
        | {"GELU_AUX_BIAS": 164, "DGELU": 192, "DGELU_BGRAD": 208, "BGRADA": 256, "BGRADB": 512},
    )
    cuBLASLtError = FakeLtError  # noqa: N815

    def __init__(self) -> None:
        self.cuda = self
        self.alive: dict[int, dict[str, int]] = {}
        self.numbers = itertools.count(1)
        self.preferences: list[dict[str, int]] = []
        self.refused_at_heuristic = self.refused_at_call = 0
        self.pointers_set = self.calls = self.workspaces = 0
        self.pause = 0.0
        self.busy: set[int] = set()

    def Device(self, device: int) -> Any:  # noqa: N802
        return contextlib.nullcontext()

    def get_default_memory_pool(self) -> Any:
        return self

    def malloc(self, size: int) -> Any:
        self.workspaces += 1
        array = np.empty(size, np.uint8)
        return FakeMemory(array)

    def create(self) -> int:
        return 77

    def _new(self, **values: int) -> int:
        number = next(self.numbers)
        self.alive[number] = values
        return number

    def _destroy(self, number: int) -> None:
        del self.alive[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._new(COMPUTE_TYPE=compute, SCALE_TYPE=scale, TRANSA=0, TRANSB=0, EPILOGUE=1)

    def matrix_layout_create(self, kind: int, rows: int, cols: int, ld: int) -> int:
        return self._new(TYPE=kind, ROWS=rows, COLS=cols, LD=ld, BATCH_COUNT=1, STRIDED_BATCH_OFFSET=0)

    def matmul_preference_create(self) -> int:
        return self._new()

    def _set(self, number: int, name: str, buffer: int, size: int) -> None:
        if size != _SIZES.get(name, 4):
            raise FakeLtError(7)
        self.pointers_set += name.endswith("POINTER")
        self.alive[number][name] = int.from_bytes(ctypes.string_at(buffer, size), "little", signed=True)

    def matmul_desc_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        self._set(number, self.MatmulDescAttribute(attribute).name, buffer, size)

    def matrix_layout_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        self._set(number, self.MatrixLayoutAttribute(attribute).name, buffer, size)

    def matmul_preference_set_attribute(self, number: int, attribute: int, buffer: int, size: int) -> None:
        self._set(number, self.MatmulPreferenceAttribute(attribute).name, buffer, size)

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, out: int, count: int
    ) -> None:
        assert (handle, wanted) == (77, 1)
        assert {desc, a, b, c, d, preference} <= self.alive.keys()
        self.preferences.append(dict(self.alive[preference]))
        if self.refused_at_heuristic:
            raise FakeLtError(self.refused_at_heuristic)
        # What stands for the algorithm is the alignment that was asked for.
        ctypes.c_uint64.from_address(out).value = self.alive[preference]["MIN_ALIGNMENT_A_BYTES"]
        ctypes.c_int.from_address(count).value = 1

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, workspace_size: int, stream: int,
    ) -> None:  # fmt: skip
        if self.refused_at_call:
            raise FakeLtError(self.refused_at_call)
        assert (handle, workspace_size) == (77, 32 << 20)
        assert workspace % 16 == 0
        # The kernels of a call hand results on in it.
        assert workspace not in self.busy, "two calls at once use one workspace"
        self.busy.add(workspace)
        time.sleep(self.pause)
        self.busy.remove(workspace)
        values = self.alive[desc]
        alignment = ctypes.c_uint64.from_address(algorithm).value
        extras = [values[name] for name in ("BIAS_POINTER", "EPILOGUE_AUX_POINTER") if name in values]
        assert not any(address % alignment for address in (a, b, c, d, *extras))
        self.calls += 1
        dtype = np.dtype(_DTYPES[values["SCALE_TYPE"]])
        scales = [float(np.ndarray((), dtype, (ctypes.c_char * 8).from_address(x))) for x in (alpha, beta)]
        operands = [(a, self.alive[a_layout]), (b, self.alive[b_layout]), (c, self.alive[c_layout])]
        for index in range(self.alive[d_layout]["BATCH_COUNT"]):
            left, right, old = (view(address, layout, index) for address, layout in operands)
            left, right = (x.astype(np.float64) for x in (left, right))
            left, right = left.T if values["TRANSA"] else left, right.T if values["TRANSB"] else right
            product = scales[0] * (left @ right)
            if scales[1]:
                product += scales[1] * old.astype(np.float64)
            target = view(d, self.alive[d_layout], index)
            target[...] = self._finish(values, self.alive[d_layout], index, left, right, product).astype(target.dtype)

    def _finish(
        self, values: dict[str, int], d: dict[str, int], index: int, left: Any, right: Any, product: np.ndarray
    ) -> np.ndarray:
        name = self.Epilogue(values["EPILOGUE"]).name
        if "BIAS_POINTER" in values:
            length = product.shape[1] if name == "BGRADB" else product.shape[0]
            form = {"TYPE": values.get("BIAS_DATA_TYPE", d["TYPE"]), "ROWS": length, "COLS": 1, "LD": length}
            form["STRIDED_BATCH_OFFSET"] = values.get("BIAS_BATCH_STRIDE", 0)
            bias = view(values["BIAS_POINTER"], form, index)
        if "EPILOGUE_AUX_POINTER" in values:
            form = d | {"LD": values["EPILOGUE_AUX_LD"]}
            form["STRIDED_BATCH_OFFSET"] = values.get("EPILOGUE_AUX_BATCH_STRIDE", 0)
            aux = view(values["EPILOGUE_AUX_POINTER"], form, index)
        if name.endswith("_BIAS") or name == "BIAS":
            product = product + bias.astype(np.float64)
        if "_AUX" in name:
            aux[...] = product.astype(aux.dtype)
        if name.startswith("GELU"):
            product = product * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (product + 0.044715 * product**3)))
        elif name.startswith("RELU"):
            product = np.maximum(product, 0)
        elif name.startswith("DGELU"):
            x = aux.astype(np.float64)
            t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
            inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
            product = product * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)
        sums = {"BGRADA": left.sum(axis=1), "BGRADB": right.sum(axis=0), "DGELU_BGRAD": product.sum(axis=1)}
        if name in sums:
            bias[:, 0] = sums[name].astype(bias.dtype)
        return product


class FakeMemory:
    """Memory as CuPy gives it out: with the attribute ``ptr``."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.ptr = array, array.ctypes.data


def view(address: int, form: dict[str, int], index: int) -> np.ndarray:
    """Return a matrix of a batch in memory, by its layout."""
    dtype = np.dtype(_DTYPES[form["TYPE"]])
    start = address + index * form["STRIDED_BATCH_OFFSET"] * dtype.itemsize
    size = (form["LD"] * (form["COLS"] - 1) + form["ROWS"]) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(start)
    strides = (dtype.itemsize, form["LD"] * dtype.itemsize)
    return np.ndarray((form["ROWS"], form["COLS"]), dtype, memory, strides=strides)
