"""Cutting out the smallest translation unit that compiles one kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property, lru_cache

from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan
from llmc2py.frontend.devicenames import DEVICE_FUNCTIONS
from llmc2py.frontend.hostmembers import device_words, without_host_members
from llmc2py.frontend.systemheaders import brings, headers_of
from llmc2py.ir.library import Item, Slice

#: Items whose names qualify nothing.
_NO_SCOPES = frozenset({"function", "declaration", "preproc_def", "preproc_function_def", "namespace_alias_definition"})
_NAME = re.compile(r"[A-Za-z_]\w*")
#: Functions of libraries and of C that run on the host alone, whatever header declares them.
_HOST_LIBRARIES = re.compile(
    r"(?:cublas|cudnn|cufft|curand|cusolver|cusparse|cutensor|nccl|nvrtc)[A-Z]\w*|fopen|fclose|fread|fwrite|fprintf|exit"
)
#: ``__constant__ float taps[9];``: nought, until host code copies something to it.
_UNFILLED_CONSTANT = re.compile(r"^[\w\s()]*\b__constant__\b[^={]*;\s*$")


class Slicer:
    """Slices the kernels of one translation unit, given all of its items."""

    def __init__(self, items: Iterable[Item], system_headers: Iterable[str]) -> None:
        self.items = list(items)
        self.system_headers = tuple(system_headers)
        self.by_name: dict[str, list[Item]] = defaultdict(list)
        self._bared: dict[int, Item] = {}
        for item in self.items:
            for name in item.defines:
                self.by_name[name].append(item)

    def slice(self, kernel: Item, name: str, passed: Iterable[str] = ()) -> tuple[Slice, list[Diagnostic]]:
        """Return the slice of one kernel, and an error for every host function that it reaches.

        ``passed`` are names that launches pass to the kernel as template arguments.
        """
        chosen: dict[int, Item] = {kernel.order: kernel}
        diagnostics: list[Diagnostic] = []
        pending = [kernel]
        for target in (target for used in sorted(passed) for target in self.by_name.get(used, ())):
            if target.order not in chosen and self._usable(target, name):
                chosen[target.order] = target
                pending.append(target)
        while pending:
            item = self._bare(pending.pop())
            chosen[item.order] = item
            diagnostics += self._library_calls(name, item)
            diagnostics += self._launches_and_constants(name, item)
            for used in sorted(item.uses.union(*map(_names_in, item.conditions))):
                for target in self.by_name.get(used, ()):
                    if target.order in chosen:
                        continue
                    if self._usable(target, used):
                        chosen[target.order] = target
                        pending.append(target)
                    elif used in item.calls and self._is_host_call(used) and self._names_own(item, used):
                        diagnostics.append(_host_call(name, used, item, target))
        self._add_using_directives(chosen)
        items = tuple(self._merge_statements(chosen))
        return Slice(name, items, headers_of(items, self.system_headers), _uses_precision(items)), _unique(diagnostics)

    def _bare(self, item: Item) -> Item:
        """Return an item without what only the host uses of it."""
        if item.order not in self._bared:
            self._bared[item.order] = without_host_members(
                item, lambda word: word in self._device_words, self._is_host_call
            )
        return self._bared[item.order]

    @cached_property
    def _device_words(self) -> set[str]:
        return {word for item in self.items for word in device_words(item)}

    def _library_calls(self, kernel: str, item: Item) -> list[Diagnostic]:
        unknown = sorted(used for used in item.calls if used not in self.by_name)
        return [_host_call(kernel, used, item) for used in unknown if self._is_host_call(used)]

    def _is_host_call(self, name: str) -> bool:
        """Whether a call of a name is one of a function that only the host has."""
        if name not in self.by_name:
            return _HOST_LIBRARIES.fullmatch(name) is not None
        # What CUDA has for the device, an overload for the host does not take away.
        return name not in DEVICE_FUNCTIONS and not self._has_device_version(name)

    def _names_own(self, item: Item, name: str) -> bool:
        """Whether some call of a name means what the source defines: it is not qualified with what others define."""
        owners = re.findall(rf"((?:\w+\s*::\s*)*)\b{re.escape(name)}\s*(?:<[^;{{}}()]*>)?\s*\(", item.text)
        return not owners or any(one.partition("::")[0].strip() in self._own_scopes for one in owners)

    @cached_property
    def _own_scopes(self) -> frozenset[str]:
        """The names of the namespaces and classes of the source, and those that stand for one of its namespaces."""
        # What is written without an owner, or after a word of C++, is looked for in the source too.
        own = {"", "return", "else", "do"}
        own |= {word for item in self.items for scope in item.scopes for word in _NAME.findall(scope)}
        own |= {name for item in self.items if item.kind not in _NO_SCOPES for name in item.defines}
        for item in self.items:
            if item.kind == "namespace_alias_definition" and own & set(_NAME.findall(item.text.partition("=")[2])):
                own |= item.defines
        return frozenset(own)

    def _launches_and_constants(self, kernel: str, item: Item) -> list[Diagnostic]:
        """Report child launches, and constant memory that only host code fills: neither is there for a lone kernel."""
        found = []
        for used in sorted(item.uses):
            targets = self.by_name.get(used, ())
            is_launched = "<<<" in item.text and any(target.is_kernel for target in targets)
            launch = _place_of(used, item, rf"\b{re.escape(used)}\s*(?:<[^;{{}}]*>)?\s*<<<") if is_launched else None
            if launch is not None:
                message = f"kernel {kernel} launches kernel {used}, which is not supported: launch it from host code"
                found.append(Diagnostic(Severity.ERROR, launch, message, kernel))
            constant = next((target for target in targets if _is_unfilled(target.text)), None)
            if constant is not None and constant is not item:
                message = (
                    f"kernel {kernel} reads __constant__ {used} (defined at {constant.span.origin}), which only host "
                    f"code can fill: pass it as a parameter or give it its values where it is defined"
                )
                place = _place_of(used, item, rf"\b{re.escape(used)}\b") or item.span
                found.append(Diagnostic(Severity.ERROR, place, message, kernel))
        return found

    def _usable(self, target: Item, name: str) -> bool:
        return target.is_device and not target.is_kernel

    def _has_device_version(self, name: str) -> bool:
        return any(item.is_device for item in self.by_name[name])

    def _add_using_directives(self, chosen: dict[int, Item]) -> None:
        """``using namespace x;`` names nothing, so nothing reaches it: it comes along with what is used of x."""
        words = {word for item in chosen.values() for word in item.uses}
        for item in self.items:
            if item.kind == "using_declaration" and not item.defines and (item.uses & words or brings(item, words)):
                chosen[item.order] = item

    @staticmethod
    def _merge_statements(chosen: dict[int, Item]) -> list[Item]:
        return [chosen[order] for order in sorted(chosen)]


@lru_cache(maxsize=1024)
def _names_in(condition: str) -> frozenset[str]:
    return frozenset(_NAME.findall(condition))


def _host_call(kernel: str, used: str, item: Item, target: Item | None = None) -> Diagnostic:
    """Report the call of a function of the source (``target``) or of a library."""
    if target is None:
        what, remedy = f"{used}, which no kernel can", "call it between launches"
    else:
        what, remedy = f"{used} (defined at {target.span.origin})", "make it __device__"
    message = f"kernel {kernel} calls host function {what}; {remedy} or leave the kernel out with --only"
    place = _place_of(used, item, rf"\b{re.escape(used)}\s*\(") or item.span
    return Diagnostic(Severity.ERROR, place, message, kernel)


def _is_unfilled(text: str) -> bool:
    return "__constant__" in text and _UNFILLED_CONSTANT.search(text) is not None


def _place_of(name: str, item: Item, pattern: str) -> SourceSpan | None:
    """Return where an item has what ``pattern`` finds in a line that holds ``name``."""
    for line, place in zip(item.text.split("\n"), item.lines, strict=False):
        found = re.search(pattern, line) if name in line else None
        if found:
            return SourceSpan(place.file, place.line, found.start() + 1)
    return None


def _uses_precision(items: tuple[Item, ...]) -> bool:
    return any("ENABLE_" in condition for item in items for condition in item.conditions)


def _unique(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    return list(dict.fromkeys(diagnostics))
