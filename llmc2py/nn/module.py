"""Layers made of other layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from llmc2py.nn.state import load_state_dict, state_dict
from llmc2py.runtime import Layer

L = TypeVar("L", bound=Layer)


class Module(Layer):
    """A layer with named state. Subclasses assign layers and parameters to attributes and define ``forward``."""

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of all parameters as NumPy arrays by name; see `llmc2py.nn.state_dict`."""
        return state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy arrays into the parameters by name; see `llmc2py.nn.load_state_dict`."""
        load_state_dict(self, state)

    def to(self, like: Any = None, dtype: Any = None) -> Self:
        """Move the parameters, and their gradients, to a place and a dtype; see `Layer.to`."""
        super().to(like, dtype)
        return self


class ModuleList(Module, Generic[L]):
    """Layers in a row, named by their position: ``"0"``, ``"1"`` …

    It is not called itself: go through it and call the layers.
    """

    def __init__(self, layers: Iterable[L] = ()) -> None:
        super().__init__()
        self._length = 0
        for layer in layers:
            self.append(layer)

    def append(self, layer: L) -> None:
        """Add a layer at the end. Raises TypeError for what is no layer."""
        if not isinstance(layer, Layer):
            raise TypeError(f"a ModuleList holds layers, not a {type(layer).__name__}")
        setattr(self, str(self._length), layer)
        self._length += 1

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[L]:
        return iter(cast("dict[str, L]", self._layers).values())

    def __getitem__(self, index: int) -> L:
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"layer {index} of a ModuleList of {self._length}")
        return cast("L", self._layers[str(position)])
