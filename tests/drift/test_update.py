"""``update``: a work tree and its package go to a revision together, or stay as they are."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import subprocess

import pytest
from click.testing import CliRunner

from llmc2py.caching import Shelf
from llmc2py.cli import cli
from llmc2py.emit.lock import LOCK_NAME
from llmc2py.upstream.worktree import Move
from llmc2py.verify import kept

#: The last lines are there to look like a change in what no kernel has.
KERNELS = """\
__global__ void relu_kernel(float* out, const float* inp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = inp[i] > 0.0f ? inp[i] : 0.0f;
}
__global__ void relu_backward_kernel(float* dinp, const float* inp, const float* dout, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dinp[i] = inp[i] > 0.0f ? dout[i] : 0.0f;
}
void relu_forward(float* out, const float* inp, int n) {
    int block_size = 128;
    relu_kernel<<<(n + block_size - 1) / block_size, block_size>>>(out, inp, n);
}
void relu_backward(float* dinp, const float* inp, const float* dout, int n) {
    relu_backward_kernel<<<(n + 127) / 128, 128>>>(dinp, inp, dout, n);
}
"""
OTHER = """\
__global__ void negate_kernel(float* out, const float* inp, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = -inp[i];
}
void negate(float* out, const float* inp, int n) { negate_kernel<<<(n + 127) / 128, 128>>>(out, inp, n); }
"""
ENTRY = '''\
name = "relu"
layer = "ReLU"
summary = "The larger of a value and nought."
source = "relu.cu"
launchers = ["relu_forward", "relu_backward"]
inputs = { inp = "*" }
outputs = { out = "*" }

[extents]
relu_forward = { out = "n", inp = "n" }

[forward]
saves = ["inp"]
recipe = """
out = empty_like(inp)
relu_forward(out, inp, N)
"""

[backward]
gradients = { inp = "dinp" }
recipe = """
dinp = empty_like(dout)
relu_backward(dinp, inp, dout, N)
"""

[reference]
forward = "out = np.maximum(inp, 0)"
backward = "dinp = dout * (inp > 0)"
'''


def git(folder: pathlib.Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    settings = ("-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *settings, "-C", str(folder), *arguments],
        env=environment | names, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


class Upstream:
    """A repository that others commit to, and a clone of it with a package."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / "upstream"
        self.folder.mkdir()
        git(self.folder, "init", "--quiet")
        self.text = KERNELS
        self.commit({"relu.cu": KERNELS, "other.cu": OTHER, "relu.toml": ENTRY, ".gitignore": "generated\n"})
        self.clone = folder / "clone"
        git(folder, "clone", "--quiet", str(self.folder), str(self.clone))
        self.package = self.clone / "generated"

    def commit(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).write_text(text)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "-m", "A change")
        return git(self.folder, "rev-parse", "HEAD")

    def edit(self, *edits: tuple[str, str]) -> str:
        for before, after in edits:
            assert before in self.text
            self.text = self.text.replace(before, after)
        return self.commit({"relu.cu": self.text})

    def state(self) -> tuple[str, str, dict[str, str]]:
        """Where the clone stands, on which branch, and the files of the package."""
        files = {path.name: path.read_text() for path in sorted(self.package.glob("*.*"))}
        head = git(self.clone, "rev-parse", "HEAD")
        return head, git(self.clone, "rev-parse", "--abbrev-ref", "HEAD"), files

    def lock(self) -> dict:
        return json.loads((self.package / LOCK_NAME).read_text())


