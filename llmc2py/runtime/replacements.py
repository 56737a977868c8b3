"""Python functions in the place of launchers whose work no plan can hold: they look at data, or at a program's structs.

A generated module binds each to the kernels that the launcher launches, as `Replacement`. The parameters are the
launcher's; what only the C++ needs (host scratch) may be None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from llmc2py.runtime.arrays import backend_named, check_dtype, device_scope, place_of
from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.dtypes import int32
from llmc2py.runtime.interop import as_array, hand_back
from llmc2py.runtime.kernels import buckets

_WARP_SIZE = 32


class Replacement:
    """A function that does what a launcher does, with the kernels and launchers that it needs."""

    def __init__(self, function: Callable[..., None], uses: Sequence[Any], *, origin: str) -> None:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        self.name = self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.Signature(parameters)
        self.function = function
        self.uses = tuple(uses)
        self.origin = origin

    def __repr__(self) -> str:
        return f"<Replacement {self.name}{self.__signature__} of {self.origin}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Run on arrays of one backend."""
        bound = self.__signature__.bind(*args, **kwargs).arguments
        self.function(self.uses, **{name: as_array(value, name, self.name) for name, value in bound.items()})
        hand_back(bound.values())


def encoder_backward(
    uses: Sequence[Any],
    dwte: Any,
    dwpe: Any,
    scratch: Any,
    workload_indices: Any,
    bucket_info: Any,
    dout: Any,
    inp: Any,
    inputs_cpu: Any,
    B: int,
    T: int,
    C: int,
    seed: int,
) -> None:
    """Add the gradients of token and position embeddings to `dwte` (V, C) and `dwpe` (T, C).

    `dout` is (B, T, C) and `inp` has the (B, T) tokens, in int32. Places are sorted into buckets by token where the
    tokens are, so that no block adds to another's row. That needs no memory of the caller and no tokens on the host:
    `scratch`, `workload_indices`, `bucket_info` and `inputs_cpu` may be None.

    Raises IndexError, naming the token and its place, for one that `dwte` has no row of, and TypeError for tokens that
    are not int32. A CUDA graph adds nothing to `dwte` for tokens without a row, and `seed` is that of the capture in
    each replay.
    """
    wpe_backward_kernel, wte_backward_kernel = uses
    if B * T * C == 0:
        return
    vector, rows = 16 // dout.dtype.itemsize, dwte.size // C
    place_of(inp, "inp", "encoder_backward")
    check_dtype(inp, int32, "inp", "const int*", "encoder_backward")
    tokens = inp.reshape(-1)[: B * T]
    made = token_buckets(tokens, rows, ceil_div(C, _WARP_SIZE * vector))
    if not made.valid:
        raise _no_row(tokens, rows, T)
    wpe_backward_kernel[ceil_div(T * ceil_div(C, vector), 256), 256](dwpe, dout, inp, B, T, C, seed)
    if not wte_backward_kernel.template:
        wte_backward_kernel[made.total, 256](dwte, made.buckets, made.places, dout, inp, seed, B, T, C)
        return
    # A block of many warps would leave all but one without work where a token stands in few places. Both kernels are
    # launched, so that both are loaded before a graph is captured; behind the last bucket is one without places.
    one_warp, long = wte_backward_kernel.instantiate(_WARP_SIZE), max(1, made.long)
    wte_backward_kernel[long, 256](dwte, made.buckets, made.places, dout, inp, seed, B, T, C)
    rest = max(1, made.total - long)
    one_warp[rest, _WARP_SIZE](dwte, made.buckets[long:], made.places, dout, inp, seed, B, T, C)


class TokenBuckets(NamedTuple):
    """Buckets (begin, number of places, token, group of columns), and the places.

    The first `total` are there, or that many at most, and behind them others without places, of a group without
    columns. The first `long` of them, or that many at most, have more than 16 places. `valid` says whether all tokens
    have a row; without, nothing else counts.
    """

    buckets: Any
    places: Any
    total: int
    long: int
    valid: bool


