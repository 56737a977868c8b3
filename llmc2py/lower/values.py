"""Literals and names of host code as Python expressions.

Every method stands under the C form that it lowers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir import expressions as ir
from llmc2py.ir.blas import chosen_enumerator, is_enumerator
from llmc2py.ir.names import python_name
from llmc2py.ir.types import BOOL, INT, CType, canonical_name
from llmc2py.lower.environment import ENUMERATOR, STATUS, Environment
from llmc2py.lower.lowered import Lowered
from llmc2py.lower.rewriting import with_arguments
from llmc2py.lower.templates import check_given, class_of, paired, split_owner

DEVICE_FIELDS = frozenset(
    {
        "name", "major", "minor", "multiProcessorCount", "maxThreadsPerMultiProcessor", "maxThreadsPerBlock",
        "warpSize",
        "sharedMemPerBlock", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor", "regsPerBlock", "l2CacheSize",
        "totalGlobalMem", "maxGridSize",
    }
)  # fmt: skip
#: The expressions that are no values, in words.
WORDS: dict[type[ir.Expression], str] = {
    ir.TemplateName: "a function as a value",
    ir.PrecisionChoice: "a macro that the precision decides",
}
#: Variables that CUDA has in device code alone.
_DEVICE_VARIABLES = frozenset({"warpSize", "threadIdx", "blockIdx", "blockDim", "gridDim"})
_STATUS_NAMES = frozenset({"cudaSuccess", "CUBLAS_STATUS_SUCCESS"})


def check_host(node: ir.Name) -> None:
    """Raise SourceError for a name that CUDA has in device code alone."""
    if node.name in _DEVICE_VARIABLES:
        raise SourceError(node.span, f"{node.name} is a variable of device code, which host code cannot use")


class ValueLowering:
    """Lowers what an expression is made of; what joins values is a subclass's."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def lower(self, expression: ir.Expression) -> Lowered:
        """Return the Python form of an expression. Raises SourceError for what has none."""
        method: Callable[[ir.Expression], Lowered] | None = getattr(self, f"_{type(expression).__name__.lower()}", None)
        if method is None:
            raise SourceError(expression.span, f"{WORDS[type(expression)]} cannot be lowered here")
        return method(expression)

    def text(self, expression: ir.Expression) -> str:
        """Return just the Python text."""
        return self.lower(expression).text

    # 42, 0.5f
    def _number(self, node: ir.Number) -> Lowered:
        if node.type == BOOL:
            return Lowered("True" if node.value else "False", BOOL, is_natural=True)
        return Lowered(repr(node.value), node.type, is_natural=node.value >= 0)

    # nullptr
    def _null(self, node: ir.Null) -> Lowered:
        return Lowered("None", CType("void", 1))

    def _string(self, node: ir.String) -> Lowered:
        return Lowered(repr(node.value), CType("char", 1, True))

    # n, x128::size, cuda_num_SMs
    def _name(self, node: ir.Name) -> Lowered:
        variable = self.environment.variables.get(node.name)
        if variable is not None:
            return Lowered(variable.name, variable.type, is_natural=variable.is_natural or variable.type.is_unsigned)
        if node.name in _STATUS_NAMES:
            return Lowered("True", STATUS)
        if node.name in self.environment.scope.constants:
            return self._constant(node.name)
        if is_enumerator(node.name):
            return Lowered(f'"{node.name}"', ENUMERATOR)
        if "::" in node.name:
            return self._qualified(node)
        if node.name in self.environment.scope.globals:
            return self._global(node)
        if node.name in self.environment.opaque:
            raise SourceError(node.span, f"the template parameter {node.name} is no number that Python could give")
        if node.name in self.environment.template:
            return Lowered(f'plan.template["{node.name}"]', INT)
        check_host(node)
        return self.ask(node.span, node.name)

    def _constant(self, name: str) -> Lowered:
        """A constant's value; what the precision decides gets a name at the top."""
        value = self.environment.scope.constants[name]
        if not isinstance(value, ir.PrecisionChoice):
            return self._at_file_scope(value)
        choices = [(precision, self._at_file_scope(one)) for precision, one in value.values]
        items = ", ".join(f'"{precision}": {one.text}' for precision, one in choices)
        hoisted = python_name(name)
        self.environment.hoisted[hoisted] = f"{{{items}}}[plan.precision]"
        return Lowered(hoisted, choices[0][1].type, is_natural=all(one.is_natural for _, one in choices))

    def _at_file_scope(self, value: ir.Expression) -> Lowered:
        """Lower what stands outside of the function: names of locals mean something else there."""
        variables, self.environment.variables = self.environment.variables, {}
        try:
            return self.lower(value)
        finally:
            self.environment.variables = variables

    def _qualified(self, node: ir.Name) -> Lowered:
        """``x128::size``: a static constant of a class, its template parameters replaced; ``decltype(n)::value``."""
        owner, _, member = node.name.rpartition("::")
        carrier = re.fullmatch(r"(?:std::)?(?:decltype|remove_reference_t<decltype)\((\w+)\)>?", owner)
        if carrier is not None and member == "value":
            return self._name(ir.Name(node.span, carrier[1]))
        alias = self.environment.scope.aliases.get(owner)
        base, given = (alias.type.base, alias.arguments) if alias else split_owner(owner, node.span)
        constants = self.environment.scope.class_constants
        classes = ((name, bool(one.parameters)) for (name, _), one in constants.items())
        base = class_of(base, given, classes, node.span)
        constant = constants.get((base, member))
        is_namespace = alias is None and all(name != base for name, _ in constants)
        if constant is None and is_namespace:
            # modes::Mode::ADD is known as Mode::ADD, and modes::WIDTH as WIDTH.
            parts = node.name.split("::")
            tails = ("::".join(parts[count:]) for count in range(1, len(parts)))
            known = next((one for one in tails if one in self.environment.scope.constants), None)
            if known is not None:
                return self._constant(known)
        if constant is None:
            raise SourceError(node.span, f"{node.name} is no constant that is known")
        template = paired([(name, None) for name in constant.parameters], given, node.span)
        siblings = {
            other: ir.Name(node.span, f"{owner}::{other}")
            for name, other in constants
            if name == base and other != member and other not in constant.parameters
        }
        check_given(node.span, base, constant.value, constant.parameters[len(given) :])
        lowered = self.lower(with_arguments(constant.value, siblings, template))
        local = {part for one in given for part in re.findall(r"[A-Za-z_]\w*", one.text)}
        if lowered.text.isdigit() or local & self.environment.variables.keys():
            return lowered
        name = python_name(re.sub(r"\W+", "_", node.name).strip("_"))
        self.environment.hoisted[name] = lowered.text
        return Lowered(name, lowered.type, is_natural=True)

    def _global(self, node: ir.Name) -> Lowered:
        """A mutable global: the device property that it is set from, its only value, or asked for."""
        values = self.environment.scope.globals[node.name]
        for value in values:
            if isinstance(value, ir.Member) and value.field in DEVICE_FIELDS:
                return Lowered(f"plan.device.{value.field}", INT, is_natural=True)
        if len(values) == 1 and isinstance(values[0], ir.Number):
            return self._number(values[0])
        names = [part.name for value in values for part in ir.walk(value) if isinstance(part, ir.Name)]
        enumerator = chosen_enumerator(name for name in names if is_enumerator(name))
        if enumerator is not None and not any(isinstance(value, ir.Unreadable) for value in values):
            return Lowered(f'"{enumerator}"', ENUMERATOR)
        return self.ask(node.span, node.name, self.environment.scope.global_types.get(node.name, INT))

    def ask(self, span: SourceSpan, text: str, ctype: CType = INT) -> Lowered:
        """A value that no plan can know becomes a parameter of the Python function.

        Raises SourceError for one that Python cannot give: no number and no pointer to numbers.
        """
        name = python_name(re.sub(r"\W+", "_", text).strip("_"))
        plain = ctype.is_integer or ctype.is_floating or ctype.pointers == 1
        if not name.isidentifier() or not plain:
            raise SourceError(span, f"{text} is not known here, and Python cannot give {ctype.base} values")
        # A type that a kernel's parameter has given it stays.
        return Lowered(name, self.environment.asked.setdefault(name, ctype.value))

    def resolve(self, ctype: CType) -> CType:
        """Return a type with its alias replaced."""
        given = self.environment.types.get(ctype.base)
        if given is not None:
            return CType(given.base, given.pointers + ctype.pointers, ctype.const or given.const)
        alias = self.environment.scope.aliases.get(ctype.base)
        if alias is None or alias.arguments:
            return CType(canonical_name(ctype.base), ctype.pointers, ctype.const)
        return CType(alias.type.base, alias.type.pointers + ctype.pointers, ctype.const)