def run(*arguments: object):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def update(*arguments: object, code: int = 0) -> dict:
    """Run an update on the CPU and return its record."""
    result = run("update", *arguments, "--backend", "cpu", "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def kinds(record: dict) -> set[tuple[str, str, str]]:
    return {(one["meaning"], one["kind"], one["name"]) for one in record["changes"]}


@pytest.fixture
def upstream(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    monkeypatch.chdir(tmp_path)
    made = Upstream(tmp_path)
    assert run("generate", made.clone).exit_code == 0
    return made


def test_three_commits_of_upstream(upstream):
    start = upstream.lock()
    assert start["commit"] == git(upstream.clone, "rev-parse", "HEAD")

    # A body changes: the layer that uses it is verified again, the package holds the new code.
    body = upstream.edit(("inp[i] > 0.0f ? inp[i] : 0.0f", "fmaxf(inp[i], 0.0f)"))
    record = update(upstream.clone)
    assert kinds(record) == {("numbers", "body-changed", "relu_kernel")}
    assert record["verified"] == ["ReLU"]
    assert record["checks"] > 0
    assert record["written"]
    assert upstream.state()[:2] == (body, "main")
    assert "fmaxf" in (upstream.package / "relu.cu").read_text()
    assert upstream.lock()["commit"] == body

    # A launch configuration changes: it is told as formulas, and changes no number.
    launch = upstream.edit(("block_size = 128", "block_size = 256"))
    record = update(upstream.clone)
    (change,) = record["changes"]
    assert (change["meaning"], change["kind"], change["name"]) == (
        "speed", "launch-configuration-changed", "relu_forward",
    )  # fmt: skip
    assert change["old"] == "relu_kernel[ceil_div(n, 128), 128]"
    assert change["new"] == "relu_kernel[ceil_div(n, 256), 256]"
    assert record["verified"] == ["ReLU"]
    assert "256" in (upstream.package / "relu.py").read_text()
    assert upstream.state()[0] == launch

    # A signature changes: the entry does not fit, its layer is left out, all else is generated.
    upstream.edit(
        (
            "relu_forward(float* out, const float* inp, int n)",
            "relu_forward(float* out, int n, const float* inp, int N)",
        )
    )
    record = update(upstream.clone, code=1)
    assert ("breaking", "layer-removed", "ReLU") in kinds(record)
    assert ("breaking", "parameter-added", "relu_forward") in kinds(record)
    (misfit,) = record["misfits"]
    assert (misfit["entry"], misfit["layer"]) == ("relu", "ReLU")
    (callee,) = misfit["callees"]
    assert callee["old"] == "relu_forward(float* out, const float* inp, int n)"
    assert callee["new"] == "relu_forward(float* out, int n, const float* inp, int N)"
    assert record["written"]
    assert (upstream.package / "relu_cu.py").is_file() or (upstream.package / "relu.py").is_file()
    assert not upstream.lock()["layers"]
    assert run("generate", upstream.clone, "--check").exit_code == 1  # for the entry's error, not for a difference


def test_a_proposed_entry_makes_the_layer_again(upstream, tmp_path):
    upstream.edit(
        (
            "relu_forward(float* out, const float* inp, int n)",
            "relu_values(const float* inp, float* out, int n, int N)",
        ),
        ("relu_kernel<<<", "if (N < 0) return;\n    relu_kernel<<<"),
    )
    (misfit,) = update(upstream.clone, code=1)["misfits"]
    assert 'launchers = ["relu_values", "relu_backward"]' in misfit["proposed"]
    assert "relu_values(inp, out, N, TODO_N)" in misfit["proposed"]
    assert not misfit["fits"]

    entry = tmp_path / "relu.toml"
    entry.write_text(misfit["proposed"].replace("TODO_N", "N"))
    record = update(upstream.clone, "--catalog", entry)
    assert ("addition", "layer-added", "ReLU") in kinds(record)
    assert record["verified"] == ["ReLU"]
    assert not record["failed"]


def test_an_entry_whose_source_moved_is_proposed_with_the_new_place(upstream):
    git(upstream.folder, "mv", "relu.cu", "kernels.cu")
    upstream.commit({})
    (misfit,) = update(upstream.clone, code=1)["misfits"]
    assert 'source = "kernels.cu"' in misfit["proposed"]
    assert misfit["fits"]


def test_a_check_that_fails_leaves_everything(upstream):
    before = upstream.state()
    upstream.edit(("inp[i] > 0.0f ? inp[i]", "inp[i] > 0.0f ? -inp[i]"))
    result = run("update", upstream.clone, "--backend", "cpu")
    assert result.exit_code == 1
    assert "FAILED ReLU float32" in result.stdout
    assert "are left as they were" in result.stdout
    assert upstream.state() == before


def test_a_package_that_cannot_be_written_leaves_everything(upstream):
    upstream.edit(("block_size = 128", "block_size = 256"))
    (upstream.package / "mine.txt").write_text("a user's own file")
    before = upstream.state()
    result = run("update", upstream.clone, "--no-verify")
    assert result.exit_code == 2
    assert "mine.txt" in result.stderr
    assert upstream.state() == before
    assert git(upstream.clone, "status", "--porcelain") == ""


def test_nothing_new_writes_the_same_package(upstream):
    before = upstream.state()
    record = update(upstream.clone)
    assert record["changes"] == []
    assert record["verified"] == []
    assert upstream.state() == before
    assert run("generate", upstream.clone, "--check").exit_code == 0


def test_what_no_layer_uses_is_not_verified(upstream):
    upstream.commit({"other.cu": OTHER.replace("-inp[i]", "0.0f - inp[i]")})
    record = update(upstream.clone)
    assert kinds(record) == {("numbers", "body-changed", "negate_kernel")}
    assert record["verified"] == []
    assert record["written"]


def test_a_commit_alone_is_no_difference(upstream):
    upstream.commit({"README.md": "words"})
    git(upstream.clone, "pull", "--quiet")
    assert run("generate", upstream.clone, "--check").exit_code == 0
    assert update(upstream.clone)["changes"] == []


def test_a_dry_run_says_what_would_change_and_changes_nothing(upstream):
    target = upstream.edit(("block_size = 128", "block_size = 256"))
    before = upstream.state()
    record = update(upstream.clone, "--dry-run", code=1)
    assert record["to"] == target
    assert kinds(record) == {("speed", "launch-configuration-changed", "relu_forward")}
    assert upstream.state() == before


def test_local_changes_are_refused_and_kept(upstream):
    upstream.edit(("block_size = 128", "block_size = 256"))
    (upstream.clone / "other.cu").write_text(OTHER + "// mine\n")
    result = run("update", upstream.clone)
    assert result.exit_code == 2
    assert "local changes (other.cu)" in result.stderr
    assert (upstream.clone / "other.cu").read_text().endswith("// mine\n")


def test_a_branch_with_commits_of_its_own_is_refused(upstream):
    upstream.edit(("block_size = 128", "block_size = 256"))
    (upstream.clone / "other.cu").write_text(OTHER + "// mine\n")
    git(upstream.clone, "commit", "--quiet", "-am", "Mine")
    before = upstream.state()
    result = run("update", upstream.clone)
    assert result.exit_code == 2
    assert "has commits of its own" in result.stderr
    assert upstream.state() == before


def test_a_revision_is_gone_to_and_come_back_from(upstream):
    first = git(upstream.folder, "rev-parse", "HEAD")
    second = upstream.edit(("block_size = 128", "block_size = 256"))
    update(upstream.clone, "--rev", second, "--no-verify")
    assert upstream.state()[:2] == (second, "HEAD")
    text = run("update", upstream.clone, "--rev", first[:10], "--no-verify").stdout
    assert f"{second[:12]} -> {first[:12]}; not verified; " in text
    assert upstream.state()[0] == first
    assert "128" in (upstream.package / "relu.py").read_text()
    for name in ("no-such-branch", "--upload-pack=x"):
        result = run("update", upstream.clone, f"--rev={name}")
        assert result.exit_code == 2
        assert name in result.stderr


def test_sources_that_git_does_not_know_take_part(upstream):
    (upstream.clone / "own.cu").write_text(OTHER.replace("negate", "flip"))
    upstream.edit(("block_size = 128", "block_size = 256"))
    record = update(upstream.clone, "--no-verify")
    assert ("addition", "kernel-added", "flip_kernel") in kinds(record)
    assert "own" in {path.stem for path in upstream.package.glob("*.py")}
    assert run("generate", upstream.clone, "--check").exit_code == 0


def test_a_url_is_cloned_and_then_followed(upstream, tmp_path):
    url = f"file://{upstream.folder}"
    record = update(url, "--into", "tree", "--dry-run")
    assert not pathlib.Path("tree").exists()
    assert not record["written"]
    assert update(url, "--into", "tree", "--no-verify")["written"]
    assert pathlib.Path("tree/generated/layers.py").is_file()
    upstream.edit(("block_size = 128", "block_size = 256"))
    record = update(url, "--into", "tree", "--no-verify")
    assert kinds(record) == {("speed", "launch-configuration-changed", "relu_forward")}
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".tree")]

    assert run("update", "file:///no/such/place", "--into", "other").exit_code == 2
    assert not pathlib.Path("other").exists()
    assert "is no clone of" in run("update", "file:///no/such/place", "--into", "tree").stderr


