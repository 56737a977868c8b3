"""Layers made of other layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast

from llmc2py.runtime import Layer

L = TypeVar("L", bound=Layer)


class Module(Layer):
    """A layer that is made of others. Subclasses assign layers and parameters to attributes and define ``forward``.

    State, moves and gradients are those of `Layer`; names of what is inside have dots.
    """


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
