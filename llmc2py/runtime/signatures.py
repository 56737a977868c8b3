"""What ``inspect.signature`` says of kernels, launchers and layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llmc2py.runtime.params import Param


class SignatureOf:
    """A class's ``__signature__``: its objects have the signature that a function finds; the class keeps its own."""

    def __init__(self, find: Callable[[Any], inspect.Signature]) -> None:
        self._find = find

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return self._find(instance)


def signature_of(params: Sequence[Param]) -> inspect.Signature:
    """Return the signature of a call with arguments for these parameters, with their C types."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(p.name, kind, annotation=p.ctype, default=p.default) for p in params])
