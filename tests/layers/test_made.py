"""What layers are made with: sizes, options and parameters to go without are checked at once, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from generated import layers
from llmc2py.runtime import Layer, OpSpec, check_made

EVERY = [getattr(layers, name) for name in layers.__all__]
#: An argument that fits, by what a layer is made with.
GOOD = {"accumulation": 2, "bias": False, "implementation": "llmc", "inplace": True, "recompute": True}


def arguments(layer: type[Layer]) -> dict[str, Any]:
    spec = layer.spec
    assert spec is not None
    return {name: GOOD.get(name, 4) for name in (*spec.letters, *spec.optional, *spec.options)}


MADE = [(layer, name) for layer in EVERY for name in arguments(layer)]


@pytest.mark.parametrize("layer", EVERY, ids=lambda layer: layer.__name__)
def test_what_fits_is_taken_as_numpys_numbers_too(layer: type[Layer]) -> None:
    layer(**arguments(layer))
    numbers = {int: np.int64, bool: np.bool_, str: str}
    layer(**{name: numbers[type(value)](value) for name, value in arguments(layer).items()})


@pytest.mark.parametrize(("layer", "name"), MADE, ids=[f"{layer.__name__}-{name}" for layer, name in MADE])
def test_another_kind_is_a_type_error_with_layer_and_argument(layer: type[Layer], name: str) -> None:
    given = arguments(layer)
    wrong: list[Any] = [None, (8,), 8.0, np.float32(8), [8], b"8"]
    wrong += [] if isinstance(given[name], str) else ["8"]
    wrong += [1, 0] if isinstance(given[name], bool) else [True]
    for value in wrong:
        with pytest.raises(TypeError, match=rf"^{layer.__name__}: {name} is .*; it takes (a whole|True or|one of)"):
            layer(**{**given, name: value})


@pytest.mark.parametrize(("layer", "name"), MADE, ids=[f"{layer.__name__}-{name}" for layer, name in MADE])
def test_numbers_start_at_1_and_texts_are_among_their_choices(layer: type[Layer], name: str) -> None:
    given = arguments(layer)
    if isinstance(given[name], bool):
        return
    for value in ("flash", "") if isinstance(given[name], str) else (0, -1, np.int32(-3)):
        with pytest.raises(ValueError, match=rf"^{layer.__name__}: {name} is .*; it takes (.* of at least 1|one of)"):
            layer(**{**given, name: value})


def test_options_are_held_to_what_their_entry_says() -> None:
    spec = OpSpec(
        "op",
        {"x": ("...",)},
        {"y": ("...",)},
        options={"shift": ..., "scale": 1.0, "mode": "a"},
        kinds={"shift": "int", "scale": "float", "mode": "str"},
        least={"scale": 0},
    )
    for good in ({"shift": -3}, {"scale": 2}, {"scale": np.float32(0.5)}, {"mode": "anything"}):
        check_made("Op", spec, **good)
    with pytest.raises(TypeError, match="Op: scale is 'x'; it takes a number of at least 0"):
        check_made("Op", spec, scale="x")
    with pytest.raises(ValueError, match=r"Op: scale is -0\.5; it takes a number of at least 0"):
        check_made("Op", spec, scale=-0.5)
    with pytest.raises(TypeError, match="Op: mode is 3; it takes text"):
        check_made("Op", spec, mode=3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_])
def test_indices_that_are_none_are_told_as_that(dtype: Any) -> None:
    encoder = layers.Encoder(10, 8, 5)
    for _ in range(2):
        with pytest.raises(TypeError, match=rf"Encoder: `inp` is {np.dtype(dtype)}; integers are taken"):
            encoder(np.zeros((2, 4), dtype))
        encoder(np.zeros((2, 4), np.int64))
    with pytest.raises(TypeError, match=r"FusedClassifier: `targets` is .*; integers are taken"):
        layers.FusedClassifier(3)(np.zeros((2, 4), np.float32), np.zeros(2, dtype))
