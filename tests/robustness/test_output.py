"""Output folders as users have them: with files of their own, not writable, used by two runs at once."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from llmc2py.cli import cli
from llmc2py.diagnostics import UsageError
from llmc2py.emit import folders, writer
from llmc2py.emit.lock import LOCK_NAME, emit_lock
from llmc2py.emit.writer import diff_package, write_package

KERNEL = "__global__ void k(float* o) { o[0] = 1; }\n"


def package(version: str, *names: str) -> dict[str, str]:
    files = {"__init__.py": f"VERSION = {version!r}\n", "same.py": "x = 1\n"} | dict.fromkeys(names, "")
    return files | {LOCK_NAME: emit_lock(version, {}, {}, files)}


def everything(folder: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[path.relative_to(folder).as_posix()] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_text()
    return found


@pytest.fixture
def output(tmp_path):
    return tmp_path / "generated"


def put_users_files(folder: pathlib.Path) -> dict[str, str]:
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "todo.txt").write_text("precious")
    (folder / "mine.py").write_text("mine")
    (folder / "elsewhere").symlink_to("/nowhere/at/all")
    (folder / "data").symlink_to("..", target_is_directory=True)
    return {"notes/todo.txt": "precious", "mine.py": "mine", "elsewhere": "-> /nowhere/at/all", "data": "-> .."}


@pytest.mark.parametrize("has_package", [False, True])
def test_users_files_are_refused_and_kept_with_force(output, has_package):
    if has_package:
        write_package(output, package("1", "dropped.py"))
    users = put_users_files(output)
    before = everything(output)
    with pytest.raises(UsageError, match=r"did not write \(data, elsewhere, mine\.py, …\).*--force"):
        write_package(output, package("2"))
    assert everything(output) == before
    write_package(output, package("2"), force=True)
    assert everything(output) == package("2") | users
    write_package(output, package("3"), force=True)
    assert everything(output) == package("3") | users


def test_only_force_overwrites_a_users_file_of_a_generated_name(output):
    output.mkdir()
    (output / "__init__.py").write_text("precious")
    with pytest.raises(UsageError, match=r"__init__\.py"):
        write_package(output, package("1"))
    assert everything(output) == {"__init__.py": "precious"}
    write_package(output, package("1"), force=True)
    assert everything(output) == package("1")


def test_a_folder_in_the_place_of_a_file_is_kept(output):
    (output / "same.py").mkdir(parents=True)
    (output / "same.py" / "mine").write_text("precious")
    with pytest.raises(UsageError, match="cannot be written"):
        write_package(output, package("1"), force=True)
    assert everything(output) == {"same.py/mine": "precious"}
    assert [path.name for path in output.parent.iterdir()] == ["generated"]


def test_what_a_user_adds_while_we_write_is_kept(output, monkeypatch):
    write_package(output, package("1"))
    real = writer.exchange

    def exchange(first, second):
        (output / "late.txt").write_text("precious")
        return real(first, second)

    monkeypatch.setattr(writer, "exchange", exchange)
    write_package(output, package("2"))
    assert everything(output) == package("2") | {"late.txt": "precious"}


def test_a_lock_file_that_cannot_be_read_owns_nothing(output):
    write_package(output, package("1"))
    (output / LOCK_NAME).write_text("{")
    with pytest.raises(UsageError, match="did not write"):
        write_package(output, package("2"))


def test_force_is_an_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "src"
    source.mkdir()
    (source / "k.cu").write_text(KERNEL)
    users = put_users_files(tmp_path / "generated")
    refused = CliRunner().invoke(cli, ["generate", "src"])
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert everything(tmp_path / "generated") == users
    assert CliRunner().invoke(cli, ["generate", "src", "--force"]).exit_code == 0
    assert users.items() < everything(tmp_path / "generated").items()


@pytest.mark.parametrize("name", [".", "..", "../here"])
def test_the_working_folder_is_no_output(tmp_path, monkeypatch, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is the working folder or holds it"):
        write_package(pathlib.Path(name), package("1"), force=True)


def test_unchanged_files_keep_their_times(output):
    write_package(output, package("1"))
    for path in output.iterdir():
        os.utime(path, (1, 1))
    write_package(output, package("2"))
    assert {path.name for path in output.iterdir() if path.stat().st_mtime == 1} == {"same.py"}
    before = output.stat().st_ino
    write_package(output, package("2"))
    assert output.stat().st_ino == before


@pytest.mark.parametrize("can_exchange", [True, False])
def test_file_systems_without_exchange_or_links(output, monkeypatch, can_exchange):
    def no_links(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    if not can_exchange:
        monkeypatch.setattr(writer, "exchange", lambda *_: False)
    users = put_users_files(output)
    for version in "123":
        write_package(output, package(version), force=True)
        assert everything(output) == package(version) | users
    assert [path.name for path in output.parent.iterdir()] == ["generated"]


def test_exchange_is_one_step_or_says_that_it_is_not(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.mkdir()
        (path / path.name).touch()
    if folders.exchange(first, second):
        assert [path.name for path in first.iterdir()] == ["second"]
        with pytest.raises(FileNotFoundError):
            folders.exchange(first, tmp_path / "nowhere")
    monkeypatch.setattr(folders.ctypes, "CDLL", lambda *_, **__: object())
    assert folders.exchange(first, second) is False


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("call", ["mkdtemp", "write_text", "exchange", "open"])
def test_a_disk_that_refuses_leaves_everything_as_it_was(output, monkeypatch, code, call):
    write_package(output, package("1"))

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    owner = {"mkdtemp": writer.tempfile, "write_text": pathlib.Path, "exchange": writer, "open": folders.os}[call]
    with monkeypatch.context() as patched:
        patched.setattr(owner, call, refuse)
        with pytest.raises(UsageError, match=f"{output.name}: cannot be written: {os.strerror(code)}"):
            write_package(output, package("2"))
    assert everything(output) == package("1")
    assert [path.name for path in output.parent.iterdir()] == ["generated"]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_under_standard_output(tmp_path):
    (tmp_path / "k.cu").write_text(KERNEL)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmc2py", "list", str(tmp_path)], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert b"No space left on device" in done.stderr


def test_a_second_run_waits(output):
    path = output.with_name(f".{output.name}.llmc2py-lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    run = threading.Thread(target=write_package, args=(output, package("1")))
    run.start()
    time.sleep(0.2)
    assert not output.exists()
    path.unlink()
    os.close(handle)
    run.join(timeout=20)
    assert everything(output) == package("1")
    assert not path.exists()


def test_a_second_run_gives_up_with_a_message(output, monkeypatch):
    monkeypatch.setattr(folders, "PATIENCE", 0.1)
    path = output.with_name(f".{output.name}.llmc2py-lock")
    with path.open("w") as held:
        held.write("4711\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"another llmc2py \(process 4711\) has been writing it for 0 s; wait"):
            write_package(output, package("1"))
    assert not output.exists()


def test_the_lock_of_a_killed_run_is_no_obstacle(output):
    output.with_name(f".{output.name}.llmc2py-lock").write_text("4711\n")
    write_package(output, package("1"))
    assert everything(output) == package("1")
    assert [path.name for path in output.parent.iterdir()] == ["generated"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(output, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folders.fcntl, "flock", refuse)
    leftover = output.parent / ".generated.llmc2py-new-of-another"
    leftover.mkdir()
    write_package(output, package("1"))
    assert everything(output) == package("1")
    assert leftover.exists(), "it may be of a run that goes on"


def test_many_runs_at_once_leave_one_whole_package(output):
    many = [threading.Thread(target=write_package, args=(output, package(str(number)))) for number in range(8)]
    for run in many:
        run.start()
    for run in many:
        run.join(timeout=60)
    assert everything(output) in [package(str(number)) for number in range(8)]
    assert [path.name for path in output.parent.iterdir()] == ["generated"]


def test_check_of_a_folder_with_odd_things_in_it(output):
    write_package(output, package("1"))
    os.mkfifo(output / "pipe")
    (output / "loop").symlink_to("loop")
    lines = diff_package(output, package("1"))
    assert "--- a/loop" in lines
    assert "--- a/pipe" in lines
