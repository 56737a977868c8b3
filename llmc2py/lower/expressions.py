"""C expressions of host code as Python expressions.

Every method stands under the C form that it lowers and returns the Python text with its C type, so that integer
division, unsigned arithmetic and pointer offsets keep C's meaning.
"""

from __future__ import annotations

from llmc2py.diagnostics import SourceError
from llmc2py.ir import expressions as ir
from llmc2py.ir.types import BOOL, FLOAT, FLOATING_TYPES, INT, INTEGER_TYPES, LONG, SIZE_T, CType, promote
from llmc2py.lower.environment import ADDRESS, DIM3, ENUMERATOR, STATUS, UNKNOWN
from llmc2py.lower.lowered import (
    AND,
    ATOM,
    COMPARE,
    LAND,
    LOR,
    NOT,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    TERNARY,
    UNARY,
    XOR,
    Lowered,
    compared,
    holds,
    in_single,
    meeting,
    promoted,
    stored,
    truth,
    wrapped,
)
from llmc2py.lower.rewriting import ceil_div_operands, with_arguments
from llmc2py.lower.templates import check_given, paired
from llmc2py.lower.values import DEVICE_FIELDS, ValueLowering, check_host

_ALIGNMENTS = (1, 2, 4, 8, 16)

#: Of a float they give a float, whatever they compute in.
_EXACT = frozenset({"ceil", "floor", "fabs"})
_SIZES = {
    "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4,
    "unsigned int": 4, "float": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "unsigned long": 8, "long long": 8,
    "unsigned long long": 8, "int2": 8, "int4": 16, "float2": 8, "float4": 16, "uint4": 16, "uint2": 8, "double2": 16,
}  # fmt: skip
_MATH = frozenset({"ceil", "floor", "sqrt", "log2", "log", "exp", "pow", "fabs", "log10"})

_OPERATORS = {
    "*": ("*", PRODUCT), "/": ("//", PRODUCT), "%": ("%", PRODUCT), "+": ("+", SUM), "-": ("-", SUM),
    "<<": ("<<", SHIFT), ">>": (">>", SHIFT), "&": ("&", AND), "^": ("^", XOR), "|": ("|", OR),
    "<": ("<", COMPARE), ">": (">", COMPARE), "<=": ("<=", COMPARE), ">=": (">=", COMPARE), "==": ("==", COMPARE),
    "!=": ("!=", COMPARE), "&&": ("and", LAND), "||": ("or", LOR),
}  # fmt: skip
#: Operations on two natural numbers that are carried out at once, so that ``sizeof(int4) / sizeof(float)`` reads 4.
_FOLDED = {"*": int.__mul__, "/": int.__floordiv__, "%": int.__mod__, "+": int.__add__}


