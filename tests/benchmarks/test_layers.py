"""The benchmark of layers: what it measures, what its table says, and that it runs on the CPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import layer_cases, layer_programs
from benchmarks import layers as bench
from llmc2py.runtime import Layer

CASES = {case.name: case for case in layer_cases.CASES}
CEILINGS = {"copy": 4000.0, "fp32": 50.0, "bf16": 800.0}


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ceilings", lambda device, budget: dict(CEILINGS))


def test_every_layer_has_a_case(generated_package: Any) -> None:
    layers = importlib.import_module(f"{generated_package.__name__}.layers")
    named = {name for name in layers.__all__ if issubclass(getattr(layers, name), Layer)}
    assert set(CASES) == named


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mebibytes", [1, 16, 1024])
def test_the_main_activation_has_the_size_asked_for(name: str, mebibytes: int) -> None:
    case = CASES[name]
    sizes = case.sizes(mebibytes * 2**20 // 2)
    shape = case.inputs(sizes)[0].shape
    elements = int(np.prod(shape)) * (layer_cases.CHANNELS if name == "Encoder" else 1)
    assert 0.7 * mebibytes * 2**20 <= 2 * elements <= mebibytes * 2**20


def test_bytes_and_operations_of_known_layers() -> None:
    rows = {"N": 32}
    assert CASES["GeLU"].bytes_moved(rows, 2) == (2 * 32 * 3072 * 2, 3 * 32 * 3072 * 2)
    assert CASES["LayerNorm"].bytes_moved(rows, 4) == (
        4 * (2 * 32 * 768 + 2 * 768 + 2 * 32),
        4 * (3 * 32 * 768 + 3 * 768 + 2 * 32),
    )
    assert CASES["Linear"].operations(rows) == (2 * 32 * 768 * 3072, 4 * 32 * 768 * 3072)
    assert CASES["Attention"].operations({"B": 1, "T": 4}) == (2 * 16 * 768, 5 * 16 * 768)


@pytest.mark.parametrize(("cache", "copies"), [(0, 1), (1 << 20, 3), (50 << 20, 64)])
def test_inputs_that_a_cache_would_hold_are_there_several_times(cache: int, copies: int) -> None:
    data = layer_cases.make_data(CASES["GeLU"], 0.5, "fp32", np, cache)
    assert data.copies == copies
    assert len({id(array) for given in data.inputs for array in given}) == copies
    assert len(data.gradients) == copies


def test_results_that_are_apart_are_found() -> None:
    expected = [np.array([1.0, -4.0]), np.array([2.0])]
    assert bench.disagreement(expected, expected) == 0
    assert bench.disagreement([np.array([1.0, -3.0]), np.array([2.0])], expected) == 0.25
    assert bench.disagreement([np.array([np.nan, -4.0]), np.array([2.0])], expected) == np.inf
    assert bench.disagreement(expected[:1], expected) == np.inf


def test_a_row_says_why_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, data: Any, device: Any) -> None:
            raise MemoryError("12 bytes")

    class Missing:
        def __init__(self, data: Any, device: Any) -> None:
            raise ImportError("no such tool\nmore")

    device = layer_programs.Cpu()
    monkeypatch.setattr(bench, "PROGRAMS", {"llmc2py": Full, "torch eager": Missing})
    monkeypatch.setattr(bench, "names_of", lambda *given: ["llmc2py", "torch eager"])
    ours, theirs = bench.run_case(CASES["GeLU"], "fp32", 0.01, device, 0.01, False)
    assert ours["failed"] == "out of memory"
    assert theirs["failed"] == "ImportError: no such tool"
    (cells,) = bench.table_rows([ours, theirs])
    assert cells[:5] == ["GeLU", "fp32", "0.01", "both", "out of memory"]
    assert "ImportError: no such tool" in cells


def test_what_misses_the_target_is_named() -> None:
    def row(layer: str, gb_s: float, **others: Any) -> dict[str, Any]:
        return {"layer": layer, "program": "llmc2py", "dtype": "fp32", "mib": 256.0, "gb_s": gb_s, **others}

    rows = [row("GeLU", 3000), row("Softmax", 1200), row("Linear", 10, tflop_s=45.0), row("LayerNorm", 9, mib=1.0)]
    bench.add_shares(rows, CEILINGS)
    assert [one["of_ceiling"] for one in rows[:3]] == [0.75, 0.3, 0.9]
    assert [one["layer"] for one in bench.below_target(rows)] == ["Softmax"]


def test_it_runs_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    options = ["--device", "cpu", "--size", "0.02", "--dtype", "fp32", "--seconds", "0.01", "--json", str(path)]
    layers = ["GeLU", "Residual", "LayerNorm", "FusedClassifier"]
    done = CliRunner().invoke(bench.main, options + [word for name in layers for word in ("--layer", name)])
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    ours = [row for row in report["rows"] if row["program"] == "llmc2py"]
    assert [row["pass"] for row in ours] == ["forward", "backward", "both"] * len(layers)
    assert not [row for row in report["rows"] if "failed" in row or "disagrees" in row]
    idle = {row["layer"] for row in ours if row["us"] is None}
    assert idle == {"Residual"}
    for row in ours:
        if row["pass"] != "both" and row["us"] is not None:
            assert row["gb_s"] == pytest.approx(row["bytes"] / row["us"] * 1e-3)
    assert "each input read once" in done.output


def test_a_limit_leaves_out_the_rest_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    done = CliRunner().invoke(bench.main, ["--device", "cpu", "--layer", "GeLU", "--limit", "-1", "--json", str(path)])
    assert done.exit_code == 0
    assert "left out, for the time is up: GeLU fp32 256 MiB" in done.output
    assert json.loads(path.read_text())["rows"] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_measured_on_a_gpu(name: str) -> None:
    device = layer_programs.Cuda()
    for dtype in layer_cases.DTYPES:
        rows = list(bench.run_case(CASES[name], dtype, 1.0, device, 0.01, False))
        failed = [row for row in rows if "failed" in row and row["program"] != "llmc2py cudnn"]
        assert not failed
        assert not [row for row in rows if "disagrees" in row]
        device.free()
