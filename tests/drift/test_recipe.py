"""The workflow in the documentation does what it says: its steps are run on a repository of the test."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "regenerating.md").read_text()
KERNEL = "__global__ void k(float* out) { out[threadIdx.x] = 1.0f; }\nvoid run(float* out) { k<<<1, 32>>>(out); }\n"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


def step(after: str) -> str:
    """Return the commands of the step that comes first after a text."""
    rest = TEXT[TEXT.index(after) :]
    found = re.search(r"^( +)run: \|\n((?:\1 +.*\n|\n)+)", rest, re.M)
    assert found is not None
    return textwrap.dedent(found[2])


def git(folder: pathlib.Path, *arguments: str) -> str:
    settings = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    )
    command = ["git", *settings, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def workplace(tmp_path):
    """An upstream, and a repository with a package of it, as continuous integration checks it out."""
    upstream, own = tmp_path / "upstream", tmp_path / "own"
    for folder, files in ((upstream, {"k.cu": KERNEL}), (own, {".gitignore": ".upstream/\n__pycache__/\n"})):
        folder.mkdir()
        git(folder, "init", "--quiet")
        for name, text in files.items():
            (folder / name).write_text(text)
    for folder in (upstream, own):
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", "First")
    return tmp_path


def update(workplace: pathlib.Path) -> tuple[int, str, str]:
    """Run the step that updates in a fresh checkout; return its exit code, its output and the summary."""
    fresh = workplace / "checkout"
    shutil.rmtree(fresh, ignore_errors=True)
    git(workplace, "clone", "--quiet", str(workplace / "own"), str(fresh))
    script = step("id: update").replace("https://github.com/karpathy/llm.c", f"file://{workplace / 'upstream'}")
    files = {name: workplace / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for path in files.values():
        path.write_text("")
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {name: str(path) for name, path in files.items()} | {"PATH": path}
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=fresh, env=environment, check=False)
    return done.returncode, files["GITHUB_OUTPUT"].read_text(), files["GITHUB_STEP_SUMMARY"].read_text()


def accept(workplace: pathlib.Path) -> None:
    """Apply the patch as the job that proposes does, and merge it."""
    assert 'git apply --index "$RUNNER_TEMP/update/update.patch"' in step("GH_TOKEN")
    git(workplace / "own", "apply", "--index", str(workplace / "checkout" / "update.patch"))
    git(workplace / "own", "commit", "--quiet", "-m", "Follow")


def test_the_workflow_follows_upstream(workplace):
    assert update(workplace)[:2] == (0, "changed=true\n")
    accept(workplace)
    assert (workplace / "own" / "generated" / "llmc2py.lock").is_file()

    assert update(workplace)[:2] == (0, "")  # nothing new, no pull request

    (workplace / "upstream" / "k.cu").write_text(KERNEL.replace("1.0f", "2.0f").replace("1, 32", "2, 32"))
    git(workplace / "upstream", "commit", "--quiet", "-am", "Second")
    code, output, summary = update(workplace)
    assert (code, output) == (0, "changed=true\n")
    assert "## Changes numbers (1)" in summary
    assert "- kernel `k` (k.cu): body changed" in summary
    assert "## Speed only (1)" in summary
    accept(workplace)
    assert "2.0f" in (workplace / "own" / "generated" / "k.cu").read_text()


def test_the_workflow_fails_where_upstream_cannot_be_had(workplace):
    shutil.rmtree(workplace / "upstream")
    assert update(workplace)[0] == 1


def test_the_steps_are_shell_that_can_be_read():
    for after in ("id: update", "GH_TOKEN"):
        subprocess.run(["bash", "-n", "-c", step(after)], check=True)
