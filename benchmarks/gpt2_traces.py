"""Times by kernel, from the trace that PyTorch's profiler takes of everything that a process runs on the GPU."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What the trace calls work of the device.
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def kernel_times(call: Callable[[], Any], wait: Callable[[], None]) -> dict[str, list[float]]:
    """Return, by kernel, how often it ran during ``call`` and for how many ms; nothing without PyTorch and a GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.cuda.init()
    wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return by_kernel(json.loads(path.read_text(encoding="utf-8")))


def by_kernel(trace: dict[str, Any]) -> dict[str, list[float]]:
    """Return calls and ms by name of the device's work in a trace, the longest first."""
    found: dict[str, list[float]] = {}
    for event in trace["traceEvents"]:
        if event.get("cat") in DEVICE_WORK and "dur" in event:
            entry = found.setdefault(short(event["name"]), [0, 0.0])
            entry[0] += 1
            entry[1] += event["dur"] / 1e3
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def short(name: str) -> str:
    """Return the name of a kernel without namespaces, return type and arguments, at most 60 characters."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0].strip()
    head, bracket, rest = bare.partition("<")
    return (head.rpartition("::")[2] + bracket + rest)[:60]


def shares(kernels: dict[str, list[float]], most: int = 25) -> list[tuple[str, int, float, float]]:
    """Return name, calls, ms and part of the whole for the longest, and what is left over as one more."""
    whole = sum(ms for _, ms in kernels.values()) or 1.0
    rows = [(name, int(calls), ms, ms / whole) for name, (calls, ms) in kernels.items()]
    rest = rows[most:]
    if not rest:
        return rows
    left = sum(row[2] for row in rest)
    return [*rows[:most], (f"{len(rest)} others", sum(row[1] for row in rest), left, left / whole)]
