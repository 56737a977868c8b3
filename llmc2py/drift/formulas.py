"""Launcher bodies in a form that can be compared: launch configurations and conditions as formulas of the parameters.

Bodies are the lines of Python that lowering made. A local that is set once, to a value without effects, is
replaced by that value: formulas speak of parameters, and what a local is called does not matter.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SIZEOF = re.compile(r"plan\.sizeof\('([^']*)'\)")
#: The place of the first argument that a kernel is given, after kernel, grid, block and shared memory.
_CONFIGURATION = 4
_MAX_FORMULA = 4096


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name in the source, and its grid, block, shared memory and template as a formula."""

    kernel: str
    configuration: str


@dataclass(frozen=True)
class BodyRecord:
    """A launcher's body: its launches, what it requires of its arguments, and a digest of all the rest."""

    launches: tuple[Launch, ...]
    requires: tuple[str, ...]
    digest: str


def read_body(
    lines: Sequence[str], parameters: Iterable[str], names: Mapping[str, str], calls: Sequence[str]
) -> BodyRecord:
    """Take a lowered body apart.

    ``names`` gives the name in the source of each kernel by its Python name, ``calls`` the launchers that are called;
    the digest has neither, so that another name for either changes the digest of nothing.
    """
    tree = ast.parse("\n".join(["def body():", *(f"    {line}" for line in lines or ("pass",))]))
    fixed = frozenset(parameters)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function = _Inlining(function, fixed).run()
    locals_ = {name: f"local{index}" for index, name in enumerate(_stored(function, fixed), 1)}
    reader = _Reader(names)
    rest = reader.visit(_Masking(locals_).visit(function))
    masks = {name: f"<call {index}>" for index, name in enumerate(calls)}
    text = ast.unparse(ast.fix_missing_locations(_Masking(masks).visit(rest)))
    return BodyRecord(tuple(reader.launches), tuple(reader.requires), hashlib.sha256(text.encode()).hexdigest())


def _stored(tree: ast.AST, fixed: frozenset[str]) -> list[str]:
    """Return the names that are assigned to, in the order of their first appearance, parameters left out."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    seen = (node.id if isinstance(node, ast.Name) else node.arg for node in _in_order(tree))
    return [name for name in dict.fromkeys(seen) if name in found - fixed]


def _in_order(tree: ast.AST) -> Iterable[ast.Name | ast.arg]:
    if isinstance(tree, (ast.Name, ast.arg)):
        yield tree
    for item in ast.iter_child_nodes(tree):
        yield from _in_order(item)


class _Inlining(ast.NodeTransformer):
    """Puts the values of locals in the place of their names."""

    def __init__(self, function: ast.FunctionDef, fixed: frozenset[str]) -> None:
        self.function = function
        stores = Counter(fixed)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                # What is added to is never set once.
                stores[node.id] += 1
            elif isinstance(node, ast.arg):
                stores[node.arg] += 2
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                stores[node.target.id] += 1
        self.unsteady = {name for name, count in stores.items() if count > 1}
        self.values: dict[str, ast.expr] = {}

    def run(self) -> ast.FunctionDef:
        self.function.body = [found for item in self.function.body if (found := self.visit(item)) is not None]
        self.function.body = self.function.body or [ast.Pass()]
        return self.function

    # name = value
    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        node = self._visited(node)
        match node.targets:
            case [ast.Name(id=name)] if name not in self.unsteady and self._is_plain(node.value):
                self.values[name] = node.value
                return None
        return node

    def _visited(self, node: ast.Assign) -> ast.Assign:
        node.value = self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return self.values[node.id]
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        """A block whose assignments have all gone must still hold something."""
        found = self.generic_visit(node)
        assert isinstance(found, ast.If)
        found.body = found.body or [ast.Pass()]
        return found

    def visit_For(self, node: ast.For) -> ast.stmt:
        found = self.generic_visit(node)
        assert isinstance(found, ast.For)
        found.body = found.body or [ast.Pass()]
        return found

    def visit_While(self, node: ast.While) -> ast.stmt:
        found = self.generic_visit(node)
        assert isinstance(found, ast.While)
        found.body = found.body or [ast.Pass()]
        return found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        found = self.generic_visit(node)
        assert isinstance(found, ast.FunctionDef)
        found.body = found.body or [ast.Pass()]
        return found

    def _is_plain(self, value: ast.expr) -> bool:
        """Whether an expression has the same value wherever it stands, and evaluating it does nothing."""
        if len(ast.dump(value)) > _MAX_FORMULA:
            return False
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id in self.unsteady:
                return False
            if isinstance(node, (ast.Subscript, ast.NamedExpr, ast.List, ast.Dict, ast.Set)):
                return False
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if owner != "math" and (owner, node.func.attr) != ("plan", "sizeof"):
                    return False
        return True


class _Reader(ast.NodeTransformer):
    """Takes launches and conditions out of a body; what stays says that they are there, not what they are."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.launches: list[Launch] = []
        self.requires: list[str] = []
        self.kernels: dict[str, str] = {}

    # plan.require(holds, "as the source has it", N=N)
    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="plan"), attr="require"), args=[holds, *_]):
                # What is refused in any case (the default of a switch) is no condition on the caller's sizes.
                if not isinstance(holds, ast.Constant):
                    self.requires.append(formula(holds))
                return ast.Pass()
        found = self.generic_visit(node)
        assert isinstance(found, ast.stmt)
        return found

    # plan.launch(kernel, grid, block, shared, arguments…, template=(…))
    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node.func:
            case ast.Attribute(value=ast.Name(id="plan"), attr="launch") if len(node.args) >= _CONFIGURATION:
                kernel, *configuration = node.args[:_CONFIGURATION]
                name = ast.unparse(kernel)
                self.launches.append(Launch(self.names.get(name, name), _configuration(configuration, node.keywords)))
                node = ast.Call(node.func, [kernel, *node.args[_CONFIGURATION:]], [])
        found = self.generic_visit(node)
        assert isinstance(found, ast.expr)
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.names:
            mask = self.kernels.setdefault(node.id, f"<kernel {len(self.kernels)}>")
            return ast.Name(mask, node.ctx)
        return node


class _Masking(ast.NodeTransformer):
    """Gives names others."""

    def __init__(self, masks: Mapping[str, str]) -> None:
        self.masks = masks

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.masks.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.masks.get(node.arg, node.arg))


def _configuration(parts: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> str:
    """``[grid, block]``, ``[grid, block, shared]``, with what else the launch says behind it."""
    grid, block, shared = (formula(part) for part in parts)
    head = f"[{grid}, {block}]" if shared == "0" else f"[{grid}, {block}, {shared}]"
    return head + "".join(f" {keyword.arg}={formula(keyword.value)}" for keyword in keywords)


def formula(node: ast.expr) -> str:
    """Return an expression of a body as people read it."""
    return _SIZEOF.sub(r"sizeof(\1)", ast.unparse(node))
