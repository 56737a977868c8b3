"""Mutated sources: whatever is deleted, doubled or swapped in a file, the rest of its tree is read and emitted.

Each input is a file of ``vendor/llm.c`` with some tokens and lines deleted, doubled or swapped, beside a file that is
left alone. It fails where an exception comes out, where it takes too long, where a kernel of the other file is gone,
where a kernel vanishes without a diagnostic, or where a Python file that is emitted does not parse.
"""

from __future__ import annotations

import ast
import functools
import multiprocessing
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from llmc2py.catalog import builtin_entries, builtin_replacements
from llmc2py.catalog.bindings import builtin_bound
from llmc2py.diagnostics import Severity
from llmc2py.drift.record import describe
from llmc2py.emit.render import render_package
from llmc2py.emit.targets import TARGETS
from llmc2py.frontend.reader import ReadCache, ReadUnit, library_of, read_unit
from llmc2py.ir.library import Library
from llmc2py.lower.modules import lower_library

TREE = Path(__file__).resolve().parent.parent / "vendor" / "llm.c"
UNTOUCHED = "dev/cuda/permute.cu"
#: CPU seconds that one file may take.
LIMIT = 10.0

_TOKEN = re.compile(r'[ \t]+|\n|//[^\n]*|"(?:\\.|[^"\\\n])*"|\w+|<<<|>>>|->|::|[<>=!+\-*/&|]=|&&|\|\||##|.', re.S)
_BOUNDS = r"(?:__launch_bounds__\s*\([\w\s,]*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(?!__launch_bounds__)(\w+)\s*\(")
_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


class TooSlowError(Exception):
    """A file took longer than the limit."""


@dataclass(frozen=True)
class Mutation:
    """One change: what is done to the tokens or lines at two places, given as parts of the whole from 0 to 1."""

    action: str
    unit: str
    place: float
    other: float

    def apply(self, text: str) -> str:
        """Return the changed text."""
        parts = text.splitlines(keepends=True) if self.unit == "line" else _TOKEN.findall(text)
        if not parts:
            return text
        first, second = (min(int(place * len(parts)), len(parts) - 1) for place in (self.place, self.other))
        if self.action == "delete":
            del parts[first]
        elif self.action == "duplicate":
            parts.insert(second, parts[first])
        else:
            parts[first], parts[second] = parts[second], parts[first]
        return "".join(parts)


def random_mutations(chance: random.Random) -> list[Mutation]:
    """Return one to six changes; half of their second places lie near the first."""
    found = []
    for _ in range(chance.randint(1, 6)):
        place = chance.random()
        other = place + chance.uniform(-0.01, 0.01) if chance.random() < 0.5 else chance.random()
        action, unit = chance.choice(("delete", "duplicate", "swap")), chance.choice(("token", "line"))
        found.append(Mutation(action, unit, place, min(max(other, 0.0), 1.0)))
    return found


def sources() -> list[str]:
    """Return the files that are mutated, by their names in the tree."""
    paths = [path for path in TREE.rglob("*") if path.suffix in (".cu", ".cuh")]
    return sorted(name for path in paths if (name := path.relative_to(TREE).as_posix()) != UNTOUCHED)


@functools.cache
def original(name: str) -> str:
    """Return the text of a file of the tree."""
    return (TREE / name).read_text(encoding="utf-8")


@functools.cache
def _shared() -> ReadCache:
    """Return a cache with the headers of the tree expanded, from which single files are read quickly."""
    cache = ReadCache()
    for name in ("dev/cuda/gelu_forward.cu", "llmc/gelu.cuh"):
        read_unit(TREE / name, TREE, cache)
    return cache


@functools.cache
def _untouched() -> ReadUnit:
    return read_unit(TREE / UNTOUCHED, TREE, _shared())


