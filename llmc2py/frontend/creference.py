"""Find the plain C reference functions of a source file and make double-precision oracles of them.

A reference is a function whose name ends in ``_cpu``, and in a ``.c`` file also one whose name ends in ``_forward``,
``_backward`` or ``_update`` and takes numbers and pointers to numbers only. Each is cut out with the helpers, types,
constants and macros that it reaches and parsed on its own, so that one that cannot be read costs no other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pycparser import c_ast, c_lexer, c_parser

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.cdouble import REAL_TYPES, UnreadableError, double_unit
from llmc2py.frontend.ctext import CText, Item, LineMap, expand_macros, matching_end

_INTEGER_TYPES = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long",
    "uint64_t": "unsigned long",
    "size_t": "unsigned long",
    "ssize_t": "long",
    "ptrdiff_t": "long",
    "intptr_t": "long",
    "uintptr_t": "unsigned long",
    "uint": "unsigned int",
    "ulong": "unsigned long",
    "bool": "_Bool",
    "clock_t": "long",
    "time_t": "long",
    "FILE": "int",
}
_SUPPLIED = frozenset({*_INTEGER_TYPES, *REAL_TYPES})
_TYPEDEFS = {
    **{name: f"typedef {ctype} {name};" for name, ctype in _INTEGER_TYPES.items()},
    **{name: f"typedef float {name};" for name in REAL_TYPES if name != "float"},
}
_CANONICAL = {
    "_Bool": "bool",
    "char": "char",
    "char signed": "signed char",
    "char unsigned": "unsigned char",
    "short": "short",
    "short unsigned": "unsigned short",
    "": "int",
    "unsigned": "unsigned int",
    "long": "long",
    "long unsigned": "unsigned long",
    "long long": "long long",
    "long long unsigned": "unsigned long long",
    "double": "double",
    "void": "void",
}
_SCALAR_WORDS = frozenset(
    [*_SUPPLIED, "void", "char", "short", "int", "long", "signed", "unsigned", "double", "_Bool", "const", "volatile"]
)
_PLAIN_C_SUFFIXES = ("_forward", "_backward", "_update")
_LOST = re.compile(r"\b(\w+_cpu)\s*\([^;{}()]*\)\s*\{")
#: A function's name and parameters, and a default argument among them.
_HEADER = re.compile(r"\b(?!(?:if|while|for|switch)\b)\w+\s*\([^(){};]*\)\s*\{")
_DEFAULT = re.compile(r"\s*=\s*[-+.\w]+(?=\s*[,)])")
_PLACE = re.compile(r"^(?:[^\n]*?):(\d+)(?::(\d+))?: ?(.*)", re.DOTALL)


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
    source = CText(text, file, LineMap.from_places(places) if places else None)
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
            place = _place(source, span, error.coord)
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
        items = source.closure(found, _SUPPLIED)
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
    """Parse one reference with what it reaches; raises UnreadableError."""
    name = item.names[0]
    head = source.skeleton[item.start : item.body_start]
    if re.match(r"template\b", head):
        raise UnreadableError("it is a template")
    text = _Plain(_assemble(source, source.closure([item], _SUPPLIED)))
    unit = _parse(text.unit())
    operands = {}
    for decl in unit.ext:
        if isinstance(decl, c_ast.Decl) and decl.name in text.operands:
            operands[text.operands[decl.name]] = decl.init.expr
    unit.ext = [node for node in unit.ext if not _is_supplied(node, text)]
    function = next(node for node in unit.ext if isinstance(node, c_ast.FuncDef) and node.decl.name == name)
    typedefs = {node.name: node.type for node in unit.ext if isinstance(node, c_ast.Typedef)}
    signature = function.decl.type
    params = tuple(
        (param.name, canonical_type(param.type, typedefs))
        for param in (signature.args.params if signature.args else [])
        if not (isinstance(param, c_ast.Typename) and canonical_type(param.type, typedefs) == "void")
    )
    return_type = canonical_type(signature.type, typedefs)
    double_source = double_unit(unit, name, operands, abs_is_generic=not file.endswith(".c"))
    return CReference(name, source.span(item.start), params, return_type, double_source)


def _is_supplied(node: Any, text: _Plain) -> bool:
    names = _SUPPLIED | set(text.operands) | set(text.operands.values())
    return isinstance(node, (c_ast.Typedef, c_ast.Decl)) and node.name in names


def canonical_type(node: Any, typedefs: dict[str, Any]) -> str:
    """Return the canonical spelling of a pycparser type node, as ``const float*``; raises UnreadableError."""
    if isinstance(node, (c_ast.PtrDecl, c_ast.ArrayDecl)):
        if isinstance(node.type, c_ast.FuncDecl):
            raise UnreadableError("a parameter is a function pointer", node.coord)
        inner = canonical_type(node.type, typedefs)
        const = "const" in _qualifiers(node.type) and not inner.endswith("*")
        return f"const {inner}*" if const and not inner.startswith("const ") else f"{inner}*"
    base = node.type
    if not isinstance(base, c_ast.IdentifierType):
        raise UnreadableError("a parameter is a structure", node.coord)
    names = base.names
    if len(names) == 1 and names[0] in REAL_TYPES:
        return REAL_TYPES[names[0]]
    if len(names) == 1 and names[0] in typedefs:
        return canonical_type(typedefs[names[0]], typedefs)
    spelled = " ".join(_INTEGER_TYPES.get(name, name) for name in names).split()
    words = [
        word for word in sorted(spelled) if word not in ("int", "signed") or (word == "signed" and "char" in spelled)
    ]
    if " ".join(words) not in _CANONICAL:
        raise UnreadableError(f"the type {' '.join(names)} is neither a number nor a pointer to numbers", node.coord)
    return _CANONICAL[" ".join(words)]


def _qualifiers(node: Any) -> list[str]:
    quals: list[str] = getattr(node, "quals", [])
    return quals


def _assemble(source: CText, items: Iterable[Item]) -> str:
    """Lay items out on the lines of the text that they stand on, so that a parse error names the right one."""
    pieces = []
    for item in items:
        start = source.code.rfind("\n", 0, item.start) + 1
        pieces.append(f'\n#line {source.raw_line(item.start)} "text"\n{" " * (item.start - start)}')
        pieces.append(source.code[item.start : item.end])
    return "".join(pieces)


class _Plain:
    """A text with the few C++ and GNU spellings that have a simple C one replaced, line for line.

    ``__typeof__`` is not C for pycparser: a type name stands for each, and the operand is parsed beside the text.
    ``operands`` maps the variable that holds an operand to that type name.
    """

    def __init__(self, text: str) -> None:
        self.operands: dict[str, str] = {}
        self._declarations: list[str] = []
        text = re.sub(r"\bnullptr\b", "NULL", text)
        text = re.sub(r"\bconstexpr\b", "const", text)
        text = re.sub(r"\bstd\s*::\s*(max|min|abs)\b\s*(?:<[\w\s]+>\s*)?(?=\()", r"llmc2py_\1", text)
        text = re.sub(r"\bstd\s*::\s*(?=[a-z]\w*)", "", text)
        text = _wrap_calls(text, re.compile(r"\bstatic_cast\s*<([^<>]*)>\s*(\()"))
        text = _wrap_calls(text, re.compile(r"(?<![\w(])(?<![\w(] )(float|double|int|size_t)(\()(?!\s*[*)])"))
        text = _HEADER.sub(lambda match: _DEFAULT.sub("", match[0]), text)
        text = self._deduced(text)
        self.text = self._without_typeof(text)

    def unit(self) -> str:
        """Return the translation unit to parse."""
        placeholders = "".join(f"typedef int {name};" for name in self.operands.values())
        text = f"{placeholders}{self.text}\n{''.join(self._declarations)}"
        used = set(re.findall(r"[A-Za-z_]\w*", text))
        return "".join(typedef for name, typedef in _TYPEDEFS.items() if name in used) + text

    def _deduced(self, text: str) -> str:
        """``auto x = e``: the type of ``e`` as a value, without its qualifiers."""
        pattern = re.compile(r"\bauto\s+(?:const\s+)?(\w+)\s*=\s*([^;,]*)")
        text = pattern.sub(lambda match: f"__typeof__(({match[2]}) + 0) {match[1]} = {match[2]}", text)
        if re.search(r"\bauto\b", text):
            raise UnreadableError("it deduces a type by auto in a way that C has no word for")
        return text

    def _without_typeof(self, text: str) -> str:
        # From the last to the first, so that an operand's own __typeof__ is replaced before the operand is cut out.
        for match in reversed(list(re.finditer(r"\b(?:__typeof__|__typeof|typeof|decltype)\s*(\()", text))):
            end = matching_end(text, match.start(1))
            variable, placeholder = f"llmc2py_operand_{len(self.operands)}", f"llmc2py_type_{len(self.operands)}"
            self.operands[variable] = placeholder
            operand = f"int {variable} = sizeof({text[match.start(1) + 1 : end - 1]});"
            self._declarations.append(f'\n#line {_line_at(text, match.start())} "text"\n{operand}')
            text = f"{text[: match.start()]}{placeholder}{text[end:]}"
        return text


def _line_at(text: str, offset: int) -> int:
    """Return the line that an assembled text's ``#line`` directives give to an offset."""
    directive = list(re.finditer(r'^#line (\d+) "text"\n', text[:offset], re.MULTILINE))[-1]
    return int(directive[1]) + text.count("\n", directive.end(), offset)


