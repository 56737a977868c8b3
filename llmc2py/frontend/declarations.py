"""Types, parameters and function headers out of the syntax tree."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from llmc2py.frontend.syntax import Node, SyntaxTree, child, named, walk
from llmc2py.ir.library import Parameter, TemplateParameter
from llmc2py.ir.types import CType, canonical_name

#: Types whose only content is a template argument: they pass it to a function as a value.
_TAG = re.compile(r"(?:std::)?(?:bool_constant|integral_constant)\s*<(?:.*,)?\s*(\w+)\s*>")
_TYPE_NODES = frozenset(
    {
        "primitive_type",
        "type_identifier",
        "sized_type_specifier",
        "qualified_identifier",
        "template_type",
        "placeholder_type_specifier",
        "struct_specifier",
        "dependent_type",
        "decltype",
    }
)
#: Types are few, and asked for often: equal ones are one object.
_ctype = lru_cache(maxsize=4096)(CType)
_DECLARATORS = frozenset({"pointer_declarator", "reference_declarator", "array_declarator", "function_declarator"})
_PARAMETERS = frozenset({"parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration"})


@dataclass(frozen=True)
class FunctionHeader:
    """What stands before a function's body."""

    name: str
    words: frozenset[str]
    returns: CType
    parameters: tuple[Parameter, ...]
    launch_bounds: tuple[str, ...]


def read_type(tree: SyntaxTree, node: Node) -> CType:
    """Return the type of a declaration-like node, without what its declarator adds."""
    spec = node.child_by_field_name("type")
    qualifiers = (tree.text(item) for item in node.named_children if item.type == "type_qualifier")
    const = any(word in ("const", "constexpr") for word in qualifiers)
    return _ctype(type_name(tree, spec) if spec else "int", 0, const)


def type_name(tree: SyntaxTree, spec: Node) -> str:
    """Return the canonical name of a type specifier node."""
    if spec.type in ("template_type", "qualified_identifier"):
        tag = _TAG.fullmatch(tree.text(spec))
        if tag is not None:
            return f"tag:{tag[1]}"
    if spec.type == "template_type":
        return tree.text(child(spec, "name"))
    if spec.type == "qualified_identifier":
        return canonical_name(tree.text(spec).split("<")[0])
    if spec.type in ("struct_specifier", "class_specifier"):
        name = spec.child_by_field_name("name")
        return tree.text(name) if name else "struct"
    return canonical_name(tree.text(spec))


def read_descriptor(tree: SyntaxTree, node: Node) -> CType:
    """Return the type that a type_descriptor names: ``const float*``."""
    base = read_type(tree, node)
    declarator = node.child_by_field_name("declarator")
    stars = sum(item.type == "abstract_pointer_declarator" for item in walk(declarator)) if declarator else 0
    return _ctype(base.base, stars, base.const)


def declared(tree: SyntaxTree, declarator: Node | None, base: CType) -> tuple[str, CType]:
    """Return the name and type that a declarator makes of a base type (arrays count as pointers)."""
    stars = 0
    while declarator is not None and declarator.type not in ("identifier", "field_identifier", "type_identifier"):
        stars += declarator.type in ("pointer_declarator", "array_declarator", "abstract_pointer_declarator")
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            inner = next((item for item in named(declarator) if item.type.endswith(("declarator", "identifier"))), None)
        declarator = inner
    name = tree.text(declarator) if declarator is not None else ""
    return name, _ctype(base.base, base.pointers + stars, base.const) if stars else base


def read_parameter(tree: SyntaxTree, node: Node) -> Parameter:
    """``const float* __restrict__ inp = nullptr``."""
    name, ctype = declared(tree, node.child_by_field_name("declarator"), read_type(tree, node))
    default = node.child_by_field_name("default_value")
    return Parameter(name, ctype, tree.span(node), tree.text(default) if default else None)


def read_parameters(tree: SyntaxTree, declarator: Node) -> tuple[Parameter, ...]:
    """Return the parameters of a function declarator; one without a name is given one, a tag its own."""
    nodes = [item for item in named(child(declarator, "parameters")) if item.type in _PARAMETERS]
    found = [read_parameter(tree, item) for item in nodes]
    given = [item for item in found if item.name or item.type != CType("void")]
    return tuple(
        item if item.name else replace(item, name=item.type.tag or f"unnamed_{n}") for n, item in enumerate(given)
    )


def read_template(tree: SyntaxTree, node: Node) -> tuple[TemplateParameter, ...]:
    """``template <typename T, int N = 8>``; a pointer or reference to a function is of the kind "function"."""
    found = []
    for item in named(child(node, "parameters")):
        default = item.child_by_field_name("default_value") or item.child_by_field_name("default_type")
        text = tree.text(default) if default else None
        if item.type in ("type_parameter_declaration", "optional_type_parameter_declaration"):
            name = item.child_by_field_name("name") or next(iter(named(item)), None)
            found.append(TemplateParameter(tree.text(name) if name else "", "type", text))
        elif item.type == "variadic_type_parameter_declaration":
            found.append(TemplateParameter(tree.text(item).split()[-1].strip("."), "pack", None))
        elif item.type in _PARAMETERS:
            parameter = read_parameter(tree, item)
            is_function = any(one.type.endswith("function_declarator") for one in walk(item))
            kind = "function" if is_function else str(parameter.type.value)
            found.append(TemplateParameter(parameter.name, kind, text))
    return tuple(found)


def function_declarator(node: Node) -> Node | None:
    """Return the function declarator inside a definition or declaration, through pointers and references."""
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next((item for item in named(declarator) if item.type in _DECLARATORS), None)
    return declarator


def read_header(tree: SyntaxTree, node: Node) -> FunctionHeader | None:
    """Return the header of a function definition or declaration; None where it declares no function by a name."""
    declarator = function_declarator(node)
    if declarator is None:
        return None
    name = child(declarator, "declarator")
    # What cannot be parsed before a name may read as its scope, with a :: that is not there.
    while name.type == "qualified_identifier" and any(item.is_missing for item in name.children):
        name = child(name, "name")
    if name.type == "template_function":
        name = child(name, "name")
    head = tree.source[node.start_byte : declarator.start_byte].decode()
    outer = child(node, "declarator")
    _, returns = declared(tree, outer if outer.type != "function_declarator" else None, read_type(tree, node))
    bounds = next((item for item in node.children if item.type == "launch_bounds"), None)
    return FunctionHeader(
        tree.text(name),
        frozenset(head.replace("(", " ").split()),
        returns,
        read_parameters(tree, declarator),
        tuple(tree.text(item) for item in named(bounds)) if bounds else (),
    )
