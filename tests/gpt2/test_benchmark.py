"""The benchmark of training steps: its tables, and a run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from benchmarks import gpt2
from benchmarks.gpt2_traces import by_kernel, shares, short
from examples.gpt2.model import GPT2_124M


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layernorm_forward_kernel6", "layernorm_forward_kernel6"),
        ("void at::native::(anonymous namespace)::fill<float, 4>(int, float)", "fill<float, 4>"),
        ("void adamw_kernel3<float, __nv_bfloat16>(float*, float)", "adamw_kernel3<float, __nv_bfloat16>"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(cutlass_80::Params)", "Kernel2<cutlass_80_tensorop>"),
        ("Memset (Device)", "Memset"),
        ("k" * 99, "k" * 60),
    ],
)
def test_names_of_kernels_are_shown_without_what_is_around_them(name: str, expected: str) -> None:
    assert short(name) == expected


def test_a_trace_becomes_a_table_by_kernel() -> None:
    trace = {
        "traceEvents": [
            {"cat": "kernel", "name": "a(int)", "dur": 1000},
            {"cat": "kernel", "name": "void b<4>(int)", "dur": 500},
            {"cat": "kernel", "name": "a(int)", "dur": 2000},
            {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 500},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 9999},
            {"cat": "kernel", "name": "no duration"},
        ]
    }
    kernels = by_kernel(trace)
    assert kernels == {"a": [2, 3.0], "b<4>": [1, 0.5], "Memset": [1, 0.5]}
    assert shares(kernels) == [("a", 2, 3.0, 0.75), ("b<4>", 1, 0.5, 0.125), ("Memset", 1, 0.5, 0.125)]
    assert shares(kernels, 1) == [("a", 2, 3.0, 0.75), ("2 others", 2, 1.0, 0.25)]


def row(program: str, B: int, ms: float) -> dict[str, Any]:
    return {
        "program": program, "B": B, "T": 1024, "dtype": "bf16", "first_loss": 10.0, "steps": 3, "ms": ms, "min_ms": ms,
        "host_ms": 1.0, "tokens_per_second": B * 1024 / ms * 1e3, "peak_bytes": 2**31,
    }  # fmt: skip


def test_the_report_says_how_fast_and_what_failed() -> None:
    rows = [row("llmc2py", 4, 10.0), row("torch eager", 4, 15.0), row("llmc2py", 64, 100.0)]
    rows.append({"program": "torch eager", "B": 64, "T": 1024, "dtype": "bf16", "failed": "out of memory"})
    rows[1]["host_ms"] = None
    rows[0]["kernels"] = {"a": [2, 3.0]}
    gpt2.add_rates(rows, GPT2_124M, "NVIDIA H200", "bf16")
    flops = 4 * 1024 * GPT2_124M.flops_per_token(1024)
    assert rows[0]["mfu"] == pytest.approx(flops / 10e-3 / 989.4e12)
    assert (rows[0]["speed_to_eager"], rows[1]["speed_to_eager"]) == (1.5, 1.0)
    assert "speed_to_eager" not in rows[2]
    report = {"model": "124M", "dtype": "bf16", "sequence": 1024, "device": "NVIDIA H200", "date": "-", "rows": rows}
    text = gpt2.markdown(report)
    assert "| 4 | llmc2py | 409,600 | 10.00 | 1.0 |" in text
    assert "| 1.50x | 2.0 |" in text
    assert "| 4 | torch eager | 273,067 | 15.00 |  |" in text
    assert "| 64 | torch eager | out of memory |" in text
    assert "| `a` | 2 | 3.000 | 100.0% |" in text


def test_programs_that_do_not_do_the_same_are_found_out() -> None:
    rows = [row("llmc2py", 4, 10.0), row("torch eager", 4, 15.0), {"program": "torch compile", "failed": "why"}]
    gpt2.check_agreement(rows, 1e-3)
    rows[0]["first_loss"] = 10.02
    with pytest.raises(click.ClickException, match="disagree about the first loss"):
        gpt2.check_agreement(rows, 1e-3)
    rows[0]["first_loss"] = float("nan")
    with pytest.raises(click.ClickException, match="disagree"):
        gpt2.check_agreement(rows, 1e-3)


def test_the_benchmark_runs_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    arguments = ["--model", "tiny", "--device", "cpu", "--dtype", "fp32", "--batch", "1", "--sequence", "4"]
    arguments += ["--program", "llmc2py", "--seconds", "0", "--json", str(path), "--markdown", str(tmp_path / "r.md")]
    done = CliRunner().invoke(gpt2.main, arguments)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(path.read_text())["rows"]
    assert (found["steps"], found["B"], found["T"], found["kernels"]) == (3, 1, 4, {})
    assert found["tokens_per_second"] == pytest.approx(4 / found["ms"] * 1e3)
    assert "| 1 | llmc2py |" in (tmp_path / "r.md").read_text()


def test_an_unknown_device_is_refused() -> None:
    done = CliRunner().invoke(gpt2.main, ["--device", "tpu"])
    assert done.exit_code == 2
    assert "it is cpu, cuda or cuda:N" in done.output
