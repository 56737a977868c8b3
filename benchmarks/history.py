"""Walk the history of a git repository of CUDA sources: read every commit, and compare it with its parent.

Each commit that touches a ``.cu`` or ``.cuh`` file is listed and compared. Nothing may crash, and every ``__global__``
function that a search of the plain text finds outside comments has to be read or to have a diagnostic. Written are a
table of counts (no code), a summary and a plot. Exits with 1 where something was lost.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import click

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks.outputs import Output
from llmc2py import listing, pipeline, results
from llmc2py.diagnostics import UsageError
from llmc2py.drift.compare import compare
from llmc2py.drift.snapshot import Snapshot, snapshot_of_files
from llmc2py.frontend.sources import find_sources

_CUDA = ("*.cu", "*.cuh")
#: Commits that a process takes at a time, at most: neighbours share what is read.
_RUN = 32
#: Sources that a process remembers, for commits with the same ones.
_KNOWN = 8
_BARE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*\)")
#: Changes after which a call of a kernel or launcher reads differently.
_SIGNATURE = ("parameter-", "parameters-", "template-")


@dataclasses.dataclass
class Row:
    """What one commit holds, in numbers, and how it differs from its parent."""

    commit: str
    date: str
    kernels: int = 0
    kernels_searched: int = 0
    kernels_lost: int = 0
    launchers: int = 0
    launch_sites: int = 0
    launch_sites_lowered: int = 0
    references: int = 0
    errors: int = 0
    breaking: int = 0
    numbers: int = 0
    speed: int = 0
    addition: int = 0
    cosmetic: int = 0
    signatures: int = 0
    seconds: float = 0.0
    crash: str = ""
    #: Names only: what changed its signature, and what was lost.
    changed: list[str] = dataclasses.field(default_factory=list)
    lost: list[str] = dataclasses.field(default_factory=list)


def plain_kernels(text: str) -> list[tuple[str, int]]:
    """Return the kernels that a text defines, by name and line, as a search finds them that knows no C++."""
    bare = _BARE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = []
    for match in re.finditer(r"\b__global__\b", bare):
        if bare[bare.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip().startswith("#"):
            continue
        header = re.match(r"[^{;]*", bare[match.end() :])
        assert header is not None
        is_definition = bare[match.end() + header.end() :].startswith("{")
        name = re.search(r"(\w+)\s*\(", _BOUNDS.sub("", header[0]))
        if is_definition and name is not None:
            found.append((name[1], bare.count("\n", 0, match.start()) + 1))
    return found


@dataclasses.dataclass(frozen=True)
class _Commit:
    """A commit of a repository, with its date and its first parent ("" where it has none)."""

    name: str
    date: str
    parent: str


class _Walker:
    """Looks at commits, one after the other, in a folder of its own."""

    def __init__(self, clone: pathlib.Path, scratch: pathlib.Path) -> None:
        self._clone = clone
        self._tree = scratch / "tree"
        self._index = scratch / "index"
        self._tree.mkdir()
        #: What the sources of a key hold, and the keys of the commits that were looked at last.
        self._known: dict[str, tuple[Snapshot | None, Row]] = {}
        self._keys: dict[str, str] = {}

    def visit(self, commit: _Commit) -> Row:
        """Return the row of a commit; an exception that nobody foresaw is noted in it."""
        started = time.perf_counter()
        try:
            before = self._look(commit.parent)[0] if commit.parent else None
            snapshot, row = self._look(commit.name)
            row = dataclasses.replace(row, commit=commit.name, date=commit.date)
            if snapshot is not None and before is not None:
                self._compare(before, snapshot, row)
        except Exception:
            row = Row(commit.name, commit.date, crash=traceback.format_exc())
        row.seconds = round(time.perf_counter() - started, 2)
        return row

    def _look(self, commit: str) -> tuple[Snapshot | None, Row]:
        """Return what a commit holds. It is read if its sources are not those of one that was looked at before."""
        key = self._keys.get(commit, "")
        if key in self._known:
            return self._known[key]
        environment = os.environ | {"GIT_INDEX_FILE": str(self._index), "GIT_WORK_TREE": str(self._tree)}
        _git(self._clone, "read-tree", "--reset", "-u", commit, environment=environment)
        try:
            key = results.key_of(results.Request(self._tree))[1] or commit
        except UsageError:
            return None, Row(commit, "")  # no CUDA source yet
        self._keys[commit] = key
        if key not in self._known:
            while len(self._known) > _KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._read(commit)
        return self._known[key]

    def _read(self, commit: str) -> tuple[Snapshot | None, Row]:
        row = Row(commit, "")
        try:
            made = pipeline.generate(self._tree)
        except UsageError:
            self._search(row, [], [])
            return None, row
        listed = listing.listing(made)
        said = [listing.diagnostic_record(item) for item in made.diagnostics]
        lost = {(item.launcher.span, item.launcher.name) for item in made.plan.not_lowered}
        row.kernels, row.launchers = len(listed["kernels"]), len(listed["launchers"])
        row.references = len(listed["references"])
        for one in made.library.launchers:
            row.launch_sites += one.launch_sites
            row.launch_sites_lowered += one.launch_sites if (one.span, one.name) not in lost else 0
        row.errors = sum(item["severity"] == "error" for item in said)
        self._search(row, listed["kernels"], said)
        return snapshot_of_files(commit, made.files), row

    def _search(self, row: Row, kernels: list[dict[str, Any]], diagnostics: list[dict[str, Any]]) -> None:
        """Hold what was read against what a plain search finds."""
        read = {(item["file"], item["name"]) for item in kernels}
        with contextlib.suppress(UsageError):
            for path in find_sources(self._tree)[0]:
                file = path.relative_to(self._tree).as_posix()
                for name, line in plain_kernels(path.read_text(errors="replace")):
                    row.kernels_searched += 1
                    said = (item for item in diagnostics if item["file"] == file)
                    is_told = any(name in item["message"] or item["line"] == line for item in said)
                    if (file, name) not in read and not is_told:
                        row.lost.append(f"{file}:{line}: {name}")
        row.kernels_lost = len(row.lost)

    def _compare(self, before: Snapshot, after: Snapshot, row: Row) -> None:
        changes = compare(before, after)
        counts = collections.Counter(str(change.meaning) for change in changes)
        for meaning, count in counts.items():
            setattr(row, meaning, count)
        subjects = {
            f"{change.file}:{change.name}"
            for change in changes
            if change.kind.startswith(_SIGNATURE) and change.subject in ("kernel", "launcher")
        }
        row.signatures, row.changed = len(subjects), sorted(subjects)


def _git(folder: pathlib.Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    command = ["git", f"--git-dir={folder / '.git' if (folder / '.git').exists() else folder}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def _visit_all(clone: pathlib.Path, commits: Sequence[str]) -> list[Row]:
    lines = _git(clone, "log", "--no-walk=unsorted", "--format=%H %cs %P", *commits).splitlines()
    fields = [line.split(" ") for line in lines]
    found = [_Commit(name, date, parents[0]) for name, date, *parents in fields]
    with tempfile.TemporaryDirectory(prefix="history-") as scratch:
        walker = _Walker(clone, pathlib.Path(scratch))
        return [walker.visit(commit) for commit in found]


def walk(clone: pathlib.Path, commits: Sequence[str], jobs: int) -> Iterator[Row]:
    """Yield the rows of commits in their order, looked at in several processes."""
    length = max(1, min(_RUN, -(-len(commits) // jobs)))
    runs = [commits[start : start + length] for start in range(0, len(commits), length)]
    with ProcessPoolExecutor(jobs) as pool:
        for rows in pool.map(_visit_all, [clone] * len(runs), runs):
            yield from rows


# --- what is written


def write_table(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Write the counts of every commit as CSV."""
    columns = [item.name for item in dataclasses.fields(Row) if item.name not in ("changed", "lost", "crash")]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(row, column) for column in columns] for row in rows)


