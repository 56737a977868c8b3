"""What decides a class, a function or a module of a generated package: its own text, and the files that it reaches."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from llmc2py.caching import content_key

#: What modules may import from outside of their package: all of it is told by versions and by our own code.
_OUTSIDE = frozenset({"__future__", "collections", "dataclasses", "functools", "math", "ml_dtypes", "numpy", "typing"})
_RUNTIME = "llmc2py.runtime"
#: The longest text that may be the name of a file.
_NAME = 100


Stamp = tuple[int, int, int]


def stamp(path: pathlib.Path) -> Stamp:
    """Return when a file was last written, with its size and number. Raises OSError."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


class UnknownReachError(Exception):
    """What a module depends on cannot be told from its text."""


@dataclass(frozen=True)
class Reach:
    """Texts that decide something, in an order of their own, and the files that they stand in."""

    texts: tuple[str, ...]
    files: frozenset[pathlib.Path]

    def __or__(self, other: Reach) -> Reach:
        return Reach((*self.texts, "", *other.texts), self.files | other.files)


class Sources:
    """The modules of a package as they stand on disk; each is read once.

    Methods raise UnknownReachError for modules that import what is neither in the package nor of the runtime, and for
    files that cannot be read.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._bytes = functools.cache(self._read)
        self._digest = functools.cache(lambda path: content_key(self._bytes(path).decode("latin-1")))
        self._tree = functools.cache(lambda path: _tree(path, self._bytes(path)))
        self._statements = functools.cache(lambda path: _statements(self._tree(path)))
        self._needs = functools.cache(lambda tree, path: tuple(self._needed(tree, path)))
        #: When each file was last written, by the time at which it was read.
        self.stamps: dict[pathlib.Path, Stamp] = {}

    def file(self, name: str) -> Reach:
        """Return a file of the package, by its path in it."""
        return self._whole([self._folder / name])

    def module(self, name: str) -> Reach:
        """Return a module, by its dotted name in the package, with all that it imports and the files beside it."""
        return self._closure([self._path(tuple(name.split(".")))])

    def definitions(self, module: str, names: Iterable[str]) -> Reach:
        """Return what defines names in a module, with what that names in turn, and all that it imports.

        What else stands in the module does not count, unless it is run for what it does.
        """
        path = self._path(tuple(module.split(".")))
        chosen = _reached(self._statements(path), set(names))
        needed = [one for statement in chosen for one in self._needs(statement.node, path)]
        texts = tuple(statement.text for statement in chosen)
        return Reach(texts, frozenset({path})) | self._closure([*self._parents(path), *needed])

    def _read(self, path: pathlib.Path) -> bytes:
        try:
            self.stamps[path] = stamp(path)
            return path.read_bytes()
        except OSError as error:
            raise UnknownReachError(f"{path}: {error}") from error

    def _closure(self, paths: Iterable[pathlib.Path]) -> Reach:
        found: set[pathlib.Path] = set()
        pending = list(paths)
        while pending:
            path = pending.pop()
            if path in found:
                continue
            found.add(path)
            if path.suffix == ".py":
                pending += [*self._parents(path), *self._needs(self._tree(path), path)]
        return self._whole(found)

    def _whole(self, paths: Iterable[pathlib.Path]) -> Reach:
        ordered = sorted(set(paths))
        names = [path.relative_to(self._folder).as_posix() for path in ordered]
        return Reach(
            tuple(f"{name} {self._digest(path)}" for name, path in zip(names, ordered, strict=True)), frozenset(ordered)
        )

    def _parents(self, path: pathlib.Path) -> Iterator[pathlib.Path]:
        """Yield the packages that are imported before a module of theirs."""
        for folder in path.parents:
            if folder == self._folder.parent:
                return
            yield self._path(folder.relative_to(self._folder).parts)

    def _path(self, parts: tuple[str, ...]) -> pathlib.Path:
        found = self._module(parts)
        if found is None:
            raise UnknownReachError(f"the package has no module {'.'.join(parts)}")
        return found

    def _module(self, parts: tuple[str, ...]) -> pathlib.Path | None:
        place = self._folder.joinpath(*parts)
        candidates = (place / "__init__.py", *([place.with_name(f"{place.name}.py")] if parts else []))
        return next((path for path in candidates if path.is_file()), None)

    def _needed(self, tree: ast.AST, path: pathlib.Path) -> Iterator[pathlib.Path]:
        """Yield the modules of the package that a tree imports anywhere, and the files that texts in it name."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                _check_outside([alias.name for alias in node.names], path)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                _check_outside([node.module or ""], path)
            elif isinstance(node, ast.ImportFrom):
                yield from self._imported(node, path)
            elif isinstance(node, ast.Constant) and _may_be_file(node.value):
                beside = path.parent / node.value
                if beside.is_file():
                    yield beside

    def _imported(self, node: ast.ImportFrom, path: pathlib.Path) -> Iterator[pathlib.Path]:
        own = path.parent.relative_to(self._folder).parts
        if node.level > len(own) + 1:
            raise UnknownReachError(f"{path}:{node.lineno}: an import from outside of the package")
        base = (*own[: len(own) + 1 - node.level], *(node.module.split(".") if node.module else ()))
        yield self._path(base)
        for alias in node.names:
            found = self._module((*base, alias.name))
            if found is not None:
                yield found


