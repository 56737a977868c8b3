"""Find the plain C reference functions of a source file and make double-precision oracles of them.

A reference is a function whose name ends in ``_cpu``, and in a ``.c`` file also one whose name ends in ``_forward``,
``_backward`` or ``_update`` and takes numbers and pointers to numbers only. Each is cut out with the helpers, types,
constants and macros that it reaches and parsed on its own, so that one that cannot be read costs no other.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmc2py.caching import Memo, code_key, content_key
from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.cnames import SUPPLIED, UnreadableError
from llmc2py.frontend.ctext import CText, Item, LineMap, expand_macros

_SCALAR_WORDS = frozenset(
    [*SUPPLIED, "void", "char", "short", "int", "long", "signed", "unsigned", "double", "_Bool", "const", "volatile"]
)
_PLAIN_C_SUFFIXES = ("_forward", "_backward", "_update")
_LOST = re.compile(r"\b(\w+_cpu)\s*\([^;{}()]*\)\s*\{")


@dataclass(frozen=True)
class CReference:
    """A C reference function.

    ``params`` are names with canonical C types (``const float*``, ``int``); the constness of a scalar is dropped.
    ``double_source`` is a self-contained C99 translation unit that defines the function, with external linkage, with
    every float turned to double: types, literals, casts, library functions, helpers.
    """

    name: str
    span: SourceSpan
    params: tuple[tuple[str, str], ...]
    return_type: str
    double_source: str

    @property
    def double_params(self) -> tuple[tuple[str, str], ...]:
        """The parameters as ``double_source`` declares them."""
        return tuple((name, to_double(ctype)) for name, ctype in self.params)

    @property
    def double_return_type(self) -> str:
        """The return type in ``double_source``."""
        return to_double(self.return_type)


def to_double(ctype: str) -> str:
    """Return the canonical C type that takes a type's place in ``CReference.double_source``."""
    return re.sub(r"\b(?:float|floatX|half|bfloat16)\b", "double", ctype)


def parse_references(
    text: str, file: str, *, preprocessed: bool = False, places: Sequence[SourceSpan] | None = None
) -> tuple[list[CReference], list[Diagnostic]]:
    """Find and read the reference functions of a ``.cu``, ``.cuh``, ``.h`` or ``.c`` text.

    Parameters
    ----------
    text
        The source. ``#line`` directives in it are honoured; includes are not followed.
    file
        The name that spans give to the text, relative to the source root.
    preprocessed
        The text has been preprocessed already: its macros are expanded, only conditionals may be left.
    places
        The original place of each line of the text, where something other than ``#line`` directives knows it.

    Returns
    -------
    tuple
        The references in source order, and a warning for each function that could not be read.
    """
    if "_cpu" not in text and not file.endswith(".c"):
        return [], []
    if places:
        return _parse(CText(text, file, LineMap.from_places(places)), file, preprocessed)
    found: tuple[list[CReference], list[Diagnostic]] = REFERENCES.get(
        content_key(file, str(preprocessed), text), lambda: _parse(CText(text, file), file, preprocessed)
    )
    return found


def _parse(source: CText, file: str, preprocessed: bool) -> tuple[list[CReference], list[Diagnostic]]:
    try:
        source, diagnostics = _expanded(source, file, preprocessed)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else "its macros nest too deeply"
        return [], [_warning(SourceSpan(file, 1), f"its references cannot be read: {reason}")]
    references = []
    found = _find(source, file)
    names = [item.names[0] for item in found]
    for item in found:
        name, span = item.names[0], source.span(item.start)
        try:
            if names.count(name) > 1:
                raise UnreadableError("the file defines it more than once")
            references.append(_read(source, item, file))
        except RecursionError:
            diagnostics.append(_warning(span, f"reference {name} cannot be read: it nests too deeply"))
        except UnreadableError as error:
            place = source.lines.span(*error.place) if error.place is not None else span
            diagnostics.append(_warning(place, f"reference {name} cannot be read: {error}"))
    return references, diagnostics


