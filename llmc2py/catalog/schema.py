"""What each key of an entry takes: the one table that entries are held to when they are read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from llmc2py.ir.catalog import KeyPath
from llmc2py.ir.conditions import PRECISIONS
from llmc2py.ir.names import is_name

Problem = tuple[KeyPath, str]


@dataclass(frozen=True)
class Plain:
    """A value without parts; ``wanted`` says what it has to be."""

    wanted: str
    accepts: Callable[[object], bool]

    def problems(self, value: object, path: KeyPath) -> Iterator[Problem]:
        if not self.accepts(value):
            yield path, f"{_dotted(path)} is {_shown(value)}; it takes {self.wanted}"


@dataclass(frozen=True)
class ListOf:
    """A list of which all items are of one kind."""

    item: Kind
    items: str

    @property
    def wanted(self) -> str:
        return f"a list of {self.items}"

    def problems(self, value: object, path: KeyPath) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield path, f"{_dotted(path)} is {_shown(value)}; it takes {self.wanted}"
            return
        for index, one in enumerate(value):
            yield from self.item.problems(one, (*path, index))


@dataclass(frozen=True)
class TableOf:
    """A table with keys that the entry chooses, names unless ``named`` says otherwise."""

    value: Kind
    wanted: str
    named: bool = True
    special: Mapping[str, Kind] = field(default_factory=dict)

    def problems(self, value: object, path: KeyPath) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield path, f"{_dotted(path)} is {_shown(value)}; it takes {self.wanted}"
            return
        for key, one in value.items():
            if self.named and not is_name(key):
                yield (*path, key), f"{_dotted(path)} has the key {json.dumps(key)}; it takes {NAME.wanted}"
            yield from self.special.get(key, self.value).problems(one, (*path, key))


@dataclass(frozen=True)
class Fields:
    """A table with keys of its own. ``short`` is what may stand in place of the whole table."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)
    short: Kind | None = None

    @property
    def wanted(self) -> str:
        keys = f"a table with {', '.join(self.required) or 'keys of its own'}"
        return f"{self.short.wanted}, or {keys}" if self.short is not None else keys

    def problems(self, value: object, path: KeyPath) -> Iterator[Problem]:
        if self.short is not None and isinstance(value, str):
            yield from self.short.problems(value, path)
            return
        if not isinstance(value, dict):
            yield path, f"{_dotted(path)} is {_shown(value)}; it takes {self.wanted}"
            return
        if missing := [key for key in self.required if key not in value]:
            yield path, f"{_dotted(path)} lacks {', '.join(missing)}"
        known = {**self.required, **self.optional}
        for key, one in value.items():
            if key in known:
                yield from known[key].problems(one, (*path, key))
            else:
                yield (*path, key), f"{_dotted(path)} has the unknown key {key}; {_like(key, known)}"


Kind = Plain | ListOf | TableOf | Fields