def token_buckets(tokens: Any, rows: int, groups: int) -> TokenBuckets:
    """Return the buckets of int32 tokens (one axis, at least one) of an embedding that has `rows`.

    All groups of one token share its places, which stand in rising order. Buckets stand by classes of length, the
    longest first, and by token within a class. The arrays are int32 and lie where the tokens are. This waits for their
    numbers, but while a CUDA graph is captured: that has the numbers that there are at most.
    """
    place, count = place_of(tokens, "tokens"), len(tokens)
    backend = backend_named(place.backend)
    with device_scope(place):
        made = backend.empty(((min(count, rows) + 1) * groups, 4), int32)
        counts, places = backend.empty((buckets.counts_size(rows),), int32), _sorted_places(tokens, rows)
        buckets.make_buckets(made, counts, places, tokens, count, rows, groups)
        if backend.is_capturing():
            most, long = min(count, rows), min(count // (buckets.FEW_PLACES + 1), rows)
            return TokenBuckets(made, places, most * groups, long * groups, valid=True)
        present, long, wrong = counts[:3].tolist()
    return TokenBuckets(made, places, present * groups, long * groups, not wrong)


def _sorted_places(tokens: Any, rows: int) -> Any:
    """Return the places of tokens in the order of the tokens, those of one in rising order."""
    if isinstance(tokens, np.ndarray):
        # NumPy sorts 16 bits by their digits, several times as fast; what they do not hold is no row.
        keys = tokens.astype(np.uint16) if rows <= 1 << 16 else tokens
        return keys.argsort(kind="stable").astype(np.int32)
    empty, count = backend_named("cuda").empty, len(tokens)
    places, spare, digits = (empty((size,), int32) for size in (count, count, buckets.digits_size(count)))
    buckets.sort_places(places, spare, digits, tokens, count, rows)
    return places


def _no_row(tokens: Any, rows: int, T: int) -> IndexError:
    values = tokens if isinstance(tokens, np.ndarray) else tokens.get()
    place = int(np.flatnonzero((values < 0) | (values >= rows))[0])
    return IndexError(
        f"encoder_backward: token {int(values[place])} at position ({place // T}, {place % T}) is no row of the "
        f"embedding, which has {rows}"
    )


def gpt2_update_fp32(
    uses: Sequence[Any],
    params_memory: Any,
    grads_memory: Any,
    m_memory: Any,
    v_memory: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    t: int,
) -> None:
    """Take AdamW step `t` (from 1): the arrays, of one length in float32, stand for the members of the model struct."""
    (adamw_kernel2,) = uses
    count = params_memory.size
    adamw_kernel2[ceil_div(count, 512), 512](
        params_memory,
        grads_memory,
        m_memory,
        v_memory,
        count,
        learning_rate,
        beta1,
        beta2,
        1.0 - beta1**t,
        1.0 - beta2**t,
        eps,
        weight_decay,
    )


def gpt2_update(
    uses: Sequence[Any],
    params_memory: Any,
    grads_memory: Any,
    m_memory: Any,
    v_memory: Any,
    master_weights: Any,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_scale: float,
    t: int,
    seed: int,
    init_master: bool = False,
) -> None:
    """Take AdamW step `t` (from 1) for one parameter tensor of the model, whose arrays stand for the struct's members.

    `master_weights` is float32 or None; with `init_master` it is filled from the parameters first, as the first step of
    the C++ does. `weight_decay` is that of this tensor.
    """
    copy_and_cast_kernel, adamw_update = uses
    count = params_memory.size
    if init_master and master_weights is not None:
        copy_and_cast_kernel[(ceil_div(count, 512), 1), 512](master_weights, params_memory, count, 0, 0)
    adamw_update(
        params_memory,
        master_weights,
        grads_memory,
        m_memory,
        v_memory,
        count,
        count,
        count,
        count,
        1,
        learning_rate,
        beta1,
        beta2,
        t,
        eps,
        weight_decay,
        grad_scale,
        seed,
    )
