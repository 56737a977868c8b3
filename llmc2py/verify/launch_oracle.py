"""The launch oracle: a launcher as the C++ that it is, against its plan.

A source file's launchers are compiled as C++ with every launch, fill, copy and product recorded (`OracleLibrary`); what
they record is compared with the operations of the Python launcher's plan, and the bytes that both leave behind.
"""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmc2py.runtime import host
from llmc2py.runtime.csemantics import scalar_bits
from llmc2py.runtime.dtypes import c_dtype
from llmc2py.runtime.errors import CompileError
from llmc2py.runtime.gemm import Epilogue, Gemm, Matrix
from llmc2py.runtime.host import HostKernel
from llmc2py.runtime.host.cache import build_once, cache_root, content_key
from llmc2py.runtime.host.compiler import INCLUDE, find_compiler, runtime_library
from llmc2py.runtime.launcher import Launcher
from llmc2py.runtime.params import scalar_type
from llmc2py.runtime.plan import Launch, Memcpy, Memset, Operation, Plan, Pointer
from llmc2py.runtime.poison import poisoned_arrays
from llmc2py.runtime.products import product_step
from llmc2py.runtime.replay import prepare

_OPTIONS = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-w", "-fvisibility=hidden")
_HEADER = "launch_oracle.h"
_ERRORS_SHOWN = 2000
_PRODUCT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)

#: One line of a record: what is done, and with what.
Line = tuple[Any, ...]


class OracleMismatchError(AssertionError):
    """C++ launcher and plan do different things; the message shows both."""


@dataclass
class Recorded:
    """What a C++ launcher did: its operations, or why it ended before its end."""

    lines: list[Line]
    refusal: str | None


@dataclass(frozen=True)
class Argument:
    """An argument of the C++ launcher: an array, a scalar with its canonical C type, or neither (stream, tag, null)."""

    value: Any = None
    ctype: str | None = None


@dataclass
class OracleLibrary:
    """The compiled launchers of one source file in one precision; entry number i is that of the i-th launcher."""

    path: pathlib.Path
    _library: ctypes.CDLL = field(init=False)

    def __post_init__(self) -> None:
        """Load the library and let it ask for the device, as its program does at the start."""
        runtime_library()
        self._library = ctypes.CDLL(str(self.path))
        self._library.llmc2py_oracle_log.restype = ctypes.c_char_p
        self._library.llmc2py_oracle_why.restype = ctypes.c_char_p
        self._library.llmc2py_oracle_address.restype = ctypes.c_void_p
        self._library.llmc2py_oracle_array.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._library.llmc2py_oracle_setup()

    def call(self, entry: int, arguments: Sequence[Argument], *, runs: bool) -> Recorded:
        """Call a launcher and return what it did; kernels run if ``runs``."""
        library = self._library
        slots: list[Any] = [one.value for one in arguments if isinstance(one.value, np.ndarray)]
        product = _PRODUCT(lambda line: self._run_product(line.decode()))
        library.llmc2py_oracle_begin(int(runs), product)
        for array in slots:
            library.llmc2py_oracle_array(array.ctypes.data, array.nbytes)
        cells = (ctypes.c_uint64 * max(len(arguments), 1))(*(_cell(one) for one in arguments))
        first = ctypes.addressof(cells)
        table = (ctypes.c_void_p * max(len(arguments), 1))(*(first + 8 * index for index in range(len(arguments))))
        self.rewind()
        ended = getattr(library, f"llmc2py_oracle_entry_{entry}")(table)
        lines = [_parsed(line) for line in library.llmc2py_oracle_log().decode().splitlines()]
        return Recorded(lines, library.llmc2py_oracle_why().decode() if ended else None)

    def rewind(self) -> None:
        """Let threads take turns from here on as they do at the start of a call."""
        self._library.llmc2py_oracle_rewind()

    def _run_product(self, line: str) -> int:
        """Compute a product that C++ asks for, as the CPU backend does; 0 where that worked."""
        gemm = _gemm(_parsed(line))
        slots = [one.pointer.slot for _, one in (*gemm.read(), *gemm.written())]
        addresses = [int(self._library.llmc2py_oracle_address(slot) or 0) for slot in range(max(slots) + 1)]
        product_step(gemm, host.name)(addresses, 0)
        return 0


def build_oracle(unit: str, include: pathlib.Path, what: str) -> pathlib.Path:
    """Compile a unit of launchers unless the cache has it, and return its library.

    ``include`` holds ``launch_oracle.h``, ``what`` names the unit in messages. Raises CompileError, ToolMissingError.
    """
    compiler = find_compiler()
    runtime = runtime_library()._name
    headers = [path.read_text(encoding="utf-8") for path in sorted(include.glob("*.h"))]
    key = content_key(*compiler.command, compiler.version, *_OPTIONS, runtime, *headers, unit)
    folder = cache_root() / "host"

    def build(folder: pathlib.Path, output: pathlib.Path) -> None:
        (folder / "launchers.cpp").write_text(unit, encoding="utf-8")
        command = [*compiler.command, *_OPTIONS, f"-I{INCLUDE}", f"-I{include}", "-include", _HEADER]
        command += ["-shared", "launchers.cpp", runtime, "-o", str(output)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"the launchers of {what} do not compile:\n{done.stderr[:_ERRORS_SHOWN]}")

    return build_once(folder / f"oracle-{key}.so", build)