def _like(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"


def _dotted(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the catalogue entry"


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, (bool, str)):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else f'{text[:56]}..."'
    return str(value)


def _one_of(*values: str) -> Plain:
    return Plain(f"one of {', '.join(values)}", lambda value: value in values)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_AXIS = r"(?:\*|\d*[^\W\d]\w*(?:~[1-9]\d*)?|\d+)"


def _text(wanted: str, pattern: str) -> Plain:
    form = re.compile(pattern, re.S)
    return Plain(wanted, lambda value: isinstance(value, str) and form.fullmatch(value) is not None)


TEXT = Plain("text", lambda value: isinstance(value, str))
LINE = _text("text that is not empty", r".*\S.*")
NAME = Plain("a name that Python can use", is_name)
FLAG = Plain("true or false", lambda value: isinstance(value, bool))
INTEGER = Plain("a whole number", _is_integer)
SCALAR = Plain("a number, text, true or false", lambda value: isinstance(value, (bool, int, float, str)))
COUNT = Plain(
    "a whole number, or an expression as text",
    lambda value: _is_integer(value) or (isinstance(value, str) and bool(value.strip())),
)
SHAPE = _text(
    'the axes as text, * or letters, numbers and multiples such as 3C with blanks between them: "* C"',
    rf"\s*(?:{_AXIS}(?:\s+{_AXIS})*)?\s*",
)
CALL = _text('a call as text: "function(a, b)"', r"\s*\w+\s*\(.*\)\s*")
ARGUMENTS = _text('arguments in brackets as text: "(a, b)"', r"\s*\(.*\)\s*")
SYMBOL = _text("a name of the source", r"[^\W\d]\w*")
TEXTS, NAMES, SYMBOLS = ListOf(LINE, "texts"), ListOf(NAME, "names"), ListOf(SYMBOL, "names")
DTYPE = _one_of("float32", "int32", "boolean")
PRECISION = ListOf(_one_of(*PRECISIONS), "precisions")


class _Alternatives(ListOf):
    """A count, or several of which the first one that fits counts."""

    @property
    def wanted(self) -> str:
        return f"{COUNT.wanted}, or a list of such"

    def problems(self, value: object, path: KeyPath) -> Iterator[Problem]:
        yield from super().problems(value, path) if isinstance(value, list) else self._single(value, path)

    def _single(self, value: object, path: KeyPath) -> Iterator[Problem]:
        if not COUNT.accepts(value):
            yield path, f"{_dotted(path)} is {_shown(value)}; it takes {self.wanted}"


_ABOUT = {"doc": TEXT, "dtype": DTYPE}
_INPUT = Fields({"shape": SHAPE}, {**_ABOUT, "below": NAME, "positive": FLAG}, SHAPE)
_PARAMETER = Fields({"shape": SHAPE}, {**_ABOUT, "init": _one_of("ones", "zeros", "normal"), "optional": FLAG}, SHAPE)
_OUTPUT = Fields({"shape": SHAPE}, _ABOUT, SHAPE)
_INTERMEDIATE = Fields({"shape": SHAPE}, {**_ABOUT, "when": LINE, "otherwise": NAME}, SHAPE)
_OPTION = Fields(
    {"type": _one_of("int", "float", "bool", "str")},
    {"default": SCALAR, "least": INTEGER, "choices": ListOf(TEXT, "texts"), "doc": TEXT},
)
_C = Fields({"function": SYMBOL, "file": LINE, "call": CALL}, {"zeros": NAMES})
_VARIANT = Fields(
    {"file": LINE, "launchers": LINE, "reference": _one_of("forward", "backward"), "call": ARGUMENTS},
    {"blocks": ListOf(INTEGER, "whole numbers"), "precisions": PRECISION, "zeros": NAMES},
)
_SHARED: dict[str, Kind] = {
    "name": NAME,
    "summary": LINE,
    "source": LINE,
    "inputs": TableOf(_INPUT, "a table of arrays"),
    "outputs": TableOf(_OUTPUT, "a table of arrays"),
    "reference": Fields(
        {"forward": LINE},
        {"backward": TEXT, "reduction": TEXT, "either_way": FLAG, "c": ListOf(_C, "tables, one for each function")},
    ),
}
_SIZES = TableOf(COUNT, "a table of sizes by letter", special={"lead": TEXT})
_EXTENTS = TableOf(
    TableOf(_Alternatives(COUNT, "counts"), "a table of counts by array"), "a table by launcher or file", named=False
)
_VARIANTS = ListOf(_VARIANT, "tables, one for each pattern of launchers")
_CASE = TableOf(SCALAR, "a table of sizes and options", special={"lead": ListOf(INTEGER, "whole numbers")})
#: An entry with a layer.
LAYER = Fields(
    _SHARED | {"layer": NAME, "forward": Fields({"recipe": TEXT}, {"saves": NAMES})},
    {
        "details": TEXT,
        "launchers": SYMBOLS,
        "kernels": SYMBOLS,
        "uses": TEXTS,
        "parameters": TableOf(_PARAMETER, "a table of arrays"),
        "backward": Fields(
            {"recipe": TEXT, "gradients": TableOf(NAME, "a table of arrays by input")}, {"stochastic": NAMES}
        ),
        "extents": _EXTENTS,
        "fast_sizes": TEXT,
        "variants": _VARIANTS,
        "sizes": _SIZES,
        "options": TableOf(_OPTION, "a table of options"),
        "intermediates": TableOf(_INTERMEDIATE, "a table of arrays"),
        "cases": ListOf(_CASE, "tables"),
        "precisions": PRECISION,
        "wide": SYMBOLS,
        "autocast": _one_of("lower", "float32", "widest"),
    },
)
#: An entry without a layer, of which launchers alone are checked.
CHECK = Fields(_SHARED | {"variants": _VARIANTS, "sizes": _SIZES}, {"extents": _EXTENTS})


def problems_of(table: dict[str, object]) -> list[Problem]:
    """Return what is wrong with the keys and values of an entry, and under which key."""
    return list((CHECK if "sizes" in table and "layer" not in table else LAYER).problems(table, ()))
