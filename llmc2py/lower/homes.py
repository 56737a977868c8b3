"""Which kernel and launcher has its home in which generated module."""

from __future__ import annotations

import keyword
import pathlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from llmc2py.ir.catalog import CatalogEntry
from llmc2py.ir.names import PACKAGE_MODULES
from llmc2py.ir.plans import LaunchPlan

#: A source file, "kernel", "launcher" or "replaced", and a name.
Home = tuple[str, str, str]


def find_homes(
    entries: Sequence[CatalogEntry],
    plans: Mapping[tuple[str, str], LaunchPlan],
    kernels: Collection[tuple[str, str]],
    replaced: Collection[tuple[str, str]],
) -> dict[Home, str]:
    """Give everything a module: the op that lists it, the op whose launcher launches it, or its file's own."""
    homes: dict[Home, str] = {}

    def settle(file: str, kind: str, name: str, module: str) -> None:
        if (file, name) in (plans if kind == "launcher" else kernels):
            homes.setdefault((file, kind, name), module)

    for entry in entries:
        for name in entry.launchers:
            settle(entry.source, "launcher", name, entry.name)
        for name in entry.kernels:
            settle(entry.source, "kernel", name, entry.name)
    for entry in entries:
        launched = (plans[entry.source, name].kernels for name in entry.launchers if (entry.source, name) in plans)
        for name in (name for names in launched for name in names):
            settle(entry.source, "kernel", name, entry.name)
    homeless = {file for file, name in plans if (file, "launcher", name) not in homes}
    homeless |= {file for file, name in kernels if (file, "kernel", name) not in homes}
    homeless |= {file for file, name in replaced}
    paths = module_paths(sorted(homeless), [entry.name for entry in entries])
    for file, name in plans:
        settle(file, "launcher", name, paths.get(file, ""))
    for file, name in kernels:
        settle(file, "kernel", name, paths.get(file, ""))
    for file, name in replaced:
        homes[file, "replaced", name] = paths[file]
    return homes


def module_paths(files: Iterable[str], ops: Iterable[str]) -> dict[str, str]:
    """Return the module of each source file: its own path; where something else has that name, with its suffix."""
    plain = {
        file: "/".join(_identifier(part) for part in pathlib.PurePosixPath(file).with_suffix("").parts)
        for file in files
    }
    shared = {path for path, count in Counter(plain.values()).items() if count > 1}
    taken = {*PACKAGE_MODULES, *ops, *(str(folder) for path in plain.values() for folder in _folders(path))}
    found: dict[str, str] = {}
    for file, path in plain.items():
        if path in taken | shared:
            path = f"{path}_{pathlib.PurePosixPath(file).suffix[1:]}"
        while path in taken:
            path += "_"
        taken.add(path)
        found[file] = path
    return found


def _folders(path: str) -> Iterable[pathlib.PurePosixPath]:
    return pathlib.PurePosixPath(path).parents


def _identifier(part: str) -> str:
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in part)
    return f"_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name
