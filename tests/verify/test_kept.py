"""Checks that passed before are not run again, unless anything that decides them changed."""

from __future__ import annotations

import importlib
import json
import pathlib
import pickle
import re
import shutil
import types

import pytest
from click.testing import CliRunner

from llmc2py import verify
from llmc2py.caching import Shelf
from llmc2py.cli import cli
from llmc2py.verify import kept, machine, report
from llmc2py.verify.cases import Case
from llmc2py.verify.checks import Subject
from llmc2py.verify.kept import Footprint, Footprints, rows_of
from llmc2py.verify.packages import load_package
from llmc2py.verify.report import VerifyRow, verify_package
from llmc2py.verify.variants import variant_subjects

ROOT = pathlib.Path(__file__).parents[2]
RELU = ROOT / "examples" / "relu" / "generated"
CASES = [Case((64,), {})]


@pytest.fixture(autouse=True)
def shelf(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A shelf of the test's own; compiled kernels stay in the cache of all."""
    own = Shelf(str(tmp_path / "verified"), 1 << 20)
    monkeypatch.setattr(kept, "VERIFIED", own)
    return own


@pytest.fixture
def relu(tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(RELU, tmp_path / "relu", ignore=shutil.ignore_patterns("__pycache__")))


def checked(package: pathlib.Path, earlier: kept.Earlier = "taken") -> list[VerifyRow]:
    return verify_package(str(package), "cpu", cases=lambda spec: CASES, earlier=earlier)


def taken(rows: list[VerifyRow]) -> dict[str, bool]:
    """Whether rows were taken from an earlier run, by precision; all of one precision are alike."""
    found = {row.precision: row.earlier for row in rows}
    assert all(found[row.precision] == row.earlier for row in rows)
    return found


def edit(path: pathlib.Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text())
    assert count, f"{path} has no {pattern}"
    path.write_text(text)


# --- runs


def test_what_passed_is_taken_from_the_earlier_run_and_says_so(relu):
    first, second = checked(relu), checked(relu)
    assert taken(first) == {"float64": False, "float32": False}
    assert taken(second) == {"float64": True, "float32": True}
    assert [row.to_json() | {"earlier": True} for row in first] == [row.to_json() for row in second]


def test_a_library_call_runs_everything_and_keeps_nothing(relu, shelf):
    for _ in range(2):
        rows = verify_package(str(relu), "cpu", cases=lambda spec: CASES)
        assert taken(rows) == {"float64": False, "float32": False}
    assert not shelf.folder.exists()


def test_the_folder_of_a_package_does_not_count(relu, tmp_path):
    checked(relu)
    assert all(row.earlier for row in checked(relu.rename(tmp_path / "elsewhere")))


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "expected"),
    [
        ("relu.cu", r"\Z", "// words\n", {"float64": True, "float32": False}),
        ("relu.py", r"\Z", "# words\n", {"float64": True, "float32": False}),
        ("layers.py", "Fast sizes: all", "All sizes", {"float64": True, "float32": False}),
        ("references.py", r"np\.maximum\(inp, 0\)", "np.maximum(inp, 0.0)", {"float64": False, "float32": False}),
        ("references.py", r"\Z", "OTHER = 1\n", {"float64": True, "float32": True}),
        ("llmc2py.lock", r"\Z", "\n", {"float64": True, "float32": True}),
    ],
)
def test_a_change_runs_what_it_reaches(relu, file, pattern, replacement, expected):
    checked(relu)
    edit(relu / file, pattern, replacement)
    assert taken(checked(relu)) == expected


def test_other_cases_are_other_checks(relu):
    checked(relu)
    rows = verify_package(str(relu), "cpu", cases=lambda spec: [Case((4,), {})], earlier="taken")
    assert not any(row.earlier for row in rows)


def test_what_failed_is_run_again(relu):
    edit(relu / "relu.cu", r"0\.0f : x\[i\]", "0.5f : x[i]")
    for expected in ({"float64": False, "float32": False}, {"float64": True, "float32": False}):
        rows = checked(relu)
        assert taken(rows) == expected
        assert {row.precision for row in rows if not row.ok} == {"float32"}


def test_renewed_runs_everything_and_keeps_it(relu):
    checked(relu)
    assert not any(row.earlier for row in checked(relu, "renewed"))
    assert all(row.earlier for row in checked(relu))


@pytest.mark.parametrize("damage", [b"", b"no pickle", pickle.dumps("no rows"), pickle.dumps(())])
def test_a_damaged_entry_is_made_again(relu, shelf, damage):
    first = checked(relu)
    for path in shelf.folder.iterdir():
        path.write_bytes(damage)
    assert str(checked(relu)) == str(first)
    assert all(row.earlier for row in checked(relu))


def test_a_cache_that_cannot_be_written_costs_a_run_alone(relu, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kept, "VERIFIED", Shelf(str(tmp_path / "file" / "verified"), 1 << 20))
    assert str(checked(relu)) == str(checked(relu))


