"""Killed at any moment: ``generate`` over a valid package, ended by ``kill -9``, over and over.

Before each run a source is changed, so that nothing comes from the cache and all of it is written. Half of the kills
are spread over the whole run, the other half over the short time in which the package is put in its place. After each,
the package has to be whole (every file as its own lock notes it, and no others), to import and, every so often, to
verify; and no more may lie about than what one killed run leaves.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from llmc2py.caching import cache_root

RELU = Path(__file__).resolve().parent.parent / "examples" / "relu"
LOCK = "llmc2py.lock"
_LIMIT = 300.0


class Place:
    """A folder with a source tree, its package and a cache of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "src"
        self.output = folder / "out" / "generated"
        self.environment: Mapping[str, str] = os.environ | {"LLMC2PY_CACHE_DIR": str(folder / "cache")}
        self.source.mkdir()
        # Kernels that were compiled before are not compiled again: that is not what is killed here.
        (cache_root() / "host").mkdir(parents=True, exist_ok=True)
        (folder / "cache").mkdir()
        (folder / "cache" / "host").symlink_to((cache_root() / "host").resolve(), target_is_directory=True)
        for name in ("relu.cu", "relu.toml"):
            shutil.copyfile(RELU / name, self.source / name)
        self._text = (RELU / "relu.cu").read_text(encoding="utf-8")

    def change(self, number: int) -> None:
        """Make the source another one, of the same meaning."""
        extra = f"__global__ void unused_{number}(float* out) {{ out[0] = {number}; }}\n"
        (self.source / "relu.cu").write_text(self._text + extra, encoding="utf-8")

    def start(self) -> subprocess.Popen[bytes]:
        """Begin to generate."""
        command = [sys.executable, "-m", "llmc2py", "generate", str(self.source), "--output", str(self.output)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )

    def generate(self) -> float:
        """Generate to the end, and return the seconds that it took."""
        started = time.monotonic()
        with self.start() as run:
            _, said = run.communicate(timeout=_LIMIT)
        if run.returncode:
            raise AssertionError(f"generate: exit code {run.returncode}: {said.decode()}")
        return time.monotonic() - started

    def check(self, *, imports: bool = True, verify: bool = False) -> int:
        """Raise AssertionError where the package is not whole, or does not import; return which version it is of."""
        lock = json.loads((self.output / LOCK).read_text(encoding="utf-8"))
        found = {path.relative_to(self.output).as_posix(): path for path in self.output.rglob("*") if path.is_file()}
        present = {name for name in found if "__pycache__" not in name}
        if present != {LOCK, *lock["files"]}:
            raise AssertionError(f"not the files of the lock: {sorted(present)}")
        for name, digest in lock["files"].items():
            if hashlib.sha256(found[name].read_bytes()).hexdigest() != digest:
                raise AssertionError(f"{name} is of another version than the lock")
        if imports:
            self._run([sys.executable, "-B", "-c", "import generated.layers"], self.output.parent)
        if verify:
            self._run([sys.executable, "-m", "llmc2py", "verify", "--package", str(self.output)], self.folder)
        source = self.output / "relu_cu.cu"
        return int(source.read_text(encoding="utf-8").rpartition("unused_")[2].partition("(")[0])

    def _run(self, command: list[str], folder: Path) -> None:
        done = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, timeout=_LIMIT, check=False, text=True
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(command[1:])}: exit code {done.returncode}: {done.stdout}{done.stderr}")

    def litter(self) -> list[str]:
        """Return what lies beside the package and unfinished in the cache."""
        beside = [path.name for path in self.output.parent.iterdir() if path != self.output]
        parts = [path.name for path in (self.folder / "cache").rglob("*.part")]
        return sorted(beside + parts)


@contextmanager
def place() -> Iterator[Place]:
    """Give a place with a valid package in it, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="llmc2py-kills-") as folder:
        made = Place(Path(folder))
        made.change(0)
        made.generate()
        yield made


def _kill(run: subprocess.Popen[bytes]) -> None:
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=_LIMIT)


def kill_once(where: Place, chance: random.Random, took: float, *, aimed: bool) -> str:
    """Begin to generate and kill it, and return at what it was.

    ``aimed`` waits until the package begins to be written; otherwise it happens within ``took`` seconds.
    """
    run = where.start()
    if aimed:
        while run.poll() is None and not any(where.output.parent.glob(".*-new-*")):
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.02))
    else:
        time.sleep(chance.uniform(0, took))
    if run.poll() is not None:
        run.communicate()
        return "after its end"
    _kill(run)
    return "writing or after" if aimed else "anywhere"


def play(where: Place, count: int, seed: int, verify_every: int, import_every: int = 1) -> Iterator[tuple[int, str]]:
    """Kill that many runs, check after each, and give the version that the package is of and what was killed."""
    chance = random.Random(seed)
    where.change(count + 1)
    took = where.generate()
    for number in range(1, count + 1):
        where.change(number)
        what = kill_once(where, chance, took, aimed=number % 2 == 0)
        version = where.check(imports=number % import_every == 0, verify=number % verify_every == 0)
        litter = where.litter()
        # One run leaves its folder, its lock and one part of each kind of thing in the cache.
        if len(litter) > 5:
            raise AssertionError(f"leftovers pile up: {litter}")
        yield version, what
    where.change(count + 2)
    where.generate()
    if where.check(verify=True) != count + 2 or where.litter():
        raise AssertionError(f"after a run to the end: {where.litter()}")


@click.command()
@click.option("--count", default=1000, show_default=True, help="The number of kills.")
@click.option("--seed", default=0, show_default=True)
@click.option("--verify-every", default=50, show_default=True, help="After how many kills to run verify as well.")
def main(count: int, seed: int, verify_every: int) -> None:
    """Kill runs of generate; exit with 1 at the first after which the package is not whole."""
    seen: Counter[str] = Counter()
    former, moved = 0, 0
    with place() as where:
        try:
            for version, what in play(where, count, seed, verify_every):
                seen[what] += 1
                moved += version != former
                former = version
        except AssertionError as error:
            click.echo(f"after {seen.total() + 1} kills (seed {seed}): {error}")
            sys.exit(1)
    kinds = ", ".join(f"{number} {what}" for what, number in seen.most_common())
    click.echo(f"{count} kills ({kinds}): the package whole after each, new after {moved}; nothing piled up")


if __name__ == "__main__":
    main()
