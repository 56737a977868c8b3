"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from llmc2py import __version__, results
from llmc2py.cli import cli
from llmc2py.runtime.environment import Finding
from llmc2py.verify import report
from llmc2py.verify.rows import VerifyRow

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELU = ROOT / "examples" / "relu"

SCALE = """\
#include <math.h>
float helper(float x) { return x; }
__global__ void scale(float* __restrict__ out, const float* inp, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = inp[i] * by;
}
template <typename T, int Size>
__global__ void fill(T* out) { out[threadIdx.x] = (T)Size; }
__global__ void ünicode(float* out) { out[0] = 1; }
void scale_by(float* out, const float* inp, float by, int n, int block_size) {
    scale<<<(n + block_size - 1) / block_size, block_size>>>(out, inp, by, n);
}
void sorted(float* out, int n) {
    qsort(out, n, 4, NULL);
    scale<<<1, 32>>>(out, out, 1.0f, n);
}
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source tree of one file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "scale.cu").write_text(SCALE.replace("ünicode", "unicode"), encoding="utf-8")
    return pathlib.Path("src")


def run(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def run_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "llmc2py", *map(str, arguments)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        timeout=120,
        check=False,
    )


# --- generate


def test_generate_writes_a_package_and_says_so(source):
    result = run("generate", source)
    assert result.exit_code == 0, result.output
    assert pathlib.Path("generated/scale.py").is_file()
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["module", "source", "kernels", "launchers", "layer", "precisions"]
    assert lines[1].split() == ["scale", "scale.cu", "3", "1", "-", "float32"]
    assert "3 kernels, 1 launcher and 0 layers in 1 module: generated written" in lines
    assert "1 host function not lowered (-v says why)" in lines


def test_verbose_says_what_is_not_lowered_and_why(source):
    result = run("generate", source, "-v")
    (reason,) = [line for line in result.stdout.splitlines() if ": note: " in line]
    assert reason.startswith("scale.cu:14:5: note: sorted: ")
    assert "qsort" in reason


def test_generate_json_is_one_object(source):
    result = run("generate", source, "--output", "out", "--json")
    record = json.loads(result.stdout)
    assert record["output"] == "out"
    assert record["written"] is True
    assert record["totals"] == {"modules": 1, "kernels": 3, "launchers": 1, "layers": 0}
    assert [item["name"] for item in record["not_lowered"]] == ["sorted"]
    assert sorted(path.name for path in pathlib.Path("out").iterdir()) == record["files"]
    assert result.stderr == ""


def test_default_output_of_a_source_with_entries_is_inside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "relu"
    folder.mkdir()
    for file in ("relu.cu", "relu.toml"):
        (folder / file).write_bytes((RELU / file).read_bytes())
    assert run("generate", folder).exit_code == 0
    before = (folder / "generated" / "llmc2py.lock").read_bytes()
    assert run("generate", folder).exit_code == 0
    assert (folder / "generated" / "llmc2py.lock").read_bytes() == before
    assert not pathlib.Path("generated").exists()


def test_an_error_in_the_source_is_exit_1_and_the_rest_is_written(source):
    (source / "bad.cu").write_text("float helper(float x);\nfloat helper(float x) { return x; }\n"
                                   "__global__ void bad(float* o) { o[0] = helper(o[0]); }\n")  # fmt: skip
    result = run("generate", source)
    assert result.exit_code == 1
    assert result.stderr.startswith("bad.cu:3:40: error: kernel bad calls host function helper")
    assert "1 kernel left out: bad" in result.stdout
    assert pathlib.Path("generated/scale.py").is_file()


def test_check_shows_differences_and_writes_nothing(source):
    missing = run("generate", source, "--check")
    assert missing.exit_code == 1
    assert "--- /dev/null" in missing.stdout
    assert not pathlib.Path("generated").exists()
    run("generate", source)
    same = run("generate", source, "--check")
    assert same.exit_code == 0
    assert "generated is up to date" in same.stdout
    file = pathlib.Path("generated/scale.py")
    text = file.read_text()
    file.write_text(text.replace("scale_by", "scaled_by"))
    changed = run("generate", source, "--check")
    assert changed.exit_code == 1
    assert "+def scale_by(" in "".join(line + "\n" for line in changed.stdout.splitlines() if "def scale_by(" in line)
    assert "generated is not what" in changed.stderr
    record = json.loads(run("generate", source, "--check", "--json").stdout)
    assert record["differs"] is True
    assert record["written"] is False
    assert "scaled_by" in file.read_text()


def test_check_sees_line_ends_and_foreign_files(source):
    run("generate", source)
    file = pathlib.Path("generated/scale.py")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    ends = run("generate", source, "--check")
    assert ends.exit_code == 1
    assert ends.stdout.splitlines()[:2] == ["--- a/scale.py", "+++ b/scale.py"]
    run("generate", source)
    pathlib.Path("generated/more.txt").write_text("mine\n")
    foreign = run("generate", source, "--check")
    assert foreign.exit_code == 1
    assert "--- a/more.txt" in foreign.stdout


# --- bad use


def test_output_with_foreign_files_is_left_alone(source):
    out = pathlib.Path("out")
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    result = run("generate", source, "--output", out)
    assert result.exit_code == 2
    assert "out: holds files that llmc2py did not write (thesis.tex)" in result.stderr
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    assert sorted(path.name for path in pathlib.Path().iterdir()) == ["out", "src"]


def test_output_that_is_a_file(source):
    pathlib.Path("out").write_text("mine")
    result = run("generate", source, "--output", "out")
    assert result.exit_code == 2
    assert "out: is no plain folder; choose another --output" in result.stderr
    assert pathlib.Path("out").read_text() == "mine"


def test_output_whose_parent_cannot_be_written(source):
    pathlib.Path("file").write_text("mine")
    result = run("generate", source, "--output", "file/out")
    assert result.exit_code == 2
    assert "file/out: cannot be written: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "nowhere"], "no such folder"),
        (["list", "nowhere"], "no such folder"),
        (["show", "nowhere", "x"], "no such folder"),
        (["generate", "src/scale.cu"], "is a file"),
        (["generate", "src", "--only", "zzz"], "--only zzz: no layer, source file or kernel has such a name"),
        (["generate", "src", "--catalog", "no.toml"], "no.toml: the catalogue entry cannot be read"),
        (["verify", "--package", "nowhere"], "nowhere: there is no such"),
        (["generate"], "Missing argument 'SOURCE'"),
        (["generate", "src", "--frobnicate"], "No such option"),
        (["verify", "--backend", "tpu"], "'tpu' is not one of"),
    ],
)
def test_bad_use_is_exit_2_with_a_message(source, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_bad_use_in_json(source):
    result = run("list", "nowhere", "--json")
    assert result.exit_code == 2
    assert "no such folder" in json.loads(result.stdout)["error"]


def test_a_bug_is_one_line_and_a_traceback_on_demand(source, tmp_path, monkeypatch):
    # On a slow machine another test may have left the package of this source in the cache.
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))

    def fail(*_):
        raise KeyError("two\nlines")

    monkeypatch.setattr(results, "generate", fail)
    plain = run("generate", source)
    assert plain.exit_code == 70
    (line,) = plain.stderr.splitlines()
    assert line.startswith("llmc2py: error: a bug in llmc2py (KeyError: 'two\\nlines'); please report it")
    for arguments in (["--debug", "list", source], ["list", source, "--debug"]):
        shown = run(*arguments)
        assert shown.exit_code == 70
        assert "Traceback (most recent call last)" in shown.stderr
    monkeypatch.setenv("LLMC2PY_DEBUG", "1")
    assert "Traceback" in run("list", source).stderr


# --- list and show


def test_list_has_places_templates_parameters_and_launches(source):
    result = run("list", source)
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    assert "scale.cu:3" in rows["scale"]
    assert "<<<(n + block_size - 1) / block_size, block_size>>> by scale_by" in rows["scale"]
    assert "typename T, int Size" in rows["fill"]
    assert "float* out, const float* inp, float by, int n, int block_size" in rows["scale_by"]
    assert "not lowered: scale.cu:14:5" in rows["sorted"]


def test_list_json_has_the_same(source):
    record = json.loads(run("list", source, "--json").stdout)
    kernels = {item["name"]: item for item in record["kernels"]}
    assert list(kernels) == ["scale", "fill", "unicode"]
    assert kernels["scale"]["launches"] == [
        {"by": "scale_by", "kind": "launcher", "file": "scale.cu",
         "configuration": "scale<<<(n + block_size - 1) / block_size, block_size>>>"}
    ]  # fmt: skip
    assert kernels["fill"]["template"] == [
        {"name": "T", "kind": "type", "default": None},
        {"name": "Size", "kind": "int", "default": None},
    ]
    assert [item["intent"] for item in kernels["scale"]["parameters"]] == ["out", "in", None, None]
    launchers = {item["name"]: item for item in record["launchers"]}
    assert launchers["scale_by"]["not_lowered"] is None
    assert "qsort" in launchers["sorted"]["not_lowered"]


def test_show_kernel(source):
    out = run("show", source, "scale").stdout
    assert out.startswith("kernel scale (scale.cu:3, module scale)\n")
    assert "__global__ void scale(float* out, const float* inp, float by, int n);" in out
    assert "launched by launcher scale_by (scale.cu): scale<<<(n + block_size - 1) / block_size, block_size>>>" in out
    assert '#line 3 "scale.cu"' in out
    assert "helper" not in out
    assert "scale = Kernel(\n" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("inp "))
    assert row == ["inp", "const", "float*", "in", "-", "no"]


def test_show_launcher_and_what_is_not_lowered(source):
    out = run("show", source, "scale_by").stdout
    assert "launches scale<<<(n + block_size - 1) / block_size, block_size>>>" in out
    assert "@launcher(\n" in out
    assert "def scale_by(plan: Plan" in out
    assert "not lowered: scale.cu:14:5: " in run("show", source, "sorted").stdout


def test_show_layer_by_both_names():
    by_layer, by_op = run("show", RELU, "ReLU"), run("show", RELU, "relu")
    assert by_layer.exit_code == 0
    assert by_layer.stdout == by_op.stdout
    assert "class ReLUFunction(Function):" in by_op.stdout
    assert "class ReLU(Layer):" in by_op.stdout
    record = json.loads(run("show", RELU, "relu_forward", "--json").stdout)
    (item,) = record["items"]
    assert item["launches"][0]["configuration"] == "relu_forward[ceil_div(N, 256), 256]"
    assert "relu_forward = Kernel(" in item["python"]["relu.py"]


def test_show_several_files_and_one_of_them(source):
    (source / "other").mkdir()
    (source / "other" / "scale.cu").write_text("__global__ void scale(float* o) { o[0] = 2; }\n")
    both = json.loads(run("show", source, "scale", "--json").stdout)["items"]
    assert [item["file"] for item in both] == ["other/scale.cu", "scale.cu"]
    (one,) = json.loads(run("show", source, "other/scale.cu:scale", "--json").stdout)["items"]
    assert one["file"] == "other/scale.cu"
    wrong = run("show", source, "third.cu:scale")
    assert wrong.exit_code == 2
    assert "it is in other/scale.cu, scale.cu" in wrong.stderr


def test_show_unknown_name_gives_near_misses(source):
    result = run("show", source, "Scal_by")
    assert result.exit_code == 2
    assert "did you mean scale_by" in result.stderr
    assert "`llmc2py list` shows the names" in run("show", source, "qqqqqqq").stderr


# --- verify and doctor


def rows_of(*verdicts):
    nan = float("nan")
    return [
        VerifyRow("GeLU", "float32", f"({n},)", "forward", ok, 0.5 if ok else float("inf"), 1.0, "a [b] detail")
        for n, ok in enumerate(verdicts, 1)
    ] + [VerifyRow("GeLU", "float32", "(1,)", "arrays unchanged", True, nan, nan, "")]


@pytest.mark.parametrize(("verdicts", "code"), [((True, True), 0), ((True, False), 1)])
def test_verify_exit_code_table_and_json(monkeypatch, verdicts, code):
    asked = []

    def verify(package, backend, only, progress, *, earlier):
        asked.append((package, backend, only, earlier))
        for row in rows_of(*verdicts):
            progress(row)
        return rows_of(*verdicts)

    monkeypatch.setattr(report, "verify_package", verify)
    result = run("verify", "--backend", "cpu", "--only", "Ge*")
    assert result.exit_code == code, result.output
    assert asked == [("generated", "cpu", ("Ge*",), "taken")]
    assert ("3 checks on the CPU backend: all passed" in result.stdout) is (code == 0)
    assert ("(2,)" in result.stdout and "FAILED" in result.stdout) is (code == 1)
    as_json = run("verify", "--backend", "cpu", "--json", "--again")
    record = json.loads(as_json.stdout)
    assert (as_json.exit_code, asked[-1][-1]) == (code, "renewed")
    assert (record["checks"], record["failed"]) == (3, code)
    assert record["rows"][-1]["error"] is None


def test_verify_runs_a_layer_for_real(tmp_path, monkeypatch):
    package = tmp_path / "package"
    assert run("generate", RELU, "--output", package).exit_code == 0
    monkeypatch.chdir(tmp_path)
    result = run("verify", "--package", package, "--backend", "cpu", "--again")
    assert result.exit_code == 0, result.output
    assert "ReLU" in result.stdout
    broken = (package / "relu.cu").read_text().replace("0.0f : x[i]", "0.5f : x[i]")
    assert broken != (package / "relu.cu").read_text()
    other = tmp_path / "mutant"
    package.rename(other)
    (other / "relu.cu").write_text(broken)
    assert run("verify", "--package", other, "--backend", "cpu").exit_code == 1


def test_doctor(monkeypatch):
    result = run("doctor")
    assert "Python" in result.stdout
    findings = json.loads(run("doctor", "--json").stdout)["findings"]
    assert {"Python", "C++ compiler"} <= {item["name"] for item in findings}
    mismatch = [Finding("CUDA headers", "do not fit NVRTC", "warning", "install one version")]
    monkeypatch.setattr("llmc2py.runtime.environment.inspect", lambda: mismatch)
    assert run("doctor").exit_code == 1


# --- as a process


def test_version_and_help():
    assert run("--version").stdout == f"llmc2py, version {__version__}\n"
    out = run("--help").stdout
    assert all(f"\n  {name} " in out for name in ("generate", "list", "show", "verify", "doctor"))


def test_help_loads_nothing_heavy():
    code = (
        "import sys, runpy\nsys.argv = ['llmc2py', '--help']\n"
        "try: runpy.run_module('llmc2py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([name for name in ('numpy', 'rich', 'tree_sitter', 'pcpp', 'cupy', 'jinja2') if name in sys.modules])"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.perf_counter() - started < 2  # 0.15 s on an idle machine


def test_piped_output_is_utf8_uncoloured_and_uncut(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    name = "a_very_long_name_" * 12
    (folder / "größe.cu").write_text(f"__global__ void {name}k(float* o) {{ o[0] = 1; }}\n", encoding="utf-8")
    done = run_process("list", folder, PYTHONIOENCODING="latin-1", COLUMNS="40", FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("utf-8")
    assert f"{name}k  größe.cu:1" in text
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_python_dash_m_gives_exit_codes(tmp_path):
    done = run_process("generate", tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith(b"llmc2py: error: ")
    assert done.stdout == b""


def test_reader_that_leaves_early_is_no_bug():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llmc2py", "show", str(RELU), "ReLU"],
            stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, timeout=120, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert b"bug" not in done.stderr
    assert b"Traceback" not in done.stderr
