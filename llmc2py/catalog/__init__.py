"""The catalogue: one TOML file per op. See ``CONTRIBUTING.md`` for how to write one."""

from __future__ import annotations

import pathlib
import re
import tomllib
from importlib import resources
from typing import Any

from llmc2py.diagnostics import UsageError
from llmc2py.ir.catalog import CatalogEntry, PassEntry, Replacement
from llmc2py.ir.plans import ArraySpec, CReferenceCall, OptionSpec, VariantCall

_KEYS = frozenset(
    {"name", "layer", "summary", "details", "source", "launchers", "kernels", "uses", "inputs", "parameters",
     "outputs", "forward", "backward", "extents", "reference", "fast_sizes", "variants", "sizes", "options",
     "intermediates", "cases", "precisions", "wide", "autocast"}
)  # fmt: skip
_REQUIRED = ("name", "layer", "summary", "source", "inputs", "outputs", "forward", "reference")
#: An entry without a layer, of which launchers alone are checked.
_CHECK_KEYS = frozenset({"name", "summary", "source", "inputs", "outputs", "extents", "reference", "variants", "sizes"})
_CHECK_REQUIRED = ("name", "summary", "source", "inputs", "outputs", "reference", "variants", "sizes")
_AUTOCAST = ("lower", "float32", "widest")
_OPTION_KINDS = ("int", "float", "bool", "str")
_VARIANT_KEYS = frozenset({"file", "launchers", "reference", "call", "blocks", "precisions", "zeros"})


def builtin_entries() -> list[CatalogEntry]:
    """Return the entries that come with llmc2py, by name."""
    folder = resources.files(__name__)
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    return [parse_entry(item.read_text(encoding="utf-8"), f"catalog/{item.name}") for item in files]


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
    """Parse the text of one entry. Raises UsageError that names the file and the key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not TOML: {error}") from error
    is_check = "sizes" in table and "layer" not in table
    required, allowed = (_CHECK_REQUIRED, _CHECK_KEYS) if is_check else (_REQUIRED, _KEYS)
    missing = [key for key in required if key not in table]
    unknown = sorted(set(table) - allowed)
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown keys {', '.join(unknown)}"] * bool(
            unknown
        )
        raise UsageError(f"{file}: the catalogue entry {' and '.join(said)}")
    try:
        return _entry(table, file, _recipe_lines(text))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{file}: the catalogue entry is malformed: {error!r}") from error


def _entry(table: dict[str, Any], file: str, lines: dict[str, int]) -> CatalogEntry:
    reference = table["reference"]
    return CatalogEntry(
        file=file,
        name=_identifier(table["name"]),
        layer=_identifier(table["layer"]) if "layer" in table else "",
        summary=str(table["summary"]),
        details=str(table.get("details", "")),
        source=str(table["source"]),
        launchers=tuple(map(str, table.get("launchers", ()))),
        kernels=tuple(map(str, table.get("kernels", ()))),
        uses=tuple(map(str, table.get("uses", ()))),
        inputs=_arrays(table["inputs"]),
        parameters=_arrays(table.get("parameters", {})),
        outputs=_arrays(table["outputs"]),
        forward=_pass(table.get("forward", {"recipe": ""}), lines.get("forward", 1)),
        backward=_pass(table.get("backward", {"recipe": ""}), lines.get("backward", 1)),
        extents={
            name: {key: _alternatives(value) for key, value in extents.items()}
            for name, extents in table.get("extents", {}).items()
        },
        reference_forward=str(reference["forward"]).strip(),
        reference_backward=str(reference.get("backward", "")).strip(),
        c_references=tuple(
            CReferenceCall(item["function"], item["file"], item["call"], tuple(item.get("zeros", ())))
            for item in reference.get("c", ())
        ),
        fast_sizes=str(table.get("fast_sizes", "all")),
        reduction=tuple(str(reference.get("reduction", "")).split()),
        variants=tuple(_variant(item) for item in table.get("variants", ())),
        sizes=tuple(
            (_identifier(letter), str(size)) for letter, size in table.get("sizes", {}).items() if letter != "lead"
        ),
        lead=tuple(str(table.get("sizes", {}).get("lead", "")).split()),
        options=_options(table.get("options", {})),
        intermediates=_arrays(table.get("intermediates", {})),
        cases=tuple(dict(case) for case in table.get("cases", ())),
        precisions=tuple(map(str, table.get("precisions", ()))),
        stochastic=tuple(map(str, table.get("backward", {}).get("stochastic", ()))),
        either_way=bool(reference.get("either_way", False)),
        wide=tuple(map(str, table.get("wide", ()))),
        autocast=_autocast(table.get("autocast", "widest")),
    )


def _autocast(value: object) -> str:
    if value not in _AUTOCAST:
        raise ValueError(f"autocast = {value!r} is none of {', '.join(_AUTOCAST)}")
    return str(value)


def _options(table: dict[str, Any]) -> tuple[OptionSpec, ...]:
    """``NH = { type = "int", doc = "..." }``: without a default, it is given where the layer is made."""
    found = []
    for name, value in table.items():
        if value["type"] not in _OPTION_KINDS:
            raise ValueError(f"option {name}: type is one of {', '.join(_OPTION_KINDS)}")
        default = _python(value["default"]) if "default" in value else None
        found.append(OptionSpec(_identifier(name), value["type"], default, str(value.get("doc", ""))))
    return tuple(found)


def _python(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) and value.isidentifier() else repr(value)


def _variant(item: dict[str, Any]) -> VariantCall:
    call = item["call"].strip()
    if item["reference"] not in ("forward", "backward") or not (call.startswith("(") and call.endswith(")")):
        raise ValueError(f"variant {item!r}: reference is forward or backward, call is (argument, ...)")
    if unknown := sorted(set(item) - _VARIANT_KEYS):
        raise ValueError(f"variant {item!r} has unknown keys {', '.join(unknown)}")
    return VariantCall(
        str(item["file"]),
        str(item["launchers"]),
        item["reference"],
        call,
        tuple(map(int, item.get("blocks", ()))),
        tuple(map(str, item.get("precisions", ()))),
        tuple(map(str, item.get("zeros", ()))),
    )


def _alternatives(value: object) -> tuple[str, ...]:
    """``"N"`` or ``["N", "B * T * C"]``: the first that a launcher's parameters allow counts."""
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _identifier(value: object) -> str:
    if not (isinstance(value, str) and value.isidentifier()):
        raise ValueError(f"{value!r} is no name")
    return value


