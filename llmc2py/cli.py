"""The commands and their exit codes; what they do stands in ``pipeline``, ``listing`` and ``verify``.

Exit codes: 0 done; 1 differences, failures or errors in the source were found; 2 used wrongly or input that cannot be
read; 70 a bug of llmc2py.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import click

from llmc2py import __version__
from llmc2py.commandline import (
    FOUND,
    PATH,
    Commands,
    catalog_option,
    check_architectures,
    debug_option,
    json_option,
    only_option,
    verbose_option,
)


def _command(name: str) -> Callable[[Callable[..., int]], click.Command]:
    """Register a function, which returns its exit code, as a command with the options that all of them have."""

    def register(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            click.get_current_context().exit(function(*arguments, **options))

        return cli.command(name)(debug_option(json_option(run)))

    return register


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmc2py")
@debug_option
def cli() -> None:
    """Turn hand-written CUDA kernels into tested CuPy autograd layers."""


@_command("generate")
@click.argument("source", type=PATH)
@click.option(
    "--output", type=PATH, metavar="DIR",
    help="Where the package goes [default: generated; SOURCE/generated where SOURCE has catalogue entries].",
)  # fmt: skip
@catalog_option
@only_option("layers, source files and kernels")
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(["cupy", "torch", "tricycle"]),
    help="A framework to write layers for beside those on CuPy arrays; may be given several times "
    "[default: those that DIR was generated for].",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing; show how DIR differs and exit with 1 where it does.")
@click.option(
    "--force", is_flag=True,
    help="Write into a DIR that holds files of others: they stay, those with a generated file's name aside.",
)  # fmt: skip
@verbose_option
def generate(
    source: pathlib.Path,
    output: pathlib.Path | None,
    catalogs: tuple[pathlib.Path, ...],
    only: tuple[str, ...],
    targets: tuple[str, ...],
    check: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Read the CUDA sources under SOURCE and write a Python package of their kernels, launchers and layers."""
    from llmc2py import console, outputs, results, views
    from llmc2py.diagnostics import has_errors
    from llmc2py.emit.writer import diff_package, write_package

    output = output if output is not None else outputs.default_output(source)
    with console.Progress(f"reading {source}", quiet=as_json):
        asked = targets or outputs.former_targets(output)
        made = results.generate(results.Request(source, catalogs, only, tuple(asked)))
    difference = diff_package(output, outputs.as_committed_in(output, made.files)) if check else []
    if not check:
        write_package(output, made.files, force=force)
    record = made.summary
    if as_json:
        console.write_json(
            {"source": str(source), "output": str(output), "written": not check, "files": sorted(made.files)}
            | ({"differs": bool(difference), "diff": difference} if check else {})
            | record
        )
    else:
        views.show_diagnostics(made.diagnostics)
        for line in difference:
            console.write(line)
        if not check:
            views.show_summary(record, str(output), "written", verbose=verbose)
        elif not difference:
            views.show_summary(record, str(output), "is up to date", verbose=verbose)
        else:
            console.write_error(f"{output} is not what `llmc2py generate` writes from {source}")
    return FOUND if difference or has_errors(made.diagnostics) else 0


@_command("list")
@click.argument("source", type=PATH)
@catalog_option
@only_option("layers, source files and kernels")
def list_sources(source: pathlib.Path, catalogs: tuple[pathlib.Path, ...], only: tuple[str, ...], as_json: bool) -> int:
    """List the kernels, launchers and C references under SOURCE with their launch configurations."""
    from llmc2py import console, listing, results, views
    from llmc2py.diagnostics import has_errors

    with console.Progress(f"reading {source}", quiet=as_json):
        made = results.generate(results.Request(source, catalogs, only)).generated
    record = listing.listing(made)
    if as_json:
        console.write_json({"source": str(source)} | record)
    else:
        views.show_diagnostics(made.diagnostics)
        views.show_listing(record)
    return FOUND if has_errors(made.diagnostics) else 0


@_command("show")
@click.argument("source", type=PATH)
@click.argument("name")
@catalog_option
def show(source: pathlib.Path, name: str, catalogs: tuple[pathlib.Path, ...], as_json: bool) -> int:
    """Show all of NAME under SOURCE: signature, intents, launch configuration, slice and generated Python.

    NAME is that of a kernel, launcher, C reference, op or layer; FILE:NAME where several files have it.
    """
    from llmc2py import console, listing, results, views

    with console.Progress(f"reading {source}", quiet=as_json):
        made = results.generate(results.Request(source, catalogs)).generated
    found = listing.find(made, name)
    if as_json:
        console.write_json({"source": str(source), "name": name, "items": found})
    else:
        views.show_items(found)
    return 0


@_command("report")
@click.argument("source", type=PATH)
@click.option("--arch", "architectures", multiple=True, metavar="sm_XY", callback=check_architectures,
              help="A GPU architecture to compile for; may be given several times [default: sm_90].")  # fmt: skip
