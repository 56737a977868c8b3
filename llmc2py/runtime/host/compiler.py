"""The system's compiler: finding it, and building kernels, the runtime library and C references with it."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.host.cache import build_once, cache_root, content_key
from llmc2py.runtime.host.unit import translation_unit
from llmc2py.runtime.source import KernelRequest

_HERE = pathlib.Path(__file__).parent
INCLUDE = _HERE / "include"
_SOURCES = _HERE / "src"

# No contraction and no fast mathematics: a kernel's float arithmetic is to be reproducible. Its assertions always hold.
# Frames larger than the guard below a stack are touched page by page, so that none reaches over it.
_COMMON = ("-fPIC", "-ffp-contract=off", "-w", "-UNDEBUG", "-fstack-clash-protection")
_KERNEL = ("-std=c++17", "-O2", *_COMMON, "-fvisibility=hidden")
_CHECKS = ("-fsanitize=thread", "-fsanitize=integer-divide-by-zero", "-DLLMC2PY_CHECK")
_CHECKED = ("-std=c++17", "-O1", "-gdwarf-4", *_COMMON, "-fvisibility=hidden", *_CHECKS)
# Kernels find their indices at a fixed offset from the thread pointer; the runtime keeps few thread-local bytes for it.
# Vector loads of what was just stored word by word would stall.
_RUNTIME = (*_KERNEL, "-ftls-model=initial-exec", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-pthread")
_REFERENCE = ("-std=c99", "-O2", *_COMMON)

_ERRORS_SHOWN = 6
# What GCC and clang say of a name that nothing declares, and of a header that is not there.
_UNDECLARED = re.compile(
    r"error: (?:'(?P<gcc>\w+)' (?:was not declared in this scope|has not been declared|does not name a type)"
    r"|'(?P<member>\w+)' (?:is not a member of|in namespace) '(?P<space>[\w:]+)'"
    r"|there are no arguments to '(?P<dependent>\w+)'"
    r"|(?:use of undeclared identifier|unknown type name) '(?P<clang>\w+)'"
    r"|no (?:member|template|type) named '(?P<named>\w+)' in namespace '(?P<of>[\w:]+)')"
    r"|fatal error: '?(?P<header>[\w./]+)'?(?:: No such file| file not found)"
)
# Names that CUDA gives, or keeps for itself. Of any other the compiler's own message is all that there is to say.
_OF_CUDA = re.compile(
    r"__\w+|atomic[A-Z]\w*|h2[a-z]\w*|(?:erf|erfc|normcdf)invf?|erfcxf?|r?normf?|cyl_bessel_i[01]f?"
    r"|(?:tex|surf)(?:[123]D|Cube)\w*|cu(?:da|rand)?[A-Z]\w*|curand_\w+|cuda|nvcuda|wmma|thrust"
    r"|(?:cub|cooperative_groups)::\w+|<(?:cu|cooperative_groups|mma|nv|thrust)[\w./]*>"
)


@dataclass(frozen=True)
class Compiler:
    """A compiler command (a path, then leading options), and the first line of what ``--version`` prints."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether this is clang, which names its precompiled headers otherwise than GCC."""
        return "clang" in self.version.lower()

    @property
    def options(self) -> tuple[str, ...]:
        """What this compiler alone is told, and knows.

        GCC's if-conversion takes a load of a vector for that of its elements, and makes it whatever the address.
        """
        return () if self.is_clang else ("-fno-if-conversion", "-fno-if-conversion2")


def _find(variables: Sequence[str], names: Sequence[str], what: str) -> Compiler:
    for variable in variables:
        chosen = os.environ.get(variable, "").split()
        if chosen:
            path = shutil.which(chosen[0])
            if path is None:
                raise ToolMissingError(f"{variable} names {chosen[0]!r}, which is not an executable file")
            return _inspect((path, *chosen[1:]))
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return _inspect((path,))
    raise ToolMissingError(
        f"the CPU backend needs a {what} and found none of {', '.join(names)}: install one (Debian, Ubuntu: apt "
        f"install g++; Fedora: dnf install gcc-c++) or set {variables[0]} to its path"
    )


@functools.cache
def _inspect(command: tuple[str, ...]) -> Compiler:
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        raise ToolMissingError(f"{command[0]} --version failed: {shown.stderr.strip()}")
    return Compiler(command, shown.stdout.partition("\n")[0].strip())


def find_compiler() -> Compiler:
    """Return the C++ compiler: ``LLMC2PY_CXX``, ``CXX``, else the first of c++, g++, clang++ on the path.

    Raises ToolMissingError, which says what to install, where there is none.
    """
    return _find(("LLMC2PY_CXX", "CXX"), ("c++", "g++", "clang++"), "C++17 compiler")


def find_c_compiler() -> Compiler:
    """Return the C compiler: ``LLMC2PY_CC``, ``CC``, else the first of cc, gcc, clang. Raises ToolMissingError."""
    return _find(("LLMC2PY_CC", "CC"), ("cc", "gcc", "clang"), "C99 compiler")


def _errors_of(output: str) -> str:
    lines = [line for line in output.splitlines() if "error:" in line or "undefined reference" in line]
    return "\n".join(list(dict.fromkeys(lines or output.splitlines()))[:_ERRORS_SHOWN])


def _missing(errors: str) -> str:
    """Return a line on the names of CUDA that errors say are not there; "" where they say so of none."""
    found: list[str] = []
    for one in _UNDECLARED.finditer(errors):
        space, name = one["space"] or one["of"], one["member"] or one["named"]
        plain = one["gcc"] or one["dependent"] or one["clang"]
        found.append(f"<{one['header']}>" if one["header"] else plain or f"{space}::{name}")
    names = ", ".join(name for name in dict.fromkeys(found) if _OF_CUDA.fullmatch(name))
    if not names:
        return ""
    return (
        f"\nnot in the CPU backend: {names}; the kernel may run on CUDA, and on the CPU with C++ in their place "
        "between #ifdef LLMC2PY_CPU and #else"
    )


