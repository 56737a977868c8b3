"""One function of plain C, read with pycparser and rewritten to double."""

from __future__ import annotations

import functools
import re
from typing import Any

from pycparser import c_ast, c_lexer, c_parser

from llmc2py.frontend.cdouble import double_unit
from llmc2py.frontend.cnames import INTEGER_TYPES, REAL_TYPES, SUPPLIED, UnreadableError
from llmc2py.frontend.ctext import matching_end

#: Names of parameters with their types, the type that is returned, the source.
PlainFunction = tuple[tuple[tuple[str, str], ...], str, str]

_TYPEDEFS = {
    **{name: f"typedef {ctype} {name};" for name, ctype in INTEGER_TYPES.items()},
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
#: A function's name and parameters, and a default argument among them.
_HEADER = re.compile(r"\b(?!(?:if|while|for|switch)\b)\w+\s*\([^(){};]*\)\s*\{")
_DEFAULT = re.compile(r"\s*=\s*[-+.\w]+(?=\s*[,)])")
_PLACE = re.compile(r"^(?:[^\n]*?):(\d+)(?::(\d+))?: ?(.*)", re.DOTALL)


def read_function(assembled: str, name: str, *, abs_is_generic: bool) -> PlainFunction:
    """Return the parameters of a function, names with canonical types, its return type, and its source in double.

    ``assembled`` holds what it reaches as well. ``abs_is_generic`` tells that a plain ``abs`` is C++'s, which keeps its
    argument's type. Raises UnreadableError with the line that ``#line`` directives say.
    """
    text = _Plain(assembled)
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
    return params, return_type, double_unit(unit, name, operands, abs_is_generic=abs_is_generic)


def _is_supplied(node: Any, text: _Plain) -> bool:
    names = SUPPLIED | set(text.operands) | set(text.operands.values())
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
    spelled = " ".join(INTEGER_TYPES.get(name, name) for name in names).split()
    words = [
        word for word in sorted(spelled) if word not in ("int", "signed") or (word == "signed" and "char" in spelled)
    ]
    if " ".join(words) not in _CANONICAL:
        raise UnreadableError(f"the type {' '.join(names)} is neither a number nor a pointer to numbers", node.coord)
    return _CANONICAL[" ".join(words)]


def _qualifiers(node: Any) -> list[str]:
    quals: list[str] = getattr(node, "quals", [])
    return quals


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
        place = (int(match[1]), int(match[2] or 1)) if match else (token.lineno, getattr(token, "column", 1))
        told = match[3].strip() if match else str(error).removeprefix("text: ")
        before = re.match(r"before: (.*)", told)
        where = f" at '{before[1]}'" if before else f" ({told})"
        raise UnreadableError(f"it is not plain C{where}", place) from error
