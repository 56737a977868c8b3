"""The text of a C or CUDA file before it is parsed: comments blanked, top-level items cut out, macros expanded.

Everything here keeps the layout: what is removed becomes spaces, so that an
offset stays a line and a column of the file.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llmc2py.diagnostics import SourceSpan
from llmc2py.frontend.guarded import GuardedPreprocessor, told_failures

_COMMENT_OR_LITERAL = re.compile(
    r"//(?:\\\n|[^\n])*"
    r"|/\*.*?(?:\*/|\Z)"
    r'|\bR"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?P<keyword>\w*)(?P<body>(?:\\\n|[^\n])*)", re.MULTILINE)
_LINE_DIRECTIVE = re.compile(r'^\s*(\d+)(?:\s+"((?:\\.|[^"\\])*)")?')
_CALLED_ATTRIBUTE = re.compile(
    r"\b(?:__attribute__|__attribute|__declspec|_Pragma|__pragma|__launch_bounds__|__align__|alignas|_Alignas)\s*\("
)
_BRACKET_ATTRIBUTE = re.compile(r"\[\[[^\[\]]*\]\]")
_QUALIFIER = re.compile(
    r"\b(?:__restrict__|__restrict|restrict|__host__|__device__|__forceinline__|__noinline__|__inline__|__inline"
    r"|__extension__|noexcept)\b"
)
_TRANSPARENT = re.compile(r'(?:\bextern\s*"[^"]*"|\bnamespace\b[\w\s:]*)\s*$')
_HAS_INCLUDE = re.compile(r"\b__has_include\s*\([^()\n]*\)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FUNCTION_END = re.compile(r"\)\s*(?:const|override|final)?\s*$")
_NAME_AT_END = re.compile(r"(~?[A-Za-z_]\w*)\s*$")
_CONDITIONALS = ("if", "ifdef", "ifndef", "elif", "else", "endif")


@dataclass(frozen=True)
class Directive:
    """One preprocessor line, with the lines that continue it."""

    start: int
    end: int
    keyword: str
    body: str


@dataclass(frozen=True)
class Item:
    """One top-level definition or declaration; ``names`` are what it lets other items use."""

    start: int
    end: int
    kind: str
    names: tuple[str, ...]
    body_start: int


class CText:
    """A file's text, comments, attributes and pragmas blanked, with its directives and top-level items.

    ``code`` has the layout of the file; ``skeleton`` is the same with the insides of literals blanked too.
    ``lines`` maps lines of this text to those of the file that it was made from, as ``#line`` directives say.
    """

    def __init__(self, text: str, file: str, lines: LineMap | None = None) -> None:
        text = text.replace("\r\n", "\n")
        commentless = _COMMENT_OR_LITERAL.sub(_without_comment, text)
        skeleton = _COMMENT_OR_LITERAL.sub(_without_literal, commentless)
        self.directives = [
            Directive(match.start(), match.end(), match["keyword"], match["body"])
            for match in _DIRECTIVE.finditer(skeleton)
        ]
        self.lines = lines or LineMap.from_directives(commentless, file, self.directives)
        self.with_directives = commentless
        blanks = [(directive.start, directive.end) for directive in self.directives]
        code, skeleton = _blank_ranges(commentless, blanks), _blank_ranges(skeleton, blanks)
        blanks = list(_attribute_ranges(skeleton))
        self.code, self.skeleton = _blank_ranges(code, blanks), _blank_ranges(skeleton, blanks)
        self.items = list(_scan_items(self.skeleton))

    def span(self, offset: int) -> SourceSpan:
        """Return the place of an offset of this text in the file that the text came from."""
        line_start = self.code.rfind("\n", 0, offset) + 1
        return self.lines.span(self.raw_line(offset), offset - line_start + 1)

    def raw_line(self, offset: int) -> int:
        """Return the line of this text, counted from 1, that holds an offset."""
        return self.code.count("\n", 0, offset) + 1

    def words(self, item: Item) -> set[str]:
        """Return every identifier that stands in an item."""
        return set(_WORD.findall(self.skeleton, item.start, item.end))

    def macros(self) -> dict[str, set[str]]:
        """Return the macros that the text defines, each with the identifiers of its definitions."""
        found: dict[str, set[str]] = {}
        for directive in self.directives:
            words = _WORD.findall(directive.body)
            if directive.keyword == "define" and words:
                found.setdefault(words[0], set()).update(words[1:])
        return found

    def closure(self, roots: Iterable[Item], ignore: frozenset[str]) -> list[Item]:
        """Return the items that ``roots`` reach by name, themselves included, in source order."""
        providers: dict[str, list[Item]] = {}
        for item in self.items:
            for name in item.names:
                providers.setdefault(name, []).append(item)
        macros = self.macros()
        reached: set[Item] = set()
        pending = list(roots)
        seen: set[str] = set(ignore)
        while pending:
            item = pending.pop()
            reached.add(item)
            words = self.words(item) - seen
            while words:
                seen |= words
                pending += [item for word in words for item in providers.get(word, ()) if item not in reached]
                words = set().union(*(macros.get(word, set()) for word in words)) - seen
        return sorted(reached, key=lambda item: item.start)

    def is_conditional(self, item: Item) -> bool:
        """Tell whether an ``#if`` other than an include guard encloses or cuts through an item."""
        depth = 0
        for directive in self.directives:
            if directive.start >= item.end:
                break
            if directive.keyword not in _CONDITIONALS:
                continue
            if directive.start > item.start:
                return True
            depth += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(directive.keyword, 0)
        return depth > 0