# --- one task


def row(ok: bool) -> VerifyRow:
    return VerifyRow("ReLU", "float32", "(1,)", "forward", ok, 0.0, 1.0, "")


def test_what_passed_once_and_fails_later_is_not_taken_any_more():
    place = Footprint("key", {})
    assert rows_of(lambda: [row(True)], place, "taken") == [row(True)]
    assert rows_of(lambda: [row(False)], place, "taken")[0].earlier
    assert rows_of(lambda: [row(True), row(False)], place, "renewed") == [row(True), row(False)]
    assert rows_of(lambda: [row(True)], place, "taken") == [row(True)]


def test_nothing_is_kept_where_a_file_was_written_meanwhile(tmp_path):
    path = tmp_path / "kernels.cu"
    path.write_text("before")
    place = Footprint("key", {path: kept.stamp(path)})

    def run() -> list[VerifyRow]:
        path.write_text("after, and longer")
        return [row(True)]

    for _ in range(2):
        assert rows_of(run, place, "taken") == [row(True)]
    path.unlink()
    assert not place.is_current()


def test_no_rows_are_not_kept(shelf):
    assert rows_of(list, Footprint("key", {}), "taken") == []
    assert not shelf.has("key")


# --- what decides a layer, its reference, a variant


@pytest.fixture(scope="module")
def prints():
    """A function that changes the package of vendor/llm.c and says whose footprints are others then."""
    plain = footprints_of(ROOT / "generated")

    def changed(file: str, pattern: str, replacement: str, folder: pathlib.Path) -> set[tuple[str, str]]:
        copy = shutil.copytree(ROOT / "generated", folder / "copy", ignore=shutil.ignore_patterns("__pycache__"))
        edit(copy / file, pattern, replacement)
        now = footprints_of(copy)
        assert now.keys() == plain.keys()
        return {key for key in plain if plain[key].key != now[key].key}

    return changed


def footprints_of(folder: pathlib.Path) -> dict[tuple[str, str], Footprint]:
    package = load_package(str(folder))
    of, found = Footprints(package, "cpu"), {}
    for name in ("GeLU", "MLP", "Encoder", "Softmax"):
        layer = package.layers[name]
        reference = package.references[layer.spec.name]
        subject = Subject(name, layer, layer.spec, reference, "float32", None)
        found["layer", name] = of.layer(subject, CASES)
        found["reference", name] = of.reference(name, layer.spec, reference, CASES)
        for variant in variant_subjects(package, name, None):
            if variant.precision == "float32":
                found["variant", variant.variant.launcher] = of.variant(variant)
    assert all(isinstance(one, Footprint) for one in found.values())
    return found


def test_a_kernel_decides_the_layers_that_import_it(prints, tmp_path):
    assert prints("gelu.cu", r"\Z", "\n", tmp_path) == {("layer", "GeLU"), ("layer", "MLP")}


def test_a_module_of_variants_decides_these(prints, tmp_path):
    changed = prints("dev/cuda/gelu_forward.cu", r"\Z", "\n", tmp_path)
    assert changed == {("variant", "gelu_forward1"), ("variant", "gelu_forward2")}


def test_a_c_reference_decides_what_it_is_compared_with(prints, tmp_path):
    changed = prints("references_c/dev/cuda/encoder_forward/encoder_forward_cpu.c", r"\Z", "\n", tmp_path)
    assert {("reference", "Encoder"), ("variant", "encoder_forward1")} <= changed
    assert not changed & {("layer", "Encoder"), ("reference", "GeLU"), ("variant", "gelu_forward1")}


def test_a_reference_decides_all_of_its_op_and_no_other(prints, tmp_path):
    changed = prints("references.py", r"(?s)(def softmax_forward.*?)inp - ", r"\1inp + 0 - ", tmp_path)
    assert {("layer", "Softmax"), ("reference", "Softmax"), ("variant", "softmax_forward1")} <= changed
    assert not {name for _, name in changed if "gelu" in name.lower() or "encoder" in name.lower()}


def test_how_an_op_is_held_to_its_reference_decides_too(prints, tmp_path):
    changed = prints("references.py", r'stochastic=\("wte", "wpe"\)', 'stochastic=("wte",)', tmp_path)
    assert {name for kind, name in changed if kind == "layer"} == {"Encoder"}


def test_a_class_decides_its_layer(prints, tmp_path):
    changed = prints("layers.py", r"class Encoder\(Layer\):\n", "class Encoder(Layer):\n    more = 1\n", tmp_path)
    assert changed == {("layer", "Encoder")}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("relu.py", "import os\n"),
        ("relu.py", "from llmc2py.pipeline import generate\n"),
        ("layers.py", "from os import path\nReLUFunction.path = path\n"),
    ],
)
def test_what_others_decide_is_not_kept(relu, file, text):
    edit(relu / file, r"\Z", text)
    for _ in range(2):
        assert taken(checked(relu))["float32"] is False