def test_a_tree_is_updated_by_one_process_at_a_time(upstream):
    upstream.edit(("block_size = 128", "block_size = 256"))
    before = upstream.state()
    other = os.open(upstream.clone, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = run("update", upstream.clone, "--no-verify")
    finally:
        os.close(other)
    assert result.exit_code == 2
    assert "another `llmc2py update` is at work on it" in result.stderr
    assert upstream.state() == before
    assert update(upstream.clone, "--no-verify")["written"]


def test_a_clone_that_another_made_meanwhile_is_left(upstream, monkeypatch):
    def make(self: Move) -> None:
        pathlib.Path("tree").mkdir()
        pathlib.Path("tree/mine.txt").write_text("of another")

    monkeypatch.setattr(Move, "make", make)
    result = run("update", f"file://{upstream.folder}", "--into", "tree", "--no-verify")
    assert result.exit_code == 2
    assert "tree: was made by another while this ran" in result.stderr
    assert [path.name for path in pathlib.Path("tree").iterdir()] == ["mine.txt"]


def test_checks_of_code_that_passed_before_are_not_run_again(upstream, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "VERIFIED", Shelf(str(tmp_path / "verified"), 1 << 20))
    upstream.edit(("block_size = 128", "block_size = 256"))
    first = update(upstream.clone)
    assert (first["earlier"], first["written"]) == (0, True)
    upstream.edit(("block_size = 256", "block_size = 128"))
    assert 0 < update(upstream.clone)["earlier"] < first["checks"]  # the reference stays what it was
    upstream.edit(("block_size = 128", "block_size = 256"))
    text = run("update", upstream.clone, "--backend", "cpu").stdout
    checks = first["checks"]
    assert f"{checks} checks of ReLU passed ({checks} of them in earlier runs of the same code)" in text


@pytest.mark.parametrize("location", ["ext::sh -c true", "-oProxyCommand=x", "nowhere"])
def test_what_is_no_tree_and_no_url_is_refused(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    result = run("update", "--", location)
    assert result.exit_code == 2
    assert "no such folder" in result.stderr


def test_errors_name_what_the_user_gave_and_no_temporary_folder(upstream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = upstream.folder.as_uri()
    (upstream.clone / "bare").mkdir()
    git(upstream.clone / "bare", "init", "--quiet")
    upstream.commit({"relu.toml": "name = 3"})
    git(upstream.folder, "rm", "--quiet", "relu.cu", "other.cu", "relu.toml")
    head = upstream.commit({"notes": ""})
    for arguments, words in (
        (("update", f"{url}-not"), [f"{url}-not: git clone: "]),
        (("update", url, "--into", "new", "--rev", "nothing"), [f"{url}: git knows no revision nothing"]),
        (("update", url, "--into", "new"), [f"{url}@{head[:12]}: no .cu or .cuh file"]),
        (("update", url, "--into", "new", "--rev", "main~1"), ["relu.toml"]),
        (("update", url, "--into", upstream.clone / "bare"), [f"is there and is no clone of {url}"]),
        (("diff", f"{upstream.folder}@main", upstream.clone), [f"{upstream.folder}@main: no .cu or .cuh file"]),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert all(word in result.stderr for word in words), result.stderr
        assert not any(word in result.stderr for word in ("llmc2py-", ".new-", "/tree")), result.stderr
    assert not list(tmp_path.glob("new"))


def test_a_folder_that_is_no_work_tree_is_refused(tmp_path):
    result = run("update", tmp_path)
    assert result.exit_code == 2
    assert "not the root of a git work tree" in result.stderr


# --- diff


def test_diff_of_revisions_packages_and_sources(upstream):
    old = git(upstream.clone, "rev-parse", "HEAD")
    upstream.edit(("block_size = 128", "block_size = 256"))
    git(upstream.clone, "pull", "--quiet")
    new = git(upstream.clone, "rev-parse", "HEAD")
    same = run("diff", f"{upstream.clone}@{old}", f"{upstream.clone}@{old}")
    assert (same.exit_code, same.stdout.splitlines()[-1].rpartition(": ")[2]) == (0, "no changes")
    for one, other in (
        (f"{upstream.clone}@{old}", f"{upstream.clone}@{new}"),
        (upstream.package, upstream.clone),
        (upstream.package, f"{upstream.clone}@main"),
    ):
        result = run("diff", one, other)
        assert result.exit_code == 1
        assert "Speed only (1)" in result.stdout
        assert "    was relu_kernel[ceil_div(n, 128), 128]" in result.stdout
        assert "    now relu_kernel[ceil_div(n, 256), 256]" in result.stdout
    record = json.loads(run("diff", upstream.package, upstream.clone, "--json").stdout)
    assert record["counts"] == {"breaking": 0, "numbers": 0, "speed": 1, "addition": 0, "cosmetic": 0}
    markdown = run("diff", upstream.package, upstream.clone, "--markdown").stdout
    assert "## Speed only (1)" in markdown
    assert "  - now `relu_kernel[ceil_div(n, 256), 256]`" in markdown


def test_diff_reads_a_folder_below_the_root_of_a_work_tree(upstream):
    below = upstream.folder / "below"
    below.mkdir()
    upstream.commit({"below/b.cu": OTHER})
    upstream.commit({"below/b.cu": OTHER.replace("-inp[i]", "0.0f - inp[i]")})
    record = json.loads(run("diff", f"{below}@HEAD~1", f"{below}@HEAD", "--json").stdout)
    assert kinds(record) == {("numbers", "body-changed", "negate_kernel")}


@pytest.mark.parametrize(
    ("old", "message"),
    [("nowhere", "no such folder"), ("nowhere@main", "no such folder"), ("clone@nothing", "no revision nothing")],
)
def test_diff_says_what_it_cannot_read(upstream, old, message):
    result = run("diff", old, upstream.clone)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("lock", "message"),
    [("{", "cannot be read"), ('{"schema": 1}', "has schema 1"), ('{"schema": 2, "kernels": []}', "is damaged")],
)
def test_diff_says_what_is_wrong_with_a_lock(upstream, lock, message):
    (upstream.package / LOCK_NAME).write_text(lock)
    result = run("diff", upstream.package, upstream.clone)
    assert result.exit_code == 2
    assert message in result.stderr
