"""Calls of the CUDA runtime in host code, as methods of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir.library import Kernel, Launcher, TemplateParameter
from llmc2py.ir.plans import HelperPlan
from llmc2py.ir.types import INT, CType
from llmc2py.lower.cublas import lower_cublas
from llmc2py.lower.environment import STATUS, Environment, Variable
from llmc2py.lower.expressions import ExpressionLowering
from llmc2py.lower.lowered import Lowered, stored
from llmc2py.lower.reach import calls_itself
from llmc2py.lower.spelling import spelled
from llmc2py.lower.templates import Given, check_defaults, is_opaque, paired

#: Calls that a plan has no use for: the stream orders it, and errors are raised by the operation itself.
_IGNORED = re.compile(
    r"^(cuda(GetLastError|PeekAtLastError|DeviceSynchronize|StreamSynchronize|Free|FreeAsync|EventRecord|EventCreate|"
    r"EventSynchronize|EventDestroy|SetDevice|GetDevice|GetDeviceProperties)|nvtxRange(Push|Pop)\w*|free|fflush|fclose|"
    r"(std::)?f?printf|(std::)?puts|srand)$"
)
_ENDING = frozenset({"exit", "abort", "std::exit", "std::abort", "_exit"})
_STATUS_TYPES = frozenset({"cudaError_t", "cudaError", "cublasStatus_t"})
_DEVICE_COPIES = frozenset({"cudaMemcpyDeviceToDevice", "cudaMemcpyDefault"})
_DEVICE_ATTRIBUTES = {
    "cudaDevAttrMultiProcessorCount": "multiProcessorCount",
    "cudaDevAttrMaxThreadsPerBlock": "maxThreadsPerBlock",
    "cudaDevAttrMaxThreadsPerMultiProcessor": "maxThreadsPerMultiProcessor",
    "cudaDevAttrMaxSharedMemoryPerBlock": "sharedMemPerBlock",
    "cudaDevAttrMaxSharedMemoryPerBlockOptin": "sharedMemPerBlockOptin",
    "cudaDevAttrMaxSharedMemoryPerMultiprocessor": "sharedMemPerMultiprocessor",
    "cudaDevAttrMaxRegistersPerBlock": "regsPerBlock",
    "cudaDevAttrWarpSize": "warpSize",
    "cudaDevAttrL2CacheSize": "l2CacheSize",
    "cudaDevAttrComputeCapabilityMajor": "major",
    "cudaDevAttrComputeCapabilityMinor": "minor",
}
#: Of how many arguments the call of a function makes sense.
_LEAST_ARGUMENTS = {
    "assert": 1,
    "cudaMalloc": 2,
    "cudaMallocAsync": 2,
    "cudaMemset": 3,
    "cudaMemsetAsync": 3,
    "cudaMemcpy": 3,
    "cudaMemcpyAsync": 3,
    "cudaFuncSetAttribute": 3,
    "cudaDeviceGetAttribute": 2,
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": 4,
}
_CONSTANT_CLASSES = frozenset({"bool_constant", "integral_constant"})
_SHARED_ATTRIBUTE = "cudaFuncAttributeMaxDynamicSharedMemorySize"


class HostCallLowering(ExpressionLowering):
    """Expression lowering that knows the CUDA runtime.

    ``kernel`` turns a kernel's C name into its Python name; ``helper`` lowers a host function that computes a number,
    with the template arguments that it is given, and returns None where it cannot.
    """

    def __init__(
        self,
        environment: Environment,
        kernel: Callable[[ex.Expression, str], str],
        helper: Callable[[Launcher, Given], HelperPlan | None],
    ) -> None:
        super().__init__(environment)
        self.kernel = kernel
        self.helper = helper

    def effect(self, node: ex.Expression) -> list[str] | None:
        """Return the lines of a call for its effect; None for one that is not of the CUDA runtime or C library."""
        if isinstance(node, ex.Cast) and node.type == CType("void"):
            return self.effect(node.operand)
        if not isinstance(node, ex.Call):
            return None
        if self.is_check(node):
            checked = node.arguments[0]
            lines = self.effect(checked)
            if lines is None and isinstance(checked, ex.Call):
                raise SourceError(checked.span, f"a call of {checked.function}() cannot be lowered")
            return lines or []
        if _IGNORED.match(node.function):
            return []
        if node.function in _ENDING:
            return [f'plan.require(False, "arguments with which {node.function}() is not called")']
        self.require_arguments(node, _LEAST_ARGUMENTS.get(node.function, 0))
        method: Callable[[ex.Call], list[str]] | None = getattr(self, f"_do_{node.function.lower()}", None)
        return method(node) if method else lower_cublas(self, node)

    def require_arguments(self, node: ex.Call, least: int) -> None:
        """Raise SourceError for a call that lacks arguments."""
        if len(node.arguments) < least:
            raise SourceError(node.span, f"{node.function} takes more than {len(node.arguments)} arguments")

    def is_check(self, node: ex.Call) -> bool:
        """Whether a call only looks at a status: a function of the source whose first parameter is one."""
        versions = self.environment.scope.functions.get(node.function, ())
        return bool(node.arguments) and any(
            one.parameters and one.parameters[0].type.base in _STATUS_TYPES and one.returns == CType("void")
            for one in versions
        )

    def _call(self, node: ex.Call) -> Lowered:
        # auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
        if node.function == "cudaFuncSetAttribute":
            self.require_arguments(node, _LEAST_ARGUMENTS[node.function])
            return Lowered(self._do_cudafuncsetattribute(node)[0], STATUS)
        # cudaError_t error = cudaGetLastError()
        if _IGNORED.match(node.function) and node.function.startswith("cuda"):
            return Lowered("True", STATUS)
        # std::bool_constant<true>()
        if node.function.removeprefix("std::") in _CONSTANT_CLASSES and not node.arguments and node.template:
            value = node.template[-1].value
            if value is not None:
                return self.lower(value)
        function = self.environment.function(node.function)
        if function is not None and function.body and len(function.parameters) == len(node.arguments):
            if calls_itself(function, self.environment.scope):
                raise SourceError(node.span, f"{node.function}() calls itself, which cannot be lowered")
            # blocks_for(n, 256): a host function of several statements becomes a Python function
            if len(function.body) > 1 or self._means_others(function):
                called = self._helper_call(node, function)
                if called is not None:
                    return called
        return super()._call(node)

    def _means_others(self, function: Launcher) -> bool:
        """Whether a name in a host function would mean a variable of its caller, if it stood there."""
        own = {one.name for one in function.parameters} | {one.name for one in function.template}
        used = {
            part.name
            for statement in function.body
            for value in vars(statement).values()
            if isinstance(value, ex.Expression)
            for part in ex.walk(value)
            if isinstance(part, ex.Name)
        }
        return bool((used - own) & self.environment.variables.keys())

    def _helper_call(self, node: ex.Call, function: Launcher) -> Lowered | None:
        template = paired(((one.name, one.default) for one in function.template), node.template, node.span)
        helper = self.helper(function, template)
        if helper is None:
            return None
        arguments = [*(["plan"] if helper.takes_plan else []), *(self.text(one) for one in node.arguments)]
        for one in function.template:
            if one.kind != "type":
                given = template[one.name].value
                arguments.append(self.text(given) if given is not None else template[one.name].text)
        returns = function.returns if function.returns.is_integer or function.returns.is_floating else INT
        return Lowered(f"{helper.name}({', '.join([*arguments, *helper.asked])})", returns)

    # assert(n % block_size == 0)
    def _do_assert(self, node: ex.Call) -> list[str]:
        condition = node.arguments[0]
        lowered = self.lower(condition)
        alignment = self._alignment(condition)
        if alignment:
            return [f'plan.require({lowered.text}, "{alignment}")']
        names = dict.fromkeys(
            variable.name
            for part in ex.walk(condition)
            if isinstance(part, ex.Name) and (variable := self.environment.variables.get(part.name))
        )
        values = "".join(f", {name}={name}" for name in names)
        return [f'plan.require({lowered.text}, "{spelled(condition)}"{values})']

    def _alignment(self, condition: ex.Expression) -> str:
        """``(uintptr_t)p % 16 == 0``: return what that asks for ("" for any other condition)."""
        if not (
            isinstance(condition, ex.Binary) and condition.operator == "==" and isinstance(condition.left, ex.Binary)
        ):
            return ""
        address, zero = condition.left, condition.right
        lowered = self._misalignment(address)
        if lowered is None or not (isinstance(zero, ex.Number) and zero.value == 0):
            return ""
        pointer = address.left.operand if isinstance(address.left, ex.Cast) else address.left
        alignment = int(self.lower(address.right).text) + (address.operator == "&")
        return f"{spelled(pointer)} aligned to {alignment} bytes"

    # cudaMemsetAsync(p, 0, bytes, stream)
    def _do_cudamemset(self, node: ex.Call) -> list[str]:
        pointer, nbytes = self.text(node.arguments[0]), self.text(node.arguments[2])
        value = stored(self.lower(node.arguments[1]), INT).text
        return [f"plan.memset({pointer}, {value}, {nbytes})"]

    _do_cudamemsetasync = _do_cudamemset

    # cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
    def _do_cudamemcpy(self, node: ex.Call) -> list[str]:
        kind = node.arguments[3] if len(node.arguments) > 3 else None
        if not (isinstance(kind, ex.Name) and kind.name in _DEVICE_COPIES):
            raise SourceError(node.span, "copies between host and device cannot be part of a plan")
        target, source, nbytes = (self.text(argument) for argument in node.arguments[:3])
        return [f"plan.memcpy({target}, {source}, {nbytes})"]

    _do_cudamemcpyasync = _do_cudamemcpy

    # cudaMalloc(&p, n * sizeof(float)), cudaMalloc((void**)&p, bytes)
    def _do_cudamalloc(self, node: ex.Call) -> list[str]:
        name, variable = self.written(node, node.arguments[0])
        pointee = variable.type.pointee.base
        size = node.arguments[1]
        if (
            isinstance(size, ex.Binary)
            and size.operator == "*"
            and isinstance(size.right, ex.SizeOf)
            and self.resolve(size.right.type).base == pointee
        ):
            return [f'{name} = plan.scratch("{pointee}", {self.text(size.left)})']
        return [f'{name} = plan.scratch("char", {self.text(size)}).cast("{pointee}*")']

    _do_cudamallocasync = _do_cudamalloc

    # cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
    def _do_cudafuncsetattribute(self, node: ex.Call) -> list[str]:
        kernel, attribute, value = node.arguments[:3]
        if not (isinstance(attribute, ex.Name) and attribute.name == _SHARED_ATTRIBUTE):
            raise SourceError(node.span, "only the attribute for dynamic shared memory has a meaning in a plan")
        name, template = self.kernel_value(kernel)
        return [f"plan.set_max_dynamic_shared({name}, {self.text(value)}{template})"]

    # cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device)
    def _do_cudadevicegetattribute(self, node: ex.Call) -> list[str]:
        target, _ = self.written(node, node.arguments[0])
        attribute = node.arguments[1].name if isinstance(node.arguments[1], ex.Name) else ""
        if attribute not in _DEVICE_ATTRIBUTES:
            raise SourceError(node.span, f"device attribute {attribute or 'of no name'} is not known to a plan")
        return [f"{target} = plan.device.{_DEVICE_ATTRIBUTES[attribute]}"]

    # cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block_size, bytes)
    def _do_cudaoccupancymaxactiveblockspermultiprocessor(self, node: ex.Call) -> list[str]:
        target, _ = self.written(node, node.arguments[0])
        name, template = self.kernel_value(node.arguments[1])
        block, shared = self.text(node.arguments[2]), self.text(node.arguments[3])
        return [f"{target} = plan.max_active_blocks({name}, {block}, {shared}{template})"]

    def kernel_value(self, node: ex.Expression) -> tuple[str, str]:
        """Return the Python name of a kernel that is passed as a value, and the ``template=`` argument for it."""
        while isinstance(node, ex.Cast) or (isinstance(node, ex.Unary) and node.operator == "&"):
            node = node.operand
        if isinstance(node, ex.TemplateName):
            kernel = self.environment.scope.kernels.get(node.name)
            return self.kernel(node, node.name), self.template(node.span, node.template, kernel)
        if isinstance(node, ex.Name):
            return self.kernel(node, node.name), ""
        raise SourceError(node.span, "is no kernel by name")

    def template(
        self, span: SourceSpan, arguments: Sequence[ex.TemplateArgument], owner: Kernel | Launcher | None
    ) -> str:
        """Return ``, template=(…)`` for explicit template arguments ("" for none).

        Raises SourceError for what the parameters of ``owner`` cannot be given from Python.
        """
        if owner is not None:
            check_defaults(span, owner, len(arguments))
        if not arguments:
            return ""
        for argument, parameter in zip(arguments, owner.template if owner is not None else (), strict=False):
            self._check_argument(span, argument, parameter, owner)
        parts = [self._template_argument(argument) for argument in arguments]
        return f", template=({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _check_argument(
        self,
        span: SourceSpan,
        argument: ex.TemplateArgument,
        parameter: TemplateParameter,
        owner: Kernel | Launcher | None,
    ) -> None:
        if parameter.kind == "type":
            ctype = self.resolve(argument.type) if argument.type is not None else CType("")
            plain = ctype.is_integer or ctype.is_floating or ctype.base in self.environment.template
            if ctype.is_pointer or not plain:
                raise SourceError(span, f"template argument {argument.text} is no type that arrays have")
            return
        value = argument.value
        name = value.name if isinstance(value, ex.Name) else ""
        is_enumeration = isinstance(owner, Kernel) and parameter.name in owner.enumerations
        if is_enumeration and name in self.environment.opaque:
            raise SourceError(
                span, f"{name} is a {parameter.kind}, and launchers in Python have no template parameter of it"
            )
        is_number = isinstance(value, ex.Number) or name in self.environment.scope.constants
        if is_number and not is_enumeration and is_opaque(parameter):
            raise SourceError(
                span, f"template parameter {parameter.name} is {parameter.kind}, and no number for Python"
            )

    def _template_argument(self, argument: ex.TemplateArgument) -> str:
        if isinstance(argument.value, ex.Name) and argument.value.name in self.environment.opaque:
            return f'plan.template["{argument.value.name}"]'
        if argument.value is not None and not self._names_type(argument):
            return self.text(argument.value)
        return f'"{self.resolve(argument.type)}"' if argument.type is not None else repr(argument.text)

    def _names_type(self, argument: ex.TemplateArgument) -> bool:
        """Whether ``k<N>`` passes a type: a name of no variable and no constant."""
        if not isinstance(argument.value, ex.Name) or argument.type is None:
            return False
        name = argument.value.name
        scope = self.environment.scope
        if name in self.environment.template_values:
            return False
        return name not in self.environment.variables and name not in scope.constants and "::" not in name

    def written(self, node: ex.Call, argument: ex.Expression) -> tuple[str, Variable]:
        """Return the host variable whose address is passed: ``&p``, ``(void**)&p``."""
        while isinstance(argument, ex.Cast):
            argument = argument.operand
        if isinstance(argument, ex.Unary) and argument.operator == "&" and isinstance(argument.operand, ex.Name):
            variable = self.environment.variables.get(argument.operand.name)
            if variable is not None:
                return variable.name, variable
        raise SourceError(node.span, f"{node.function} does not write to a local variable")