def test_references_from_elsewhere_are_not_kept(relu):
    edit(relu / "references.py", r"\Z", 'REFERENCES["relu"].forward.__module__ = "elsewhere"\n')
    for _ in range(2):
        assert not any(row.earlier for row in checked(relu))


# --- our own code, and the machine


def test_our_own_code_decides(tmp_path, monkeypatch):
    own = tmp_path / "llmc2py"
    for name in ("runtime", "verify"):
        shutil.copytree(pathlib.Path(verify.__file__).parents[1] / name, own / name)
    shutil.copy(pathlib.Path(verify.__file__).parents[1] / "caching.py", own)
    monkeypatch.setattr(machine, "_HERE", own)
    seen = {machine.machine_key("cpu")}
    for name in ("verify/tolerance.py", "runtime/ops.py", "runtime/host/include/cuda_host.h", "caching.py"):
        edit(own / name, r"\Z", "\n")
        seen.add(machine.machine_key("cpu"))
    assert len(seen) == 5


def test_the_machine_decides(monkeypatch):
    before = machine.machine_key("cpu")
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("LLMC2PY_JOBS", "1")
    assert machine.machine_key("cpu") == before
    seen = {before}
    for name in ("LLMC2PY_CHECK", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
        seen.add(machine.machine_key("cpu"))
    for name in ("_processor", "_cores", "_told"):
        monkeypatch.setattr(machine, name, lambda *_: "another")
        seen.add(machine.machine_key("cpu"))
    monkeypatch.setattr(machine, "_installed", lambda: ["numpy-9.9.dist-info"])
    assert len(seen | {machine.machine_key("cpu")}) == 8


def test_versions_of_libraries_are_found():
    names = [name.partition("-")[0] for name in machine._installed()]
    assert {"numpy", "ml_dtypes"} <= set(names)


def test_the_device_and_its_driver_decide(monkeypatch, tmp_path):
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0, driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000
    )
    device = types.SimpleNamespace(properties=lambda number: f"device {number} of 132 multiprocessors")
    tools = types.SimpleNamespace(find_toolkit=lambda: "NVRTC 13.0", cccl_version=lambda tools: "3")
    real = importlib.import_module
    monkeypatch.setattr(
        machine.importlib, "import_module", lambda name: runtime if name.endswith("api.runtime") else real(name)
    )
    monkeypatch.setattr(machine, "backend_named", lambda name: device)
    monkeypatch.setattr(machine, "toolkit", tools)
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "version")
    seen = {machine.machine_key("cuda"), machine.machine_key("cpu")}
    for owner, name, value in (
        (device, "properties", lambda number: "another device"),
        (runtime, "driverGetVersion", lambda: 13010),
        (tools, "find_toolkit", lambda: "NVRTC 13.1"),
        (tools, "cccl_version", lambda tools: "4"),
    ):
        monkeypatch.setattr(owner, name, value)
        seen.add(machine.machine_key("cuda"))
    (tmp_path / "version").write_text("580.1")
    assert len(seen | {machine.machine_key("cuda")}) == 7


@pytest.mark.gpu
def test_a_device_keeps_what_passed_on_it_alone(relu):
    def run(backend: str) -> list[VerifyRow]:
        return verify_package(str(relu), backend, cases=lambda spec: CASES, earlier="taken")

    assert not any(row.earlier for row in run("cpu") + run("cuda"))
    assert all(row.earlier for row in run("cpu") + run("cuda"))


# --- the command


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    return result.exit_code, result.stdout


def test_the_command_says_what_comes_from_earlier_runs(relu, monkeypatch):
    monkeypatch.setattr(report, "cases_for", lambda *_: CASES)
    verify_relu = ("verify", "--package", relu, "--backend", "cpu")
    code, first = run(*verify_relu)
    assert (code, "earlier" in first) == (0, False)
    code, second = run(*verify_relu)
    assert code == 0
    assert second.count("ok (earlier)") == 2
    assert re.search(r"(\d+) checks .*: all passed, \1 of them in earlier runs of the same code \(--again", second)
    record = json.loads(run(*verify_relu, "--json")[1])
    assert record["earlier"] == record["checks"] > 0
    assert all(one["earlier"] for one in record["rows"])
    again = json.loads(run(*verify_relu, "--json", "--again")[1])
    assert (again["earlier"], any(one["earlier"] for one in again["rows"])) == (0, False)


def test_the_command_tells_failures_and_earlier_runs_apart(relu, monkeypatch):
    monkeypatch.setattr(report, "cases_for", lambda *_: CASES)
    edit(relu / "relu.cu", r"0\.0f : x\[i\]", "0.5f : x[i]")
    run("verify", "--package", relu, "--backend", "cpu")
    code, text = run("verify", "--package", relu, "--backend", "cpu")
    assert code == 1
    assert re.search(r"\d FAILED, [1-9] passed in earlier runs of the same code", text)
