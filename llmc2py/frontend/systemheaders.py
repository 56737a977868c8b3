"""System headers that slices carry: what device code names calls for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from llmc2py.ir.library import Item

#: Headers by the names that call for each, whether or not the file includes it: one of its own headers may do so.
_HEADERS = {
    "cuda_bf16.h": re.compile(r"\b(__nv_bfloat16\w*|nv_bfloat16\w*|__\w*bfloat16\w*|__\w*bf16\w*)\b"),
    "cuda_fp16.h": re.compile(r"\b(half2?|__half2?|__half_raw|__\w*half2?\w*|__h(?:add|mul|fma|max|min|sub)2?)\b"),
    "cuda_fp8.h": re.compile(r"\b__nv_fp8\w*\b"),
    "cooperative_groups.h": re.compile(r"\b(cooperative_groups|cg)\b"),
    "cooperative_groups/reduce.h": re.compile(r"\b(?:cooperative_groups|cg)::reduce\b|\bcg::(?:plus|greater|less)\b"),
    "mma.h": re.compile(r"\bnvcuda\b|\bwmma::"),
    "cub/cub.cuh": re.compile(r"\bcub::"),
}
#: What the open conditions on precision call for.
_PRECISION_HEADERS = {"cuda_bf16.h": "ENABLE_BF16", "cuda_fp16.h": "ENABLE_FP16"}
#: Headers that a slice carries where the file includes them, by the names that call for each. CUDA has all of them.
_INCLUDED = (
    (r"cooperative_groups/reduce\.h", r"\b(?:\w+::)?reduce(?:_update_async|_store_async)?\s*[<(]"),
    (r"cooperative_groups/scan\.h", r"\b(?:in|ex)clusive_scan\w*"),
    (r"cooperative_groups/memcpy_async\.h|cooperative_groups/details/.*", r"\bmemcpy_async\b|\bwait(?:_prior)?\b"),
    (r"cuda_pipeline\w*\.h", r"\b__pipeline_\w+|\bnvcuda\b|\bpipeline\b"),
    (r"cuda_awbarrier\w*\.h", r"\bawbarrier\b|\b__mbarrier_\w+|\bnvcuda\b"),
    (r"curand\w*\.h", r"\bcurand\w*"),
    (r"math_constants\.h", r"\bCUDART_\w+"),
    (r"cuComplex\.h", r"\b(?:make_)?cu(?:Float|Double|C)\w+"),
    (r"cuda_fp[46]\.h", r"\b__nv_fp[46]\w*"),
    (r"cuda/.*", r"\bcuda\b"),
    (r"nv/target", r"\bNV_\w+"),
    (r"thrust/.*", r"\bthrust\b"),
    (r"cub/.*", r"\bcub\b|\b(?:Block|Warp)(?:Reduce|Scan|Load|Store|Exchange|RadixSort|MergeSort|Histogram|Shuffle)\b"),
)
_CARRIED = tuple((re.compile(header), re.compile(names)) for header, names in _INCLUDED)
#: Namespaces of CUDA that ``using namespace`` opens, by what is in them.
_OPENED = {
    "cooperative_groups": r"this_thread_block|tiled_partition|thread_block(?:_tile)?|this_grid|coalesced_threads",
    "nvcuda": "wmma|experimental",
    "cub": "(?:Block|Warp)[A-Z][a-z]+\\w*",
    "cuda": "(?:ptx|barrier|atomic|atomic_ref|pipeline|thread_scope_\\w+|memcpy_async|std)",
    "thrust": "complex|pair|tuple|plus|minus|multiplies|maximum|minimum",
}
_OPENED_WORDS = {namespace: re.compile(words) for namespace, words in _OPENED.items()}


def brings(directive: Item, words: Iterable[str]) -> bool:
    """Whether a ``using namespace`` of CUDA is what makes some words mean something."""
    known = [_OPENED_WORDS[used] for used in directive.uses if used in _OPENED_WORDS]
    return any(pattern.fullmatch(word) for pattern in known for word in words)


def headers_of(items: Iterable[Item], included: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ``#include`` lines of a slice; what only an open precision condition needs is guarded by it.

    ``included`` are the headers that the file includes and that the tree does not have.
    """
    free: dict[str, None] = {}
    guarded: dict[str, None] = {}
    for item in items:
        is_guarded = any("ENABLE_" in condition for condition in item.conditions)
        (guarded if is_guarded else free).update(dict.fromkeys(_headers_for(item.text, included)))
    lines = []
    for header in (*_HEADERS, *(one for one in included if one not in _HEADERS)):
        if header in free:
            lines.append(f"#include <{header}>")
        elif header in guarded:
            macro = _PRECISION_HEADERS.get(header)
            lines += [f"#ifdef {macro}", f"#include <{header}>", "#endif"] if macro else [f"#include <{header}>"]
    return tuple(lines)


@lru_cache(maxsize=4096)
def _headers_for(text: str, included: tuple[str, ...]) -> tuple[str, ...]:
    """Return the headers that an item calls for: most are in several slices."""
    found = [header for header, pattern in _HEADERS.items() if pattern.search(text)]
    for header in included:
        if any(name.fullmatch(header) and words.search(text) for name, words in _CARRIED):
            found.append(_spelled(header))
    return tuple(dict.fromkeys(found))


def _spelled(header: str) -> str:
    """Return the header that a slice includes: NVRTC takes CUB by one that has the parts for kernels."""
    return "cub/cub.cuh" if header.startswith("cub/") else header