class ExpressionLowering(ValueLowering):
    """Lowers expressions in one environment."""

    # -x, !x, ~x, *p, &p[i]
    def _unary(self, node: ir.Unary) -> Lowered:
        operand = self.lower(node.operand) if node.operator != "&" else None
        if operand is None:
            return self._address(node)
        if node.operator == "-":
            result, ctype = f"-{operand.at(UNARY)}", promoted(operand.type)
            return wrapped(result, ctype) if ctype.is_unsigned else Lowered(result, ctype, UNARY)
        if node.operator == "!":
            text = f"{operand.at(COMPARE)} is None" if operand.type.is_pointer else f"not {operand.at(NOT)}"
            return Lowered(text, BOOL, COMPARE if operand.type.is_pointer else NOT)
        if node.operator in "~+":
            result, ctype = f"{node.operator}{operand.at(UNARY)}", promoted(operand.type)
            is_wrapped = node.operator == "~" and ctype.is_unsigned
            return wrapped(result, ctype) if is_wrapped else Lowered(result, ctype, UNARY)
        raise SourceError(node.span, f"operator {node.operator} reads device memory; a launcher's plan cannot")

    def _address(self, node: ir.Unary) -> Lowered:
        """``&p[i]`` is ``p + i``."""
        if isinstance(node.operand, ir.Index):
            return self._binary(ir.Binary(node.span, "+", node.operand.object, node.operand.index))
        raise SourceError(node.span, "the address of a host variable is taken")

    # a + b, (n + 255) / 256, p + n, p != nullptr, status == cudaSuccess
    def _binary(self, node: ir.Binary) -> Lowered:
        rounded = ceil_div_operands(node)
        if rounded is not None:
            dividend, divisor = (self.lower(part) for part in rounded)
            ctype = promote(dividend.type, divisor.type)
            plain = not ctype.is_unsigned or not (dividend.is_irregular or divisor.is_irregular)
            if plain and (dividend.type.is_integer or dividend.type == UNKNOWN):
                natural = dividend.is_natural and divisor.is_natural
                return Lowered(f"ceil_div({dividend.text}, {divisor.text})", ctype, is_natural=natural)
        misalignment = self._misalignment(node)
        if misalignment is not None:
            return misalignment
        left, right = self.lower(node.left), self.lower(node.right)
        if STATUS in (left.type, right.type):
            return self._status(node, left, right)
        if node.operator in ("&&", "||"):
            return self._logic(node, left, right)
        if left.type.is_pointer or right.type.is_pointer:
            return self._pointer(node, left, right)
        return self._arithmetic(node, left, right)

    def _status(self, node: ir.Binary, left: Lowered, right: Lowered) -> Lowered:
        value = left if right.text == "True" else right
        if node.operator == "==":
            return value
        return Lowered(f"not {value.at(NOT)}", BOOL, NOT)

    def _pointer(self, node: ir.Binary, left: Lowered, right: Lowered) -> Lowered:
        if node.operator in ("==", "!=") and "None" in (left.text, right.text):
            value = left if right.text == "None" else right
            return Lowered(f"{value.at(COMPARE)} is {'not ' if node.operator == '!=' else ''}None", BOOL, COMPARE)
        if node.operator == "+" and right.type.is_pointer and not left.type.is_pointer:
            left, right = right, left
        if node.operator in "+-" and not right.type.is_pointer:
            return Lowered(f"{left.at(SUM)} {node.operator} {right.at(PRODUCT)}", left.type, SUM)
        raise SourceError(node.span, f"operator {node.operator} on pointers cannot be lowered")

    def _logic(self, node: ir.Binary, left: Lowered, right: Lowered) -> Lowered:
        if node.operator == "&&" and right.type == CType("char", 1, True):
            return left  # assert(c && "what it means"): the text is always true
        operator, level = _OPERATORS[node.operator]
        left, right = truth(left), truth(right)
        return Lowered(f"{left.at(level)} {operator} {right.at(level + 1)}", BOOL, level)

    def _arithmetic(self, node: ir.Binary, left: Lowered, right: Lowered) -> Lowered:
        if node.operator not in _OPERATORS:
            raise SourceError(node.span, f"operator {node.operator} cannot be lowered")
        operator, level = _OPERATORS[node.operator]
        if left.text.isdigit() and right.text.isdigit() and node.operator in _FOLDED and int(right.text):
            value = _FOLDED[node.operator](int(left.text), int(right.text))
            if value >= 2**64:
                raise SourceError(node.span, "the constant does not fit into 64 bits")
            return Lowered(str(value), promote(left.type, right.type), is_natural=True)
        ctype = INT if UNKNOWN in (left.type, right.type) else promote(left.type, right.type)
        if level == SHIFT:
            if right.text.isdigit() and int(right.text) > 63:
                raise SourceError(node.span, f"a shift by {right.text} bits is undefined")
            ctype = promoted(left.type)
        elif level == COMPARE:
            return self._comparison(node, operator, left, right)
        else:
            left, right = meeting(left, ctype), meeting(right, ctype)
        natural = left.is_natural and right.is_natural
        if ctype == FLOAT:
            # Computed in double and rounded once, each operation gives what C gives.
            sign = "/" if node.operator == "/" else operator
            text = f"{in_single(left).at(level)} {sign} {in_single(right).at(level + 1)}"
            return Lowered(f'c_cast({text}, "float")', FLOAT)
        if node.operator == "/" and ctype.is_floating:
            operator = "/"
        elif node.operator in "/%" and not natural:
            function = "idiv" if node.operator == "/" else "imod"
            return Lowered(f"{function}({left.text}, {right.text})", ctype)
        text = f"{left.at(level)} {operator} {right.at(level + 1)}"
        below = node.operator == "-" and not (isinstance(node.right, ir.Number) and natural)
        above = node.operator in ("+", "*", "<<") and (left.is_wrapped or right.is_wrapped)
        if ctype.is_unsigned and (below or above):
            return wrapped(text, ctype)
        return Lowered(text, ctype, level, is_natural=natural and node.operator != "-")

    def _misalignment(self, node: ir.Binary) -> Lowered | None:
        """``(uintptr_t)p % 16``, ``(size_t)p & 15``: all that a plan knows of an address."""
        if node.operator not in ("%", "&") or not isinstance(node.left, ir.Cast):
            return None
        if not self.resolve(node.left.type).is_integer or self._is_value_name(self.resolve(node.left.type)):
            return None
        pointer, number = self.lower(node.left.operand), self.lower(node.right)
        if not pointer.type.is_pointer:
            return None
        alignment = int(number.text) + (node.operator == "&") if number.text.isdigit() else 0
        if alignment not in _ALIGNMENTS:
            raise SourceError(node.span, "of an address no more is known than that it is a multiple of up to 16")
        return Lowered(f"plan.misalignment({pointer.text}, {alignment})", ADDRESS, is_natural=True)

    def _comparison(self, node: ir.Binary, operator: str, left: Lowered, right: Lowered) -> Lowered:
        """``a % b == 0`` needs no C rules: the sign of a remainder does not matter where it is nought."""
        is_remainder = isinstance(node.left, ir.Binary) and node.left.operator == "%" and left.type != ADDRESS
        if right.text == "0" and is_remainder and isinstance(node.left, ir.Binary):
            dividend, divisor = self.lower(node.left.left), self.lower(node.left.right)
            text = f"{dividend.at(PRODUCT)} % {divisor.at(UNARY)}"
            return Lowered(f"{text} {operator} 0", BOOL, COMPARE)
        left, right = compared(left, right)
        return Lowered(f"{left.at(SHIFT)} {operator} {right.at(SHIFT)}", BOOL, COMPARE)

    # c ? a : b
    def _conditional(self, node: ir.Conditional) -> Lowered:
        condition, one, other = (self.lower(part) for part in (node.condition, node.consequence, node.alternative))
        kept = one.type.is_pointer or one.type in (DIM3, ENUMERATOR)
        ctype = one.type if kept else promote(one.type, other.type)
        one, other = meeting(one, ctype), meeting(other, ctype)
        text = f"{one.at(LOR)} if {condition.at(LOR)} else {other.at(TERNARY)}"
        return Lowered(text, ctype, TERNARY, is_natural=one.is_natural and other.is_natural)

    # (float*)p, (int)x
    def _cast(self, node: ir.Cast) -> Lowered:
        ctype = self.resolve(node.type)
        if self._is_value_name(ctype) and isinstance(node.operand, ir.Unary) and node.operand.operator in "+-*&":
            # (n) - 1: only who knows the names can tell it from a cast of -1.
            name = ir.Name(node.span, node.type.base)
            return self._binary(ir.Binary(node.span, node.operand.operator, name, node.operand.operand))
        operand = self.lower(node.operand)
        if ctype.is_pointer:
            same = operand.type.is_pointer and operand.type.base == ctype.base
            text = operand.text if same or operand.text == "None" else f'plan.cast({operand.text}, "{ctype.base}*")'
            return Lowered(text, ctype)
        if ctype.is_integer and operand.type.is_integer and holds(ctype, operand):
            return Lowered(operand.text, ctype, operand.level, operand.is_natural)
        if operand.type.is_pointer:
            raise SourceError(node.span, "an address is not known before the call")
        if ctype.base == "floatX":
            return Lowered(f'c_cast({operand.text}, plan.ctype("floatX"))', ctype)
        if ctype.base in INTEGER_TYPES or ctype.base in FLOATING_TYPES:
            return Lowered(f'c_cast({operand.text}, "{ctype.base}")', ctype)
        raise SourceError(node.span, f"a cast to {ctype} cannot be lowered")

    def _is_value_name(self, ctype: CType) -> bool:
        if ctype.is_pointer or ctype.is_integer or ctype.is_floating:
            return False
        return ctype.base in self.environment.variables or ctype.base in self.environment.scope.constants

    # sizeof(floatX)
    def _sizeof(self, node: ir.SizeOf) -> Lowered:
        variable = self.environment.variables.get(node.type.base)
        ctype = self.resolve(variable.type if variable is not None else node.type)
        if ctype.is_pointer:
            return Lowered("8", SIZE_T, is_natural=True)
        if ctype.base in _SIZES:
            return Lowered(str(_SIZES[ctype.base]), SIZE_T, is_natural=True)
        if ctype.base == "floatX" or ctype.base in self.environment.template:
            return Lowered(f'plan.sizeof("{ctype.base}")', SIZE_T, is_natural=True)
        raise SourceError(node.span, f"the size of {ctype} is not known")

    # sizeof x, sizeof(blocks)
    def _sizeofvalue(self, node: ir.SizeOfValue) -> Lowered:
        if isinstance(node.operand, ir.Unary) and node.operand.operator == "*":
            return self._sizeof(ir.SizeOf(node.span, self.lower(node.operand.operand).type.pointee))
        return self._sizeof(ir.SizeOf(node.span, self.lower(node.operand).type))

    # dim3(a, b), std::integral_constant<int, 3>{}
    def _construct(self, node: ir.Construct) -> Lowered:
        if node.type.base == "dim3":
            parts = [stored(self.lower(argument), LONG).text for argument in node.arguments] or ["1"]
            return Lowered(f"({', '.join(parts)}{',' if len(parts) == 1 else ''})", DIM3)
        if node.template and node.template[-1].value is not None and not node.arguments:
            return self.lower(node.template[-1].value)
        raise SourceError(node.span, f"a value of {node.type} cannot be lowered")

    # deviceProp.multiProcessorCount, grid.x, size.value, p->n
    def _member(self, node: ir.Member) -> Lowered:
        if isinstance(node.object, ir.Name):
            variable = self.environment.variables.get(node.object.name)
            if variable is not None and variable.type == DIM3 and node.field in "xyz":
                return Lowered(f"{variable.name}[{'xyz'.index(node.field)}]", CType("unsigned int"), is_natural=True)
            if variable is not None and node.field == "value":
                return Lowered(variable.name, variable.type)
            if node.field in DEVICE_FIELDS:
                return Lowered(f"plan.device.{node.field}", INT, is_natural=True)
            check_host(node.object)
            return self.ask(node.span, f"{node.object.name}_{node.field}")
        raise SourceError(node.span, f"member {node.field} of an expression cannot be lowered")

    # p->bs(): asked for, not guessed
    def _methodcall(self, node: ir.MethodCall) -> Lowered:
        if isinstance(node.object, ir.Name) and not node.arguments:
            return self.ask(node.span, f"{node.object.name}_{node.method}")
        raise SourceError(node.span, f"the result of {node.method}() is not known here")

    # block_sizes[i]
    def _index(self, node: ir.Index) -> Lowered:
        owner = self.lower(node.object)
        if not owner.type.is_pointer and owner.type != UNKNOWN:
            raise SourceError(node.span, f"an element of {owner.text} is read, whose values are not known here")
        if owner.type.is_pointer:
            raise SourceError(node.span, "an element of device memory is read; a launcher's plan cannot")
        return Lowered(f"{owner.at(ATOM)}[{self.text(node.index)}]", INT)

    # {1, 2, 3}
    def _initializerlist(self, node: ir.InitializerList) -> Lowered:
        return Lowered(f"[{', '.join(self.text(item) for item in node.items)}]", UNKNOWN)

    # std::min(a, b), ceilf(x), ceil_div(a, b)
    def _call(self, node: ir.Call) -> Lowered:
        name = node.function.removeprefix("std::").removeprefix("::")
        if name in ("integral_constant", "bool_constant") and not node.arguments:
            return self._construct(ir.Construct(node.span, CType(name), node.template, ()))
        if name in ("min", "max") and len(node.arguments) == 2:
            one, other = (self.lower(argument) for argument in node.arguments)
            ctype = promote(one.type, other.type)
            one, other = meeting(one, ctype), meeting(other, ctype)
            natural = one.is_natural and other.is_natural
            return Lowered(f"{name}({one.text}, {other.text})", ctype, is_natural=natural)
        if name.removesuffix("f") in _MATH:
            return self._mathematics(name, [self.lower(argument) for argument in node.arguments])
        inlined = self._inline(node)
        if inlined is not None:
            return inlined
        raise SourceError(node.span, f"a call of {node.function}() cannot be lowered")

    def _mathematics(self, name: str, arguments: list[Lowered]) -> Lowered:
        """``sqrtf(x)`` and, of floats alone, ``std::sqrt(x)`` are float functions, the others double ones."""
        is_single = name.endswith("f") or all(one.type == FLOAT for one in arguments)
        text = ", ".join((in_single(one) if is_single else one).text for one in arguments)
        function = name.removesuffix("f")
        called = f"math.{function}({text})"
        if not is_single:
            return Lowered(called, CType("double"))
        return Lowered(called if function in _EXACT else f'c_cast({called}, "float")', FLOAT)

    def _inline(self, node: ir.Call) -> Lowered | None:
        """``ceil_div(a, b)``: a host function of a single return is replaced by what it returns."""
        function = self.environment.function(node.function)
        if function is None or len(function.parameters) != len(node.arguments) or len(function.body) != 1:
            return None
        returned = getattr(function.body[0], "value", None)
        if not isinstance(returned, ir.Expression):
            return None
        names = {one.name: value for one, value in zip(function.parameters, node.arguments, strict=True)}
        template = paired(((one.name, one.default) for one in function.template), node.template, node.span)
        check_given(node.span, node.function, returned, {one.name for one in function.template} - template.keys())
        return stored(self.lower(with_arguments(returned, names, template)), function.returns)

    def _unreadable(self, node: ir.Unreadable) -> Lowered:
        raise SourceError(node.span, f"{node.text!r}: {node.reason}")
