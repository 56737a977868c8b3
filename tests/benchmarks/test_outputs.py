"""What a benchmark is to write: folders are made, and what cannot be written is told, before it begins."""

import click
import pytest
from click.testing import CliRunner

from benchmarks import gpt2, gpt2_curve, history, layers, tricycle
from benchmarks.outputs import Output


@pytest.mark.parametrize("is_file", [True, False])
def test_folders_are_made_before_the_work(tmp_path, is_file):
    wanted = tmp_path / "new" / "deep" / "out"
    path = Output(file_okay=is_file).convert(str(wanted), None, None)
    assert path == wanted
    assert wanted.parent.is_dir()
    assert wanted.is_dir() is not is_file


def test_what_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    command = click.Command("x", params=[click.Option(["--out"], type=Output())], callback=lambda out: None)
    done = CliRunner().invoke(command, ["--out", str(tmp_path / "file" / "out.json")])
    assert done.exit_code == 2
    assert "cannot be written" in done.output


@pytest.mark.parametrize("benchmark", [gpt2, gpt2_curve, history, layers, tricycle], ids=lambda one: one.__name__)
def test_every_benchmark_asks_so(benchmark):
    written = {"--json", "--png", "--markdown", "--plots", "--output"}
    options = [one for one in benchmark.main.params if written & set(one.opts)]
    assert options
    assert all(isinstance(one.type, Output) for one in options)


def test_a_drawing_without_matplotlib_is_a_usage_error_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for benchmark, option in [(gpt2, "--png"), (gpt2_curve, "--png"), (layers, "--plots"), (history, "--output")]:
        arguments = [str(tmp_path)] if benchmark is history else []
        done = CliRunner().invoke(benchmark.main, [*arguments, option, str(tmp_path / "out")])
        assert done.exit_code == 2
        assert 'needs matplotlib: pip install ".[examples]"' in done.output