class LineMap:
    """Where the lines of a text come from: ``origins[i]`` is the place of the line ``starts[i]``, counted from 1."""

    def __init__(self, starts: Sequence[int], origins: Sequence[tuple[int, str]]) -> None:
        self._starts = starts
        self._origins = origins

    @classmethod
    def from_directives(cls, text: str, file: str, directives: Iterable[Directive]) -> LineMap:
        """Read the ``#line`` directives of a text that ``file`` holds."""
        starts, origins = [1], [(1, file)]
        for directive in directives:
            if directive.keyword == "line" or directive.keyword.isdigit():
                spelled = text[directive.start : directive.end].lstrip(" \t#").removeprefix("line")
                match = _LINE_DIRECTIVE.match(spelled)
                if match:
                    starts.append(text.count("\n", 0, directive.end) + 2)
                    origins.append((int(match[1]), match[2] or origins[-1][1]))
        return cls(starts, origins)

    @classmethod
    def from_places(cls, places: Sequence[SourceSpan]) -> LineMap:
        """Take the place of every line as given."""
        return cls(range(1, len(places) + 1), [(place.line, place.file) for place in places])

    def span(self, raw_line: int, column: int = 1) -> SourceSpan:
        """Return the origin of a line (counted from 1) of the text."""
        index = bisect.bisect_right(self._starts, raw_line) - 1
        line, file = self._origins[index]
        return SourceSpan(file, line + raw_line - self._starts[index], column)


def matching_end(text: str, opening: int) -> int:
    """Return the offset after the bracket that closes the one at ``opening``; -1 where nothing closes it."""
    depth = 0
    for match in re.compile(r"[][(){}]").finditer(text, opening):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.end()
    return -1


def expand_macros(source: CText, items: Iterable[Item] | None, defined: Iterable[str]) -> tuple[CText, list[str]]:
    """Run the preprocessor over the directives of a text and the given items (all of the text for None).

    Includes are not followed. ``defined`` names macros that are defined from the start. Returns the expanded text,
    line for line where the original was, and the preprocessor's complaints. Raises ValueError where it fails.
    """
    kept = [(0, len(source.code))] if items is None else [(item.start, item.end) for item in items]
    kept += [
        (directive.start, directive.end)
        for directive in source.directives
        if directive.keyword in (*_CONDITIONALS, "define", "undef")
    ]
    dropped = [
        (directive.start, directive.end)
        for directive in source.directives
        if directive.keyword not in (*_CONDITIONALS, "define", "undef")
    ]
    text = _blank_ranges(_keep_ranges(source.with_directives, kept), dropped)
    # pcpp cannot evaluate __has_include, and no header is looked for here.
    text = _HAS_INCLUDE.sub("0", text)
    expander = _Expander()
    for macro in defined:
        expander.define(f"{macro} 1")
    with told_failures():
        expander.parse(text)
        return CText(_layout(expander), "", source.lines), expander.complaints


class _Expander(GuardedPreprocessor):
    """pcpp, collecting its complaints instead of printing them."""

    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []

    def on_error(self, file: str, line: int, msg: str) -> None:
        self.complaints.append(f"line {line}: {msg}")

    def on_unknown_macro_function_in_expr(self, ident: str) -> Any:
        return lambda *_arguments: 0


