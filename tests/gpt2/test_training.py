"""Schedule, evaluation, going on from checkpoints, and the two commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from examples.gpt2 import plot, sample, train, training
from examples.gpt2.checkpoint import read_config
from examples.gpt2.data import TokenLoader, write_tokens
from examples.gpt2.model import GPT2, GPT2_124M, TINY, GPT2Config
from examples.gpt2.prepare import config_of
from examples.gpt2.training import Schedule, Trainer, peak_of, utilisation
from llmc2py.runtime import random

ROOT = Path(__file__).resolve().parents[2]
TINIEST = GPT2Config(max_seq_len=8, vocab_size=256, num_layers=1, num_heads=1, channels=32)
QUICK = ["--batch", "1", "--sequence", "8", "--warmup", "2", "--val-batches", "1", "--sample", "2"]


def invoke(command: object, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]


def losses(folder: Path) -> list[str]:
    return (folder / "losses.csv").read_text().splitlines()[1:]


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = Schedule(steps=110, lr=1.0, min_lr=0.2, warmup=10)
    rates = [schedule.lr_at(step) for step in range(111)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert (rates[10], rates[60], rates[110], schedule.lr_at(999)) == pytest.approx((1, 0.6, 0.2, 0.2))
    assert Schedule(warmup=0, lr=1.0).lr_at(0) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps is at least 1, not 0"),
        ({"lr": -1.0}, "lr is not negative"),
        ({"lr": float("nan")}, "lr is not negative"),
        ({"min_lr": 2.0}, "a part of lr, from 0 to 1, not 2"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**values)  # type: ignore[arg-type]


class Capture:
    """A stand-in for `graphs.capture` on the CPU: called three times, and arrays that each replay writes to."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = lambda: function(*args)
        self.parameters = function.__self__.parameters  # type: ignore[attr-defined]
        for _ in range(3):
            self.total = self.call()
        self.gradients = [parameter.grad for parameter in self.parameters]

    def replay(self) -> Any:
        given, drawn = [parameter.grad for parameter in self.parameters], random.get_state()
        self.total = self.call()
        random.set_state(drawn)
        for parameter, old, own in zip(self.parameters, given, self.gradients, strict=True):
            own[...] = parameter.grad
            parameter.grad = old
        return self.total


def trainer_of(vocabulary: int = 256, graph: bool = False, dtype: str = "float32") -> Trainer:
    """A tiny model on tokens at random, two batches to a step."""
    tokens = np.random.default_rng(1).integers(0, vocabulary, 60).astype(np.uint16)
    schedule = Schedule(steps=5, batch=1, sequence=8, warmup=2, accumulation=2)
    model = GPT2(TINIEST, accumulation=2).to(dtype=dtype)
    return Trainer(model, TokenLoader([tokens], 1, 8), schedule, graph=graph)


def test_a_captured_pass_trains_as_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "capture", Capture)
    usual, captured = trainer_of(), trainer_of(graph=True)
    for number in range(4):
        if number == 2:
            captured.optimizer.zero_grad()  # the graph still writes to its own
        assert captured.step() == usual.step()
    for name, values in captured.model.state_dict().items():
        np.testing.assert_array_equal(values, usual.model.state_dict()[name])


def test_a_captured_pass_draws_from_no_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "capture", Capture)
    trainer = trainer_of(graph=True)
    random.manual_seed(5)
    before = random.get_state()
    trainer.step()
    assert random.get_state() == before


def test_a_captured_pass_refuses_batches_of_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "capture", Capture)
    trainer = trainer_of(graph=True)
    trainer.step()
    trainer.loader = TokenLoader([np.zeros(60, np.uint16)], 1, 4)
    with pytest.raises(ValueError, match=r"batches of \(2, 1, 4\); the graph was captured for \(2, 1, 8\)"):
        trainer.step()


def test_a_captured_pass_refuses_ids_that_no_replay_would_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "capture", Capture)
    with pytest.raises(IndexError, match=r"ids from \d+ to \d+: 256 are known"):
        trainer_of(vocabulary=2**16, graph=True).step()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_goes_on_from_a_checkpoint_to_the_same_losses(tmp_path: Path, dtype: str) -> None:
    from examples.gpt2.checkpoint import load_checkpoint

    whole = trainer_of(dtype=dtype)
    for number in range(5):
        if number == 2:
            whole.save(tmp_path / "c.npz")
        whole.step()
    other = trainer_of(dtype=dtype)
    other.resume(load_checkpoint(tmp_path / "c.npz"))
    while len(other.losses) < 5:
        other.step()
    assert other.losses == whole.losses
    for name, values in other.model.state_dict().items():
        np.testing.assert_array_equal(values, whole.model.state_dict()[name])


