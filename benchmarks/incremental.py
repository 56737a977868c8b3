"""Change one file of a source tree after the other, and hold what is made with a cache against what is made without it.

Every source file, and every entry of a catalogue that is laid beside them, gets small changes: a comment, another body,
another launch configuration, parameters and functions with other names. After each, the package that is made with what
earlier runs have left in the cache has to be the one that is made without it, byte for byte. Exits with 1 where it is
not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import click

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from llmc2py import listing, pipeline
from llmc2py.frontend.sources import CUDA_SUFFIXES, HEADER_SUFFIXES
from llmc2py.ir.library import Library
from llmc2py.treecache import read_tree_once

_KERNEL = re.compile(r"__global__[^;{}]*?\b(\w+)\s*\(([^;{}]*)\)\s*\{")
_FUNCTION = re.compile(r"^[\w*&<> ]+?[ *&](\w+)\([^;{}]*\)\s*\{", re.M)
_BODY = re.compile(r"\)\s*\{\n")


def _commented(text: str) -> str | None:
    return f"// changed\n{text}"


def _with_body(text: str) -> str | None:
    changed = _BODY.sub(lambda found: f"{found[0]}    int added_here = 0; (void)added_here;\n", text, count=1)
    return changed if changed != text else None


def _with_configuration(text: str) -> str | None:
    return text.replace("<<<", "<<<1 + ", 1) if "<<<" in text else None


def _with_parameter(text: str) -> str | None:
    kernel = _KERNEL.search(text)
    names = re.findall(r"(\w+)\s*(?:,|$)", kernel[2]) if kernel else []
    return re.sub(rf"\b{names[-1]}\b", f"{names[-1]}_renamed", text) if names else None


def _with_kernel_name(text: str) -> str | None:
    kernel = _KERNEL.search(text)
    return re.sub(rf"\b{kernel[1]}\b", f"{kernel[1]}_renamed", text) if kernel else None


def _with_function_name(text: str) -> str | None:
    names = [found[1] for found in _FUNCTION.finditer(text) if "__global__" not in found[0]]
    return re.sub(rf"\b{names[-1]}\b", f"{names[-1]}_renamed", text) if names else None


def _with_summary(text: str) -> str | None:
    return re.sub(r'^summary = ".*"$', 'summary = "Changed."', text, count=1, flags=re.M)


def _with_recipe(text: str) -> str | None:
    changed = text.replace('recipe = """\n', 'recipe = """\nassert N > 0\n', 1)
    return changed if changed != text else None


def _with_wide(text: str) -> str | None:
    kernel = re.search(r"^kernels = (\[.*\])$", text, re.M)
    return text.replace(kernel[0], f"{kernel[0]}\nwide = {kernel[1]}") if kernel and "\nwide" not in text else None


def _without_extents(text: str) -> str | None:
    changed = re.sub(r"^\[extents\]\n(?:.+\n)+", "", text, flags=re.M)
    return changed if changed != text else None


CODE_CHANGES: dict[str, Callable[[str], str | None]] = {
    "comment": _commented,
    "body": _with_body,
    "configuration": _with_configuration,
    "parameter": _with_parameter,
    "kernel": _with_kernel_name,
    "function": _with_function_name,
}
CATALOG_CHANGES: dict[str, Callable[[str], str | None]] = {
    "summary": _with_summary,
    "recipe": _with_recipe,
    "wide": _with_wide,
    "extents": _without_extents,
}


@dataclass(frozen=True)
class Change:
    """A file of a tree with another text."""

    path: pathlib.Path
    kind: str
    text: str


def changes_of(path: pathlib.Path) -> Iterator[Change]:
    """Yield the small changes that a file admits."""
    text = path.read_text(errors="replace")
    for kind, change in (CATALOG_CHANGES if path.suffix == ".toml" else CODE_CHANGES).items():
        changed = change(text)
        if changed is not None:
            yield Change(path, kind, changed)


def _read_without_keys(root: pathlib.Path) -> Library:
    """Read a tree in which no file says what it was read from, so that nothing that is made of it is kept."""
    library = read_tree_once(root)
    return dataclasses.replace(library, files=tuple(dataclasses.replace(file, key="") for file in library.files))


class Comparison:
    """A copy of a source tree with the catalogue in its root."""

    def __init__(self, source: pathlib.Path, scratch: pathlib.Path, catalog: pathlib.Path | None = None) -> None:
        self.tree = scratch / "tree"
        shutil.copytree(source, self.tree, ignore=shutil.ignore_patterns(".git"))
        for path in catalog.glob("*.toml") if catalog is not None else ():
            shutil.copy(path, self.tree)
        self.seconds = 0.0

    def paths(self) -> list[pathlib.Path]:
        """Return the files that can be changed."""
        suffixes = CUDA_SUFFIXES | HEADER_SUFFIXES
        found = [path for path in self.tree.rglob("*") if path.suffix in suffixes]
        return sorted([*found, *self.tree.glob("*.toml")])

    def check(self) -> bool:
        """Generate with and without what earlier runs left; return whether both give the same."""
        started = time.process_time()
        one = self._generate()
        self.seconds = time.process_time() - started
        with mock.patch.object(pipeline, "read_tree_once", _read_without_keys):
            return one == self._generate()

    def _generate(self) -> tuple[object, ...]:
        made = pipeline.generate(self.tree)
        return made.files, made.diagnostics, made.plan, listing.summary(made), listing.listing(made)

    def check_changed(self, change: Change) -> bool:
        """Do the same with one file changed, which is taken back afterwards."""
        before = change.path.read_bytes()
        change.path.write_text(change.text)
        try:
            return self.check()
        finally:
            change.path.write_bytes(before)


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--catalog", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
              help="A folder of entries that are laid beside the sources and changed too.")  # fmt: skip
@click.option("--sample", type=int, help="Only so many changes, chosen at random but always the same.")
def main(source: pathlib.Path, catalog: pathlib.Path | None, sample: int | None) -> None:
    """Change each file of SOURCE, and compare what is generated with a cache and without."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="incremental-") as scratch:
        comparison = Comparison(source, pathlib.Path(scratch), catalog)
        changes = [change for path in comparison.paths() for change in changes_of(path)]
        if sample is not None and sample < len(changes):
            changes = random.Random(0).sample(changes, sample)
        failed += not comparison.check()
        for number, change in enumerate(changes, 1):
            is_same = comparison.check_changed(change)
            failed += not is_same
            place = change.path.relative_to(comparison.tree)
            click.echo(
                f"{number}/{len(changes)} {place}: {change.kind}: {comparison.seconds:.2f} s"
                f"{'' if is_same else ' DIFFERENT'}"
            )
    click.echo(f"{failed} of {len(changes) + 1} differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
