"""The files of a source tree, and for each translation unit a key of everything that reading it can depend on."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator
from functools import cached_property

from llmc2py.caching import content_key
from llmc2py.diagnostics import Diagnostic, Severity, SourceSpan, UsageError

CUDA_SUFFIXES = frozenset({".cu", ".cuh"})
#: Plain headers are read on their own where kernels or launches may be in them.
_OWN = re.compile(rb"__global__|<<<|\bcu(?:da)?Launch\w*Kernel")
HEADER_SUFFIXES = frozenset({".h", ".hpp", ".hh", ".hxx", ".inl"})
_INCLUDED_SUFFIXES = CUDA_SUFFIXES | HEADER_SUFFIXES | {".inc", ".ipp", ".tcc", ".c", ".cpp", ".cc"}
#: More files of one name are no sign of which of them is meant.
_MOST_NAMESAKES = 8
_PACKAGE_MARK = "llmc2py.lock"
#: Whatever may name an included file, in comments and strings too.
_INCLUDE = re.compile(rb'include\s*["<]([^">\n]+)[">]')
_ABSENT = "absent"


def find_sources(root: pathlib.Path) -> tuple[list[pathlib.Path], list[Diagnostic]]:
    """Return the ``.cu`` and ``.cuh`` files under a folder and the headers with kernels or launches.

    Links to folders are not followed. A package that was generated into the tree is not part of its sources. A folder
    that cannot be listed becomes a diagnostic. Raises UsageError where the folder is missing or holds no such file.
    """
    if not root.exists():
        raise UsageError(f"{root}: no such folder; give the root of a source tree with .cu or .cuh files")
    if root.is_file():
        raise UsageError(f"{root}: is a file; give the folder that it lies in (and choose with --only)")
    found: list[pathlib.Path] = []
    unreadable: list[Diagnostic] = []
    for folder, files in _walk(root, lambda error: unreadable.append(_unreadable_folder(error, root))):
        found += [path for name in files if _is_source(path := pathlib.Path(folder, name))]
    if not found:
        raise UsageError("\n".join([f"{root}: no .cu or .cuh file in it", *map(str, unreadable)]))
    return sorted(found), unreadable


def _walk(root: pathlib.Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders of a tree with the names of their files, without hidden folders and generated packages."""
    for folder, folders, files in os.walk(root, onerror=on_error):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not pathlib.Path(folder, name, _PACKAGE_MARK).is_file()
        )
        yield folder, files


def _is_source(path: pathlib.Path) -> bool:
    if path.suffix not in HEADER_SUFFIXES:
        return path.suffix in CUDA_SUFFIXES
    try:
        return path.is_file() and _OWN.search(path.read_bytes()) is not None
    except OSError:
        return False  # what includes it reports it


def _unreadable_folder(error: OSError, root: pathlib.Path) -> Diagnostic:
    place = SourceSpan(os.path.relpath(error.filename, root), 1)
    return Diagnostic(Severity.ERROR, place, f"folder cannot be read: {error.strerror}")


def include_folders(root: pathlib.Path) -> list[pathlib.Path]:
    """Return where quoted includes are looked for: the root and the folders that build files usually name."""
    return [folder for folder in (root, root / "include", root / "src", root / "llmc") if folder.is_dir()]


