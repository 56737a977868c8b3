"""The vendored tree generated anew, and its launchers as compiled C++."""

from __future__ import annotations

import functools
import importlib
import itertools
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.ir import library as ir
from llmc2py.pipeline import generate
from llmc2py.runtime import host
from llmc2py.runtime.launcher import Launcher
from llmc2py.verify.launch_oracle import OracleLibrary, build_oracle
from tests.oracle.launchers import ROWS
from tests.oracle.rewriting import Exported, oracle_unit

ROOT = pathlib.Path(__file__).parents[2] / "vendor" / "llm.c"
INCLUDE = pathlib.Path(__file__).parent / "include"
PACKAGE = "oracle_package"
#: Source file and name of a launcher.
Key = tuple[str, str]


@dataclass(frozen=True)
class Subject:
    """One launcher in one precision: the Python object, the C++ declaration, and the entries by template values."""

    python: Launcher
    cpp: ir.Launcher
    library: OracleLibrary
    entries: dict[tuple[Any, ...], int]


class Subjects:
    """The launchers of a package, compiled file by file as they are asked for."""

    def __init__(self, python: dict[Key, Launcher], cpp: dict[Key, ir.Launcher]) -> None:
        self.python = python
        self._cpp = cpp

    def subject(self, key: Key, precision: str) -> Subject:
        """Return one launcher; all launchers of its file that have the precision are compiled together."""
        library, exported = self._library(key[0], precision)
        callees = tuple(ROWS[key].callees.values())
        entries = {
            tuple(text == "true" for text in one.template if text in ("true", "false")): number
            for number, one in enumerate(exported)
            if one.launcher == key[1] and tuple(name for _, name in one.callees) == callees
        }
        python = self.python[key]
        if ROWS[key].functions:
            python = python.instantiate(*ROWS[key].functions.values())
        return Subject(python, self._cpp[key], library, entries)

    @functools.cache  # noqa: B019 - there is one object for the whole run
    def _library(self, file: str, precision: str) -> tuple[OracleLibrary, list[Exported]]:
        keys = [key for key in ROWS if key[0] == file and precision in ROWS[key].precisions and key in self.python]
        exported = [one for key in keys for one in self._exported(key)]
        unit = oracle_unit(ROOT / file, ROOT, precision, exported)
        return OracleLibrary(build_oracle(unit, INCLUDE, f"{file} ({precision})")), exported

    def _exported(self, key: Key) -> Iterator[Exported]:
        cpp = self._cpp[key]
        names = [parameter.name for parameter in cpp.parameters]
        callees = tuple((names.index(name), callee) for name, callee in ROWS[key].callees.items())
        functions = {cpp.parameters[index].type.base: callee for index, callee in callees}
        asked = [param.name for param in self.python[key].params if param.name not in names]
        choices = []
        for parameter in cpp.template:
            if parameter.name in ROWS[key].functions:
                choices.append([ROWS[key].functions[parameter.name]])
            elif parameter.name in functions:
                choices.append([f"decltype(&{functions[parameter.name]})"])
            else:
                choices.append(["false", "true"] if parameter.kind == "bool" else ["floatX"])
        for template in itertools.product(*choices):
            yield Exported(key[1], template, callees, tuple(asked), len(names))


@pytest.fixture(scope="session")
def package_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of a package that is generated from the vendored tree now."""
    return tmp_path_factory.mktemp("oracle") / PACKAGE


@pytest.fixture(scope="session")
def subjects(package_folder: pathlib.Path) -> Iterator[Subjects]:
    generated = generate(ROOT)
    write_package(package_folder, generated.files)
    cpp = {(file.path, one.name): one for file in generated.library.files for one in file.launchers}
    sys.path.insert(0, str(package_folder.parent))
    try:
        yield Subjects(dict(_launchers(package_folder)), cpp)
    finally:
        sys.path.remove(str(package_folder.parent))


def _launchers(folder: pathlib.Path) -> Iterator[tuple[Key, Launcher]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if path.stem != "__init__":
            module = importlib.import_module(".".join(parts))
            for value in vars(module).values():
                if isinstance(value, Launcher) and value.function.__module__ == module.__name__ and value.origin:
                    yield (value.origin.rpartition(":")[0], value.name), value


@pytest.fixture(scope="session")
def multiprocessors() -> int:
    return host.properties(0).multiProcessorCount