def _wrap_calls(text: str, pattern: re.Pattern[str]) -> str:
    """Write ``static_cast<T>(x)`` and ``T(x)`` as ``((T)(x))``."""
    for match in reversed(list(pattern.finditer(text))):
        end = matching_end(text, match.start(2))
        if end > 0:
            text = f"{text[: match.start()]}(({match[1]}){text[match.start(2) : end]}){text[end:]}"
    return text


class _Lexer(c_lexer.CLexer):  # type: ignore[misc]
    """Keeps the last token, because some of pycparser's errors do not say where they are."""

    last: Any = None

    def token(self) -> Any:
        token = super().token()
        self.last = token or self.last
        return token


@functools.cache
def _parser() -> c_parser.CParser:
    return c_parser.CParser(lexer=_Lexer)


def _parse(text: str) -> Any:
    parser = _parser()
    try:
        return parser.parse(text, "text")
    except c_parser.ParseError as error:
        match = _PLACE.match(str(error))
        token = parser.clex.last
        coord = (
            _Coord(int(match[1]), int(match[2] or 1)) if match else _Coord(token.lineno, getattr(token, "column", 1))
        )
        told = match[3].strip() if match else str(error).removeprefix("text: ")
        before = re.match(r"before: (.*)", told)
        where = f" at '{before[1]}'" if before else f" ({told})"
        raise UnreadableError(f"it is not plain C{where}", coord) from error


@dataclass(frozen=True)
class _Coord:
    line: int
    column: int


def _place(source: CText, span: SourceSpan, coord: Any) -> SourceSpan:
    return source.lines.span(coord.line, coord.column or 1) if coord is not None else span


def _warning(span: SourceSpan, message: str) -> Diagnostic:
    return Diagnostic(Severity.WARNING, span, message)
