"""Kernels and launches in branches that are off are told, with the line and the condition, and counted."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner

from llmc2py.cli import cli
from llmc2py.frontend.reader import read_tree

KERNEL = "__global__ void k(float* x) { x[0] = 1; }"
LAUNCH = 'void run(float* x) { puts("<<<"); other<<<1, 1>>>(x); }'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"#ifdef A\n{LAUNCH}\n#endif", ["k.cu:2:1: warning: 1 launch stands under #ifdef A (line 1)"]),
        (
            f"#if A == 1\n\n{KERNEL}\n{LAUNCH}\n#endif",
            ["k.cu:3:1: warning: 1 kernel and 1 launch stand under #if A == 1 (line 1)"],
        ),
        (
            "#if A > 1\n__global__ __launch_bounds__(32)\nvoid k(float* x)\n{\n}\n#endif",
            ["k.cu:2:1: warning: 1 kernel stands under #if A > 1 (line 1)"],
        ),
        (
            f"#define A 1\n#if A\nint x;\n#elif B\n{KERNEL}\n#else\n{KERNEL}\n#endif",
            [
                "k.cu:5:1: warning: 1 kernel stands under #elif B (line 4)",
                "k.cu:7:1: warning: 1 kernel stands under the #else of #elif B (line 6)",
            ],
        ),
        (
            f"#ifndef GUARD\n#define GUARD\n#ifdef A\n#if B > 1\n{KERNEL}\n#endif\n#endif\n#endif",
            ["k.cu:5:1: warning: 1 kernel stands under #ifdef A (line 3) and #if B > 1 (line 4)"],
        ),
        (f"#if 0\n{KERNEL}\n#endif", ["k.cu:2:1: note: 1 kernel stands under #if 0 (line 1)"]),
        (f"#ifdef A\n__global__ void k(float*); // {KERNEL}\n/* <<< */ int x = 1 << 2;\n#endif", []),
        (f"#ifdef A\n#define RUN k<<<1, 1>>>\n#endif\n#ifdef ENABLE_BF16\n{KERNEL}\n#endif", []),
        (f'#if A > 1\n#include "other.h"\n#endif\n{KERNEL}', []),
    ],
)
def test_what_is_off_is_told(tmp_path: pathlib.Path, text: str, said: list[str]) -> None:
    (tmp_path / "other.h").write_text("#if 1 > 2\nint y;\n#endif\n")
    (tmp_path / "k.cu").write_text(f"{text}\n")
    found = [str(one) for one in read_tree(tmp_path).diagnostics]
    assert [one.partition(", which")[0] for one in found] == said


def test_they_count_as_not_accounted_for(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k.cu").write_text(f"{KERNEL}\n#ifdef A\n{LAUNCH}\n#endif\n#if 0\n{LAUNCH}\n#endif\n")
    written = CliRunner().invoke(cli, ["generate", str(tmp_path), "--output", str(tmp_path / "out")])
    assert (written.exit_code, "1 launch stands under #ifdef A (line 2), which does not hold" in written.output) == (
        0,
        True,
    )
    report = CliRunner().invoke(cli, ["report", str(tmp_path), "--no-compile", "--json"])
    (line,) = json.loads(report.stdout)["unexplained"]
    assert (report.exit_code, line[:31]) == (1, "k.cu:3:1: warning: 1 launch sta")
