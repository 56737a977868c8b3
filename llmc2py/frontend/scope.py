"""What the names of a translation unit mean to host code: types, constants, globals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from llmc2py.frontend.declarations import declared, function_declarator, read_descriptor, read_template, read_type
from llmc2py.frontend.hostexpressions import ExpressionReader
from llmc2py.frontend.items import Declaration
from llmc2py.frontend.macros import chosen_constant, known_value, read_macros
from llmc2py.frontend.syntax import Node, SyntaxTree, child, named, walk
from llmc2py.ir.conditions import PRECISIONS, holds, host_precisions
from llmc2py.ir.expressions import Expression, Number, Unreadable
from llmc2py.ir.library import ClassConstant, Item, TypeAlias
from llmc2py.ir.types import CType, canonical_name

#: What a type must be in each precision to be the one that the precision chooses.
_FLOATX = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}


class ScopeReader:
    """Collects what file-scope declarations say."""

    def __init__(self, tree: SyntaxTree, declarations: list[Declaration], items: list[Item]) -> None:
        self.tree = tree
        self.declarations = declarations
        self.expressions = ExpressionReader(tree)
        self._resolved: dict[CType, CType] = {}
        self.aliases = self._read_aliases()
        self.constants: dict[str, Expression] = read_macros(tree, declarations)
        self._choices: dict[str, dict[str, Expression]] = {}
        self.class_constants: dict[tuple[str, str], ClassConstant] = {}
        self.globals: dict[str, list[Expression]] = {}
        self.global_types: dict[str, CType] = {}
        for declaration in declarations:
            if host_precisions(declaration.conditions):
                self._read(declaration)
        self._read_assignments(items)

    def resolve(self, ctype: CType) -> CType:
        """Return a type with its alias replaced; ``floatX``-like names become ``floatX``."""
        known = self._resolved.get(ctype)
        if known is None:
            known = self._resolved[ctype] = self._resolve(ctype, frozenset())
        return known

    def _resolve(self, ctype: CType, seen: frozenset[str]) -> CType:
        """Resolve a type; ``seen`` are the aliases that led here: one that leads back to itself stays as it is."""
        alias = self.aliases.get(ctype.base)
        if alias is None or alias.arguments:
            return CType(canonical_name(ctype.base), ctype.pointers, ctype.const)
        seen |= {ctype.base}
        inner = self._resolve(alias.type, seen) if alias.type.base not in seen else alias.type
        return CType(inner.base, inner.pointers + ctype.pointers, ctype.const or inner.const)

    def _read_aliases(self) -> dict[str, TypeAlias]:
        found: dict[str, list[tuple[tuple[str, ...], TypeAlias]]] = defaultdict(list)
        for declaration in self.declarations:
            for name, alias in self._aliases_of(declaration.node):
                found[name].append((declaration.conditions, alias))
        return {name: _choose_alias(versions) for name, versions in found.items()}

    def _aliases_of(self, node: Node) -> Iterator[tuple[str, TypeAlias]]:
        # typedef Packed128<float> f128;
        if node.type == "type_definition":
            spec = child(node, "type")
            arguments = self.expressions.template_arguments(spec)
            for item in node.children_by_field_name("declarator"):
                if item.type != "function_declarator":
                    name, ctype = declared(self.tree, item, read_type(self.tree, node))
                    yield name, TypeAlias(ctype, arguments)
        # using x128 = Packed128<floatX>;
        elif node.type == "alias_declaration":
            descriptor = child(node, "type")
            ctype = read_descriptor(self.tree, descriptor)
            yield self.tree.text(child(node, "name")), TypeAlias(ctype, self.expressions.template_arguments(descriptor))

    def _read(self, declaration: Declaration) -> None:
        node = declaration.node
        template = read_template(self.tree, node) if node.type == "template_declaration" else ()
        while node.type == "template_declaration":
            node = named(node)[-1]
        if node.type == "declaration" and function_declarator(node) is None:
            self._read_variable(node, declaration.conditions)
        spec = node.child_by_field_name("type") if node.type in ("declaration", "type_definition") else node
        if spec is not None and spec.type in ("struct_specifier", "class_specifier"):
            self._read_class(spec, tuple(item.name for item in template))
        elif spec is not None and spec.type == "enum_specifier":
            self._read_enumerators(spec)

    def _read_variable(self, node: Node, conditions: tuple[str, ...]) -> None:
        const = any(
            self.tree.text(item) in ("const", "constexpr") for item in node.children if item.type == "type_qualifier"
        )
        for item in node.children_by_field_name("declarator"):
            value = item.child_by_field_name("value") if item.type == "init_declarator" else None
            name, ctype = declared(self.tree, child(item, "declarator") if value else item, read_type(self.tree, node))
            if const and value is not None and not ctype.is_pointer:
                choices = self._choices.setdefault(name, {})
                read = known_value(self.expressions.read(value), conditions)
                choices |= dict.fromkeys(host_precisions(conditions), read)
                self.constants[name] = chosen_constant(choices)
            elif const:
                # constexpr std::bool_constant<true> True;
                spec = node.child_by_field_name("type")
                arguments = self.expressions.template_arguments(spec) if spec else ()
                if arguments and arguments[-1].value is not None:
                    self.constants[name] = arguments[-1].value
            else:
                self.globals[name] = [self.expressions.read(value)] if value else []
                self.global_types[name] = self.resolve(ctype)

    def _read_class(self, spec: Node, parameters: tuple[str, ...]) -> None:
        """``static constexpr int size = 16 / sizeof(T);`` as a member."""
        name, body = spec.child_by_field_name("name"), spec.child_by_field_name("body")
        if name is None or body is None:
            return
        for field in named(body):
            value = field.child_by_field_name("default_value") if field.type == "field_declaration" else None
            if value is not None and "static" in self.tree.text(field).split():
                member, _ = declared(self.tree, child(field, "declarator"), CType(""))
                constant = ClassConstant(parameters, self.expressions.read(value))
                self.class_constants[self.tree.text(name), member] = constant

    def _read_enumerators(self, spec: Node) -> None:
        following = 0
        scope = spec.child_by_field_name("name")
        scoped = any(item.type in ("class", "struct") for item in spec.children)
        for item in walk(spec):
            if item.type != "enumerator":
                continue
            value = item.child_by_field_name("value")
            read = self.expressions.read(value) if value else Number(self.tree.span(item), following, CType("int"))
            following = read.value + 1 if isinstance(read, Number) and isinstance(read.value, int) else following + 1
            prefix = f"{self.tree.text(scope)}::" if scoped and scope else ""
            self.constants[prefix + self.tree.text(child(item, "name"))] = read

    def _read_assignments(self, items: list[Item]) -> None:
        """Add every value that some function gives to a global; one whose address is passed may get any."""
        for declaration, item in zip(self.declarations, items, strict=True):
            if declaration.function is None or not item.uses & self.globals.keys():
                continue
            for node in walk(declaration.function):
                if node.type == "assignment_expression" and child(node, "left").type == "identifier":
                    name = self.tree.text(child(node, "left"))
                    if name in self.globals:
                        self.globals[name].append(self.expressions.read(child(node, "right")))
                elif node.type in ("pointer_expression", "update_expression"):
                    name, text = self.tree.text(child(node, "argument")), self.tree.text(node)
                    if name in self.globals and not text.startswith("*"):
                        self.globals[name].append(Unreadable(self.tree.span(node), text, "changes a global"))


def _choose_alias(versions: list[tuple[tuple[str, ...], TypeAlias]]) -> TypeAlias:
    """Return what a name stands for in host code, or else in device code; where the precision chooses, ``floatX``."""
    versions = [one for one in versions if host_precisions(one[0])] or versions
    if len({alias for _, alias in versions}) == 1:
        return versions[0][1]
    chosen: dict[str, str] = {}
    for precision in PRECISIONS:
        for conditions, alias in versions:
            if all(holds(condition, precision) is not False for condition in conditions):
                chosen.setdefault(precision, str(alias.type))
    return TypeAlias(CType("floatX"), ()) if chosen == _FLOATX else versions[-1][1]