def _compile(
    compiler: Compiler,
    options: Sequence[str],
    folder: pathlib.Path,
    what: str,
    explained: Callable[[str], str] | None = None,
) -> None:
    command = [*compiler.command, *compiler.options, *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode != 0:
        more = explained(done.stderr) if explained else ""
        raise CompileError(f"{what} does not compile with {compiler.version}:\n{_errors_of(done.stderr)}{more}")


@functools.cache
def _tree_key() -> str:
    files = sorted(path for root in (INCLUDE, _SOURCES) for path in root.rglob("*") if path.is_file())
    return content_key(*(f"{path.relative_to(_HERE)}\n{path.read_text(encoding='utf-8')}" for path in files))


def _folder() -> pathlib.Path:
    folder = cache_root() / "host"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(compiler: Compiler, options: Sequence[str], *parts: str) -> str:
    return content_key(*compiler.command, compiler.version, *compiler.options, *options, _tree_key(), *parts)


def _build_runtime(compiler: Compiler) -> pathlib.Path:
    target = _folder() / f"libllmc2py-{_key(compiler, _RUNTIME)}.so"

    def build(folder: pathlib.Path, output: pathlib.Path) -> None:
        # One unit: the headers of the standard library cost more than the sources.
        sources = sorted(path.name for path in _SOURCES.glob("*.cpp"))
        unit = "".join(f'#include "{source}"\n' for source in sources)
        (folder / "runtime.cpp").write_text(unit, encoding="utf-8")
        # Kernel libraries find the runtime by this name, once it is loaded.
        name = f"-Wl,-soname,{target.name}"
        options = [*_RUNTIME, "-shared", f"-I{INCLUDE}", f"-I{_SOURCES}", "runtime.cpp", name, "-o", str(output)]
        _compile(compiler, options, folder, "the CPU runtime")

    return build_once(target, build)


@functools.lru_cache(maxsize=4)
def _load(path: pathlib.Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def runtime_library() -> ctypes.CDLL:
    """Return the runtime library (scheduler, launches, checks), built for the compiler that is found."""
    return _load(_build_runtime(find_compiler()))


def _build_prelude(compiler: Compiler) -> pathlib.Path:
    """Return a header to ``-include``; its precompiled form lies beside it, where compilers look for it."""
    suffix = "pch" if compiler.is_clang else "gch"
    home = _folder() / f"prelude-{_key(compiler, _KERNEL)}"
    home.mkdir(exist_ok=True)
    header = home / "prelude.h"

    def write(_folder: pathlib.Path, output: pathlib.Path) -> None:
        output.write_text('#include "cuda_host.h"\n', encoding="utf-8")

    def build(folder: pathlib.Path, output: pathlib.Path) -> None:
        options = [*_KERNEL, f"-I{INCLUDE}", "-x", "c++-header", str(header), "-o", str(output)]
        _compile(compiler, options, folder, "the CPU backend's CUDA header")

    build_once(header, write)
    build_once(header.with_name(f"prelude.h.{suffix}"), build)
    return header


def build_kernel(request: KernelRequest, *, checked: bool = False) -> pathlib.Path:
    """Compile the kernel of ``request`` unless the cache has it, and return its library.

    ``checked`` instruments every access to memory. Raises CompileError with the first errors, or ToolMissingError.
    """
    compiler = find_compiler()
    options = _CHECKED if checked else _KERNEL
    unit = translation_unit(request)
    target = _folder() / f"{_key(compiler, options, unit)}.so"

    def build(folder: pathlib.Path, output: pathlib.Path) -> None:
        runtime = _build_runtime(compiler)
        prelude = INCLUDE / "cuda_host.h" if checked else _build_prelude(compiler)
        (folder / "kernel.cpp").write_text(unit, encoding="utf-8")
        what = f"kernel {request.name} ({request.precision})"
        compiling = [*options, f"-I{INCLUDE}", "-include", str(prelude), "-c", "kernel.cpp", "-o", "kernel.o"]
        _compile(compiler, compiling, folder, what, _missing)
        # Linked apart: with -fsanitize=thread the linker would bring in the sanitizer's own runtime.
        _compile(compiler, ["-shared", "kernel.o", str(runtime), "-o", str(output)], folder, what)

    return build_once(target, build)


def load_kernel(request: KernelRequest, *, checked: bool = False) -> tuple[ctypes.CDLL, pathlib.Path]:
    """Return the loaded library of a kernel and its path; a damaged file in the cache is built again."""
    runtime_library()
    path = build_kernel(request, checked=checked)
    try:
        return ctypes.CDLL(str(path)), path
    except OSError:
        path.unlink(missing_ok=True)
        path = build_kernel(request, checked=checked)
        return ctypes.CDLL(str(path)), path


def compile_c(source: str, name: str) -> ctypes.CDLL:
    """Compile a C99 translation unit (``-O2``, never fast mathematics) and load it; ``name`` is for messages.

    Raises CompileError with the compiler's first errors, or ToolMissingError.
    """
    compiler = find_c_compiler()
    target = _folder() / f"c-{content_key(*compiler.command, compiler.version, *_REFERENCE, source)}.so"

    def build(folder: pathlib.Path, output: pathlib.Path) -> None:
        (folder / "reference.c").write_text(source, encoding="utf-8")
        _compile(
            compiler, [*_REFERENCE, "-shared", "reference.c", "-o", str(output), "-lm"], folder, f"C source {name}"
        )

    return ctypes.CDLL(str(build_once(target, build)))
