"""Lines for pcpp: a line without macros becomes one token, for to cut it into many takes most of a preprocessor's time.

What pcpp makes of the tokens of a line is their text again, unless there is a directive, a comment or a macro.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from pcpp.ply.ply.lex import LexToken

_NAME = re.compile(r"[A-Za-z_]\w*")
#: What pcpp expands although nobody defines it.
_BUILT_IN = frozenset({"__LINE__", "__COUNTER__", "__FILE__"})
_LITERAL_OR_COMMENT = re.compile(r"""//.*|/\*.*?(?:\*/|$)|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_PLAIN = "CPP_PLAIN"
_SPACE = "CPP_WS"


def group_lines(text: str, source: str, lexer: Any, macros: Callable[[], Collection[str]]) -> Iterator[list[Any]]:
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


def _is_plain(line: str, macros: Collection[str]) -> bool:
    start = line.lstrip()[:1]
    if start == "#" or line.endswith("\\") or "/*" in line or "*/" in line:
        return False
    if "//" in line and ('"' in line or "'" in line):
        return False
    return not any(name in macros or name in _BUILT_IN for name in _NAME.findall(line.partition("//")[0]))


def _plain_line(line: str, source: str, number: int) -> list[Any]:
    code, comment, _ = line.partition("//")
    code = code.rstrip()
    tokens = [_token(_PLAIN, code, source, number)] if code else []
    if comment:
        # pcpp puts a line break in the place of a comment, before the one that ends the line.
        tokens.append(_token(_SPACE, "\n", source, number))
    tokens.append(_token(_SPACE, "\n", source, number))
    return tokens


def _token(kind: str, value: str, source: str, number: int) -> Any:
    token = LexToken()
    token.type, token.value, token.lineno, token.lexpos, token.source = kind, value, number, 0, source
    return token


def _last_of_group(lines: list[str], row: int, macros: Collection[str]) -> int:
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
            depth = max(0, depth + bare.count("(") - bare.count(")"))
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
