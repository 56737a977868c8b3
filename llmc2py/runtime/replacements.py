"""Python functions in the place of launchers whose work no plan can hold: they look at data, or at a program's structs.

A generated module binds each to the kernels that the launcher launches, as `Replacement`. The parameters are the
launcher's; what only the C++ needs (host scratch) may be None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.cuda.graphs import refuse_capture_of
from llmc2py.runtime.interop import as_array, hand_back

_WARP_SIZE = 32
#: Buckets of so many places, or fewer, are one warp's.
_FEW_PLACES = 16


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

    `dout` is (B, T, C), `inp` (B, T) tokens beside it and `inputs_cpu` the same tokens as a NumPy array; without it
    (None) they are sorted where `inp` is. Places are sorted into buckets by token, so that no block adds to another's
    row; the buckets need no memory of the caller: `scratch`, `workload_indices` and `bucket_info` may be None.

    Raises IndexError, naming the token and its place, for one that `dwte` has no row of, and RuntimeError while a CUDA
    graph is captured.
    """
    wpe_backward_kernel, wte_backward_kernel = uses
    if B * T * C == 0:
        return
    refuse_capture_of(dout, "encoder_backward has as many blocks as there are tokens, which no graph can repeat")
    tokens = (inp if inputs_cpu is None else inputs_cpu).reshape(-1)[: B * T]
    _check_tokens(tokens, dwte.size // C, T)
    vector = 16 // dout.dtype.itemsize
    # This needs no buckets: the device works on it while they are made.
    wpe_backward_kernel[ceil_div(T * ceil_div(C, vector), 256), 256](dwpe, dout, inp, B, T, C, seed)
    module = array_module(dout)
    found = token_buckets(tokens, ceil_div(C, _WARP_SIZE * vector))
    buckets, places = (module.asarray(array) for array in found)
    # A block of many warps would leave all but one without work where a token stands in few places.
    long = int(module.count_nonzero(buckets[:, 1] > _FEW_PLACES)) if wte_backward_kernel.template else len(buckets)
    if long:
        wte_backward_kernel[long, 256](dwte, buckets[:long], places, dout, inp, seed, B, T, C)
    if long < len(buckets):
        one_warp = wte_backward_kernel.instantiate(_WARP_SIZE)[len(buckets) - long, _WARP_SIZE]
        one_warp(dwte, buckets[long:], places, dout, inp, seed, B, T, C)


def token_buckets(tokens: Any, groups: int) -> tuple[Any, Any]:
    """Return buckets (begin, length, token, group of columns), the longest first, and the places that they index.

    All groups of one token share its places, which stand in rising order. The results are int32 arrays where the tokens
    (one axis, at least one token) are.
    """
    module = array_module(tokens)
    places = _rising(tokens).astype(np.int32)
    ordered = tokens[places]
    begins = module.concatenate([module.zeros(1, np.int64), module.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    counts = module.concatenate([begins[1:], module.full(1, len(ordered), np.int64)]) - begins
    order = _rising(counts.max() - counts)
    rows = module.empty((len(order), groups, 4), np.int32)
    rows[:, :, 0] = begins[order][:, None]
    rows[:, :, 1] = counts[order][:, None]
    rows[:, :, 2] = ordered[begins[order]][:, None]
    rows[:, :, 3] = module.arange(groups)
    return rows.reshape(-1, 4), places


def _rising(values: Any) -> Any:
    """Return the order that sorts values from 0 on; equal ones keep theirs."""
    # NumPy sorts 16 bits by their digits, several times as fast.
    if isinstance(values, np.ndarray) and values.max() < 1 << 16:
        values = values.astype(np.uint16)
    return values.argsort(kind="stable")


def _check_tokens(tokens: Any, rows: int, T: int) -> None:
    # One number to wait for: negative tokens are large where they are read without a sign.
    unsigned = tokens.astype(f"i{tokens.dtype.itemsize}", copy=False).view(f"u{tokens.dtype.itemsize}")
    if int(unsigned.max()) < rows:
        return
    values = tokens if isinstance(tokens, np.ndarray) else tokens.get()
    place = int(np.flatnonzero((values < 0) | (values >= rows))[0])
    raise IndexError(
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
