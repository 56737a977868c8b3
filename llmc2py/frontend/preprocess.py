"""A partial preprocessor: user includes are inlined and macros expanded, what only the compiler can know stays.

Conditions on the precision macros, on ``__CUDA_ARCH__`` and on compiler versions are left in the text, since one slice
serves all precisions and architectures. Every line of the result knows the place that it came from.
"""

from __future__ import annotations

import copy
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pcpp

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.branches import OffBranch, follow
from llmc2py.frontend.features import features_of_kernels
from llmc2py.frontend.guarded import GuardedPreprocessor, told_failures
from llmc2py.frontend.headers import ExpandedHeader, HeaderCache, Outside, names_in
from llmc2py.frontend.includes import absent_message, quoted_name
from llmc2py.frontend.lines import PLAIN, group_lines, text_of
from llmc2py.frontend.sources import HeaderIndex, include_folders

#: Macros whose value is known to the compiler of a slice alone.
OPEN_MACROS = frozenset(
    {
        "ENABLE_FP32",
        "ENABLE_FP16",
        "ENABLE_BF16",
        "__CUDA_ARCH__",
        "__CUDACC_VER_MAJOR__",
        "__CUDACC_VER_MINOR__",
        "__CUDACC_RTC__",
        "LLMC2PY_CPU",
    }
)
#: What nvcc defines whatever it compiles for: sources tell other compilers from it by these.
_COMPILER_MACROS = ("__CUDACC__", "__NVCC__")
PRECISION_MACROS = frozenset({"ENABLE_FP32", "ENABLE_FP16", "ENABLE_BF16"})
#: Macros that no build has to define.
KNOWN_MACROS = OPEN_MACROS.union(_COMPILER_MACROS)
#: Words of CUDA, which sources define away for compilers that do not know them.
_CUDA_WORDS = frozenset({"__global__", "__device__", "__host__", "__shared__", "__constant__", "__launch_bounds__"})

LARGEST_FILE = 8 << 20
#: Hand-written sources stay far below these.
_MOST_INCLUDES = 2_000
_DEEPEST_INCLUDE = 40

_HAS_INCLUDE = re.compile(r"__has_include\s*\([^()\n]*\)")
_LINE_MARK = re.compile(r'^#line (\d+)(?: "(.*)")?$')


@dataclass(frozen=True)
class PreprocessedText:
    """A preprocessed file: ``lines[i]`` is the original place of line ``i`` of ``text``."""

    file: str
    text: str
    lines: tuple[SourceSpan, ...]
    includes: tuple[str, ...]
    system_headers: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    #: Every path at which an included file was looked for.
    probes: frozenset[str] = frozenset()

    def span(self, row: int, column: int = 0) -> SourceSpan:
        """Return the original place of a 0-based row and column of ``text``."""
        place = self.lines[min(row, len(self.lines) - 1)] if self.lines else SourceSpan(self.file, 1)
        return SourceSpan(place.file, place.line, column + 1) if column else place