def _arrays(table: dict[str, Any]) -> tuple[ArraySpec, ...]:
    found = []
    for name, value in table.items():
        spec = {"shape": value} if isinstance(value, str) else value
        shape = tuple(spec["shape"].split())
        found.append(
            ArraySpec(
                _identifier(name),
                shape,
                spec.get("doc", ""),
                init=spec.get("init"),
                below=spec.get("below"),
                positive=bool(spec.get("positive", False)),
                dtype=spec.get("dtype"),
                optional=bool(spec.get("optional", False)),
                when=spec.get("when"),
                otherwise=spec.get("otherwise"),
            )
        )
    return tuple(found)


def _recipe_lines(text: str) -> dict[str, int]:
    """Return the line that the recipe of each pass begins in, where it is written as a key of the pass's table."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[(\w+)\]", line):
            table = header[1]
        elif key := re.match(r"\s*recipe\s*=\s*(?P<quotes>\"{3}|'{3}|)(?P<rest>.*)", line):
            is_below = key["quotes"] and not key["rest"].strip()
            found[table] = number + 1 if is_below else number
    return found


def _pass(table: dict[str, Any], line: int) -> PassEntry:
    gradients = tuple((str(key), str(value)) for key, value in table.get("gradients", {}).items())
    recipe = str(table["recipe"])
    blank = recipe[: len(recipe) - len(recipe.lstrip())].count("\n")
    return PassEntry(recipe.strip(), tuple(map(str, table.get("saves", ()))), gradients, line + blank)