def plan_lines(plan: Plan) -> list[Line]:
    """Return the operations of a plan as the lines that the C++ launcher records, scratch memory first."""
    scratch: list[Line] = [("scratch", index, slot.nbytes) for index, slot in enumerate(plan.slots) if slot.is_scratch]
    return scratch + [_operation_line(operation) for operation in plan.operations]


def check_call(
    library: OracleLibrary,
    entry: int,
    launcher: Launcher,
    arguments: Sequence[Argument],
    python_arguments: Callable[[], Sequence[Any]],
    *,
    runs: bool,
) -> str:
    """Compare a C++ launcher with the plan of a Python one; return "refused", "recorded" or "ran".

    ``python_arguments`` gives the Python launcher's arguments, arrays being copies of the C++ ones with the same bytes.
    Raises OracleMismatchError where operations, refusals or bytes differ.
    """
    recorded = library.call(entry, arguments, runs=False)
    given = python_arguments()
    plan, refusal = _planned(launcher, given)
    shown = f"{launcher.name}({', '.join(_shown(value) for value in given)})"
    if (refusal is None) != (recorded.refusal is None) and not _is_misaligned(refusal, recorded):
        raise OracleMismatchError(
            f"{shown}: C++ {_verdict(recorded.refusal)}, the plan {_verdict(refusal)}\nC++: {recorded.lines}"
        )
    if plan is None or refusal is not None:
        return "refused"
    _compare_lines(shown, recorded.lines, plan_lines(plan))
    if not runs:
        return "recorded"
    _compare_bytes(shown, library, entry, launcher, plan, arguments, given)
    return "ran"


def _compare_lines(shown: str, cpp: list[Line], python: list[Line]) -> None:
    # When scratch is allocated is not part of the sequence: the numbers of the slots tell the order.
    cpp = [line for line in cpp if line[0] == "scratch"] + [line for line in cpp if line[0] != "scratch"]
    for number in range(max(len(cpp), len(python))):
        ours = python[number] if number < len(python) else None
        theirs = cpp[number] if number < len(cpp) else None
        if repr(ours) != repr(theirs):
            raise OracleMismatchError(f"{shown}: operation {number} differs\nC++:  {theirs}\nplan: {ours}")


def _compare_bytes(
    shown: str,
    library: OracleLibrary,
    entry: int,
    launcher: Launcher,
    plan: Plan,
    arguments: Sequence[Argument],
    given: Sequence[Any],
) -> None:
    recorded = library.call(entry, arguments, runs=True)
    fault = None
    with poisoned_arrays(), _one_worker(plan):
        library.rewind()
        try:
            launcher(*given)
        except host.KernelError as error:
            fault = str(error)
    if (fault is None) != (recorded.refusal is None):
        raise OracleMismatchError(f"{shown}: C++ {_verdict(recorded.refusal)}, the plan's kernels {_verdict(fault)}")
    theirs = [one.value for one in arguments if isinstance(one.value, np.ndarray)]
    ours = [value for value in given if isinstance(value, np.ndarray)]
    for slot, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        differing = np.flatnonzero(left.view(np.uint8) != right.view(np.uint8))
        if differing.size:
            where = int(differing[0]) // left.itemsize
            raise OracleMismatchError(
                f"{shown}: bytes of `{plan.slots[slot].name}` differ, first at element {where}: "
                f"C++ {left[where]}, plan {right[where]}"
            )


class _one_worker:  # noqa: N801 - a context manager that reads like a function
    """Run the kernels of a plan in one thread: sums by atomics have the order of the blocks then, as in the C++ one."""

    def __init__(self, plan: Plan) -> None:
        compiled = [one.instance.compiled(plan.place) for one in plan.operations if isinstance(one, Launch)]
        self._kernels = [one._kernel for one in compiled if isinstance(one, HostKernel)]
        self._before = [one.workers for one in self._kernels]

    def __enter__(self) -> None:
        for kernel in self._kernels:
            kernel.workers = 1

    def __exit__(self, *_: object) -> None:
        for kernel, workers in zip(self._kernels, self._before, strict=True):
            kernel.workers = workers


def _planned(launcher: Launcher, arguments: Sequence[Any]) -> tuple[Plan | None, str | None]:
    """Return the plan of a call, or why there is none; what is checked when a plan is prepared counts."""
    try:
        plan = launcher.plan(*arguments)
        prepare(plan)
    except (ValueError, OverflowError) as error:
        return None, str(error)
    return plan, None


