"""Launcher bodies in a form that can be compared: launch configurations and conditions as formulas of the parameters.

Bodies are the lines of Python that lowering made. The value of a local takes the place of its name, unless it has
effects: formulas speak of parameters, and what a local is called does not matter.
"""

from __future__ import annotations

import ast
import copy
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
    the digest has neither, so that another name for either changes the digest of nothing. An expression that is too
    deep for Python to go through is compared as it stands.
    """
    try:
        return _read_body(lines, parameters, names, calls)
    except RecursionError:
        return BodyRecord((), (), hashlib.sha256("\n".join(lines).encode()).hexdigest())


def _read_body(
    lines: Sequence[str], parameters: Iterable[str], names: Mapping[str, str], calls: Sequence[str]
) -> BodyRecord:
    tree = ast.parse("\n".join(["def body():", *(f"    {line}" for line in lines or ("pass",))]))
    fixed = frozenset(parameters)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function = _Inlining(function, fixed).run()
    masks = {name: f"<local {index}>" for index, name in enumerate(_stored(function, fixed), 1)}
    reader = _Reader(names, frozenset(masks))
    rest = reader.visit(function)
    masks |= {name: f"<call {index}>" for index, name in enumerate(calls)}
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


class _Inlining:
    """Puts the values of locals in the place of their names, statement by statement.

    A local is replaced where all that sets it are plain assignments of one block: what stands between two of them sees
    the value of the first.
    """

    def __init__(self, function: ast.FunctionDef, fixed: frozenset[str]) -> None:
        self.function = function
        self.steady = _steady(function) - fixed
        self.unsteady = {node.id for node in ast.walk(function)
                         if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} - self.steady  # fmt: skip
        self.unsteady |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        self.values: dict[str, ast.expr] = {}

    def run(self) -> ast.FunctionDef:
        self._statement(self.function)
        return self.function

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A block whose assignments have all gone must still hold something."""
        kept = [item for item in body if self._statement(item)]
        return kept or [ast.Pass()]

    def _statement(self, node: ast.AST) -> bool:
        """Put values into a statement; return whether it stays."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, name, self._expression(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self._block(value))
            elif isinstance(value, list):
                setattr(node, name, [self._expression(one) if isinstance(one, ast.expr) else one for one in value])
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in self.steady:
                if self._is_plain(value):
                    self.values[name] = value
                    return False
                self.values.pop(name, None)
                self.unsteady.add(name)
        return True

    def _expression(self, node: ast.expr) -> ast.expr:
        found = _Filling(self.values).visit(node)
        assert isinstance(found, ast.expr)
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


class _Filling(ast.NodeTransformer):
    """Puts values in the place of names that are read."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _steady(function: ast.FunctionDef) -> set[str]:
    """Return the names that only plain assignments of one block set."""
    blocks: dict[str, set[int]] = {}
    stores: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for owner in ast.walk(function):
        for _, block in ast.iter_fields(owner):
            for item in block if isinstance(block, list) else ():
                match item:
                    case ast.Assign(targets=[ast.Name(id=name)]):
                        blocks.setdefault(name, set()).add(id(block))
                        plain[name] += 1
        if isinstance(owner, ast.Name) and isinstance(owner.ctx, ast.Store):
            stores[owner.id] += 1
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function]
    # A function in the body sees what its names are when it is called, and a loop what they were the last time.
    seen = {node.id for one in inner for node in ast.walk(one) if isinstance(node, ast.Name)}
    first: dict[str, ast.Name] = {}
    for node in _in_order(function):
        if isinstance(node, ast.Name):
            first.setdefault(node.id, node)
    return {
        name
        for name, places in blocks.items()
        if len(places) == 1
        and stores[name] == plain[name]
        and (plain[name] == 1 or name not in seen)
        and isinstance(first[name].ctx, ast.Store)
    }


class _Reader(ast.NodeTransformer):
    """Takes conditions out of a body, and configurations out of launches."""

    def __init__(self, names: Mapping[str, str], locals_: frozenset[str]) -> None:
        self.names = names
        self.locals = locals_
        self.launches: list[Launch] = []
        self.requires: list[str] = []
        self.kernels: dict[str, str] = {}

    # plan.require(holds, "as the source has it", N=N)
    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="plan"), attr="require"), args=[holds, *_]):
                # What is refused in any case (the default of a switch) is no condition on the caller's sizes.
                if not isinstance(holds, ast.Constant):
                    self.requires.append(_spelled(self._formula(holds)))
                return None
        found = self.generic_visit(node)
        assert isinstance(found, ast.stmt)
        return found

    # plan.launch(kernel, grid, block, shared, arguments…, template=(…))
    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node.func:
            case ast.Attribute(value=ast.Name(id="plan"), attr="launch") if len(node.args) >= _CONFIGURATION:
                kernel, *configuration = node.args[:_CONFIGURATION]
                name = ast.unparse(kernel)
                text = self._configuration(configuration, node.keywords)
                self.launches.append(Launch(self.names.get(name, name), text))
                node = ast.Call(node.func, [kernel, *self._locals_in(node), *node.args[_CONFIGURATION:]], [])
        found = self.generic_visit(node)
        assert isinstance(found, ast.expr)
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.names:
            mask = self.kernels.setdefault(node.id, f"<kernel {len(self.kernels)}>")
            return ast.Name(mask, node.ctx)
        return node

    def _locals_in(self, node: ast.Call) -> list[ast.expr]:
        """Return the locals in a configuration: which they are plays a part that the formula does not tell."""
        parts = [*node.args[1:_CONFIGURATION], *(keyword.value for keyword in node.keywords)]
        names = [one.id for part in parts for one in _in_order(part) if isinstance(one, ast.Name)]
        return [ast.Name(name, ast.Load()) for name in names if name in self.locals]

    def _configuration(self, parts: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> str:
        """``[grid, block]``, ``[grid, block, shared]``, with what else the launch says behind it."""
        spelled = self._formula(ast.Tuple([*parts, *(keyword.value for keyword in keywords)], ast.Load()))
        elements = ast.parse(spelled, mode="eval").body
        assert isinstance(elements, ast.Tuple)
        grid, block, shared, *rest = (_formula(part) for part in elements.elts)
        head = f"[{grid}, {block}]" if shared == "0" else f"[{grid}, {block}, {shared}]"
        return head + "".join(f" {keyword.arg}={text}" for keyword, text in zip(keywords, rest, strict=True))

    def _formula(self, node: ast.expr) -> str:
        """Return a formula in which locals have numbers for names."""
        names = dict.fromkeys(one.id for one in _in_order(node) if isinstance(one, ast.Name) and one.id in self.locals)
        masks = {name: f"local{index}" for index, name in enumerate(names, 1)}
        return ast.unparse(_Masking(masks).visit(copy.deepcopy(node)))


class _Masking(ast.NodeTransformer):
    """Gives names others."""

    def __init__(self, masks: Mapping[str, str]) -> None:
        self.masks = masks

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.masks.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.masks.get(node.arg, node.arg))


def _formula(node: ast.expr) -> str:
    """Return an expression of a body as people read it."""
    return _spelled(ast.unparse(node))


def _spelled(text: str) -> str:
    return _SIZEOF.sub(r"sizeof(\1)", text)