class HeaderIndex:
    """The files of a tree (a resolved path) that may be included, by name: for includes that a build's options find."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._namesakes: dict[str, list[str]] = {}

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for folder, files in _walk(self._root):
            for name in files:
                if os.path.splitext(name)[1] in _INCLUDED_SUFFIXES:
                    found.setdefault(name, []).append(os.path.join(folder, name))
        return found

    def namesakes(self, name: str) -> list[str]:
        """Return the files that an include may mean by its spelling, in order; none where there are too many."""
        if name not in self._namesakes:
            ending = f"/{os.path.normpath(name)}"
            found = sorted(path for path in self._by_name.get(os.path.basename(name), ()) if path.endswith(ending))
            self._namesakes[name] = found if len(found) <= _MOST_NAMESAKES else []
        return self._namesakes[name]

    def nearest(self, name: str, folder: str) -> str | None:
        """Return the file that alone is called so in the smallest folder around ``folder`` with any; None for several.

        ``folder`` is that of the file which includes it.
        """
        found = self.namesakes(name)
        around = pathlib.PurePath(folder)
        for outer in (around, *around.parents):
            inside = [path for path in found if path.startswith(f"{outer}{os.sep}")]
            if inside:
                return inside[0] if len(inside) == 1 else None
        return None


class UnitKeys:
    """Keys of the translation units of a tree (a resolved path), from the contents of files alone.

    A unit is a function of its own text and of what stands in each place in which an include of it may be looked for.
    Includes are found by their spelling, in each folder of a file that may be included: more than what is really read.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self._root = str(root)
        self.index = HeaderIndex(root)
        self._include_folders = [str(folder) for folder in include_folders(root)]
        self._files: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._paths: dict[tuple[str, str], str] = {}
        self._real_folders: dict[str, str] = {}
        self._relatives: dict[str, str] = {}
        self._keys: dict[pathlib.Path, str | None] = {}

    def key(self, path: pathlib.Path) -> str | None:
        """Return the key of a unit; None where its content cannot be told: then it has to be read each time."""
        if path not in self._keys:
            self._keys[path] = self._make_key(path)
        return self._keys[path]

    def _make_key(self, path: pathlib.Path) -> str | None:
        state, _ = self._file(str(path))
        if state.startswith(_ABSENT):
            return None
        beside = map(self._relative, self._include_folders)
        places = [f"{self._relative(place)}\0{self._file(place)[0]}" for place in sorted(self._places(str(path)))]
        return content_key(self._relative(str(path)), state, *beside, "", *places)

    def places(self, path: pathlib.Path) -> set[str]:
        """Return where an include of a unit may be looked for, from the root, whether or not there is a file."""
        return set(map(self._relative, self._places(str(path))))

    def _relative(self, path: str) -> str:
        known = self._relatives.get(path)
        if known is None:
            known = self._relatives[path] = os.path.relpath(path, self._root)
        return known

    def _places(self, path: str) -> set[str]:
        places: set[str] = set()
        names: set[str] = set()
        folders = set(self._include_folders)
        pending = [path]
        while pending:
            for file in pending:
                names.update(self._file(file)[1])
                folders.add(os.path.dirname(file))
            found = {self._joined(folder, name) for folder in folders for name in names}
            found = found.union(*map(self.index.namesakes, names)) - places
            places |= found
            pending = [place for place in found if not self._file(place)[0].startswith(_ABSENT)]
        return places

    def _joined(self, folder: str, name: str) -> str:
        known = self._paths.get((folder, name))
        if known is None:
            known = self._paths[folder, name] = os.path.abspath(os.path.join(folder, name))
        return known

    def _file(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Return what stands at a path, and the names that it may include."""
        known = self._files.get(path)
        if known is None:
            known = self._files[path] = self._examine(path)
        return known

    def _examine(self, path: str) -> tuple[str, tuple[str, ...]]:
        # Where a link leads decides what a file is called, and what lies outside the tree is not read.
        real = self._real(path)
        where = "" if real == path else os.path.relpath(real, self._root)
        if not pathlib.Path(real).is_relative_to(self._root):
            return f"{_ABSENT} {where}", ()
        try:
            if not stat.S_ISREG(os.stat(real).st_mode):
                raise OSError("is no regular file")
            data = pathlib.Path(real).read_bytes()
        except (OSError, ValueError):
            return f"{_ABSENT} {where}", ()
        return f"{hashlib.sha256(data).hexdigest()} {where}", tuple(map(os.fsdecode, _INCLUDE.findall(data)))

    def _real(self, path: str) -> str:
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], name)
