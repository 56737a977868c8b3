"""Lines for pcpp: a line without macros becomes one token, for to cut it into many takes most of a preprocessor's time.

What pcpp makes of the tokens of a line is their text again, unless there is a directive, a comment or a macro. The
tokens that it leaves become text again here as well.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pcpp.ply.ply.lex import LexToken

_NAME = re.compile(r"[A-Za-z_]\w*")
#: What pcpp expands although nobody defines it.
_BUILT_IN = frozenset({"__LINE__", "__COUNTER__", "__FILE__"})
_LITERAL_OR_COMMENT = re.compile(r"""//.*|/\*.*?(?:\*/|$)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_PARENTHESIS = re.compile(r"[()]")
_SPACE = "CPP_WS"
_CONTINUED = "CPP_LINECONT"
#: The type of a token that is a whole line.
PLAIN = "CPP_PLAIN"
#: Blank lines up to which no line mark is needed.
_MOST_BLANKS = 6


def group_lines(text: str, source: str, lexer: Any, macros: Callable[[], Mapping[str, Any]]) -> Iterator[list[Any]]:
    """Yield the tokens of each line, as pcpp's ``group_lines`` does but for lines in which nothing is to be done.

    ``macros`` returns those that are defined: pcpp handles a line before it asks for the next.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    end = len(lines) - 1
    if lines and not lines[-1]:
        end -= 1  # a line break at the end begins no line
    row = 0
    while row <= end:
        if _is_plain(lines[row], macros()):
            yield _plain_line(lines[row], source, row + 1)
            row += 1
        else:
            last = _last_of_group(lines, row, macros())
            yield from _lexed("\n".join(lines[row : last + 1]), source, lexer, row + 1, ends=last < len(lines) - 1)
            row = last + 1


def _is_plain(line: str, macros: Mapping[str, Any]) -> bool:
    start = line.lstrip()[:1]
    if start == "#" or line.endswith("\\") or "/*" in line or "*/" in line:
        return False
    if "//" in line and ('"' in line or "'" in line):
        return False
    names = _NAME.findall(line.partition("//")[0])
    return macros.keys().isdisjoint(names) and _BUILT_IN.isdisjoint(names)


def _plain_line(line: str, source: str, number: int) -> list[Any]:
    code, comment, _ = line.partition("//")
    code = code.rstrip()
    tokens = [_token(PLAIN, code, source, number)] if code else []
    if comment:
        # pcpp puts a line break in the place of a comment, before the one that ends the line.
        tokens.append(_token(_SPACE, "\n", source, number))
    tokens.append(_token(_SPACE, "\n", source, number))
    return tokens


def _token(kind: str, value: str, source: str, number: int) -> Any:
    token = LexToken()
    token.type, token.value, token.lineno, token.lexpos, token.source = kind, value, number, 0, source
    return token


def _last_of_group(lines: list[str], row: int, macros: Mapping[str, Any]) -> int:
    """Return the last of the lines that have to be cut together: with a comment, a directive or the call of a macro.

    A call may go on until its parentheses are closed, and may begin in a line below the name.
    """
    is_directive = lines[row].lstrip().startswith("#")
    depth, last = 0, row
    while True:
        last = _last_of_comment(lines, last)
        if last + 1 >= len(lines):
            return len(lines) - 1
        if not is_directive:
            bare = _LITERAL_OR_COMMENT.sub("", lines[last])
            for mark in _PARENTHESIS.findall(bare):
                depth = depth + 1 if mark == "(" else max(0, depth - 1)
        following = lines[last + 1].lstrip()
        goes_on = not is_directive and (
            depth or not following or following.startswith(("(", "//", "/*")) or not _is_plain(following, macros)
        )
        if lines[last].endswith("\\") or (goes_on and not following.startswith("#")):
            last += 1
            continue
        return last


def _last_of_comment(lines: list[str], row: int) -> int:
    """Return the line in which the comment ends that is open at the end of a line; the line itself if none is."""
    position = 0
    while True:
        line = lines[row]
        match = _LITERAL_OR_COMMENT.search(line, position)
        if match is None:
            return row
        position = match.end()
        if not match[0].startswith("/*") or (match[0].endswith("*/") and len(match[0]) > 3):
            continue
        row += 1
        while row < len(lines) and "*/" not in lines[row]:
            row += 1
        if row >= len(lines):
            return len(lines) - 1
        position = lines[row].index("*/") + 2


def _lexed(text: str, source: str, lexer: Any, number: int, *, ends: bool) -> Iterator[list[Any]]:
    """Cut lines into tokens as pcpp does; ``ends`` says that a line break follows the last."""
    lexer.input(f"{text}\n" if ends else text)
    lexer.lineno = number
    line: list[Any] = []
    for token in iter(lexer.token, None):
        token.source = source
        line.append(token)
        if token.type == _SPACE and token.value == "\n":
            yield line
            line = []
    if line:
        end = copy.copy(line[-1])
        end.type, end.value = _SPACE, "\n"
        yield [*line, end]


# --- tokens become text


def text_of(tokens: Iterable[Any], directive: str) -> str:
    """Return the text of preprocessed tokens, as pcpp's ``write`` has it: with a mark where a line does not follow.

    ``directive`` begins a mark: ``#line``.
    """
    text: list[str] = []
    last_number, last_source, blanks = 0, None, 0
    for line in _output_lines(tokens):
        if line[0].type != PLAIN or len(line) > 2:
            if _is_white(line):
                blanks += line[-1].value.count("\n")
                continue
            line = _collapsed(_joined(line))
        number, source = line[0].lineno, getattr(line[0], "source", last_source)
        skipped = number - last_number - 1
        if blanks > _MOST_BLANKS or skipped > _MOST_BLANKS or source != last_source:
            text.append(f'{directive} {number} "{source}"\n' if source is not None else f"{directive} {number}\n")
        else:
            text.append("\n" * skipped)
        text += [token.value for token in line]
        last_number, last_source, blanks = number, source, 0
    return "".join(text)


def _output_lines(tokens: Iterable[Any]) -> Iterator[list[Any]]:
    line = []
    for token in tokens:
        line.append(token)
        if token.value.startswith("\n"):
            yield line
            line = []
    if line:
        yield line


def _is_white(line: list[Any]) -> bool:
    code = line[:-1] if line[-1].value.startswith("\n") else line
    return all(token.type in (_SPACE, _CONTINUED) for token in code)


def _joined(line: list[Any]) -> list[Any]:
    """Take the backslashes out of a line that goes on behind them, and one of the white spaces at their sides."""
    for n in range(len(line) - 1, -1, -1):
        if line[n].type != _CONTINUED:
            continue
        before, after = line[n - 1 : n], line[n + 1 : n + 2]
        if (
            n < len(line) - 2
            and before
            and before[0].type in (_SPACE, _CONTINUED)
            and after[0].type in (_SPACE, _CONTINUED)
        ):
            if before[0].type == _SPACE:
                before[0].value = before[0].value[0]
                del line[n : n + 2]
        else:
            del line[n]
    return line


def _collapsed(line: list[Any]) -> list[Any]:
    """Leave the last of several white spaces, but for those at the beginning."""
    kept: list[Any] = []
    is_indented, follows_space = True, False
    for token in line:
        is_space = token.type == _SPACE or not token.value
        if is_space and follows_space and not is_indented:
            kept[-1] = token
        else:
            kept.append(token)
        is_indented = is_indented and is_space
        follows_space = is_space
    return kept
