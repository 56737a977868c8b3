"""What launchers do with the memory of their parameters, from the intents of the kernels that they launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.library import Intent, Kernel, Launcher, Parameter
from llmc2py.ir.types import CType
from llmc2py.lower.cublas import product_effects, zero_names

FindKernel = Callable[[str], Kernel | None]
FindLauncher = Callable[[str], Launcher | None]

_MEMORY_CALLS = {
    "cudaMemset": (0, None), "cudaMemsetAsync": (0, None), "cudaMemcpy": (0, 1), "cudaMemcpyAsync": (0, 1),
}  # fmt: skip


class LauncherEffects:
    """Finds the effects of one launcher; ``kernel`` and ``launcher`` find what its file can launch and call."""

    def __init__(self, kernel: FindKernel, launcher: FindLauncher) -> None:
        self.find_kernel = kernel
        self.find_launcher = launcher
        self._active: set[str] = set()
        #: What is known of launchers, which others call; not where a call of one that is looked at was passed over.
        self._known: dict[int, tuple[Launcher, tuple[Parameter, ...]]] = {}
        self._passed_over = 0

    def parameters(self, launcher: Launcher) -> tuple[Parameter, ...]:
        """Return the launcher's parameters with intent, alignment and whether null is allowed."""
        if id(launcher) in self._known:
            return self._known[id(launcher)][1]
        if launcher.name in self._active:
            self._passed_over += 1
            return launcher.parameters
        before = self._passed_over
        found = self._effects(launcher)
        if self._passed_over == before:
            self._known[id(launcher)] = launcher, found
        return found

    def _effects(self, launcher: Launcher) -> tuple[Parameter, ...]:
        self._active.add(launcher.name)
        effects: dict[str, list[Parameter]] = {one.name: [] for one in launcher.parameters if one.type.is_pointer}
        resets: set[str] = set()
        roots = {name: name for name in effects}
        zeros = zero_names(launcher.body)
        for statement in ir.walk(launcher.body):
            self._visit(statement, roots, effects, resets)
            for pointer, intent in product_effects(statement, zeros):
                root = _root(pointer, roots)
                if root is not None:
                    effects[root].append(Parameter("matrix", CType("void", 1), statement.span, intent=intent))
        self._active.discard(launcher.name)
        optional = _compared_with_null(launcher.body)
        return tuple(
            _merged(one, effects[one.name], reset=one.name in resets, optional=one.name in optional)
            if one.name in effects
            else one
            for one in launcher.parameters
        )

    def _visit(
        self, statement: ir.Statement, roots: dict[str, str], effects: dict[str, list[Parameter]], resets: set[str]
    ) -> None:
        if isinstance(statement, ir.Declare) and statement.value is not None and statement.type.pointers:
            root = _root(statement.value, roots)
            if root is not None:
                roots[statement.name] = root
        elif isinstance(statement, ir.Assign) and isinstance(statement.target, ex.Name):
            root = _root(statement.value, roots)
            if root is not None and not statement.operator:
                roots[statement.target.name] = root
        elif isinstance(statement, ir.Launch):
            kernel = self.find_kernel(statement.kernel)
            self._pass(statement.arguments, kernel.parameters if kernel else (), roots, effects)
        elif isinstance(statement, ir.Evaluate):
            for part in ex.walk(statement.expression):
                if isinstance(part, ex.Call):
                    self._call(part, roots, effects, resets)

    def _call(
        self, call: ex.Call, roots: dict[str, str], effects: dict[str, list[Parameter]], resets: set[str]
    ) -> None:
        if call.function in _MEMORY_CALLS:
            written, read = _MEMORY_CALLS[call.function]
            target = _root_of_argument(call, written, roots)
            if target is not None:
                resets.add(target)
            source = _root_of_argument(call, read, roots)
            if source is not None:
                effects[source].append(Parameter("source", CType("void", 1, True), call.span, intent=Intent.IN))
            return
        other = self.find_launcher(call.function)
        if other is not None:
            self._pass(call.arguments, self.parameters(other), roots, effects)

    def _pass(
        self,
        arguments: tuple[ex.Expression, ...],
        parameters: tuple[Parameter, ...],
        roots: dict[str, str],
        effects: dict[str, list[Parameter]],
    ) -> None:
        for argument, parameter in zip(arguments, parameters, strict=False):
            root = _root(argument, roots) if parameter.type.is_pointer else None
            if root is not None:
                effects[root].append(parameter)


