"""Compile kernels in processes of their own, for NVRTC compiles one kernel at a time in a process.

Run as a module, this is such a process: it reads a pickled list of jobs and writes a pickled row for each.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmc2py.runtime.cuda import compile_cubin
from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.host.compiler import build_kernel
from llmc2py.runtime.source import KernelRequest

CPU = "cpu"


@dataclass(frozen=True)
class CompileRow:
    """One kernel in one precision, compiled for one target (an architecture, or ``cpu``).

    ``skipped`` says that it was not compiled at all; ``detail`` says why, or holds the compiler's errors.
    """

    module: str
    kernel: str
    precision: str
    target: str
    ok: bool
    skipped: bool
    seconds: float
    detail: str


@dataclass(frozen=True)
class Job:
    """A kernel of a module to be compiled for a target; ``missing`` says why it cannot be."""

    module: str
    request: KernelRequest
    target: str
    missing: str = ""


def compile_job(job: Job) -> CompileRow:
    """Compile one kernel."""
    request = job.request
    started = time.perf_counter()

    def row(ok: bool, skipped: bool, detail: str) -> CompileRow:
        seconds = time.perf_counter() - started
        return CompileRow(job.module, request.name, request.precision, job.target, ok, skipped, seconds, detail)

    if job.missing:
        return row(False, True, job.missing)
    try:
        if job.target == CPU:
            build_kernel(request)
        else:
            compile_cubin(request, job.target)
    except ToolMissingError as error:
        return row(False, True, str(error))
    except CompileError as error:
        return row(False, False, str(error))
    return row(True, False, "")


def compile_apart(jobs: Sequence[Job]) -> Iterator[CompileRow]:
    """Compile kernels in another process; yield a row for each, in order, as it is done.

    Raises RuntimeError where the process ends before that.
    """
    # -c and not -m: the program that calls this may have another working folder or path than it started with.
    start = f"import sys; sys.path[:] = {sys.path!r}; from llmc2py.verify.compile_worker import main; main()"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(list(jobs), process.stdin)
            process.stdin.close()
            for _ in jobs:
                yield pickle.load(process.stdout)
        except (EOFError, BrokenPipeError):
            raise RuntimeError(f"a process that compiles kernels ended early, with status {process.wait()}") from None
        finally:
            process.kill()


def main() -> None:
    """Read jobs from standard input and write rows to standard output."""
    for job in pickle.load(sys.stdin.buffer):
        pickle.dump(compile_job(job), sys.stdout.buffer)
        sys.stdout.buffer.flush()
