"""Work that copies of this process share: each takes the next item, and leaves what it makes in the cache."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

from llmc2py.caching import paused_collection

_Item = TypeVar("_Item")
#: A pipe takes at least so many numbers of two bytes at once.
_MOST_NUMBERS = 2048


class Shared(Generic[_Item]):
    """Items that this process and copies of it take, each item once.

    The copies begin where this is entered, and are ended where it is left before ``wait``. ``work`` is what they do
    with what they take; what one of them leaves out, whatever the reason, is to be done here: all of it where the
    system has no room for copies.
    """

    def __init__(self, items: Sequence[_Item], work: Callable[[Iterable[_Item]], object], copies: int) -> None:
        self._items = items
        self._work = work
        self._number = copies
        self._copies: list[int] = []
        self._numbers = -1

    def __enter__(self) -> Shared[_Item]:
        # Without memory, processes or files for copies, all is done here.
        with contextlib.suppress(OSError):
            self._begin()
        return self

    def _begin(self) -> None:
        if self._number > 0:
            self._numbers, into = os.pipe()
            count = min(len(self._items), _MOST_NUMBERS)
            os.write(into, b"".join(number.to_bytes(2, "big") for number in range(count)))
            os.close(into)
        here = os.getpid()
        for _ in range(self._number):
            child = os.fork()
            if child == 0:
                self._work_and_leave(here)
            self._copies.append(child)

    def __exit__(self, *_: object) -> None:
        for child in self._copies:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.wait()
        if self._numbers >= 0:
            os.close(self._numbers)

    def take(self) -> Iterator[_Item]:
        """Yield the items that no process has taken yet; none where there are no copies."""
        while self._numbers >= 0 and (number := os.read(self._numbers, 2)):
            yield from self._items[int.from_bytes(number, "big") :: _MOST_NUMBERS]

    def wait(self) -> None:
        """Return when the copies have done what they took."""
        while self._copies:
            # Where nobody is told of ends (SIGCHLD is ignored), this waits all the same, and then finds no process.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._copies[-1], 0)
            # Only now: whoever interrupts the wait has it ended.
            self._copies.pop()

    def _work_and_leave(self, original: int) -> NoReturn:
        try:
            with paused_collection():
                # Nobody waits for what it makes once the process that it is a copy of is gone (killed, perhaps).
                self._work(itertools.takewhile(lambda _: os.getppid() == original, self.take()))
        finally:
            # Whatever happened: what the process that this is a copy of has yet to do is not to be done here.
            os._exit(0)


def share(
    items: Sequence[_Item], work: Callable[[_Item], object], least: int, end: Callable[[], object] = lambda: None
) -> None:
    """Do something with each item where there are enough for several processes (``least`` for each), nothing else.

    ``work`` keeps what it makes in the cache: whoever looks for it there and does not find it makes it again. ``end``
    is what copies do at their end.
    """
    if not (copies := possible_copies(len(items) // least - 1)):
        return

    def do(taken: Iterable[_Item]) -> None:
        for item in taken:
            work(item)
        end()

    with Shared(items, do, copies) as shared:
        for item in shared.take():
            work(item)
        shared.wait()


def possible_copies(wanted: int) -> int:
    """Return how many copies of this process may work beside it, as many as wanted at the most.

    ``LLMC2PY_JOBS`` says how many processes there may be, else there is one for each core. A process with threads,
    even native ones, or of which that cannot be told, makes no copies.
    """
    chosen = os.environ.get("LLMC2PY_JOBS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    copies = min((int(chosen) if chosen.isascii() and chosen.isdigit() else cores) - 1, wanted)
    return copies if copies > 0 and _has_one_thread() else 0


def _has_one_thread() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
