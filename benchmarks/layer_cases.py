"""What `benchmarks/layers.py` measures: for each layer its sizes, inputs, and the bytes or operations of each pass."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from generated import layers
from llmc2py.runtime.dtypes import bfloat16, float32

DTYPES = {"fp32": float32, "bf16": bfloat16}
CHANNELS, HIDDEN, HEADS, POSITIONS = 768, 3072, 12, 1024
COLUMNS = 1024
VOCABULARY, PADDED_VOCABULARY = 50257, 50304

Sizes = dict[str, int]
#: What a pass costs: bytes for one that memory bounds, operations for one that products bound; forward and backward.
Cost = tuple[int, int]


@dataclass(frozen=True)
class Input:
    """An array to be made: floating point, or integers from 0 up to ``below``."""

    shape: tuple[int, ...]
    below: int = 0

    def make(self, random: np.random.Generator, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return random values."""
        if self.below:
            return random.integers(0, self.below, self.shape, dtype=np.int32)
        # Large arrays repeat a block: values do not matter to times, and drawing a GiB takes longer than measuring.
        block = random.standard_normal(min(int(np.prod(self.shape)), 1 << 20), dtype=np.float32)
        return np.resize(block.astype(dtype), self.shape)


@dataclass(frozen=True)
class Case:
    """One layer.

    Attributes
    ----------
    name
        Of the layer in `generated.layers`, and of the module in `benchmarks.layer_modules`.
    sizes
        Sizes by letter for so many elements of the main activation.
    inputs
        The inputs for these sizes.
    make
        The layer; takes the sizes and options.
    bytes_moved
        Bytes of each pass: each input read once, each output written once. Takes the sizes and the bytes of an element.
    operations
        Of a layer that is bound by products; None for one that is bound by memory.
    is_idle
        Whether the backward pass launches nothing.
    implementations
        What the layer has a choice of; ours alone.
    gives_up
        The index of a gradient that the pass adds to, as nobody else has it in a model. It grows with each replay.
    """

    name: str
    sizes: Callable[[int], Sizes]
    inputs: Callable[[Sizes], list[Input]]
    make: Callable[..., Any]
    bytes_moved: Callable[[Sizes, int], Cost]
    operations: Callable[[Sizes], Cost] | None = None
    is_idle: bool = False
    implementations: tuple[str, ...] = ("",)
    gives_up: int | None = None

    def programs(self, dtype: str) -> list[str]:
        """Return the implementations of ours that take a dtype."""
        return [name for name in self.implementations if name != "cudnn" or dtype != "fp32"]


