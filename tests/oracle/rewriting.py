"""From a source file to a C++ unit that exports its launchers, launches turned into recorded calls.

The text is the preprocessed one. A launch ``k<T><<<grid, block>>>(a, b)`` becomes a call of a shadow, a function with
the template header and the parameters of the kernel, so that C++ itself deduces and converts; the shadow records and
runs the kernel. A launcher gets a shadow too, which gives it a name that no kernel shares.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmc2py.frontend.declarations import function_declarator, read_template
from llmc2py.frontend.hostcode import launch_of
from llmc2py.frontend.items import Declaration
from llmc2py.frontend.preprocess import preprocess
from llmc2py.frontend.reader import ReadCache
from llmc2py.frontend.syntax import Node, SyntaxTree, child, named, walk
from llmc2py.frontend.unit import UnitReader
from llmc2py.ir.library import Item
from llmc2py.runtime.dtypes import PRECISION_MACROS
from llmc2py.runtime.host.kernel import PROPERTIES
from llmc2py.runtime.host.unit import host_text

SHADOW = "llmc2py_oracle_kernel_"
HOST = "llmc2py_oracle_host_"
SETUP = "setup_main"
_PARAMETERS = ("parameter_declaration", "optional_parameter_declaration")
_PROPERTIES_OF_THE_PROGRAM = re.compile(r"\bextern\s+cudaDeviceProp\s+(\w+)\s*;")

#: An edit: what stands from one byte to another gives way to a text.
Edit = tuple[int, int, str]


@dataclass(frozen=True)
class Exported:
    """A launcher with its template arguments in C++.

    ``callees`` are the functions that parameters stand for; ``globals`` are variables of the program that further
    arguments are assigned to, and ``count`` the parameters before them.
    """

    launcher: str
    template: tuple[str, ...] = ()
    callees: tuple[tuple[int, str], ...] = ()
    globals: tuple[str, ...] = ()
    count: int = 0


def oracle_unit(path: pathlib.Path, root: pathlib.Path, precision: str, exported: Sequence[Exported]) -> str:
    """Return the C++ unit of one source file; entry number i calls ``exported[i]``."""
    unit = UnitReader(preprocess(path, root, (cache := ReadCache()).texts, cache.headers), {})
    wanted = {SETUP, *(one.launcher for one in exported), *(name for one in exported for _, name in one.callees)}
    text = _applied(unit.tree.source, list(_edits(unit, _reached(unit, wanted), wanted)))
    program = _PROPERTIES_OF_THE_PROGRAM.findall(text)
    lines = [
        f"#define {PRECISION_MACROS[precision]} 1",
        f"const cudaDeviceProp llmc2py_oracle::properties = {_properties()};",
        f'#line 1 "{path.name}"',
        host_text(text),
        '#line 1 "entries of the launchers"',
        *(f"cudaDeviceProp {name} = llmc2py_oracle::properties;" for name in dict.fromkeys(program)),
        'extern "C" __attribute__((visibility("default"))) void llmc2py_oracle_setup(void)',
        f"{{ {f'{SETUP}();' if SETUP in unit.functions else ''} }}",
        *(_entry(number, one) for number, one in enumerate(exported)),
        "",
    ]
    return "\n".join(lines)


def _properties() -> str:
    """Return the CPU backend's device as C++ initialises a cudaDeviceProp, whose fields have the same order."""
    values = [*vars(PROPERTIES).values()]
    shown = [f'"{value}"' if isinstance(value, str) else _braced(value) for value in values]
    return f"{{{', '.join(shown)}}}"


def _braced(value: object) -> str:
    return f"{{{', '.join(map(str, value))}}}" if isinstance(value, tuple) else str(value)


def _entry(number: int, one: Exported) -> str:
    template = f"<{', '.join(one.template)}>" if one.template else ""
    prepared = "".join(
        f"static auto *c{index} = &{HOST}{name}; arguments[{index}] = &c{index}; " for index, name in one.callees
    )
    prepared += "".join(
        f"{name} = *static_cast<decltype({name}) *>(arguments[{one.count + index}]); "
        for index, name in enumerate(one.globals)
    )
    return (
        f'extern "C" __attribute__((visibility("default"))) int llmc2py_oracle_entry_{number}(void **arguments)\n'
        f"{{ {prepared}return llmc2py_oracle::call<&{HOST}{one.launcher}{template}>(arguments); }}"
    )


def _reached(unit: UnitReader, wanted: set[str]) -> set[str]:
    """Return the host functions that the wanted ones use, themselves included."""
    uses: dict[str, set[str]] = {}
    for item, declaration in zip(unit.items, unit.declarations, strict=True):
        if declaration.function is not None:
            for name in item.defines:
                uses.setdefault(name, set()).update(item.uses)
    reached: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name not in reached and name in uses:
            reached.add(name)
            pending += uses[name]
    return reached


