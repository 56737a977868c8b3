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


def run(folder: pathlib.Path, code: str, jobs: int = 2) -> str:
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
