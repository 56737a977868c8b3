"""What a function does with the memory behind one of its pointer parameters."""

from __future__ import annotations

from dataclasses import dataclass

from llmc2py.ir.library import Intent


@dataclass
class Access:
    """What is known of one pointer parameter."""

    reads: bool = False
    writes: bool = False
    accumulates: bool = False
    width: int = 0
    nullable: bool = False
    tests_alignment: bool = False

    @property
    def intent(self) -> Intent:
        if self.accumulates and not self.writes:
            return Intent.ACCUMULATE
        if self.writes or self.accumulates:
            return Intent.INOUT if self.reads or self.accumulates else Intent.OUT
        return Intent.IN if self.reads else Intent.UNUSED

    def merge(self, other: Access) -> None:
        """Add what another place does with the same memory."""
        self.reads |= other.reads
        self.writes |= other.writes
        self.accumulates |= other.accumulates
        self.width = max(self.width, other.width)
        self.tests_alignment |= other.tests_alignment
        self.nullable |= other.nullable

    @property
    def alignment(self) -> int:
        """The bytes that the memory must be aligned to; code that looks at the address itself takes any."""
        return 0 if self.tests_alignment else self.width
