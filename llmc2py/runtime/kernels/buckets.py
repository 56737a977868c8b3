"""Buckets of places, one for each token, made where the tokens are."""

from __future__ import annotations

from llmc2py.runtime.csemantics import ceil_div
from llmc2py.runtime.kernel import Kernel
from llmc2py.runtime.launcher import launcher
from llmc2py.runtime.params import Param
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

__all__ = ["FEW_PLACES", "counts_size", "digits_size", "make_buckets", "sort_places"]

SOURCE = KernelSource.beside(__file__, "buckets.cu")

#: What buckets.cu calls HEADER, MOST_THREADS, DIGITS, TILE and FEW_PLACES.
_HEADER, _MOST_THREADS, _DIGITS, _TILE = 4, 1024, 256, 2048
FEW_PLACES = 16
_WARP_SIZE = 32
#: Threads of a block that counts, and the places of each.
_BLOCK, _PLACES = 256, 8
#: Tokens of a thread that orders buckets, where a block has threads for all.
_TOKENS = 16
_BUCKETS, _COUNTS = Param("buckets", "int4*", intent="out", align=16), Param("counts", "int*", intent="inout", align=16)
_PLACES_IN, _PLACES_OUT = Param("places", "const int*", intent="in"), Param("places", "int*", intent="out")
_ORDER = Param("order", "const int*", intent="in", nullable=True)
_TOKENS_IN, _N = Param("tokens", "const int*", intent="in"), Param("N", "long long")
_VOCABULARY, _GROUPS, _ROOM = Param("V", "long long"), Param("groups", "int"), Param("room", "long long")
_BY_DIGIT = [_ORDER, _TOKENS_IN, _N, _VOCABULARY, Param("shift", "int")]

count_digits_kernel = Kernel(SOURCE, "count_digits_kernel", [Param("digits", "int*", intent="out"), *_BY_DIGIT])
add_up_kernel = Kernel(SOURCE, "add_up_kernel", [Param("numbers", "int*", intent="inout"), Param("n", "long long")])
move_places_kernel = Kernel(
    SOURCE,
    "move_places_kernel",
    [Param("sorted", "int*", intent="out"), Param("digits", "const int*", intent="in"), *_BY_DIGIT],
)
count_tokens_kernel = Kernel(SOURCE, "count_tokens_kernel", [_COUNTS, _PLACES_IN, _TOKENS_IN, _N, _VOCABULARY])
order_buckets_kernel = Kernel(SOURCE, "order_buckets_kernel", [_BUCKETS, _COUNTS, _VOCABULARY, _GROUPS, _ROOM])


def counts_size(V: int) -> int:
    """Return how many numbers `counts` has for `V` tokens."""
    return _HEADER + ceil_div(V, 4) * 4


def digits_size(N: int) -> int:
    """Return how many numbers `digits` has for `N` places."""
    return _DIGITS * ceil_div(N, _TILE)


@launcher(
    [
        _PLACES_OUT,
        Param("spare", "int*", intent="out"),
        Param("digits", "int*", intent="out"),
        _TOKENS_IN,
        _N,
        _VOCABULARY,
    ]
)
def sort_places(plan: Plan, places: Pointer, spare: Pointer, digits: Pointer, tokens: Pointer, N: int, V: int) -> None:
    """Write the places of the `N` tokens in the order of the tokens, those of one in rising order.

    What is no token from 0 to `V` - 1 comes last. `spare` has `N` numbers and `digits` has `digits_size(N)`, for work.
    """
    for array in (places, spare, tokens):
        plan.check_extent(array, N, "N")
    plan.check_extent(digits, digits_size(N), "digits_size(N)")
    tiles, passes = ceil_div(N, _TILE), max(1, ceil_div(V.bit_length(), 8))
    order = None
    for number in range(passes):
        given = (order, tokens, N, V, 8 * number)
        # The last pass writes to places.
        order = places if (passes - number) % 2 else spare
        plan.launch(count_digits_kernel, tiles, _DIGITS, 0, digits, *given)
        plan.launch(add_up_kernel, 1, _MOST_THREADS, 0, digits, _DIGITS * tiles)
        plan.launch(move_places_kernel, tiles, _DIGITS, 0, order, digits, *given)


@launcher([_BUCKETS, _COUNTS, _PLACES_IN, _TOKENS_IN, _N, _VOCABULARY, _GROUPS])
def make_buckets(
    plan: Plan,
    buckets: Pointer,
    counts: Pointer,
    places: Pointer,
    tokens: Pointer,
    N: int,
    V: int,
    groups: int,
) -> None:
    """Write buckets (begin, number of places, token, group), which index `places`.

    `places` has the places of the `N` tokens in the order of the tokens. Each token that has places gets a bucket for
    each of the groups, which share them. Buckets stand by classes of length, the longest first, and by token within a
    class. There is room for those of min(N, V) + 1 tokens: what is left are buckets without places, of a group that no
    column is in. The first three of `counts` (`counts_size(V)` numbers) become the number of tokens that have
    places, of those that have more than `FEW_PLACES`, and 1 where a token is not from 0 to `V` - 1, else 0.
    """
    room = min(N, V) + 1
    plan.check_extent(buckets, room * groups, "(min(N, V) + 1) * groups")
    plan.check_extent(counts, counts_size(V), "counts_size(V)")
    for array in (places, tokens):
        plan.check_extent(array, N, "N")
    plan.memset(counts, 0, 4 * counts_size(V))
    plan.launch(count_tokens_kernel, ceil_div(N, _PLACES * _BLOCK), _BLOCK, 0, counts, places, tokens, N, V)
    # On the CPU threads take turns: they are no help, and each wait costs all of them a switch.
    most = _MOST_THREADS if plan.place.backend == "cuda" else _WARP_SIZE
    warps = min(most // _WARP_SIZE, max(1, ceil_div(V, _WARP_SIZE * _TOKENS)))
    plan.launch(order_buckets_kernel, warps, _WARP_SIZE * warps, 0, buckets, counts, V, groups, room)
