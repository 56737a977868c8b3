"""Random numbers: initial values of parameters, and the seeds of kernels that round at random.

Everything comes from one generator, so that a program that sets it gets the same numbers in each run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_lock = threading.Lock()
_generator = np.random.Generator(np.random.PCG64(0))


def manual_seed(seed: int) -> None:
    """Begin the sequence of random numbers anew."""
    set_state(np.random.PCG64(seed).state)


def get_state() -> dict[str, Any]:
    """Return the place in the sequence, as plain numbers and strings."""
    with _lock:
        return dict(_generator.bit_generator.state)


def set_state(state: Any) -> None:
    """Go to a place in the sequence that `get_state` gave."""
    with _lock:
        _generator.bit_generator.state = state


class _Thread(threading.local):
    draw: Callable[[], int] | None = None


_thread = _Thread()


@contextlib.contextmanager
def seeds_from(draw: Callable[[], int]) -> Iterator[None]:
    """Let this thread's seeds be what ``draw()`` gives, 32 bits each, while the context lasts."""
    before = _thread.draw
    _thread.draw = draw
    try:
        yield
    finally:
        _thread.draw = before


def next_seed() -> int:
    """Return a seed for one call of a kernel: 32 bits."""
    if _thread.draw is not None:
        return _thread.draw()
    with _lock:
        return int(_generator.integers(0, 1 << 32))


def normal(shape: tuple[int, ...], deviation: float = 0.02) -> NDArray[np.float32]:
    """Return float32 numbers around 0; the deviation is that of GPT-2's weights."""
    with _lock:
        return (_generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)).astype(np.float32)
