"""Items that several processes take: each one once, and none without a process that may have copies."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process does all")
#: Each item becomes a file that holds the process that had it.
PRELUDE = """
import os, pathlib, time
from llmc2py import forks
items = [str(number) for number in range(5000)]
def note(item):
    with open(item, "a") as file:
        file.write(f"{os.getpid()} ")
"""


def run(folder: pathlib.Path, code: str, jobs: object = 2) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=folder, env=os.environ | {"LLMC2PY_JOBS": str(jobs)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    return done.stdout


@ONLY_LINUX
@pytest.mark.parametrize("jobs", [2, 3])
def test_each_item_is_taken_once(tmp_path, jobs):
    run(tmp_path, "forks.share(items, note, 10, lambda: note('end'))", jobs)
    assert len((tmp_path / "end").read_text().split()) == jobs - 1
    (tmp_path / "end").unlink()
    had = [path.read_text().split() for path in tmp_path.iterdir()]
    assert len(had) == 5000
    assert {len(processes) for processes in had} == {1}


@ONLY_LINUX
def test_copies_do_what_this_process_does_not_take(tmp_path):
    code = """
with forks.Shared(items, lambda taken: [note(item) for item in taken], 1) as shared:
    shared.wait()
    print(*shared.take(), os.getpid())
"""
    here = run(tmp_path, code)
    had = {path.read_text() for path in tmp_path.iterdir()}
    assert len(had) == 1
    assert here.strip() not in {text.strip() for text in had}


@ONLY_LINUX
def test_copies_end_where_their_work_is_not_waited_for(tmp_path):
    code = """
with forks.Shared(items, lambda taken: time.sleep(60), 1) as shared:
    (child,) = shared._copies
print(pathlib.Path(f"/proc/{child}").exists())
"""
    assert run(tmp_path, code) == "False\n"


@ONLY_LINUX
def test_a_copy_that_fails_says_nothing_and_does_not_go_on_here(tmp_path):
    code = """
with forks.Shared(items, lambda taken: 1 / 0, 1) as shared:
    shared.wait()
    print(len(list(shared.take())))
"""
    assert run(tmp_path, code) == "5000\n"


@ONLY_LINUX
def test_copies_end_where_the_wait_for_them_is_interrupted(tmp_path):
    code = """
import signal
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    with forks.Shared(items, lambda taken: time.sleep(60), 2) as shared:
        children = list(shared._copies)
        shared.wait()
except KeyboardInterrupt:
    print([pathlib.Path(f"/proc/{child}").exists() for child in children])
"""
    assert run(tmp_path, code) == "[False, False]\n"


@ONLY_LINUX
def test_copies_take_nothing_more_once_their_process_is_killed(tmp_path):
    code = """
import signal
def slowly(taken):
    for item in taken:
        note(item)
        time.sleep(0.1)
if (original := os.fork()) == 0:
    with forks.Shared(items, slowly, 1) as shared:
        pathlib.Path("copy").write_text(str(shared._copies[0]))
        time.sleep(60)
while not (pathlib.Path("copy").exists() and pathlib.Path("copy").read_text()):
    time.sleep(0.01)
os.kill(original, signal.SIGKILL)
os.waitpid(original, 0)
until = time.monotonic() + 10
while (done := pathlib.Path("/proc", pathlib.Path("copy").read_text(), "stat")).exists() and time.monotonic() < until:
    # Who adopts it may leave it a zombie.
    if done.read_text().rpartition(")")[2].split()[0] == "Z":
        break
    time.sleep(0.01)
print(len(os.listdir()) < 50)
"""
    assert run(tmp_path, code) == "True\n"


@ONLY_LINUX
@pytest.mark.parametrize(
    "setting",
    [
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "os.fork = lambda: os.read(-1, 1)",
        "fork, left = os.fork, [1]; os.fork = lambda: fork() if left and left.pop() else os.read(-1, 1)",
    ],
)
def test_all_is_done_where_the_system_has_no_room_for_copies_or_tells_nothing_of_them(tmp_path, setting):
    run(tmp_path, f"{setting}\nitems = items[:40]\nforks.share(items, note, 10)", 3)
    assert len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 40


@ONLY_LINUX
@pytest.mark.parametrize(("jobs", "copies"), [("0", 0), ("1", 0), ("3", 2), ("\u00b2", None), ("-3", None)])
def test_the_setting_is_a_number_or_none_at_all(tmp_path, jobs, copies):
    code = "print(forks.possible_copies(5), max(0, min(5, len(os.sched_getaffinity(0)) - 1)))"
    found, by_cores = map(int, run(tmp_path, code, jobs).split())
    assert found == (by_cores if copies is None else copies)


@pytest.mark.parametrize(
    ("jobs", "setting"),
    [
        (1, ""),
        (2, "items = items[:19]"),
        (2, "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"),
    ],
)
def test_nothing_is_shared_where_it_is_not_worth_it_or_not_possible(tmp_path, jobs, setting):
    run(tmp_path, f"{setting}\nforks.share(items, note, 10)", jobs)
    assert not list(tmp_path.iterdir())