@click.option(
    "--precision", "precisions", multiple=True, type=click.Choice(["float32", "float16", "bfloat16"]),
    help="A precision to compile in; may be given several times [default: all].",
)  # fmt: skip
@click.option("--no-compile", is_flag=True, help="Compile nothing: say what is read and lowered alone.")
@catalog_option
@only_option("layers, source files and kernels")
def report(
    source: pathlib.Path,
    architectures: tuple[str, ...],
    precisions: tuple[str, ...],
    no_compile: bool,
    catalogs: tuple[pathlib.Path, ...],
    only: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say what of SOURCE can be used, and what not and why; exit with 1 where something is not accounted for."""
    from llmc2py import console, reporting, results, views

    with console.Progress(f"reading {source}", quiet=as_json) as progress:
        made = results.generate(results.Request(source, catalogs, only)).generated
        record = reporting.report(
            source,
            made,
            architectures=architectures or (reporting.DEFAULT_ARCHITECTURE,),
            precisions=precisions or reporting.ALL_PRECISIONS,
            compiles=not no_compile,
            progress=lambda done, total, row: progress.step(done, total, f"{row.kernel} {row.precision} {row.target}"),
        )
    if as_json:
        console.write_json({"source": str(source)} | record)
    else:
        views.show_report(record)
    return FOUND if record["unexplained"] else 0


@_command("verify")
@click.option("--package", default="generated", show_default=True, help="The generated package: a folder or a module.")
@click.option("--backend", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@only_option("layers")
@click.option("--again", is_flag=True, help="Run those checks too that passed in an earlier run of the same code.")
@verbose_option
def verify(package: str, backend: str, only: tuple[str, ...], again: bool, verbose: bool, as_json: bool) -> int:
    """Run every layer forward and backward against its references; exit with 1 where one fails.

    Checks that passed before, and that nothing changed for since, are not run but taken from there.
    """
    from llmc2py import console, views
    from llmc2py.verify.report import VerifyRow, resolve_backend, verify_package

    backend = resolve_backend(backend)
    with console.Progress(f"verifying {package}", quiet=as_json) as progress:

        def say(row: VerifyRow) -> None:
            progress.update(f"{row.layer} {row.precision} {row.shape}")

        rows = verify_package(package, backend, only, say, earlier="renewed" if again else "taken")
    failed = sum(not row.ok for row in rows)
    if as_json:
        console.write_json(
            {"package": package, "backend": backend, "checks": len(rows), "failed": failed}
            | {"earlier": sum(row.earlier for row in rows), "rows": [row.to_json() for row in rows]}
        )
    else:
        views.show_verification(rows, backend, verbose=verbose)
    return FOUND if failed else 0


_markdown_option = click.option("--markdown", is_flag=True, help="Write Markdown, as for a pull request.")


@_command("diff")
@click.argument("old")
@click.argument("new")
@_markdown_option
@catalog_option
@only_option("layers, source files and kernels")
def diff(
    old: str, new: str, markdown: bool, catalogs: tuple[pathlib.Path, ...], only: tuple[str, ...], as_json: bool
) -> int:
    """Say what changed from OLD to NEW, by what it means to callers; exit with 1 where anything did.

    Each is a folder of sources, PATH@REV for what it held at a git revision, or a generated package.
    """
    from llmc2py import console, views
    from llmc2py.drift import report as drift
    from llmc2py.upstream.sides import difference

    with console.Progress(f"comparing {old} and {new}", quiet=as_json):
        found = difference(old, new, catalogs, only)
    if as_json:
        console.write_json(drift.to_record(found.changes, old, new))
    else:
        views.show_diagnostics(found.diagnostics)
        console.write((drift.to_markdown if markdown else drift.to_text)(found.changes, old, new))
    return FOUND if found.changes else 0


@_command("update")
@click.argument("location", metavar="[PATH|GIT-URL]", default=".")
@click.option("--rev", metavar="REV", help="A branch, tag or commit [default: what the branch of the tree follows].")
@click.option("--into", type=PATH, metavar="DIR", help="Where a URL is cloned [default: the name in the URL].")
@click.option(
    "--output", type=PATH, metavar="DIR",
    help="Where the package is [default: generated; PATH/generated where PATH has catalogue entries].",
)  # fmt: skip
@catalog_option
@click.option("--backend", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--no-verify", is_flag=True, help="Do not run what changed against its references.")
@click.option("--dry-run", is_flag=True, help="Change nothing; exit with 1 where something would change.")
@_markdown_option
def update(
    location: str,
    rev: str | None,
    into: pathlib.Path | None,
    output: pathlib.Path | None,
    catalogs: tuple[pathlib.Path, ...],
    backend: str,
    no_verify: bool,
    dry_run: bool,
    markdown: bool,
    as_json: bool,
) -> int:
    """Bring a git work tree of sources to a revision, and its package with it; nothing is changed where a step fails.

    Exit with 1 where a check fails, a layer had to be left out or, with --dry-run, something would change.
    """
    from llmc2py import console, views
    from llmc2py.diagnostics import has_errors
    from llmc2py.upstream import texts, updating

    request = updating.Request(location, rev, into, output, catalogs, None if no_verify else backend, dry_run)
    with console.Progress(f"updating {location}", quiet=as_json) as progress:
        done = updating.update(request, progress.update)
    if as_json:
        console.write_json(texts.to_record(done))
    else:
        views.show_diagnostics(done.diagnostics)
        console.write(texts.to_markdown(done) if markdown else texts.to_text(done))
    would_change = dry_run and bool(done.changes)
    lacks = done.misfits or has_errors(done.diagnostics)
    return FOUND if done.failed or lacks or would_change else 0


@_command("doctor")
def doctor(as_json: bool) -> int:
    """Say which tools are here and how to get what is missing; exit with 1 where some do not fit together."""
    from llmc2py import console, views
    from llmc2py.runtime.environment import inspect

    with console.Progress("looking at this machine", quiet=as_json):
        findings = inspect()
    if as_json:
        console.write_json({"version": __version__, "findings": [dataclasses.asdict(item) for item in findings]})
    else:
        views.show_findings(findings)
    return FOUND if any(item.status == "warning" for item in findings) else 0


def main() -> None:
    """Run the command line; what is piped is UTF-8 whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    os.environ.setdefault("PYTHONUTF8", "1")
    try:
        cli(prog_name="llmc2py")
    finally:
        # At its end Python looks for garbage among all that there is: half a second after a large tree.
        gc.disable()
        gc.freeze()
