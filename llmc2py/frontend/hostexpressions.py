"""Expressions of host code, from the syntax tree to the IR."""

from __future__ import annotations

import ast
import re

from llmc2py.frontend.declarations import read_descriptor, type_name
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, first, named, unqualified, walk
from llmc2py.ir import expressions as ir
from llmc2py.ir.types import CType, canonical_name

_NUMBER = re.compile(r"^([-+]?)(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9']+)([uUlLzZ]*)$")
#: More levels than anybody writes by hand, and few enough for each stage to go through them by recursion.
DEEPEST = 64
#: What no function's name has, but a lambda, or a call or element that is called.
_NO_NAME = re.compile(r"[^\w:<>,*&~$]")
_LONGEST_NUMBER = 40
_NAMED_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast"})
_SCALARS = frozenset({"int", "unsigned int", "float", "double", "bool", "unsigned long", "long", "char", "long long"})


class ExpressionReader:
    """Reads expressions of one file. Each method stands under the C form that it handles."""

    def __init__(self, tree: SyntaxTree) -> None:
        self.tree = tree
        self._depth = 0

    def read(self, node: Node) -> ir.Expression:
        """Return the expression of a node; what is beyond the IR becomes ``Unreadable``."""
        method = getattr(self, f"_{node.type}", None)
        if node.has_error or method is None:
            reason = "cannot be parsed" if node.has_error else f"{node.type.replace('_', ' ')} is not supported"
            return ir.Unreadable(self.tree.span(node), self.tree.text(node), reason)
        if self._depth > DEEPEST:
            text = f"{self.tree.text(node)[:60]} …"
            return ir.Unreadable(self.tree.span(node), text, f"it nests more than {DEEPEST} levels deep")
        self._depth += 1
        try:
            result: ir.Expression = method(node)
        except MissingPartError as error:
            return ir.Unreadable(self.tree.span(node), self.tree.text(node), f"{error} cannot be read")
        finally:
            self._depth -= 1
        return result

    def read_all(self, nodes: list[Node]) -> tuple[ir.Expression, ...]:
        """Return the expressions of several nodes."""
        return tuple(self.read(node) for node in nodes)

    # 42, 0x10, 32U, 3UL, 1.5f, 1e-5; the grammar takes the sign of -1 for a part of it
    def _number_literal(self, node: Node) -> ir.Expression:
        span, text = self.tree.span(node), self.tree.text(node)
        integer = _NUMBER.match(text)
        if integer is None:
            body = text.rstrip("fFlL") if not text.lower().startswith("0x") else text
            try:
                return ir.Number(span, float(body.replace("'", "")), CType("float" if text[-1] in "fF" else "double"))
            except ValueError:
                return ir.Unreadable(span, text, "is no number that can be read")
        sign, digits, suffix = integer[1], integer[2].replace("'", ""), integer[3].lower()
        is_octal = re.fullmatch(r"0\d+", digits) is not None
        if len(digits) > _LONGEST_NUMBER or (is_octal and not set(digits) <= set("01234567")):
            return ir.Unreadable(span, text[:_LONGEST_NUMBER], "is no number that can be read")
        value = int(digits, 8 if is_octal else 0)
        base = "long" if "l" in suffix or "z" in suffix or value >= 2**31 else "int"
        number = ir.Number(span, value, CType(f"unsigned {base}" if "u" in suffix else base))
        return ir.Unary(span, "-", number) if sign == "-" else number

    def _true(self, node: Node) -> ir.Expression:
        return ir.Number(self.tree.span(node), 1, CType("bool"))

    def _false(self, node: Node) -> ir.Expression:
        return ir.Number(self.tree.span(node), 0, CType("bool"))

    def _null(self, node: Node) -> ir.Expression:
        return ir.Null(self.tree.span(node))

    def _string_literal(self, node: Node) -> ir.Expression:
        return ir.String(self.tree.span(node), self.tree.text(node)[1:-1])

    # 'a', '\n', '\x41'
    def _char_literal(self, node: Node) -> ir.Expression:
        span, text = self.tree.span(node), self.tree.text(node)
        try:
            value = ast.literal_eval(f"b{text}")
        except (SyntaxError, ValueError):
            value = b""
        if len(value) != 1 or not text.startswith("'"):
            return ir.Unreadable(span, text, "is no character that can be read")
        return ir.Number(span, value[0] - 256 * (value[0] > 127), CType("char"))

    # "a" "b"
    def _concatenated_string(self, node: Node) -> ir.Expression:
        return ir.String(self.tree.span(node), "".join(self.tree.text(item)[1:-1] for item in named(node)))

    def _identifier(self, node: Node) -> ir.Expression:
        return ir.Name(self.tree.span(node), self.tree.text(node))

    # x128::size, std::min
    def _qualified_identifier(self, node: Node) -> ir.Expression:
        return ir.Name(self.tree.span(node), re.sub(r"\s+", "", self.tree.text(node)))

    # kernel<float, 8>
    def _template_function(self, node: Node) -> ir.Expression:
        return ir.TemplateName(self.tree.span(node), callee(self.tree, node), self.template_arguments(node))

    def _parenthesized_expression(self, node: Node) -> ir.Expression:
        return self.read(first(node))

    # -x, !x, ~x
    def _unary_expression(self, node: Node) -> ir.Expression:
        operator = self.tree.text(child(node, "operator"))
        return ir.Unary(self.tree.span(node), operator, self.read(child(node, "argument")))

    # *p, &x
    def _pointer_expression(self, node: Node) -> ir.Expression:
        operator = self.tree.text(child(node, "operator"))
        return ir.Unary(self.tree.span(node), operator, self.read(child(node, "argument")))

    def _binary_expression(self, node: Node) -> ir.Expression:
        operator = self.tree.text(child(node, "operator"))
        left, right = self.read(child(node, "left")), self.read(child(node, "right"))
        return ir.Binary(self.tree.span(node), {"and": "&&", "or": "||"}.get(operator, operator), left, right)

    def _conditional_expression(self, node: Node) -> ir.Expression:
        parts = [self.read(child(node, field)) for field in ("condition", "consequence", "alternative")]
        return ir.Conditional(self.tree.span(node), *parts)

    # a = b inside an expression
    def _assignment_expression(self, node: Node) -> ir.Expression:
        return ir.Unreadable(
            self.tree.span(node), self.tree.text(node), "an assignment inside an expression is not supported"
        )

    # (float*)p
    def _cast_expression(self, node: Node) -> ir.Expression:
        descriptor, value = child(node, "type"), self.read(child(node, "value"))
        ctype = read_descriptor(self.tree, descriptor)
        if (
            child(descriptor, "type").type == "qualified_identifier"
            and not ctype.pointers
            and isinstance(value, ir.Unary)
        ):
            # (x128::size) - 1, which the grammar takes for a cast of -1
            owner = ir.Name(self.tree.span(node), re.sub(r"\s+", "", self.tree.text(descriptor)))
            return ir.Binary(self.tree.span(node), value.operator, owner, value.operand)
        return ir.Cast(self.tree.span(node), ctype, value)

    # sizeof(floatX), sizeof x
    def _sizeof_expression(self, node: Node) -> ir.Expression:
        span = self.tree.span(node)
        descriptor = node.child_by_field_name("type")
        if descriptor is not None:
            return ir.SizeOf(span, read_descriptor(self.tree, descriptor))
        operand = self.read(child(node, "value"))
        if isinstance(operand, ir.Name):
            # The grammar cannot tell sizeof(type) from sizeof(variable); lowering looks the name up.
            return ir.SizeOf(span, CType(canonical_name(operand.name)))
        return ir.SizeOfValue(span, operand)

    # p.n, p->n
    def _field_expression(self, node: Node) -> ir.Expression:
        return ir.Member(self.tree.span(node), self.read(child(node, "argument")), self.tree.text(child(node, "field")))

    # a[i]
    def _subscript_expression(self, node: Node) -> ir.Expression:
        index = first(child(node, "indices"))
        return ir.Index(self.tree.span(node), self.read(child(node, "argument")), self.read(index))

    # {1, 2, 3}
    def _initializer_list(self, node: Node) -> ir.Expression:
        return ir.InitializerList(self.tree.span(node), self.read_all(named(node)))

    # std::integral_constant<int, 3>{}, dim3{1, 2}
    def _compound_literal_expression(self, node: Node) -> ir.Expression:
        spec = child(node, "type")
        arguments = self.read_all(named(child(node, "value")))
        return ir.Construct(
            self.tree.span(node), CType(type_name(self.tree, spec)), self.template_arguments(spec), arguments
        )

    # f(a), f<T>(a), static_cast<int>(x), int(x), dim3(a, b), std::min(a, b), p->bs()
    def _call_expression(self, node: Node) -> ir.Expression:
        span, function = self.tree.span(node), child(node, "function")
        arguments = self.read_all(named(child(node, "arguments")))
        if function.type == "field_expression":
            owner = self.read(child(function, "argument"))
            return ir.MethodCall(span, owner, self.tree.text(child(function, "field")), arguments)
        name = callee(self.tree, function)
        if _NO_NAME.search(name):
            return ir.Unreadable(span, self.tree.text(node), "a call of what has no name is not supported")
        template = self.template_arguments(function)
        if name in _NAMED_CASTS and len(arguments) == 1 and template and template[0].type is not None:
            return ir.Cast(span, template[0].type, arguments[0])
        if canonical_name(name) in _SCALARS and len(arguments) == 1:
            return ir.Cast(span, CType(canonical_name(name)), arguments[0])
        if name == "dim3":
            return ir.Construct(span, CType("dim3"), (), arguments)
        return ir.Call(span, name, template, arguments)

    def template_arguments(self, node: Node) -> tuple[ir.TemplateArgument, ...]:
        """Return the arguments of ``f<…>``, at whatever depth the grammar keeps them."""
        found = next((item for item in walk(node) if item.type == "template_argument_list"), None)
        return tuple(self._template_argument(item) for item in named(found)) if found else ()

    def _template_argument(self, node: Node) -> ir.TemplateArgument:
        text = self.tree.text(node)
        if node.type == "type_descriptor":
            ctype = read_descriptor(self.tree, node)
            plain = node.named_child_count == 1 and node.named_children[0].type in (
                "type_identifier",
                "qualified_identifier",
            )
            value = ir.Name(self.tree.span(node), re.sub(r"\s+", "", text)) if plain else None
            return ir.TemplateArgument(ctype, value, text)
        return ir.TemplateArgument(None, self.read(node), text)


def callee(tree: SyntaxTree, function: Node) -> str:
    """Return the name of what is called, without its template arguments."""
    last = unqualified(function)
    end = child(last, "name").end_byte if last.type == "template_function" else function.end_byte
    return re.sub(r"\s+", "", tree.source[function.start_byte : end].decode())
