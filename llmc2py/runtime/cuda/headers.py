"""Headers that NVRTC does not have and kernels' files include all the same, given to it from memory."""

from __future__ import annotations

import functools
import pathlib

PRELUDE_NAME = "llmc2py/prelude.cuh"

#: The prelude already supplies what kernels use of these, or there is nothing in them for device code.
EMPTY_HEADERS = (
    *("assert.h", "errno.h", "float.h", "limits.h", "math.h", "omp.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h"),
    *("stdlib.h", "string.h", "sys/stat.h", "sys/time.h", "sys/types.h", "time.h", "unistd.h"),
    *("cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring", "ctime"),
    *("algorithm", "array", "chrono", "fstream", "functional", "iomanip", "iostream", "limits", "map", "memory"),
    *("numeric", "random", "sstream", "stdexcept", "string", "tuple", "type_traits", "unordered_map", "utility"),
    *("vector", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "cuda_profiler_api.h"),
    *("cublas_v2.h", "cublasLt.h", "nvtx3/nvToolsExt.h", "nvToolsExt.h"),
)

#: NVRTC cannot take the header of all of CUB: these are the parts of it that a kernel calls.
CUB_HEADER = "".join(
    f"#include <cub/{part}.cuh>\n"
    for part in ("block/block_reduce", "block/block_scan", "block/block_load", "block/block_store", "warp/warp_reduce")
)


@functools.cache
def prelude() -> str:
    """Return the text that every kernel is compiled after."""
    return pathlib.Path(__file__).with_name("prelude.cuh").read_text(encoding="utf-8")


@functools.cache
def memory_headers(with_cccl: bool) -> dict[str, str]:
    """Return the in-memory headers by the name that includes them.

    Without CCCL, ``<nv/target>`` is empty as well: NVRTC knows its macros itself, and ``cooperative_groups.h`` asks for
    nothing else of CCCL.
    """
    headers = {PRELUDE_NAME: prelude(), "cub/cub.cuh": CUB_HEADER} | dict.fromkeys(EMPTY_HEADERS, "")
    return headers if with_cccl else headers | {"nv/target": ""}
