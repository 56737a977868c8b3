"""What can go wrong inside a kernel that runs on the CPU."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel ended before its end: a trap, a deadlock; the message holds place, kernel, block and thread."""


class KernelAssertionError(KernelError, AssertionError):
    """An ``assert`` in a kernel did not hold."""


class DivergentBarrierError(KernelError):
    """Some threads of a block wait at ``__syncthreads()`` that others never reach."""


class RefusedError(KernelError):
    """The checking mode ended a kernel before an access, or a division, that cannot be made; the findings say which."""


class CheckError(RuntimeError):
    """The checking mode found errors in kernels; ``findings`` lists them."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = findings


FAULTS: dict[int, type[KernelError]] = {
    1: KernelAssertionError,
    2: DivergentBarrierError,
    3: KernelError,
    4: KernelError,
    5: RefusedError,
}
