"""What is said of an included file that is not found."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Headers that are told of nowhere: those of CUDA, which people include with quotes too, of C and C++, of the system,
#: and of libraries for host code.
_EXPECTED_HEADER = re.compile(
    r"(?:cu|cooperative_groups|device_|vector_|sm_|math_|driver_|surface_|texture_|mma|nv|nccl|helper_).*"
    r"|(?:thrust|cub|cuda|nvtx3|sys|arpa|netinet)/.*|[a-z_0-9]+"
    r"|(?:assert|complex|ctype|errno|fcntl|fenv|float|getopt|inttypes|iso646|limits|locale|malloc|math|memory|mpi|omp)\.h"
    r"|(?:dirent|dlfcn|glob|io|libgen|netdb|poll|process|pthread|sched|semaphore|setjmp|signal|stdarg)\.h"
    r"|(?:stdatomic|stdbool|stddef|stdint|stdio|stdlib|string|strings|time|unistd|wchar|winsock2|windows|zlib)\.h"
)


def quoted_name(path: str) -> str:
    """Return the name of an included file in double quotes, as the directive has it."""
    return f'"{path}"'


def absent_message(name: str, there: Sequence[str], *, is_system_include: bool) -> str | None:
    """Return what there is to say of an include that is not found, if anything.

    ``there`` are the files of the tree that it may mean.
    """
    is_expected = _EXPECTED_HEADER.fullmatch(name) is not None
    files = ", ".join(there)
    if is_system_include and not is_expected:
        why = (
            f"is not looked for at {files} (include it with quotes)" if there else "is no header that kernels are given"
        )
        return f"#include <{name}> {why}: what it defines is unknown"
    if not is_system_include and (there or not is_expected):
        why = f"may be any of {files}" if there else "is not in the source tree"
        return f"#include {quoted_name(name)} {why}: what it defines is unknown"
    return None
