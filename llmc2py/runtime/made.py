"""What layers are made with, checked when they are made: sizes, parameters that may be missing, options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from llmc2py.runtime.layer import OpSpec

#: The types that an option of each kind takes, and what to call them.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int, np.integer), "a whole number"),
    "float": ((int, float, np.integer, np.floating), "a number"),
    "bool": ((bool, np.bool_), "True or False"),
    "str": ((str,), "text"),
}


def check_made(layer: str, spec: OpSpec, /, **made: Any) -> None:
    """Check the sizes, options and left out parameters that a layer is made with.

    Raises TypeError for a value of another kind, and ValueError for a size below 1 and an option that is below its
    least value or none of its choices; the message names layer and argument.
    """
    for name, value in made.items():
        choices, least = spec.choices.get(name, ()), spec.least.get(name)
        if name in spec.kinds:
            kind = spec.kinds[name]
        elif name in spec.optional:
            kind = "bool"
        else:
            kind, least = "int", 1
        types, wanted = _KINDS[kind]
        if choices:
            wanted = "one of " + ", ".join(map(repr, choices))
        elif least is not None:
            wanted += f" of at least {least}"
        # A bool is an int to Python, and nobody means it as one.
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
            raise TypeError(f"{layer}: {name} is {value!r}; it takes {wanted}")
        number: Any = value
        if (choices and value not in choices) or (least is not None and number < least):
            raise ValueError(f"{layer}: {name} is {value!r}; it takes {wanted}")
