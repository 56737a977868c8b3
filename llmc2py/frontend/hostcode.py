"""Bodies of host functions, from the syntax tree to the IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from llmc2py.frontend.declarations import declared, read_parameters, read_type
from llmc2py.frontend.hostexpressions import DEEPEST, ExpressionReader, callee
from llmc2py.frontend.items import branch_condition
from llmc2py.frontend.statuschecks import without_checks
from llmc2py.frontend.syntax import MissingPartError, Node, SyntaxTree, child, first, named, parse, walk
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.conditions import host_precisions, is_told, on_host
from llmc2py.ir.types import CType

_UPDATES = {"++": "+", "--": "-"}


class StatementReader:
    """Reads statements of one file. Each method stands under the C form that it handles."""

    def __init__(self, tree: SyntaxTree) -> None:
        self.tree = tree
        self.expressions = ExpressionReader(tree)
        self._depth = 0

    def read_body(self, node: Node | None) -> ir.Body:
        """Return the statements of a compound statement, or of one statement that stands for it."""
        if node is None:
            return ()
        nodes = named(node) if node.type in ("compound_statement", "else_clause") else [node]
        if node.type == "else_clause" and len(nodes) == 1 and nodes[0].type == "compound_statement":
            return self.read_body(nodes[0])
        return without_checks(tuple(statement for item in nodes for statement in self.read(item)))

    def read(self, node: Node) -> ir.Body:
        """Return what one node stands for: nothing, one statement, or several."""
        method = getattr(self, f"_{node.type}", None)
        if method is None or (node.has_error and node.type in ("expression_statement", "declaration", "ERROR")):
            reason = "cannot be parsed" if node.has_error else f"{node.type.replace('_', ' ')} is not supported"
            return (ir.Unsupported(self.tree.span(node), self.tree.text(node), reason),)
        if self._depth > DEEPEST:
            text = f"{self.tree.text(node)[:60]} …"
            return (ir.Unsupported(self.tree.span(node), text, f"it nests more than {DEEPEST} levels deep"),)
        self._depth += 1
        try:
            result: ir.Body = method(node)
        except MissingPartError as error:
            return (ir.Unsupported(self.tree.span(node), self.tree.text(node), f"{error} cannot be read"),)
        finally:
            self._depth -= 1
        return result

    def _compound_statement(self, node: Node) -> ir.Body:
        body = self.read_body(node)
        is_inner = node.parent is not None and node.parent.type == "compound_statement"
        is_scope = is_inner and any(isinstance(statement, ir.Declare) for statement in body)
        return (ir.Block(self.tree.span(node), body),) if is_scope else body

    # const int a = 1, b = 2;   dim3 grid(x, y);   auto f = [&](auto n) { … };
    def _declaration(self, node: Node) -> ir.Body:
        base = read_type(self.tree, node)
        is_static = any(
            item.type == "storage_class_specifier" and self.tree.text(item) == "static" for item in node.children
        )
        return tuple(
            statement
            for item in node.children_by_field_name("declarator")
            for statement in self._declarator(node, item, base, is_static)
        )

    def _declarator(self, node: Node, item: Node, base: CType, is_static: bool) -> ir.Body:
        span = self.tree.span(item)
        if item.type == "init_declarator":
            name, ctype = declared(self.tree, child(item, "declarator"), base)
            value = child(item, "value")
            if value.type == "lambda_expression":
                return (self._lambda(value, name),)
            return (ir.Declare(span, name, ctype, self._initial(node, ctype, value), is_static),)
        name, ctype = declared(self.tree, item, base)
        if item.type == "function_declarator":
            # T name(a, b): the grammar takes it for a prototype where a and b could be types.
            arguments = self._arguments(child(item, "parameters"))
            return (ir.Declare(span, name, ctype, ex.Construct(span, ctype, (), arguments), is_static),)
        return (ir.Declare(span, name, ctype, None, is_static),)

    def _arguments(self, node: Node) -> tuple[ex.Expression, ...]:
        """``T name(a, b * c)``: read what the grammar took for the parameters of a prototype as arguments."""
        rows = slice(node.start_point.row, node.end_point.row + 1)
        text = f"void w() {{ return f{self.tree.text(node)}; }}"
        inner = parse(replace(self.tree.file, text=text, lines=self.tree.file.lines[rows]))
        call = next((item for item in walk(inner.root) if item.type == "call_expression"), None)
        if call is None:
            raise MissingPartError("a list of arguments")
        return ExpressionReader(inner).read_all(named(child(call, "arguments")))

    def _initial(self, node: Node, ctype: CType, value: Node) -> ex.Expression:
        """``= value``, ``(a, b)`` or ``{a, b}``."""
        if value.type == "argument_list":
            arguments = self.expressions.read_all(named(value))
            if len(arguments) == 1 and (ctype.is_integer or ctype.is_floating or ctype.is_pointer):
                return arguments[0]
            spec = node.child_by_field_name("type")
            template = self.expressions.template_arguments(spec) if spec else ()
            return ex.Construct(self.tree.span(value), ctype, template, arguments)
        read = self.expressions.read(value)
        if isinstance(read, ex.InitializerList) and ctype.base == "dim3":
            return ex.Construct(read.span, ctype, (), read.items)
        return read

    def _lambda(self, node: Node, name: str) -> ir.LocalFunction:
        declarator = node.child_by_field_name("declarator")
        parameters = read_parameters(self.tree, declarator) if declarator else ()
        names = tuple(item.name for item in parameters)
        return ir.LocalFunction(self.tree.span(node), name, names, self.read_body(child(node, "body")))

    def _expression_statement(self, node: Node) -> ir.Body:
        inner = named(node)
        return self._effect(inner[0]) if inner else ()

    def _effect(self, node: Node) -> ir.Body:
        span = self.tree.span(node)
        while node.type == "parenthesized_expression":
            node = first(node)
        if node.type == "assignment_expression":
            operator = self.tree.text(child(node, "operator")).removesuffix("=")
            target, value = self.expressions.read(child(node, "left")), self.expressions.read(child(node, "right"))
            return (ir.Assign(span, target, operator, value),)
        if node.type == "update_expression":
            operator = _UPDATES[self.tree.text(child(node, "operator"))]
            one = ex.Number(span, 1, CType("int"))
            return (ir.Assign(span, self.expressions.read(child(node, "argument")), operator, one),)
        if node.type == "comma_expression":
            return tuple(statement for item in named(node) for statement in self._effect(item))
        launch = launch_of(node)
        if launch is not None:
            return (self._launch(node, launch),)
        return (ir.Evaluate(span, self.expressions.read(node)),)

    # kernel<T><<<grid, block, shared, stream>>>(a, b)
    def _launch(self, node: Node, configuration: Node) -> ir.Statement:
        function = child(node, "function")
        parts = self.expressions.read_all(named(configuration))
        if not 2 <= len(parts) <= 4:
            return ir.Unsupported(
                self.tree.span(node), self.tree.text(node), "a launch takes 2 to 4 configuration values"
            )
        padded = [*parts, None, None][:4]
        return ir.Launch(
            self.tree.span(node),
            callee(self.tree, function),
            self.expressions.template_arguments(function),
            parts[0],
            parts[1],
            padded[2],
            padded[3],
            self.expressions.read_all(named(child(node, "arguments"))),
        )

    def _if_statement(self, node: Node) -> ir.Body:
        condition = self._condition(child(node, "condition"))
        consequence = self.read_body(child(node, "consequence"))
        alternative = self.read_body(node.child_by_field_name("alternative"))
        is_constexpr = any(item.type == "constexpr" for item in node.children)
        return (ir.If(self.tree.span(node), condition, consequence, alternative, is_constexpr),)

    def _condition(self, node: Node) -> ex.Expression:
        inner = node.child_by_field_name("value")
        return self.expressions.read(inner if inner is not None else first(node))

    def _for_statement(self, node: Node) -> ir.Body:
        init = node.child_by_field_name("initializer")
        condition, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
        return (
            ir.For(
                self.tree.span(node),
                () if init is None else self.read(init) if init.type == "declaration" else self._effect(init),
                self.expressions.read(condition) if condition else None,
                self._effect(update) if update else (),
                self.read_body(child(node, "body")),
            ),
        )

    def _while_statement(self, node: Node) -> ir.Body:
        return (
            ir.While(
                self.tree.span(node), self._condition(child(node, "condition")), self.read_body(child(node, "body"))
            ),
        )

    # do { … } while (c): a loop that ends unless c; while (0): how macros of several statements are written
    def _do_statement(self, node: Node) -> ir.Body:
        span, body = self.tree.span(node), self.read_body(child(node, "body"))
        is_once = self.tree.text(child(node, "condition")).strip("() ") in ("0", "false")
        if is_once and not any(isinstance(one, (ir.Break, ir.Continue)) for one in ir.walk(body)):
            return (ir.Block(span, body),) if any(isinstance(one, ir.Declare) for one in body) else body
        over = ex.Unary(span, "!", self._condition(child(node, "condition")))
        return (ir.For(span, (), None, (ir.If(span, over, (ir.Break(span),), ()),), body),)

    def _switch_statement(self, node: Node) -> ir.Body:
        subject = self._condition(child(node, "condition"))
        cases = tuple(self._cases(named(child(node, "body"))))
        return (ir.Switch(self.tree.span(node), subject, cases),)

    def _cases(self, nodes: list[Node]) -> list[ir.Case]:
        """``case 1: case 2: … break; default: …``: labels without a body belong to the next one that has a body."""
        cases: list[ir.Case] = []
        values: list[ex.Expression] = []
        is_default = False
        for condition, node in self._case_nodes(nodes, ""):
            value = node.child_by_field_name("value")
            if value is None:
                is_default = True
            else:
                values.append(self.expressions.read(value))
            body = tuple(s for item in named(node) if item != value for s in self.read(item))
            if body and condition:
                body = (self._branch(node, condition, body),)
            if body:
                cases.append(ir.Case(tuple(values), is_default, body))
                values, is_default = [], False
        return cases

    def _case_nodes(self, nodes: list[Node], condition: str) -> Iterator[tuple[str, Node]]:
        """Yield the cases of a switch with the preprocessor condition around each ("" for none)."""
        for node in nodes:
            if node.type == "case_statement":
                yield condition, node
            elif node.type in ("preproc_if", "preproc_ifdef"):
                for _, own, inner in self._branches(node):
                    both = f"{condition} && {own}" if condition else own
                    if host_precisions([both]):
                        yield from self._case_nodes(inner, both)

    def _return_statement(self, node: Node) -> ir.Body:
        inner = named(node)
        if inner and launch_of(inner[0]) is not None:
            return (*self._effect(inner[0]), ir.Return(self.tree.span(node), None))
        return (ir.Return(self.tree.span(node), self.expressions.read(inner[0]) if inner else None),)

    def _break_statement(self, node: Node) -> ir.Body:
        return (ir.Break(self.tree.span(node)),)

    def _continue_statement(self, node: Node) -> ir.Body:
        return (ir.Continue(self.tree.span(node)),)

    # using namespace x; typedef …; : names only, nothing happens
    def _using_declaration(self, node: Node) -> ir.Body:
        return ()

    _type_definition = _alias_declaration = _static_assert_declaration = _using_declaration

    # #if defined(ENABLE_BF16) … #else … #endif
    def _preproc_if(self, node: Node) -> ir.Body:
        found = []
        for branch, condition, inner in self._branches(node):
            body = tuple(statement for item in inner for statement in self.read(item))
            found.append(self._branch(branch, condition, body))
        return tuple(found)

    def _branches(self, node: Node) -> Iterator[tuple[Node, str, list[Node]]]:
        """Yield the branches of a conditional, each with the condition under which host code is in it."""
        branch: Node | None = node
        earlier: list[str] = []
        while branch is not None:
            own = on_host(branch_condition(self.tree, branch))
            following = branch.child_by_field_name("alternative")
            head = {branch.child_by_field_name("condition"), branch.child_by_field_name("name"), following}
            condition = " && ".join([*(f"!({other})" for other in earlier), *([own] if own else [])])
            yield branch, condition, [item for item in named(branch) if item not in head]
            earlier.append(own)
            branch = following

    def _branch(self, node: Node, condition: str, body: ir.Body) -> ir.Statement:
        span = self.tree.span(node)
        if body and not is_told(condition):
            return ir.Unsupported(span, f"#if {condition}", "is known to the compiler alone: take the condition away")
        return ir.PrecisionBranch(span, condition, body)

    _preproc_ifdef = _preproc_if

    def _preproc_def(self, node: Node) -> ir.Body:
        return ()


def launch_of(node: Node) -> Node | None:
    """Return the ``<<<…>>>`` of a call, or None for a plain call."""
    if node.type != "call_expression":
        return None
    return next((item for item in node.children if item.type == "kernel_call_syntax"), None)
