"""Arguments that launches and calls leave to their defaults."""

from __future__ import annotations

from collections.abc import Sequence

from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir.defaults import literal_default, required
from llmc2py.ir.library import Parameter, Scope


def check_count(span: SourceSpan, name: str, given: int, parameters: Sequence[Parameter]) -> None:
    """Raise SourceError where more arguments are given than there are parameters, or fewer than have no defaults."""
    least = required(parameters)
    if not least <= given <= len(parameters):
        takes = f"{len(parameters)} argument{'' if len(parameters) == 1 else 's'}"
        at_least = f", {least} at least" if least < len(parameters) else ""
        raise SourceError(span, f"{name} takes {takes}{at_least}, but {given} {'is' if given == 1 else 'are'} given")


def default_of(span: SourceSpan, name: str, parameter: Parameter, scope: Scope) -> str | ex.Name:
    """Return the default of a parameter as Python text, or the constant that it is.

    Raises SourceError for one that is no plain value.
    """
    literal = literal_default(parameter)
    if literal is not None:
        return literal
    if parameter.default in scope.constants:
        return ex.Name(span, parameter.default or "")
    message = f"{parameter.name} of {name} is left to its default, {parameter.default}, which is no plain value"
    raise SourceError(span, message)
