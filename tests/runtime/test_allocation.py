"""Memory that stays: from CuPy's pool, also while something is captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmc2py.runtime.allocation import lasting

#: ``CU_STREAM_CAPTURE_MODE_GLOBAL`` and ``CU_STREAM_CAPTURE_MODE_RELAXED``.
GLOBAL, RELAXED = 0, 2


def library(malloc: Any) -> Any:
    return SimpleNamespace(get_default_memory_pool=lambda: SimpleNamespace(malloc=malloc))


def test_memory_is_had_in_a_mode_that_allows_it(driver: Any) -> None:
    asked = []
    assert lasting(library(lambda nbytes: asked.append((nbytes, driver.mode)) or "memory"), 512) == "memory"
    assert asked == [(512, RELAXED)]
    assert driver.mode == GLOBAL


def test_the_mode_is_as_before_where_there_is_no_memory(driver: Any) -> None:
    def malloc(nbytes: int) -> Any:
        raise MemoryError(nbytes)

    with pytest.raises(MemoryError):
        lasting(library(malloc), 512)
    assert driver.mode == GLOBAL


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_memory_is_had_in_captures_of_any_mode(mode: str) -> None:
    import cupy
    from cupy.cuda import runtime

    nbytes = 123_457_024  # more than the pool has lying about
    with cupy.cuda.Stream(non_blocking=True) as stream:
        array = cupy.zeros(1)
        stream.begin_capture(getattr(runtime, f"streamCaptureMode{mode}"))
        memory = lasting(cupy, nbytes)
        array += 1
        graph = stream.end_capture()
        cupy.ndarray((nbytes,), "u1", memory).fill(1)
        graph.launch(stream)
        assert array.get() == 1
