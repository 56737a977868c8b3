"""Calls of known functions with too few arguments: the launcher is left out, with the reason."""

import pathlib

import pytest

from llmc2py.lower.cublas import _CALLS
from llmc2py.lower.hostcalls import _LEAST_ARGUMENTS
from llmc2py.pipeline import generate

LEAST = _LEAST_ARGUMENTS | {name: least for name, (least, _) in _CALLS.items()}


@pytest.mark.parametrize("form", ["CALL;", "(void)CALL;", "cudaError_t status = CALL;", "check(CALL);"])
def test_the_launcher_is_left_out(tmp_path: pathlib.Path, form: str) -> None:
    calls = {
        f"few_{name}_{count}": f"{name}({', '.join(['n'] * count)})"
        for name, least in LEAST.items()
        for count in range(least)
    }
    launchers = [
        f"void {name}(float* x, int n) {{ {form.replace('CALL', call)} k<<<1, n>>>(x); }}"
        for name, call in calls.items()
    ]
    text = "void check(cudaError_t status) { if (status) exit(1); }\n__global__ void k(float* x) { x[0] = 1; }\n"
    # What a launcher does with its pointers is asked for where another calls it, before it is lowered.
    launchers += [f"void calls_{name}(float* x, int n) {{ {name}(x, n); }}" for name in calls]
    (tmp_path / "few.cu").write_text(text + "\n".join(reversed(launchers)) + "\n")
    plan = generate(tmp_path).plan
    reasons = {one.launcher.name: one.reason for one in plan.not_lowered}
    assert reasons.keys() >= calls.keys() | {f"calls_{name}" for name in calls}
    # As a value, most of these are not known with all of their arguments either.
    if form != "cudaError_t status = CALL;":
        assert {name for name in calls if "takes more than" not in reasons[name]} == set()
