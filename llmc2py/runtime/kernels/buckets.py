"""Buckets of places, one for each token, made where the tokens are."""

from __future__ import annotations

from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.params import Param
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

__all__ = ["counts_size", "make_buckets"]

SOURCE = KernelSource.beside(__file__, "buckets.cu")

#: What buckets.cu calls HEADER and MOST_THREADS.
_HEADER, _MOST_THREADS = 4, 1024
_WARP_SIZE = 32
#: Threads of a block that counts, and the places of each.
_BLOCK, _PLACES = 256, 8
#: Tokens of a thread that orders buckets, where a block has threads for all.
_TOKENS = 16
_BUCKETS, _COUNTS = Param("buckets", "int4*", intent="out", align=16), Param("counts", "int*", intent="inout", align=16)
_COUNTED = [
    Param("places", "int*", intent="out"),
    Param("tokens", "const int*", intent="in"),
    Param("by_token", "const long long*", intent="in"),
    Param("N", "long long"),
]
_VOCABULARY, _GROUPS = Param("V", "long long"), Param("groups", "int")

count_tokens_kernel = Kernel(SOURCE, "count_tokens_kernel", [_COUNTS, *_COUNTED, _VOCABULARY])
order_buckets_kernel = Kernel(SOURCE, "order_buckets_kernel", [_BUCKETS, _COUNTS, _VOCABULARY, _GROUPS])


def counts_size(V: int) -> int:
    """Return how many numbers `counts` has for `V` tokens."""
    return _HEADER + ceil_div(V, 4) * 4


@launcher([_BUCKETS, _COUNTS, *_COUNTED, _VOCABULARY, _GROUPS])
def make_buckets(
    plan: Plan,
    buckets: Pointer,
    counts: Pointer,
    places: Pointer,
    tokens: Pointer,
    by_token: Pointer,
    N: int,
    V: int,
    groups: int,
) -> None:
    """Write buckets (begin, number of places, token, group) and the `places` that they index.

    `by_token` has the places of the `N` tokens in the order of the tokens. Each token that has places gets a bucket
    for each of the groups, which share them. Buckets stand by classes of length, the longest first, and by token within
    a class; there is room for those of min(N, V) tokens. The first three of `counts` (`counts_size(V)` numbers) become
    the number of tokens that have places, of those that have more than 16, and 1 where a token is not from 0 to
    `V` - 1, else 0.
    """
    plan.check_extent(buckets, min(N, V) * groups, "min(N, V) * groups")
    plan.check_extent(counts, counts_size(V), "counts_size(V)")
    for array in (places, tokens, by_token):
        plan.check_extent(array, N, "N")
    plan.memset(counts, 0, 4 * counts_size(V))
    plan.launch(count_tokens_kernel, ceil_div(N, _PLACES * _BLOCK), _BLOCK, 0, counts, places, tokens, by_token, N, V)
    # On the CPU threads take turns: they are no help, and each wait costs all of them a switch.
    most = _MOST_THREADS if plan.place.backend == "cuda" else _WARP_SIZE
    warps = min(most // _WARP_SIZE, max(1, ceil_div(V, _WARP_SIZE * _TOKENS)))
    plan.launch(order_buckets_kernel, warps, _WARP_SIZE * warps, 0, buckets, counts, V, groups)
