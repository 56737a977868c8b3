"""What killed runs leave in the cache goes with the next run; what is being written stays."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import pathlib
import weakref
from concurrent.futures import ThreadPoolExecutor

from llmc2py import caching
from llmc2py.runtime.host.cache import build_once


def test_abandoned_parts_go_and_those_of_running_processes_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))
    shelf = caching.Shelf("small", 5000)
    shelf.folder.mkdir()
    for number in range(10):
        (shelf.folder / f"new-{number}.part").write_bytes(b"half")
    held = shelf.folder / "new-held.part"
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for path in shelf.folder.iterdir():
            os.utime(path, (0, 0))
        shelf.store("key", 1)
        assert sorted(path.name for path in shelf.folder.iterdir()) == ["key.pickle", "new-held.part"]
    shelf.store("key", "x" * 1000)  # so much that the folder is looked through again
    assert [path.name for path in shelf.folder.iterdir()] == ["key.pickle"]
    assert shelf.load("key") == "x" * 1000


def test_threads_that_store_at_once_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))
    shelf = caching.Shelf("small", 1 << 20)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: shelf.store(f"key{number}", number), range(300)))
    assert [shelf.load(f"key{number}") for number in range(300)] == list(range(300))


def test_a_full_disk_leaves_nothing_and_raises_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path))
    shelf = caching.Shelf("small", 5000)
    shelf.store("key", 1)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    shelf.store("key", 2)
    assert [path.name for path in shelf.folder.iterdir()] == ["key.pickle"]
    assert shelf.load("key") == 1


def test_abandoned_builds_go(tmp_path):
    target = tmp_path / "kernel.so"
    (tmp_path / "build-kernel.so-abc").mkdir()
    (tmp_path / "build-other.so-abc").mkdir()

    def build(_: pathlib.Path, output: pathlib.Path) -> None:
        output.write_text("built")

    build_once(target, build)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build-other.so-abc", "kernel.so", "locks"]


class _Ring:
    def __init__(self) -> None:
        self.next = self


def test_what_a_pause_of_the_collector_leaves_behind_is_not_looked_through_at_once_but_in_the_end():
    gc.collect()
    with caching.paused_collection():
        trees = [[number] for number in range(10_000)]
        garbage = weakref.ref(_Ring())
    assert gc.isenabled()
    assert gc.get_count()[0] < len(trees)
    assert gc.get_freeze_count() == 0
    assert garbage() is not None
    gc.collect()
    assert garbage() is None