def rows_of(width: int) -> Callable[[int], Sizes]:
    """Return a function from elements to sizes: rows N, a multiple of 16 where there are so many, of a width."""

    def sizes(elements: int) -> Sizes:
        rows = max(1, elements // width)
        return {"N": rows - rows % 16 if rows > 16 else rows}

    return sizes


def sequences_of(width: int) -> Callable[[int], Sizes]:
    """Return a function from elements to sizes: B sequences of T positions, a GPT-2's where there are so many."""

    def sizes(elements: int) -> Sizes:
        rows = rows_of(width)(elements)["N"]
        T = min(POSITIONS, rows)
        return {"B": max(1, rows // T), "T": T}

    return sizes


def matrices(width: int, count: int = 1) -> Callable[[Sizes], list[Input]]:
    """Return a function from sizes to inputs: so many of N rows of a width."""
    return lambda d: [Input((d["N"], width))] * count


def labelled(width: int, below: int) -> Callable[[Sizes], list[Input]]:
    """Return a function from sizes to inputs: N rows of a width, and an index for each."""
    return lambda d: [Input((d["N"], width)), Input((d["N"],), below)]


def traffic(width: int, forward: int, backward: int) -> Callable[[Sizes, int], Cost]:
    """Return bytes of passes that read and write so many arrays of N rows of a width."""
    return lambda d, itemsize: (forward * d["N"] * width * itemsize, backward * d["N"] * width * itemsize)


def normalised(forward: int, backward: int) -> Callable[[Sizes, int], Cost]:
    """Return bytes of layer normalisation: so many arrays, weight and bias (and gradients), mean and deviation."""

    def cost(d: Sizes, itemsize: int) -> Cost:
        rows, statistics = d["N"] * CHANNELS * itemsize, 2 * 4 * d["N"]
        return (
            forward * rows + 2 * CHANNELS * itemsize + statistics,
            backward * rows + 3 * CHANNELS * itemsize + statistics,
        )

    return cost


def embedded(d: Sizes, itemsize: int) -> Cost:
    """Return bytes of embeddings: rows of tokens that are there, positions and tokens in, sums out; all gradients."""
    places = d["B"] * d["T"]
    tokens = min(places, VOCABULARY)
    forward = (tokens + d["T"] + places) * CHANNELS * itemsize + 4 * places
    backward = (places + VOCABULARY + POSITIONS) * CHANNELS * itemsize + 4 * places
    return forward, backward


def product(*matrices: tuple[int, int]) -> Callable[[Sizes], Cost]:
    """Return operations of linear layers: one product of N rows in the forward pass, two in the backward pass."""
    forward = sum(2 * inputs * outputs for inputs, outputs in matrices)
    return lambda d: (d["N"] * forward, 2 * d["N"] * forward)


def products_of_attention(d: Sizes) -> Cost:
    """Return operations of causal attention: two products forward, five backward, half of each square."""
    one = d["B"] * d["T"] ** 2 * CHANNELS
    return 2 * one, 5 * one


def linear_bytes(inputs: int, outputs: int) -> Callable[[Sizes, int], Cost]:
    """Return bytes of a linear layer."""

    def cost(d: Sizes, itemsize: int) -> Cost:
        weights, rows = inputs * outputs, d["N"] * (inputs + outputs)
        return itemsize * (rows + weights), itemsize * (rows + d["N"] * inputs + 2 * weights)

    return cost


CASES = [
    Case(
        "GeLU",
        rows_of(HIDDEN),
        matrices(HIDDEN),
        lambda d: layers.GeLU(),
        traffic(HIDDEN, 2, 3),
    ),
    Case(
        "Residual",
        rows_of(CHANNELS),
        matrices(CHANNELS, 2),
        lambda d: layers.Residual(),
        traffic(CHANNELS, 3, 0),
        is_idle=True,
    ),
    Case(
        "LayerNorm",
        rows_of(CHANNELS),
        matrices(CHANNELS),
        lambda d: layers.LayerNorm(CHANNELS),
        normalised(2, 3),
    ),
    Case(
        "FusedResidualLayerNorm",
        rows_of(CHANNELS),
        matrices(CHANNELS, 2),
        lambda d: layers.FusedResidualLayerNorm(CHANNELS),
        normalised(4, 4),
        gives_up=0,
    ),
    Case(
        "Softmax",
        rows_of(COLUMNS),
        matrices(COLUMNS),
        lambda d: layers.Softmax(),
        traffic(COLUMNS, 2, 3),
    ),
    Case(
        "CrossEntropy",
        rows_of(PADDED_VOCABULARY),
        labelled(PADDED_VOCABULARY, PADDED_VOCABULARY),
        lambda d: layers.CrossEntropy(),
        traffic(PADDED_VOCABULARY, 1, 2),
    ),
    Case(
        "FusedClassifier",
        rows_of(PADDED_VOCABULARY),
        labelled(PADDED_VOCABULARY, VOCABULARY),
        lambda d: layers.FusedClassifier(VOCABULARY),
        traffic(PADDED_VOCABULARY, 1, 2),
    ),
    Case(
        "Encoder",
        sequences_of(CHANNELS),
        lambda d: [Input((d["B"], d["T"]), VOCABULARY)],
        lambda d: layers.Encoder(VOCABULARY, CHANNELS, POSITIONS),
        embedded,
    ),
    Case(
        "Linear",
        rows_of(CHANNELS),
        matrices(CHANNELS),
        lambda d: layers.Linear(CHANNELS, HIDDEN),
        linear_bytes(CHANNELS, HIDDEN),
        product((CHANNELS, HIDDEN)),
    ),
    Case(
        "LinearGeLU",
        rows_of(CHANNELS),
        matrices(CHANNELS),
        lambda d: layers.LinearGeLU(CHANNELS, HIDDEN),
        linear_bytes(CHANNELS, HIDDEN),
        product((CHANNELS, HIDDEN)),
    ),
    Case(
        "MLP",
        rows_of(CHANNELS),
        matrices(CHANNELS),
        lambda d: layers.MLP(CHANNELS, HIDDEN),
        linear_bytes(CHANNELS, CHANNELS),
        product((CHANNELS, HIDDEN), (HIDDEN, CHANNELS)),
    ),
    Case(
        "Attention",
        sequences_of(3 * CHANNELS),
        lambda d: [Input((d["B"], d["T"], 3 * CHANNELS))],
        lambda d, implementation="llmc": layers.Attention(HEADS, implementation=implementation or "llmc"),
        lambda d, itemsize: (
            4 * d["B"] * d["T"] * CHANNELS * itemsize,
            8 * d["B"] * d["T"] * CHANNELS * itemsize,
        ),
        products_of_attention,
        implementations=("", "cudnn"),
    ),
]


@dataclass(frozen=True)
class Data:
    """A case at one size and precision, with its arrays on a device.

    ``inputs`` and ``gradients`` have one list for each copy: as many copies as it takes for a cache to hold none when
    it is used again.
    """

    case: Case
    sizes: Sizes
    dtype: str
    layer: Any
    inputs: list[list[Any]]
    gradients: list[list[Any]]
    xp: types.ModuleType

    @property
    def copies(self) -> int:
        """How often one call of a program runs the layer."""
        return len(self.inputs)

    @property
    def bytes_moved(self) -> Cost:
        """Bytes of each pass."""
        return self.case.bytes_moved(self.sizes, DTYPES[self.dtype].itemsize)

    @property
    def operations(self) -> Cost | None:
        """Operations of each pass, for one that is bound by products."""
        return self.case.operations(self.sizes) if self.case.operations else None


def make_data(case: Case, mebibytes: float, dtype: str, xp: Any, cache_bytes: int) -> Data:
    """Make the inputs of a case whose main activation has so many MiB, and gradients for its outputs.

    ``xp`` is NumPy or CuPy. There are as many copies as hold twice ``cache_bytes`` together, 64 at most.
    """
    kind = DTYPES[dtype]
    sizes = case.sizes(max(1, int(mebibytes * 2**20) // kind.itemsize))
    random = np.random.default_rng(0)
    wanted = case.inputs(sizes)
    nbytes = case.bytes_moved(sizes, kind.itemsize)[0]
    copies = max(1, min(64, -(-2 * cache_bytes // nbytes)))
    layer = case.make(sizes).to("cpu" if xp is np else "cuda", dtype=kind)
    values = [[one.make(random, kind) for one in wanted] for _ in range(min(copies, 2))]
    inputs = [[xp.array(value) for value in values[index % len(values)]] for index in range(copies)]
    gradients = [[xp.array(value) for value in gradients_of(case, sizes, kind, random)] for _ in range(copies)]
    return Data(case, sizes, dtype, layer, inputs, gradients, xp)


def gradients_of(case: Case, d: Sizes, kind: np.dtype[Any], random: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Return a gradient for each output of a layer: ones for losses, random numbers for the rest."""
    if case.name == "FusedClassifier":
        return [np.ones((), np.float32)]
    if case.name == "CrossEntropy":
        return [np.ones(d["N"], np.float32)]
    width = HIDDEN if case.name in ("Linear", "LinearGeLU") else CHANNELS
    like = Input((d["B"], d["T"], CHANNELS)) if "B" in d else case.inputs(d)[0]
    shape = (*like.shape[:-1], width if case.name not in ("GeLU", "Softmax") else like.shape[-1])
    count = 2 if case.name == "FusedResidualLayerNorm" else 1
    return [Input(shape).make(random, kind) for _ in range(count)]