def _layout(expander: _Expander) -> str:
    """Write the preprocessor's tokens so that each stands on the line that it had."""
    pieces: list[str] = []
    line = 1
    for token in iter(expander.token, None):
        value = token.value
        if token.lineno > line and value.strip():
            pieces.append("\n" * (token.lineno - line))
            line = token.lineno
        pieces.append(value if value.strip() else value.replace("\n", " "))
        line += pieces[-1].count("\n")
    return "".join(pieces) + "\n"


def _scan_items(skeleton: str) -> Iterable[Item]:
    """Cut a text into top-level items; the insides of ``extern "C"`` and namespaces count as top level."""
    start, depth, body = 0, 0, -1
    for match in re.finditer(r"[{};]", skeleton):
        mark = match[0]
        if mark == "{":
            if depth == 0 and _TRANSPARENT.search(skeleton, start, match.start()):
                start = match.end()
                continue
            if depth == 0 and body < 0:
                body = match.start()
            depth += 1
            continue
        if mark == "}" and depth > 0:
            depth -= 1
        if depth == 0:
            is_function = body >= 0 and bool(_FUNCTION_END.search(skeleton, start, body))
            if mark == "}" and body >= 0 and not is_function:
                continue
            if mark == ";" or body >= 0:
                yield _item(skeleton, start, match.end(), body, is_function)
            start, body = match.end(), -1


def _item(skeleton: str, start: int, end: int, body: int, is_function: bool) -> Item:
    start += len(skeleton[start:end]) - len(skeleton[start:end].lstrip())
    if is_function:
        name = _function_name(skeleton[start:body])
        return Item(start, end, "function", (name,) if name else (), body)
    text = skeleton[start:end]
    words = _WORD.findall(text)
    if "typedef" in words[:1]:
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", text)
        name = pointer[1] if pointer else re.sub(r"\[[^\]]*\]|;", " ", text).split()[-1].lstrip("*")
        return Item(start, end, "typedef", (name, *_tag_names(text)), body)
    if words and words[0] in ("struct", "union", "enum", "class"):
        return Item(start, end, "tag", tuple(_tag_names(text)), body)
    before_value = text.split("=", 1)[0]
    if "(" in before_value or not words:
        return Item(start, end, "other", (), body)
    flat = re.sub(r"\{.*\}", " ", text, flags=re.DOTALL)
    flat = re.sub(r"=.*?(?=,\s*\w+\s*(?:=|\[|;|,)|;)", " ", flat, flags=re.DOTALL)
    return Item(start, end, "variable", tuple(re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*[,;]", flat)), body)


def _tag_names(text: str) -> list[str]:
    """``struct S { ... }``, ``enum E { A, B = 2 }``: the tag and, for an enumeration, its constants."""
    names = re.findall(r"\b(?:struct|union|enum|class)\s+(\w+)\s*\{", text)
    if re.search(r"\benum\b", text) and "{" in text:
        names += re.findall(r"(\w+)\s*(?:=[^,}]*)?[,}]", text[text.index("{") + 1 :])
    return names


def _function_name(head: str) -> str:
    """``static float f(int (*g)(int))``: the name before the last parenthesis group."""
    depth = 0
    for offset in range(len(head) - 1, -1, -1):
        depth += (head[offset] == ")") - (head[offset] == "(")
        if head[offset] == "(" and depth == 0:
            match = _NAME_AT_END.search(head, 0, offset)
            return match[1] if match else ""
    return ""


def _attribute_ranges(skeleton: str) -> Iterable[tuple[int, int]]:
    for match in _CALLED_ATTRIBUTE.finditer(skeleton):
        end = matching_end(skeleton, match.end() - 1)
        yield match.start(), end if end > 0 else match.end()
    for pattern in (_BRACKET_ATTRIBUTE, _QUALIFIER):
        for match in pattern.finditer(skeleton):
            yield match.span()


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _blank_ranges(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    pieces, position = [], 0
    for start, end in sorted(ranges):
        if end <= position:
            continue
        pieces += [text[position : max(start, position)], _blank(text[max(start, position) : end])]
        position = end
    return "".join([*pieces, text[position:]])


def _keep_ranges(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    pieces, position = [], 0
    for start, end in sorted(ranges):
        if end <= position:
            continue
        pieces += [_blank(text[position : max(start, position)]), text[max(start, position) : end]]
        position = end
    return "".join([*pieces, _blank(text[position:])])


def _without_comment(match: re.Match[str]) -> str:
    return _blank(match[0]) if match[0].startswith("/") else match[0]


def _without_literal(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith("/"):
        return _blank(text)
    return text if len(text) < 3 or text == '"C"' else text[0] + _blank(text[1:-1]) + text[-1]
