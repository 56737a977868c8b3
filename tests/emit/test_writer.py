"""A package is replaced as a whole or not at all: failures, kills and leftovers."""

from __future__ import annotations

import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from llmc2py.diagnostics import UsageError
from llmc2py.emit import writer
from llmc2py.emit.lock import LOCK_NAME, emit_lock
from llmc2py.emit.writer import diff_package, write_package


def package(version: str, count: int = 3) -> dict[str, str]:
    """A package whose files all say the same version."""
    files = {"__init__.py": f"VERSION = {version!r}\n"}
    files |= {f"part/m{n}.py": f"VERSION = {version!r}\n" for n in range(count)}
    files["part/__init__.py"] = ""
    return files | {LOCK_NAME: emit_lock(version, {}, {}, files)}


def contents(folder: pathlib.Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_holds_exactly_the_files(tmp_path):
    output = tmp_path / "deep" / "generated"
    write_package(output, package("1", count=5))
    assert contents(output) == package("1", count=5)
    write_package(output, package("2", count=2))
    assert contents(output) == package("2", count=2)
    assert [path.name for path in output.parent.iterdir()] == ["generated"]
    assert diff_package(output, package("2", count=2)) == []


@pytest.mark.parametrize("failing", [1, 2])
def test_a_swap_that_fails_leaves_the_old_package(tmp_path, monkeypatch, failing):
    output = tmp_path / "generated"
    write_package(output, package("1"))
    monkeypatch.setattr(writer, "exchange", lambda *_: False)
    real, calls = os.replace, []

    def replace(source, target):
        calls.append((source, target))
        if len(calls) == failing:
            raise OSError(errno.EACCES, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        write_package(output, package("2"))
    monkeypatch.undo()
    assert contents(output) == package("1")
    write_package(output, package("3"))
    assert [path.name for path in tmp_path.iterdir()] == ["generated"]


def test_a_full_disk_leaves_the_old_package(tmp_path, monkeypatch):
    output = tmp_path / "generated"
    write_package(output, package("1"))
    real = pathlib.Path.write_text

    def write_text(self, *arguments, **named):
        if self.name == "m2.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *arguments, **named)

    monkeypatch.setattr(pathlib.Path, "write_text", write_text)
    with pytest.raises(UsageError, match="No space left on device"):
        write_package(output, package("2"))
    assert contents(output) == package("1")
    assert [path.name for path in tmp_path.iterdir()] == ["generated"]


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_kill_between_the_renames_left_is_put_back_or_cleared(tmp_path, monkeypatch):
    output = tmp_path / "generated"
    write_package(output, package("1"))
    staging = tmp_path / ".generated.llmc2py-new-abc"
    (staging / "new").mkdir(parents=True)
    (staging / "new" / "half.py").write_text("half")
    output.rename(staging / "old")
    with monkeypatch.context() as patched:
        patched.setattr(writer.tempfile, "mkdtemp", full_disk)
        with pytest.raises(UsageError, match="No space left"):
            write_package(output, package("2"))
    assert contents(output) == package("1")
    write_package(output, package("2"))
    assert contents(output) == package("2")
    assert [path.name for path in tmp_path.iterdir()] == ["generated"]


def test_files_of_others_are_not_overwritten(tmp_path):
    output = tmp_path / "generated"
    write_package(output, package("1"))
    (output / "mine.py").write_text("precious")
    with pytest.raises(UsageError, match=r"mine\.py"):
        write_package(output, package("2"))
    assert (output / "mine.py").read_text() == "precious"
    assert "VERSION = '1'" in (output / "__init__.py").read_text()


def test_differences_are_told_by_file(tmp_path):
    output = tmp_path / "generated"
    write_package(output, package("1", count=1))
    lines = diff_package(output, package("2", count=2))
    assert "--- a/part/m0.py" in lines
    assert "-VERSION = '1'" in lines
    assert "--- /dev/null" in lines
    assert "+++ b/part/m1.py" in lines
    assert "the ends of lines or of the file differ" in "\n".join(
        diff_package(output, package("1", count=1) | {"__init__.py": "VERSION = '1'"})
    )


KILLED = """
import pathlib, sys, itertools
from llmc2py.emit.lock import LOCK_NAME, emit_lock
from llmc2py.emit.writer import write_package
print("ready", flush=True)
for version in itertools.count(int(sys.argv[2])):
    files = {f"m{n}.py": f"VERSION = {version}\\n" for n in range(40)} | {"__init__.py": f"VERSION = {version}\\n"}
    write_package(pathlib.Path(sys.argv[1]), files | {LOCK_NAME: emit_lock("1", {}, {}, files)})
"""


def test_a_killed_run_leaves_a_whole_package(tmp_path):
    """Killed anywhere, the folder is there, of one version; the next run clears what lies beside it."""
    output = tmp_path / "generated"
    chance = random.Random(7)
    first = {"__init__.py": "VERSION = 0\n"}
    write_package(output, first | {LOCK_NAME: emit_lock("1", {}, {}, first)})
    for number in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(output), str(1000 * number)], stdout=subprocess.PIPE
        ) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.05))
            run.send_signal(signal.SIGKILL)
        versions = {path.read_text() for path in output.glob("*.py")}
        assert len(versions) == 1, (number, versions)
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) <= 2
    write_package(output, package("9"))
    assert contents(output) == package("9")
    assert [path.name for path in tmp_path.iterdir()] == ["generated"]