def test_evaluation_changes_nothing_and_counts_whole_batches() -> None:
    tokens = np.arange(40, dtype=np.uint16)
    schedule = Schedule(batch=1, sequence=8, accumulation=2)
    trainer = Trainer(GPT2(TINIEST, accumulation=2), TokenLoader([tokens], 1, 8), schedule)
    loss = trainer.evaluate(TokenLoader([tokens], 1, 8), 2)
    assert loss == pytest.approx(np.log(256), rel=0.05)
    assert trainer.evaluate(TokenLoader([tokens], 1, 8), 2) == loss
    assert trainer.val_losses == [(0, loss), (0, loss)]
    assert all(parameter.grad is None for parameter in trainer.parameters)


def test_a_model_for_another_accumulation_is_refused() -> None:
    loader = TokenLoader([np.arange(40, dtype=np.uint16)], 1, 8)
    with pytest.raises(ValueError, match="accumulates 2 batches, the schedule 1"):
        Trainer(GPT2(TINIEST, accumulation=2), loader, Schedule(batch=1, sequence=8))


def test_utilisation_counts_the_products_of_the_model() -> None:
    assert GPT2_124M.flops_per_token(1024) == 6 * 124475904 + 6 * 12 * 768 * 1024
    config = TINY
    rate = 1e12 / config.flops_per_token(32)
    assert utilisation(GPT2(config), 32, rate, 2.0) == pytest.approx(0.5)
    assert peak_of("NVIDIA H200", np.dtype(np.float32)) == 66.9
    assert peak_of("NVIDIA H200", np.dtype(np.float16)) == 989.4
    assert peak_of("another", np.dtype(np.float32)) is None


def test_the_command_trains_and_resumes_to_the_same_losses(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    done = invoke(train.main, *QUICK, "--steps", 6, "--save-every", 4, "--val-every", 3, "--out", whole)
    assert done.exit_code == 0, done.output
    assert "\nMara " in done.output, "there is no sample"
    for word in ("0.119M parameters", "float32 on the CPU", "8 tokens per step", "tokens/s", "validation"):
        assert word in " ".join(done.output.split())
    assert {"model.bin", "losses.csv", "checkpoint-000004.npz", "checkpoint-000006.npz"} <= {
        file.name for file in whole.iterdir()
    }
    done = invoke(
        train.main, "--resume", whole / "checkpoint-000004.npz", "--out", part, "--val-every", 0, "--sample", 0
    )
    assert done.exit_code == 0, done.output
    assert losses(part) == losses(whole)
    assert (part / "model.bin").read_bytes() == (whole / "model.bin").read_bytes()

    done = invoke(train.main, "--resume", whole / "checkpoint-000004.npz", "--steps", 4)
    assert done.exit_code == 2
    assert "--steps 4: the checkpoint was written after 4 already" in " ".join(done.output.split())

    said = invoke(sample.main, whole / "model.bin", "--tokens", 3, "--temperature", 0, "--prompt", "The ")
    again = invoke(sample.main, part / "checkpoint-000006.npz", "--tokens", 3, "--top-k", 1, "--prompt", "The ")
    assert said.exit_code == again.exit_code == 0, said.output
    assert said.output == again.output
    assert said.output.startswith("The ")
    assert len(said.output.encode()) >= len("The ") + 3


def test_the_command_shows_mfu_where_the_peak_is_known(tmp_path: Path) -> None:
    done = invoke(train.main, *QUICK, "--steps", 1, "--peak-tflops", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "MFU" in done.output


def test_a_model_of_any_size_is_trained_and_resumed(tmp_path: Path) -> None:
    sizes = ["--layers", 1, "--heads", 3, "--channels", 24, "--context", 40]
    quick = ["--batch", 1, "--sequence", 40, "--val-batches", 1, "--sample", 2, "--out", tmp_path]
    done = invoke(train.main, *sizes, *quick, "--steps", 1)
    assert done.exit_code == 0, done.output
    assert "(1 layers, 24 channels)" in " ".join(done.output.split())
    expected = GPT2Config(max_seq_len=40, vocab_size=256, num_layers=1, num_heads=3, channels=24)
    assert read_config(tmp_path / "model.bin")[0] == expected
    done = invoke(train.main, "--resume", tmp_path / "checkpoint-000001.npz", "--steps", 2, *quick)
    assert done.exit_code == 0, done.output
    for name, size in zip(sizes[::2], sizes[1::2], strict=True):
        for other in ("--resume", tmp_path / "checkpoint-000001.npz"), ("--model", tmp_path / "model.bin"):
            done = invoke(train.main, name, size, *other)
            assert done.exit_code == 2
            assert f"{name} and {other[0]}" in " ".join(done.output.split())
    done = invoke(train.main, "--model", tmp_path / "model.bin", "--sequence", 41)
    assert done.exit_code == 2
    assert "--sequence 41: the model takes up to 40 tokens" in " ".join(done.output.split())
    assert "--context" not in done.output


def test_sizes_replace_those_of_the_named_model() -> None:
    none = {"resume": None, "layers": None, "heads": None, "channels": None, "context": None}
    assert config_of(none | {"model_name": "124M"}) == GPT2_124M
    larger = config_of(none | {"model_name": "124M", "layers": 24, "heads": 16, "channels": 1024})
    assert larger == GPT2Config(num_layers=24, num_heads=16, channels=1024)
    assert config_of(none | {"model_name": "tiny", "context": 64}).vocab_size == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channels", "50", "--heads", "3"], "50 channels cannot be split into 3 heads of one size"),
        (["--heads", "3"], "64 channels cannot be split into 3 heads"),
        (["--layers", "0"], "'--layers': 0 is not in the range x>=1"),
        (["--context", "half"], "'--context': 'half' is not a valid integer"),
        (["--model", "huge"], "--model huge: neither tiny nor 124M, nor a file"),
        (["--device", "tpu"], "--device tpu: it is cpu, cuda or cuda:N"),
        (["--sequence", "64"], "--sequence 64: the model takes up to 32 tokens; --context 64 makes one that does"),
        (["--batch", "0"], "batch is at least 1, not 0"),
        (["--batch", "100000"], "make batches smaller"),
        (["--data", "big.bin"], "the data has token 50256, the model's vocabulary has 256"),
        (["--data", "bad.bin"], "bad.bin: no token file"),
        (["--resume", "bad.bin"], "bad.bin: no checkpoint"),
        (["--attention", "other"], "'other' is not one of"),
        (["--attention", "cudnn"], "--attention cudnn needs --device cuda and --dtype bf16"),
        (["--attention", "cudnn", "--device", "cpu:0", "--dtype", "bf16"], "--attention cudnn needs --device cuda"),
        (["--graph"], "--graph needs --device cuda"),
        (["--graph", "--device", "cpu:0"], "--graph needs --device cuda"),
    ],
)
def test_bad_use_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tokens("big.bin", [50256] * 600)
    Path("bad.bin").write_bytes(b"bad")
    done = invoke(train.main, *arguments, "--steps", 1)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not list(tmp_path.glob("gpt2-run"))


