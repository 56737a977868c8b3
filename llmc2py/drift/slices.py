"""The slice of one kernel, read back out of the ``.cu`` file of a generated module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from llmc2py.diagnostics import SourceSpan
from llmc2py.drift.tokens import tokens
from llmc2py.frontend.items import Declaration, declarations, read_item
from llmc2py.frontend.preprocess import PreprocessedText
from llmc2py.frontend.syntax import SyntaxTree, child, parse

_GUARD = re.compile(r"#if (defined\(SLICE_\w+\)(?: \|\| defined\(SLICE_\w+\))*)")
_LINE = re.compile(r'#line (\d+) "((?:[^"\\]|\\.)*)"')
#: The grammar knows one spelling of the two.
_ALIGN = re.compile(r"__align__\s*\(")
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|endif)\b")


@dataclass(frozen=True)
class SliceItem:
    """A declaration of a slice: the names that it defines, the file that it stands in, and its tokens.

    ``head`` are the tokens of the kernel's own header, ``body`` those of its body, or all of any other item.
    """

    defines: frozenset[str]
    uses: frozenset[str]
    file: str
    context: tuple[str, ...]
    head: tuple[str, ...]
    body: tuple[str, ...]

    @property
    def code(self) -> tuple[tuple[str, ...], ...]:
        """All that decides what the item compiles to."""
        return self.context, self.head, self.body


class KernelSlice:
    """The slice of a kernel as items, parsed when it is asked for."""

    def __init__(self, source: str, kernel: str) -> None:
        self.kernel = kernel
        self.headers, self._text = _extract(source, kernel)

    @cached_property
    def _tree(self) -> SyntaxTree:
        return parse(self._text)

    @cached_property
    def _declarations(self) -> list[Declaration]:
        return declarations(self._tree)

    @property
    def text(self) -> str:
        """The slice as it is compiled."""
        return self._text.text

    def items(self, names: Mapping[str, str] | None = None) -> list[SliceItem]:
        """Return the items in their order; ``names`` gives other spellings to parameters in the kernel's body."""
        return [self._item(declaration, order, names or {}) for order, declaration in enumerate(self._declarations)]

    def _item(self, declaration: Declaration, order: int, names: Mapping[str, str]) -> SliceItem:
        tree, node = self._tree, declaration.node
        item = read_item(tree, declaration, order)
        context = (*declaration.conditions, *declaration.scopes)
        is_kernel = declaration.function is not None and self.kernel in item.defines
        if not is_kernel or declaration.function is None:
            return SliceItem(item.defines, item.uses, item.span.file, context, (), tokens(tree, node))
        body = tokens(tree, child(declaration.function, "body"), names)
        head = tokens(tree, node)[: -len(body)]
        return SliceItem(item.defines, item.uses, item.span.file, context, head, body)


def _extract(source: str, kernel: str) -> tuple[list[str], PreprocessedText]:
    """Keep the lines that a kernel's macro selects; ``#line`` marks give each its place."""
    headers: list[str] = []
    lines: list[str] = []
    places: list[SourceSpan] = []
    open_guards: list[bool | None] = []
    file, number = "", 0
    for line in source.split("\n"):
        guard = _GUARD.fullmatch(line)
        mark = _LINE.fullmatch(line)
        condition = _CONDITION.match(line)
        if guard is not None:
            open_guards.append(f"defined(SLICE_{kernel})" in guard[1].split(" || "))
        elif condition is not None and condition[1] != "endif":
            open_guards.append(None)
        elif condition is not None and open_guards and open_guards.pop() is not None:
            continue
        if mark is not None:
            file, number = re.sub(r"\\(.)", r"\1", mark[2]), int(mark[1])
        elif guard is None and False not in open_guards:
            line = _ALIGN.sub("alignas(", line)
            (headers if line.startswith("#include") else lines).append(line)
            if not line.startswith("#include"):
                places.append(SourceSpan(file, max(number, 1)))
            number += 1
    text = PreprocessedText(kernel, "\n".join(lines), tuple(places), (), (), ())
    return sorted(headers), text