class _Preprocessor(GuardedPreprocessor):
    """pcpp with our answers to its questions."""

    def __init__(
        self, root: pathlib.Path, texts: dict[pathlib.Path, str], headers: HeaderCache, index: HeaderIndex
    ) -> None:
        #: How many directives were carried out that define something or include it.
        self._acted = 0
        super().__init__()
        self.root = root
        self.texts = texts
        self.headers = headers
        self.index = index
        self.macros: dict[str, Any]
        self.countermacro: int
        self.include_once: dict[str, Any]
        self.line_directive = "#line"
        self.diagnostics: list[Diagnostic] = []
        self.includes: dict[str, None] = {}
        self.system_headers: dict[str, None] = {}
        self.probes: set[str] = set()
        self.names: frozenset[str] = frozenset()
        self.rewrite_paths = [(re.escape(f"{root}{os.sep}") + "(.*)", r"\1")]
        self._relative: dict[str, str] = {}
        #: Where the #include stands that is being handled.
        self._directive = ("", 1)
        self._varying: set[str] = set()
        self._included = 0
        #: What of the file itself is off.
        self.off: list[OffBranch] = []

    def relative(self, path: str) -> str:
        """Return a path as seen from the root."""
        if path not in self._relative:
            absolute = pathlib.Path(os.path.abspath(self.root / path))
            inside = absolute.is_relative_to(self.root)
            self._relative[path] = (absolute.relative_to(self.root) if inside else absolute).as_posix()
        return self._relative[path]

    def add_path(self, path: str) -> None:
        """Add a folder to search; pcpp itself would name the files in it from the working directory."""
        self.path.append(path)

    def group_lines(self, input: str, abssource: str) -> Iterator[list[Any]]:
        """Yield the tokens of each line; pcpp handles a line before it asks for the next."""
        lines = group_lines(input, abssource, self.lexer.clone(), lambda: self.macros)
        # Each file with kernels or launches is a unit of its own, and is told of there.
        return lines if self.include_depth else follow(lines, lambda: self._acted, self.off)

    def parsegen(self, input: str, source: str | None = None, abssource: str | None = None) -> Iterator[Any]:
        """Expand a file; an included file that was met before is not expanded again where its names mean the same."""
        if self.include_depth == 0 or abssource is None:
            yield from super().parsegen(input, source, abssource)
            return
        known = self.headers.setdefault((abssource, tuple(dict.fromkeys(self.temp_path))), [])
        header = next((one for one in known if one.outside == self._outside(one.names)), None)
        if header is None:
            header = self._expand_header(input, source, abssource)
            if header.is_clean:
                known.append(header)
        else:
            kept = {name: macro for name, macro in self.macros.items() if name not in header.undefined}
            self.macros, self.include_once = kept | header.defined, dict(header.include_once)
        self._varying |= header.varying
        self.includes |= dict.fromkeys(header.includes)
        self.system_headers |= dict.fromkeys(header.system_headers)
        self.probes |= header.probes
        self.names |= header.names
        if header.token is not None:
            token, end = copy.copy(header.token), copy.copy(header.token)
            token.value = header.text.rstrip("\n")
            # A token of its own ends the line, so that pcpp marks the place of the line that follows.
            end.type, end.value = self.t_NEWLINE, "\n"
            yield token
            yield end

    def _outside(self, names: frozenset[str]) -> Outside:
        return Outside.of(names, self.macros, self._varying, self.include_once)

    def _expand_header(self, text: str, source: str | None, abssource: str) -> ExpandedHeader:
        """Expand an included file to its text, which stands in the output as one token with line marks of its own."""
        # What it reports, and numbers of __COUNTER__, it has to give each time.
        told = len(self.diagnostics), self.countermacro
        outer = self.includes, self.system_headers, self.probes, self.names
        macros, varying, include_once = dict(self.macros), set(self._varying), dict(self.include_once)
        self.includes, self.system_headers, self.probes, self.names = {}, {}, set(), names_in(text)
        tokens = list(super().parsegen(text, source, abssource))
        header = ExpandedHeader(
            self.names,
            Outside.of(self.names, macros, varying, include_once),
            text_of(tokens, self.line_directive),
            next((token for token in tokens if token.type not in self.t_WS), None),
            {name: macro for name, macro in self.macros.items() if macros.get(name) is not macro},
            frozenset(macros.keys() - self.macros.keys()),
            dict(self.include_once),
            tuple(self.includes),
            tuple(self.system_headers),
            frozenset(self._varying - varying),
            frozenset(self.probes),
            (len(self.diagnostics), self.countermacro) == told,
        )
        self.includes, self.system_headers, self.probes, self.names = outer
        return header

    def expand_macros(self, tokens: list[Any], expanding_from: Sequence[str] = ()) -> list[Any]:
        """Expand macros: between plain lines, for these hold none, and no call of one goes on in them."""
        if expanding_from or not any(token.type == PLAIN for token in tokens):
            return super().expand_macros(tokens, expanding_from)
        expanded: list[Any] = []
        between: list[Any] = []
        for token in tokens:
            if token.type != PLAIN:
                between.append(token)
                continue
            if between:
                expanded += self._expanded_between(between)
                between = []
            expanded.append(token)
        return expanded + self._expanded_between(between)

    def _expanded_between(self, tokens: list[Any]) -> list[Any]:
        has_names = any(token.type == self.t_ID for token in tokens)
        return super().expand_macros(tokens) if has_names else tokens

    def define(self, tokens: Any) -> None:
        """Define a macro."""
        self._acted += 1
        super().define(tokens)

    def include(self, tokens: list[Any], original_line: list[Any]) -> Iterator[Any]:
        """Include a file; a directive that names none, or whose macro expands to nothing, is reported."""
        start = original_line[0]
        self._directive = (start.source, start.lineno)
        named = tokens and (tokens[0].value == "<" or tokens[0].type == self.t_STRING)
        if not named and not self.tokenstrip(self.expand_macros([copy.copy(token) for token in tokens])):
            self._report(Severity.WARNING, *self._directive, "an #include that names no file is ignored")
            return
        self._included += 1
        self._acted += 1
        if self._included > _MOST_INCLUDES:
            raise ValueError(f"includes more than {_MOST_INCLUDES} files: an #include of itself without a guard?")
        if self.include_depth > _DEEPEST_INCLUDE:
            message = f"an #include more than {_DEEPEST_INCLUDE} deep is ignored: of itself without a guard?"
            self._report(Severity.WARNING, *self._directive, message)
            return
        yield from super().include(tokens, original_line)

    def on_include_not_found(self, is_malformed: bool, is_system_include: bool, curdir: str, includepath: str) -> str:
        """Return the folder of a quoted include that is elsewhere in the tree; report any other."""
        if is_malformed:
            self._report(Severity.WARNING, *self._directive, "an #include that names no file is ignored")
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
        found = None if is_system_include else self.index.nearest(includepath, curdir)
        if found is not None and self._is_readable(found):
            return found.removesuffix(f"/{os.path.normpath(includepath)}")
        self._report_absent(is_system_include, includepath)
        self.system_headers[includepath] = None
        raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)

    def _is_readable(self, name: str) -> bool:
        path = pathlib.Path(os.path.realpath(name))
        try:
            if path.is_relative_to(self.root) and path not in self.texts:
                self.texts[path] = read_source(path)
        except (OSError, ValueError):
            return False
        return path in self.texts

    def _report_absent(self, is_system_include: bool, includepath: str) -> None:
        there = [self.relative(path) for path in self.index.namesakes(includepath)]
        is_told = is_system_include or not self._leaves_tree(includepath)
        message = absent_message(includepath, there, is_system_include=is_system_include) if is_told else None
        if message is not None:
            self._report(Severity.NOTE, *self._directive, message)

    def _leaves_tree(self, includepath: str) -> bool:
        folder = (self.root / self._directive[0]).parent
        return not pathlib.Path(os.path.realpath(folder / includepath)).is_relative_to(self.root)

    def on_file_open(self, is_system_include: bool, includepath: str) -> io.StringIO:
        self.probes.add(includepath)
        # Unlike Path.resolve(), it leaves a loop of links as it is, and to open it fails.
        path = pathlib.Path(os.path.realpath(includepath))
        if not path.is_relative_to(self.root):
            message = f"#include {quoted_name(os.path.relpath(path, self.root))} leaves the source tree: ignored"
            self._report(Severity.WARNING, *self._directive, message)
            raise OSError(f"{includepath} is outside the source tree")
        if path not in self.texts:
            try:
                self.texts[path] = read_source(path)
            except ValueError as error:
                message = f"#include {quoted_name(self.relative(str(path)))} is ignored: it {error}"
                self._report(Severity.WARNING, *self._directive, message)
                raise OSError(f"{includepath} is no text") from error
        self.includes[self.relative(str(path))] = None
        return io.StringIO(self.texts[path])

    def on_unknown_macro_in_defined_expr(self, tok: object) -> bool | None:
        return None if self._is_open(tok.value) else False  # type: ignore[attr-defined]

    def on_unknown_macro_in_expr(self, ident: str) -> int | None:
        return None if self._is_open(ident) else 0

    def _is_open(self, name: str) -> bool:
        return name in OPEN_MACROS or name in self._varying

    def on_unknown_macro_function_in_expr(self, ident: str) -> object:
        return lambda *_: 0

    def on_directive_handle(
        self, directive: object, toks: list[object], ifpassthru: bool, precedingtoks: object
    ) -> bool | None:
        name = directive.value  # type: ignore[attr-defined]
        words = [tok.value for tok in toks if not tok.value.isspace()]  # type: ignore[attr-defined]
        if name in ("define", "undef") and words and words[0] in PRECISION_MACROS | _CUDA_WORDS:
            # The caller's arrays choose the precision, not the file; and the words of CUDA are what is looked for.
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
        if name == "line":
            # Places are those in the files that there are.
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
        if name == "define" and words and ifpassthru and self._varies(toks):
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndPassThrough)
        if name == "pragma" and words[:1] == ["unroll"] and self.macros.keys().isdisjoint(words):
            # Only the compiler can do it. A count that a macro stands for would be left without its value.
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndPassThrough)
        if name == "pragma" and words != ["once"]:
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
        if name in ("error", "warning"):
            raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)
        super().on_directive_handle(directive, toks, ifpassthru, precedingtoks)
        return None if ifpassthru else True

    def _varies(self, toks: list[Any]) -> bool:
        """Whether a macro has different values under different open conditions: the text has to go on naming it."""
        name, body = toks[0].value, [tok.value for tok in toks[1:] if not tok.value.isspace()]
        if not body or toks[1].value == "(":
            return False
        known = self.macros.get(name)
        if known is not None and [tok.value for tok in known.value if not tok.value.isspace()] != body:
            del self.macros[name]
            self._varying.add(name)
        return name in self._varying

    def on_error(self, file: str, line: int, msg: str) -> None:
        self._report(Severity.WARNING, file, line, f"preprocessor: {' '.join(msg.split())}")
        self.return_code += 1

    def report_off(self, file: str) -> None:
        """Report the kernels and launches of the file itself that no branch brings in."""
        for one in self.off:
            severity = Severity.NOTE if one.is_deleted else Severity.WARNING
            self._report(severity, file, one.line, one.message, loses=not one.is_deleted)

    def _report(self, severity: Severity, file: str, line: int, message: str, *, loses: bool = False) -> None:
        shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
        place = SourceSpan(self.relative(file), max(line, 1))
        self.diagnostics.append(Diagnostic(severity, place, shown, loses=loses))