def _is_misaligned(refusal: str | None, recorded: Recorded) -> bool:
    """Whether a plan refuses what C++ does not see: a pointer into an array that 128-bit loads cannot take."""
    if refusal is None or "-byte alignment" not in refusal:
        return False
    offsets = [one[2] for line in recorded.lines if line[0] == "launch" for one in line[6] if one[0] == "p"]
    return any(offset % 16 for offset in offsets)


def _verdict(refusal: str | None) -> str:
    return "accepts" if refusal is None else f"refuses ({refusal})"


def _shown(value: Any) -> str:
    return f"{value.dtype}[{value.size}]" if isinstance(value, np.ndarray) else repr(getattr(value, "name", value))


def _cell(argument: Argument) -> int:
    if isinstance(argument.value, np.ndarray):
        return int(argument.value.ctypes.data)
    return 0 if argument.ctype is None else scalar_bits(argument.value, argument.ctype)


def _operation_line(operation: Operation) -> Line:
    if isinstance(operation, Launch):
        binding = operation.instance.binding
        template = tuple(
            str(value).lower() if isinstance(value, bool) else scalar_type(str(value), binding.precision)
            for value in operation.template
        )
        args = tuple(_argument_line(operation, index) for index in range(len(operation.args)))
        return ("launch", operation.kernel, operation.grid, operation.block, operation.shared, template, args)
    if isinstance(operation, Memset):
        return ("memset", _place(operation.target), operation.value, operation.nbytes)
    if isinstance(operation, Memcpy):
        return ("memcpy", _place(operation.target), _place(operation.source), operation.nbytes)
    return _gemm_line(operation)


def _argument_line(launch: Launch, index: int) -> Line:
    value, param = launch.args[index], launch.instance.kernel.params[index]
    if param.tag is not None:
        return ("tag",)
    if value is None or isinstance(value, Pointer):
        return _place(value)
    binding = launch.instance.binding
    dtype = c_dtype(scalar_type(binding.ctype(param.base), binding.precision), binding.precision)
    return ("i", int(value)) if dtype.kind in "iub" else ("f", float(np.asarray(value).astype(dtype)))


def _place(pointer: Pointer | None) -> Line:
    return ("null",) if pointer is None else ("p", pointer.slot, pointer.byte_offset)


def _matrix_line(matrix: Matrix | None) -> Line:
    if matrix is None:
        return ()
    return (_place(matrix.pointer), matrix.dtype, matrix.rows, matrix.cols, matrix.ld, matrix.stride)


def _gemm_line(gemm: Gemm) -> Line:
    operands = tuple(_matrix_line(one) for one in (gemm.a, gemm.b, gemm.c, gemm.d))
    numbers = (gemm.transa, gemm.transb, float(gemm.alpha), float(gemm.beta), gemm.batch_count, gemm.compute)
    epilogue = (gemm.epilogue.name, _matrix_line(gemm.epilogue.bias), _matrix_line(gemm.epilogue.aux))
    return ("gemm", *operands, *numbers, *epilogue)


def _parsed(line: str) -> Line:
    kind, *parts = line.split("\t")
    if kind == "launch":
        name, grid, block, shared, template, args = parts
        dims = [tuple(map(int, text.split(","))) for text in (grid, block)]
        return (kind, name, *dims, int(shared), _items(template), tuple(map(_parsed_argument, _items(args))))
    if kind == "scratch":
        return (kind, *map(int, parts))
    if kind == "memset":
        return (kind, _parsed_argument(parts[0]), *map(int, parts[1:]))
    if kind == "memcpy":
        return (kind, *map(_parsed_argument, parts[:2]), int(parts[2]))
    *operands, ta, tb, alpha, beta, batch, compute, epilogue, bias, aux = parts
    matrices = tuple(map(_parsed_matrix, operands))
    numbers = (ta == "1", tb == "1", float(alpha), float(beta), int(batch), compute)
    return (kind, *matrices, *numbers, epilogue, _parsed_matrix(bias), _parsed_matrix(aux))


def _items(text: str) -> tuple[str, ...]:
    return tuple(text.split(";")[:-1])


def _parsed_argument(text: str) -> Line:
    kind, _, rest = text.partition(":")
    if kind == "p":
        return (kind, *map(int, rest.split(":")))
    if kind == "f":
        return (kind, float(rest))
    return (kind, int(rest)) if kind == "i" else (kind,)


def _parsed_matrix(text: str) -> Line:
    if not text:
        return ()
    place, dtype, *numbers = text.split(",")
    return (_parsed_argument(place), dtype, *map(int, numbers))


def _gemm(line: Line) -> Gemm:
    _, a, b, c, d, ta, tb, alpha, beta, batch, compute, name, bias, aux = line
    epilogue = Epilogue(name, _matrix(bias) if bias else None, _matrix(aux) if aux else None)
    a, b, c, d = (_matrix(one) for one in (a, b, c, d))
    return Gemm(a, b, c, d, ta, tb, alpha, beta, batch, compute, epilogue)


def _matrix(line: Line) -> Matrix:
    place, dtype, *numbers = line
    return Matrix(Pointer(place[1], place[2], "void*"), dtype, *numbers)