def _root(expression: ex.Expression, roots: dict[str, str]) -> str | None:
    """``p``, ``p + n``, ``(float*)p``, ``&p[i]``: the parameter that a pointer expression points into."""
    if isinstance(expression, ex.Name):
        return roots.get(expression.name)
    if isinstance(expression, ex.Binary) and expression.operator in "+-":
        return _root(expression.left, roots) or _root(expression.right, roots)
    if isinstance(expression, ex.Cast):
        return _root(expression.operand, roots)
    if isinstance(expression, ex.Unary) and expression.operator == "&" and isinstance(expression.operand, ex.Index):
        return _root(expression.operand.object, roots)
    if isinstance(expression, ex.Conditional):
        return _root(expression.consequence, roots) or _root(expression.alternative, roots)
    return None


def _root_of_argument(call: ex.Call, index: int | None, roots: dict[str, str]) -> str | None:
    """Return what an argument points into; None where a call has not so many, which is refused when it is lowered."""
    return _root(call.arguments[index], roots) if index is not None and index < len(call.arguments) else None


def _compared_with_null(body: ir.Body) -> set[str]:
    """``p != NULL``, ``if (p)``, ``!p``, ``p && q``: the names that a launcher allows to be null."""
    found: set[str] = set()
    for statement in ir.walk(body):
        for value in vars(statement).values():
            for part in ex.walk(value) if isinstance(value, ex.Expression) else ():
                found |= _null_tested(part)
        if isinstance(statement, (ir.If, ir.While)) and isinstance(statement.condition, ex.Name):
            found.add(statement.condition.name)
    return found


def _null_tested(part: ex.Expression) -> set[str]:
    if isinstance(part, ex.Binary) and part.operator in ("==", "!="):
        sides = (part.left, part.right)
        return (
            {one.name for one in sides if isinstance(one, ex.Name)}
            if any(isinstance(one, ex.Null) for one in sides)
            else set()
        )
    if isinstance(part, ex.Binary) and part.operator in ("&&", "||"):
        return {one.name for one in (part.left, part.right) if isinstance(one, ex.Name)}
    if isinstance(part, ex.Unary) and part.operator == "!" and isinstance(part.operand, ex.Name):
        return {part.operand.name}
    return {part.condition.name} if isinstance(part, ex.Conditional) and isinstance(part.condition, ex.Name) else set()


def _merged(parameter: Parameter, effects: list[Parameter], *, reset: bool, optional: bool) -> Parameter:
    """Join what all uses do: the widest access counts, null is allowed where every use allows it."""
    intents = [one.intent for one in effects if one.intent not in (None, Intent.UNUSED)]
    intent: Intent | None = None
    if intents and all(one == intents[0] for one in intents):
        intent = intents[0]
    elif intents:
        intent = _joined(intents)
    if reset:
        intent = Intent.OUT if intent in (None, Intent.OUT) else Intent.INOUT
    return replace(
        parameter,
        intent=intent,
        alignment=max((one.alignment for one in effects), default=0),
        nullable=optional or parameter.default is not None or (bool(effects) and all(one.nullable for one in effects)),
    )


def _joined(intents: Sequence[Intent | None]) -> Intent:
    if Intent.INOUT in intents or Intent.ACCUMULATE in intents:
        return Intent.INOUT
    # The first use decides what the caller's data means: written first, it is an output that is read back.
    return Intent.OUT if intents[0] == Intent.OUT else Intent.INOUT
