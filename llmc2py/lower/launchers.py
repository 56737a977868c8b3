"""Host launchers as Python functions that record launch plans.

Every method stands under the C form that it lowers. What has no meaning in a plan (error checks, profiler ranges,
synchronisation) is left out; what cannot be lowered ends the launcher, with the reason and the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from llmc2py.diagnostics import SourceError
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.defaults import trailing_defaults
from llmc2py.ir.library import Launcher, Parameter, Scope
from llmc2py.ir.names import RUNTIME_NAMES, python_name
from llmc2py.ir.plans import HelperPlan, LaunchPlan, NotLowered
from llmc2py.ir.types import FLOATING_TYPES, INT, INTEGER_TYPES, LAUNCHER, LONG, CType, canonical_name
from llmc2py.lower import control
from llmc2py.lower.arguments import check_count, default_of
from llmc2py.lower.blocks import BlockLowering
from llmc2py.lower.cublas import is_reference, reference
from llmc2py.lower.environment import (
    DIM3,
    KERNEL,
    REFERENCE,
    STATUS,
    UNKNOWN,
    Environment,
    Variable,
)
from llmc2py.lower.hostcalls import HostCallLowering
from llmc2py.lower.lowered import Lowered, stored
from llmc2py.lower.multiples import Multiples
from llmc2py.lower.reach import launcher_parameters, launches
from llmc2py.lower.spelling import configuration
from llmc2py.lower.templates import Given, check_kinds, given_types, is_opaque
from llmc2py.lower.unused import without_unused

STREAMS = frozenset({"cudaStream_t", "CUstream"})

#: What a launcher that is called asks its caller for, by its name.
AskedOf = Callable[[str], tuple[Parameter, ...]]


def lower_launcher(
    launcher: Launcher, scope: Scope, symbols: Mapping[str, str], asked_of: AskedOf = lambda name: ()
) -> LaunchPlan | NotLowered:
    """Lower one launcher; where a statement is beyond lowering, say which and why.

    ``symbols`` gives the Python name of each kernel that the launcher's file can launch; ``asked_of`` what launchers
    that it calls ask for, which it then asks its own callers for.
    """
    try:
        return _LauncherLowering(launcher, scope, symbols, asked_of).lower()
    except SourceError as error:
        return NotLowered(launcher, error.diagnostic.span, error.diagnostic.message)


class _LauncherLowering(BlockLowering):
    def __init__(self, launcher: Launcher, scope: Scope, symbols: Mapping[str, str], asked_of: AskedOf) -> None:
        template = frozenset(parameter.name for parameter in launcher.template)
        values = frozenset(parameter.name for parameter in launcher.template if parameter.kind != "type")
        opaque = frozenset(parameter.name for parameter in launcher.template if is_opaque(parameter))
        environment = Environment(scope, template=template, template_values=values, opaque=opaque)
        super().__init__(launcher, scope, environment)
        self.symbols = symbols
        self.asked_of = asked_of
        self.expressions = HostCallLowering(self.environment, self._kernel_symbol, self._helper)
        self.multiples = Multiples(self.environment.hoisted, self.expressions.text)
        self.kernels: dict[str, None] = {}
        self.calls: dict[str, None] = {}
        self.launches: list[str] = []
        #: Local names of kernels: ``auto f = kernel<float>;``, by the Python name of the variable.
        self.kernel_values: dict[str, ex.TemplateName] = {}
        self.helpers: dict[str, HelperPlan] = {}
        self.returns_value = False

    def lower(self) -> LaunchPlan:
        if self.launcher.name == "main":
            raise SourceError(self.launcher.span, "is a program, not a launcher")
        parameters = [self._parameter(one) for one in self.launcher.parameters if one.type.base not in STREAMS]
        for one in (*self.launcher.parameters, *parameters):
            self._bind(one.name, one.type)
        self._check_parameters(parameters)
        self._body(self.launcher.body)
        body = without_unused((*self._hoisted(), *self.lines))
        return LaunchPlan(
            launcher=self.launcher,
            parameters=tuple(parameters),
            body=body or ("pass",),
            asked=tuple(Parameter(name, ctype, self.launcher.span) for name, ctype in self.environment.asked.items()),
            uses=self._used_names(body),
            kernels=tuple(self.kernels),
            calls=tuple(self.calls),
            launches=tuple(self.launches),
            helpers=tuple(self.helpers.values()),
            quanta=self.multiples.quanta(),
        )

    def _parameter(self, parameter: Parameter) -> Parameter:
        """``template <class F> void run(…, F launch) { launch(…); }``: a parameter that is called is a launcher."""
        return replace(parameter, type=LAUNCHER) if parameter.name in launcher_parameters(self.launcher) else parameter

    def _used_names(self, body: Sequence[str]) -> frozenset[str]:
        """Return the names of the runtime that the emitted lines mention."""
        text = "\n".join([*body, *(line for one in self.helpers.values() for line in one.body)])
        return frozenset(name for name in RUNTIME_NAMES if re.search(rf"\b{name}[.(]", text))

    def _hoisted(self) -> list[str]:
        return [f"{name} = {text}" for name, text in self.environment.hoisted.items()]

    def _check_parameters(self, parameters: list[Parameter]) -> None:
        for one in parameters:
            plain = one.type.is_integer or one.type.is_floating or one.type.base in self.environment.template
            plain |= one.type.tag in self.environment.template or one.type == LAUNCHER
            if self._is_called(one.name):
                raise SourceError(one.span, f"parameter {one.name} has the name of a function that is called here")
            if one.type.pointers > 1 or not (one.type.is_pointer or plain):
                raise SourceError(one.span, f"parameter {one.name} of type {one.type} cannot be given from Python")

    def _kernel_symbol(self, node: ex.Expression, name: str) -> str:
        if name not in self.symbols:
            known = name in self.scope.kernels or name.rpartition("::")[2] in self.scope.kernels
            why = "is left out" if known else "is not in the source that was read"
            raise SourceError(node.span, f"kernel {name} {why}")
        self.kernels[name] = None
        return self.symbols[name]

    def _helper(self, function: Launcher, given: Given) -> HelperPlan | None:
        """Lower a host function of numbers, for the expressions that call it; None where it does more than compute.

        Template parameters that are numbers become its last parameters, those that are types its types.
        """
        if any(one.type.is_pointer for one in function.parameters) or launches(function, self.scope):
            return None
        check_kinds(function, given)
        types = {name: self.expressions.resolve(one.type) for name, one in given.items() if one.type is not None}
        types = {one.name: types[one.name] for one in function.template if one.kind == "type" and one.name in types}
        name = f"{function.name}_" if function.name in RUNTIME_NAMES else python_name(function.name)
        name = "_".join([name, *(re.sub(r"\W+", "_", str(ctype)).strip("_") for ctype in types.values())])
        if name in self.helpers:
            return self.helpers[name]
        lowering = _LauncherLowering(function, self.scope, self.symbols, self.asked_of)
        lowering.returns_value = True
        own = {one.name for one in function.template}
        # What a type stands for may be a template parameter of the launcher; of this function it has no others.
        lowering.environment.types = types
        lowering.environment.template = frozenset(one.base for one in types.values()) & self.environment.template - own
        lowering.environment.template_values = frozenset()
        for one in function.parameters:
            lowering._bind(one.name, one.type if one.type.is_integer or one.type.is_floating else INT)
        values = [one for one in function.template if one.kind != "type"]
        for value in values:
            lowering._bind(value.name, CType(canonical_name(value.kind)), is_natural=value.kind == "bool")
        lowering._body(function.body)
        self.environment.asked |= lowering.environment.asked
        taken = [*(one.name for one in function.parameters), *(one.name for one in values)]
        parameters = (*map(python_name, taken), *lowering.environment.asked)
        self.helpers |= lowering.helpers
        lines = without_unused((*lowering._hoisted(), *lowering.lines))
        takes_plan = any(re.search(r"\bplan\b", line) for line in lines)
        self.helpers[name] = HelperPlan(
            name, parameters, tuple(lowering.environment.asked), takes_plan, lines, function.span
        )
        return self.helpers[name]

    # --- statements

    # const int block_size = 512;   dim3 grid(x, y);   float* scratch;   NvtxRange range("x");
    def _on_declare(self, statement: ir.Declare) -> None:
        ctype, value = statement.type, statement.value
        if self._names_kernel(statement):
            return
        if value is None and ctype == DIM3:
            value = ex.Construct(statement.span, DIM3, (), ())
        if value is None or (isinstance(value, ex.Construct) and not self._is_value(ctype, value)):
            self._bind(statement.name, ctype)
            return
        lowered = stored(self._initial(statement, ctype, self._done(value)), self.expressions.resolve(ctype))
        kept = lowered.type in (DIM3, STATUS, UNKNOWN, REFERENCE)
        declared = lowered.type if ctype.base == "auto" or kept else ctype
        name = self._bind(statement.name, declared, is_natural=lowered.is_natural)
        if ctype.const:
            self.multiples.know(name, lowered.text)
        self._emit(f"{name} = {lowered.text}")

    # auto f = kernel<float>;
    def _names_kernel(self, statement: ir.Declare) -> bool:
        """Note a local name of a kernel; False where a variable is declared."""
        value = statement.value
        if isinstance(value, ex.Unary) and value.operator == "&":
            value = value.operand
        if not isinstance(value, (ex.Name, ex.TemplateName)) or value.name in self.environment.variables:
            return False
        if value.name not in self.scope.kernels:
            return False
        template = value.template if isinstance(value, ex.TemplateName) else ()
        self.kernel_values[self._bind(statement.name, KERNEL)] = ex.TemplateName(value.span, value.name, template)
        return True

    def _is_value(self, ctype: CType, value: ex.Construct) -> bool:
        """Whether a declared object means something to a plan; objects of other classes (timers, ranges) do not."""
        return ctype.base in ("dim3", "auto") or value.type.base == "dim3"

    def _done(self, value: ex.Expression) -> ex.Expression:
        """``status = cublasSgemm(…)``: do the call; what is left of it is that it succeeded."""
        if not (isinstance(value, ex.Call) and value.function.startswith("cublas")):
            return value
        self._on_evaluate(ir.Evaluate(value.span, value))
        return ex.Name(value.span, "CUBLAS_STATUS_SUCCESS")

    def _initial(self, statement: ir.Declare, ctype: CType, value: ex.Expression) -> Lowered:
        if ctype.is_pointer and is_reference(self.expressions, value):
            return replace(reference(self.expressions, value), type=REFERENCE)
        if ctype.base == "dim3":
            is_dim3 = self.expressions.lower(value).type == DIM3
            construct = value if is_dim3 else ex.Construct(statement.span, DIM3, (), (value,))
            if isinstance(construct, ex.Construct) and control.members_of(statement.name, self.launcher.body) & {
                "y",
                "z",
            }:
                ones = (ex.Number(statement.span, 1, INT),) * (3 - len(construct.arguments))
                construct = replace(construct, arguments=(*construct.arguments, *ones))
            return self.expressions.lower(construct)
        return self.expressions.lower(value)

    # n = a;   n += a;   n++;
    def _on_assign(self, statement: ir.Assign) -> None:
        if isinstance(statement.target, ex.Member) and self._set_dimension(statement, statement.target):
            return
        if not isinstance(statement.target, ex.Name) or statement.target.name not in self.environment.variables:
            raise SourceError(statement.span, "an assignment to anything but a local variable cannot be lowered")
        name = statement.target.name
        value = self._done(statement.value)
        if statement.operator:
            value = ex.Binary(statement.span, statement.operator, statement.target, value)
        variable = self.environment.variables[name]
        lowered = stored(self.expressions.lower(value), variable.type)
        natural = variable.is_natural and lowered.is_natural
        self.environment.variables[name] = Variable(variable.name, variable.type, natural)
        self.multiples.forget(variable.name)
        self._emit(f"{variable.name} = {lowered.text}")

    # grid.y = n;   grid.y *= 2;
    def _set_dimension(self, statement: ir.Assign, target: ex.Member) -> bool:
        name = target.object.name if isinstance(target.object, ex.Name) else ""
        variable = self.environment.variables.get(name)
        if variable is None or variable.type != DIM3 or target.field not in ("x", "y", "z"):
            return False
        value = statement.value
        if statement.operator:
            value = ex.Binary(statement.span, statement.operator, target, value)
        parts = [f"{variable.name}[{index}]" for index in range(3)]
        parts["xyz".index(target.field)] = stored(self.expressions.lower(value), LONG).text
        rest = parts if control.members_of(name, self.launcher.body) & {"y", "z"} else parts[:1]
        self._emit(f"{variable.name} = ({', '.join(rest)}{',' if len(rest) == 1 else ''})")
        return True

    # kernel<T><<<grid, block, shared, stream>>>(a, b);
    def _on_launch(self, statement: ir.Launch) -> None:
        variable = self.environment.variables.get(statement.kernel)
        value = self.kernel_values.get(variable.name) if variable else None
        if value is not None:
            statement = replace(statement, kernel=value.name, template=value.template)
        kernel = self.scope.kernels.get(statement.kernel)
        symbol = self._kernel_symbol(ex.Name(statement.span, statement.kernel), statement.kernel)
        rest = self._left_out(statement, statement.kernel, statement.arguments, kernel.parameters) if kernel else []
        parts = [symbol, self._stored(statement.grid, LONG), self._stored(statement.block, LONG)]
        parts.append(self._stored(statement.shared, LONG) if statement.shared is not None else "0")
        types = [one.type for one in kernel.parameters] if kernel is not None else [UNKNOWN] * len(statement.arguments)
        spelled_types = given_types(kernel.template if kernel is not None else (), statement.template)
        parts += [
            self._launch_argument(one, replace(ctype, base=spelled_types.get(ctype.base, ctype.base)))
            for one, ctype in zip(statement.arguments, types, strict=False)
        ]
        parts += rest
        template = self.expressions.template(statement.span, statement.template, kernel)
        self.launches.append(configuration(statement))
        self._emit(f"plan.launch({', '.join(parts)}{template})")

    def _left_out(
        self, node: ir.Launch | ex.Call, name: str, given: Sequence[ex.Expression], parameters: Sequence[Parameter]
    ) -> list[str]:
        """Return the defaults of the parameters that a launch or call gives no arguments for."""
        check_count(node.span, name, len(given), parameters)
        rest = [(one, default_of(node.span, name, one, self.scope)) for one in parameters[len(given) :]]
        return [text if isinstance(text, str) else self._stored(text, one.type) for one, text in rest]

    def _launch_argument(self, node: ex.Expression, ctype: CType) -> str:
        """Return an argument of a kernel; a member that callers are asked for has the type that the kernel takes."""
        lowered = self.expressions.lower(node)
        is_element = ctype.base in INTEGER_TYPES.keys() | FLOATING_TYPES | self.environment.template
        if isinstance(node, (ex.Member, ex.MethodCall)) and lowered.text in self.environment.asked and is_element:
            self.environment.asked[lowered.text] = ctype.value
            return lowered.text
        return stored(lowered, ctype).text

    def _stored(self, node: ex.Expression, ctype: CType) -> str:
        return stored(self.expressions.lower(node), ctype).text

    # other_launcher(a, b);   cudaCheck(cudaMemset(…));   assert(…);
    def _on_evaluate(self, statement: ir.Evaluate) -> None:
        node = statement.expression
        lines = self.expressions.effect(node)
        if isinstance(node, ex.Call) and node.function == "assert":
            self.multiples.note(node.arguments[0])
        if lines is None:
            lines = self._call(statement, node)
        for line in lines:
            self._emit(line)

    def _call(self, statement: ir.Statement, node: ex.Expression) -> list[str]:
        if isinstance(node, ex.Unreadable):
            self.expressions.lower(node)
        if not isinstance(node, ex.Call):
            raise SourceError(statement.span, "an expression with no effect that a plan could have")
        versions = self.scope.functions.get(node.function, ())
        streams = {index for one in versions for index, p in enumerate(one.parameters) if p.type.base in STREAMS}
        arguments = [
            argument
            for index, argument in enumerate(node.arguments)
            if index not in streams and not self._is_stream(argument)
        ]
        if node.function in self.local_functions:
            return [
                f"{self.local_functions[node.function]}({', '.join(self.expressions.text(one) for one in arguments)})"
            ]
        variable = self.environment.variables.get(node.function)
        if variable is not None and variable.type == LAUNCHER:
            return [f"plan.call({', '.join([variable.name, *(self._argument(one) for one in arguments)])})"]
        if any(launches(version, self.scope) for version in versions):
            self.calls[node.function] = None
            parts = [python_name(node.function), *(self._argument(one) for one in arguments)]
            asked = self.asked_of(node.function)
            if len(versions) == 1:
                taken = [one for one in versions[0].parameters if one.type.base not in STREAMS]
                rest = self._left_out(node, node.function, arguments, taken)
                # The Python function has its plain defaults, unless it is asked for more.
                parts += rest if asked or None in trailing_defaults(taken)[len(arguments) :] else []
            parts += [self._passed_on(node, one) for one in asked]
            template = self.expressions.template(node.span, node.template, versions[0] if len(versions) == 1 else None)
            return [f"plan.call({', '.join(parts)}{template})"]
        pointers = [one.type for version in versions for one in version.parameters if one.type.pointers]
        if versions and all(one == CType("char", 1, True) for one in pointers):
            return []  # nothing that it does can reach a launch
        raise SourceError(node.span, f"a call of {node.function}() cannot be lowered")

    def _passed_on(self, node: ex.Call, asked: Parameter) -> str:
        """Ask our callers for what the launcher that is called asks us for."""
        self.expressions.ask(node.span, asked.name, asked.type)
        return f"{asked.name}={asked.name}"

    def _argument(self, node: ex.Expression) -> str:
        """Return an argument of a launcher; another launcher, or a local function, is passed by its name."""
        if isinstance(node, ex.Name) and node.name in self.local_functions:
            return self.local_functions[node.name]
        if isinstance(node, ex.Name) and node.name not in self.environment.variables:
            versions = self.scope.functions.get(node.name, ())
            if any(launches(version, self.scope) for version in versions):
                self.calls[node.name] = None
                return python_name(node.name)
        return self.expressions.text(node)

    def _is_stream(self, argument: ex.Expression) -> bool:
        variable = self.environment.variables.get(argument.name) if isinstance(argument, ex.Name) else None
        return variable is not None and variable.type.base in STREAMS

    # auto launch = [&](auto size) { … };
    def _on_localfunction(self, statement: ir.LocalFunction) -> None:
        changed = control.assigned(statement.body) - control.declared(statement.body) - set(statement.parameters)
        if changed:
            message = f"a lambda that changes {', '.join(sorted(changed))} outside of it cannot be lowered"
            raise SourceError(statement.span, message)
        name = python_name(statement.name)
        self.local_functions[statement.name] = name
        before = dict(self.environment.variables)
        for parameter in statement.parameters:
            self.environment.variables[parameter] = Variable(python_name(parameter), INT)
        parameters = ", ".join(f"{python_name(parameter)}: Any" for parameter in statement.parameters)
        if not (self.lines and self.lines[-1].endswith(":")):
            self.lines.append("")
        self._block(f"def {name}({parameters}) -> None:", statement.body)
        self.lines.append("")
        self.environment.variables = before

    # return;   in a helper: return x;
    def _on_return(self, statement: ir.Return) -> None:
        if self.returns_value and statement.value is not None:
            self._emit(f"return {self._stored(statement.value, self.launcher.returns)}")
            return
        if isinstance(statement.value, ex.Call):
            self._on_evaluate(ir.Evaluate(statement.span, statement.value))
        self._emit("return")

    def _on_unsupported(self, statement: ir.Unsupported) -> None:
        raise SourceError(statement.span, f"{' '.join(statement.text.split())[:60]!r}: {statement.reason}")
