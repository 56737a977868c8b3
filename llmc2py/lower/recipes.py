"""Recipes of the catalogue as the bodies of generated functions.

A recipe is a few lines of Python: arrays are allocated, launchers called, kernels launched. It is checked here against
what the source tree has: every name, the number of arguments, and that no launcher writes over an input.
"""

from __future__ import annotations

import ast
from collections.abc import Callable as Function
from collections.abc import Mapping
from dataclasses import dataclass

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir.library import Intent, Parameter
from llmc2py.ir.names import OP_NAMES, RUNTIME_NAMES
from llmc2py.ir.plans import Recipe
from llmc2py.lower.numbers import MAX_THREADS, constant, is_float, not_number

#: Functions of the runtime that a recipe may use; those in the second set are given the array that decides the place.
_PLAIN = frozenset(
    {"empty_like", "zeros_like", "copy", "cast", "as_float32", "ceil_div", "min", "max", "fitted", "cropped",
     "crossentropy_gradient", "softmax_gradient", "softmax_of", "next_seed", "as_type", "writable"}
)  # fmt: skip
_PLACED = frozenset({"empty", "zeros", "ones"})
#: Functions that write to their first argument and return nothing.
_STATEMENTS = frozenset({"assign", "clear", "mend_losses", "put", "scale"})
#: Functions of modules of the runtime, as ``module.function``; they write to their arguments of these numbers.
_MODULE_FUNCTIONS = {"cudnn.attention_forward": (0, 1), "cudnn.attention_backward": (0,)}
#: How many arguments a recipe gives these; of `min` and `max` any number.
_COUNTS = {
    "as_float32": 1, "as_type": 2, "assign": 2, "cast": 2, "ceil_div": 2, "clear": 2, "copy": 1, "cropped": 2,
    "crossentropy_gradient": 6, "cudnn.attention_backward": 9, "cudnn.attention_forward": 7, "empty": 2,
    "empty_like": 1, "fitted": 2, "mend_losses": 4, "next_seed": 0, "ones": 2, "own": 1, "put": 3, "scale": 2,
    "softmax_gradient": 2, "softmax_of": 1, "writable": 1, "zeros": 2, "zeros_like": 1,
}  # fmt: skip
#: Which argument of these is a shape.
_SHAPES = {"cropped": 1, "empty": 0, "fitted": 1, "ones": 0, "put": 2, "zeros": 0}
#: What generated passes call by these names, so that no array can have them.
_RESERVED = OP_NAMES | RUNTIME_NAMES | {"ctx", "device", "max", "min", "starts_alone"}
_DTYPES = frozenset({"float32", "int32", "boolean"})
_VALUES = _DTYPES | {"device", "vector"}
_WRITTEN = frozenset({Intent.OUT, Intent.INOUT, Intent.ACCUMULATE})


@dataclass(frozen=True)
class Callable:
    """A launcher or kernel that a recipe may use: its Python name, parameters and what asserts say of its sizes."""

    symbol: str
    is_kernel: bool
    parameters: tuple[Parameter, ...]
    quanta: Mapping[str, Mapping[str, int]]