def _read(name: str, text: str) -> ReadUnit:
    """Read one file of the tree as if it held ``text``; the files that it includes are as they are."""
    shared = _shared()
    is_header = name.endswith(".cuh")
    headers = {} if is_header else dict(shared.headers)
    cache = ReadCache(shared.texts | {TREE / name: text}, headers, {} if is_header else dict(shared.items))
    return read_unit(TREE / name, TREE, cache)


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in what takes longer, in CPU time: other work on the machine does not count."""

    def stop(*_: object) -> None:
        raise TooSlowError(f"took more than {seconds} s")

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def check_text(name: str, text: str) -> None:
    """Read and emit a file as if it held ``text``; raises AssertionError, TooSlowError or what the program does."""
    with cpu_limit(LIMIT):
        unit = _read(name, text)
        library = library_of([unit, _untouched()], [])
        files = _emitted(library)
    kept = _untouched().file
    assert kept is not None
    assert unit.file is not None
    assert {kernel.span.origin for kernel in kept.kernels} <= {kernel.span.origin for kernel in library.kernels}
    emitted_kernels = "".join(text for path, text in files.items() if path.endswith(".py"))
    assert all(f'"{kernel.span.origin}"' in emitted_kernels for kernel in kept.kernels), "an untouched kernel is gone"
    if _directives(text) == _directives(original(name)) and not any(
        item.severity is not Severity.NOTE and item.span.file == name for item in unit.diagnostics
    ):
        lost = set(_KERNEL.findall(_NOT_CODE.sub(" ", text))) - {kernel.name for kernel in unit.file.kernels}
        assert not lost, f"vanished without a diagnostic: {sorted(lost)}"
    for path, emitted in files.items():
        if path.endswith(".py"):
            ast.parse(emitted, path)


def _directives(text: str) -> list[str]:
    """Return the conditionals and definitions of a text: where they change, kernels may rightly be left out."""
    return re.findall(r"^[ \t]*#[ \t]*(?:if|el|en|def|un).*", text, re.MULTILINE)


def _emitted(library: Library) -> dict[str, str]:
    plan, _ = lower_library(library, _entries(), builtin_replacements(), builtin_bound())
    describe(library, plan)
    files = render_package(plan)
    for target in TARGETS.values():
        files |= target(plan)
    return files


_entries = functools.cache(builtin_entries)


def without_includes(text: str) -> str:
    """Return a text whose includes are gone: it is read in a fraction of the time, and of its names few are known."""
    return re.sub(r"^#include.*$", "", text, flags=re.MULTILINE)


def mutate(text: str, mutations: list[Mutation]) -> str:
    """Apply changes one after the other."""
    for mutation in mutations:
        text = mutation.apply(text)
    return text


def mutated(seed: int) -> tuple[str, str]:
    """Return the name of a file and its text after the changes that a seed stands for."""
    chance = random.Random(seed)
    name = chance.choice(sources())
    return name, mutate(original(name), random_mutations(chance))


def failure_of(seed: int, check: Callable[[str, str], None] = check_text) -> tuple[int, float, str | None]:
    """Check the input of a seed: return the seed, the CPU seconds and the traceback of what came out, if anything."""
    name, text = mutated(seed)
    started = time.process_time()
    try:
        check(name, text)
        said = None
    except Exception:
        said = f"{name}\n{traceback.format_exc()}"
    return seed, time.process_time() - started, said


@click.command()
@click.option("--count", default=20_000, show_default=True, help="The number of inputs.")
@click.option("--first", default=0, show_default=True, help="The first seed: a failure is run again by its seed.")
@click.option("--jobs", default=2, show_default=True, help="Processes to run at once.")
def main(count: int, first: int, jobs: int) -> None:
    """Check inputs by seed; exit with 1 where one fails."""
    failed, longest = 0, (0.0, first)
    with multiprocessing.Pool(jobs, maxtasksperchild=500) as pool:
        for seed, took, said in pool.imap_unordered(failure_of, range(first, first + count)):
            longest = max(longest, (took, seed))
            if said is not None:
                failed += 1
                click.echo(f"seed {seed}: {said}")
    click.echo(f"{count} inputs, {failed} failed; the longest took {longest[0]:.1f} s of CPU time (seed {longest[1]})")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
