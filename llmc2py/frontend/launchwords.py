"""How a launch is spelled."""

from __future__ import annotations

import re

#: Functions of CUDA that launch a kernel, beside ``<<<…>>>``.
LAUNCH_CALLS = (
    "cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernelMultiDevice", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
)  # fmt: skip
#: Where a launch begins.
SITE = re.compile(rf"<[ \t]*<[ \t]*<|\b(?:{'|'.join(LAUNCH_CALLS)})\b(?=\s*[(<])".encode())
