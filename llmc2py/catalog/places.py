"""Where the keys and values of a TOML text stand, which `tomllib` does not tell."""

from __future__ import annotations

import re
import tomllib

from llmc2py.ir.catalog import KeyPath, Place

_BLANK = re.compile(r"[ \t]*")
_NOTHING = re.compile(r"(?:\s|#[^\n]*)*")
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:\\.|[^\"\\])*\"|'[^']*'")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"{3,5}', re.S),
    re.compile(r"'''.*?'{3,5}", re.S),
    re.compile(r'"(?:\\.|[^"\\])*"'),
    re.compile(r"'[^']*'"),
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def find_places(text: str) -> tuple[dict[KeyPath, Place], dict[KeyPath, Place]]:
    """Return the places of all keys and items of lists, and those at which the contents of strings begin.

    ``text`` is TOML that `tomllib` has read; of tables in a list, and of other items, the number is part of the path.
    """
    scan = _Scan(text)
    scan.document()
    return scan.keys, scan.strings


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.keys: dict[KeyPath, Place] = {}
        self.strings: dict[KeyPath, Place] = {}
        self.tables: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self._rest():
            if self._next("[["):
                table = self._listed_table()
            elif self._next("["):
                at = self.at
                table = self._resolved(self._dotted())
                self.keys.setdefault(table, self._place(at))
                self._next("]")
            else:
                self._pair(table)

    def _listed_table(self) -> KeyPath:
        """``[[variants]]``: the next table of a list."""
        at = self.at
        *above, last = self._dotted()
        path = (*self._resolved(tuple(above)), last)
        self._next("]]")
        number = self.tables.get(path, 0)
        self.tables[path] = number + 1
        self.keys.setdefault(path, self._place(at))
        self.keys[*path, number] = self._place(at)
        return (*path, number)

    def _resolved(self, names: tuple[str, ...]) -> KeyPath:
        """Return a path with the number of the last table wherever it goes through a list of them."""
        path: KeyPath = ()
        for name in names:
            path = (*path, name)
            if path in self.tables:
                path = (*path, self.tables[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        """``a.b = value``."""
        at = self.at
        path = table
        for name in self._dotted():
            path = (*path, name)
            self.keys.setdefault(path, self._place(at))
        self._next("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        for pattern in _STRINGS:
            if found := pattern.match(self.text, self.at):
                self._string(path, found[0])
                return
        if self._next("["):
            number = 0
            while self._rest() and not self._next("]"):
                self.keys[*path, number] = self._place(self.at)
                self._value((*path, number))
                number += 1
                self._rest()
                self._next(",")
        elif self._next("{"):
            while self._rest() and not self._next("}"):
                self._pair(path)
                self._rest()
                self._next(",")
        else:
            self._skip(_SCALAR)

    def _string(self, path: KeyPath, whole: str) -> None:
        quotes = 3 if whole[:3] in ('"""', "'''") else 1
        # A line break after the opening quotes is none of the string.
        quotes += quotes == 3 and whole[3:4] == "\n"
        self.strings[path] = self._place(self.at + quotes)
        self.at += len(whole)

    def _dotted(self) -> tuple[str, ...]:
        names: list[str] = []
        while True:
            self._skip(_BLANK)
            found = _KEY.match(self.text, self.at)
            assert found is not None, f"no key at {self._place(self.at)} of text that was read as TOML"
            self.at = found.end()
            self._skip(_BLANK)
            names.append(next(iter(tomllib.loads(f"{found[0]} = 0"))) if found[0][0] in "\"'" else found[0])
            if not self._next("."):
                return tuple(names)

    def _rest(self) -> bool:
        """Go on to what is neither blank nor comment; return whether there is any."""
        self._skip(_NOTHING)
        return self.at < len(self.text)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        """Go on behind what a pattern, which may be empty, matches here."""
        if found := pattern.match(self.text, self.at):
            self.at = found.end()

    def _next(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _place(self, at: int) -> Place:
        return self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