def _edits(unit: UnitReader, reached: set[str], wanted: set[str]) -> Iterator[Edit]:
    for item, declaration in zip(unit.items, unit.declarations, strict=True):
        node, function = declaration.node, declaration.function
        if function is None:
            continue
        if _is_kernel(item):
            yield node.end_byte, node.end_byte, _kernel_shadow(unit.tree, declaration)
        elif not item.is_device and not item.defines & reached:
            # The lines stay, so that messages of the compiler name the place.
            yield node.start_byte, node.end_byte, "\n" * unit.tree.text(node).count("\n")
            continue
        elif not item.is_device and item.defines & wanted:
            yield node.end_byte, node.end_byte, _host_shadow(unit.tree, declaration)
        for launch in walk(function):
            configuration = launch_of(launch)
            if configuration is not None:
                yield from _launch_edits(unit.tree, launch, configuration)


def _is_kernel(item: Item) -> bool:
    return "__global__" in item.text.split("{")[0]


# kernel<T><<<grid, block, shared, stream>>>(a, b)
def _launch_edits(tree: SyntaxTree, launch: Node, configuration: Node) -> Iterator[Edit]:
    parts = ", ".join(tree.text(part) for part in named(configuration))
    yield launch.start_byte, launch.start_byte, f"(llmc2py_oracle::configure({parts}), "
    name = child(launch, "function")
    while name.type in ("template_function", "qualified_identifier"):
        name = child(name, "name")
    yield name.start_byte, name.start_byte, SHADOW
    yield configuration.start_byte, configuration.end_byte, ""
    yield launch.end_byte, launch.end_byte, ")"


def _kernel_shadow(tree: SyntaxTree, declaration: Declaration) -> str:
    parameters, names = _parameters(tree, declaration)
    name = _name(tree, declaration)
    template = read_template(tree, declaration.template) if declaration.template is not None else ()
    shown = [f"llmc2py_oracle::{'type_name' if one.kind == 'type' else 'value_name'}<{one.name}>()" for one in template]
    arguments = f"<{', '.join(one.name for one in template)}>" if template else ""
    types = ", ".join(f"decltype({one})" for one in names)
    kernel = f"static_cast<void (*)({types})>(&{name}{arguments})"
    values = "".join(f", {one}" for one in names)
    return (
        f" {_template_header(tree, declaration)} static inline void {SHADOW}{name}({parameters}) "
        f'{{ llmc2py_oracle::launch<{kernel}>("{name}", {{{", ".join(shown)}}}{values}); }}'
    )


def _host_shadow(tree: SyntaxTree, declaration: Declaration) -> str:
    parameters, names = _parameters(tree, declaration)
    name = _name(tree, declaration)
    header = _template_header(tree, declaration)
    template = read_template(tree, declaration.template) if declaration.template is not None else ()
    arguments = f"<{', '.join(one.name for one in template)}>" if template else ""
    return f" {header} static inline void {HOST}{name}({parameters}) {{ {name}{arguments}({', '.join(names)}); }}"


def _template_header(tree: SyntaxTree, declaration: Declaration) -> str:
    if declaration.template is None:
        return ""
    return f"template {tree.text(child(declaration.template, 'parameters'))}"


def _name(tree: SyntaxTree, declaration: Declaration) -> str:
    assert declaration.function is not None
    declarator = function_declarator(declaration.function)
    assert declarator is not None
    return tree.text(child(declarator, "declarator"))


def _parameters(tree: SyntaxTree, declaration: Declaration) -> tuple[str, list[str]]:
    """Return the parameters of a function as it declares them, each with a name, and the names."""
    assert declaration.function is not None
    declarator = function_declarator(declaration.function)
    assert declarator is not None
    texts, names = [], []
    for index, node in enumerate(item for item in named(child(declarator, "parameters")) if item.type in _PARAMETERS):
        inner = node.child_by_field_name("declarator")
        while inner is not None and inner.type != "identifier":
            inner = inner.child_by_field_name("declarator") or next(iter(named(inner)), None)
        text = " ".join(tree.text(node).split())
        texts.append(text if inner is not None else f"{text} unnamed_{index}")
        names.append(tree.text(inner) if inner is not None else f"unnamed_{index}")
    return ", ".join(texts), names


def _applied(source: bytes, edits: list[Edit]) -> str:
    parts: list[bytes] = []
    end = 0
    for start, stop, text in sorted(edits, key=lambda edit: edit[:2]):
        parts += [source[end:start], text.encode()]
        end = stop
    return b"".join([*parts, source[end:]]).decode()
