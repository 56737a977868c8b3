"""The checking mode: kernels whose every access to memory is checked for bounds and races."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmc2py.runtime.backends import Dim3
from llmc2py.runtime.dtypes import c_dtype
from llmc2py.runtime.host import compiler
from llmc2py.runtime.host.faults import CheckError, KernelError, RefusedError
from llmc2py.runtime.host.unit import dynamic_shared_names

if TYPE_CHECKING:
    import pathlib

    from llmc2py.runtime.host.kernel import HostKernel

# Read once: this stands on the path of every launch.
_ALWAYS = os.environ.get("LLMC2PY_CHECK", "") not in ("", "0")

_BOUNDS, _RACE, _TRAP = 0, 1, 5
_DYNAMIC_SHARED, _STATIC_SHARED, _NO_REGION = -1, -2, -3
#: The largest argument that is passed by value.
_ARGUMENT_BYTES = 16

Buffer = tuple[str, int, int]


@dataclass
class Report:
    """What the checking mode found; ``findings`` are sentences with kernel, variable and place."""

    findings: list[str] = field(default_factory=list)

    def add(self, finding: str) -> None:
        """Add a finding unless it is there already."""
        if finding not in self.findings:
            self.findings.append(finding)


class _Finding(ctypes.Structure):
    """Mirrors ``llmc2py::Finding`` of src/check.h."""

    _fields_ = (
        ("problem", ctypes.c_int32),
        ("region", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_uint64),
        ("code", ctypes.c_uint64),
        ("other_code", ctypes.c_uint64),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("other_thread", ctypes.c_uint32 * 3),
        ("is_write", ctypes.c_int32),
        ("other_is_write", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("place", ctypes.c_char * 512),
    )


_report: ContextVar[Report | None] = ContextVar("llmc2py_report", default=None)
_local = threading.local()


@contextlib.contextmanager
def checking(*, raise_findings: bool = True) -> Iterator[Report]:
    """Check every kernel that this thread launches on the CPU within the ``with`` block.

    Yields the Report that is filled. Leaving the block raises CheckError with the findings, unless ``raise_findings``
    is False. Out of bounds is seen for arrays that ``register_buffers`` names (launchers do).
    """
    report = Report()
    token = _report.set(report)
    try:
        yield report
    finally:
        _report.reset(token)
    if raise_findings and report.findings:
        raise CheckError(report.findings)


def is_checking() -> bool:
    """Return whether launches of this thread are checked: within ``checking()``, or where ``LLMC2PY_CHECK=1``."""
    return _ALWAYS or _report.get() is not None


def register_buffers(buffers: Sequence[Buffer]) -> None:
    """Say which arrays the following launches of this thread get: (parameter, address, bytes) each.

    Holds until it is called again. Only needed while ``is_checking()``.
    """
    _local.buffers = list(buffers)


class _Checker:
    """A checker of the runtime library, for one launch."""

    def __init__(self, kernel: HostKernel) -> None:
        library = compiler.runtime_library()
        library.llmc2py_checker_new.restype = ctypes.c_void_p
        library.llmc2py_checker_add.restype = ctypes.c_uint64
        library.llmc2py_checker_add.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        library.llmc2py_checker_allow.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
        library.llmc2py_checker_close.argtypes = (ctypes.c_void_p,)
        library.llmc2py_checker_findings.restype = ctypes.c_uint64
        library.llmc2py_checker_finding.restype = ctypes.POINTER(_Finding)
        library.llmc2py_checker_finding.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        self.library = library
        self.kernel = kernel
        self.handle: int = library.llmc2py_checker_new()
        self.regions: list[tuple[int, int, int]] = []
        self.names: dict[int, str] = {}
        self.element: dict[int, int] = {}

    def close(self) -> None:
        self.library.llmc2py_checker_free(ctypes.c_void_p(self.handle))

    def translate(self, pointer: int, ctype: str) -> int:
        """Return where the kernel finds the array that ``pointer`` points into; itself if it is not registered."""
        itemsize = self._itemsize(ctype)
        buffers: list[Buffer] = getattr(_local, "buffers", [])
        for name, start, nbytes in buffers:
            if not start <= pointer < start + max(nbytes, 1):
                continue
            for number, (known, moved, _) in enumerate(self.regions):
                if known == start:
                    self.names[number] += f"/{name}" if name not in self.names[number].split("/") else ""
                    return moved + pointer - start
            moved = self.library.llmc2py_checker_add(self.handle, start, nbytes, itemsize)
            if moved == 0:
                raise MemoryError(f"no address space to check array {name} of {nbytes} bytes")
            number = len(self.regions)
            self.regions.append((start, moved, nbytes))
            self.names[number], self.element[number] = name, itemsize
            return int(moved) + pointer - start
        return pointer

    def _itemsize(self, ctype: str) -> int:
        try:
            return c_dtype(ctype.removeprefix("const ").rstrip("* "), self.kernel.request.precision).itemsize
        except KeyError:
            return 1

    def arguments(self, args: int) -> int:
        """Return the address of a copy of an argument block whose pointers lead into the copies of the arrays."""
        types = self.kernel.request.parameters
        if not types:
            return args
        given = (ctypes.c_void_p * len(types)).from_address(args)
        self.moved = (ctypes.c_void_p * len(types))(*given)
        self.values = [ctypes.c_void_p() for _ in types]
        self.library.llmc2py_checker_allow(self.handle, ctypes.addressof(self.moved), ctypes.sizeof(self.moved))
        is_closed = True
        for number, ctype in enumerate(types):
            if ctype.endswith("*"):
                pointer = ctypes.c_void_p.from_address(given[number] or 0).value
                moved = None if pointer is None else self.translate(pointer, ctype)
                is_closed = is_closed and (pointer is None or moved != pointer)
                self.values[number].value = moved
                self.moved[number] = ctypes.addressof(self.values[number])
            self.library.llmc2py_checker_allow(self.handle, self.moved[number] or 0, _ARGUMENT_BYTES)
        if is_closed:
            self.library.llmc2py_checker_close(self.handle)
        return ctypes.addressof(self.moved)

    def findings(self) -> list[str]:
        count = self.library.llmc2py_checker_findings(ctypes.c_void_p(self.handle))
        records = [self.library.llmc2py_checker_finding(self.handle, number).contents for number in range(count)]
        lines = _resolve_lines(self.kernel, [code for record in records for code in (record.code, record.other_code)])
        return [self._sentence(record, lines) for record in records]

    def _sentence(self, record: _Finding, lines: dict[int, str]) -> str:
        kernel = self.kernel.name
        where = f"block {tuple(record.block)}, thread {tuple(record.thread)}"
        line = lines.get(record.code, "unknown line")
        if record.problem not in (_BOUNDS, _RACE):
            place = f"{line}: " if record.problem == _TRAP else ""
            return f"{place}{record.place.decode(errors='replace')} (kernel {kernel}, {where})"
        variable = self._variable(record)
        deed = "write" if record.is_write else "read"
        if record.problem == _BOUNDS:
            return f"{line}: out of bounds: kernel {kernel} {deed}s {variable} ({where}; {record.count} times)"
        other = lines.get(record.other_code, "unknown line")
        before = "write" if record.other_is_write else "read"
        blocks = record.place.decode()
        return (
            f"{line}: race: kernel {kernel}: {deed} of {variable} by thread {tuple(record.thread)} meets the {before} "
            f"at {other} by thread {tuple(record.other_thread)}, threads {blocks} with no barrier between "
            f"(block {tuple(record.block)}; {record.count} times)"
        )

    def _variable(self, record: _Finding) -> str:
        if record.region == _DYNAMIC_SHARED:
            names = dynamic_shared_names(self.kernel.request.source.text)
            label = names[0] if len(names) == 1 else "dynamic"
            return f"byte {record.offset} of the dynamic shared memory {label}"
        if record.region == _STATIC_SHARED:
            return _static_variable(self.kernel.path, record.offset)
        if record.region == _NO_REGION:
            return self._nowhere(record.offset)
        element = self.element[record.region]
        nbytes = self.regions[record.region][2]
        index = record.offset // element
        return f"{self.names[record.region]}[{index}] (elements 0 to {nbytes // element - 1})"

    def _nowhere(self, address: int) -> str:
        """Describe an address that lies in no array, by the array that is nearest."""
        if 0 <= address < 4096:
            return f"byte {address} of a null pointer, an array that is None"
        if not self.regions:
            return f"address {address % 2**64:#x}, which is in no array"
        number = min(range(len(self.regions)), key=lambda one: abs(address - self.regions[one][1]))
        _, start, nbytes = self.regions[number]
        element = self.element[number]
        return (
            f"an address in no array: {self.names[number]}[{(address - start) // element}] would be there "
            f"(elements 0 to {nbytes // element - 1})"
        )


def launch_checked(kernel: HostKernel, grid: Dim3, block: Dim3, shared_bytes: int, args: int) -> None:
    """Launch an instrumented kernel and hand its findings to the active report.

    Raises CheckError at once where no ``checking()`` block is active (``LLMC2PY_CHECK``), and KernelError where the
    kernel did not come to its end.
    """
    checker = _Checker(kernel)
    try:
        moved = checker.arguments(args)
        try:
            kernel.launch_with(grid, block, shared_bytes, moved, checker.handle)
        except KernelError as error:
            findings = checker.findings()
            is_refused = isinstance(error, RefusedError)
            if _report.get() is not None:
                _collect(findings if is_refused else [str(error), *findings])
            elif is_refused:
                raise CheckError(findings) from None
            raise
        checker.library.llmc2py_checker_copy_back(ctypes.c_void_p(checker.handle))
        _collect(checker.findings())
    finally:
        checker.close()


def _collect(findings: list[str]) -> None:
    report = _report.get()
    if report is None:
        if findings:
            raise CheckError(findings)
        return
    for finding in findings:
        report.add(finding)


def _resolve_lines(kernel: HostKernel, codes: Sequence[int]) -> dict[int, str]:
    """Return ``file:line`` for return addresses in a kernel's library, by binutils' addr2line."""
    tool = shutil.which("addr2line")
    wanted = sorted({code for code in codes if code > kernel.base})
    if tool is None or not wanted:
        return {}
    # A return address is that of the next instruction, which may belong to the next line.
    offsets = [hex(code - 1 - kernel.base) for code in wanted]
    shown = subprocess.run(
        [tool, "-i", "-e", str(kernel.path), "-a", *offsets], capture_output=True, text=True, check=False
    )
    lines: dict[int, str] = {}
    for code, group in zip(wanted, re.split(r"^0x[0-9a-f]+\n", shown.stdout, flags=re.MULTILINE)[1:], strict=False):
        lines[code] = _user_line(group.splitlines())
    return lines


def _user_line(frames: Sequence[str]) -> str:
    """Return the innermost frame that is not in the CPU backend's own header."""
    own = str(compiler.INCLUDE)
    for frame in frames:
        place = re.sub(r" \(discriminator \d+\)$", "", frame)
        if not place.startswith((own, "??")):
            return re.sub(r"^.*/build-[^/]*/(\./)?", "", place)
    return "unknown line"


def _static_variable(library: pathlib.Path, offset: int) -> str:
    """Return the name of the ``__shared__`` variable at an offset of a library's thread-local segment."""
    tool = shutil.which("nm")
    if tool is not None:
        shown = subprocess.run([tool, "-C", "-S", str(library)], capture_output=True, text=True, check=False)
        for line in shown.stdout.splitlines():
            match = re.match(r"([0-9a-f]+) ([0-9a-f]+) [bBdD] (.*)$", line)
            if match and int(match[1], 16) <= offset < int(match[1], 16) + int(match[2], 16):
                return f"byte {offset - int(match[1], 16)} of the shared variable {match[3].rpartition('::')[2]}"
    return f"byte {offset} of the static shared memory"
