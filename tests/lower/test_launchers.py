"""Launchers whose Python does what C does, run for their plans: loops, characters, errors, defaults, overflow."""

from __future__ import annotations

import importlib
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmc2py.emit.writer import write_package
from llmc2py.pipeline import generate

KERNELS = """\
__global__ void k(float* out, int n) { if (threadIdx.x == 0) out[0] = n; }
template <typename T> __global__ void t(T* out, T value) { out[0] = value; }
"""
_numbers = itertools.count()


@pytest.fixture
def launcher(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes the launcher ``go`` of host code; ``helpers`` stands before it."""

    def make(body: str, parameters: str = "float* out, int n", helpers: str = "") -> Any:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "k.cu").write_text(f"{KERNELS}{helpers}\nvoid go({parameters}) {{\n{body}\n}}\n")
        made = generate(tmp_path / "source")
        refused = {one.launcher.name: f"{one.span}: {one.reason}" for one in made.plan.not_lowered}
        if "go" in refused:
            return refused["go"]
        name = f"launchers_{next(_numbers)}"
        write_package(tmp_path / name, made.files)
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module(f"{name}.k").go

    return make


def passed(go: Any, *arguments: Any) -> list[Any]:
    """Return the last argument of each launch."""
    return [launch.args[-1] for launch in go.plan(np.zeros(4, np.float32), *arguments).operations]


OUT = np.zeros(4, np.float32)


# --- do … while


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("do { k<<<1, 1>>>(out, n); n = n / 2; } while (n > 1);", {8: [8, 4, 2], 1: [1], -3: [-3]}),
        ("do k<<<1, 1>>>(out, n); while (false);", {5: [5]}),
        ("do { if (n == 3) break; k<<<1, 1>>>(out, n); n--; } while (n > 0);", {5: [5, 4], 2: [2, 1], 0: [0]}),
        ("do { int m = n * 2; k<<<1, 1>>>(out, m); n -= 4; } while (n > 0 || n == -2);", {6: [12, 4, -4], 4: [8]}),
        ("do { k<<<1, 1>>>(out, n); } while (0);", {7: [7]}),
        ("do { if (n > 3) break; k<<<1, 1>>>(out, n); } while (false); k<<<1, 1>>>(out, -1);", {3: [3, -1], 4: [-1]}),
        ("do { n -= 7; } while (n > 0); k<<<1, 1>>>(out, n / 2);", {9: [-2], 7: [0], 8: [-3]}),
        (
            "do { switch (n) { case 1: k<<<1, 1>>>(out, 10); break; default: k<<<1, 1>>>(out, n); } n--; } while (n);",
            {3: [3, 2, 10]},
        ),
        ("int n2 = n; do { int n = n2 - 1; k<<<1, 1>>>(out, n); n2 = n; } while (n2 > 1); k<<<1, 1>>>(out, n);",
         {4: [3, 2, 1, 4]}),
    ],
)  # fmt: skip
def test_do_while(launcher: Callable[..., Any], body: str, expected: dict[int, list[int]]) -> None:
    go = launcher(body)
    assert {n: passed(go, n) for n in expected} == expected


def test_continue_in_a_do_loop_is_refused(launcher: Callable[..., Any]) -> None:
    said = launcher("do { if (n == 3) continue; k<<<1, 1>>>(out, n); n--; } while (n > 0);")
    assert said == "k.cu:5:1: continue in a loop that is no plain count cannot be lowered"


# --- characters


@pytest.mark.parametrize(
    ("literal", "value"),
    [("'a'", 97), ("'\\n'", 10), ("'\\0'", 0), ("'\\x41'", 65), ("'\\101'", 65), ("'\\''", 39), ("'\"'", 34),
     ("'\\\\'", 92), ("'\\xff'", -1), ("'a' + 1", 98), ("-'a'", -97)],
)  # fmt: skip
def test_characters_are_numbers(launcher: Callable[..., Any], literal: str, value: int) -> None:
    assert passed(launcher(f"k<<<1, 1>>>(out, {literal});"), 0) == [value]


def test_a_character_chooses(launcher: Callable[..., Any]) -> None:
    cases = "case 'f': k<<<1, 1>>>(out, 1); break; case 'b': k<<<1, 1>>>(out, 2); break; default: exit(1);"
    go = launcher(f"switch (mode) {{ {cases} }}", "float* out, char mode")
    assert [passed(go, ord(mode)) for mode in "fb"] == [[1], [2]]
    with pytest.raises(ValueError, match="go needs mode is one of 102, 98, but mode = 113"):
        go(OUT, ord("q"))


@pytest.mark.parametrize("literal", ["'ab'", "L'a'"])
def test_other_characters_are_refused_by_their_text(launcher: Callable[..., Any], literal: str) -> None:
    said = launcher(f"k<<<1, 1>>>(out, {literal});")
    assert said.startswith("k.cu:5:18: ")
    assert literal in said
    assert said.endswith("is no character that can be read")


# --- switches


def test_a_launcher_that_would_do_nothing_refuses_the_number(launcher: Callable[..., Any]) -> None:
    go = launcher("switch (n) { case 1: k<<<1, 1>>>(out, 5); break; case 2: case 4: k<<<1, 1>>>(out, n); break; }")
    assert [passed(go, n) for n in (1, 2, 4)] == [[5], [2], [4]]
    with pytest.raises(ValueError, match="go needs n is one of 1, 2, 4, but n = 3"):
        go(OUT, 3)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("switch (n) { case 1: k<<<1, 1>>>(out, 5); break; } k<<<1, 1>>>(out, n);", [3]),
        ("cudaMemset(out, 0, 4); switch (n) { case 1: k<<<1, 1>>>(out, 5); break; }", []),
        ("int m = 9; switch (n) { case 1: m = 2; break; } k<<<1, 1>>>(out, m);", [9]),
        ("switch (n) { case 1: k<<<1, 1>>>(out, 5); break; case 3: break; }", []),
    ],
)
def test_a_switch_that_is_not_all_lets_other_numbers_pass(
    launcher: Callable[..., Any], body: str, expected: list[int]
) -> None:
    plan = launcher(body).plan(OUT, 3)
    assert [one.args[-1] for one in plan.operations if hasattr(one, "kernel")] == expected


# --- types of arguments


@pytest.mark.parametrize(
    ("launch", "value"),
    [
        ("t<float><<<1, 1>>>(out, 0.1);", float(np.float32(0.1))),
        ("t<float><<<1, 1>>>(out, n / 2);", 3),
        ("t<float><<<1, 1>>>(out, n / 2.0f);", 3.5),
        ("k<<<1, 1>>>(out, 2.9f);", 2),
        ("k<<<1, 1>>>(out, -2.9);", -2),
        ("k<<<1, 1>>>(out, n > 3);", 1),
        ("k<<<1, 1>>>(out, true + true);", 2),
    ],
)
def test_arguments_are_converted_as_c_does(launcher: Callable[..., Any], launch: str, value: float) -> None:
    assert passed(launcher(launch), 7) == [value]


def test_members_have_the_type_of_the_parameter_that_takes_them(launcher: Callable[..., Any]) -> None:
    go = launcher(
        "t<float><<<1, p->threads>>>(p->data, p->scale); k<<<1, 1>>>(p->data, p->count);",
        "Job* p",
        "struct Job { float* data; float scale; int count, threads; };",
    )
    annotated = {name: one.annotation for name, one in go.signature.parameters.items()}
    assert annotated == {"p": "Job*", "p_threads": "int", "p_data": "float*", "p_scale": "float", "p_count": "int"}
    first, second = go.plan(None, p_threads=64, p_data=OUT, p_scale=0.5, p_count=3).operations
    assert (first.block, first.args[-1], second.args[-1]) == ((64, 1, 1), 0.5, 3)


# --- what is refused, and where


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("k<<<1, 1>>>(out);", "k.cu:5:1: k takes 2 arguments, but 1 is given"),
        ("missing<<<1, 1>>>(out, n);", "k.cu:5:1: kernel missing is not in the source that was read"),
        ("out[0] = n; k<<<1, 1>>>(out, n);",
         "k.cu:5:1: an assignment to anything but a local variable cannot be lowered"),
        ("goto done; done: k<<<1, 1>>>(out, n);", "k.cu:5:1: 'goto done;': goto statement is not supported"),
        ("k<<<1>>>(out, n);", "k.cu:5:1: 'k<<<1>>>(out, n)': a launch takes 2 to 4 configuration values"),
    ],
)  # fmt: skip
def test_what_cannot_be_lowered_is_said_at_its_place(launcher: Callable[..., Any], body: str, said: str) -> None:
    assert launcher(body) == said


def test_division_by_a_size_of_zero_is_a_value_error(launcher: Callable[..., Any]) -> None:
    go = launcher("k<<<64 / n, n>>>(out, n);")
    with pytest.raises(ValueError, match=r"go: these sizes lead to a division by zero \(k.cu:4\)"):
        go(OUT, 0)
