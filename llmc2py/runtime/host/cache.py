"""A folder of built files, named by the content that they were built from and shared by processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

from llmc2py.caching import cache_root, content_key

__all__ = ["build_once", "cache_root", "content_key"]


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    # The kernel drops the lock of a process that dies, so a file that is left behind blocks nobody.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(target: pathlib.Path, build: Callable[[pathlib.Path, pathlib.Path], None]) -> pathlib.Path:
    """Return ``target``, built first if it is not there.

    ``build(folder, output)`` writes ``output`` in an empty temporary ``folder``. One thread of one process builds;
    the others wait. A file under its final name is always whole.
    """
    if target.exists():
        return target
    with _locked(target.parent / "locks" / f"{target.name}.lock"):
        if not target.exists():
            prefix = f"build-{target.name}-"
            for abandoned in target.parent.glob(f"{prefix}*"):
                # Of a process that was killed: whoever builds this holds the lock.
                shutil.rmtree(abandoned, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
                output = pathlib.Path(folder) / target.name
                build(pathlib.Path(folder), output)
                os.replace(output, target)
    return target
