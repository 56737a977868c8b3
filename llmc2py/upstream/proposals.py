"""Catalogue entries that no longer fit their source, and what they could become."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmc2py.diagnostics import Diagnostic, Severity
from llmc2py.drift.matching import file_of, name_of
from llmc2py.drift.parameters import match_parameters
from llmc2py.drift.snapshot import Snapshot
from llmc2py.drift.subjects import signature
from llmc2py.ir.catalog import CatalogEntry

Record = dict[str, Any]
_RECIPE = re.compile(
    r"(?P<head>^recipe\s*=\s*(?P<quotes>\"{3}|'{3})\n?)(?P<text>.*?)(?P<tail>(?P=quotes))", re.S | re.M
)
_LISTS = re.compile(r"^(?:launchers|kernels|uses|source)\s*=.*$", re.M)


@dataclass(frozen=True)
class Callee:
    """A kernel or launcher that an entry uses, before and after; None where it is not there."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Misfit:
    """An entry whose layer had to be left out: why, how what it uses changed, and the entry as it may have to be.

    ``fits`` says whether a package with the proposed entry has the layer again; that its numbers are right is for
    verification to say.
    """

    entry: str
    file: str
    layer: str
    reason: str
    callees: tuple[Callee, ...]
    proposed: str | None
    fits: bool = False


@dataclass(frozen=True)
class _Change:
    """What became of a callee: its new name, and for each new parameter the index of the old one or the new name."""

    name: str
    file: str
    arguments: tuple[int | str, ...]


def misfits(
    entries: Iterable[CatalogEntry],
    texts: Mapping[str, str],
    diagnostics: Sequence[Diagnostic],
    old: Snapshot,
    new: Snapshot,
    renamed: Mapping[str, str],
) -> Iterator[Misfit]:
    """Yield the entries whose layers the old package had and the new one has not.

    ``texts`` are the texts of entries by name; ``renamed`` gives the new ``file:name`` of what was renamed or moved.
    """
    for entry in entries:
        if not entry.layer or entry.layer not in old.layers or entry.layer in new.layers:
            continue
        said = [
            item.message for item in diagnostics if item.severity is Severity.ERROR and item.span.file == entry.file
        ]
        reason = said[0] if said else f"{entry.source} is not in the source any more, or has nothing that is needed"
        callees = tuple(_callees(entry, old, new, renamed))
        proposed = _proposal(entry, texts[entry.name], old, new, renamed) if entry.name in texts else None
        yield Misfit(entry.name, entry.file, entry.layer, reason, callees, proposed)


def _keys(entry: CatalogEntry) -> list[str]:
    """Return ``file:name`` of all that an entry uses."""
    keys = [f"{entry.source}:{name}" for name in (*entry.launchers, *entry.kernels)]
    for item in entry.uses:
        file, _, name = item.rpartition(":")
        keys.append(f"{file or entry.source}:{name}")
    return list(dict.fromkeys(keys))


def _callees(entry: CatalogEntry, old: Snapshot, new: Snapshot, renamed: Mapping[str, str]) -> Iterator[Callee]:
    for key in _keys(entry):
        before, later = _find(old, key), renamed.get(key, key)
        after = _find(new, later)
        spelled = [
            signature(one, record) if record is not None else None for one, record in ((key, before), (later, after))
        ]
        if spelled[0] != spelled[1] or key != later:
            yield Callee(
                key, spelled[0], f"{file_of(later)}: {spelled[1]}" if file_of(key) != file_of(later) else spelled[1]
            )


def _find(snapshot: Snapshot, key: str) -> Record | None:
    return snapshot.launchers.get(key) or snapshot.kernels.get(key)


def _proposal(entry: CatalogEntry, text: str, old: Snapshot, new: Snapshot, renamed: Mapping[str, str]) -> str | None:
    """Return the entry with names and arguments of calls as they now have to be; None where something is gone."""
    known = {one.name for one in (*entry.inputs, *entry.parameters, *entry.outputs)}
    known |= {letter for one in (*entry.inputs, *entry.parameters) for letter in one.shape if letter.isidentifier()}
    changes: dict[str, _Change] = {}
    for key in _keys(entry):
        later = renamed.get(key, key)
        before, after = _find(old, key), _find(new, later)
        if before is None or after is None:
            return None
        changes[name_of(key)] = _Change(name_of(later), file_of(later), tuple(_arguments(before, after, known)))
    files = {changes[name].file for name in (*entry.launchers, *entry.kernels) if name in changes}
    source = files.pop() if len(files) == 1 else entry.source
    text = _LISTS.sub(lambda found: _renamed(found[0], changes, entry.source, source), text)
    text = re.sub(r"^(\w+)(?=\s*=\s*\{)", lambda found: changes[found[1]].name if found[1] in changes else found[1],
                  text, flags=re.M)  # fmt: skip
    return _RECIPE.sub(lambda found: found["head"] + _recipe(found["text"], changes) + found["tail"], text)


def _arguments(before: Record, after: Record, known: set[str]) -> Iterator[int | str]:
    former = match_parameters(before["parameters"], after["parameters"])
    places = {one["name"]: index for index, one in enumerate(before["parameters"])}
    for one in after["parameters"]:
        if one["name"] in former:
            yield places[former[one["name"]]]
        else:
            yield one["name"] if one["name"] in known else f"TODO_{one['name']}"


def _renamed(line: str, changes: Mapping[str, _Change], old_source: str, new_source: str) -> str:
    line = line.replace(f'"{old_source}"', f'"{new_source}"')
    return re.sub(r"\b\w+\b", lambda found: changes[found[0]].name if found[0] in changes else found[0], line)


def _recipe(text: str, changes: Mapping[str, _Change]) -> str:
    """Rewrite the calls of a recipe from the last to the first, so that places stay right."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return text
    lines = textwrap.dedent(text).split("\n")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        new = _call(call, changes)
        if new is not None and call.lineno == call.end_lineno and call.end_col_offset is not None:
            line = lines[call.lineno - 1].encode()
            lines[call.lineno - 1] = (line[: call.col_offset] + new.encode() + line[call.end_col_offset :]).decode()
    return "\n".join(lines)


def _call(call: ast.Call, changes: Mapping[str, _Change]) -> str | None:
    """Return a call as it has to be; None where it calls nothing that changed."""
    match call:
        case ast.Call(func=ast.Name(id="elementwise"), args=[ast.Name(id=name), *arguments]) if name in changes:
            return f"elementwise({', '.join([changes[name].name, *_passed(arguments, changes[name])])})"
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in changes:
            return f"{changes[name].name}({', '.join(_passed(arguments, changes[name]))})"
        case ast.Call(func=ast.Subscript(value=ast.Name(id=name), slice=where), args=arguments) if name in changes:
            parts = where.elts if isinstance(where, ast.Tuple) else [where]
            configuration = ", ".join(ast.unparse(part) for part in parts)
            return f"{changes[name].name}[{configuration}]({', '.join(_passed(arguments, changes[name]))})"
    return None


def _passed(arguments: Sequence[ast.expr], change: _Change) -> list[str]:
    spelled = dict(enumerate(ast.unparse(one) for one in arguments))
    return [spelled.get(one, f"TODO_{one}") if isinstance(one, int) else one for one in change.arguments]
