"""Compile one kernel with NVRTC, for a named architecture, with or without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmc2py.runtime.cuda import cache, headers, toolkit
from llmc2py.runtime.cuda.cache import CompiledCubin
from llmc2py.runtime.dtypes import PRECISION_MACROS
from llmc2py.runtime.errors import CompileError, ToolMissingError
from llmc2py.runtime.host.cache import content_key
from llmc2py.runtime.source import KernelRequest

__all__ = ["CompiledCubin", "compile_cubin", "supported_architectures"]

_SHOWN_ERRORS = 5
_OPTIONS = (
    "--std=c++17",
    # Cooperative groups then use type traits of their own: 0.1 s to compile instead of 3 s with those of cuda/std.
    "-D_CG_LIMIT_INCLUDED_DEPENDENCIES",
    f"--pre-include={headers.PRELUDE_NAME}",
    "--diag-suppress=47",
)
_DEFAULT_DEVICE = "--device-as-default-execution-space"
# A template's source need not include the headers of the types that it is instantiated with.
_TYPE_HEADERS = {"half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}


def supported_architectures() -> tuple[str, ...]:
    """Return the architectures that this NVRTC compiles for, oldest first: ``("sm_75", "sm_80", ...)``."""
    return tuple(f"sm_{number}" for number in toolkit.nvrtc_library().getSupportedArchs())


def compile_cubin(request: KernelRequest, arch: str) -> CompiledCubin:
    """Compile a kernel to machine code, or find it in the cache.

    Parameters
    ----------
    request
        The kernel; its text is what is compiled, so an edited text is a new entry.
    arch
        The architecture, ``sm_80``, ``sm_90``, ``sm_100``; no device of it has to be there.

    Raises
    ------
    CompileError
        The source is wrong; the message has the kernel, the first errors and their ``file:line``.
    ToolMissingError
        CuPy, NVRTC or a header is not there, or headers and NVRTC are of different versions.
    ValueError
        This NVRTC does not know the architecture.
    """
    tools = toolkit.find_toolkit()
    options = _options(request, arch, tools)
    key = content_key(*_key_parts(request, options, tools))
    compiled = cache.load(key)
    if compiled is None:
        _check_architecture(arch, tools)
        compiled = _compile(request, options, tools)
        cache.store(key, compiled)
    return compiled


def _options(request: KernelRequest, arch: str, tools: toolkit.Toolkit) -> tuple[str, ...]:
    includes = (f"-I{folder}" for folder in tools.include_folders)
    defines = (f"-D{PRECISION_MACROS[request.precision]}", f"-D{request.selector}")
    named = set(re.findall(r"\w+", request.name))
    headers_of_types = (f"--pre-include={header}" for ctype, header in _TYPE_HEADERS.items() if ctype in named)
    return (*_OPTIONS, *headers_of_types, f"--gpu-architecture={arch}", *defines, *includes)


def _key_parts(request: KernelRequest, options: tuple[str, ...], tools: toolkit.Toolkit) -> list[str]:
    versions = (tools.nvrtc.version, tools.headers and tools.headers.version, toolkit.cccl_version(tools))
    memory = headers.memory_headers(bool(tools.cccl))
    return [request.source.text, request.source.path.name, request.name, *options, str(versions), str(memory)]


def _check_architecture(arch: str, tools: toolkit.Toolkit) -> None:
    known = supported_architectures()
    if re.sub(r"[af]$", "", arch) not in known:
        version = toolkit.version_text(tools.nvrtc.version)
        raise ValueError(f"NVRTC {version} does not compile for {arch!r}; it knows {', '.join(known)}")


def _compile(request: KernelRequest, options: tuple[str, ...], tools: toolkit.Toolkit) -> CompiledCubin:
    compiled, log = _run(request, options, tools)
    if compiled is None and _only_constexpr_lacks_annotation(log):
        # nvcc lets a kernel use an unannotated constexpr function; NVRTC does so only with this option. It would also
        # take any other unannotated function, so it is given only where there is no other.
        compiled, log = _run(request, (*options, _DEFAULT_DEVICE), tools)
    if compiled is None:
        raise _failure(request, log, tools)
    return compiled


def _run(request: KernelRequest, options: tuple[str, ...], tools: toolkit.Toolkit) -> tuple[CompiledCubin | None, str]:
    """Return the compiled kernel, or None and the compiler's log."""
    nvrtc = toolkit.nvrtc_library()
    with _program(nvrtc, request, headers.memory_headers(bool(tools.cccl))) as program:
        nvrtc.addNameExpression(program, request.name)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            return None, nvrtc.getProgramLog(program) or str(error)
        log = nvrtc.getProgramLog(program)
        return CompiledCubin(nvrtc.getCUBIN(program), nvrtc.getLoweredName(program, request.name), log), log


@contextmanager
def _program(nvrtc: Any, request: KernelRequest, memory: dict[str, str]) -> Iterator[int]:
    texts = [text.encode() for text in memory.values()]
    program = nvrtc.createProgram(request.source.text, request.source.path.name, texts, [n.encode() for n in memory])
    try:
        yield program
    finally:
        nvrtc.destroyProgram(program)


# An error of NVRTC: "llmc/gelu.cuh(78): error: identifier "oops" is undefined", the source line, and a caret under it.
_ERROR = re.compile(
    r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<message>.*)\n(?P<source>.*)\n(?P<caret> *\^)?",
    re.MULTILINE,
)
_HOST_FUNCTION = re.compile(r"considered a host function|explicitly marked as a __host__ function")
_NO_HEADER = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')


def _only_constexpr_lacks_annotation(log: str) -> bool:
    errors = list(_ERROR.finditer(log))
    return bool(errors) and all(
        "considered a host function" in error["message"] and re.search(r"\bconstexpr\b", error["source"])
        for error in errors
    )


def _failure(request: KernelRequest, log: str, tools: toolkit.Toolkit) -> CompileError | ToolMissingError:
    missing = _NO_HEADER.search(log)
    if missing and tools.headers is None:
        return ToolMissingError(
            f"kernel {request.name!r} includes <{missing[1]}>, and no CUDA headers were found; {toolkit.INSTALL_HINT}"
        )
    errors = [_describe(error) for error in _ERROR.finditer(log)]
    shown = errors[:_SHOWN_ERRORS] if errors else [log.strip()]
    if len(errors) > _SHOWN_ERRORS:
        shown.append(f"and {len(errors) - _SHOWN_ERRORS} more errors")
    where = f"{request.source.path.name}, {request.precision}"
    return CompileError(f"kernel {request.name!r} ({where}) does not compile:\n" + "\n".join(shown))


def _describe(error: re.Match[str]) -> str:
    message = error["message"]
    if _HOST_FUNCTION.search(message):
        message = f"{_name_at_caret(error)!r} is a host function: a kernel cannot use it; declare it __device__"
    elif error["file"] == "__nv_name_map":
        return f"error: {message} (the kernel's name expression)"
    return f"{error['file']}:{error['line']}: error: {message}\n{error['source']}"


def _name_at_caret(error: re.Match[str]) -> str:
    """Return the identifier that the caret stands under: NVRTC does not name the function otherwise."""
    column = len(error["caret"] or "") - 1
    name = re.match(r"\w+", error["source"][column:]) if column >= 0 else None
    return name.group() if name else error["source"].strip()