def test_training_that_goes_astray_is_stopped(tmp_path: Path) -> None:
    done = invoke(train.main, *QUICK, "--steps", 9, "--lr", 1e9, "--warmup", 0, "--clip", 0, "--out", tmp_path)
    assert done.exit_code == 1
    assert "the loss is nan; a smaller --lr may help" in done.output


def test_a_model_that_knows_no_bytes_is_sampled_by_ids_only(tmp_path: Path) -> None:
    from examples.gpt2.checkpoint import write_model

    write_model(tmp_path / "m.bin", GPT2(GPT2Config(8, 300, 1, 1, 32)))
    done = invoke(sample.main, tmp_path / "m.bin")
    assert done.exit_code == 2
    assert "give --tokenizer" in done.output


def test_without_matplotlib_the_hint_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ImportError, match=r"pip install 'llmc2py\[examples\]'"):
        plot.plot_losses(tmp_path / "loss.png", [1.0], [], "a run")


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.plot_losses(tmp_path / "loss.png", [3.0, 2.0, 1.0], [(1, 2.5), (3, 1.5)], "a run")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_make_installs_what_the_plot_needs() -> None:
    # The default run is to write the plot in the environment that the README tells users to make.
    script = (ROOT / "scripts" / "setup-venv").read_text(encoding="utf-8")
    extras = {extra for group in re.findall(r'pip install -e "\.\[([\w,]+)\]"', script) for extra in group.split(",")}
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    assert any(needed.startswith("matplotlib") for extra in extras for needed in known[extra])


def test_the_text_is_what_its_script_writes() -> None:
    folder = ROOT / "examples" / "gpt2" / "text"
    made = subprocess.run([sys.executable, folder / "make_text.py"], capture_output=True, check=True).stdout
    assert made == (folder / "harbour.txt").read_bytes()
    assert 30_000 < len(made) < 60_000


def test_the_scripts_run_from_anywhere(tmp_path: Path) -> None:
    for name in ("train", "sample"):
        script = ROOT / "examples" / "gpt2" / f"{name}.py"
        done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Usage" in done.stdout