def _expanded(source: CText, file: str, preprocessed: bool) -> tuple[CText, list[Diagnostic]]:
    """Expand the macros and resolve the conditionals that the references depend on."""
    found = _find(source, file)
    names = {item.names[0] for item in found}
    lost = [match for match in _LOST.finditer(source.skeleton) if match[1] not in names]
    if lost and any(directive.keyword == "if" for directive in source.directives):
        source, complaints = expand_macros(source, None, ["ENABLE_FP32"])
        lost = []
    else:
        items = source.closure(found, SUPPLIED)
        words = set().union(*(source.words(item) for item in items))
        has_macros = not preprocessed and not words.isdisjoint(source.macros())
        complaints = []
        if has_macros or any(source.is_conditional(item) for item in items):
            source, complaints = expand_macros(source, items, ["ENABLE_FP32"])
    diagnostics = [_warning(SourceSpan(file, 1), f"preprocessing its references: {text}") for text in complaints]
    for match in lost:
        message = f"reference {match[1]} cannot be read: the braces before it do not match"
        diagnostics.append(_warning(source.span(match.start()), message))
    return source, diagnostics


def _find(source: CText, file: str) -> list[Item]:
    """Return the functions that are meant as references, in source order."""
    functions = [item for item in source.items if item.kind == "function" and item.names]
    if not file.endswith(".c"):
        return [item for item in functions if item.names[0].endswith("_cpu")]
    scalars = set(_SCALAR_WORDS)
    for item in source.items:
        if item.kind == "typedef" and source.words(item) - {"typedef", item.names[0]} <= scalars:
            scalars.add(item.names[0])
    return [
        item
        for item in functions
        if item.names[0].endswith("_cpu")
        or (item.names[0].endswith(_PLAIN_C_SUFFIXES) and _takes_numbers(source, item, scalars))
    ]


def _takes_numbers(source: CText, item: Item, scalars: set[str]) -> bool:
    opening = source.skeleton.index("(", source.skeleton.index(item.names[0], item.start))
    parameters = source.skeleton[opening + 1 : item.body_start].rstrip().removesuffix(")")
    return all(set(re.findall(r"[A-Za-z_]\w*", text)[:-1]) <= scalars for text in parameters.split(","))


def _read(source: CText, item: Item, file: str) -> CReference:
    """Read one reference with what it reaches; raises UnreadableError."""
    name, is_cpp = item.names[0], not file.endswith(".c")
    if re.match(r"template\b", source.skeleton[item.start : item.body_start]):
        raise UnreadableError("it is a template")
    items = source.closure([item], SUPPLIED)
    # Lines are counted from the first item, so that what stands above it may change.
    above = source.raw_line(items[0].start) - 1
    text = _assemble(source, items, above)
    read, failure = REFERENCES.get(
        content_key(name, str(is_cpp), text), functools.partial(_read_function, text, name, is_cpp)
    )
    if failure is not None:
        message, place = failure
        raise UnreadableError(message, (place[0] + above, place[1]) if place is not None else None)
    params, return_type, double_source = read
    return CReference(name, source.span(item.start), params, return_type, double_source)


def _read_function(text: str, name: str, is_cpp: bool) -> tuple[Any, Any]:
    # pycparser takes long to import, and most functions were read before.
    from llmc2py.frontend.plainc import read_function

    try:
        return read_function(text, name, abs_is_generic=is_cpp), None
    except UnreadableError as error:
        return None, (str(error), error.place)


def _assemble(source: CText, items: Iterable[Item], above: int) -> str:
    """Lay items out on the lines of the text that they stand on, so that a parse error names the right one.

    ``above`` is the number of lines that are not counted.
    """
    pieces = []
    for item in items:
        start = source.code.rfind("\n", 0, item.start) + 1
        pieces.append(f'\n#line {source.raw_line(item.start) - above} "text"\n{" " * (item.start - start)}')
        pieces.append(source.code[item.start : item.end])
    return "".join(pieces)


def _warning(span: SourceSpan, message: str) -> Diagnostic:
    return Diagnostic(Severity.WARNING, span, message)


def _program() -> str:
    folder = pathlib.Path(__file__).parent
    names = ("creference.py", "cnames.py", "cdouble.py", "ctext.py", "guarded.py", "plainc.py", "../diagnostics.py")
    return code_key([folder / name for name in names], ("pcpp", "pycparser"))


#: Files that were read before, by their texts, and functions, by all that they reach: in most versions of a file these
#: are the same.
REFERENCES = Memo("references", _program, 1024)