def write_summary(path: pathlib.Path, rows: Sequence[Row], jobs: int) -> None:
    """Write what came out as Markdown."""
    first, last = rows[0], rows[-1]
    signatures = [row for row in rows if row.signatures]
    lines = [
        "# The history of llm.c, read commit by commit",
        "",
        "`benchmarks/history.py CLONE` reads every commit of karpathy/llm.c that touches a `.cu` or `.cuh` file, lists",
        "it, and compares it with its parent as `llmc2py diff` does. A search of the text for `__global__` outside",
        f"comments says which kernels there are. Counts of each commit: [{path.stem}.csv]({path.stem}.csv).",
        "",
        "| | |",
        "| --- | --- |",
        f"| commits | {len(rows)}, from {first.date} to {last.date} |",
        f"| crashes | {sum(bool(row.crash) for row in rows)} |",
        f"| kernels that the search finds, over all commits | {sum(row.kernels_searched for row in rows)} |",
        f"| of these neither read nor reported | {sum(row.kernels_lost for row in rows)} |",
        f"| launch sites, over all commits | {sum(row.launch_sites for row in rows)} |",
        f"| of these in launchers that are lowered | {sum(row.launch_sites_lowered for row in rows)} |",
        f"| commits that change a signature | {len(signatures)} |",
        f"| commits that change numbers | {sum(bool(row.numbers) for row in rows)} |",
        f"| commits that are cosmetic or change no code | {sum(_is_quiet(row) for row in rows)} |",
        f"| time | {sum(row.seconds for row in rows) / 60 / jobs:.1f} minutes in {jobs} processes |",
        "",
        f"![kernels and coverage over time]({path.stem}.svg)",
        "",
        "## Commits at which a signature changed",
        "",
        "Parameters or template parameters of a kernel or launcher were added, dropped, retyped, renamed or moved.",
        "",
        "| commit | date | signatures | of |",
        "| --- | --- | --- | --- |",
        *(f"| {row.commit[:12]} | {row.date} | {row.signatures} | {_names(row.changed)} |" for row in signatures),
    ]
    path.write_text("\n".join(lines) + "\n")


