"""What replacing a folder needs of the system: that one process does it at a time, and that it is one step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import sys
import time
from collections.abc import Iterator

from llmc2py.diagnostics import UsageError

#: Seconds for which another process may hold a folder before we give up; to write a package takes less than one.
PATIENCE = 60.0
_PAUSE = 0.05
_AT_WORKING_FOLDER = -100
_EXCHANGE = 2
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})


@contextlib.contextmanager
def sole_writer(output: pathlib.Path) -> Iterator[bool]:
    """Hold a folder against other processes of ours, by a locked file beside it that is there for as long.

    Gives True; False where the file system knows no locks. The system drops the lock of a process that dies, so a file
    that is left behind blocks nobody. Raises UsageError where another process does not let go.
    """
    path = output.with_name(f".{output.name}.llmc2py-lock")
    handle, is_alone = _hold(path, output)
    try:
        yield is_alone
    finally:
        # Removed while it is held: who waits for it sees that it is gone and makes a new one.
        path.unlink(missing_ok=True)
        os.close(handle)


def _hold(path: pathlib.Path, output: pathlib.Path) -> tuple[int, bool]:
    until = time.monotonic() + PATIENCE
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle, True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return handle, False
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(handle)
                raise
            if time.monotonic() > until:
                holder = os.read(handle, 20).decode("ascii", "replace").strip()
                os.close(handle)
                raise UsageError(
                    f"{output}: another llmc2py (process {holder}) has been writing it for {PATIENCE:.0f} s; "
                    "wait for it or end it, or choose another --output"
                ) from error
        os.close(handle)
        time.sleep(_PAUSE)


def _is_at(handle: int, path: pathlib.Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def exchange(first: pathlib.Path, second: pathlib.Path) -> bool:
    """Let two folders change places in one step; return False where the system or the file system cannot do that.

    Raises OSError where it can and fails.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        function, arguments = getattr(libc, "renamex_np", None), (*names, _EXCHANGE)
    else:
        function = getattr(libc, "renameat2", None)
        arguments = (_AT_WORKING_FOLDER, names[0], _AT_WORKING_FOLDER, names[1], _EXCHANGE)
    if function is None:
        return False
    if function(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(second))