def _check_outside(names: Iterable[str], path: pathlib.Path) -> None:
    for name in names:
        if name.partition(".")[0] not in _OUTSIDE and name != _RUNTIME and not name.startswith(f"{_RUNTIME}."):
            raise UnknownReachError(f"{path}: an import of {name}")


def _tree(path: pathlib.Path, text: bytes) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UnknownReachError(f"{path}: {error}") from error


def _may_be_file(value: object) -> TypeGuard[str]:
    """Whether a constant may name a file beside a module, such as that of its kernels."""
    return isinstance(value, str) and 0 < len(value) <= _NAME and value.isprintable() and "/" not in value


@dataclass(frozen=True)
class _Statement:
    """A statement of a module: the names that it defines, and those that it uses.

    ``is_run`` says that it is there for what it does, not for names alone.
    """

    node: ast.stmt
    text: str
    defines: frozenset[str]
    uses: frozenset[str]
    is_run: bool


def _statements(tree: ast.Module) -> list[_Statement]:
    return [_statement(node) for item in tree.body for node in _parts(item)]


def _parts(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement, an import of several names as one for each, a text (a docstring) not at all."""
    match node:
        case ast.Import(names=names):
            yield from (ast.copy_location(ast.Import([alias]), node) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from (ast.copy_location(ast.ImportFrom(module, [alias], level), node) for alias in names)
        case ast.Expr(value=ast.Constant()):
            return
        case _:
            yield node


def _statement(node: ast.stmt) -> _Statement:
    defines, is_run = _defined(node)
    uses = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
    return _Statement(node, ast.unparse(node), frozenset(defines), uses, is_run)


def _defined(node: ast.stmt) -> tuple[set[str], bool]:
    """Return the names that a statement defines, and whether it may do more than that."""
    match node:
        case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]):
            return {alias.asname or alias.name.partition(".")[0]}, alias.name == "*"
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}, False
        case ast.Assign(targets=targets) if all(isinstance(target, ast.Name) for target in targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}, False
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}, False
        case _:
            stored = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
            return {one.id for one in stored}, True


def _reached(statements: list[_Statement], names: set[str]) -> list[_Statement]:
    """Return the statements that define names, and those that they need, in the order of the module."""
    missing = names - {name for statement in statements for name in statement.defines}
    if missing:
        raise UnknownReachError(f"nothing defines {', '.join(sorted(missing))}")
    wanted = set(names)
    chosen: dict[int, _Statement] = {}
    while True:
        fresh = {
            index: statement
            for index, statement in enumerate(statements)
            if index not in chosen and (statement.is_run or statement.defines & wanted)
        }
        if not fresh:
            return [chosen[index] for index in sorted(chosen)]
        chosen |= fresh
        wanted |= {name for statement in fresh.values() for name in statement.uses}