def _is_quiet(row: Row) -> bool:
    return not (row.breaking or row.numbers or row.speed or row.addition or row.crash)


def _names(changed: Sequence[str], limit: int = 4) -> str:
    names = list(dict.fromkeys(item.rpartition(":")[2] for item in changed))
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def write_plot(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Draw kernels, launch sites and the share of these that is lowered, commit by commit. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = path.stem
    from matplotlib import pyplot

    numbers = range(1, len(rows) + 1)
    figure, (counts, shares) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    counts.plot(numbers, [row.kernels_searched for row in rows], label="kernels in the text", linewidth=3, alpha=0.3)
    counts.plot(numbers, [row.kernels for row in rows], label="kernels read")
    counts.plot(numbers, [row.launch_sites for row in rows], label="launch sites")
    counts.set_ylabel("count")
    counts.legend()
    shares.plot(numbers, [_percent(row.kernels, row.kernels_searched) for row in rows], label="kernels read")
    shares.plot(
        numbers, [_percent(row.launch_sites_lowered, row.launch_sites) for row in rows], label="launch sites lowered"
    )
    shares.set(xlabel="commit that touches a .cu or .cuh file", ylabel="%", ylim=(0, 105))
    shares.legend()
    figure.savefig(path, metadata={"Date": None})


def _percent(part: int, whole: int) -> float:
    return 100 * min(part, whole) / whole if whole else 100.0


def _kept(path: pathlib.Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {row.commit: row for row in rows}


@click.command()
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--revision", default="HEAD", show_default=True, help="Where the history ends.")
@click.option("--last", type=int, help="Only so many commits, the newest.")
@click.option("--jobs", type=int, default=2, show_default=True, help="Processes.")
@click.option(
    "--rows", type=click.Path(path_type=pathlib.Path),
    help="Keep what is found here, a line for each commit; commits that are there already are not looked at again.",
)  # fmt: skip
@click.option(
    "--output",
    type=Output(file_okay=False, plotted=True),
    help="Write history.md, .csv and .svg to a folder. Needs matplotlib.",
)
def main(
    clone: pathlib.Path,
    revision: str,
    last: int | None,
    jobs: int,
    rows: pathlib.Path | None,
    output: pathlib.Path | None,
) -> None:
    """Read every commit of CLONE that touches a .cu or .cuh file, and compare it with its parent.

    The cache is LLMC2PY_CACHE_DIR, else a folder that is empty at first and gone at the end.
    """
    commits = _git(clone, "rev-list", "--reverse", revision, "--", *_CUDA).split()
    commits = commits[-last:] if last else commits
    known = _kept(rows)
    with tempfile.TemporaryDirectory(prefix="history-cache-") as cache, contextlib.ExitStack() as stack:
        os.environ.setdefault("LLMC2PY_CACHE_DIR", cache)
        os.environ["LLMC2PY_JOBS"] = "1"  # the processes are those of this script
        kept = stack.enter_context(rows.open("a")) if rows else None
        for row in walk(clone.resolve(), [commit for commit in commits if commit not in known], jobs):
            known[row.commit] = row
            click.echo(_line(len(known), len(commits), row))
            if kept is not None:
                kept.write(json.dumps(dataclasses.asdict(row)) + "\n")
                kept.flush()
    found = [known[commit] for commit in commits]
    if output is not None:
        write_table(output / "history.csv", found)
        write_summary(output / "history.md", found, jobs)
        write_plot(output / "history.svg", found)
    bad = [row for row in found if row.crash or row.lost]
    for row in bad:
        click.echo("\n".join([row.commit, row.crash, *row.lost]), err=True)
    sys.exit(1 if bad else 0)


def _line(done: int, total: int, row: Row) -> str:
    counts = f"{row.kernels}/{row.kernels_searched} kernels, {row.launch_sites_lowered}/{row.launch_sites} sites"
    end = "CRASH" if row.crash else "LOST" if row.lost else ""
    return f"{done}/{total} {row.commit[:12]} {row.date} {counts}, {row.seconds} s {end}".rstrip()


if __name__ == "__main__":
    main()
