"""What an entry says of its arrays, options, passes and sizes, checked against itself."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from llmc2py.diagnostics import SourceError
from llmc2py.ir.catalog import CatalogEntry, KeyPath
from llmc2py.ir.plans import OptionSpec

LEADING = "*"
_OPTION_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def entry_error(entry: CatalogEntry, path: KeyPath, message: str) -> SourceError:
    """Return an error at the place of a key."""
    return SourceError(entry.places.at(*path), f"{entry.name}: {message}")


def check_arrays(entry: CatalogEntry) -> None:
    """Check the shapes of an op with a layer. Raises SourceError."""
    for key, arrays in (("inputs", entry.inputs), ("outputs", entry.outputs)):
        if not arrays:
            raise entry_error(entry, (key,), "an op has at least one input and one output")
        for one in arrays:
            if one.shape and (one.shape[0] != LEADING or LEADING in one.shape[1:]):
                message = f"shape of {one.name}: inputs and outputs begin with {LEADING!r}, all leading axes together"
                raise entry_error(entry, (key, one.name, "shape"), message)
            if any("~" in axis for axis in one.shape):
                message = f"shape of {one.name}: axes of intermediates alone are rounded up with ~"
                raise entry_error(entry, (key, one.name, "shape"), message)
    first = entry.inputs[0]
    if not first.shape:
        message = f"shape of {first.name}: the first input begins with {LEADING!r}"
        raise entry_error(entry, ("inputs", first.name, "shape"), message)
    for one in entry.parameters:
        if not all(axis.isidentifier() for axis in one.shape):
            message = f"shape of parameter {one.name}: its axes are letters alone"
            raise entry_error(entry, ("parameters", one.name, "shape"), message)
    if all(one.below or one.dtype for one in (*entry.inputs, *entry.parameters)):
        raise entry_error(entry, ("inputs",), "no input or parameter has the precision of the op")
    _check_letters(entry)


def _check_letters(entry: CatalogEntry) -> None:
    """Letters come from inputs and parameters; ``below`` names one, or an option."""
    letters = letters_of(entry)
    bounds = letters | {one.name for one in entry.options}
    for one in entry.inputs:
        if one.below is not None and one.below not in bounds:
            message = f"{one.name}: below names a letter or option, and {one.below} is none"
            raise entry_error(entry, ("inputs", one.name, "below"), message)
    known = letters | {letter for one in entry.outputs for letter in one.letters}
    check_names(entry, dict.fromkeys(entry.reduction, ("reference", "reduction")), known, "reduction: no axis is {}")


def letters_of(entry: CatalogEntry) -> set[str]:
    """Return the letters of inputs and parameters."""
    return {letter for one in (*entry.inputs, *entry.parameters) for letter in one.letters}


def check_options(entry: CatalogEntry) -> None:
    """Check the defaults and limits of options, and what cases name. Raises SourceError."""
    for one in entry.options:
        value = ast.literal_eval(one.default) if one.default is not None else None
        if value is not None and (
            not isinstance(value, _OPTION_TYPES[one.kind]) or (isinstance(value, bool) and one.kind != "bool")
        ):
            message = f"option {one.name}: its default {one.default} is no {one.kind}"
            raise entry_error(entry, ("options", one.name, "default"), message)
        _check_limits(entry, one, value)
    known = letters_of(entry) | {one.name for one in (*entry.inputs, *entry.parameters)}
    known |= {one.name for one in entry.options} | {"lead"}
    for index, case in enumerate(entry.cases):
        check_names(entry, {name: ("cases", index, name) for name in case}, known,
                    "cases: {} is neither `lead` nor a letter or option of the op")  # fmt: skip


def _check_limits(entry: CatalogEntry, option: OptionSpec, default: Any) -> None:
    limits = (("least", "int", option.least is not None), ("choices", "str", bool(option.choices)))
    for key, kind, is_there in limits:
        if is_there and option.kind != kind:
            message = f"option {option.name}: {key} is for options of the type {kind}, and it is one of {option.kind}"
            raise entry_error(entry, ("options", option.name, key), message)
    if default is not None and (
        (option.least is not None and default < option.least) or (option.choices and default not in option.choices)
    ):
        message = f"option {option.name}: its default {option.default} is none of the values that it takes"
        raise entry_error(entry, ("options", option.name, "default"), message)


def check_names(entry: CatalogEntry, named: Mapping[str, KeyPath], known: Collection[str], message: str) -> None:
    """Raise SourceError at the first name that is not known; the message has ``{}`` for it."""
    for name, path in named.items():
        if name not in known:
            raise entry_error(entry, path, message.format(name))


def check_intermediates(entry: CatalogEntry) -> None:
    """Check that what is described of saved arrays is saved, and when. Raises SourceError."""
    options = {one.name for one in entry.options}
    arrays = {one.name for one in (*entry.inputs, *entry.parameters, *entry.outputs)}
    for one in entry.intermediates:
        path = ("intermediates", one.name)
        if one.name not in entry.forward.saves:
            raise entry_error(entry, path, f"{one.name} is described as saved, and forward does not save it")
        if one.otherwise is not None and one.otherwise not in arrays:
            message = f"{one.name}: otherwise names an input or output, and {one.otherwise} is none"
            raise entry_error(entry, (*path, "otherwise"), message)
        if one.when is not None:
            check_expression(entry, (*path, "when"), one.when, options, "options")


def check_gradients(entry: CatalogEntry) -> None:
    """Check whose gradients the backward pass gives. Raises SourceError."""
    wanted = [one.name for one in (*entry.inputs, *entry.parameters) if one.below is None]
    given = [name for name, _ in entry.backward.gradients]
    path: KeyPath = ("backward", "gradients")
    for name in given:
        if name not in wanted:
            message = f"backward gives a gradient of {name}; gradients are of {', '.join(wanted)}"
            raise entry_error(entry, (*path, name), message)
    missing = [name for name in wanted if name not in given]
    if missing and (given or entry.backward.recipe):
        raise entry_error(entry, path, f"backward gives no gradient of {', '.join(missing)}")
    check_names(entry, {name: ("backward", "stochastic", index) for index, name in enumerate(entry.stochastic)},
                wanted, "stochastic: {} has no gradient")  # fmt: skip


def check_sizes(entry: CatalogEntry) -> None:
    """Check the sizes that variants run on. Raises SourceError."""
    names = {letter for letter, _ in entry.sizes}
    for letter, size in entry.sizes:
        check_expression(entry, ("sizes", letter), size, names | {"block_size", "max", "min"}, "sizes")
    check_names(entry, dict.fromkeys(entry.lead, ("sizes", "lead")), names, "lead: sizes has no {}")


def check_expression(entry: CatalogEntry, path: KeyPath, text: str, known: Iterable[str], what: str) -> None:
    """Check an expression that is the value of a key, and its names. Raises SourceError at its place."""
    names = set(known)
    for node in ast.walk(parse_expression(entry, path, text)):
        if isinstance(node, ast.Name) and node.id not in names:
            place = entry.places.within(path, node.lineno, node.col_offset + 1)
            raise SourceError(place, f"{entry.name}: {node.id} is none of the {what}")


def parse_expression(entry: CatalogEntry, path: KeyPath, text: str) -> ast.Expression:
    """Parse an expression that is the value of a key. Raises SourceError at its place."""
    try:
        return ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        place = entry.places.within(path, error.lineno or 1, error.offset or 1)
        raise SourceError(place, f"{entry.name}: {text!r} is no expression: {error.msg}") from error
