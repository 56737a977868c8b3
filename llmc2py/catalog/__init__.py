"""The catalogue: one TOML file per op. See ``CONTRIBUTING.md`` for how to write one."""

from __future__ import annotations

import pathlib
import re
import tomllib
from dataclasses import replace
from importlib import resources
from typing import Any

from llmc2py.catalog.places import find_places
from llmc2py.catalog.schema import LAYER, problems_of
from llmc2py.diagnostics import SourceSpan, UsageError
from llmc2py.ir.catalog import CatalogEntry, KeyPath, PassEntry, Place, Places, Replacement
from llmc2py.ir.plans import ArraySpec, CReferenceCall, OptionSpec, VariantCall

_KEYS = LAYER.required.keys() | LAYER.optional.keys()


def builtin_entries() -> tuple[CatalogEntry, ...]:
    """Return the entries that come with llmc2py, by name."""
    folder = resources.files(__name__)
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    texts = {f"catalog/{item.name}": item.read_text(encoding="utf-8") for item in files}
    return tuple(replace(parse_entry(text, file), is_builtin=True) for file, text in texts.items())


def builtin_replacements() -> list[Replacement]:
    """Return the launchers that functions of the runtime stand for."""
    folder = resources.files(__name__) / "replaced"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    tables = [table for item in files for table in tomllib.loads(item.read_text(encoding="utf-8"))["replacement"]]
    return [Replacement(one["launcher"], one["source"], one["function"], tuple(one["uses"])) for one in tables]


def is_entry(path: pathlib.Path) -> bool:
    """Whether a file is meant to be an entry: it shares a key with entries, or cannot be read, which is to be told."""
    try:
        return not _KEYS.isdisjoint(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return True


def read_entry(path: pathlib.Path) -> CatalogEntry:
    """Read one entry. Raises UsageError for a file that is missing, no TOML, or no entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the catalogue entry cannot be read: {error}") from error
    return parse_entry(text, path.name)


def parse_entry(text: str, file: str) -> CatalogEntry:
    """Parse the text of one entry.

    Raises UsageError with a line for each value that is not what its key takes: its place, what it is, what is wanted.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_not_toml(text, file, str(error))) from error
    places = Places(file, lambda: _places(text, table))
    if problems := problems_of(table):
        raise UsageError("\n".join(f"{places.at(*path)}: {message}" for path, message in problems))
    return _entry(table, places)


def _not_toml(text: str, file: str, reason: str) -> str:
    """Return the message of `tomllib` with the place, which it has at the end, in front."""
    found = re.fullmatch(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", reason)
    if found is None:
        return f"{SourceSpan(file, 1)}: not TOML: {reason}"
    line = int(found["line"] or text.count("\n") + 1)
    return f"{SourceSpan(file, line, int(found['column'] or 1))}: not TOML: {found['what']}"


def _places(text: str, table: dict[str, Any]) -> tuple[dict[KeyPath, Place], dict[KeyPath, Place]]:
    """Return where keys stand, and where texts begin, blank lines and blanks at the beginning apart."""
    keys, strings = find_places(text)
    found = {}
    for path, (line, column) in strings.items():
        value: Any = table
        for key in path:
            value = value[key]
        blank = value[: len(value) - len(value.lstrip())]
        lines, _, indent = blank.rpartition("\n")
        below = blank.count("\n")
        found[path] = (line + below, len(indent) + 1 if below else column + len(lines + indent))
    return keys, found


def _entry(table: dict[str, Any], places: Places) -> CatalogEntry:
    """Return the entry of a table in which each value is what its key takes."""
    reference, sizes = table["reference"], table.get("sizes", {})
    return CatalogEntry(
        file=places.file,
        name=table["name"],
        layer=table.get("layer", ""),
        summary=table["summary"],
        details=table.get("details", ""),
        source=table["source"],
        launchers=tuple(table.get("launchers", ())),
        kernels=tuple(table.get("kernels", ())),
        uses=tuple(table.get("uses", ())),
        inputs=_arrays(table["inputs"]),
        parameters=_arrays(table.get("parameters", {})),
        outputs=_arrays(table["outputs"]),
        forward=_pass(table.get("forward", {"recipe": ""})),
        backward=_pass(table.get("backward", {"recipe": ""})),
        extents={
            name: {key: _alternatives(value) for key, value in extents.items()}
            for name, extents in table.get("extents", {}).items()
        },
        reference_forward=reference["forward"].strip(),
        reference_backward=reference.get("backward", "").strip(),
        c_references=tuple(
            CReferenceCall(item["function"], item["file"], item["call"], tuple(item.get("zeros", ())))
            for item in reference.get("c", ())
        ),
        fast_sizes=table.get("fast_sizes", "all"),
        reduction=tuple(reference.get("reduction", "").split()),
        places=places,
        variants=tuple(_variant(item) for item in table.get("variants", ())),
        sizes=tuple((letter, str(size)) for letter, size in sizes.items() if letter != "lead"),
        lead=tuple(sizes.get("lead", "").split()),
        options=_options(table.get("options", {})),
        intermediates=_arrays(table.get("intermediates", {})),
        cases=tuple(dict(case) for case in table.get("cases", ())),
        precisions=tuple(table.get("precisions", ())),
        stochastic=tuple(table.get("backward", {}).get("stochastic", ())),
        either_way=reference.get("either_way", False),
        wide=tuple(table.get("wide", ())),
        autocast=table.get("autocast", "widest"),
    )


def _options(table: dict[str, Any]) -> tuple[OptionSpec, ...]:
    """``NH = { type = "int", doc = "..." }``: without a default, it is given where the layer is made."""
    return tuple(
        OptionSpec(
            name,
            one["type"],
            _python(one["default"]) if "default" in one else None,
            one.get("doc", ""),
            one.get("least"),
            tuple(one.get("choices", ())),
        )
        for name, one in table.items()
    )


def _python(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and value.isidentifier() else repr(value)


def _variant(item: dict[str, Any]) -> VariantCall:
    return VariantCall(
        item["file"],
        item["launchers"],
        item["reference"],
        item["call"].strip(),
        tuple(item.get("blocks", ())),
        tuple(item.get("precisions", ())),
        tuple(item.get("zeros", ())),
    )


def _alternatives(value: object) -> tuple[str, ...]:
    """``"N"`` or ``["N", "B * T * C"]``: the first that a launcher's parameters allow counts."""
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _arrays(table: dict[str, Any]) -> tuple[ArraySpec, ...]:
    specs = {name: {"shape": value} if isinstance(value, str) else value for name, value in table.items()}
    return tuple(ArraySpec(name, **(spec | {"shape": tuple(spec["shape"].split())})) for name, spec in specs.items())


def _pass(table: dict[str, Any]) -> PassEntry:
    return PassEntry(table["recipe"].strip(), tuple(table.get("saves", ())), tuple(table.get("gradients", {}).items()))
