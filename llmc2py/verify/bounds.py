"""Accesses out of bounds on the CPU: told as failed checks, where they would take the interpreter down otherwise.

Arrays lie between memory that cannot be touched, which costs little. What shows a fault is run once more in the
checking mode, whose kernels take longer to build and to run, and which names kernel, array, index and line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from llmc2py.runtime import host
from llmc2py.runtime.arrays import packed_copy
from llmc2py.runtime.guarded import Guard, guarded_arrays

T = TypeVar("T")

#: What has more elements is not run again in the checking mode.
_LARGEST = 1 << 16
_SHOWN = 3


class OutOfBoundsError(Exception):
    """A kernel touched what is not in its arrays."""


def placed(xp: Any, array: Any) -> Any:
    """Return an array on the backend of a module; on the CPU, a copy where new arrays lie."""
    return packed_copy(array, host) if xp is np else xp.asarray(array)


class Watch:
    """Looks for accesses out of bounds in checks that belong together; on CUDA it sees none.

    ``found`` says that there was one. What runs next may then harm arrays that are not guarded, as those are that NumPy
    makes of others.
    """

    def __init__(self, xp: Any) -> None:
        self.found = False
        self._on_cpu = xp is np
        self._guard: Guard | None = None
        self._has_explained = False

    @contextlib.contextmanager
    def arrays(self) -> Iterator[None]:
        """Guard the arrays that are made within the context; `call` is to be called in it."""
        if not self._on_cpu:
            yield
            return
        with guarded_arrays() as self._guard:
            yield

    def call(self, run: Callable[[], T], elements: int) -> T:
        """Return what ``run()`` does, which may be run twice. Raises OutOfBoundsError for a fault that shows."""
        fault: Exception | None = None
        try:
            result = run()
        except host.KernelError as error:
            fault = error
        is_damaged = self._guard is not None and self._guard.is_damaged()
        # Kinds of it, such as a failed assertion, say themselves what is wrong.
        if not is_damaged and type(fault) is not host.KernelError:
            if fault is not None:
                raise fault
            return result
        self.found = True
        findings = self.findings(run, elements)
        said = str(fault) if fault else "something beside an array was written to; LLMC2PY_CHECK=1 finds the line"
        raise OutOfBoundsError("; ".join(findings) or said) from fault

    def findings(self, run: Callable[[], Any], elements: int) -> list[str]:
        """Return what the checking mode says of ``run()``: once, and where the arrays are small."""
        if not self._on_cpu or self._has_explained or elements > _LARGEST or host.is_checking():
            return []
        self._has_explained = True
        # Whatever it raises, it has raised before.
        with host.checking(raise_findings=False) as report, contextlib.suppress(Exception):
            run()
        self.found = self.found or bool(report.findings)
        return report.findings[:_SHOWN]
