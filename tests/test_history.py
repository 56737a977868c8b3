"""The walk through a history says what each commit holds and what it changed."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

_SCRIPT = pathlib.Path(__file__).parent.parent / "benchmarks" / "history.py"
KERNEL = """\
// __global__ void in_a_comment() {}
__global__ void scale(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
void scale_all(float* x, int n) { scale<<<(n + 31) / 32, 32>>>(x, n); }
"""


@pytest.fixture(scope="module")
def history():
    spec = importlib.util.spec_from_file_location("history", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["history"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*arguments):
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(text):
        (folder / "scale.cu").write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", "change")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    texts = [
        "int nothing;\n",
        KERNEL,
        KERNEL.replace("int n)", "int n, float by)").replace("= 2;", "= by;").replace("(x, n);", "(x, n, by);"),
        KERNEL + "#if 0\n__global__ void hidden(float* x) { *x = 0; }\n#endif\n",
    ]
    return folder, [commit(text) for text in texts]


def test_rows_say_what_a_commit_holds_and_changes(history, repository):
    folder, commits = repository
    rows = history._visit_all(folder, commits)
    assert [row.commit for row in rows] == commits
    assert not any(row.crash for row in rows)
    assert [row.kernels for row in rows] == [0, 1, 1, 1]
    assert [row.launch_sites_lowered for row in rows] == [0, 1, 1, 1]
    assert [row.signatures for row in rows] == [0, 0, 2, 2]
    assert rows[2].changed == ["scale.cu:scale", "scale.cu:scale_all"]
    # The kernel under `#if 0` of the last one is told.
    assert [row.lost for row in rows] == [[], [], [], []]
    assert [row.kernels_searched for row in rows] == [0, 1, 1, 2]


def test_a_kernel_that_is_neither_read_nor_told_is_lost(history, tmp_path):
    walker, row = history._Walker(tmp_path, tmp_path), history.Row("", "")
    (tmp_path / "tree" / "scale.cu").write_text(KERNEL)
    walker._search(row, [{"file": "other.cu", "name": "scale"}], [])
    assert row.lost == ["scale.cu:2: scale"]


def test_an_exception_is_a_row(history, repository, monkeypatch):
    folder, commits = repository
    monkeypatch.setattr(history.pipeline, "generate", lambda _: 1 / 0)
    assert all("ZeroDivisionError" in row.crash for row in history._visit_all(folder, commits[1:2]))


def test_what_is_written_has_a_line_for_each_commit(history, repository, tmp_path):
    folder, commits = repository
    rows = history._visit_all(folder, commits)
    history.write_table(tmp_path / "history.csv", rows)
    assert [line.split(",")[0] for line in (tmp_path / "history.csv").read_text().splitlines()[1:]] == commits
    history.write_summary(tmp_path / "history.md", rows, 2)
    assert f"| {commits[2][:12]} |" in (tmp_path / "history.md").read_text()
