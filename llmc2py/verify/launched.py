"""Which values reach the template arguments of kernels: what a generated package's launchers launch them with.

Read from the text of its modules: constants, local variables, parameters of functions that are passed to another
launcher (``def launch(threads): …; plan.call(dispatch, launch)``), and template arguments that one launcher gives to
another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Values = frozenset[Any]
_NONE: Values = frozenset()


def launched_values(texts: Mapping[str, str]) -> Mapping[str, list[Values]]:
    """Return the values of each template argument that can be told from the texts of modules, for each kernel.

    ``texts`` are those of the modules of a package by their names in it; kernels are named ``module.kernel``.
    """
    body = [statement for module, text in texts.items() for statement in _qualified(module, ast.parse(text)).body]
    return _Package(body).kernels()


def _qualified(module: str, tree: ast.Module) -> ast.Module:
    """Return a module in which what modules define and take from each other has the name ``module.name`` everywhere."""
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            home = [*module.split(".")[: -node.level], *([node.module] if node.module else [])]
            names |= {one.asname or one.name: ".".join([*home, one.name]) for one in node.names}
        elif isinstance(node, ast.Assign):
            names |= {one.id: f"{module}.{one.id}" for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = f"{module}.{node.name}"
    for node in tree.body:
        own = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in own:
                part.id = names.get(part.id, part.id)
        if isinstance(node, ast.FunctionDef):
            node.name = names[node.name]
    return tree


class _Package:
    def __init__(self, body: Iterable[ast.stmt]) -> None:
        self.functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        self.templates = {name: _template_names(node) for name, node in self.functions.items()}
        self.calls = [(name, call) for name, node in self.functions.items() for call in _plan_calls(node)]

    def kernels(self) -> dict[str, list[Values]]:
        found: dict[str, list[Values]] = {}
        for owner, call in self.calls:
            kernel = call.args[0]
            if not (isinstance(kernel, ast.Name) and kernel.id not in self.functions):
                continue
            for index, item in enumerate(_template_of(call)):
                known = found.setdefault(kernel.id, [])
                known += [_NONE] * (index + 1 - len(known))
                known[index] |= self._values(item, owner, frozenset())
        return found

    def _values(self, node: ast.expr, owner: str, seen: frozenset[tuple[str, str]]) -> Values:
        match node:
            case ast.Constant(value=str(name)) if name in self.templates[owner]:
                return self._template_values(owner, name, seen)
            case ast.Constant(value=value):
                return frozenset({value})
            case ast.Subscript(value=ast.Attribute(attr="template"), slice=ast.Constant(value=str(name))):
                return self._template_values(owner, name, seen)
            case ast.Name(id=name) if (owner, name) not in seen:
                return self._variable(name, owner, seen | {(owner, name)})
        return _NONE

    def _template_values(self, launcher: str, name: str, seen: frozenset[tuple[str, str]]) -> Values:
        """Return what other launchers call a launcher with for one of its template parameters."""
        if (launcher, name) in seen or name not in self.templates[launcher]:
            return _NONE
        index = self.templates[launcher].index(name)
        given = [
            self._values(template[index], owner, seen | {(launcher, name)})
            for owner, call in self.calls
            if isinstance(call.args[0], ast.Name) and call.args[0].id == launcher
            for template in [_template_of(call)]
            if index < len(template)
        ]
        return _NONE.union(*given)

    def _variable(self, name: str, owner: str, seen: frozenset[tuple[str, str]]) -> Values:
        """Return what a local variable is set to, or a parameter of a function inside the launcher is called with."""
        found = []
        for node in ast.walk(self.functions[owner]):
            if isinstance(node, ast.Assign) and any(
                isinstance(one, ast.Name) and one.id == name for one in node.targets
            ):
                found.append(self._values(node.value, owner, seen))
            if isinstance(node, ast.FunctionDef) and node is not self.functions[owner]:
                names = [one.arg for one in node.args.args]
                if name in names:
                    found += [
                        self._values(arguments[names.index(name)], caller, seen)
                        for caller, arguments in self._callers(node.name, owner)
                        if names.index(name) < len(arguments)
                    ]
        return _NONE.union(*found)

    def _callers(self, function: str, owner: str) -> Iterator[tuple[str, list[ast.expr]]]:
        """Yield the arguments of every call of a function inside a launcher, there or by what it is passed to."""
        yield from ((owner, arguments) for arguments in _calls_of(function, self.functions[owner]))
        for call in _plan_calls(self.functions[owner]):
            callee = call.args[0]
            if not (isinstance(callee, ast.Name) and callee.id in self.functions):
                continue
            names = [one.arg for one in self.functions[callee.id].args.args][1:]
            for name, argument in zip(names, call.args[1:], strict=False):
                if isinstance(argument, ast.Name) and argument.id == function:
                    yield from ((callee.id, arguments) for arguments in _calls_of(name, self.functions[callee.id]))


def _plan_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield ``plan.launch(kernel, …)`` and ``plan.call(launcher, …)``."""
    for item in ast.walk(node):
        if (
            isinstance(item, ast.Call)
            and isinstance(item.func, ast.Attribute)
            and isinstance(item.func.value, ast.Name)
            and item.func.value.id == "plan"
            and item.args
        ):
            yield item


def _calls_of(name: str, node: ast.AST) -> Iterable[list[ast.expr]]:
    """Return the arguments of ``name(…)`` and ``plan.call(name, …)``."""
    direct = [
        item.args
        for item in ast.walk(node)
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == name
    ]
    through = [
        call.args[1:] for call in _plan_calls(node) if isinstance(call.args[0], ast.Name) and call.args[0].id == name
    ]
    return [*direct, *through]


def _template_of(call: ast.Call) -> list[ast.expr]:
    for keyword in call.keywords:
        if keyword.arg == "template" and isinstance(keyword.value, ast.Tuple):
            return keyword.value.elts
    return []


def _template_names(node: ast.FunctionDef) -> list[str]:
    """Return the names in ``@launcher(…, template=[TemplateParam("N", "int")])``."""
    return [
        item.args[0].value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
        if keyword.arg == "template" and isinstance(keyword.value, ast.List)
        for item in keyword.value.elts
        if isinstance(item, ast.Call) and isinstance(item.args[0], ast.Constant) and isinstance(item.args[0].value, str)
    ]