class RecipeLowering:
    """Checks and prints one recipe.

    ``place`` gives the place in the entry of a line and column of the recipe. ``first`` is the array that decides where
    new ones go; ``protected`` are the arrays that belong to the caller; ``indices`` gives the position of each input of
    the function, for accumulators; ``values`` are the sizes, options and other values that come from the call, and
    ``floats`` those of them that are no whole numbers.
    """

    def __init__(
        self,
        place: Function[[int, int], SourceSpan],
        layer: str,
        callables: Mapping[str, Callable],
        first: str,
        protected: frozenset[str],
        indices: Mapping[str, int],
        values: frozenset[str],
        floats: frozenset[str] = frozenset(),
    ) -> None:
        self.place = place
        self.layer = layer
        self.callables = callables
        self.first = first
        self.protected = set(protected)
        self.inputs = protected
        self.indices = indices
        self.values = values
        self.floats = set(floats)
        self.used: set[str] = set()
        self.names: set[str] = set()
        self.quanta: dict[str, dict[str, int]] = {}
        self.symbols = {one.symbol for one in callables.values()}

    def lower(self, text: str, known: set[str]) -> Recipe:
        """Return the lines of a recipe; ``known`` holds the names that it starts with and is added to.

        Raises SourceError at the place that is wrong.
        """
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            place = self.place(error.lineno or 1, error.offset or 1)
            raise SourceError(place, f"recipe: {error.msg}: {(error.text or '').strip()!r}") from error
        if shadowed := sorted(known & self.symbols):
            raise SourceError(self.place(1, 1), f"recipe: {_both(shadowed[0])}")
        if reserved := sorted(known & _RESERVED):
            raise SourceError(self.place(1, 1), f"recipe: {_taken(reserved[0])}")
        lines = self._block(tree.body, known)
        return Recipe(tuple(lines), frozenset(self.names), self.quanta, frozenset(self.used))

    def _block(self, body: list[ast.stmt], known: set[str]) -> list[str]:
        return [line for statement in body for line in self._statement(statement, known)]

    def _statement(self, statement: ast.stmt, known: set[str]) -> list[str]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in self.symbols:
                    raise self._error(statement, _both(name))
                if name in _RESERVED or name in self.values:
                    raise self._error(statement, _taken(name))
                text = self._expression(value, known)
                known.add(name)
                (self.floats.add if is_float(value, self.floats) else self.floats.discard)(name)
                if isinstance(value, ast.Name) and value.id in self.protected:
                    self.protected.add(name)
                elif name not in self.inputs:
                    self.protected.discard(name)
                return [f"{name} = {text}"]
            case ast.Expr(value=ast.Call() as call):
                return [self._launch(call, known)]
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, body, orelse, known)
        raise self._error(statement, "a recipe has assignments, calls and if alone")

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], known: set[str]) -> list[str]:
        inner, other = set(known), set(known)
        lines = [f"if {self._expression(test, known)}:", *(f"    {line}" for line in self._block(body, inner))]
        if orelse:
            lines += ["else:", *(f"    {line}" for line in self._block(orelse, other))]
        known |= inner & other
        return lines

    def _launch(self, call: ast.Call, known: set[str]) -> str:
        match call.func:
            case ast.Name(id="require"):
                return self._require(call, known)
            case _ if call.keywords:
                raise self._error(call, "arguments are given by position")
            case ast.Name(id="elementwise"):
                return self._elementwise(call, known)
            case ast.Name(id=name) if name in _STATEMENTS:
                self.names.add(name)
                self._check_count(call, name)
                self._check_written(call, name, (0,))
                if name in _SHAPES:
                    self._check_shape(call.args[_SHAPES[name]])
                return f"{name}({', '.join(self._expression(node, known) for node in call.args)})"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in _MODULE_FUNCTIONS:
                self.names.add(module)
                self._check_count(call, f"{module}.{name}")
                self._check_written(call, name, _MODULE_FUNCTIONS[f"{module}.{name}"])
                return f"{module}.{name}({', '.join(self._expression(node, known) for node in call.args)})"
            case ast.Name(id=name):
                target = self._callable(call, name, kernel=False)
                head = target.symbol
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=parts)):
                target = self._callable(call, name, kernel=True)
                self._check_configuration(call, parts)
                head = f"{target.symbol}[{', '.join(self._expression(part, known) for part in parts)}]"
            case _:
                raise self._error(call, "a launcher, or a kernel with [grid, block], is called")
        arguments = self._arguments(call, target, call.args, known)
        return f"{head}({', '.join(arguments)})"

    def _elementwise(self, call: ast.Call, known: set[str]) -> str:
        """``elementwise(launcher, arrays…, count)``: right for any count, also where an assert wants whole blocks."""
        match call.args:
            case [ast.Name(id=name), *rest] if rest:
                target = self._callable(call, name, kernel=False)
            case _:
                raise self._error(call, "elementwise(launcher, arrays..., count) is taken")
        arguments = self._arguments(call, target, rest, known)
        counted = target.parameters[len(arguments) - 1].name
        quanta = target.quanta.get(counted)
        if not quanta or set(quanta.values()) == {1}:
            return f"{target.symbol}({', '.join(arguments)})"
        self.names.add("elementwise")
        constant = f"{target.symbol.upper()}_QUANTUM"
        self.quanta[constant] = dict(quanta)
        self.used.add("dtype")
        arrays = ", ".join(arguments[:-1])
        return f"elementwise({target.symbol}, ({arrays}), {arguments[-1]}, {constant}[dtype])"

    def _require(self, call: ast.Call, known: set[str]) -> str:
        """``require(T <= L)``: a ValueError that shows the condition and the values in it."""
        if len(call.args) != 1 or call.keywords:
            raise self._error(call, "require(condition) is taken")
        self.names.add("require")
        named = dict.fromkeys(node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name))
        condition = self._expression(call.args[0], known)
        text = condition.replace('"', "'")
        values = "".join(f", {name}={name}" for name in named)
        return f'require("{self.layer}", {condition}, "{text}"{values})'

    def _check_count(self, call: ast.Call, name: str) -> None:
        count = _COUNTS.get(name)
        if call.keywords:
            raise self._error(call, "arguments are given by position")
        if count is not None and len(call.args) != count:
            raise self._error(call, f"{name} takes {count} argument{'s' * (count != 1)}, {len(call.args)} are given")

    def _check_written(self, call: ast.Call, name: str, positions: tuple[int, ...]) -> None:
        for position in positions:
            node = call.args[position]
            if isinstance(node, ast.Name) and node.id in self.protected:
                raise self._error(call, f"{name} writes to {node.id}, which belongs to the caller: copy it first")

    def _arguments(self, call: ast.Call, target: Callable, nodes: list[ast.expr], known: set[str]) -> list[str]:
        if len(nodes) != len(target.parameters):
            wanted = ", ".join(f"{one.type} {one.name}" for one in target.parameters)
            raise self._error(call, f"{target.symbol} takes ({wanted}), {len(nodes)} arguments are given")
        for node, parameter in zip(nodes, target.parameters, strict=True):
            if parameter.type.is_pointer and isinstance(node, ast.Name) and node.id in self.protected:
                written = parameter.intent in _WRITTEN or (parameter.intent is None and not parameter.type.const)
                if written:
                    raise self._error(
                        call,
                        f"{target.symbol} writes to {parameter.name}; {node.id} belongs to the caller: copy it first",
                    )
            if parameter.type.is_integer:
                self._check_whole(node, f"{target.symbol} takes {parameter.type} {parameter.name}")
        return [self._expression(node, known) for node in nodes]

    def _check_configuration(self, call: ast.Call, parts: list[ast.expr]) -> None:
        """``[grid, block]`` or ``[grid, block, shared_bytes]``: whole numbers, or up to three of them together."""
        if not 2 <= len(parts) <= 3:
            raise self._error(call, "a kernel is launched with [grid, block] or [grid, block, shared_bytes]")
        for what, part in zip(("grid", "block", "shared memory"), parts, strict=False):
            axes = part.elts if isinstance(part, ast.Tuple) and what != "shared memory" else [part]
            if not 1 <= len(axes) <= 3:
                raise self._error(part, f"a {what} has one to three axes")
            threads = 1
            for axis in axes:
                self._check_whole(axis, f"the {what} is counted")
                number = constant(axis)
                if number is not None and number < (what != "shared memory"):
                    raise self._error(axis, f"the {what} is {number}; nothing would be launched")
                threads *= 1 if number is None else number
            if what == "block" and threads > MAX_THREADS:
                raise self._error(part, f"the block has {threads} threads; CUDA allows {MAX_THREADS}")

    def _check_shape(self, shape: ast.expr) -> None:
        for axis in shape.elts if isinstance(shape, ast.Tuple) else []:
            if not isinstance(axis, ast.Starred):
                self._check_whole(axis, "the lengths of axes are counted")

    def _check_whole(self, node: ast.expr, why: str) -> None:
        if is_float(node, self.floats) or not_number(node):
            message = f"{why}, and {ast.unparse(node)} is no whole number: `//` and ceil_div(a, b) give one"
            raise self._error(node, message)

    def _callable(self, call: ast.Call, name: str, *, kernel: bool) -> Callable:
        target = self.callables.get(name)
        if target is None or target.is_kernel != kernel:
            what = "kernel" if kernel else "launcher"
            raise self._error(call, f"there is no {what} {name} among those that the entry lists and the source has")
        self.names.add(target.symbol)
        return target

    def _expression(self, node: ast.expr, known: set[str]) -> str:
        text = ast.unparse(_Expressions(self, known).visit(node))
        return text if '"' in text else text.replace("'", '"')

    def _error(self, node: ast.AST, message: str) -> SourceError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        return SourceError(self.place(line, column), f"recipe: {message}")


