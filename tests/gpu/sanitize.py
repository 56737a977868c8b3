"""Every layer forward and backward on CUDA, for compute-sanitizer: no test runner, no memory pool, the smaller shapes.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py [--largest N] [LAYER ...]

With names of layers of `generated`, these alone: the tools are slow, and several can run side by side.

Each array is an allocation of its own, so that an access beyond one is seen. Results are compared as `verify` does.
"""

from __future__ import annotations

import importlib
import math
import pathlib
import sys
from collections.abc import Sequence

import click

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from llmc2py.runtime.layer import OpSpec
from llmc2py.verify.cases import Case, cases_for
from llmc2py.verify.report import verify_package


def run(layers: Sequence[str], largest: int) -> int:
    """Run layers, or all, on inputs of so many elements at most; return how many checks failed."""
    import cupy

    cupy.cuda.set_allocator(None)
    references = importlib.import_module("generated.references").REFERENCES

    def small(spec: OpSpec) -> list[Case]:
        cases = cases_for(spec, references[spec.name])
        return [case for case in cases if sum(math.prod(case.shape(dims)) for dims in spec.inputs.values()) <= largest]

    # One thread: with several, some layers stood still under racecheck.
    rows = verify_package("generated", "cuda", layers, cases=small, variants=False, workers=1)
    failed = [row for row in rows if not row.ok]
    for row in failed:
        print(row)
    print(f"{' '.join(layers) or 'all layers'}: {len(rows)} checks, {len(failed)} failed")
    return len(failed)


@click.command()
@click.argument("layers", nargs=-1)
@click.option("--largest", default=40_000, show_default=True, help="The most elements that the inputs of a case have.")
def main(layers: tuple[str, ...], largest: int) -> None:
    """Run layers, by default all, forward and backward; exit with 1 where a check fails."""
    sys.exit(1 if run(layers, largest) else 0)


if __name__ == "__main__":
    main()
