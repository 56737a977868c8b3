"""From a kernel's slice to a C++ translation unit for the host compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmc2py.runtime.dtypes import PRECISION_MACROS
from llmc2py.runtime.source import KernelRequest

# The end of `extern __shared__ __align__(16) TYPE NAME[];`, whose words come in any order.
_UNSIZED_ARRAY = re.compile(r"\b(?P<name>\w+)\s*\[\s*\]\s*;")
# What a declaration may stand behind: of a macro, the names that it defines alone.
_STATEMENT_START = re.compile(
    r"[;{}]|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*(?<!\\)\n|^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^()\n]*\))?", re.MULTILINE
)
_NO_PART_OF_TYPE = re.compile(
    r"\b(?:extern|static|inline|__shared__)\b|\b(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|\[\[.*?\]\]|\\\n"
)
_STATIC_SHARED = re.compile(r"\bstatic\s+(?=__shared__\b)|(?<=\b__shared__)\s+static\b")
# C++ wants an attribute before the storage class that __shared__ stands for.
_ALIGNED_SHARED = re.compile(r"\b__shared__(\s+)(alignas\s*\([^()]*(?:\([^()]*\)[^()]*)*\))")
_NOINLINE = re.compile(r"(?<![\w(])__noinline__\b")
_BRACE = re.compile(r"(\bnamespace\b[^{};]*|\bextern\s*)?\{|\}")
# A quote behind a digit parts thousands.
_COMMENT_OR_STRING = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'", re.DOTALL
)
_ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b(?:\s+(?:volatile|__volatile__|inline|goto))*\s*\(")
_NO_INSTRUCTION = re.compile(r"\s*\"\"\s*[:)]")
_LINE_END = re.compile(r"\\?\n")


@dataclass(frozen=True)
class _DynamicShared:
    """The declaration of a dynamic shared array, and where it stands in the text."""

    name: str
    type: str
    start: int
    end: int


def _dynamic_shared(text: str) -> list[_DynamicShared]:
    if "__shared__" not in text:
        return []
    code = _COMMENT_OR_STRING.sub(_masked, text)
    found = []
    for array in _UNSIZED_ARRAY.finditer(code):
        starts = (one.end() for one in _STATEMENT_START.finditer(code, 0, array.start()))
        head = code[max(starts, default=0) : array.start()].lstrip(" \t\n\\")
        if {"extern", "__shared__"} <= set(re.findall(r"\w+", head)):
            start = array.start() - len(head)
            element = " ".join(_NO_PART_OF_TYPE.sub(" ", head).split())
            found.append(_DynamicShared(array["name"], element, start, array.end()))
    return found


def dynamic_shared_names(text: str) -> list[str]:
    """Return the names of the dynamic shared arrays that a slice's text declares."""
    return sorted({one.name for one in _dynamic_shared(text)})


def _is_in_braces(text: str) -> bool:
    """Whether what follows stands in a function or class; the braces of namespaces do not count."""
    opened: list[bool] = []
    for brace in _BRACE.finditer(_COMMENT_OR_STRING.sub("", text)):
        if brace[0] != "}":
            opened.append(brace[1] is None)
        elif opened:
            opened.pop()
    return any(opened)


def _masked(match: re.Match[str]) -> str:
    """Return as much text as a comment or literal has, without its words and parentheses."""
    is_literal = match[0][0] in "\"'"
    inside = re.sub(r"[^\n]", "." if is_literal else " ", match[0][1:-1])
    return f'"{inside}"' if is_literal else f" {inside} "


def _refuse_ptx(text: str) -> str:
    """Return text in which each statement of inline PTX is a call that the compiler reports where it would be made.

    Outside of functions `asm` names something for the linker.
    """
    if "asm" not in text:
        return text
    code = _COMMENT_OR_STRING.sub(_masked, text)
    parts: list[str] = []
    done = 0
    for asm in _ASM.finditer(code):
        if asm.start() < done or _NO_INSTRUCTION.match(code, asm.end()) or not _is_in_braces(text[: asm.start()]):
            continue
        end, depth = asm.end(), 1
        while depth and end < len(code):
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        # Those of a macro stay its own.
        lines = "".join(_LINE_END.findall(text[asm.start() : end]))
        parts += [text[done : asm.start()], f"llmc2py::inline_ptx(){lines}"]
        done = end
    return "".join(parts) + text[done:]


def _declared(array: _DynamicShared, text: str) -> str:
    """Return what stands for the declaration of a dynamic shared array of a text."""
    if not _is_in_braces(text[: array.start]):
        return f"static const llmc2py::DynamicShared<{array.type}> {array.name};"
    return f"auto *{array.name} = static_cast<std::add_pointer_t<{array.type}>>(llmc2py_dynamic_shared);"


def host_text(text: str) -> str:
    """Return CUDA text as the C++ that ``cuda_host.h`` makes compile; the number of lines stays."""
    text = _refuse_ptx(text)
    parts: list[str] = []
    done = 0
    for one in _dynamic_shared(text):
        lines = "".join(_LINE_END.findall(text[one.start : one.end]))
        parts += [text[done : one.start], _declared(one, text), lines]
        done = one.end
    rewritten = "".join(parts) + text[done:]
    rewritten = _STATIC_SHARED.sub("", rewritten)
    rewritten = _ALIGNED_SHARED.sub(r"\2\1__shared__", rewritten)
    return _NOINLINE.sub("__attribute__((noinline))", rewritten)


def translation_unit(request: KernelRequest) -> str:
    """Return the unit that compiles the kernel of ``request`` and exports the runtime's entrance to it."""
    lines = [
        f"#define {PRECISION_MACROS[request.precision]} 1",
        *([f"#define {request.selector} 1"] if request.selector else []),
        f'#line 1 "{request.source.path.name}"',
        host_text(request.source.text),
        '#line 1 "entry of the kernel"',
        f"LLMC2PY_ENTRY({request.name})",
        "",
    ]
    return "\n".join(lines)