def _both(name: str) -> str:
    return f"{name} is an array here and a kernel or launcher of the source: give the array another name"


def _taken(name: str) -> str:
    return f"{name} means something of its own in a pass: give the array another name"


class _Expressions(ast.NodeTransformer):
    """Fills in what a recipe leaves out: the array that new ones are put beside, the context of accumulators."""

    def __init__(self, recipe: RecipeLowering, known: set[str]) -> None:
        self.recipe = recipe
        self.known = known

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        arguments = [self.visit(argument) for argument in node.args]
        place = ast.Name(self.recipe.first)
        if name == "accumulator":
            if len(arguments) != 1 or ast.unparse(arguments[0]) not in self.recipe.indices:
                raise self.recipe._error(node, f"{ast.unparse(node)}: an input of the op is added to")
            index = ast.Constant(self.recipe.indices[ast.unparse(arguments[0])])
            arguments = [ast.Name("ctx"), index, arguments[0]]
        elif name == "own":
            arguments = [ast.Name("ctx"), *arguments]
        elif name in _PLACED:
            arguments.append(place)
        elif name not in _PLAIN:
            raise self.recipe._error(node, f"{name or ast.unparse(node.func)}() is no function of recipes")
        self.recipe._check_count(node, name)
        if (position := _SHAPES.get(name)) is not None:
            self.recipe._check_shape(node.args[position])
        if name not in ("min", "max"):
            self.recipe.names.add(name)
        return ast.Call(ast.Name(name), arguments, [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == "device":
            self.recipe.names.add("device_of")
            return ast.Call(ast.Name("device_of"), [ast.Name(self.recipe.first)], [])
        if node.id == "starts_alone":
            return ast.Attribute(ast.Name("ctx"), node.id)
        if node.id not in self.known and node.id not in _VALUES and node.id not in self.recipe.values:
            raise self.recipe._error(node, f"{node.id} is not known here")
        if node.id in _DTYPES or node.id == "vector":
            self.recipe.names.add(node.id)
        if node.id == "vector":
            self.recipe.used.add("dtype")
        if node.id in self.recipe.values and node.id not in self.known:
            self.recipe.used.add(node.id)
        return node