def read_source(path: pathlib.Path) -> str:
    """Return the text of a source file: UTF-8 with or without a mark, else Latin-1; line ends become line feeds.

    Raises ValueError for a file that is not text or too large, OSError for one that cannot be read.
    """
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"is larger than {LARGEST_FILE >> 20} MiB: not a hand-written source")
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError("holds NUL bytes: not a text file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    # pcpp cannot evaluate __has_include; no header of the system is looked for here, so the answer is no.
    return _HAS_INCLUDE.sub("0", text.replace("\r\n", "\n").replace("\r", "\n"))


def preprocess(
    path: pathlib.Path,
    root: pathlib.Path,
    texts: dict[pathlib.Path, str],
    headers: HeaderCache,
    index: HeaderIndex | None = None,
) -> PreprocessedText:
    """Preprocess one file of the tree at ``root`` (both resolved paths).

    ``texts`` holds files already read, ``headers`` headers already expanded; both are added to. ``index`` is that of
    the tree, where there is one already. Raises what ``read_source`` raises.
    """
    if path not in texts:
        texts[path] = read_source(path)
    preprocessor = _Preprocessor(root, texts, headers, index or HeaderIndex(root))
    for folder in include_folders(root):
        preprocessor.add_path(str(folder))
    for macro in (*_COMPILER_MACROS, *features_of_kernels(texts[path], KNOWN_MACROS)):
        preprocessor.define(f"{macro} 1")
    with told_failures():
        preprocessor.parse(texts[path], str(path))
        marked = text_of(preprocessor.parser, preprocessor.line_directive)
    preprocessor.report_off(str(path))
    file = preprocessor.relative(str(path))
    text, lines = _strip_line_marks(marked, file, preprocessor.relative)
    return PreprocessedText(
        file,
        text,
        tuple(lines),
        tuple(preprocessor.includes),
        tuple(preprocessor.system_headers),
        tuple(preprocessor.diagnostics),
        frozenset(preprocessor.probes),
    )


def _strip_line_marks(text: str, file: str, relative: Callable[[str], str]) -> tuple[str, list[SourceSpan]]:
    kept: list[str] = []
    places: list[SourceSpan] = []
    line = 1
    for row in text.split("\n"):
        mark = _LINE_MARK.match(row) if row.startswith("#line") else None
        if mark:
            line = int(mark[1])
            file = relative(mark[2]) if mark[2] else file
            continue
        kept.append(row)
        places.append(SourceSpan(file, line))
        line += 1
    return "\n".join(kept), places
